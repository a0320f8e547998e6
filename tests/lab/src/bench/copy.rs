//! `cargo lab bench copy`: `rlaunch push` beside what people copy files with. The files are on the disks of all hosts when
//! the time ends: rlaunch waits for that itself, and `sync -f` follows the others.

use std::collections::HashSet;
use std::fs::{self, OpenOptions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clap::{Args, ValueEnum};
use fastrand::Rng;

use super::contender::{Scratch, Testbed};
use super::table::{Bar, Rounds, Row, Table};
use crate::command::printed;
use crate::dist::{self, Profile};
use crate::files::{make_dir, remove_dir};
use crate::setup::{self, PackageSet};
use crate::{Account, LabError};

mod peers;
mod sync;
use peers::{Copier, Task};

/// Rate of slow links, in the words of tc(8), and size of the file that goes through them.
pub(super) const RATE: &str = "200mbit";
const SLOW_BYTES: u64 = 200_000_000;
/// Number of rounds over slow links of those that send everything as often as there are hosts.
const FEW: usize = 2;
/// Number and size of small files.
const SMALL: u64 = 10_000;
const SMALL_BYTES: u64 = 100_000;
/// Time limit for hosts to become idle after a copy.
const IDLE: Duration = Duration::from_secs(30);
/// Directory of hosts that files go to, below the home directory.
const PLACE: &str = "bench-copy";
const GB: f64 = 1e9;
const MIB: f64 = (1 << 20) as f64;

/// To all hosts in little more than the time of one.
const ONE_BAR: Bar = Bar::RatioAtMost("scp", 1.05);
const CHAIN_BAR: Bar = Bar::RatioAtLeast("socat", 0.93);
/// Speed of a fast link.
const SAFE_BAR: Bar = Bar::RatioAtLeast("rsync", 1.0);
const PLAIN_BAR: Bar = Bar::RatioAtLeast("socat", 0.7);
/// Time to find that nothing has changed.
const UNCHANGED_BAR: Bar = Bar::RatioAtMost("rsync", 1.2);
/// MiB on the wire for one byte.
const CHANGED_BAR: Bar = Bar::Most(8.0);

/// Options of the bench.
#[derive(Debug, Clone, Args)]
pub struct CopyOptions {
    /// Number of hosts behind slow links.
    #[arg(long, default_value_t = 7)]
    hosts: usize,
    /// Number of timed rounds, after one warm-up round.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// MiB of the file that goes to one host by a fast link, and in which a byte changes.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..))]
    mebibytes: u64,
    /// Measure only this; can be repeated.
    #[arg(long, value_enum)]
    part: Vec<Part>,
}

/// Part of the bench.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// One file to all hosts over slow links.
    Chain,
    /// One file to one host over a fast link.
    Speed,
    /// 10,000 files that are there.
    Unchanged,
    /// A large file in which a byte has changed.
    Changed,
    /// What `--sync` adds to the start of a job on 8 hosts.
    Sync,
}

/// Measures and prints; returns whether every bar is met.
pub(super) fn run(options: &CopyOptions) -> Result<bool, LabError> {
    setup::install(PackageSet::Copying)?;
    let rlaunch = dist::build(Profile::Release)?;
    let scratch = Scratch::make(std::env::temp_dir())?;
    let mut measured = Vec::new();
    Testbed::with_fresh(options.hosts.max(sync::HOSTS), |testbed| {
        let (rlaunch, cache) = (rlaunch.as_path(), scratch.0.join("cache"));
        let field = Field { testbed, rlaunch, scratch: &scratch, cache, options };
        field.describe()?;
        for part in Part::value_variants() {
            if options.part.is_empty() || options.part.contains(part) {
                measured.extend(field.measure(*part)?);
            }
        }
        Ok(())
    })?;
    let met: Vec<bool> = measured.iter().map(|(title, table)| table.print(title)).collect();
    Ok(met.into_iter().all(|met| met))
}

/// Makes a table for programs that take turns.
fn table(copiers: &[Copier], rows: impl IntoIterator<Item = Row>) -> Table {
    Table::new(copiers.iter().map(|copier| copier.name()), rows)
}

/// Rows of a first copy.
fn rows(time: &[Bar], speed: &[Bar]) -> [Row; 4] {
    [
        Row::new("time", "s", time),
        Row::new("speed", "MB/s", speed),
        Row::new("CPU of this machine", "s/GB", &[]),
        Row::new("CPU of a host", "s/GB", &[]),
    ]
}

/// Time and CPU of one copy.
struct Taken {
    seconds: f64,
    /// CPU seconds of the launch node and of all hosts; none on a machine without cgroup v2.
    cpu: Option<[f64; 2]>,
}

impl Taken {
    /// Returns the values of [`rows`].
    fn values(&self, bytes: u64, hosts: usize) -> Vec<Option<f64>> {
        let bytes = bytes as f64;
        let mut values = vec![Some(self.seconds), Some(bytes / 1e6 / self.seconds)];
        if let Some([here, there]) = self.cpu {
            let per_gb = GB / bytes;
            values.extend([Some(here * per_gb), Some(there * per_gb / hosts as f64)]);
        }
        values
    }
}

/// Title and table.
type Measured = (String, Table);

/// Hosts, and the files that go there.
struct Field<'a> {
    testbed: &'a Testbed,
    rlaunch: &'a Path,
    scratch: &'a Scratch,
    /// Directory below which the rlaunch of the launch node keeps its index.
    cache: PathBuf,
    options: &'a CopyOptions,
}

impl Field<'_> {
    fn measure(&self, part: Part) -> Result<Vec<Measured>, LabError> {
        match part {
            Part::Chain => self.over_slow_links().map(|measured| vec![measured]),
            Part::Speed => self.to_one_host().map(Vec::from),
            Part::Unchanged => self.unchanged().map(|measured| vec![measured]),
            Part::Changed => self.changed().map(|measured| vec![measured]),
            Part::Sync => self.synced().map(|measured| vec![measured]),
        }
    }

    /// Prints what times depend on: waiting for a disk takes none where files are in memory.
    fn describe(&self) -> Result<(), LabError> {
        let home = self.testbed.lab.home(&self.testbed.hosts[0], Account::Root)?;
        let mut stat = Command::new("stat");
        let kind = printed("name a file system", stat.args(["-f", "-c", "%T"]).arg(home))?;
        println!("files of hosts are on {}", kind.trim());
        Ok(())
    }

    /// Measures copies to all hosts, each of which sends no faster than [`RATE`].
    fn over_slow_links(&self) -> Result<Measured, LabError> {
        use Copier::{Clush, Push, Rsync, Scp, Socat};
        let copiers = [Push, Scp, Socat, Rsync, Clush];
        let mut table = table(&copiers, rows(&[ONE_BAR], &[CHAIN_BAR]));
        let source = self.file("slow", SLOW_BYTES)?;
        self.testbed.lab.shape(Some(RATE))?;
        table.measure(Rounds::new(self.options.rounds), |turn| {
            let copier = copiers[turn.contender];
            if copier.sends_to_each() && !(1..=FEW).contains(&turn.round) {
                return Ok(Vec::new());
            }
            let hosts = copier.reached(self.behind_slow_links());
            Ok(self.first_copy(copier, &source, hosts)?.values(SLOW_BYTES, hosts.len()))
        })?;
        self.testbed.lab.shape(None)?;
        self.clear()?;
        let hosts = self.behind_slow_links().len();
        Ok((format!("200 MB to {hosts} hosts over links of {RATE} (scp: to one)"), table))
    }

    fn behind_slow_links(&self) -> &[String] {
        &self.testbed.hosts[..self.options.hosts]
    }

    /// Measures copies to one host as fast as this machine can.
    fn to_one_host(&self) -> Result<[Measured; 2], LabError> {
        let copiers = [Copier::Push, Copier::Rsync, Copier::PushPlain, Copier::Socat];
        let mut safe = table(&copiers, rows(&[], &[SAFE_BAR]));
        let (source, bytes) = self.large()?;
        let host = &self.testbed.hosts[..1];
        safe.measure(Rounds::new(self.options.rounds), |turn| {
            let copier = copiers[turn.contender];
            Ok(self.first_copy(copier, &source, host)?.values(bytes, 1))
        })?;
        self.clear()?;
        // Values of `--plain` once more, beside a peer that does not encrypt either.
        let rows = rows(&[], &[PLAIN_BAR]).into_iter().zip(&safe.rows);
        let rows = rows.map(|(row, all)| row.with_values(&all.values[2..]));
        let plain = table(&copiers[2..], rows);
        let title = format!("{} MiB to one host", self.options.mebibytes);
        Ok([(title.clone(), safe), (format!("{title}, not encrypted"), plain)])
    }

    /// Measures how long it takes to find that [`SMALL`] files are there.
    fn unchanged(&self) -> Result<Measured, LabError> {
        let copiers = [Copier::Push, Copier::Rsync];
        let mut table = table(&copiers, rows(&[UNCHANGED_BAR], &[]));
        let source = self.scratch.0.join("small");
        make_dir(&source)?;
        let mut random = Rng::with_seed(1);
        for number in 0..SMALL {
            let name = source.join(format!("{:02}", number % 100));
            make_dir(&name)?;
            fill(&name.join(number.to_string()), SMALL_BYTES, &mut random)?;
        }
        let host = &self.testbed.hosts[..1];
        self.clear()?;
        let mut there = HashSet::new();
        // The warm-up round copies, too, and waits until no file is so new that its time proves nothing.
        table.measure(Rounds::new(self.options.rounds), |turn| {
            let copier = copiers[turn.contender];
            if there.insert(turn.contender) {
                self.copy(copier, &source, host, copier.name())?;
                std::thread::sleep(Duration::from_secs(3));
            }
            let taken = self.copy(copier, &source, host, copier.name())?;
            Ok(taken.values(SMALL * SMALL_BYTES, 1))
        })?;
        self.clear()?;
        remove_dir(&source)?;
        Ok((format!("{SMALL} files of {SMALL_BYTES} bytes that are there"), table))
    }

    /// Measures what a changed byte of a large file costs. It changes once a round.
    fn changed(&self) -> Result<Measured, LabError> {
        let copiers = [Copier::Push, Copier::Rsync];
        let wire = Row::new("on the wire", "MiB", &[CHANGED_BAR]);
        let mut table = table(&copiers, [wire, Row::new("time", "s", &[])]);
        let (source, bytes) = self.large()?;
        let host = &self.testbed.hosts[..1];
        self.clear()?;
        for copier in copiers {
            self.copy(copier, &source, host, copier.name())?;
        }
        let mut random = Rng::with_seed(2);
        let mut changed_in = None;
        table.measure(Rounds::new(self.options.rounds), |turn| {
            if changed_in.replace(turn.round) != Some(turn.round) {
                change(&source, random.u64(..bytes))?;
            }
            let copier = copiers[turn.contender];
            let before = self.testbed.lab.bytes_on_link(&host[0])?;
            let taken = self.copy(copier, &source, host, copier.name())?;
            let carried = self.testbed.lab.bytes_on_link(&host[0])? - before;
            Ok(vec![Some(carried as f64 / MIB), Some(taken.seconds)])
        })?;
        self.clear()?;
        Ok((format!("one byte of {} MiB changed", self.options.mebibytes), table))
    }

    /// Copies what no host has, and rlaunch knows nothing about, and checks that it arrives.
    fn first_copy(
        &self,
        copier: Copier,
        source: &Path,
        hosts: &[String],
    ) -> Result<Taken, LabError> {
        self.clear()?;
        let taken = self.copy(copier, source, hosts, "")?;
        let size = |path: &Path| {
            let operation = format!("look at {} after {}", path.display(), copier.name());
            fs::metadata(path).map(|of| of.len()).map_err(LabError::io(operation))
        };
        let wanted = size(source)?;
        for host in hosts {
            let home = self.testbed.lab.home(host, Account::Root)?;
            let arrived = size(&home.join(PLACE).join(source.file_name().unwrap_or_default()))?;
            if arrived != wanted {
                let name = copier.name();
                let message = format!("{name}: {host} has {arrived} bytes of {wanted}");
                return Err(LabError::Unexpected(message));
            }
        }
        Ok(taken)
    }

    /// Copies into a folder of hosts below [`PLACE`].
    fn copy(
        &self,
        copier: Copier,
        source: &Path,
        hosts: &[String],
        folder: &str,
    ) -> Result<Taken, LabError> {
        let lab = &self.testbed.lab;
        for host in hosts {
            make_dir(&lab.home(host, Account::Root)?.join(PLACE).join(folder))?;
        }
        // Without a slash at the end where there is no folder.
        let to: PathBuf = Account::Root.home().join(PLACE).join(folder).components().collect();
        let task = Task { lab, rlaunch: self.rlaunch, cache: &self.cache, source, hosts, to: &to };
        let before = lab.cpu_usage_of_ends();
        let seconds = task.run(copier)?;
        lab.wait_until_idle(IDLE)?;
        let used = before.zip(lab.cpu_usage_of_ends()).map(|(before, after)| {
            [0, 1].map(|end| after[end].saturating_sub(before[end]).as_secs_f64())
        });
        Ok(Taken { seconds, cpu: used })
    }

    /// Removes what was copied, and what rlaunch knows of it.
    fn clear(&self) -> Result<(), LabError> {
        remove_dir(&self.cache)?;
        for host in &self.testbed.hosts {
            let home = self.testbed.lab.home(host, Account::Root)?;
            remove_dir(&home.join(PLACE))?;
            remove_dir(&home.join(".cache/rlaunch/copy"))?;
        }
        Ok(())
    }

    /// Makes the file for fast links, unless it is there. Returns its size, too.
    fn large(&self) -> Result<(PathBuf, u64), LabError> {
        let bytes = self.options.mebibytes << 20;
        Ok((self.file("large", bytes)?, bytes))
    }

    fn file(&self, name: &str, bytes: u64) -> Result<PathBuf, LabError> {
        let path = self.scratch.0.join(name);
        if !path.exists() {
            fill(&path, bytes, &mut Rng::with_seed(0))?;
        }
        Ok(path)
    }
}

/// Makes a file of random bytes, which nothing can compress.
pub(super) fn fill(path: &Path, bytes: u64, random: &mut Rng) -> Result<(), LabError> {
    let failed = || LabError::io(format!("write {}", path.display()));
    let mut file = BufWriter::new(fs::File::create(path).map_err(failed())?);
    let mut part = vec![0; 1 << 20];
    let mut left = bytes;
    while left > 0 {
        let length = left.min(1 << 20);
        let part = &mut part[..usize::try_from(length).unwrap_or(1 << 20)];
        random.fill(part);
        file.write_all(part).map_err(failed())?;
        left -= length;
    }
    file.flush().map_err(failed())
}

/// Changes a byte of a file.
fn change(path: &Path, at: u64) -> Result<(), LabError> {
    let failed = || LabError::io(format!("change {}", path.display()));
    let file = OpenOptions::new().read(true).write(true).open(path).map_err(failed())?;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).map_err(failed())?;
    file.write_all_at(&[!byte[0]], at).map_err(failed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_told_per_byte_and_host() {
        let taken = Taken { seconds: 8.0, cpu: Some([0.1, 1.4]) };
        let values: Vec<f64> = taken.values(200_000_000, 7).into_iter().flatten().collect();
        assert_eq!(values[..2], [8.0, 25.0]);
        assert!((values[2] - 0.5).abs() < 1e-9 && (values[3] - 1.0).abs() < 1e-9, "{values:?}");
        assert_eq!(Taken { cpu: None, ..taken }.values(1, 1).len(), 2);
    }

    #[test]
    fn one_byte_changes_and_the_length_does_not() {
        let scratch = Scratch::make(std::env::temp_dir()).unwrap();
        let path = scratch.0.join("file");
        fill(&path, (1 << 20) + 3, &mut Rng::with_seed(1)).unwrap();
        let before = fs::read(&path).unwrap();
        change(&path, 1 << 20).unwrap();
        let after = fs::read(&path).unwrap();
        let different = before.iter().zip(&after).filter(|(a, b)| a != b).count();
        assert_eq!((before.len(), after.len(), different), ((1 << 20) + 3, (1 << 20) + 3, 1));
    }
}
