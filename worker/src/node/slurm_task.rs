//! Process of a Slurm job on this host, which an agent that sshd has started keeps to: sshd knows nothing of the CPUs that the
//! job has.

use nix::sched::{sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use std::ffi::OsString;
use std::fs;

/// Task that the launcher has started by a step of srun.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SlurmTask {
    job: String,
    process: Pid,
}

impl SlurmTask {
    /// Takes the job's id and the task's process from the words of a command line.
    pub(crate) fn parse(words: &mut impl Iterator<Item = OsString>) -> Result<SlurmTask, ()> {
        let mut word = || words.next().and_then(|word| word.into_string().ok()).ok_or(());
        let (job, process) = (word()?, word()?.parse().map_err(drop)?);
        Ok(SlurmTask { job, process: Pid::from_raw(process) })
    }

    /// Binds this process to the CPUs of the task. Does nothing in a container, where that process is another one or none.
    pub(crate) fn share_cpus(&self) {
        if self.is_of_job() {
            // Fails only for more CPUs than a set of the C library has, or once the task has ended: the launcher hears of that.
            let cpus = sched_getaffinity(self.process);
            let _ = cpus.and_then(|cpus| sched_setaffinity(Pid::from_raw(0), &cpus));
        }
    }

    fn is_of_job(&self) -> bool {
        let environment = fs::read(format!("/proc/{}/environ", self.process)).unwrap_or_default();
        let wanted = format!("SLURM_JOB_ID={}", self.job);
        environment.split(|&byte| byte == 0).any(|variable| variable == wanted.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn only_a_process_of_the_job_counts() {
        let parse = |line: &str| {
            SlurmTask::parse(&mut line.split(' ').map(OsString::from)).map(|task| task.is_of_job())
        };
        let mut task = Command::new("cat");
        let mut task = task.env("SLURM_JOB_ID", "7").stdin(Stdio::piped()).spawn().unwrap();
        assert_eq!(parse(&format!("7 {}", task.id())), Ok(true));
        assert_eq!(parse(&format!("77 {}", task.id())), Ok(false));
        assert_eq!(parse(&format!("7 {}", std::process::id())), Ok(false));
        assert_eq!(parse("7 x"), Err(()));
        assert_eq!(parse("7"), Err(()));
        drop(task.stdin.take());
        task.wait().unwrap();
    }
}
