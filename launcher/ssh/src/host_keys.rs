//! Check of host keys: each server's key is compared with the known-hosts files. Unknown keys are recorded,
//! confirmed by the user or refused, as `StrictHostKeyChecking` and `--new-hosts` say.
//!
//! ssh(1) prints a line for each host that it adds. A job may add many hosts at once, so their lines are
//! printed together, before any data of the user is sent to the hosts.

use crate::config::{DEFAULT_PORT, HostConfig, StrictHostKeyChecking};
use crate::error::{CLOSED, HostKeyChange, SshError};
use crate::keys::certificate;
use crate::known_hosts::{
    KnownHosts, KnownHostsError, NewHostKey, Verdict, fingerprint, written_name,
};
use crate::prompt::Prompter;
use crate::transport::algorithms;
use rlaunch_console::messages;
use rlaunch_text::{printable, text};
use russh::Preferred;
use russh::client::{self, DisconnectReason};
use russh::keys::ssh_key::public::KeyData;
use russh::keys::{Algorithm, Certificate, PublicKey, PublicKeyOrCertificate};
use std::collections::HashMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Known-hosts files for all hosts of a job, each read once, and the host keys that were newly accepted.
#[derive(Default)]
pub(crate) struct HostKeys {
    /// Entries of known-hosts files, by the list of files that a configuration names.
    cache: Mutex<HashMap<Vec<PathBuf>, Arc<KnownHosts>>>,
    /// Rule of `--new-hosts`, which takes precedence over the configuration.
    rule: Option<StrictHostKeyChecking>,
    /// Hosts that are not known yet: accepting them, asking the user about them, and reporting them.
    pub(crate) new_hosts: Arc<NewHosts>,
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
    /// What the server has sent last to be shown to the user, such as why an account may not log in.
    said: Option<String>,
}

impl CheckOutcome {
    /// Returns the reason why the connection ended; `None` while it is open, and if it was closed here.
    pub(crate) fn end(&self) -> Option<String> {
        self.with(|found| found.end.clone())
    }

    /// Returns the last message of the server to its users, in one line; `None` if there was none.
    pub(crate) fn said(&self) -> Option<String> {
        self.with(|found| found.said.clone())
    }

    /// Takes the reason why the key was refused.
    pub(crate) fn take_refusal(&self) -> Option<SshError> {
        self.with(|found| found.refusal.take())
    }

    /// Takes the accepted change of the key.
    pub(crate) fn take_change(&self) -> Option<Box<HostKeyChange>> {
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
    new_hosts: Arc<NewHosts>,
    outcome: CheckOutcome,
}

impl HostKeys {
    pub(crate) fn new(rule: Option<StrictHostKeyChecking>) -> HostKeys {
        HostKeys { rule, ..HostKeys::default() }
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
            new_hosts: self.new_hosts.clone(),
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
        // What is read already costs no other thread.
        let read = self.cache.try_lock().ok().and_then(|cache| cache.get(&files).cloned());
        match read {
            Some(known) => Ok(known),
            None => self.read_known_hosts(files),
        }
    }

    fn read_known_hosts(&self, files: Vec<PathBuf>) -> Result<Arc<KnownHosts>, KnownHostsError> {
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
    /// Returns the algorithms to offer. Host certificates are asked for only if the known-hosts files trust a certificate
    /// authority for this host.
    pub(crate) fn preferred(&self, config: &HostConfig) -> Result<Preferred, SshError> {
        let mut preferred = algorithms::preferred(config)?;
        preferred.key = self.recorded_first(&preferred.key).into();
        let has_authority = self.known.has_authority(&[&self.name], self.port);
        let certificates = has_authority.then(|| algorithms::host_certificates(config));
        preferred.host_key_certificates = certificates.unwrap_or_default().into();
        Ok(preferred)
    }

    /// Returns the `offered` algorithms, with those of recorded keys first. A server sends the key that the
    /// client prefers, and a key of another algorithm would look like a changed host.
    fn recorded_first(&self, offered: &[Algorithm]) -> Vec<Algorithm> {
        let recorded = self.known.algorithms(&[&self.name], self.port);
        // An RSA key serves every RSA signature algorithm.
        let is_recorded = |a: &Algorithm| {
            recorded.iter().any(|r| r == a || (r.clone().is_rsa() && a.clone().is_rsa()))
        };
        let (first, rest): (Vec<_>, Vec<_>) = offered.iter().cloned().partition(is_recorded);
        first.into_iter().chain(rest).collect()
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
                let name = written_name(&self.name, self.port);
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
            _ if self.new_hosts.has_accepted(&new) => Ok(()),
            StrictHostKeyChecking::Ask => Err(SshError::HostKeyToAsk(Box::new(new))),
            StrictHostKeyChecking::AcceptNew => Ok(self.new_hosts.accept(&new)?),
            StrictHostKeyChecking::No => {
                // As in ssh(1), the connection is made even if the key cannot be recorded.
                if let Err(error) = self.new_hosts.accept(&new) {
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

    async fn auth_banner(
        &mut self,
        text: &str,
        _: &mut client::Session,
    ) -> Result<(), russh::Error> {
        let last = text.lines().map(str::trim).rfind(|line| !line.is_empty());
        self.outcome.with(|found| found.said = last.map(printable::first_line));
        Ok(())
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
            DisconnectReason::Error(russh::Error::IO(error))
                if error.kind() == ErrorKind::TimedOut =>
            {
                let how = "what is sent to it does not arrive".to_owned();
                (how, Err(russh::Error::IO(error)))
            }
            DisconnectReason::Error(russh::Error::Disconnect) => {
                (CLOSED.to_owned(), Err(russh::Error::Disconnect))
            }
            DisconnectReason::Error(error) => (messages::error_chain(&error), Err(error)),
        };
        self.outcome.with(|found| found.end = Some(how));
        ended
    }
}

/// Maximum number of new hosts that are reported on separate lines; more hosts share one line.
const LINES: usize = 4;
/// Number of invalid answers after which the key is refused.
const TRIES: usize = 3;

/// Host keys that were unknown when this run began, and were accepted since.
#[derive(Default)]
pub(crate) struct NewHosts {
    /// Accepted keys, by host name and port.
    accepted: Mutex<HashMap<(String, u16), KeyData>>,
    /// Accepted keys that are not reported yet.
    unreported: Mutex<Vec<NewHostKey>>,
    /// True once the user has answered `all`, which accepts all further keys. The lock is held during a
    /// question, so there is only one question at a time.
    asking: tokio::sync::Mutex<bool>,
}

impl NewHosts {
    /// Tells whether this key was accepted in this run.
    fn has_accepted(&self, new: &NewHostKey) -> bool {
        let accepted = self.accepted.lock().unwrap_or_else(PoisonError::into_inner);
        accepted.get(&(new.name.clone(), new.port)) == Some(new.key.key_data())
    }

    /// Accepts a key without asking the user, and adds it to the keys to report. A key that several
    /// connections accept is recorded once.
    fn accept(&self, new: &NewHostKey) -> Result<(), KnownHostsError> {
        let is_reported = !new.is_unrecorded();
        self.record(new, |new| {
            if is_reported {
                self.unreported.lock().unwrap_or_else(PoisonError::into_inner).push(new.clone());
            }
        })
    }

    fn record(
        &self,
        new: &NewHostKey,
        then: impl FnOnce(&NewHostKey),
    ) -> Result<(), KnownHostsError> {
        let mut accepted = self.accepted.lock().unwrap_or_else(PoisonError::into_inner);
        let place = (new.name.clone(), new.port);
        if accepted.get(&place) == Some(new.key.key_data()) {
            return Ok(());
        }
        new.accept()?;
        accepted.insert(place, new.key.key_data().clone());
        then(new);
        Ok(())
    }

    /// Asks the user to accept a key, and records it if the user does. Otherwise returns an error.
    pub(crate) async fn ask(&self, new: &NewHostKey) -> Result<(), SshError> {
        let mut all = self.asking.lock().await;
        if self.has_accepted(new) {
            return Ok(());
        }
        let refused = |why| Err(SshError::HostKeyUnknown { shown: new.fingerprint(), why });
        if !*all {
            let Some(prompter) = Prompter::open() else {
                return refused("and there is no terminal to ask at (StrictHostKeyChecking ask)");
            };
            match ask_until_valid(&prompter, new).await {
                Answer::Yes => {}
                Answer::All => *all = true,
                Answer::No => return refused("and you did not accept it"),
            }
        }
        Ok(self.record(new, |_| ())?)
    }

    /// Prints the hosts with keys that were accepted since the last call, except keys that the user was
    /// asked about.
    pub(crate) fn announce(&self) {
        let unreported =
            std::mem::take(&mut *self.unreported.lock().unwrap_or_else(PoisonError::into_inner));
        announcement(&unreported).iter().for_each(|line| messages::info(line));
    }
}

impl Drop for NewHosts {
    /// Prints the hosts that are not reported yet, so that no key is recorded silently even after an
    /// interruption.
    fn drop(&mut self) {
        self.announce();
    }
}

enum Answer {
    Yes,
    No,
    All,
}

async fn ask_until_valid(prompter: &Prompter, new: &NewHostKey) -> Answer {
    let mut question = question(new);
    for _ in 0..TRIES {
        let Some(typed) = prompter.ask_visibly(&question).await else { return Answer::No };
        match typed.trim() {
            "yes" => return Answer::Yes,
            "all" => return Answer::All,
            "no" => return Answer::No,
            shown if shown == new.fingerprint() => return Answer::Yes,
            _ => "Please type 'yes', 'no', 'all' or the fingerprint: ".clone_into(&mut question),
        }
    }
    Answer::No
}

fn question(new: &NewHostKey) -> String {
    format!(
        "The authenticity of host '{}' can't be established.\n{} key fingerprint is {}.\nAre you \
         sure you want to continue connecting (yes/no/all/[fingerprint])? ",
        new.place(),
        new.kind(),
        new.fingerprint()
    )
}

/// Formats the report of accepted keys.
fn announcement(new: &[NewHostKey]) -> Vec<String> {
    let file = |new: &NewHostKey| {
        let home = std::env::home_dir().unwrap_or_default();
        let file = new.file.as_deref().unwrap_or(Path::new("/dev/null"));
        match file.strip_prefix(&home) {
            Ok(below) => format!("~/{}", below.display()),
            Err(_) => file.display().to_string(),
        }
    };
    match new {
        [] => Vec::new(),
        few if few.len() <= LINES => few
            .iter()
            .map(|new| {
                let (place, kind, shown) = (new.place(), new.kind(), new.fingerprint());
                format!(
                    "permanently added {place} ({kind} {shown}) to the known hosts, {}",
                    file(new)
                )
            })
            .collect(),
        [first, ..] => {
            let mut places: Vec<String> = new.iter().map(NewHostKey::place).collect();
            places.sort();
            let file = file(first);
            vec![format!(
                "permanently added {} new hosts to the known hosts, {file}: {}; their keys: ssh-keygen \
                 -lf {file}",
                new.len(),
                text::list(&places)
            )]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use russh::keys::PrivateKey;
    use russh::keys::ssh_key::private::Ed25519Keypair;

    fn new(number: u8, file: Option<&Path>) -> NewHostKey {
        let key = PrivateKey::from(Ed25519Keypair::from_seed(&[number; 32]));
        let key = PublicKey::new(key.public_key().key_data().clone(), "");
        NewHostKey { key, name: format!("n{number}"), port: 22, file: file.map(Path::to_owned) }
    }

    #[test]
    fn few_hosts_have_a_line_each_and_many_have_one() {
        let all: Vec<NewHostKey> = (0..64).map(|n| new(n, Some(Path::new("/k")))).collect();
        assert!(announcement(&[]).is_empty());
        let first = format!(
            "permanently added n0 (ED25519 {}) to the known hosts, /k",
            all[0].fingerprint()
        );
        assert!(first.contains("(ED25519 SHA256:"), "{first}");
        assert_eq!(announcement(&all[..4]).len(), 4);
        assert_eq!(announcement(&all[..1]), [first]);
        let many = announcement(&all);
        assert_eq!(many.len(), 1);
        let begin = "permanently added 64 new hosts to the known hosts, /k: n0, n1, n10,";
        assert!(many[0].starts_with(begin), "{many:?}");
        assert!(many[0].ends_with("and 56 more; their keys: ssh-keygen -lf /k"), "{many:?}");
    }

    #[test]
    fn a_key_is_written_and_said_once_however_often_it_is_shown() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("known");
        let hosts = NewHosts::default();
        for _ in 0..2 {
            hosts.accept(&new(1, Some(&file))).unwrap();
        }
        assert!(
            hosts.has_accepted(&new(1, Some(&file))) && !hosts.has_accepted(&new(2, Some(&file)))
        );
        assert_eq!(std::fs::read_to_string(&file).unwrap().lines().count(), 1);
        assert_eq!(hosts.unreported.lock().unwrap().len(), 1);
        hosts.announce();
        assert!(hosts.unreported.lock().unwrap().is_empty());
        // Keys that are not recorded are not reported, since they would be reported in every run.
        hosts.accept(&new(3, Some(Path::new("/dev/null")))).unwrap();
        hosts.accept(&new(4, None)).unwrap();
        assert!(hosts.unreported.lock().unwrap().is_empty());
    }
}
