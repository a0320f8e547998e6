//! Check of host keys: each server's key is compared with the known-hosts files. Unknown keys are recorded,
//! confirmed by the user or refused, as `StrictHostKeyChecking` and `--new-hosts` say.

mod new_hosts;

use self::new_hosts::NewHosts;
use crate::config::{DEFAULT_PORT, HostConfig, StrictHostKeyChecking};
use crate::error::{HostKeyChange, SshError};
use crate::keys::certificate;
use crate::known_hosts::{KnownHosts, KnownHostsError, NewHostKey, Verdict, fingerprint};
use crate::transport::algorithms;
use rlaunch_console::messages;
use russh::client::{self, DisconnectReason};
use russh::keys::{Algorithm, Certificate, PublicKey, PublicKeyOrCertificate};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// Known-hosts files for all hosts of a job, each read once, and the host keys that were newly accepted.
#[derive(Default)]
pub(crate) struct HostKeys {
    /// Entries of known-hosts files, by the list of files that a configuration names.
    cache: Mutex<HashMap<Vec<PathBuf>, Arc<KnownHosts>>>,
    /// Rule of `--new-hosts`, which takes precedence over the configuration.
    rule: Option<StrictHostKeyChecking>,
    new: Arc<NewHosts>,
}

/// Findings of a [`HostKeyChecker`], which shares them with its creator. They are needed because russh
/// passes on only whether a key is accepted.
#[derive(Clone, Default)]
pub(crate) struct CheckOutcome(Arc<Mutex<Findings>>);

#[derive(Default)]
struct Findings {
    refusal: Option<SshError>,
    /// Set if another key was recorded and the configuration accepts the change.
    changed: Option<Box<HostKeyChange>>,
    /// Reason why the connection ended.
    end: Option<String>,
}

impl CheckOutcome {
    /// Returns the reason why the connection ended; `None` while it is open, and if it was closed here.
    pub(crate) fn how(&self) -> Option<String> {
        self.with(|found| found.end.clone())
    }

    /// Takes the reason why the key was refused.
    pub(crate) fn refusal(&self) -> Option<SshError> {
        self.with(|found| found.refusal.take())
    }

    /// Takes the accepted change of the key.
    pub(crate) fn change(&self) -> Option<Box<HostKeyChange>> {
        self.with(|found| found.changed.take())
    }

    fn with<T>(&self, then: impl FnOnce(&mut Findings) -> T) -> T {
        then(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Handler that checks the host key of one connection.
pub(crate) struct HostKeyChecker {
    known: Arc<KnownHosts>,
    /// Name of the host in known-hosts files.
    name: String,
    port: u16,
    strict: StrictHostKeyChecking,
    /// Known-hosts file to which a new key is added.
    record: Option<PathBuf>,
    new: Arc<NewHosts>,
    outcome: CheckOutcome,
}

impl HostKeys {
    pub(crate) fn new(rule: Option<StrictHostKeyChecking>) -> HostKeys {
        HostKeys { rule, ..HostKeys::default() }
    }

    pub(crate) fn new_hosts(&self) -> &NewHosts {
        &self.new
    }

    /// Returns a checker for one connection, and a handle from which the checker's findings can be read after
    /// the handshake.
    pub(crate) fn checker(
        &self,
        config: &HostConfig,
        port: u16,
    ) -> Result<(HostKeyChecker, CheckOutcome), KnownHostsError> {
        let outcome = CheckOutcome::default();
        // A HostKeyAlias names a host on any port, so it is recorded without one.
        let (name, port) = match &config.host_key_alias {
            Some(alias) => (alias.clone(), DEFAULT_PORT),
            None => (config.hostname.clone(), port),
        };
        let checker = HostKeyChecker {
            known: self.known_hosts(config)?,
            name,
            port,
            strict: self.rule.unwrap_or(config.strict_host_key_checking),
            record: config.user_known_hosts_files.first().cloned(),
            new: self.new.clone(),
            outcome: outcome.clone(),
        };
        Ok((checker, outcome))
    }

    fn known_hosts(&self, config: &HostConfig) -> Result<Arc<KnownHosts>, KnownHostsError> {
        let files: Vec<PathBuf> = config
            .user_known_hosts_files
            .iter()
            .chain(&config.global_known_hosts_files)
            .cloned()
            .collect();
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = cache.get(&files) {
            return Ok(known.clone());
        }
        let known = Arc::new(KnownHosts::load(&files)?);
        for warning in known.warnings() {
            tracing::warn!("{warning}");
        }
        cache.insert(files, known.clone());
        Ok(known)
    }
}

impl HostKeyChecker {
    /// Returns the `offered` algorithms, with those of recorded keys first. A server sends the key that the
    /// client prefers, and a key of another algorithm would look like a changed host.
    pub(crate) fn preferred_algorithms(&self, offered: &[Algorithm]) -> Vec<Algorithm> {
        let recorded = self.known.algorithms(&[&self.name], self.port);
        // An RSA key serves every RSA signature algorithm.
        let is_recorded = |a: &Algorithm| {
            recorded.iter().any(|r| r == a || (r.clone().is_rsa() && a.clone().is_rsa()))
        };
        let (first, rest): (Vec<_>, Vec<_>) = offered.iter().cloned().partition(is_recorded);
        first.into_iter().chain(rest).collect()
    }

    /// Returns the algorithms of host certificates to ask for: none, unless the known-hosts files trust a
    /// certificate authority for this host.
    pub(crate) fn certificate_algorithms(&self, config: &HostConfig) -> Vec<Algorithm> {
        if self.known.has_authority(&[&self.name], self.port) {
            algorithms::host_certificates(config)
        } else {
            Vec::new()
        }
    }

    /// Checks a host certificate. If no trusted authority has signed it, checks only the key in it.
    fn check_certificate(&self, shown: &Certificate) -> Result<(), SshError> {
        let key = PublicKey::new(shown.public_key().clone(), "");
        let names = [self.name.as_str()];
        match self.known.check_authority(&names, self.port, shown.signature_key()) {
            Verdict::Revoked { file, line } => Err(SshError::HostKeyRevoked { file, line }),
            Verdict::Known => {
                if let Verdict::Revoked { file, line } = self.known.check(&names, self.port, &key) {
                    return Err(SshError::HostKeyRevoked { file, line });
                }
                let name = self.name.to_ascii_lowercase();
                certificate::check_host(shown, &name, certificate::now()).map_err(|why| {
                    SshError::HostCertificate { why, key_id: shown.key_id().to_owned() }
                })
            }
            Verdict::Unknown | Verdict::Changed { .. } => self.check(&key),
        }
    }

    fn check(&self, key: &PublicKey) -> Result<(), SshError> {
        let shown = fingerprint(key.key_data());
        match self.known.check(&[&self.name], self.port, key) {
            Verdict::Known => Ok(()),
            Verdict::Revoked { file, line } => Err(SshError::HostKeyRevoked { file, line }),
            Verdict::Changed { file, line, recorded_fingerprint: recorded } => {
                let name = self.name.clone();
                let change = Box::new(HostKeyChange { name, file, line, recorded, shown });
                if self.strict != StrictHostKeyChecking::No {
                    return Err(SshError::HostKeyChanged(change));
                }
                messages::warn(&format!("{}: {change}; StrictHostKeyChecking is no", self.name));
                self.outcome.with(|found| found.changed = Some(change));
                Ok(())
            }
            Verdict::Unknown => self.check_unknown(NewHostKey {
                key: key.clone(),
                name: self.name.clone(),
                port: self.port,
                file: self.record.clone(),
            }),
        }
    }

    fn check_unknown(&self, new: NewHostKey) -> Result<(), SshError> {
        match self.strict {
            StrictHostKeyChecking::Yes => Err(SshError::HostKeyUnknown {
                shown: new.fingerprint(),
                why: "and StrictHostKeyChecking is on",
            }),
            _ if self.new.has_accepted(&new) => Ok(()),
            StrictHostKeyChecking::Ask => Err(SshError::HostKeyToAsk(Box::new(new))),
            StrictHostKeyChecking::AcceptNew => Ok(self.new.accept(&new)?),
            StrictHostKeyChecking::No => {
                // As in ssh(1), the connection is made even if the key cannot be recorded.
                if let Err(error) = self.new.accept(&new) {
                    tracing::warn!("{}", messages::error_chain(&error));
                }
                Ok(())
            }
        }
    }
}

impl client::Handler for HostKeyChecker {
    type Error = russh::Error;

    async fn check_server_key(
        &mut self,
        shown: &PublicKeyOrCertificate,
    ) -> Result<bool, russh::Error> {
        let verdict = match shown {
            PublicKeyOrCertificate::PublicKey { key, .. } => self.check(key),
            PublicKeyOrCertificate::Certificate(certificate) => self.check_certificate(certificate),
        };
        let refused = |error| self.outcome.with(|found| found.refusal = Some(error));
        Ok(verdict.map_err(refused).is_ok())
    }

    async fn disconnected(
        &mut self,
        reason: DisconnectReason<russh::Error>,
    ) -> Result<(), russh::Error> {
        let (how, ended) = match reason {
            DisconnectReason::ReceivedDisconnect(said) => {
                (format!("the server says {:?}", said.message), Ok(()))
            }
            DisconnectReason::Error(russh::Error::KeepaliveTimeout) => {
                let how = "it did not answer keepalives (ServerAliveInterval)".to_owned();
                (how, Err(russh::Error::KeepaliveTimeout))
            }
            DisconnectReason::Error(russh::Error::Disconnect) => {
                ("the other end closed it".to_owned(), Err(russh::Error::Disconnect))
            }
            DisconnectReason::Error(error) => (messages::error_chain(&error), Err(error)),
        };
        self.outcome.with(|found| found.end = Some(how));
        ended
    }
}
