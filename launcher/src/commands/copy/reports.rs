//! What the programs of a copy report, and which host is to blame if it fails.

use super::attempt::TreeState;
use super::progress::{HostState, ProgressLine, Source};
use super::{HostCopy, LeftOut};
use crate::commands::bench::records::LineReader;
use rlaunch_console::messages;
use rlaunch_copy::control::{Hex, Limit, Report};
use rlaunch_engine::run::job_run::StartFacts;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::{Failed, FailedHost};
use std::io::{self, PipeWriter, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Time in which the job may find out by itself that a host is lost, after the program on this machine has failed. It is
/// longer than a host's silence before it is lost.
const PATIENCE: Duration = Duration::from_secs(8);

/// Time without progress after which the program on this machine is ended when the job is over, and bytes for each of which
/// it gets a second more. That of a fetch may still make the disk write what it keeps in memory, and that of a push with
/// `--verify` reads all files again, which shows in no number.
const PATIENCE_WITH_LOCAL: Duration = Duration::from_secs(60);
const SLOWEST_DISK: u64 = 10_000_000;

/// Exit code of a program that has reported why it failed.
const REPORTED: Exit = Exit(1);

/// Reports so far, for the threads that read them.
pub(super) type SharedReports = Arc<Mutex<Reports>>;

/// Failure of a program.
#[derive(Clone, Debug)]
struct Failure {
    /// `None` for the program on this machine.
    rank: Option<usize>,
    text: String,
    hint: Option<String>,
    at: Instant,
}

#[derive(Debug)]
pub(super) struct Reports {
    hosts: Vec<String>,
    /// Who reports how far the copy is: the end to which files go.
    of_progress: Source,
    /// State by rank.
    ranks: Vec<HostState>,
    local: HostState,
    /// In the order in which they came.
    failures: Vec<Failure>,
    /// Hosts whose engines have refused an image.
    refused: Vec<LeftOut>,
    /// Files and bytes of a working tree that has more than it may.
    too_large: Option<(u64, u64)>,
    /// Hash of what a working tree contains.
    content: Option<[u8; 32]>,
    /// Encoded patch that makes a former copy one of that tree, if there is any.
    patch: Option<Option<Vec<u8>>>,
    /// Whether the program on this machine says nothing more.
    is_local_over: bool,
    changed: Arc<Notify>,
    /// Whether the program on this machine was killed, which ranks take for the loss of a neighbour.
    is_local_killed: bool,
    /// Whether the job was ended because of a failure here.
    pub(super) is_ended: bool,
    line: ProgressLine,
}

impl Reports {
    /// Begins without any report. `verb` says at a terminal what is done.
    pub(super) fn new(hosts: Vec<String>, verb: &'static str, of_progress: Source) -> Reports {
        Reports {
            ranks: vec![HostState::default(); hosts.len()],
            hosts,
            of_progress,
            local: HostState::default(),
            failures: Vec::new(),
            refused: Vec::new(),
            too_large: None,
            content: None,
            patch: None,
            is_local_over: false,
            changed: Arc::default(),
            is_local_killed: false,
            is_ended: false,
            line: ProgressLine::new(verb, of_progress),
        }
    }

    pub(super) fn hosts(&self) -> &[String] {
        &self.hosts
    }

    /// Takes a report of a program. One that names a rank is about this rank, whoever reports it.
    pub(super) fn note(&mut self, source: Source, report: Report) {
        match report {
            Report::Reached | Report::Since { .. } | Report::Listening { .. } => {}
            Report::Shares { rank, with } => {
                let with = self.index(with);
                self.state(rank, source).into_iter().for_each(|state| state.shares = with);
            }
            Report::Reading { rank, bytes, total } => {
                let Some(state) = self.state(rank, source) else { return };
                (state.read, state.to_read) = (bytes, total);
                self.line.show(&self.hosts, &self.ranks, &self.local, Instant::now());
            }
            Report::Progress { rank, received, written, total, waits_for } => {
                let is_counted = source == self.of_progress;
                let Some(state) = self.state(rank, source) else { return };
                match source {
                    _ if is_counted => {
                        (state.received, state.written, state.total) = (received, written, total);
                        state.waits_for = Some(waits_for);
                    }
                    // A source knows why it sends no more, but not how much has arrived.
                    Source::Local => state.waits_for = Some(waits_for),
                    Source::Rank => state.source_waits_for = Some(waits_for),
                }
                self.line.show(&self.hosts, &self.ranks, &self.local, Instant::now());
            }
            Report::Done { rank, files, bytes, received, root, .. } => {
                let host = self.name(rank);
                let is_counted = source == self.of_progress;
                let Some(state) = self.state(rank, source).filter(|_| is_counted) else { return };
                (state.received, state.written, state.total) = (received, bytes, bytes);
                state.waits_for = Some(Limit::Nothing);
                state.loads = None;
                state.done = Some(HostCopy { host, files, bytes, received, root });
            }
            Report::Loading { rank, engine } => {
                let Some(state) = self.state(rank, source) else { return };
                state.loads = Some(engine);
                self.line.show_at_once(&self.hosts, &self.ranks, &self.local);
            }
            Report::NotLoaded { rank, text, hint } => {
                let host = self.name(rank);
                let why = format!("{host}: {text}");
                self.refused.push(LeftOut { host, why, hint, exit: Exit::FILES });
            }
            Report::TooLarge { files, bytes } => self.too_large = Some((files, bytes)),
            Report::Content { hash } => {
                self.content = Some(hash.0);
                self.changed.notify_one();
            }
            Report::Patch { bytes } => {
                self.patch = Some(bytes.map(|Hex(bytes)| bytes));
                self.changed.notify_one();
            }
            Report::Failed { rank, text, hint } => {
                let rank = self.index(rank);
                self.failures.push(Failure { rank, text, hint, at: Instant::now() });
                self.changed.notify_one();
            }
            Report::Note { rank, text } => {
                messages::info(&format!("{}: {text}", self.name(rank)));
            }
        }
    }

    /// Returns the place of a rank among the hosts; `None` for the program on this machine.
    fn index(&self, rank: u32) -> Option<usize> {
        usize::try_from(rank).ok().filter(|rank| *rank < self.hosts.len())
    }

    fn name(&self, rank: u32) -> String {
        self.index(rank).map_or_else(|| "this machine".to_owned(), |rank| self.hosts[rank].clone())
    }

    /// Returns the state that a report is about: the only other program that has no rank is the one on this machine.
    fn state(&mut self, rank: u32, source: Source) -> Option<&mut HostState> {
        match (self.index(rank), source) {
            (Some(rank), _) => self.ranks.get_mut(rank),
            (None, Source::Local) => Some(&mut self.local),
            (None, Source::Rank) => None,
        }
    }

    /// Returns what has arrived, if that is everything.
    pub(super) fn complete(&self) -> Result<Vec<HostCopy>, Failed> {
        let done = |(state, host): (&HostState, &String)| match state.shares {
            Some(with) => self.ranks.get(with)?.done.clone().map(|done| {
                messages::info(&format!("{host} shares {} with {}", done.root, done.host));
                HostCopy { host: host.clone(), received: 0, ..done }
            }),
            None => state.done.clone(),
        };
        let all = self.ranks.iter().zip(&self.hosts).map(|(state, host)| {
            done((state, host)).ok_or_else(|| {
                let message = format!("{host}: the program that copies has ended without a report");
                Failed::new(Exit::BUG, message)
            })
        });
        all.collect()
    }

    /// Returns the number of bytes that each host has received.
    pub(super) fn received(&self) -> Vec<(String, u64)> {
        let received = self.ranks.iter().map(|state| state.received);
        self.hosts.iter().cloned().zip(received).collect()
    }

    /// Returns the hosts whose engines have refused an image.
    pub(super) fn refused(&self) -> Vec<LeftOut> {
        self.refused.clone()
    }

    /// Returns the hosts whose files are those of another host, with the latter.
    pub(super) fn shared(&self) -> Vec<(String, String)> {
        let holders =
            self.ranks.iter().map(|state| state.shares.and_then(|with| self.hosts.get(with)));
        let pairs = self.hosts.iter().zip(holders);
        pairs.filter_map(|(host, holder)| Some((host.clone(), holder?.clone()))).collect()
    }

    /// Takes note that the program on this machine has closed its stdout.
    pub(super) fn local_is_over(&mut self) {
        self.is_local_over = true;
        self.changed.notify_one();
    }

    /// Returns what is notified when [`Reports::tree`] may return something.
    pub(super) fn changed(&self) -> Arc<Notify> {
        Arc::clone(&self.changed)
    }

    /// Returns what the program on this machine knows of the working tree, or why it knows nothing; `None` while it reads.
    pub(super) fn tree(&self) -> Option<Result<TreeState, Failed>> {
        if let Some(content) = self.content {
            return Some(Ok(TreeState::Read(content)));
        }
        match (self.silence(), self.too_large) {
            (Some(failed), Some((files, bytes))) => {
                Some(Ok(TreeState::TooLarge { files, bytes, failed }))
            }
            (failed, _) => failed.map(Err),
        }
    }

    /// Returns what makes a former copy one of the working tree, if that is known and little; `None` while the program on this
    /// machine finds that out.
    pub(super) fn patch(&self) -> Option<Result<Option<Vec<u8>>, Failed>> {
        let patch = self.patch.clone().map(Ok);
        patch.or_else(|| self.silence().map(Err))
    }

    /// Returns why the program on this machine says nothing more; `None` while it runs.
    fn silence(&self) -> Option<Failed> {
        let wordless = || {
            let message = "the program that copies has ended without a word";
            self.is_local_over.then(|| Failed::new(Exit::BUG, message))
        };
        self.local_failure().or_else(wordless)
    }

    /// Returns the failure of the program on this machine.
    pub(super) fn local_failure(&self) -> Option<Failed> {
        let failure = self.failures.iter().find(|failure| failure.rank.is_none())?;
        Some(Failed::new(Exit::FILES, failure.text.clone()).hint(failure.hint.clone()))
    }

    /// Returns what grows while the program on this machine gets on with a fetch: bytes received, bytes written, and hosts
    /// whose files are whole. It reports at intervals also if nothing has changed.
    pub(super) fn local_progress(&self) -> (u64, u64, usize) {
        let sum = |number: fn(&HostState) -> u64| self.ranks.iter().map(number).sum::<u64>();
        let done = self.ranks.iter().filter(|state| state.done.is_some()).count();
        (sum(|state| state.received), sum(|state| state.written), done)
    }

    /// Returns how long the program on this machine may go on without progress after the job has ended.
    pub(super) fn patience_with_local(&self) -> Duration {
        let totals = self.ranks.iter().map(|state| state.total);
        let bytes = match self.of_progress {
            Source::Local => totals.fold(0, u64::saturating_add),
            Source::Rank => totals.max().unwrap_or_default(),
        };
        PATIENCE_WITH_LOCAL + Duration::from_secs(bytes / SLOWEST_DISK)
    }

    /// Returns what the launcher waits for after the job has ended.
    pub(super) fn local_wait(&self) -> &'static str {
        let is_writing =
            |state: &HostState| state.done.is_none() && state.waits_for == Some(Limit::Disk);
        if self.of_progress == Source::Local && self.ranks.iter().any(is_writing) {
            "the disk of this machine"
        } else {
            "the end of the program that copies on this machine"
        }
    }

    /// Takes note that the program on this machine was killed, as `failed` says.
    pub(super) fn local_was_killed(&mut self, failed: &Failed) {
        self.is_local_killed = true;
        let (text, at) = (failed.message.clone(), Instant::now());
        self.failures.insert(0, Failure { rank: None, text, hint: None, at });
    }

    /// Returns the host without which the copy can go on after the job has failed; `None` if there is none.
    ///
    /// A program that fails reports it under the rank of the host that it is of, also if a neighbour has told it, and exits
    /// with [`REPORTED`].
    pub(super) fn culprit(&self, failed: &Failed) -> Option<LeftOut> {
        let FailedHost { name, is_lost } = failed.host.as_deref().filter(|_| !failed.is_asked)?;
        let rank = self.hosts.iter().position(|host| host == name)?;
        // Before the copy has begun, ranks have waited in vain for a program here that has failed.
        let is_local = self.is_local_killed || !self.has_begun() && self.local_failure().is_some();
        if is_local && !is_lost {
            return None;
        }
        if !is_lost && failed.exit == REPORTED {
            let own = self.failures.iter().find(|failure| failure.rank == Some(rank));
            if let Some(failure) = own.or(self.failures.first()) {
                return self.left_out_for(failure);
            }
        }
        // Of a rank that failed beside a lost host the message does not matter.
        let is_beside = *is_lost && failed.by_rank;
        let why = if is_beside { format!("node {name} is lost") } else { failed.message.clone() };
        let hint = failed.hints.first().filter(|_| !is_beside).cloned();
        Some(LeftOut { host: name.clone(), why, hint, exit: Exit::NODE_LOST })
    }

    /// Returns the host of a failure; `None` if it is this machine.
    fn left_out_for(&self, failure: &Failure) -> Option<LeftOut> {
        let host = self.hosts.get(failure.rank?)?.clone();
        let why = format!("{host}: {}", failure.text);
        Some(LeftOut { host, why, hint: failure.hint.clone(), exit: Exit::FILES })
    }

    /// Tells whether any host knows what it gets.
    pub(super) fn has_begun(&self) -> bool {
        self.ranks.iter().any(|state| state.total > 0)
    }

    /// Tells whether the job is to be ended because the program on this machine has failed.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        let local = self.failures.iter().find(|failure| failure.rank.is_none());
        let patience = if self.has_begun() { PATIENCE } else { Duration::ZERO };
        local.is_some_and(|failure| now.saturating_duration_since(failure.at) >= patience)
    }
}

/// Reader of what the ranks report.
pub(super) struct RankReports {
    pub(super) reports: SharedReports,
    /// Stdin of the program on this machine, which connects to the ranks; `None` if there is none.
    pub(super) to_local: Option<PipeWriter>,
}

impl LineReader for RankReports {
    fn take(&mut self, line: &[u8], _facts: Option<&StartFacts>) -> io::Result<()> {
        let Ok(report) = serde_json::from_slice::<Report>(line) else {
            messages::warn(String::from_utf8_lossy(line).trim_end());
            return Ok(());
        };
        if let (Report::Listening { .. }, Some(to_local)) = (&report, &mut self.to_local) {
            // Fails if the program has ended, which is noticed as that.
            let _ = to_local.write_all(line);
        }
        self.reports.lock().unwrap_or_else(PoisonError::into_inner).note(Source::Rank, report);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};

    const LOCAL: u32 = u32::MAX;

    fn reports(of_progress: Source) -> Reports {
        Reports::new(vec!["a".into(), "b".into()], "pushing", of_progress)
    }

    fn done(rank: u32, received: u64) -> Report {
        let (root, seconds) = ("/data".to_owned(), 1.0);
        Report::Done {
            rank,
            files: 2,
            bytes: 10,
            received,
            unchanged: 10 - received,
            seconds,
            root,
        }
    }

    fn failed(rank: u32, text: &str) -> Report {
        Report::Failed { rank, text: text.into(), hint: Some("df".into()) }
    }

    fn progress(rank: u32) -> Report {
        Report::Progress { rank, received: 1, written: 1, total: 9, waits_for: Limit::Wire }
    }

    /// Makes the failure of a job whose rank on `host` ended first.
    fn of_job(exit: Exit, host: &str, is_lost: bool) -> Failed {
        let name = host.to_owned();
        let failed = Failed::new(exit, format!("the rank on {host} ended"));
        Failed { host: Some(Box::new(FailedHost { name, is_lost })), by_rank: true, ..failed }
    }

    #[test]
    fn a_copy_is_complete_when_every_host_says_so() {
        let mut reports = reports(Source::Rank);
        reports.note(Source::Rank, done(0, 10));
        // The program here is the source.
        reports.note(Source::Local, done(LOCAL, 0));
        let failed = reports.complete().unwrap_err();
        assert!(failed.message.starts_with("b: the program"), "{}", failed.message);
        reports.note(Source::Rank, done(1, 4));
        let hosts = reports.complete().unwrap();
        assert_eq!((hosts[1].host.as_str(), hosts[1].received, hosts[1].files), ("b", 4, 2));
        assert_eq!(reports.received(), [("a".to_owned(), 10), ("b".to_owned(), 4)]);
    }

    #[test]
    fn of_a_fetch_the_program_here_reports() {
        let mut reports = reports(Source::Local);
        reports.note(Source::Rank, done(0, 3));
        assert!(reports.complete().is_err());
        reports.note(Source::Local, done(0, 10));
        reports.note(Source::Local, done(1, 10));
        assert_eq!(reports.complete().unwrap()[0].received, 10);
    }

    #[test]
    fn a_host_is_left_out_for_what_it_says_or_because_it_is_gone() {
        let mut reports = reports(Source::Rank);
        let loss = Failed { by_rank: false, ..of_job(Exit::NODE_LOST, "b", true) };
        let lost = reports.culprit(&loss).unwrap();
        assert_eq!((lost.why.as_str(), lost.exit), ("the rank on b ended", Exit::NODE_LOST));
        // Its program was killed.
        let lost = reports.culprit(&of_job(Exit(137), "a", false)).unwrap();
        assert_eq!((lost.why.as_str(), lost.exit), ("the rank on a ended", Exit::NODE_LOST));
        reports.note(Source::Rank, failed(0, "no space left"));
        let lost = reports.culprit(&of_job(REPORTED, "a", false)).unwrap();
        assert_eq!((lost.why.as_str(), lost.exit), ("a: no space left", Exit::FILES));
        assert_eq!(lost.hint.as_deref(), Some("df"));
        // A neighbour ended first, after it was told.
        let lost = reports.culprit(&of_job(REPORTED, "b", false)).unwrap();
        assert_eq!((lost.host.as_str(), lost.exit), ("a", Exit::FILES));
        // It noticed that its neighbour is gone.
        let lost = reports.culprit(&of_job(REPORTED, "b", true)).unwrap();
        assert_eq!((lost.why.as_str(), lost.exit), ("node b is lost", Exit::NODE_LOST));
        // No host is to blame for the user's wish.
        let asked = Failed { is_asked: true, ..of_job(Exit(130), "a", false) };
        assert!(reports.culprit(&asked).is_none());
        assert!(reports.culprit(&Failed::new(Exit::HOST, "")).is_none());
    }

    #[test]
    fn no_host_is_left_out_for_what_fails_here() {
        for has_begun in [false, true] {
            let mut reports = reports(Source::Rank);
            if has_begun {
                reports.note(Source::Rank, progress(0));
            }
            reports.note(Source::Local, failed(LOCAL, "cannot read x"));
            // Rank 0 was told.
            reports.note(Source::Rank, failed(LOCAL, "cannot read x"));
            assert!(reports.culprit(&of_job(REPORTED, "a", false)).is_none());
            let failure = reports.local_failure().unwrap();
            assert_eq!((failure.message.as_str(), failure.exit), ("cannot read x", Exit::FILES));
            assert_eq!(reports.is_over(Instant::now()), !has_begun);
            assert!(reports.is_over(Instant::now() + PATIENCE));
        }
    }

    #[test]
    fn a_rank_that_has_waited_for_the_program_here_is_not_left_out() {
        let mut reports = reports(Source::Rank);
        reports.note(Source::Local, failed(LOCAL, "cannot read x"));
        reports.note(Source::Rank, failed(0, "nobody has connected"));
        assert!(reports.culprit(&of_job(REPORTED, "a", false)).is_none());
        let mut killed = Reports::new(vec!["a".into()], "pushing", Source::Rank);
        killed.note(Source::Rank, progress(0));
        killed.note(Source::Rank, failed(0, "this machine has closed the connection"));
        assert!(killed.culprit(&of_job(REPORTED, "a", false)).is_some());
        killed.local_was_killed(&Failed::new(Exit::BUG, "it was killed"));
        assert!(killed.culprit(&of_job(REPORTED, "a", false)).is_none());
        assert_eq!(killed.local_failure().unwrap().message, "it was killed");
    }

    #[test]
    fn a_tree_is_read_or_it_is_said_why_not() {
        let told = |told: &[Report]| {
            let mut reports = reports(Source::Rank);
            assert!(reports.tree().is_none());
            told.iter().for_each(|report| reports.note(Source::Local, report.clone()));
            reports.local_is_over();
            reports.tree().unwrap()
        };
        let read = told(&[Report::Content { hash: rlaunch_copy::hash(b"x") }]);
        let content = rlaunch_copy::hash(b"x").0;
        assert!(matches!(read, Ok(TreeState::Read(found)) if found == content));
        let refused = [Report::TooLarge { files: 7, bytes: 9 }, failed(LOCAL, "it is large")];
        let Ok(TreeState::TooLarge { files, bytes, failed: why }) = told(&refused) else {
            panic!("it is read")
        };
        assert_eq!((files, bytes, &*why.message), (7, 9, "it is large"));
        for (reports, why) in [
            (&[failed(LOCAL, "cannot read x")][..], "cannot read x"),
            (&[], "the program that copies has ended without a word"),
        ] {
            assert_eq!(told(reports).err().unwrap().message, why);
        }
    }

    #[test]
    fn a_source_says_only_why_it_waits() {
        let mut push = reports(Source::Rank);
        push.note(Source::Local, progress(LOCAL));
        assert_eq!((push.local.waits_for, push.local.total), (Some(Limit::Wire), 0));
        let mut fetch = reports(Source::Local);
        fetch.note(Source::Rank, progress(1));
        let HostState { total, waits_for, source_waits_for, .. } = &fetch.ranks[1];
        assert_eq!((*total, *waits_for, *source_waits_for), (0, None, Some(Limit::Wire)));
        assert!(!fetch.has_begun());
    }

    #[test]
    fn a_host_that_shares_a_directory_has_the_files_of_the_other() {
        let mut push = reports(Source::Rank);
        push.note(Source::Rank, Report::Shares { rank: 1, with: 0 });
        assert!(push.complete().is_err());
        push.note(Source::Rank, done(0, 9));
        let copies = push.complete().unwrap();
        let of = |copy: &HostCopy| (copy.host.clone(), copy.received, copy.bytes);
        let bytes = copies[0].bytes;
        assert_eq!(
            copies.iter().map(of).collect::<Vec<_>>(),
            [("a".into(), 9, bytes), ("b".into(), 0, bytes)]
        );
    }

    #[test]
    fn the_disk_is_waited_for_only_where_files_arrive() {
        let writing =
            Report::Progress { rank: 0, received: 9, written: 9, total: 9, waits_for: Limit::Disk };
        let program = "the end of the program that copies on this machine";
        let mut fetch = reports(Source::Local);
        assert_eq!(fetch.local_wait(), program);
        fetch.note(Source::Local, writing.clone());
        assert_eq!(fetch.local_wait(), "the disk of this machine");
        assert_eq!(fetch.local_progress(), (9, 9, 0));
        fetch.note(Source::Local, done(0, 9));
        assert_eq!((fetch.local_wait(), fetch.local_progress()), (program, (9, 10, 1)));
        let mut push = reports(Source::Rank);
        push.note(Source::Rank, writing);
        assert_eq!(push.local_wait(), program);
    }

    #[test]
    fn much_may_take_long_to_write_or_to_read_again() {
        let large = |rank| Report::Progress {
            rank,
            received: 0,
            written: 0,
            total: 100 * SLOWEST_DISK,
            waits_for: Limit::Disk,
        };
        for (source, seconds) in [(Source::Local, 200), (Source::Rank, 100)] {
            let mut reports = reports(source);
            assert_eq!(reports.patience_with_local(), PATIENCE_WITH_LOCAL);
            reports.note(source, large(0));
            reports.note(source, large(1));
            let expected = PATIENCE_WITH_LOCAL + Duration::from_secs(seconds);
            assert_eq!(reports.patience_with_local(), expected);
        }
    }

    #[test]
    fn a_patch_is_waited_for_while_the_program_here_runs() {
        for bytes in [Some(b"patch".to_vec()), None] {
            let mut reports = reports(Source::Rank);
            assert!(reports.patch().is_none());
            reports.note(Source::Local, Report::Patch { bytes: bytes.clone().map(Hex) });
            assert_eq!(reports.patch().unwrap().unwrap(), bytes);
        }
        let mut reports = reports(Source::Rank);
        reports.local_is_over();
        assert_eq!(reports.patch().unwrap().unwrap_err().exit, Exit::BUG);
        let text = "x changed after its copy had begun";
        reports.note(Source::Local, Report::Failed { rank: LOCAL, text: text.into(), hint: None });
        assert_eq!(reports.patch().unwrap().unwrap_err().message, text);
    }

    #[test]
    fn ranks_are_made_known_to_the_program_here() {
        let (pipe, to_local) = io::pipe().unwrap();
        let shared = Arc::new(Mutex::new(reports(Source::Rank)));
        let mut reader = RankReports { reports: Arc::clone(&shared), to_local: Some(to_local) };
        let listening = Report::Listening { rank: 0, addresses: Vec::new(), port: 7 };
        let mut line = serde_json::to_vec(&listening).unwrap();
        line.push(b'\n');
        reader.take(&line, None).unwrap();
        let mut passed_on = String::new();
        BufReader::new(pipe).read_line(&mut passed_on).unwrap();
        assert_eq!(passed_on.as_bytes(), line);
        reader.take(b"no report\n", None).unwrap();
        assert!(shared.lock().unwrap().complete().is_err());
    }
}
