//! Peak memory of agents.

use std::fs;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use super::MpiSetting;
use crate::LabError;
use crate::command::last_lines;

/// Seconds for which ranks sleep at least, so that agents can be looked at.
pub(super) const HELD: &str = "2";
/// Time between two looks at the agents.
const PAUSE: Duration = Duration::from_millis(20);
/// File name of the agent.
const AGENT: &str = "rlaunch-worker";

impl MpiSetting<'_> {
    /// Runs a job under rlaunch; returns the peak resident memory of its largest agent in MiB. The
    /// agents are looked at until they end, which costs time, so this run is not timed.
    pub(super) fn agent_memory(&self, program: &[&str]) -> Result<f64, LabError> {
        let operation = || LabError::io(format!("run {}", program.join(" ")));
        let mut command = self.rlaunch(&[], program);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(operation())?;
        let mut peak = 0;
        while child.try_wait().map_err(operation())?.is_none() {
            peak = peak.max(self.largest_agent());
            thread::sleep(PAUSE);
        }
        let output = child.wait_with_output().map_err(operation())?;
        self.testbed.wait_until_idle()?;
        if !output.status.success() || peak == 0 {
            let stderr = last_lines(&String::from_utf8_lossy(&output.stderr), 10);
            return Err(LabError::Unexpected(format!(
                "{} ended with {} and its agents had at most {peak} KiB\n{stderr}",
                program.join(" "),
                output.status
            )));
        }
        // Exact: no agent takes 2^53 KiB.
        Ok(peak as f64 / 1024.0)
    }

    /// Returns the peak resident memory until now of the largest agent that runs, in KiB.
    fn largest_agent(&self) -> u64 {
        let processes = self.testbed.lab.all_processes();
        let agents = processes
            .iter()
            .filter(|process| process.args.first().is_some_and(|name| name.ends_with(AGENT)));
        agents.filter_map(|agent| peak_memory(agent.pid)).max().unwrap_or(0)
    }
}

/// Returns the peak resident memory of an agent until now in KiB, or nothing if it has ended.
fn peak_memory(pid: i32) -> Option<u64> {
    parse_peak(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
}

/// Reads the peak from a status file. A child of an agent may have become another program since it
/// was found.
fn parse_peak(status: &str) -> Option<u64> {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    field("Name:").filter(|name| name.trim() == AGENT)?;
    let line = field("VmHWM:")?;
    line.trim().trim_end_matches("kB").trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_read_in_kibibytes() {
        let status = "Name:\trlaunch-worker\nVmHWM:\t    5128 kB\nVmRSS:\t 12 kB\n";
        assert_eq!(parse_peak(status), Some(5128));
        assert_eq!(parse_peak(&status.replace("rlaunch-worker", "true")), None);
        // A zombie has no memory.
        assert_eq!(parse_peak("Name:\trlaunch-worker\nState:\tZ (zombie)\n"), None);
    }
}
