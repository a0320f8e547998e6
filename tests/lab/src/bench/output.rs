//! `cargo lab bench output`: speed, completeness and memory with which each launcher forwards the
//! output of ranks to one reader.
//!
//! Every host prints a file with lines of 100 bytes that contain the rank and the line number. The
//! received bytes are stored and checked afterwards, so that checking takes no time: for lines that
//! no rank printed, missing lines, and whether the lines of each host are its file.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use clap::builder::ArgPredicate;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::pty::openpty;
use nix::sys::termios::{SetArg, cfmakeraw, tcgetattr, tcsetattr};

use super::against::{AGAINST, Against, USUAL_ROUNDS, bars};
use super::contender::{Contender, Launcher, Scratch, Testbed, peak_memory};
use super::table::{Bar, Rounds, Row, Table};
use crate::LabError;
use crate::command::{last_lines, wait_until};
use crate::dist::{self, Profile};
use crate::setup::{self, PackageSet};

mod check;
use check::{Damage, LINE, lines_of};

/// Path of the lines on every host.
const ON_HOST: &str = "/tmp/bench-lines";
/// Time limit of a job.
const LIMIT: Duration = Duration::from_secs(310);
/// Minimum ratios of rlaunch's speed to Hydra's.
const PLAIN_BAR: Bar = Bar::RatioAtLeast("hydra", 0.7);
const TAGGED_BAR: Bar = Bar::RatioAtLeast("hydra", 2.0);
/// What brings lines to a reader, and its name.
type Reading = (&'static str, Source);

#[derive(Clone, Copy)]
enum Source {
    /// rlaunch at a terminal, with options. Lines have no tags, which would come with the second rank that prints.
    Rlaunch(&'static [&'static str]),
    RlaunchByPipe,
    /// cat(1) at a terminal, with the lines in a file of this machine: what the kernel's terminal carries at most.
    Cat,
}

const CAT: Reading = ("cat", Source::Cat);
const PIPE: Reading = ("pipe", Source::RlaunchByPipe);
/// A terminal as people have it, cat there, and a pipe.
const USUAL: [Reading; 3] = [("terminal", Source::Rlaunch(&["--no-tag"])), CAT, PIPE];
/// Minimum ratio of the speed at a terminal to that of cat.
const USUAL_BARS: [Bar; 1] = [Bar::RatioAtLeast(CAT.0, 0.8)];
/// A terminal with folding and without, and cat there. No line occurs twice, so that folding has all of its cost and no
/// effect.
const FOLD: [Reading; 3] = [
    ("--fold=lines", Source::Rlaunch(&["--no-tag", "--fold=lines"])),
    ("--fold=none", Source::Rlaunch(&["--no-tag", "--fold=none"])),
    CAT,
];
/// Minimum ratios of the speed with folding to that without, and to that of cat.
const FOLD_BARS: [Bar; 2] = [Bar::RatioAtLeast(FOLD[1].0, 0.8), Bar::RatioAtLeast(CAT.0, 0.8)];
/// Maximum memory of rlaunch's own process in MiB.
const MEMORY_BAR: Bar = Bar::Most(16.0);
/// Output arrives whole.
const WHOLE_BAR: Bar = Bar::Most(0.0);
/// Speed of the slow reader in bytes per second, and number of lines that each host prints for it.
const SLOW: f64 = 5e6;
const SLOW_LINES: usize = 160_000;
/// Number of bytes per read.
const CHUNK: usize = 256 << 10;
/// Interval in milliseconds at which the launcher's memory is sampled while there is no output.
const SAMPLE_INTERVAL: u8 = 2;

/// Options of the bench.
#[derive(Debug, Clone, Args)]
pub struct OutputOptions {
    /// Number of hosts.
    #[arg(long, default_value_t = 4)]
    hosts: usize,
    /// MiB of lines on each host.
    #[arg(long, default_value_t = 64)]
    mebibytes: usize,
    /// Number of timed rounds, after one warm-up round; 15 with --against.
    #[arg(long, default_value_t = 3)]
    #[arg(default_value_if(AGAINST, ArgPredicate::IsPresent, USUAL_ROUNDS))]
    rounds: usize,
    #[command(flatten)]
    against: Against,
}

/// Output that a launcher has to forward.
#[derive(Clone, Copy)]
struct Task<'a> {
    contender: &'a Contender,
    /// Whether lines are tagged with their rank.
    is_tagged: bool,
    /// Number of lines of each host.
    lines: usize,
    /// Maximum bytes per second that are read.
    pace: Option<f64>,
    /// Options of rlaunch at a terminal; none if the reader is a pipe.
    terminal: Option<&'static [&'static str]>,
}

impl<'a> Task<'a> {
    fn new(contender: &'a Contender, is_tagged: bool, lines: usize) -> Task<'a> {
        Task { contender, is_tagged, lines, pace: None, terminal: None }
    }

    /// Returns the launcher's options, and the tag of lines of `rank` on `host`.
    fn tagging(&self, rank: usize, host: &str) -> (&'static [&'static str], String) {
        match self.contender.launcher {
            _ if !self.is_tagged => (&[], String::new()),
            Launcher::PlainSsh => (&[], String::new()),
            Launcher::Rlaunch => (&["--tag-output"], format!("[{rank},{host}] ")),
            Launcher::Hydra => (&["-prepend-rank"], format!("[{rank}] ")),
            Launcher::OpenMpi => (&["--tag-output"], format!("[1,{rank}]<stdout>:")),
        }
    }
}

/// Completed run.
struct Measured {
    seconds: f64,
    /// CPU seconds on all nodes together; none on a machine without cgroup v2.
    cpu: Option<f64>,
    /// Peak memory of the launcher's own process in MiB; none if it was not seen.
    memory: Option<f64>,
    damage: Damage,
}

/// Measures and prints; returns whether every bar is met.
pub(super) fn run(options: &OutputOptions) -> Result<bool, LabError> {
    let earlier = options.against.find()?;
    let contenders = if let Some(earlier) = &earlier {
        earlier.contenders(options.rounds)?
    } else {
        setup::install(PackageSet::Peers)?;
        Contender::with_services(&dist::build(Profile::Release)?)
    };
    let mut rows = Vec::new();
    for (name, bar) in [("untagged", PLAIN_BAR), ("tagged", TAGGED_BAR)] {
        let (what, unit) = if earlier.is_some() { ("wall", "s") } else { ("speed", "MB/s") };
        rows.push(Row::new(format!("{name} {what}"), unit, bars(earlier.as_ref(), &[bar])));
        let memory: &[Bar] = if earlier.is_some() { &[] } else { &[MEMORY_BAR] };
        rows.push(Row::new(format!("{name} memory"), "MiB", memory));
        rows.push(Row::new(format!("{name} damage"), "lines", &[WHOLE_BAR]));
    }
    for name in ["untagged CPU", "tagged CPU"] {
        rows.push(Row::new(name, "s", bars(earlier.as_ref(), &[])));
    }
    let mut table = Table::new(contenders.iter().map(|one| one.name), rows);
    let mut others = Vec::new();
    let lines = (options.mebibytes << 20) / LINE;
    Testbed::with_fresh(options.hosts, |testbed| {
        earlier.as_ref().map_or(Ok(()), |earlier| earlier.needs_cpu(testbed))?;
        let mut reader = Reader::new(testbed, lines)?;
        table.measure(Rounds::new(options.rounds), |turn| {
            let (mut values, mut cpus) = (Vec::new(), Vec::new());
            for is_tagged in [false, true] {
                let task = Task::new(&contenders[turn.contender], is_tagged, lines);
                let of = reader.measure(&task)?;
                if earlier.is_some() {
                    // Lost output takes no time, so its run is not a measurement.
                    reader.must_be_whole(&task, &of)?;
                }
                let speed = reader.bytes(&task) / 1e6 / of.seconds;
                values.push(Some(if earlier.is_some() { of.seconds } else { speed }));
                values.extend([of.memory, Some(of.damage.count() as f64)]);
                cpus.extend(of.cpu.map(Some));
            }
            Ok([values, cpus].concat())
        })?;
        if earlier.is_none() {
            others.push(reader.measure_slowly(&contenders[0])?);
            for (readings, bars) in [(&USUAL[..], &USUAL_BARS[..]), (&FOLD[..], &FOLD_BARS[..])] {
                let rounds = Rounds::new(options.rounds);
                others.push(reader.measure_readings(&contenders[0], readings, bars, rounds)?);
            }
        }
        Ok(())
    })?;
    let OutputOptions { hosts, mebibytes, rounds, .. } = options;
    let title = format!("{mebibytes} MiB of lines of {LINE} bytes from each of {hosts} hosts");
    let is_met = table.print(&format!("{title}, {rounds} rounds"));
    let slow = format!("a reader of {:.0} MB/s", SLOW / 1e6);
    let titles = [slow, "at a terminal".to_owned(), "at a terminal, folded".to_owned()];
    let met: Vec<bool> =
        others.iter().zip(titles).map(|(table, title)| table.print(&title)).collect();
    Ok(is_met && met.into_iter().all(|met| met))
}

/// Reader of what hosts print.
struct Reader<'a> {
    testbed: &'a Testbed,
    /// Number of lines of each host.
    lines: usize,
    /// What arrived in the last run. All runs share the buffer, so that its pages are mapped before
    /// a launcher is timed.
    arrived: Vec<u8>,
    scratch: Scratch,
}

impl<'a> Reader<'a> {
    /// Writes the lines of every host.
    fn new(testbed: &'a Testbed, lines: usize) -> Result<Reader<'a>, LabError> {
        for (rank, host) in testbed.hosts.iter().enumerate() {
            let text = lines_of(rank, lines);
            testbed.lab.write_file(host, ON_HOST.as_ref(), &text, 0o644)?;
        }
        let arrived = Vec::with_capacity(lines * testbed.hosts.len() * (LINE + 32));
        Ok(Reader { testbed, lines, arrived, scratch: Scratch::make(std::env::temp_dir())? })
    }

    /// Returns the number of bytes that hosts print.
    fn bytes(&self, task: &Task<'_>) -> f64 {
        (task.lines * LINE * self.testbed.hosts.len()) as f64
    }

    fn must_be_whole(&self, task: &Task<'_>, measured: &Measured) -> Result<(), LabError> {
        let (name, damage) = (task.contender.name, measured.damage);
        match damage.is_none() {
            true => Ok(()),
            false => Err(LabError::Unexpected(format!("output of {name}: {damage}"))),
        }
    }

    /// Measures memory while the output is read slowly.
    fn measure_slowly(&mut self, rlaunch: &Contender) -> Result<Table, LabError> {
        let rows =
            [Row::new("memory", "MiB", &[MEMORY_BAR]), Row::new("damage", "lines", &[WHOLE_BAR])];
        let mut table = Table::new([rlaunch.name], rows);
        let lines = SLOW_LINES.min(self.lines);
        let task = Task { pace: Some(SLOW), ..Task::new(rlaunch, false, lines) };
        table.measure(Rounds::without_warm_up(1), |_| {
            let of = self.measure(&task)?;
            Ok(vec![of.memory, Some(of.damage.count() as f64)])
        })?;
        Ok(table)
    }

    /// Measures the speed to readers, which take turns.
    fn measure_readings(
        &mut self,
        rlaunch: &Contender,
        readings: &[Reading],
        bars: &[Bar],
        rounds: Rounds,
    ) -> Result<Table, LabError> {
        let names = readings.iter().map(|(name, _)| *name);
        let mut table = Table::new(names, [Row::new("speed", "MB/s", bars)]);
        table.measure(rounds, |turn| {
            let mut task = Task::new(rlaunch, false, self.lines);
            match readings[turn.contender].1 {
                Source::Rlaunch(options) => task.terminal = Some(options),
                Source::RlaunchByPipe => {}
                Source::Cat => {
                    let seconds = self.cat_to_terminal()?;
                    return Ok(vec![Some(self.bytes(&task) / 1e6 / seconds)]);
                }
            }
            let of = self.measure(&task)?;
            self.must_be_whole(&task, &of)?;
            Ok(vec![Some(self.bytes(&task) / 1e6 / of.seconds)])
        })?;
        Ok(table)
    }

    /// Lets cat print the lines of all hosts at a terminal; returns its duration in seconds.
    fn cat_to_terminal(&mut self) -> Result<f64, LabError> {
        let failed = || LabError::io("run cat");
        let file = self.scratch.0.join("lines");
        if !file.exists() {
            let all = (0..self.testbed.hosts.len()).map(|rank| lines_of(rank, self.lines));
            fs::write(&file, all.collect::<Vec<_>>().concat()).map_err(failed())?;
        }
        let (reading, writing) = terminal().map_err(failed())?;
        let mut command = Command::new("cat");
        command.arg(&file).stdin(Stdio::null()).stdout(writing);
        let started = Instant::now();
        let mut child = command.spawn().map_err(failed())?;
        drop(command);
        read_all(&child, reading, None, &mut self.arrived).map_err(failed())?;
        let seconds = started.elapsed().as_secs_f64();
        child.wait().map_err(failed())?;
        Ok(seconds)
    }

    /// Runs one job and checks its output.
    fn measure(&mut self, task: &Task<'_>) -> Result<Measured, LabError> {
        let testbed = self.testbed;
        let ((seconds, memory), cpu) = testbed.with_cpu(|| self.complete(task))?;
        let hosts = testbed.hosts.iter().enumerate();
        let tags: Vec<String> = hosts.map(|(rank, host)| task.tagging(rank, host).1).collect();
        let damage = check::check(&self.arrived, &tags, task.lines);
        if !damage.is_none() {
            println!("{}: {damage}", task.contender.name);
        }
        Ok(Measured { seconds, cpu, memory, damage })
    }

    /// Runs one job; returns its duration in seconds and the launcher's memory in MiB.
    fn complete(&mut self, task: &Task<'_>) -> Result<(f64, Option<f64>), LabError> {
        let name = task.contender.name;
        let failed = || LabError::io(format!("run {name}"));
        let errors = self.scratch.0.join("stderr");
        let stderr = File::create(&errors).map_err(failed())?;
        let ends = if task.terminal.is_some() { terminal() } else { pipe() };
        let (reading, writing) = ends.map_err(failed())?;
        let mut options = task.tagging(0, "").0.to_vec();
        options.extend(task.terminal.into_iter().flatten());
        let length = (task.lines * LINE).to_string();
        let program = ["head", "-c", &length, ON_HOST];
        let program = if task.lines == self.lines { &["cat", ON_HOST] } else { &program[..] };
        let mut command = task.contender.command(self.testbed.all(1), &options, program);
        // There are to be no rows between the lines, which are checked.
        command.env("TERM", "dumb");
        command.stdin(Stdio::null()).stdout(writing).stderr(stderr);
        let started = Instant::now();
        let mut child = command.spawn().map_err(failed())?;
        // The command holds the writing end.
        drop(command);
        let memory = read_all(&child, reading, task.pace, &mut self.arrived);
        let seconds = started.elapsed().as_secs_f64();
        if memory.is_err() {
            let _ = child.kill();
        }
        let mut status = None;
        let ended = wait_until(LIMIT, "a launcher to end", || {
            status = child.try_wait().map_err(failed())?;
            Ok(status.is_some())
        });
        if ended.is_ok() && status.is_some_and(|status| status.success()) {
            return Ok((seconds, memory.map_err(failed())?));
        }
        let text = std::fs::read_to_string(&errors).unwrap_or_default();
        Err(LabError::Unexpected(format!("{name} failed\n{}", last_lines(&text, 10))))
    }
}

/// Reads stdout to its end, no faster than `pace` bytes per second; returns the peak memory of the
/// process in MiB.
fn read_all(
    child: &Child,
    mut stdout: File,
    pace: Option<f64>,
    arrived: &mut Vec<u8>,
) -> io::Result<Option<f64>> {
    arrived.clear();
    let (mut chunk, mut memory, started) = (vec![0; CHUNK], None, Instant::now());
    let mut sampled_at = 0;
    loop {
        // The kernel's peak value only grows, so few samples are enough while there is output. At
        // the end, when the launcher prints no more, it may exit at any moment, so each idle
        // interval takes a sample.
        let is_idle = poll(
            &mut [PollFd::new(stdout.as_fd(), PollFlags::POLLIN)],
            PollTimeout::from(SAMPLE_INTERVAL),
        )? == 0;
        if is_idle || arrived.len() >= sampled_at {
            sampled_at = arrived.len() + (2 << 20);
            memory = peak_memory(child.id(), None).or(memory);
        }
        if is_idle {
            continue;
        }
        let length = match stdout.read(&mut chunk) {
            Ok(0) => return Ok(memory),
            Ok(length) => length,
            // End of a terminal.
            Err(error) if error.raw_os_error() == Some(Errno::EIO as i32) => return Ok(memory),
            Err(error) => return Err(error),
        };
        arrived.extend_from_slice(&chunk[..length]);
        if let Some(pace) = pace {
            let due = Duration::from_secs_f64(arrived.len() as f64 / pace);
            thread::sleep(due.saturating_sub(started.elapsed()));
        }
    }
}

/// Makes a terminal that passes bytes on as they are. Returns its reading end first.
fn terminal() -> io::Result<(File, OwnedFd)> {
    let ends = openpty(None, None)?;
    let mut modes = tcgetattr(&ends.slave)?;
    cfmakeraw(&mut modes);
    tcsetattr(&ends.slave, SetArg::TCSANOW, &modes)?;
    Ok((ends.master.into(), ends.slave))
}

/// Makes a pipe. Returns its reading end first.
fn pipe() -> io::Result<(File, OwnedFd)> {
    let (reading, writing) = io::pipe()?;
    Ok((OwnedFd::from(reading).into(), writing.into()))
}
