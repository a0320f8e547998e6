//! Host keys that no known-hosts file has: accepting them, asking the user about them, and reporting them.
//!
//! ssh(1) prints a line for each host that it adds. A job may add many hosts at once, so their lines are
//! printed together, before any data of the user is sent to the hosts.

use crate::error::SshError;
use crate::known_hosts::{KnownHostsError, NewHostKey};
use crate::prompt::Prompter;
use rlaunch_console::messages;
use rlaunch_text::text;
use russh::keys::ssh_key::public::KeyData;
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

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
    pub(super) fn has_accepted(&self, new: &NewHostKey) -> bool {
        let accepted = self.accepted.lock().unwrap_or_else(PoisonError::into_inner);
        accepted.get(&(new.name.clone(), new.port)) == Some(new.key.key_data())
    }

    /// Accepts a key without asking the user, and adds it to the keys to report. A key that several
    /// connections accept is recorded once.
    pub(super) fn accept(&self, new: &NewHostKey) -> Result<(), KnownHostsError> {
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
            match answer(&prompter, new).await {
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
        lines(&unreported).iter().for_each(|line| messages::info(line));
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

async fn answer(prompter: &Prompter, new: &NewHostKey) -> Answer {
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
    use russh::keys::ssh_key::private::Ed25519Keypair;
    use russh::keys::{PrivateKey, PublicKey};

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
