//! Hosts that are met for the first time: whether their keys are accepted, who is asked, and what is
//! said of them.
//!
//! ssh(1) says of each that it was added for good. A job meets many hosts at once, so the lines come
//! together, before anything of the user's is sent to any of them.

use super::askpass::Prompter;
use super::error::SshError;
use super::known_hosts::{KnownHosts, KnownHostsError, fingerprint};
use rlaunch_console::{messages, text};
use russh::keys::ssh_key::public::KeyData;
use russh::keys::{Algorithm, PublicKey};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Number of new hosts up to which each is reported on a line of its own; more have one line together.
const LINES: usize = 4;
/// Number of answers that are read to one question; after so many invalid ones the key is refused.
const TRIES: usize = 3;

/// A host's key that no known-hosts file has.
#[derive(Clone, Debug)]
pub struct NewHostKey {
    pub(super) key: PublicKey,
    /// Name of the host in known-hosts files.
    pub(super) name: String,
    pub(super) port: u16,
    /// Where it is to be written down.
    pub(super) file: Option<PathBuf>,
}

impl NewHostKey {
    /// Fingerprint, in the form of `ssh-keygen -l`.
    pub fn fingerprint(&self) -> String {
        fingerprint(self.key.key_data())
    }

    /// Writes it down, so that from now on the host must show this one.
    pub fn accept(&self) -> Result<(), KnownHostsError> {
        self.file
            .as_ref()
            .map_or(Ok(()), |file| KnownHosts::append(file, &self.name, self.port, &self.key))
    }

    /// Whether it is forgotten as soon as the connection is closed.
    fn is_forgotten(&self) -> bool {
        self.file.as_deref().is_none_or(|file| file == Path::new("/dev/null"))
    }

    fn place(&self) -> String {
        let NewHostKey { name, port, .. } = self;
        if *port == super::SSH_PORT { name.clone() } else { format!("[{name}]:{port}") }
    }

    fn kind(&self) -> &'static str {
        match self.key.algorithm() {
            Algorithm::Ed25519 => "ED25519",
            Algorithm::Ecdsa { .. } => "ECDSA",
            Algorithm::Rsa { .. } => "RSA",
            Algorithm::SkEd25519 => "ED25519-SK",
            Algorithm::SkEcdsaSha2NistP256 => "ECDSA-SK",
            _ => "host",
        }
    }

    fn question(&self) -> String {
        format!(
            "The authenticity of host '{}' can't be established.\n{} key fingerprint is {}.\nAre you \
             sure you want to continue connecting (yes/no/all/[fingerprint])? ",
            self.place(),
            self.kind(),
            self.fingerprint()
        )
    }
}

/// The hosts that were met in this run.
#[derive(Default)]
pub(super) struct NewHosts {
    /// Keys that were accepted.
    met: Mutex<HashMap<(String, u16), KeyData>>,
    /// Keys that were accepted and not said yet.
    unsaid: Mutex<Vec<NewHostKey>>,
    /// One question at a time; true once all are accepted.
    asking: tokio::sync::Mutex<bool>,
}

impl NewHosts {
    /// Whether this key was accepted in this run.
    pub(super) fn has_met(&self, new: &NewHostKey) -> bool {
        let met = self.met.lock().unwrap_or_else(PoisonError::into_inner);
        met.get(&(new.name.clone(), new.port)) == Some(new.key.key_data())
    }

    /// Accepts a key, once however many connections are shown it, and has it said later.
    pub(super) fn accept(&self, new: &NewHostKey) -> Result<(), KnownHostsError> {
        let is_said = !new.is_forgotten();
        self.accept_quietly(new, |new| {
            if is_said {
                self.unsaid.lock().unwrap_or_else(PoisonError::into_inner).push(new.clone());
            }
        })
    }

    fn accept_quietly(
        &self,
        new: &NewHostKey,
        then: impl FnOnce(&NewHostKey),
    ) -> Result<(), KnownHostsError> {
        let mut met = self.met.lock().unwrap_or_else(PoisonError::into_inner);
        let place = (new.name.clone(), new.port);
        if met.get(&place) == Some(new.key.key_data()) {
            return Ok(());
        }
        new.accept()?;
        met.insert(place, new.key.key_data().clone());
        then(new);
        Ok(())
    }

    /// Asks whether a key is accepted. A key is refused unless the answer is yes.
    pub(super) async fn ask(&self, new: &NewHostKey) -> Result<(), SshError> {
        let mut all = self.asking.lock().await;
        if self.has_met(new) {
            return Ok(());
        }
        let refused = |why| Err(SshError::HostKeyUnknown { shown: new.fingerprint(), why });
        if !*all {
            let Some(prompter) = Prompter::open() else {
                return refused("and nobody is there to be asked (StrictHostKeyChecking ask)");
            };
            match answer(&prompter, new).await {
                Answer::Yes => {}
                Answer::All => *all = true,
                Answer::No => return refused("and you have not accepted it"),
            }
        }
        Ok(self.accept_quietly(new, |_| ())?)
    }

    /// Says which keys were accepted, once.
    pub(super) fn announce(&self) {
        let unsaid =
            std::mem::take(&mut *self.unsaid.lock().unwrap_or_else(PoisonError::into_inner));
        lines(&unsaid).iter().for_each(|line| messages::info(line));
    }
}

impl Drop for NewHosts {
    /// Says it after an interruption as well: a key that is written down was said.
    fn drop(&mut self) {
        self.announce();
    }
}

enum Answer {
    Yes,
    No,
    All,
}

async fn answer(prompter: &Prompter, new: &NewHostKey) -> Answer {
    let mut question = new.question();
    for _ in 0..TRIES {
        let Some(typed) = prompter.ask_openly(&question).await else { return Answer::No };
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

fn lines(new: &[NewHostKey]) -> Vec<String> {
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
        assert!(lines(&[]).is_empty());
        let first = format!(
            "permanently added n0 (ED25519 {}) to the known hosts, /k",
            all[0].fingerprint()
        );
        assert!(first.contains("(ED25519 SHA256:"), "{first}");
        assert_eq!(lines(&all[..4]).len(), 4);
        assert_eq!(lines(&all[..1]), [first]);
        let many = lines(&all);
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
        assert!(hosts.has_met(&new(1, Some(&file))) && !hosts.has_met(&new(2, Some(&file))));
        assert_eq!(std::fs::read_to_string(&file).unwrap().lines().count(), 1);
        assert_eq!(hosts.unsaid.lock().unwrap().len(), 1);
        hosts.announce();
        assert!(hosts.unsaid.lock().unwrap().is_empty());
        // Where nothing is kept, it would be said every time.
        hosts.accept(&new(3, Some(Path::new("/dev/null")))).unwrap();
        hosts.accept(&new(4, None)).unwrap();
        assert!(hosts.unsaid.lock().unwrap().is_empty());
    }
}
