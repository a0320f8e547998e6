//! Is this host who it was before?

use super::algorithms;
use super::certificate;
use super::config::{HostConfig, StrictHostKeyChecking};
use super::error::{HostKeyChange, SshError};
use super::known_hosts::{KnownHosts, KnownHostsError, Verdict, fingerprint};
use super::new_hosts::{NewHostKey, NewHosts};
use rlaunch_console::messages;
use russh::client;
use russh::keys::{Algorithm, Certificate, PublicKey, PublicKeyOrCertificate};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// The known-hosts files of all hosts, each read once, and the hosts that are in none.
#[derive(Default)]
pub(crate) struct HostKeys {
    read: Mutex<HashMap<Vec<PathBuf>, Arc<KnownHosts>>>,
    /// From `--new-hosts`, which counts before the configuration.
    rule: Option<StrictHostKeyChecking>,
    new: Arc<NewHosts>,
}

/// Where a [`Client`] leaves what it found about a key.
#[derive(Clone, Default)]
pub(crate) struct Judgement(Arc<Mutex<Found>>);

#[derive(Default)]
struct Found {
    refusal: Option<SshError>,
    /// Another key was recorded, and the user lets that pass.
    changed: Option<Box<HostKeyChange>>,
}

impl Judgement {
    /// Why the key was refused, once.
    pub(crate) fn refusal(&self) -> Option<SshError> {
        self.with(|found| found.refusal.take())
    }

    /// That another key was recorded and this one let pass, once.
    pub(crate) fn change(&self) -> Option<Box<HostKeyChange>> {
        self.with(|found| found.changed.take())
    }

    fn with<T>(&self, then: impl FnOnce(&mut Found) -> T) -> T {
        then(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
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
    new: Arc<NewHosts>,
    judgement: Judgement,
}

impl HostKeys {
    pub(crate) fn new(rule: Option<StrictHostKeyChecking>) -> HostKeys {
        HostKeys { rule, ..HostKeys::default() }
    }

    /// The hosts that were met in this run.
    pub(super) fn new_hosts(&self) -> &NewHosts {
        &self.new
    }

    /// A checker for one connection, and where it leaves its verdict.
    pub(crate) fn checker(
        &self,
        config: &HostConfig,
        port: u16,
    ) -> Result<(Client, Judgement), KnownHostsError> {
        let judgement = Judgement::default();
        // An alias stands for a host on any port, so it is recorded without one.
        let (name, port) = match &config.host_key_alias {
            Some(alias) => (alias.clone(), 22),
            None => (config.hostname.clone(), port),
        };
        let client = Client {
            known: self.known_hosts(config)?,
            name,
            port,
            strict: self.rule.unwrap_or(config.strict_host_key_checking),
            record: config.user_known_hosts_files.first().cloned(),
            new: self.new.clone(),
            judgement: judgement.clone(),
        };
        Ok((client, judgement))
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
            Verdict::Changed { file, line, recorded_fingerprint: recorded } => {
                let name = self.name.clone();
                let change = Box::new(HostKeyChange { name, file, line, recorded, shown });
                if self.strict != StrictHostKeyChecking::No {
                    return Err(SshError::HostKeyChanged(change));
                }
                messages::warn(&format!("{}: {change}; StrictHostKeyChecking is no", self.name));
                self.judgement.with(|found| found.changed = Some(change));
                Ok(())
            }
            Verdict::Unknown => self.judge_new(NewHostKey {
                key: key.clone(),
                name: self.name.clone(),
                port: self.port,
                file: self.record.clone(),
            }),
        }
    }

    fn judge_new(&self, new: NewHostKey) -> Result<(), SshError> {
        match self.strict {
            StrictHostKeyChecking::Yes => Err(SshError::HostKeyUnknown {
                shown: new.fingerprint(),
                why: "and StrictHostKeyChecking is on",
            }),
            _ if self.new.has_met(&new) => Ok(()),
            StrictHostKeyChecking::Ask => Err(SshError::HostKeyToAsk(Box::new(new))),
            StrictHostKeyChecking::AcceptNew => Ok(self.new.accept(&new)?),
            StrictHostKeyChecking::No => {
                // A key that cannot be recorded is no reason to fail: ssh goes on as well.
                if let Err(error) = self.new.accept(&new) {
                    tracing::warn!("{}", messages::error_chain(&error));
                }
                Ok(())
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
        let refused = |error| self.judgement.with(|found| found.refusal = Some(error));
        Ok(verdict.map_err(refused).is_ok())
    }
}
