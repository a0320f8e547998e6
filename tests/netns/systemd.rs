//! Machines with a real systemd as process 1, in cgroups of their own.

use rlaunch_lab::command::wait_until;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Time limit for what a machine does as a whole.
pub(crate) const BOUND: Duration = Duration::from_secs(60);

/// Process that keeps a machine. When this is dropped, it ends, and all that is in its cgroup.
pub(crate) struct Keeper {
    pub(crate) outer: Child,
    pub(crate) cgroup: PathBuf,
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let _ = self.outer.kill();
        let _ = self.outer.wait();
        let _ = fs::write(self.cgroup.join("cgroup.kill"), "1");
        let mut remove = Command::new("find");
        remove.arg(&self.cgroup).args(["-depth", "-type", "d", "-exec", "rmdir", "{}", "+"]);
        remove.stderr(Stdio::null());
        // Killed processes leave it a moment later.
        let removed = wait_until(BOUND, "the end of a machine", || {
            let _ = remove.status();
            Ok(!self.cgroup.exists())
        });
        assert!(removed.is_ok() || std::thread::panicking(), "{}", self.cgroup.display());
    }
}

/// Runs a shell line as root in the namespaces of a process, outside of any session, and returns what it prints.
pub(crate) fn run_in(process: &str, line: &str) -> String {
    let mut command = Command::new("nsenter");
    command.args(["--target", process, "--mount", "--pid", "--uts", "--ipc", "--net"]);
    command.args(["--cgroup", "--root", "--", "env", "-i"]);
    command.args(["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "sh", "-c"]);
    command.arg(format!("cd /; {line}")).stdin(Stdio::null()).stderr(Stdio::null());
    String::from_utf8(command.output().unwrap().stdout).unwrap()
}
