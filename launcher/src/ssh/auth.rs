//! Logging in: keys of the agent first, then keys from files, each read once for all hosts.

use super::config::{HostConfig, IdentityAgent};
use super::error::SshError;
use super::host_key::Client;
use nix::unistd::{Uid, User};
use russh::client::{AuthResult, Handle};
use russh::keys::agent::AgentIdentity;
use russh::keys::agent::client::AgentClient;
use russh::keys::{HashAlg, PrivateKey, PrivateKeyWithHashAlg, PublicKey, load_secret_key};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::net::UnixStream;

/// A key file as far as it could be used.
type LoadedKey = Result<Arc<PrivateKey>, Unusable>;

/// Why a key file does not count.
#[derive(Clone, Debug)]
enum Unusable {
    Missing,
    Encrypted,
    Broken(String),
}

/// The keys of all hosts.
#[derive(Default)]
pub(crate) struct KeyRing {
    files: Mutex<HashMap<PathBuf, LoadedKey>>,
}

/// One login in progress.
struct Attempt<'a> {
    handle: &'a mut Handle<Client>,
    user: &'a str,
    /// What was tried, for the message.
    tried: Vec<String>,
    offered: Vec<PublicKey>,
    methods: String,
    /// The signature hash this server takes from RSA keys, asked for once.
    rsa_hash: Option<Option<HashAlg>>,
}

impl KeyRing {
    /// Who we are here, which is who we are there unless something says otherwise.
    pub(crate) fn local_user(&self) -> String {
        let name = User::from_uid(Uid::effective()).ok().flatten().map(|user| user.name);
        name.or_else(|| std::env::var("USER").ok()).unwrap_or_else(|| "root".to_owned())
    }

    /// Logs in as `user`, or says what was tried.
    pub(crate) async fn log_in(
        &self,
        handle: &mut Handle<Client>,
        user: &str,
        config: &HostConfig,
        home: &Path,
    ) -> Result<(), SshError> {
        let mut attempt = Attempt {
            handle,
            user,
            tried: Vec::new(),
            offered: Vec::new(),
            methods: String::new(),
            rsa_hash: None,
        };
        let files = config.identity_files_or_default(home);
        let only = config.identities_only.then(|| self.public_keys(&files));
        if attempt.with_agent(&config.identity_agent, only.as_deref()).await? {
            return Ok(());
        }
        for file in files {
            let key = self.load(&file);
            if attempt.with_file(&file, key, config.identity_files.contains(&file)).await? {
                return Ok(());
            }
        }
        let Attempt { tried, methods, .. } = attempt;
        Err(SshError::Refused { user: user.to_owned(), tried, methods })
    }

    fn load(&self, file: &Path) -> LoadedKey {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.entry(file.to_owned()).or_insert_with(|| load(file)).clone()
    }

    /// The public halves of identity files, from the `.pub` beside them where there is one.
    fn public_keys(&self, files: &[PathBuf]) -> Vec<PublicKey> {
        let public = |file: &PathBuf| {
            let mut beside = file.clone().into_os_string();
            beside.push(".pub");
            let beside = russh::keys::load_public_key(PathBuf::from(beside)).ok();
            beside.or_else(|| self.load(file).ok().map(|key| key.public_key().clone()))
        };
        files.iter().filter_map(public).collect()
    }
}

fn load(file: &Path) -> LoadedKey {
    match load_secret_key(file, None) {
        Ok(key) => Ok(Arc::new(key)),
        Err(russh::keys::Error::KeyIsEncrypted) => Err(Unusable::Encrypted),
        Err(russh::keys::Error::IO(error)) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(Unusable::Missing)
        }
        Err(error) => Err(Unusable::Broken(error.to_string())),
    }
}

impl Attempt<'_> {
    /// Offers what the agent holds. An agent that is not there, or does not answer, holds nothing.
    async fn with_agent(
        &mut self,
        agent: &IdentityAgent,
        only: Option<&[PublicKey]>,
    ) -> Result<bool, SshError> {
        let socket = match agent {
            IdentityAgent::None => None,
            IdentityAgent::Environment => std::env::var_os("SSH_AUTH_SOCK").map(PathBuf::from),
            IdentityAgent::Socket(path) => Some(path.clone()),
        };
        let Some(socket) = socket else { return Ok(false) };
        let Ok(mut agent) = AgentClient::<UnixStream>::connect_uds(&socket).await else {
            tracing::debug!(socket = %socket.display(), "no agent answers");
            return Ok(false);
        };
        for identity in agent.request_identities().await.unwrap_or_default() {
            let AgentIdentity::PublicKey { key, comment } = identity else { continue };
            if only.is_some_and(|only| !only.iter().any(|o| o.key_data() == key.key_data())) {
                continue;
            }
            let hash = self.hash_for(&key).await?;
            let user = self.user;
            let signed =
                self.handle.authenticate_publickey_with(user, key.clone(), hash, &mut agent).await;
            match signed {
                Ok(result) => {
                    if self.took(result) {
                        return Ok(true);
                    }
                    self.tried.push(format!("{comment} (agent)"));
                }
                Err(error) => self.tried.push(format!("{comment} (agent: {error})")),
            }
            self.offered.push(key);
        }
        Ok(false)
    }

    async fn with_file(
        &mut self,
        file: &Path,
        key: LoadedKey,
        configured: bool,
    ) -> Result<bool, SshError> {
        let shown = file.display();
        let key = match key {
            Ok(key) => key,
            Err(Unusable::Missing) => {
                if configured {
                    self.tried.push(format!("{shown} (not there)"));
                }
                return Ok(false);
            }
            Err(Unusable::Encrypted) => {
                self.tried.push(format!("{shown} (needs a passphrase: ssh-add it first)"));
                return Ok(false);
            }
            Err(Unusable::Broken(why)) => {
                self.tried.push(format!("{shown} (unreadable: {why})"));
                return Ok(false);
            }
        };
        if self.offered.iter().any(|o| o.key_data() == key.public_key().key_data()) {
            return Ok(false);
        }
        let hash = self.hash_for(key.public_key()).await?;
        let key = PrivateKeyWithHashAlg::new(key, hash);
        let result = self.handle.authenticate_publickey(self.user, key).await;
        let broke =
            |source| SshError::Login { user: self.user.to_owned(), source: Box::new(source) };
        let result = result.map_err(broke)?;
        if self.took(result) {
            return Ok(true);
        }
        self.tried.push(shown.to_string());
        Ok(false)
    }

    async fn hash_for(&mut self, key: &PublicKey) -> Result<Option<HashAlg>, SshError> {
        if !key.algorithm().is_rsa() {
            return Ok(None);
        }
        if let Some(hash) = self.rsa_hash {
            return Ok(hash);
        }
        let broke =
            |source| SshError::Login { user: self.user.to_owned(), source: Box::new(source) };
        let hash = self.handle.best_supported_rsa_hash().await.map_err(broke)?.flatten();
        self.rsa_hash = Some(hash);
        Ok(hash)
    }

    fn took(&mut self, result: AuthResult) -> bool {
        match result {
            AuthResult::Success => true,
            AuthResult::Failure { remaining_methods, .. } => {
                self.methods = format!("{remaining_methods:?}");
                false
            }
        }
    }
}
