//! `cargo lab bench monitor`: CPU time that `rlaunch monitor` takes at a terminal while it watches a job.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use nix::pty::{OpenptyResult, Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::contender::{Contender, Launcher, Place, Testbed};
use super::table::{Bar, Rounds, Row, Table};
use crate::dist::{self, Profile};
use crate::{Account, LabError};

/// Ranks that are watched.
const PROGRAM: [&str; 3] = ["sh", "-c", "echo up; exec sleep 1000"];
/// Maximum share of a CPU at the default interval, in percent.
const BAR: f64 = 2.0;
/// Time that a page has to connect to the job and to draw itself, in seconds.
const WARM_UP: u32 = 3;
/// Time for the start and the end of the job, in seconds.
const AROUND: u32 = 60;
/// Size of the terminal: most columns of the page are shown.
const SIZE: Winsize = Winsize { ws_row: 50, ws_col: 160, ws_xpixel: 0, ws_ypixel: 0 };
/// Clock ticks of /proc per second, on every machine that rlaunch is built for.
const TICKS: f64 = 100.0;

/// Options of the bench.
#[derive(Debug, Clone, Args)]
pub struct MonitorOptions {
    /// Number of hosts.
    #[arg(long, default_value_t = 4)]
    hosts: usize,
    /// Number of ranks on each host.
    #[arg(long, default_value_t = 4)]
    per_host: usize,
    /// Seconds for which each page is measured.
    #[arg(long, default_value_t = 20)]
    seconds: u32,
    /// Number of pages, one after the other.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
}

/// Measures and prints; returns whether the bar is met.
pub(super) fn run(options: &MonitorOptions) -> Result<bool, LabError> {
    let MonitorOptions { hosts, per_host, seconds, rounds } = *options;
    let rlaunch = dist::build(Profile::Release)?;
    let mut table = Table::new(["monitor"], [Row::new("CPU", "%", &[Bar::Median(BAR)])]);
    let pages = u32::try_from(rounds).unwrap_or(u32::MAX);
    let limit = pages.saturating_mul(seconds + WARM_UP).saturating_add(AROUND);
    Testbed::with_fresh(hosts, |testbed| {
        let place = Place { limit, ..testbed.all(per_host) };
        let job = Job::start(&Contender::new(Launcher::Rlaunch, &rlaunch), place)?;
        let time = Duration::from_secs(seconds.into());
        table.measure(Rounds::without_warm_up(rounds), |_| {
            Ok(vec![Some(watch(testbed, &rlaunch, time)? * 100.0)])
        })?;
        drop(job);
        Ok(())
    })?;
    Ok(table.print(&format!("a page with {} ranks on {hosts} hosts", hosts * per_host)))
}

/// Running job, which ends when this is dropped.
struct Job {
    child: Child,
    /// A launcher whose reader is gone would end the job.
    output: BufReader<ChildStdout>,
}

impl Job {
    /// Starts a job, and waits until its ranks run.
    fn start(rlaunch: &Contender, place: Place<'_>) -> Result<Job, LabError> {
        let mut command = rlaunch.command(place, &[], &PROGRAM);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(LabError::io("start a job"))?;
        let output = child.stdout.take();
        let output = output.ok_or_else(|| LabError::Unexpected("a job has no stdout".into()))?;
        let mut job = Job { child, output: BufReader::new(output) };
        let lines = BufRead::lines(&mut job.output).take(place.ranks());
        let up = lines.map_while(Result::ok).filter(|line| line == "up").count();
        if up == place.ranks() {
            return Ok(job);
        }
        Err(LabError::Unexpected(format!("{up} of {} ranks have started", place.ranks())))
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM);
        let _ = self.child.wait();
    }
}

/// Watches the job for some time; returns the share of a CPU that the page takes.
fn watch(testbed: &Testbed, rlaunch: &Path, time: Duration) -> Result<f64, LabError> {
    let failed = || LabError::io("run rlaunch monitor");
    let (mut screen, end) = terminal().map_err(failed())?;
    let shared = || end.try_clone().map_err(failed());
    let mut command = testbed.lab.exec_in(Account::Root, Path::new("/"));
    command.args(["setsid", "--ctty"]).arg(rlaunch).arg("monitor").env("TERM", "xterm");
    command.stdin(shared()?).stdout(shared()?).stderr(shared()?);
    let mut page = command.spawn().map_err(failed())?;
    drop((command, end));
    // Reading fails once the page has closed the terminal.
    let reader = thread::spawn(move || io::copy(&mut screen, &mut io::sink()));
    let measured = share(page.id(), time);
    let ended = page.try_wait().map_err(failed())?;
    let _ = page.kill();
    let _ = page.wait();
    let _ = reader.join();
    match ended {
        None => measured.map_err(failed()),
        Some(status) => Err(LabError::Unexpected(format!("rlaunch monitor: {status}"))),
    }
}

/// Returns the share of a CPU that a process takes, for some time from when it has warmed up.
fn share(pid: u32, time: Duration) -> io::Result<f64> {
    thread::sleep(Duration::from_secs(WARM_UP.into()));
    let (before, began) = (cpu_seconds(pid)?, Instant::now());
    thread::sleep(time);
    Ok((cpu_seconds(pid)? - before) / began.elapsed().as_secs_f64())
}

/// Returns the CPU time that a process has taken, in seconds.
fn cpu_seconds(pid: u32) -> io::Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    parse_cpu(&stat).ok_or_else(|| io::Error::other(format!("no times in {stat:?}")))
}

/// Adds up the times in user and kernel mode: fields 14 and 15, where the name in brackets is the second.
fn parse_cpu(stat: &str) -> Option<f64> {
    let (_, behind) = stat.rsplit_once(") ")?;
    let times = behind.split(' ').skip(11).take(2);
    let times: Option<Vec<f64>> = times.map(|ticks| ticks.parse().ok()).collect();
    times.filter(|times| times.len() == 2).map(|times| times.iter().sum::<f64>() / TICKS)
}

/// Opens a terminal. Returns its reading end first.
fn terminal() -> io::Result<(File, OwnedFd)> {
    let OpenptyResult { master, slave } = openpty(Some(&SIZE), None)?;
    Ok((master.into(), slave))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_read_behind_any_name() {
        let stat = "7 (a) b) S 1 7 7 34816 7 4194304 1 0 0 0 150 50 9 9 20 0 5 0 1 1 1";
        assert_eq!(parse_cpu(stat), Some(2.0));
        assert_eq!(parse_cpu("7 (a) S 1"), None);
        assert!(cpu_seconds(std::process::id()).is_ok());
    }
}
