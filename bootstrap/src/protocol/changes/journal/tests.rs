//! The journal on a host that crashes, refuses and boots at any moment.

use super::*;
use crate::protocol::network::NetworkChange;
use std::collections::BTreeMap;

/// Numbers from a seed (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// Files and what runs. A file `/boot/KEY` sets a key at boot.
#[derive(Clone, Debug, Default, PartialEq)]
struct State {
    files: BTreeMap<String, String>,
    running: BTreeMap<String, String>,
}

impl State {
    fn boot(&mut self) {
        let settings = self.files.iter().filter_map(|(path, content)| {
            Some((path.strip_prefix("/boot/")?.to_owned(), content.clone()))
        });
        self.running = settings.collect();
    }

    fn set(&mut self, key: &str, value: Option<&str>) {
        match value {
            Some(value) => self.running.insert(key.to_owned(), value.to_owned()),
            None => self.running.remove(key),
        };
    }
}

/// Host in which one in `odds` operations goes wrong.
struct Faulty {
    state: State,
    disk: Vec<u8>,
    random: Random,
    odds: u64,
    is_dead: bool,
    has_booted: bool,
}

enum Fault {
    None,
    /// The operation fails, and has happened or not.
    Refused {
        is_done: bool,
    },
    /// The process is killed, before the operation or after it; the host may boot as well.
    Crash {
        is_done: bool,
    },
}

impl Faulty {
    fn fault(&mut self) -> Fault {
        if self.is_dead {
            return Fault::Crash { is_done: false };
        }
        if self.odds == 0 || self.random.below(self.odds) != 0 {
            return Fault::None;
        }
        let is_done = self.random.below(2) == 0;
        if self.random.below(2) == 0 {
            Fault::Refused { is_done }
        } else {
            Fault::Crash { is_done }
        }
    }

    /// Carries out an operation, or the part of it that a fault leaves.
    fn act(&mut self, operation: impl FnOnce(&mut State)) -> Result<(), String> {
        match self.fault() {
            Fault::None => operation(&mut self.state),
            Fault::Refused { is_done } => {
                if is_done {
                    operation(&mut self.state);
                }
                return Err("refused".into());
            }
            Fault::Crash { is_done } => {
                if is_done {
                    operation(&mut self.state);
                }
                return self.die();
            }
        }
        Ok(())
    }

    fn die<T>(&mut self) -> Result<T, String> {
        if !self.is_dead && self.random.below(2) == 0 {
            self.state.boot();
            self.has_booted = true;
        }
        self.is_dead = true;
        Err("dead".into())
    }
}

/// Key and value that a change sets.
fn setting(change: &Change) -> Option<(String, Option<String>)> {
    match change {
        Change::File { .. } | Change::Edit { .. } => None,
        Change::Run { line, .. } | Change::RunUntilBoot { line, .. } => {
            let (key, value) = line.split_once('=').unwrap();
            Some((key.to_owned(), Some(value.to_owned())))
        }
        Change::Network(NetworkChange::SetMtu { interface, mtu }) => {
            Some((interface.clone(), Some(mtu.to_string())))
        }
        Change::Network(other) => panic!("{other}"),
    }
}

impl ChangedHost for Faulty {
    fn look(&mut self, change: &Change) -> Result<Option<Was>, String> {
        self.act(|_| ())?;
        let was = match change {
            Change::File { path, content, .. } => match self.state.files.get(path) {
                present if present == content.as_ref() => return Ok(None),
                Some(content) => {
                    let content = content.clone();
                    Was::File { mode: 0o644, user: 0, group: 0, content }
                }
                None => Was::NoFile { directories: Vec::new() },
            },
            _ => {
                let (key, value) = setting(change).unwrap();
                let present = self.state.running.get(&key).cloned();
                if present == value && matches!(change, Change::Network(_)) {
                    return Ok(None);
                }
                present.map_or(Was::Nothing, Was::Saved)
            }
        };
        Ok(Some(was))
    }

    fn make(&mut self, change: &Change, _: &Was) -> Result<Option<Was>, String> {
        let made = self.act(|state| match change {
            Change::File { path, content: Some(content), .. } => {
                state.files.insert(path.clone(), content.clone());
            }
            Change::File { path, content: None, .. } => drop(state.files.remove(path)),
            _ => {
                let (key, value) = setting(change).unwrap();
                state.set(&key, value.as_deref());
            }
        });
        made.map(|()| None)
    }

    fn restore(&mut self, change: &Change, was: &Was) -> Result<(), String> {
        self.act(|state| match (change, was) {
            (Change::File { path, .. }, Was::File { content, .. }) => {
                state.files.insert(path.clone(), content.clone());
            }
            (Change::File { path, .. }, _) => drop(state.files.remove(path)),
            (_, Was::Saved(value)) => state.set(&setting(change).unwrap().0, Some(value)),
            _ => state.set(&setting(change).unwrap().0, None),
        })
    }

    fn append(&mut self, record: &Record) -> Result<(), String> {
        let line = record.to_line();
        match self.fault() {
            Fault::None => self.disk.extend(line.bytes()),
            fault => {
                if !self.is_dead {
                    let part = self.random.below(line.len() as u64) as usize;
                    self.disk.extend(line.bytes().take(part));
                }
                // A disk that refuses a line leaves no part of it, or whoever appends next takes it away.
                return match fault {
                    Fault::Crash { .. } => self.die(),
                    _ => {
                        let whole = Journal::parse(&self.disk).1;
                        self.disk.truncate(whole);
                        Err("no space left".into())
                    }
                };
            }
        }
        Ok(())
    }

    fn clear(&mut self) -> Result<(), String> {
        self.act(|_| ())?;
        self.disk.clear();
        Ok(())
    }
}

fn file(path: &str, content: Option<&str>) -> Change {
    let content = content.map(str::to_owned);
    Change::File { path: path.into(), mode: 0o644, content, expected: None }
}

fn run(line: &str) -> Change {
    let undo = Some(format!("undo {line}"));
    Change::Run { line: line.into(), save: Some("save".into()), undo }
}

/// Changes of an `up`: files that are new, changed and gone, what runs and what a boot sets again. The file that sets
/// something at boot comes behind the change to what runs: else a boot between the two would make the change unseen.
fn changes() -> Vec<Change> {
    vec![
        file("/etc/new", Some("new")),
        file("/etc/hosts", Some("old\nnew")),
        Change::Network(NetworkChange::SetMtu { interface: "eth1".into(), mtu: 9000 }),
        file("/boot/eth1", Some("9000")),
        file("/etc/gone", None),
        run("sysctl=1"),
        run("service=on"),
        file("/etc/hosts", Some("old\nnew\nnewer")),
    ]
}

/// Starts a process of the agent: reads the journal and cuts off what is not whole.
fn start(host: &mut Faulty) -> Journal {
    host.is_dead = false;
    let (journal, whole) = Journal::parse(&host.disk);
    host.disk.truncate(whole);
    journal
}

fn up(host: &mut Faulty) -> bool {
    let mut journal = start(host);
    changes().iter().all(|change| {
        !matches!(journal.apply(host, change, "rlaunch up", 1), ChangeOutcome::Failed(_))
    })
}

fn down(host: &mut Faulty) {
    let mut journal = start(host);
    for id in journal.pending(0) {
        journal.undo(host, id, 2);
    }
    // It stays if it cannot be removed.
    let _ = journal.clear(host);
}

/// Ups and downs with faults in them, then one down without. The host must be as it was.
fn faults(seed: u64) -> Result<(), String> {
    let mut state = State::default();
    for (path, content) in [("/etc/hosts", "old"), ("/etc/gone", "x"), ("/boot/sysctl", "0")] {
        state.files.insert(path.into(), content.into());
    }
    state.boot();
    let booted = state.clone();
    state.set("eth1", Some("1500"));
    let before = state.clone();
    // A seed of small numbers would begin with small ones.
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    random.below(2);
    let odds = 2 + random.below(40);
    let mut host =
        Faulty { state, disk: Vec::new(), random, odds, is_dead: false, has_booted: false };
    for _ in 0..1 + host.random.below(4) {
        if host.random.below(4) == 0 {
            down(&mut host);
        } else {
            up(&mut host);
        }
    }
    host.odds = 0;
    down(&mut host);
    let fail = |what: &str| Err(format!("seed {seed}: {what}\n{before:#?}\n{:#?}", host.state));
    if host.state.files != before.files {
        return fail("files");
    }
    let keys = ["eth1", "sysctl", "service"];
    let is_as = |other: &State, key: &str| host.state.running.get(key) == other.running.get(key);
    let is_restored = |key: &&str| is_as(&before, key) || (host.has_booted && is_as(&booted, key));
    if !keys.iter().all(is_restored) {
        return fail("what runs");
    }
    if host.disk.is_empty() { Ok(()) } else { fail("the journal is left") }
}

#[test]
fn after_any_fault_down_restores_the_host() {
    for seed in 1..=10_000 {
        faults(seed).unwrap();
    }
}

#[test]
fn a_second_up_changes_nothing() {
    let host = || Faulty {
        state: State::default(),
        disk: Vec::new(),
        random: Random(1),
        odds: 0,
        is_dead: false,
        has_booted: false,
    };
    let mut host = host();
    let changes = [
        file("/etc/new", Some("new")),
        Change::Network(NetworkChange::SetMtu { interface: "eth1".into(), mtu: 9000 }),
    ];
    let mut journal = start(&mut host);
    for wanted in [ChangeOutcome::Made, ChangeOutcome::Already] {
        for change in &changes {
            assert_eq!(journal.apply(&mut host, change, "rlaunch up", 1), wanted);
        }
    }
    assert_eq!(journal.state().pending, 2);
}

#[test]
fn what_is_begun_and_not_done_is_undone_too() {
    let change = file("/etc/new", Some("new"));
    let was = Was::NoFile { directories: Vec::new() };
    let begun = Event::Begun { by: "rlaunch up".into(), change, was };
    let line = Record { id: 7, time: 1, event: begun }.to_line();
    let (journal, whole) = Journal::parse(line.as_bytes());
    assert_eq!((journal.pending(0), journal.pending(8), whole), (vec![7], vec![], line.len()));
    assert_eq!(journal.next_id(), 8);
}

#[test]
fn lines_that_cannot_be_read_are_counted_and_kept() {
    let text = "1 1 undone\t\\x01\\x01\\x03\n1 2 dreamt\t\\x01\\x02\\x04\n1 3 un";
    let (mut journal, whole) = Journal::parse(text.as_bytes());
    assert_eq!(whole, text.rfind('\n').unwrap() + 1);
    assert_eq!(journal.state(), JournalState { pending: 0, unreadable: 1, was_torn: true });
    let mut host = Faulty {
        state: State::default(),
        disk: text.into(),
        random: Random(1),
        odds: 0,
        is_dead: false,
        has_booted: false,
    };
    journal.clear(&mut host).unwrap();
    assert_eq!(host.disk, text.as_bytes(), "a later version may know the line");
    assert_eq!(Journal::parse(b"\xff\xfe\n").0.state().unreadable, 1);
}

#[test]
fn lines_of_a_journal_stay_as_they_are() {
    let (path, line) = (|| "/etc/x".to_owned(), || "a=1".to_owned());
    let interface = "eth1".to_owned();
    let changes = [
        (file("/etc/x", Some("é\n")), Was::NoFile { directories: vec!["/etc".into()] }),
        (
            Change::Edit { path: path(), line: line() },
            Was::File { mode: 0o600, user: 0, group: 1000, content: "\t\"\\".into() },
        ),
        (
            Change::Run { line: line(), save: None, undo: Some("b\nc".into()) },
            Was::Saved("0".into()),
        ),
        (
            Change::Network(NetworkChange::SetMtu { interface, mtu: 9000 }),
            Was::Network(vec![0, 255]),
        ),
    ];
    let begun = changes.map(|(change, was)| Event::Begun { by: "rlaunch up".into(), change, was });
    let done = Event::Done { was: Some(Was::Nothing) };
    let until_boot = Event::Begun {
        by: "rlaunch up".into(),
        change: Change::RunUntilBoot { line: line(), save: None, undo: Some("b".into()) },
        was: Was::SavedInBoot { boot: "id".into(), saved: "0".into() },
    };
    let ends = [done, Event::Failed { cause: "no\nspace".into() }, Event::Undone, until_boot];
    let records: Vec<Record> = (1..)
        .zip(begun.into_iter().chain(ends))
        .map(|(id, event)| Record { id, time: 5, event })
        .collect();
    let lines: String = records.iter().map(Record::to_line).collect();
    assert_eq!(lines, include_str!("lines.txt"));
    let read = lines.lines().map(|line| Record::from_line(line.as_bytes()).unwrap());
    assert_eq!(read.collect::<Vec<Record>>(), records);
}

#[test]
fn every_byte_survives_and_a_line_that_was_cut_or_ends_in_zeros_is_not_read() {
    let line = "\0\u{1}\t\n\r\"'\\\x7f\u{85}é✓ a".into();
    let change = Change::Run { line, save: None, undo: None };
    let was = Was::Network((0..=255).collect());
    let event = Event::Begun { by: "rlaunch up".into(), change, was };
    let record = Record { id: u64::MAX, time: 0, event };
    let line = record.to_line();
    let whole = line.strip_suffix('\n').unwrap();
    assert!(!whole.contains('\n') && whole.matches('\t').count() == 1, "{whole}");
    assert_eq!(Record::from_line(whole.as_bytes()).as_ref(), Some(&record));
    // Zeros are left of blocks that the disk has not written.
    let zeros = |from: usize| [&whole.as_bytes()[..from], &vec![0; whole.len() - from]].concat();
    for cut in 0..whole.len() {
        assert_eq!(Record::from_line(&whole.as_bytes()[..cut]), None, "{cut}");
        assert_eq!(Record::from_line(&zeros(cut)), None, "{cut}");
    }
    assert_eq!(Record::from_line(format!("{whole} ").as_bytes()), None);
}

/// The rest of a line that a disk has refused, which could not be taken away.
#[test]
fn a_part_of_a_line_does_not_change_the_next() {
    let lines = || include_str!("lines.txt").lines().map(str::as_bytes);
    for (part, line) in lines().flat_map(|part| lines().map(move |line| (part, line))) {
        let record = Record::from_line(line);
        assert!(record.is_some());
        for cut in 0..=part.len() {
            let glued = [&part[..cut], line].concat();
            assert_eq!(Record::from_line(&glued), record, "{}", glued.escape_ascii());
        }
    }
}

#[test]
fn only_what_is_written_is_read() {
    let (bytes, text) = (b"'\"\\\n\xc3\xa9\xc2\x85\xff", r#"'"\\\né\xc2\x85\xff"#);
    assert_eq!(escaped(bytes), text);
    assert_eq!(unescaped(text.as_bytes()).as_deref(), Some(&bytes[..]));
    let others = [r"\'", r"\0", r"\x41", r"\x0a", r"\xFF", r"\x0", r"\", "\0", "\t", "\u{85}"];
    for other in others.map(str::as_bytes).into_iter().chain([&b"\xff"[..]]) {
        assert_eq!(unescaped(other), None, "{}", other.escape_ascii());
    }
}

#[test]
fn what_others_have_written_since_stays() {
    let (was, ours) =
        ("127.0.0.1 localhost\n", "127.0.0.1 localhost\n# rlaunch\n10.0.0.2 b\n# end\n");
    assert_eq!(taken_out(was, ours, ours).as_deref(), Some(was));
    assert_eq!(taken_out(was, ours, was).as_deref(), Some(was), "it is taken out already");
    let since = ours.replace("localhost\n", "localhost\n10.9.9.9 own\n") + "# more\n";
    assert_eq!(
        taken_out(was, ours, &since).as_deref(),
        Some("127.0.0.1 localhost\n10.9.9.9 own\n# more\n")
    );
    let replaced = taken_out("a\nold\nz\n", "a\nnew\nz\n", "a\nnew\nz\nmore\n");
    assert_eq!(replaced.as_deref(), Some("a\nold\nz\nmore\n"));
    assert_eq!(taken_out(was, ours, "127.0.0.1 localhost\n10.0.0.3 b\n"), None);
    let twice = format!("{ours}{ours}");
    assert_eq!(taken_out(was, ours, &twice), None);
    assert_eq!(taken_out("a\nb\n", "a\n", "a\nc\n"), None, "only lines were removed");
}
