//! What a program tells the launcher.

use super::RoleError;
use crate::link::lock;
use rlaunch_copy::Message;
use rlaunch_copy::control::Report;
use serde::Serialize;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Rank of the programs on the launcher's machine, which are in no job.
pub const LOCAL: u32 = u32::MAX;
/// Name of the launcher's machine in messages.
const LOCAL_NAME: &str = "this machine";

/// Time between two reports of progress.
pub(super) const INTERVAL: Duration = Duration::from_millis(500);

/// Writes a line for the launcher. If that has gone, its job ends, and so does this program.
pub(super) fn write_line(out: &mut (impl Write + ?Sized), what: &impl Serialize) {
    let Ok(mut line) = serde_json::to_vec(what) else { return };
    line.push(b'\n');
    let _ = out.write_all(&line).and_then(|()| out.flush());
}

/// Writes the reports of one rank, and knows what hosts are called.
#[derive(Clone)]
pub(super) struct Reporter {
    rank: u32,
    hosts: Arc<[String]>,
    out: Arc<Mutex<dyn Write + Send>>,
}

impl Reporter {
    /// Makes the reporter of `rank`. `hosts` are the names of the ranks' hosts.
    pub(super) fn new(rank: u32, hosts: &[String], out: impl Write + Send + 'static) -> Reporter {
        Reporter { rank, hosts: hosts.into(), out: Arc::new(Mutex::new(out)) }
    }

    /// Makes a reporter to stdout.
    pub(super) fn to_stdout(rank: u32, hosts: &[String]) -> Reporter {
        Reporter::new(rank, hosts, io::stdout())
    }

    /// Makes one that reports for another rank.
    pub(super) fn for_rank(&self, rank: u32) -> Reporter {
        Reporter { rank, ..self.clone() }
    }

    pub(super) fn rank(&self) -> u32 {
        self.rank
    }

    /// Returns the name of a rank's host.
    pub(super) fn name_of(&self, rank: u32) -> &str {
        if rank == LOCAL {
            return LOCAL_NAME;
        }
        self.hosts.get(rank as usize).map_or("an unknown host", String::as_str)
    }

    pub(super) fn report(&self, report: &Report) {
        write_line(&mut *lock(&self.out), report);
    }

    pub(super) fn note(&self, text: String) {
        self.report(&Report::Note { rank: self.rank, text });
    }

    /// Reports an error under the rank of the host that it is of, which may be another one.
    pub(super) fn failed(&self, error: &RoleError) {
        let (rank, text, hint) = match error {
            RoleError::Other { host, text } => (self.rank_of(host), text.clone(), None),
            RoleError::Damaged { host, .. } => (self.rank_of(host), error.text(), error.hint()),
            error => (self.rank, error.text(), error.hint()),
        };
        self.report(&Report::Failed { rank, text, hint });
    }

    /// Makes the message that tells neighbours of an error.
    pub(super) fn message(&self, error: &RoleError) -> Message {
        match error {
            RoleError::Other { host, text } => Message::failed(host, text),
            RoleError::Damaged { host, .. } => Message::failed(host, &error.text()),
            error => Message::failed(self.name_of(self.rank), &error.text()),
        }
    }

    fn rank_of(&self, host: &str) -> u32 {
        let place = self.hosts.iter().position(|known| known == host);
        place.and_then(|place| u32::try_from(place).ok()).unwrap_or(LOCAL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_reported_of_the_host_that_sent_it() {
        let hosts = ["a", "b"].map(str::to_owned);
        for (host, rank) in [("a", 0), (LOCAL_NAME, LOCAL)] {
            let out = Arc::new(Mutex::new(Vec::<u8>::new()));
            let me = Reporter { rank: 1, hosts: hosts.as_slice().into(), out: out.clone() };
            let error = RoleError::Damaged { path: "x".into(), host: host.into() };
            me.failed(&error);
            let report: Report = serde_json::from_slice(&lock(&out)).unwrap();
            let (text, hint) = (error.text(), error.hint());
            assert_eq!(Report::Failed { rank, text, hint }, report);
            // Hosts that are told of it report the same.
            assert_eq!(me.message(&error), Message::failed(host, &error.text()));
        }
    }
}
