//! Part `sync`: what `--sync` adds to the start of a job.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use fastrand::Rng;

use super::{Field, Measured, fill};
use crate::bench::contender::check_names;
use crate::bench::table::{Bar, Rounds, Row, Table};
use crate::command::run;
use crate::files::make_dir;
use crate::{Account, LabError};

/// Number of hosts.
pub(super) const HOSTS: usize = 8;
/// Number and size of the files of the tree, and its name.
const FILES: u64 = 5000;
const BYTES: u64 = 4096;
const TREE: &str = "tree";
/// File that changes.
const CHANGED: &str = "00/0";
/// Time after which no file is so new that its time proves nothing.
const SETTLED: Duration = Duration::from_secs(3);

const UNCHANGED_BAR: Bar = Bar::Median(100.0);
const CHANGED_BAR: Bar = Bar::Median(150.0);

impl Field<'_> {
    /// Measures starts of `hostname` on [`HOSTS`] hosts without `--sync`, with a tree that is there, and with one of which a
    /// file has changed. Each round has one of each, and the differences to the first.
    pub(super) fn synced(&self) -> Result<Measured, LabError> {
        let tree = self.git_tree()?;
        let rows = [
            Row::new("start without --sync", "ms", &[]),
            Row::new("added, nothing changed", "ms", &[UNCHANGED_BAR]),
            Row::new("added, one file changed", "ms", &[CHANGED_BAR]),
        ];
        let mut table = Table::new(["rlaunch"], rows);
        self.start(&tree, &["--sync"])?;
        std::thread::sleep(SETTLED);
        // Files that were too new before are read once more.
        self.start(&tree, &["--sync"])?;
        let mut random = Rng::with_seed(2);
        table.measure(Rounds::new(self.options.rounds), |turn| {
            let mut took = [0.0; 3];
            for at in (0..3).map(|at| (turn.round + at) % 3) {
                took[at] = match at {
                    0 => self.start(&tree, &[])?,
                    1 => self.start(&tree, &["--sync"])?,
                    _ => {
                        fill(&tree.join(CHANGED), BYTES, &mut random)?;
                        let seconds = self.start(&tree, &["--sync"])?;
                        self.hosts_have(&tree, CHANGED)?;
                        seconds
                    }
                } * 1e3;
            }
            Ok([took[0], took[1] - took[0], took[2] - took[0]].map(Some).into())
        })?;
        Ok((format!("--sync of {FILES} files to {HOSTS} hosts"), table))
    }

    /// Makes a working tree whose files git tracks.
    fn git_tree(&self) -> Result<PathBuf, LabError> {
        let tree = self.scratch.0.join(TREE);
        let mut random = Rng::with_seed(1);
        for number in 0..FILES {
            let directory = tree.join(format!("{:02}", number % 100));
            make_dir(&directory)?;
            fill(&directory.join(number.to_string()), BYTES, &mut random)?;
        }
        for words in [&["init", "-q"][..], &["add", "."]] {
            run("make a working tree", Command::new("git").args(words).current_dir(&tree))?;
        }
        Ok(tree)
    }

    /// Starts `hostname` on every host from the tree, and checks that each has printed its name. Returns the seconds.
    fn start(&self, tree: &Path, options: &[&str]) -> Result<f64, LabError> {
        let hosts = &self.testbed.hosts[..HOSTS];
        let mut command = self.testbed.lab.exec_in(Account::Root, tree);
        command.arg(self.rlaunch).args(["-H", &hosts.join(",")]).args(options).arg("hostname");
        command.env("XDG_CACHE_HOME", &self.cache);
        command.env("XDG_STATE_HOME", self.scratch.0.join("state"));
        let ran = self.testbed.run("start a job", command)?;
        check_names(&ran.stdout, hosts).map(|()| ran.seconds)
    }

    /// Checks that the copy of each host has a file as it is here.
    fn hosts_have(&self, tree: &Path, name: &str) -> Result<(), LabError> {
        let read =
            |path: &Path| fs::read(path).map_err(LabError::io(format!("read {}", path.display())));
        let wanted = read(&tree.join(name))?;
        for host in &self.testbed.hosts[..HOSTS] {
            let copies = self.testbed.lab.home(host, Account::Root)?.join(".cache/rlaunch/sync");
            let operation = format!("list {}", copies.display());
            let entries = fs::read_dir(&copies).map_err(LabError::io(operation))?.flatten();
            // Beside each copy is its seal.
            for copy in entries.map(|entry| entry.path().join(TREE)).filter(|copy| copy.is_dir()) {
                if read(&copy.join(name))? != wanted {
                    return Err(LabError::Unexpected(format!("{host} has an old {name}")));
                }
            }
        }
        Ok(())
    }
}
