//! `cargo lab bench output`: speed, completeness and memory with which each launcher forwards the
//! output of ranks to one reader.
//!
//! Every host prints a file with lines of 100 bytes that contain the rank and the line number. The
//! received bytes are stored and checked afterwards, so that checking takes no time: for lines that
//! no rank printed, missing lines, and whether the lines of each host are its file.

use std::env;
use std::fs;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::Series;
use super::launchers::Launcher;
use super::testbed::{Testbed, bench_lab};
use crate::LabError;
use crate::command::{last_lines, wait_until};
use crate::dist::{self, Profile};
use crate::setup::{self, PackageSet};

mod against;
mod check;
mod terminal;
pub use against::run_against;
use check::{Damage, LINE, lines_of};
use terminal::Folded;

/// Path of the lines on every host.
const ON_HOST: &str = "/tmp/bench-lines";
/// Time limit of a job.
const LIMIT: Duration = Duration::from_secs(300);
/// Minimum ratio of rlaunch's speed to Hydra's, with tags and without.
const TAGGED_BAR: f64 = 2.0;
const PLAIN_BAR: f64 = 0.7;
/// Minimum ratio of the speed at a terminal with `--fold` to that without.
const FOLD_BAR: f64 = 0.8;
/// Maximum memory of rlaunch in MiB.
const MEMORY_BAR: f64 = 16.0;
/// Speed of the slow reader in bytes per second, and number of lines that each host prints for it.
const SLOW: f64 = 5e6;
const SLOW_LINES: usize = 160_000;
/// Number of bytes per read.
const CHUNK: usize = 256 << 10;
/// Interval in milliseconds at which the launcher's memory is sampled while there is no output.
const SAMPLE_INTERVAL: u8 = 2;

/// Options of the bench.
#[derive(Debug, Clone)]
pub struct OutputOptions {
    /// Number of hosts, with one rank each.
    pub hosts: usize,
    /// MiB of lines of each host.
    pub mebibytes: usize,
    /// Number of timed rounds, after a warm-up round.
    pub rounds: usize,
}

/// Whether lines are tagged with their rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tagging {
    Plain,
    Tagged,
}

impl Tagging {
    const ALL: [Tagging; 2] = [Tagging::Plain, Tagging::Tagged];

    fn name(self) -> &'static str {
        match self {
            Tagging::Plain => "untagged",
            Tagging::Tagged => "tagged",
        }
    }

    fn options(self, launcher: Launcher) -> &'static [&'static str] {
        match (self, launcher) {
            (Tagging::Plain, _) | (_, Launcher::PlainSsh) => &[],
            (Tagging::Tagged, Launcher::Hydra) => &["-prepend-rank"],
            (Tagging::Tagged, Launcher::Rlaunch | Launcher::OpenMpi) => &["--tag-output"],
        }
    }

    /// Returns the tag of lines of rank `rank` on `host`.
    fn tag(self, launcher: Launcher, rank: usize, host: &str) -> String {
        match (self, launcher) {
            (Tagging::Plain, _) | (_, Launcher::PlainSsh) => String::new(),
            (Tagging::Tagged, Launcher::Rlaunch) => format!("[{rank},{host}] "),
            (Tagging::Tagged, Launcher::Hydra) => format!("[{rank}] "),
            (Tagging::Tagged, Launcher::OpenMpi) => format!("[1,{rank}]<stdout>:"),
        }
    }
}

/// Results of one launcher, with or without tags.
struct OutputRow {
    launcher: Launcher,
    tagging: Tagging,
    /// MB of lines per second, without tags.
    speed: Series,
    damage: Damage,
    /// Peak memory of the launcher's own process in MiB.
    memory: f64,
}

impl OutputRow {
    fn new(launcher: Launcher, tagging: Tagging) -> OutputRow {
        OutputRow {
            launcher,
            tagging,
            speed: Series::default(),
            damage: Damage::default(),
            memory: 0.0,
        }
    }
}

/// Completed run.
struct JobRun {
    seconds: f64,
    /// Peak memory of the launcher's own process in MiB.
    memory: f64,
}

/// Completed run, with CPU time and damage of the output.
struct MeasuredJob {
    ran: JobRun,
    /// CPU seconds on all nodes together; none on a machine without cgroup v2.
    cpu: Option<f64>,
    damage: Damage,
}

/// Output that a launcher has to forward.
struct OutputTask<'a> {
    launcher: Launcher,
    tagging: Tagging,
    /// Program of every rank.
    program: &'a [&'a str],
    /// Number of lines that the program prints.
    lines: usize,
    /// Maximum bytes per second that are read.
    pace: Option<f64>,
    reader: OutputReader,
}

/// Reader of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OutputReader {
    Pipe,
    /// Terminal, at which rlaunch has this option.
    Terminal(&'static str),
}

/// Measures and prints; returns whether every bar is met.
pub fn run(options: &OutputOptions) -> Result<bool, LabError> {
    setup::install(PackageSet::Peers)?;
    let rlaunch = dist::build(Profile::Release)?;
    let lab = bench_lab(options.hosts);
    let (rows, slow, folded) =
        Testbed::with_fresh(&lab, rlaunch, |testbed| with_lines(testbed, options))?;
    println!(
        "\n{} MiB of lines of {LINE} bytes from each of {} hosts, {} rounds",
        options.mebibytes, options.hosts, options.rounds
    );
    print_table(&rows);
    let is_met = print_bars(&rows, &slow);
    Ok(folded.print() && is_met)
}

fn with_lines(
    testbed: &Testbed,
    options: &OutputOptions,
) -> Result<(Vec<OutputRow>, OutputRow, Folded), LabError> {
    let lines = place_lines(testbed, options)?;
    let mut arrived = output_buffer(options, lines);
    let mut rows = Vec::new();
    for tagging in Tagging::ALL {
        rows.extend(Launcher::WITH_SERVICES.map(|launcher| OutputRow::new(launcher, tagging)));
    }
    for round in 0..=options.rounds {
        for row in &mut rows {
            measure(testbed, row, lines, (&["cat", ON_HOST], None), &mut arrived)?;
            if round == 0 {
                // The warm-up round, in which hosts receive their agents, does not count.
                (row.speed, row.memory) = (Series::default(), 0.0);
            }
        }
    }
    let mut slow = OutputRow::new(Launcher::Rlaunch, Tagging::Plain);
    let few = SLOW_LINES.min(lines);
    let length = (few * LINE).to_string();
    let program = ["head", "-c", &length, ON_HOST];
    println!("a reader of {:.0} MB/s", SLOW / 1e6);
    measure(testbed, &mut slow, few, (&program, Some(SLOW)), &mut arrived)?;
    let folded = Folded::measure(testbed, options.rounds, lines, &mut arrived)?;
    Ok((rows, slow, folded))
}

/// Writes the lines of every host; returns their number.
fn place_lines(testbed: &Testbed, options: &OutputOptions) -> Result<usize, LabError> {
    let lines = (options.mebibytes << 20) / LINE;
    for (rank, host) in testbed.hosts.iter().enumerate() {
        testbed.lab.write_file(host, Path::new(ON_HOST), &lines_of(rank, lines), 0o644)?;
    }
    Ok(lines)
}

/// Allocates a buffer for the output. All runs share it, so that its pages are mapped before a
/// launcher is timed.
fn output_buffer(options: &OutputOptions, lines: usize) -> Vec<u8> {
    Vec::with_capacity((lines * options.hosts) * (LINE + 32))
}

/// Runs one job and adds its results to `row`.
fn measure(
    testbed: &Testbed,
    row: &mut OutputRow,
    lines: usize,
    (program, pace): (&[&str], Option<f64>),
    arrived: &mut Vec<u8>,
) -> Result<(), LabError> {
    let (launcher, tagging, reader) = (row.launcher, row.tagging, OutputReader::Pipe);
    let task = OutputTask { launcher, tagging, program, lines, pace, reader };
    let MeasuredJob { ran, damage, .. } = attempt(testbed, &task, arrived)?;
    let bytes = (lines * LINE * testbed.hosts.len()) as f64;
    let speed = bytes / 1e6 / ran.seconds;
    let (name, what) = (row.launcher.name(), row.tagging.name());
    println!("{name:<8} {what:<9} {speed:>7.1} MB/s, {:.1} MiB, {damage}", ran.memory);
    row.speed.push(speed);
    row.memory = row.memory.max(ran.memory);
    row.damage.add(damage);
    Ok(())
}

/// Runs one job and checks its output.
fn attempt(
    testbed: &Testbed,
    task: &OutputTask<'_>,
    arrived: &mut Vec<u8>,
) -> Result<MeasuredJob, LabError> {
    let errors = env::temp_dir().join(format!("rlaunch-bench-{}-stderr", std::process::id()));
    let with_stderr = |error| {
        let stderr_text = fs::read_to_string(&errors).unwrap_or_default();
        LabError::Unexpected(format!("{error}\n{}", last_lines(&stderr_text, 10)))
    };
    let ran = testbed.with_cpu(|| complete(testbed, task, &errors, arrived).map_err(with_stderr));
    let _ = fs::remove_file(&errors);
    let (ran, cpu) = ran?;
    let hosts = testbed.hosts.iter().enumerate();
    let tag = |(rank, host): (usize, &String)| task.tagging.tag(task.launcher, rank, host);
    let tags: Vec<String> = hosts.map(tag).collect();
    Ok(MeasuredJob { ran, cpu, damage: check::check(arrived, &tags, task.lines) })
}

fn complete(
    testbed: &Testbed,
    task: &OutputTask<'_>,
    errors: &Path,
    arrived: &mut Vec<u8>,
) -> Result<JobRun, LabError> {
    let launcher = task.launcher;
    let failed = || format!("run {}", launcher.name());
    let stderr = fs::File::create(errors).map_err(LabError::io(failed()))?;
    let (options, ends) = match task.reader {
        OutputReader::Pipe => (task.tagging.options(launcher).to_vec(), terminal::pipe()),
        OutputReader::Terminal(option) => (vec![option], terminal::open()),
    };
    let (reading, writing) = ends.map_err(LabError::io(failed()))?;
    let mut command = launcher.command_with(&options, testbed, 1, task.program);
    command.stdin(Stdio::null()).stdout(writing).stderr(stderr);
    let started = Instant::now();
    let mut child = command.spawn().map_err(LabError::io(failed()))?;
    // The command holds the writing end.
    drop(command);
    let memory = read_all(&child, reading, task.pace, arrived).map_err(LabError::io(failed()));
    let seconds = started.elapsed().as_secs_f64();
    if memory.is_err() {
        let _ = child.kill();
    }
    let mut status = None;
    wait_until(LIMIT, "a launcher to end", || {
        status = child.try_wait().map_err(LabError::io(failed()))?;
        Ok(status.is_some())
    })?;
    match status.filter(std::process::ExitStatus::success) {
        Some(_) => Ok(JobRun { seconds, memory: memory? }),
        None => Err(LabError::Unexpected(format!("{} failed", launcher.name()))),
    }
}

/// Reads stdout to its end, no faster than `pace` bytes per second; returns the peak memory of the
/// process in MiB.
fn read_all(
    child: &Child,
    mut stdout: fs::File,
    pace: Option<f64>,
    arrived: &mut Vec<u8>,
) -> std::io::Result<f64> {
    arrived.clear();
    let (mut chunk, mut memory, started) = (vec![0; CHUNK], 0.0_f64, Instant::now());
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
            memory = memory.max(peak_memory(child.id()).unwrap_or(0.0));
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

/// Returns the peak memory of a process in MiB, or nothing if it has ended.
fn peak_memory(pid: u32) -> Option<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let value = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: f64 = value.trim().trim_end_matches(" kB").parse().ok()?;
    Some(kib / 1024.0)
}

fn print_table(rows: &[OutputRow]) {
    println!("{:<20}{:>26}{:>12}  torn, lost, order", "", "MB/s", "memory MiB");
    for row in rows {
        let (speed, memory) = (row.speed.summary_to(1), row.memory);
        let name = format!("{} {}", row.launcher.name(), row.tagging.name());
        println!("{name:<20}{speed:>26}{memory:>12.1}  {}", row.damage);
    }
}

/// Prints the bars; returns whether rlaunch meets all of them.
fn print_bars(rows: &[OutputRow], slow: &OutputRow) -> bool {
    let row = |launcher, tagging| {
        rows.iter().find(|row| (row.launcher, row.tagging) == (launcher, tagging))
    };
    let mut all_met = true;
    let mut bar = |what: &str, value: String, wanted: String, met: bool| {
        let verdict = if met { "met" } else { "MISSED" };
        println!("{what:<32} {value:>10}  (bar {wanted}: {verdict})");
        all_met &= met;
    };
    for (tagging, least) in [(Tagging::Plain, PLAIN_BAR), (Tagging::Tagged, TAGGED_BAR)] {
        let Some(own) = row(Launcher::Rlaunch, tagging) else { continue };
        let peer = row(Launcher::Hydra, tagging).and_then(|peer| own.speed.ratio_to(&peer.speed));
        let ratio = peer.unwrap_or(0.0);
        let what = format!("rlaunch/hydra {}", tagging.name());
        bar(&what, format!("{ratio:.2}"), format!("{least:.2} or more"), ratio >= least);
        let what = format!("rlaunch {} is whole", tagging.name());
        bar(&what, own.damage.to_string(), "nothing".to_owned(), own.damage.is_none());
    }
    let fast = rows.iter().filter(|row| row.launcher == Launcher::Rlaunch);
    let fast = fast.map(|row| row.memory).fold(0.0, f64::max);
    for (reader, memory) in [("a fast reader", fast), ("a slow reader", slow.memory)] {
        let met = memory > 0.0 && memory <= MEMORY_BAR;
        let what = format!("rlaunch MiB, {reader}");
        bar(&what, format!("{memory:.1}"), format!("{MEMORY_BAR:.0} or less"), met);
    }
    bar(
        "a slow reader gets everything",
        slow.damage.to_string(),
        "nothing".into(),
        slow.damage.is_none(),
    );
    all_met
}
