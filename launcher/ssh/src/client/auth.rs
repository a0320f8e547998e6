//! The login with keys and certificates: each is offered in turn until the host accepts one.

use crate::config::{HostConfig, IdentityAgent};
use crate::error::{LoginRefusal, SshError};
use crate::host_keys::HostKeyChecker;
use crate::keys::identities::{Candidate, Credential, Identities, KeySource};
use crate::keys::{KeyError, KeyRing, certificate};
use crate::transport::algorithms::Accepted;
use russh::client::{AuthResult, Handle};
use russh::keys::agent::AgentIdentity;
use russh::keys::agent::client::AgentClient;
use russh::keys::ssh_encoding::Encode;
use russh::keys::ssh_key::private::KeypairData;
use russh::keys::ssh_key::{Signature, public::KeyData};
use russh::keys::{Algorithm, Certificate, HashAlg, PrivateKey, PublicKey, signature};
use russh::{AgentAuthError, MethodKind, MethodSet, SendError, Signer};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::time::sleep;

/// Socket of the SSH agent that a login waits for at the moment, for the error if the login takes too long. Clones share
/// it.
#[derive(Clone, Default)]
pub(crate) struct AwaitedAgent(Arc<Mutex<Option<PathBuf>>>);

impl AwaitedAgent {
    pub(crate) fn socket(&self) -> Option<PathBuf> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, socket: Option<&Path>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = socket.map(Path::to_owned);
    }
}

/// Time between two attempts to connect to an SSH agent whose queue is full.
const AGENT_RETRY: Duration = Duration::from_millis(20);

/// Connection to an SSH agent.
struct Agent {
    client: AgentClient<UnixStream>,
    socket: PathBuf,
    awaited: AwaitedAgent,
}

impl Agent {
    /// Connects to the SSH agent; `None` if none is configured or none listens.
    async fn connect(configured: &IdentityAgent, awaited: &AwaitedAgent) -> Option<Agent> {
        let socket = match configured {
            IdentityAgent::None => None,
            IdentityAgent::Environment => std::env::var_os("SSH_AUTH_SOCK").map(PathBuf::from),
            IdentityAgent::Socket(path) => Some(path.clone()),
        }?;
        awaited.set(Some(&socket));
        let connected = loop {
            match UnixStream::connect(&socket).await {
                // As many logins as fit into its queue wait for it already. The login ends this wait.
                Err(error) if error.kind() == ErrorKind::WouldBlock => sleep(AGENT_RETRY).await,
                connected => break connected,
            }
        };
        awaited.set(None);
        match connected.map(AgentClient::connect) {
            Ok(client) => Some(Agent { client, socket, awaited: awaited.clone() }),
            Err(_) => {
                tracing::debug!(socket = %socket.display(), "no agent answers");
                None
            }
        }
    }

    /// Returns the keys that the agent has. Binds the agent's session to the server's host key before, because the
    /// agent may have keys that are restricted to some hosts.
    async fn identities(&mut self, handle: &Handle<HostKeyChecker>) -> Vec<AgentIdentity> {
        self.awaited.set(Some(&self.socket));
        if let Some(binding) = handle.agent_session_binding() {
            // An agent that does not support session binding refuses this request, but has no restricted keys.
            let _ = self.client.bind_session(binding, false).await;
        }
        let held = self.client.request_identities().await.unwrap_or_default();
        self.awaited.set(None);
        held
    }

    async fn sign(
        &mut self,
        key: &AgentIdentity,
        hash: Option<HashAlg>,
        to_sign: Vec<u8>,
    ) -> Result<Vec<u8>, AgentAuthError> {
        self.awaited.set(Some(&self.socket));
        let signed = self.client.auth_sign(key, hash, to_sign).await;
        self.awaited.set(None);
        signed
    }
}

/// Reason why a key is not offered.
const UNWANTED: &str = "not among PubkeyAcceptedAlgorithms";

struct LoginAttempt<'a> {
    ring: &'a KeyRing,
    handle: &'a mut Handle<HostKeyChecker>,
    accepted: Accepted<'a>,
    refused: LoginRefusal,
    /// Strongest hash that the server accepts in RSA signatures: `None` before the server was asked,
    /// `Some(None)` if the server does not say, `Some(Some(None))` for SHA-1.
    rsa_hash: Option<Option<Option<HashAlg>>>,
}

impl KeyRing {
    /// Logs in as `user`. The error lists the keys and certificates that were tried. `awaited` tells meanwhile which
    /// SSH agent the login waits for.
    pub(crate) async fn log_in(
        &self,
        handle: &mut Handle<HostKeyChecker>,
        user: &str,
        config: &HostConfig,
        home: &Path,
        awaited: &AwaitedAgent,
    ) -> Result<(), SshError> {
        let mut agent = Agent::connect(&config.identity_agent, awaited).await;
        let held = match &mut agent {
            Some(agent) => agent.identities(handle).await,
            None => Vec::new(),
        };
        let identities = Identities::read(self, config, home);
        let candidates = identities.in_order(&held);
        let accepted = Accepted::new(config.pubkey_accepted_algorithms.as_deref());
        let (user, has_agent) = (user.to_owned(), agent.is_some());
        let refused = LoginRefusal { user, has_agent, ..LoginRefusal::default() };
        let mut attempt = LoginAttempt { ring: self, handle, accepted, refused, rsa_hash: None };
        for candidate in candidates {
            match candidate {
                Candidate::Unusable(why) => attempt.refused.tried.push(why),
                Candidate::Offer { credential, source, name } => {
                    if attempt.offer(&credential, &source, &name, agent.as_mut()).await? {
                        return Ok(());
                    }
                    if attempt.refused.accepts_no_keys() {
                        break;
                    }
                }
            }
        }
        attempt.give_up().await
    }
}

impl LoginAttempt<'_> {
    /// Offers a key or certificate. Returns true if the host accepts it and the login is complete.
    async fn offer(
        &mut self,
        credential: &Credential,
        source: &KeySource,
        name: &str,
        agent: Option<&mut Agent>,
    ) -> Result<bool, SshError> {
        let Some(key) = self.public_half(credential, source, name).await else {
            return Ok(false);
        };
        let is_certificate = matches!(credential, Credential::Certificate(_));
        let hash = match self.signature_hash(key.key_data(), is_certificate).await? {
            Ok(hash) => hash,
            Err(why) => return Ok(self.note_unusable(name, why)),
        };
        let mut signer = match (source, agent) {
            (KeySource::Agent, Some(agent)) => SigningKey::Agent(agent),
            (KeySource::Agent, None) => return Ok(false),
            (KeySource::File(file), _) => {
                self.refused.key.get_or_insert_with(|| file.clone());
                SigningKey::File(self.ring, file)
            }
        };
        self.refused.offered += 1;
        let (handle, user) = (&mut *self.handle, self.refused.user.clone());
        let answer = match credential {
            Credential::Certificate(certificate) => {
                let certificate = Certificate::clone(certificate);
                handle.authenticate_certificate_with(user, certificate, hash, &mut signer).await
            }
            Credential::Key(_) | Credential::EncryptedKey => {
                handle.authenticate_publickey_with(user, key, hash, &mut signer).await
            }
        };
        match answer {
            Ok(AuthResult::Success) => Ok(true),
            Ok(AuthResult::Failure { remaining_methods, partial_success }) => {
                self.note_refusal(credential, name, &remaining_methods, partial_success)
            }
            Err(SignError::Disconnected(_)) => Err(self.disconnected(name)),
            Err(why) => {
                if let (SignError::Key(why), KeySource::File(file)) = (&why, source) {
                    self.note_locked(file, why);
                }
                Ok(self.note_unusable(name, &why))
            }
        }
    }

    /// Returns the public half of a credential, for which an encrypted key may need its passphrase. `None`, after
    /// recording why, if it cannot be read.
    async fn public_half(
        &mut self,
        credential: &Credential,
        source: &KeySource,
        name: &str,
    ) -> Option<PublicKey> {
        match (credential, source) {
            (Credential::Key(key), _) => Some(key.clone()),
            (Credential::Certificate(certificate), _) => {
                Some(PublicKey::new(certificate.public_key().clone(), ""))
            }
            // An agent lists the public half of each of its keys.
            (Credential::EncryptedKey, KeySource::Agent) => None,
            (Credential::EncryptedKey, KeySource::File(file)) => {
                match self.ring.private(file).await {
                    Ok(key) => Some(key.public_key().clone()),
                    Err(why) => {
                        self.note_locked(file, &why);
                        self.note_unusable(name, &why);
                        None
                    }
                }
            }
        }
    }

    /// Records the file of a key whose passphrase is not known.
    fn note_locked(&mut self, file: &Path, why: &KeyError) {
        if matches!(why, KeyError::Encrypted | KeyError::WrongPassphrase | KeyError::NotUnlocked) {
            self.refused.locked.get_or_insert_with(|| file.to_owned());
        }
    }

    /// Records a credential that cannot be used. Returns `false`, the result of its offer.
    fn note_unusable(&mut self, name: &str, why: impl std::fmt::Display) -> bool {
        self.refused.tried.push(format!("{name} ({why})"));
        false
    }

    /// Records that the host did not let this credential alone in. Returns `false`, the result of its offer, or
    /// an error if the host ends the login.
    fn note_refusal(
        &mut self,
        credential: &Credential,
        name: &str,
        remaining: &MethodSet,
        partly: bool,
    ) -> Result<bool, SshError> {
        // A server always lists a method to continue with, unless it is about to disconnect.
        if remaining.is_empty() {
            return Err(self.disconnected(name));
        }
        self.refused.methods = method_names(remaining);
        self.refused.key_accepted |= partly;
        let shortcoming = match credential {
            _ if partly => {
                let more = self.refused.method_list();
                Some(format!("accepted, but the host requires {more} too"))
            }
            Credential::Certificate(certificate) => {
                certificate::refusal_reason(certificate, &self.refused.user, certificate::now())
            }
            Credential::Key(_) | Credential::EncryptedKey => None,
        };
        match shortcoming {
            Some(why) => Ok(self.note_unusable(name, why)),
            None => {
                self.refused.tried.push(name.to_owned());
                Ok(false)
            }
        }
    }

    fn disconnected(&mut self, name: &str) -> SshError {
        self.refused.tried.push(name.to_owned());
        SshError::Disconnected(std::mem::take(&mut self.refused).into())
    }

    /// Ends a login after all keys and certificates were tried. If the host has not said which methods it
    /// accepts, asks for them by a login without a key; `Ok` means that this login succeeded.
    async fn give_up(mut self) -> Result<(), SshError> {
        if self.refused.methods.is_empty() {
            let user = self.refused.user.clone();
            match self.handle.authenticate_none(user).await.map_err(|e| self.login_error(e))? {
                AuthResult::Success => return Ok(()),
                AuthResult::Failure { remaining_methods, .. } => {
                    self.refused.methods = method_names(&remaining_methods);
                }
            }
        }
        Err(SshError::Refused(self.refused.into()))
    }

    fn login_error(&self, source: russh::Error) -> SshError {
        SshError::Login { user: self.refused.user.clone(), source: Box::new(source) }
    }

    /// Chooses the hash to sign with. Only RSA keys have a choice; for other keys the hash is `None`. The
    /// inner error is the reason why the key cannot be used.
    async fn signature_hash(
        &mut self,
        key: &KeyData,
        is_certificate: bool,
    ) -> Result<Result<Option<HashAlg>, &'static str>, SshError> {
        let accepted = self.accepted;
        let allows = |algorithm: &Algorithm| {
            if is_certificate {
                accepted.allows(&algorithm.to_certificate_type())
            } else {
                accepted.allows(algorithm.as_str())
            }
        };
        if !matches!(key.algorithm(), Algorithm::Rsa { .. }) {
            return Ok(if allows(&key.algorithm()) { Ok(None) } else { Err(UNWANTED) });
        }
        let strongest = self.strongest_rsa_hash().await?;
        let strength = |hash| match hash {
            Some(HashAlg::Sha512) => 2,
            Some(_) => 1,
            None => 0,
        };
        let is_supported =
            |hash| strongest.is_none_or(|strongest| strength(hash) <= strength(strongest));
        let hashes = [Some(HashAlg::Sha512), Some(HashAlg::Sha256), None];
        let usable =
            |hash: &Option<HashAlg>| is_supported(*hash) && allows(&Algorithm::Rsa { hash: *hash });
        let why = match strongest {
            Some(None) => {
                "the host accepts RSA keys only with SHA-1: PubkeyAcceptedAlgorithms +ssh-rsa"
            }
            _ => UNWANTED,
        };
        Ok(hashes.into_iter().find(usable).ok_or(why))
    }

    /// Returns the strongest hash that the server accepts in RSA signatures, as in the field `rsa_hash`. Asks the
    /// server only once.
    async fn strongest_rsa_hash(&mut self) -> Result<Option<Option<HashAlg>>, SshError> {
        if let Some(known) = self.rsa_hash {
            return Ok(known);
        }
        let asked = self.handle.best_supported_rsa_hash().await;
        let strongest = asked.map_err(|error| self.login_error(error))?;
        self.rsa_hash = Some(strongest);
        Ok(strongest)
    }
}

fn method_names(set: &MethodSet) -> Vec<&'static str> {
    set.iter().map(<&'static str>::from).filter(|m| *m != <&str>::from(&MethodKind::None)).collect()
}

/// Private key for an offered public key or certificate. It is used only after the host has accepted the
/// public half, so that the user is not asked for a passphrase in vain.
enum SigningKey<'a> {
    Agent(&'a mut Agent),
    File(&'a KeyRing, &'a Path),
}

/// Reason why an offered key could not sign.
#[derive(Debug, thiserror::Error)]
enum SignError {
    #[error("the connection is closed")]
    Disconnected(#[from] SendError),
    #[error("the agent refuses to sign: {0}")]
    Agent(AgentAuthError),
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error("cannot sign with it: {0}")]
    Sign(String),
}

impl Signer for SigningKey<'_> {
    type Error = SignError;

    async fn auth_sign(
        &mut self,
        key: &AgentIdentity,
        hash: Option<HashAlg>,
        to_sign: Vec<u8>,
    ) -> Result<Vec<u8>, SignError> {
        match self {
            SigningKey::Agent(agent) => {
                agent.sign(key, hash, to_sign).await.map_err(SignError::Agent)
            }
            SigningKey::File(ring, file) => {
                let private = ring.private(file).await?;
                signed(&private, hash, to_sign).map_err(|error| SignError::Sign(error.to_string()))
            }
        }
    }
}

/// Signs a message, and returns the message followed by the encoded signature.
fn signed(
    key: &PrivateKey,
    hash: Option<HashAlg>,
    mut message: Vec<u8>,
) -> Result<Vec<u8>, signature::Error> {
    use signature::Signer as _;
    let signature: Signature = match key.key_data() {
        KeypairData::Rsa(pair) => (pair, hash).try_sign(&message)?,
        pair => pair.try_sign(&message)?,
    };
    let encoded = signature.encode_vec().and_then(|bytes| bytes.encode(&mut message));
    encoded.map_err(|_| signature::Error::new())?;
    Ok(message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::UnixSocket;

    #[tokio::test]
    async fn an_agent_that_many_logins_wait_for_is_not_none() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("agent");
        let socket = UnixSocket::new_stream().unwrap();
        socket.bind(&path).unwrap();
        let listener = socket.listen(1).unwrap();
        let mut queue = Vec::new();
        while let Ok(login) = UnixStream::connect(&path).await {
            queue.push(login);
        }
        let (awaited, configured) = (AwaitedAgent::default(), IdentityAgent::Socket(path.clone()));
        let serve = async {
            sleep(2 * AGENT_RETRY).await;
            assert_eq!(awaited.socket(), Some(path));
            listener.accept().await.unwrap()
        };
        let (agent, _served) = tokio::join!(Agent::connect(&configured, &awaited), serve);
        assert!(agent.is_some() && awaited.socket().is_none());
    }
}
