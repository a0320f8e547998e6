//! Use of NVIDIA GPUs, for `rlaunch monitor`.
//!
//! NVML is a library that a static program cannot load, so the driver's own program is asked: `nvidia-smi` prints
//! what NVML tells, once a second. It runs only while there are questions.

use crate::node;
use rlaunch_bootstrap::decimal;
use rlaunch_bootstrap::inventory::traffic::GpuUsage;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Program of the driver.
const PROGRAM: &str = "nvidia-smi";
/// Columns of its output, and its interval in seconds.
const COLUMNS: &str =
    "--query-gpu=index,utilization.gpu,memory.used,memory.total,power.draw,temperature.gpu";
const FORMAT: &str = "--format=csv,noheader,nounits";
const EACH_SECOND: &str = "--loop=1";
/// Time without a question after which the program is left to end: longer than the interval at which Prometheus asks.
const IDLE: Duration = Duration::from_secs(90);
/// Age beyond which a reading is not told.
const MAX_AGE: Duration = Duration::from_secs(5);
/// Time that the first reading may take. Without the driver's persistence mode it takes seconds.
const FIRST: Duration = Duration::from_secs(3);
/// Maximum number of GPUs in an answer, against a program that prints ever new numbers.
const MAX_GPUS: usize = 64;
const MIB: u64 = 1 << 20;

/// Reader of the use of this host's GPUs.
#[derive(Debug)]
pub(crate) struct GpuMonitor {
    program: &'static str,
    shared: Arc<Shared>,
}

/// Readings, and the event that there are some or that there will be none.
#[derive(Debug, Default)]
struct Shared {
    readings: Mutex<Readings>,
    has_changed: Condvar,
}

/// Last readings, and whether there will be others.
#[derive(Debug, Default)]
struct Readings {
    state: ReaderState,
    /// Time of the last question.
    asked: Option<Instant>,
    /// Readings by GPU, each with its time.
    gpus: Vec<(Instant, GpuUsage)>,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum ReaderState {
    /// The program may be started.
    #[default]
    Idle,
    Running,
    /// The program is absent, ended without a reading, or could not be read. It is not started again.
    Failed,
}

impl GpuMonitor {
    /// Makes a monitor, which does nothing until it is asked.
    pub(crate) fn new() -> GpuMonitor {
        GpuMonitor { program: PROGRAM, shared: Arc::default() }
    }

    /// Returns the readings of the last seconds; none at first. If this starts the program, also returns its process, which
    /// ends by itself when it prints more than 90 s after the last question.
    pub(crate) fn read_or_start(&self) -> (Vec<GpuUsage>, Option<Child>) {
        let mut readings = self.shared.lock();
        readings.asked = Some(Instant::now());
        let started = (readings.state == ReaderState::Idle).then(|| self.start(&mut readings));
        let fresh = readings.gpus.iter().filter(|(at, _)| at.elapsed() < MAX_AGE);
        (fresh.map(|(_, gpu)| gpu.clone()).collect(), started.flatten())
    }

    /// Waits for the first reading, unless the host has none.
    pub(crate) fn await_first(&self) {
        let is_awaited = |readings: &mut Readings| {
            readings.gpus.is_empty() && readings.state == ReaderState::Running
        };
        // Without a reading in time there is none to show.
        drop(self.shared.has_changed.wait_timeout_while(self.shared.lock(), FIRST, is_awaited));
    }

    fn start(&self, readings: &mut Readings) -> Option<Child> {
        let mut command = Command::new(self.program);
        command.args([COLUMNS, FORMAT, EACH_SECOND]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = rlaunch_sys::spawn(&mut command).ok();
        readings.state = match child.as_mut().and_then(|child| child.stdout.take()) {
            None => ReaderState::Failed,
            Some(stdout) => {
                let shared = self.shared.clone();
                // Without a thread the pipe is closed, and the program ends when it prints.
                match node::start_thread(None, Box::new(move || read_gpus(stdout, &shared))) {
                    Ok(()) => ReaderState::Running,
                    Err(_) => ReaderState::Failed,
                }
            }
        };
        child
    }
}

/// Keeps what the program prints until it ends or is no longer needed. It ends when it prints to the closed pipe.
fn read_gpus(stdout: ChildStdout, shared: &Shared) {
    for line in BufReader::new(stdout).lines() {
        let Ok(line) = line else { break };
        // A GPU that has failed has a sentence in place of a line; the others go on.
        let Some(gpu) = parse_gpu(&line) else { continue };
        let mut readings = shared.lock();
        readings.gpus.retain(|(_, known)| known.index != gpu.index);
        if readings.gpus.len() < MAX_GPUS {
            let at = readings.gpus.partition_point(|(_, known)| known.index < gpu.index);
            readings.gpus.insert(at, (Instant::now(), gpu));
        }
        if readings.asked.is_none_or(|asked| asked.elapsed() > IDLE) {
            readings.state = ReaderState::Idle;
            return;
        }
        drop(readings);
        shared.has_changed.notify_all();
    }
    let mut readings = shared.lock();
    // A program that has worked is started again by the next question.
    let has_worked = !readings.gpus.is_empty();
    readings.gpus.clear();
    readings.state = if has_worked { ReaderState::Idle } else { ReaderState::Failed };
    drop(readings);
    shared.has_changed.notify_all();
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Readings> {
        self.readings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Parses a line, in which values that a GPU does not have are words in brackets.
fn parse_gpu(line: &str) -> Option<GpuUsage> {
    let values: Vec<&str> = line.split(',').map(str::trim).collect();
    let [index, busy, used, memory, power, temperature] = values[..] else { return None };
    let bytes = |text: &str| text.parse::<u64>().ok().map(|mib| mib.saturating_mul(MIB));
    Some(GpuUsage {
        index: index.parse().ok()?,
        busy_percent: busy.parse().ok(),
        memory_used: bytes(used),
        memory: bytes(memory),
        power_mw: decimal::thousandths(power),
        temperature: temperature.parse().ok(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::thread;

    /// Monitor that asks a script.
    fn monitor(script: &str) -> (tempfile::TempDir, GpuMonitor) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("nvidia-smi");
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
        let program = Box::leak(path.display().to_string().into_boxed_str());
        (directory, GpuMonitor { program, shared: Arc::default() })
    }

    fn wait_until(mut done: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !done() {
            assert!(Instant::now() < deadline, "not within 20 s");
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn lines_are_readings_and_missing_values_are_none() {
        let full = parse_gpu("1, 97, 71234, 81559, 612.34, 63").unwrap();
        let GpuUsage { index, busy_percent, memory_used, power_mw, temperature, .. } = full;
        assert_eq!((index, busy_percent, temperature), (1, Some(97), Some(63)));
        assert_eq!((memory_used, power_mw), (Some(71234 << 20), Some(612_340)));
        let without = parse_gpu("0, [N/A], 3, 16, [Not Supported], 40").unwrap();
        assert_eq!(
            (without.busy_percent, without.power_mw, without.memory),
            (None, None, Some(16 << 20))
        );
        assert!(parse_gpu("No devices were found").is_none());
    }

    #[test]
    fn readings_are_kept_while_the_program_runs() {
        let script = "echo '1, 5, 1, 2, 3, 4'; echo '0, 6, 1, 2, 3, 4'; exec sleep 1000";
        let (_directory, monitor) = monitor(script);
        let (none, child) = monitor.read_or_start();
        assert!(none.is_empty());
        monitor.await_first();
        wait_until(|| monitor.read_or_start().0.len() == 2);
        let (gpus, again) = monitor.read_or_start();
        assert_eq!(gpus.iter().map(|gpu| gpu.index).collect::<Vec<_>>(), [0, 1]);
        assert!(again.is_none(), "one program is enough");
        let mut child = child.unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_host_without_a_working_program_is_asked_once() {
        let absent = GpuMonitor { program: "/nonexistent/nvidia-smi", shared: Arc::default() };
        assert!(absent.read_or_start().1.is_none() && absent.read_or_start().1.is_none());
        let (_directory, broken) = monitor("echo 'NVIDIA-SMI has failed'; exit 9");
        let mut child = broken.read_or_start().1.unwrap();
        broken.await_first();
        assert_eq!(broken.shared.lock().state, ReaderState::Failed);
        assert!(broken.read_or_start().1.is_none());
        child.wait().unwrap();
    }
}
