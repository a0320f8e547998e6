//! The first login on a host, for `rlaunch ssh-setup`. The launcher reads the host key before it sends any
//! data of the user, tries the user's keys, and logs in by password if the host refuses the keys.

use super::auth::AwaitedAgent;
use super::connection::{Connection, Hop, Jump, Transport, jumps_before};
use super::{Destination, Ssh, login_timeout};
use crate::config::{DEFAULT_PORT, HostConfig, StrictHostKeyChecking};
use crate::error::{HostKeyChange, SshError};
use crate::host_keys::HostKeyChecker;
use crate::known_hosts::{KnownHosts, NewHostKey, Verdict, fingerprint, written_name};
use nix::unistd::Uid;
use rlaunch_console::deadline::{self, Deadline};
use russh::MethodKind;
use russh::client::{self, AuthResult, Handle, KeyboardInteractiveAuthResponse as Answer};
use russh::keys::{PublicKey, PublicKeyOrCertificate};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use zeroize::Zeroizing;

/// Time limit for the server's answer to a password. PAM delays the answer to a wrong password by some
/// seconds.
const PASSWORD_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of rounds of questions that are answered, since `keyboard-interactive` sets no limit.
const MAX_ROUNDS: usize = 4;

/// Password that the user has typed. It is never printed or logged, and is wiped from memory when dropped.
pub struct Password(Zeroizing<String>);

impl Password {
    /// Wraps a typed password.
    pub fn new(typed: Zeroizing<String>) -> Password {
        Password(typed)
    }
}

/// Result of a login with the user's keys.
pub enum KeyLogin {
    /// The host accepted a key, or requires none.
    Open(Connection),
    /// The host accepted none of the user's keys.
    Refused {
        /// Error that describes the refusal.
        why: SshError,
        /// Whether the host offers a method that takes a password.
        takes_passwords: bool,
    },
}

/// Result of a login with a password.
pub enum PasswordLogin {
    /// The host accepted the password, or requires none.
    Open(Box<Connection>),
    /// The host refused the password.
    Wrong,
}

impl Ssh {
    /// Returns the configuration of a host.
    pub fn config_for(&self, to: Destination<'_>) -> Result<HostConfig, SshError> {
        Ok(self.config.resolve_as(to.name, to.user, to.port)?)
    }

    /// Returns the login name for a host with this configuration.
    pub fn user_for(&self, config: &HostConfig) -> Result<String, SshError> {
        let user = self.config.user_for(config).map(str::to_owned);
        user.ok_or_else(|| SshError::NoUser { uid: Uid::current().as_raw() })
    }

    /// Returns the user's home directory.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// Connects to a host without logging in, and returns its host key if no known-hosts file has a key of
    /// the host. `None` if the key is known or cannot be recorded. Returns an error if another key is
    /// recorded.
    pub async fn unknown_key(&self, config: &HostConfig) -> Result<Option<NewHostKey>, SshError> {
        let (hop, via) = self.route_to(config).await?;
        let _permit = self.handshake_permit(via.as_deref()).await;
        let mut deadline = Deadline::after(self.timeout_for(config));
        let transport = self.open_transport(&hop, via.as_deref(), &mut deadline).await?;
        let probing = async {
            // `_proxy` keeps a ProxyCommand running until the host key has arrived.
            let Transport { stream, address, proxy: _proxy, .. } = transport;
            let (checker, _) = self.host_keys.checker(config, hop.port)?;
            let preferred = checker.preferred(config)?;
            let client_config = client::Config { preferred, ..client::Config::default() };
            let probe = KeyProbe::default();
            let ended =
                client::connect_stream(Arc::new(client_config), stream, probe.clone()).await;
            match (probe.take(), ended) {
                (Some(ShownKey::Plain(key)), _) => unknown_host_key(config, hop.port, *key),
                (None, Err(source)) => Err(SshError::of_handshake(address, source)),
                // Certificates are checked by the login.
                (Some(ShownKey::Certificate), _) | (None, Ok(_)) => Ok(None),
            }
        };
        let probed = deadline.run(probing).await;
        probed.ok_or_else(|| SshError::Timeout {
            what: "no host key".into(),
            timeout: deadline.limit(),
        })?
    }

    /// Logs in with the user's keys.
    pub async fn log_in_by_key(&self, config: &HostConfig) -> Result<KeyLogin, SshError> {
        let mut connection = self.connect_unauthenticated(config).await?;
        let user = self.user_for(config)?;
        let mut deadline = Deadline::after(self.timeout_for(config));
        let awaited = AwaitedAgent::default();
        let login = async {
            let asked =
                connection.handle.authenticate_none(&user).await.map_err(login_error(&user))?;
            let methods = match asked {
                AuthResult::Success => return Ok(None),
                AuthResult::Failure { remaining_methods, .. } => remaining_methods,
            };
            let handle = &mut connection.handle;
            match self.keys.log_in(handle, &user, config, &self.home, &awaited).await {
                Ok(()) => Ok(None),
                Err(why @ (SshError::Refused(_) | SshError::Disconnected(_))) => {
                    Ok(Some((why, methods)))
                }
                Err(error) => Err(error),
            }
        };
        let entered = self.keys.run_login(&mut deadline, login).await;
        let refused = entered.ok_or_else(|| login_timeout(&deadline, &awaited))??;
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

    /// Logs in by password.
    pub async fn log_in_by_password(
        &self,
        config: &HostConfig,
        password: &Password,
    ) -> Result<PasswordLogin, SshError> {
        let mut connection = self.connect_unauthenticated(config).await?;
        // A host with another key than the recorded one may be an impostor, so it receives no password.
        if let Some(change) = connection.changed {
            return Err(SshError::NoPassword(change));
        }
        let user = self.user_for(config)?;
        let login = log_in(&mut connection.handle, &user, password);
        let what = "no answer to the password".into();
        let late = || SshError::Timeout { what, timeout: PASSWORD_TIMEOUT };
        let answer = deadline::within(PASSWORD_TIMEOUT, login).await.ok_or_else(late)?;
        Ok(if answer.map_err(login_error(&user))? {
            PasswordLogin::Open(Box::new(connection))
        } else {
            PasswordLogin::Wrong
        })
    }

    /// Returns the host with this configuration, and the jump host in front of it, if there is one.
    async fn route_to(&self, config: &HostConfig) -> Result<(Hop, Option<Arc<Jump>>), SshError> {
        let port = config.port.or(self.port).unwrap_or(DEFAULT_PORT);
        let hop = Hop { name: config.hostname.clone(), config: config.clone(), port };
        let jumps = jumps_before(&self.config, &hop)?;
        let via = self.connect_jumps(&jumps).await?;
        Ok((hop, via))
    }

    /// Connects to a host and checks the host key, without logging in.
    async fn connect_unauthenticated(&self, config: &HostConfig) -> Result<Connection, SshError> {
        let (hop, via) = self.route_to(config).await?;
        let _permit = self.handshake_permit(via.as_deref()).await;
        let mut deadline = Deadline::after(self.timeout_for(config));
        self.attempt(&hop, via.clone(), &mut deadline).await
    }
}

fn login_error(user: &str) -> impl Fn(russh::Error) -> SshError {
    move |source| SshError::Login { user: user.to_owned(), source: Box::new(source) }
}

/// Tries the password by the method `password` or `keyboard-interactive`. Returns true if the server
/// accepts it.
async fn log_in(
    handle: &mut Handle<HostKeyChecker>,
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
    for _ in 0..MAX_ROUNDS {
        let questions = match answer {
            Answer::Success => return Ok(true),
            Answer::Failure { .. } => return Ok(false),
            Answer::InfoRequest { prompts, .. } => prompts,
        };
        // A single question with a hidden answer asks for the password; a second factor is not supported.
        let answers = match &questions[..] {
            [] => Vec::new(),
            [one] if !one.echo => vec![password.0.to_string()],
            _ => return Ok(false),
        };
        answer = handle.authenticate_keyboard_interactive_respond(answers).await?;
    }
    Ok(matches!(answer, Answer::Success))
}

/// Returns the key if it is unknown and can be recorded. Returns an error if the key is revoked or another
/// key is recorded.
fn unknown_host_key(
    config: &HostConfig,
    port: u16,
    key: PublicKey,
) -> Result<Option<NewHostKey>, SshError> {
    let (user, global) = (&config.user_known_hosts_files, &config.global_known_hosts_files);
    let files: Vec<PathBuf> = user.iter().chain(global).cloned().collect();
    let (name, port) = match &config.host_key_alias {
        Some(alias) => (alias.clone(), DEFAULT_PORT),
        None => (config.hostname.clone(), port),
    };
    match KnownHosts::load(&files)?.check(&[&name], port, &key) {
        Verdict::Known => Ok(None),
        Verdict::Revoked { file, line } => Err(SshError::HostKeyRevoked { file, line }),
        // The user's configuration accepts any key.
        _ if config.strict_host_key_checking == StrictHostKeyChecking::No => Ok(None),
        Verdict::Changed { file, line, recorded_fingerprint: recorded } => {
            let shown = fingerprint(key.key_data());
            let name = written_name(&name, port);
            let change = HostKeyChange { name, file, line, recorded, shown };
            Err(SshError::HostKeyChanged(Box::new(change)))
        }
        Verdict::Unknown => {
            // Without a file to record keys in, each login accepts whichever key the host has.
            let file = user.first().filter(|file| **file != Path::new("/dev/null")).cloned();
            Ok(file.map(|file| NewHostKey { key, name, port, file: Some(file) }))
        }
    }
}

/// Host key that a server has sent.
enum ShownKey {
    Plain(Box<PublicKey>),
    Certificate,
}

/// Handler that keeps the server's host key and ends the handshake.
#[derive(Clone, Default)]
struct KeyProbe(Arc<Mutex<Option<ShownKey>>>);

impl KeyProbe {
    fn take(&self) -> Option<ShownKey> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl client::Handler for KeyProbe {
    type Error = russh::Error;

    async fn check_server_key(
        &mut self,
        shown: &PublicKeyOrCertificate,
    ) -> Result<bool, russh::Error> {
        let shown = match shown {
            PublicKeyOrCertificate::PublicKey { key, .. } => ShownKey::Plain(Box::new(key.clone())),
            PublicKeyOrCertificate::Certificate(_) => ShownKey::Certificate,
        };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(shown);
        Ok(false)
    }
}
