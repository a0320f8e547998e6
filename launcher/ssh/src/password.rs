//! The first login on a host, for `rlaunch ssh-setup`: looking at a host's key before anything is
//! said to it, finding out whether a key opens it, and logging in by a password where none does.

use super::config::{HostConfig, StrictHostKeyChecking};
use super::error::{HostKeyChange, SshError};
use super::host_key::Client;
use super::jump::{self, Hop, Jump, SSH_PORT};
use super::known_hosts::{KnownHosts, Verdict, fingerprint};
use super::new_hosts::NewHostKey;
use super::{Connection, Destination, Ssh, Transport, algorithms, login_is_late};
use rlaunch_console::deadline::{self, Deadline};
use russh::MethodKind;
use russh::client::{self, AuthResult, Handle, KeyboardInteractiveAuthResponse as Answer};
use russh::keys::{PublicKey, PublicKeyOrCertificate};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use zeroize::Zeroizing;

/// How long a server may take to check a password: PAM delays wrong ones by some seconds.
const PASSWORD_TIMEOUT: Duration = Duration::from_secs(30);
/// How often a server may ask something, keyboard-interactive being open-ended.
const MOST_QUESTIONS: usize = 4;

/// What the user has typed. It is neither printed nor logged.
pub struct Password(pub Zeroizing<String>);

/// What a host says to the keys that there are.
pub enum KeyLogin {
    /// One of them opens it.
    Open(Connection),
    /// None does; a password may.
    Refused {
        /// Refusal of the keys.
        why: SshError,
        /// Whether the host offers a method that takes a password.
        takes_passwords: bool,
    },
}

/// What a host says to a password.
pub enum PasswordLogin {
    /// The password was right.
    Open(Box<Connection>),
    /// The host refused the password.
    Wrong,
}

impl Ssh {
    /// What the configuration says about a host.
    pub fn config_of(&self, to: Destination<'_>) -> Result<HostConfig, SshError> {
        Ok(self.config.resolve_as(to.name, to.user, to.port)?)
    }

    /// As whom a host with this configuration is entered.
    pub fn user_of(&self, config: &HostConfig) -> String {
        config.user.clone().unwrap_or_else(|| self.keys.local_user())
    }

    /// Where the user is at home.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// The key that a host shows, if nobody has seen it before; a changed one is an error. Nobody
    /// logs in.
    pub async fn unknown_key(&self, config: &HostConfig) -> Result<Option<NewHostKey>, SshError> {
        let (hop, via) = self.way_to(config).await?;
        let limit = self.timeout_of(config);
        let _turn = self.turn(via.as_deref()).await;
        let looking = async {
            // A ProxyCommand lives until its key was seen.
            let Transport { stream, place, proxy: _proxy, .. } =
                self.open(&hop, via.as_deref()).await?;
            let (checker, _) = self.host_keys.checker(config, hop.port)?;
            let mut preferred = algorithms::preferred(config)?;
            preferred.key = checker.preferred_algorithms(&preferred.key).into();
            preferred.host_key_certificates = checker.certificates(config).into();
            let client_config = client::Config { preferred, ..client::Config::default() };
            let seen = Looking::default();
            let ended = client::connect_stream(Arc::new(client_config), stream, seen.clone()).await;
            match (seen.take(), ended) {
                (Some(Shown::Key(key)), _) => judge(config, hop.port, *key),
                (None, Err(source)) => Err(SshError::Handshake { place, source: Box::new(source) }),
                // Certificates are for those who know the authority: the login judges them.
                (Some(Shown::Certificate), _) | (None, Ok(_)) => Ok(None),
            }
        };
        let late =
            || SshError::Timeout { what: "no answer, or no key of the host", timeout: limit };
        deadline::within(limit, looking).await.ok_or_else(late)?
    }

    /// Logs in by a key, or says whether a password could.
    pub async fn enter(&self, config: &HostConfig) -> Result<KeyLogin, SshError> {
        let mut connection = self.greet(config).await?;
        let user = self.user_of(config);
        let mut deadline = Deadline::after(self.timeout_of(config));
        let login = async {
            let asked = connection.handle.authenticate_none(&user).await.map_err(broke(&user))?;
            let methods = match asked {
                AuthResult::Success => return Ok(None),
                AuthResult::Failure { remaining_methods, .. } => remaining_methods,
            };
            match self.keys.log_in(&mut connection.handle, &user, config, &self.home).await {
                Ok(()) => Ok(None),
                Err(why @ (SshError::Refused(_) | SshError::HungUp(_))) => Ok(Some((why, methods))),
                Err(error) => Err(error),
            }
        };
        let entered = self.keys.within(&mut deadline, login).await;
        let refused = entered.ok_or_else(|| login_is_late(&deadline))??;
        let typed = [MethodKind::Password, MethodKind::KeyboardInteractive];
        Ok(match refused {
            None => KeyLogin::Open(connection),
            Some((why, methods)) => {
                let takes_passwords = methods.iter().any(|method| typed.contains(method));
                if let Some(change) = connection.changed.filter(|_| takes_passwords) {
                    return Err(SshError::NoPassword(change));
                }
                KeyLogin::Refused { why, takes_passwords }
            }
        })
    }

    /// Logs in by a password.
    pub async fn enter_by_password(
        &self,
        config: &HostConfig,
        password: &Password,
    ) -> Result<PasswordLogin, SshError> {
        let mut connection = self.greet(config).await?;
        // It may be somebody else's; no password, typed or asked for, is for them.
        if let Some(change) = connection.changed {
            return Err(SshError::NoPassword(change));
        }
        let user = self.user_of(config);
        let login = log_in(&mut connection.handle, &user, password);
        let late = || SshError::Timeout {
            what: "the password is not answered",
            timeout: PASSWORD_TIMEOUT,
        };
        let answer = deadline::within(PASSWORD_TIMEOUT, login).await.ok_or_else(late)?;
        Ok(match answer.map_err(broke(&user))? {
            true => PasswordLogin::Open(Box::new(connection)),
            false => PasswordLogin::Wrong,
        })
    }

    /// The host with this configuration, and the jump host before it if there is one.
    async fn way_to(&self, config: &HostConfig) -> Result<(Hop, Option<Arc<Jump>>), SshError> {
        let port = config.port.or(self.port).unwrap_or(SSH_PORT);
        let hop = Hop { name: config.hostname.clone(), config: config.clone(), port };
        let jumps = jump::jumps_before(&self.config, &hop)?;
        let via = self.through(&jumps).await?;
        Ok((hop, via))
    }

    /// A connection to a host whose key is known, before anybody logs in.
    async fn greet(&self, config: &HostConfig) -> Result<Connection, SshError> {
        let (hop, via) = self.way_to(config).await?;
        let _turn = self.turn(via.as_deref()).await;
        let mut deadline = Deadline::after(self.timeout_of(config));
        self.attempt(&hop, via.clone(), &mut deadline).await
    }
}

fn broke(user: &str) -> impl Fn(russh::Error) -> SshError {
    move |source| SshError::Login { user: user.to_owned(), source: Box::new(source) }
}

/// Whether the server takes the password, in either of the two ways of asking for one.
async fn log_in(
    handle: &mut Handle<Client>,
    user: &str,
    password: &Password,
) -> Result<bool, russh::Error> {
    let methods = match handle.authenticate_none(user).await? {
        AuthResult::Success => return Ok(true),
        AuthResult::Failure { remaining_methods, .. } => remaining_methods,
    };
    if methods.contains(&MethodKind::Password) {
        let answer = handle.authenticate_password(user, password.0.as_str()).await?;
        return Ok(answer.success());
    }
    let mut answer = handle.authenticate_keyboard_interactive_start(user, None).await?;
    for _ in 0..MOST_QUESTIONS {
        let questions = match answer {
            Answer::Success => return Ok(true),
            Answer::Failure { .. } => return Ok(false),
            Answer::InfoRequest { prompts, .. } => prompts,
        };
        // One hidden answer is the password; a second factor is not known here.
        let answers = match &questions[..] {
            [] => Vec::new(),
            [one] if !one.echo => vec![password.0.to_string()],
            _ => return Ok(false),
        };
        answer = handle.authenticate_keyboard_interactive_respond(answers).await?;
    }
    Ok(matches!(answer, Answer::Success))
}

fn judge(config: &HostConfig, port: u16, key: PublicKey) -> Result<Option<NewHostKey>, SshError> {
    let (user, global) = (&config.user_known_hosts_files, &config.global_known_hosts_files);
    let files: Vec<PathBuf> = user.iter().chain(global).cloned().collect();
    let (name, port) = match &config.host_key_alias {
        Some(alias) => (alias.clone(), 22),
        None => (config.hostname.clone(), port),
    };
    match KnownHosts::load(&files)?.check(&[&name], port, &key) {
        Verdict::Known => Ok(None),
        Verdict::Revoked { file, line } => Err(SshError::HostKeyRevoked { file, line }),
        // The user has said that any key goes.
        _ if config.strict_host_key_checking == StrictHostKeyChecking::No => Ok(None),
        Verdict::Changed { file, line, recorded_fingerprint: recorded } => {
            let shown = fingerprint(key.key_data());
            let change = HostKeyChange { name, file, line, recorded, shown };
            Err(SshError::HostKeyChanged(Box::new(change)))
        }
        Verdict::Unknown => {
            // Where keys are not written down each login takes whichever it is shown.
            let file = user.first().filter(|file| **file != Path::new("/dev/null")).cloned();
            Ok(file.map(|file| NewHostKey { key, name, port, file: Some(file) }))
        }
    }
}

/// What a server has shown.
enum Shown {
    Key(Box<PublicKey>),
    Certificate,
}

/// Looks at a server's key and goes no further.
#[derive(Clone, Default)]
struct Looking(Arc<Mutex<Option<Shown>>>);

impl Looking {
    fn take(&self) -> Option<Shown> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl client::Handler for Looking {
    type Error = russh::Error;

    async fn check_server_key(
        &mut self,
        shown: &PublicKeyOrCertificate,
    ) -> Result<bool, russh::Error> {
        let shown = match shown {
            PublicKeyOrCertificate::PublicKey { key, .. } => Shown::Key(Box::new(key.clone())),
            PublicKeyOrCertificate::Certificate(_) => Shown::Certificate,
        };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(shown);
        Ok(false)
    }
}
