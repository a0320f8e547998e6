//! `cargo lab soak copy`: `rlaunch push` to three hosts, each time in a random trouble at a random moment. Afterwards every
//! file is the old or the new one, the hosts that had no trouble have all of them, and the next push makes every host whole.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{Tally, install, left_on, stacks};
use crate::command::background::Background;
use crate::command::{at_once, last_lines, run as run_program, wait_until};
use crate::files::{make_dir, remove_dir};
use crate::setup::{self, PackageSet};
use crate::{Account, Cut, Lab, LabError, Options};

mod tree;
use tree::{Tree, Wrong};

const NAME: &str = "soakcopy";
const NET: [u8; 2] = [10, 86];
/// Number of concurrent copies, and of the hosts of each.
const CONCURRENT: usize = 3;
const CHAIN: usize = 3;
/// Directory of hosts that trees go to, below the home directory.
const PLACE: &str = "soak-copy";
/// File that takes the space of a disk.
const FILLER: &str = "filler";
/// Size of a small disk: enough for a tree and for what replaces it.
const DISK: &str = "size=64m";
/// Rates at which copies take from a moment to a few seconds.
const RATES: [Option<&str>; 3] = [None, Some("16M"), Some("4M")];
/// Maximum time until the trouble, in milliseconds.
const LATEST: u64 = 3000;
/// Time limit of a copy, with a host that is given up.
const BOUND: Duration = Duration::from_secs(90);
/// Time limit for all to end that a copy has started.
const UNATTENDED: Duration = Duration::from_secs(20);
/// Variable by which programs on the launch node are told from those of other copies.
const MARK: &str = "RLAUNCH_SOAK_COPY";

/// What happens to a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    /// A host is cut off, and notices or does not.
    Cut(Cut),
    /// A host loses power.
    Crash,
    /// What rlaunch runs on a host is killed.
    Killed,
    /// The disk of a host is full.
    Full,
    /// The rlaunch that pushes gets a signal.
    Pusher(Signal),
}

const TROUBLES: [Trouble; 8] = [
    Trouble::Cut(Cut::Carrier),
    Trouble::Cut(Cut::Silent),
    Trouble::Crash,
    Trouble::Killed,
    Trouble::Full,
    Trouble::Pusher(Signal::SIGKILL),
    Trouble::Pusher(Signal::SIGTERM),
    Trouble::Pusher(Signal::SIGINT),
];

/// Runs `copies` copies, which `seed` chooses; returns whether all were right.
pub(super) fn run(copies: usize, seed: u64, rlaunch: &Path) -> Result<bool, LabError> {
    setup::install(PackageSet::Lab)?;
    let options = Options { net: NET, ..Options::new(NAME, CONCURRENT * CHAIN) };
    Lab::with_fresh(&options, |lab| soak(&lab, rlaunch, copies, seed))
}

fn soak(lab: &Lab, rlaunch: &Path, copies: usize, seed: u64) -> Result<bool, LabError> {
    let rlaunch = install(lab, rlaunch)?;
    let tally = Tally::new(copies, seed, CONCURRENT);
    let hosts = lab.hosts();
    at_once(hosts.chunks(CHAIN).enumerate(), |(group, hosts)| {
        let mut field = Field::new(lab, &rlaunch, hosts, group)?;
        tally.run_lane(group, |number| {
            let trial = Trial::draw(seed, number);
            let Err(error) = field.attempt(&trial) else { return Ok(None) };
            field.reset(&trial)?;
            Ok(Some(format!("{trial:?}: {}", error.describe())))
        })?;
        remove_dir(&field.source)
    })?;
    Ok(tally.conclude("copies in random troubles"))
}

/// One copy of the soak.
#[derive(Debug)]
struct Trial {
    number: usize,
    trouble: Trouble,
    /// Index of the host that has the trouble.
    struck: usize,
    /// Time from the start of rlaunch to the trouble.
    delay: Duration,
    rate: Option<&'static str>,
    /// Whether hosts have nothing yet; else they have the tree of the copy before.
    is_first: bool,
    /// Seed of the tree.
    content: u64,
}

impl Trial {
    fn draw(seed: u64, number: usize) -> Trial {
        let mut random = Rng::with_seed(seed.wrapping_add(number as u64));
        Trial {
            number,
            trouble: TROUBLES[random.usize(..TROUBLES.len())],
            struck: random.usize(..CHAIN),
            delay: Duration::from_millis(random.u64(..LATEST)),
            rate: RATES[random.usize(..RATES.len())],
            is_first: random.u32(..4) == 0,
            content: random.u64(..),
        }
    }

    /// Tells whether a code may be that of the copy. The trouble may come after its end, and before a host has answered.
    fn is_true(&self, code: Option<i32>) -> bool {
        let ends: &[Option<i32>] = match self.trouble {
            Trouble::Cut(_) | Trouble::Crash | Trouble::Killed => {
                &[Some(201), Some(202), Some(206)]
            }
            Trouble::Full => &[Some(203)],
            Trouble::Pusher(Signal::SIGTERM) => &[Some(143), None],
            Trouble::Pusher(Signal::SIGINT) => &[Some(130), None],
            // It ended by the signal, so it has no code.
            Trouble::Pusher(_) => &[None],
        };
        code == Some(0) || ends.contains(&code)
    }
}

/// Hosts of a chain, and what they have.
struct Field<'a> {
    lab: &'a Lab,
    rlaunch: &'a Path,
    hosts: &'a [String],
    /// Directory of this machine that is pushed.
    source: PathBuf,
    /// What all hosts have, below a directory of its name.
    tree: Tree,
}

impl Field<'_> {
    fn new<'a>(
        lab: &'a Lab,
        rlaunch: &'a Path,
        hosts: &'a [String],
        group: usize,
    ) -> Result<Field<'a>, LabError> {
        let source = rlaunch.with_file_name(format!("source-{group}")).join("tree");
        let field = Field { lab, rlaunch, hosts, source, tree: Tree::default() };
        make_dir(&field.source)?;
        let mut first = lab.exec_in(Account::Root, Path::new("/"));
        first.arg(rlaunch).args(["-H", &hosts.join(","), "true"]);
        run_program("run a first job", &mut first)?;
        Ok(field)
    }

    /// Pushes into a trouble, looks at what is there, and pushes again.
    fn attempt(&mut self, trial: &Trial) -> Result<(), LabError> {
        if trial.is_first {
            self.clear()?;
        }
        let new = self.tree.next(&mut Rng::with_seed(trial.content));
        new.write(&self.source, &self.tree)?;
        let olds = self.olds(trial)?;
        let mut push = Background::start(self.push(trial, trial.rate))?;
        thread::sleep(trial.delay);
        self.strike(trial, &push)?;
        let status = push.wait(BOUND)?;
        let said = last_lines(&push.stderr(), 15);
        let Some(status) = status else {
            let waits = stacks::of(self.lab);
            return Err(LabError::Unexpected(format!("hung\n{waits}\n{said}")));
        };
        self.mend(trial)?;
        let wrong = |what: String| LabError::Unexpected(format!("{status}: {what}\n{said}"));
        if !trial.is_true(status.code()) {
            return Err(wrong("is not the end of this trouble".into()));
        }
        self.must_be_idle(trial).map_err(|error| wrong(error.describe()))?;
        let blamed = blamed(&said);
        let struck = self.hosts[trial.struck].as_str();
        if blamed.is_some_and(|blamed| blamed != struck) {
            return Err(wrong(format!("{struck} had the trouble")));
        }
        for (host, old) in self.hosts.iter().zip(&olds) {
            // The others have all of it where one was left out, and everybody where none was.
            let is_whole = status.success() || blamed.is_some_and(|blamed| blamed != host);
            let old = if is_whole { &new } else { old };
            self.check(host, old, &new).map_err(|of| wrong(format!("{host}: {of}")))?;
        }
        self.finish(trial, new)
    }

    /// Pushes again, without trouble, until all is there.
    fn finish(&mut self, trial: &Trial, new: Tree) -> Result<(), LabError> {
        run_program("push again", &mut self.push(trial, None))?;
        self.must_be_idle(trial)?;
        for host in self.hosts {
            let found = self.check(host, &new, &new).and_then(|()| {
                let left = Tree::read(&self.place(host)?.join("tree"))?.beside(&new);
                if left.is_empty() { Ok(()) } else { Err(Wrong::Left(left)) }
            });
            found.map_err(|of| LabError::Unexpected(format!("{host} after the end: {of}")))?;
        }
        self.unmount(trial)?;
        // What was on a small disk is gone.
        if trial.trouble == Trouble::Full {
            return self.clear();
        }
        self.tree = new;
        Ok(())
    }

    /// Returns what each host has before the copy. One whose disk is to become full gets a small one, with nothing on it.
    fn olds(&self, trial: &Trial) -> Result<Vec<Tree>, LabError> {
        let mut olds = vec![self.tree.clone(); self.hosts.len()];
        if trial.trouble == Trouble::Full {
            let host = &self.hosts[trial.struck];
            make_dir(&self.place(host)?)?;
            let mut mount = self.on(host)?;
            mount.args(["mount", "-t", "tmpfs", "-o", DISK, "none"]).arg(on_host());
            run_program("mount a small disk", &mut mount)?;
            olds[trial.struck] = Tree::default();
        }
        Ok(olds)
    }

    fn push(&self, trial: &Trial, rate: Option<&str>) -> Command {
        let mut push = self.lab.exec_in(Account::Root, Path::new("/"));
        push.arg(self.rlaunch).args(["push", "-H", &self.hosts.join(",")]);
        push.args(rate.into_iter().flat_map(|rate| ["--limit", rate]));
        push.arg(format!("{}:{PLACE}", self.source.display()));
        // Its index is as old as the hosts' ones.
        push.env("XDG_CACHE_HOME", self.source.with_file_name("cache"));
        push.env(MARK, mark(trial));
        push
    }

    /// Makes the trouble happen.
    fn strike(&self, trial: &Trial, push: &Background) -> Result<(), LabError> {
        let host = &self.hosts[trial.struck];
        match trial.trouble {
            Trouble::Cut(kind) => self.lab.cut(host, kind),
            Trouble::Crash => self.lab.crash(host),
            Trouble::Killed => kill_on(self.lab, host, is_rlaunch),
            Trouble::Full => {
                let filler = format!("of={}", on_host().join(FILLER).display());
                let mut fill = self.on(host)?;
                fill.args(["dd", "if=/dev/zero", &filler, "bs=64k", "status=none"]);
                // It fails when the disk is full.
                fill.output().map(drop).map_err(LabError::io("fill a disk"))
            }
            Trouble::Pusher(signal) => {
                // Fails if it has ended.
                let _ = push.signal(signal);
                Ok(())
            }
        }
    }

    /// Undoes the trouble, but keeps what was copied.
    fn mend(&self, trial: &Trial) -> Result<(), LabError> {
        let host = &self.hosts[trial.struck];
        match trial.trouble {
            Trouble::Cut(_) => self.lab.heal(host),
            Trouble::Crash => self.lab.boot(host),
            Trouble::Full => {
                let filler = self.place(host)?.join(FILLER);
                fs::remove_file(&filler).map_err(LabError::io("empty a disk"))
            }
            Trouble::Killed | Trouble::Pusher(_) => Ok(()),
        }
    }

    /// Waits until nothing of a copy runs or is left, here and on its hosts.
    fn must_be_idle(&self, trial: &Trial) -> Result<(), LabError> {
        let mut left = Vec::new();
        let idle = wait_until(UNATTENDED, "a copy to end", || {
            left = marked(&mark(trial));
            for host in self.hosts {
                left.extend(left_on(self.lab, host)?);
            }
            Ok(left.is_empty())
        });
        idle.map_err(|_| LabError::Unexpected(format!("left {left:#?}")))
    }

    /// Checks that each file of `new` on a host is the one of `old` or the new one.
    fn check(&self, host: &str, old: &Tree, new: &Tree) -> Result<(), Wrong> {
        Tree::read(&self.place(host)?.join("tree"))?.must_be_between(old, new)
    }

    /// Makes a command that runs on a host.
    fn on(&self, host: &str) -> Result<Command, LabError> {
        self.lab.on(host, Account::Root)
    }

    /// Returns the directory of a host that trees go to, as a path on this machine.
    fn place(&self, host: &str) -> Result<PathBuf, LabError> {
        self.lab.path(host, &on_host())
    }

    fn unmount(&self, trial: &Trial) -> Result<(), LabError> {
        if trial.trouble != Trouble::Full {
            return Ok(());
        }
        let mut unmount = self.on(&self.hosts[trial.struck])?;
        run_program("unmount a small disk", unmount.arg("umount").arg(on_host())).map(drop)
    }

    /// Removes what hosts have.
    fn clear(&mut self) -> Result<(), LabError> {
        self.tree = Tree::default();
        self.hosts.iter().try_for_each(|host| remove_dir(&self.place(host)?))?;
        remove_dir(&self.source)?;
        make_dir(&self.source)
    }

    /// Ends and removes all that a failed copy has left.
    fn reset(&mut self, trial: &Trial) -> Result<(), LabError> {
        for host in self.hosts {
            self.lab.boot(host)?;
            kill_on(self.lab, host, |_| true)?;
        }
        // Fails if it is not mounted.
        let _ = self.unmount(trial);
        for host in self.hosts {
            for directory in ["/tmp", "/dev/shm"] {
                let entries = fs::read_dir(self.lab.path(host, Path::new(directory))?);
                for path in entries.into_iter().flatten().flatten().map(|entry| entry.path()) {
                    let _ = fs::remove_dir_all(&path).or_else(|_| fs::remove_file(&path));
                }
            }
        }
        self.clear()
    }
}

/// Returns the directory that trees go to, as a path on a host.
fn on_host() -> PathBuf {
    Account::Root.home().join(PLACE)
}

/// Returns the host that a push says it has left out.
fn blamed(said: &str) -> Option<&str> {
    said.lines().find_map(|line| line.split_once("not complete: ")).map(|(_, host)| host.trim())
}

fn mark(trial: &Trial) -> String {
    format!("{}-{}", std::process::id(), trial.number)
}

/// Lists programs of this machine that a push with this mark has started, and that have not ended.
fn marked(mark: &str) -> Vec<String> {
    let variable = format!("{MARK}={mark}");
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let variables = fs::read(entry.path().join("environ")).unwrap_or_default();
        if variables.split(|byte| *byte == 0).any(|one| one == variable.as_bytes()) {
            let words = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            found.push(String::from_utf8_lossy(&words).replace('\0', " "));
        }
    }
    found
}

/// Tells whether a program, by its path, is one that rlaunch runs on a host.
fn is_rlaunch(program: &str) -> bool {
    ["rlaunch-worker", "rlaunch-copier"].iter().any(|name| program.ends_with(name))
}

/// Kills programs on a host. All are stopped first, so that none sees the end of another.
fn kill_on(lab: &Lab, host: &str, is_meant: impl Fn(&str) -> bool) -> Result<(), LabError> {
    let mut found = lab.processes(host)?;
    found.retain(|process| process.args.first().is_some_and(|program| is_meant(program)));
    for signal in [Signal::SIGSTOP, Signal::SIGKILL] {
        for process in &found {
            // Fails if it has ended.
            let _ = kill(Pid::from_raw(process.pid), signal);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn two_hundred_copies_have_every_trouble() {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for number in 0..200 {
            *counts.entry(format!("{:?}", Trial::draw(1, number).trouble)).or_default() += 1;
        }
        assert_eq!(counts.len(), TROUBLES.len(), "{counts:?}");
        assert!(counts.values().all(|count| *count >= 8), "{counts:?}");
    }

    #[test]
    fn the_host_that_was_left_out_is_read() {
        let said =
            "warning: node b is lost; going on with a, c\nerror: not complete: b\n  node b\n";
        assert_eq!(blamed(said), Some("b"));
        assert_eq!(blamed("error: node b is lost\n"), None);
    }

    #[test]
    fn ends_suit_troubles() {
        let trial = |trouble| Trial { trouble, ..Trial::draw(1, 0) };
        let killed = trial(Trouble::Pusher(Signal::SIGKILL));
        assert!(killed.is_true(None) && killed.is_true(Some(0)) && !killed.is_true(Some(206)));
        assert!(!trial(Trouble::Full).is_true(None) && trial(Trouble::Crash).is_true(Some(206)));
        assert!(!trial(Trouble::Killed).is_true(Some(210)));
    }

    #[test]
    fn programs_are_found_by_their_mark() {
        let mut sleep = Command::new("sleep");
        sleep.arg("60").env(MARK, "test-of-marks");
        let running = Background::start(sleep).unwrap();
        wait_until(BOUND, "a program", || Ok(marked("test-of-marks") == ["sleep 60 "])).unwrap();
        drop(running);
        assert!(marked("test-of-marks").is_empty());
    }
}
