//! Is this host who it was before?

use super::algorithms;
use super::certificate;
use super::config::{HostConfig, StrictHostKeyChecking};
use super::error::{HostKeyChange, SshError};
use super::known_hosts::{KnownHosts, KnownHostsError, Verdict, fingerprint};
use russh::client;
use russh::keys::{Algorithm, Certificate, PublicKey, PublicKeyOrCertificate};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// The known-hosts files of all hosts, each read once.
#[derive(Default)]
pub(crate) struct HostKeys {
    read: Mutex<HashMap<Vec<PathBuf>, Arc<KnownHosts>>>,
}

/// Where a [`Client`] leaves why it refused a key.
#[derive(Clone, Default)]
pub(crate) struct Refusal(Arc<Mutex<Option<SshError>>>);

impl Refusal {
    /// The reason, once.
    pub(crate) fn take(&self) -> Option<SshError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn set(&self, error: SshError) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }
}

/// What russh asks when a server shows its key.
pub(crate) struct Client {
    known: Arc<KnownHosts>,
    /// What known-hosts files call this host.
    name: String,
    port: u16,
    strict: StrictHostKeyChecking,
    /// Where a new key is recorded.
    record: Option<PathBuf>,
    refusal: Refusal,
}

impl HostKeys {
    /// A checker for one connection, and where it leaves its verdict.
    pub(crate) fn checker(
        &self,
        config: &HostConfig,
        port: u16,
    ) -> Result<(Client, Refusal), KnownHostsError> {
        let refusal = Refusal::default();
        // An alias stands for a host on any port, so it is recorded without one.
        let (name, port) = match &config.host_key_alias {
            Some(alias) => (alias.clone(), 22),
            None => (config.hostname.clone(), port),
        };
        let client = Client {
            known: self.known_hosts(config)?,
            name,
            port,
            strict: config.strict_host_key_checking,
            record: config.user_known_hosts_files.first().cloned(),
            refusal: refusal.clone(),
        };
        Ok((client, refusal))
    }

    fn known_hosts(&self, config: &HostConfig) -> Result<Arc<KnownHosts>, KnownHostsError> {
        let files: Vec<PathBuf> = config
            .user_known_hosts_files
            .iter()
            .chain(&config.global_known_hosts_files)
            .cloned()
            .collect();
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = read.get(&files) {
            return Ok(known.clone());
        }
        let known = Arc::new(KnownHosts::load(&files)?);
        for warning in known.warnings() {
            tracing::warn!("{warning}");
        }
        read.insert(files, known.clone());
        Ok(known)
    }
}

impl Client {
    /// `offered` with the algorithms first that this host has keys recorded for: a server shows
    /// the key that is asked for, and another one would look like a changed host.
    pub(crate) fn preferred_algorithms(&self, offered: &[Algorithm]) -> Vec<Algorithm> {
        let recorded = self.known.algorithms(&[&self.name], self.port);
        // An RSA key serves every RSA signature algorithm.
        let is_recorded = |a: &Algorithm| {
            recorded.iter().any(|r| r == a || (r.clone().is_rsa() && a.clone().is_rsa()))
        };
        let (first, rest): (Vec<_>, Vec<_>) = offered.iter().cloned().partition(is_recorded);
        first.into_iter().chain(rest).collect()
    }

    /// The algorithms for which a certificate is wanted: none, unless some authority may vouch for
    /// this host.
    pub(crate) fn certificates(&self, config: &HostConfig) -> Vec<Algorithm> {
        if self.known.has_authority(&[&self.name], self.port) {
            algorithms::host_certificates(config)
        } else {
            Vec::new()
        }
    }

    /// One that no known authority has signed is as good as the key in it.
    fn judge_certificate(&self, shown: &Certificate) -> Result<(), SshError> {
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
            Verdict::Unknown | Verdict::Changed { .. } => self.judge(&key),
        }
    }

    fn judge(&self, key: &PublicKey) -> Result<(), SshError> {
        let shown = fingerprint(key.key_data());
        match self.known.check(&[&self.name], self.port, key) {
            Verdict::Known => Ok(()),
            Verdict::Revoked { file, line } => Err(SshError::HostKeyRevoked { file, line }),
            _ if self.strict == StrictHostKeyChecking::No => Ok(()),
            Verdict::Changed { file, line, recorded_fingerprint: recorded } => {
                let name = self.name.clone();
                let change = HostKeyChange { name, file, line, recorded, shown };
                Err(SshError::HostKeyChanged(Box::new(change)))
            }
            Verdict::Unknown if self.strict == StrictHostKeyChecking::Yes => {
                Err(SshError::HostKeyUnknown { shown })
            }
            Verdict::Unknown => {
                tracing::info!(host = %self.name, key = %shown, "new host key accepted");
                self.record.as_ref().map_or(Ok(()), |file| {
                    Ok(KnownHosts::append(file, &self.name, self.port, key)?)
                })
            }
        }
    }
}

impl client::Handler for Client {
    type Error = russh::Error;

    async fn check_server_key(
        &mut self,
        shown: &PublicKeyOrCertificate,
    ) -> Result<bool, russh::Error> {
        let verdict = match shown {
            PublicKeyOrCertificate::PublicKey { key, .. } => self.judge(key),
            PublicKeyOrCertificate::Certificate(certificate) => self.judge_certificate(certificate),
        };
        Ok(verdict.map_err(|error| self.refusal.set(error)).is_ok())
    }
}
