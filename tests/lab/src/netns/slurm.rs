//! Slurm on the hosts of a lab: a controller on the launch node, and a daemon on each host.
//!
//! The hosts' daemons use cgroups of version 1 where the kernel has them, and otherwise find processes by their parents, without
//! limits on CPUs.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::{Account, Lab, names};
use crate::LabError;
use crate::command::{run, wait_until};
use crate::files::{make_dir, remove_dir, write};

/// Script of each node.
const SCRIPT: &str = include_str!("slurm.sh");
/// Time limit for the nodes to register with the controller.
const START: Duration = Duration::from_secs(60);

/// Slurm that runs on a lab. It stays when this is dropped.
#[derive(Debug)]
pub struct Slurm<'a> {
    lab: &'a Lab,
    hosts: Vec<String>,
}

impl<'a> Slurm<'a> {
    /// Starts Slurm on `hosts`, and waits until all of them are idle.
    pub fn start(lab: &'a Lab, hosts: &[&str]) -> Result<Slurm<'a>, LabError> {
        let slurm = Slurm { lab, hosts: hosts.iter().map(|host| (*host).to_owned()).collect() };
        let directory = slurm.directory();
        remove_dir(&directory)?;
        make_dir(&directory)?;
        let readable = fs::set_permissions(&directory, fs::Permissions::from_mode(0o755));
        readable.map_err(LabError::io(format!("open {}", directory.display())))?;
        let mut key = [0; 64];
        let random = File::open("/dev/urandom").and_then(|mut random| random.read_exact(&mut key));
        random.map_err(LabError::io("make a key for munge"))?;
        let files = [
            ("slurm.conf", slurm.configuration()?.into_bytes(), 0o644),
            ("cgroup.conf", CGROUPS.into(), 0o644),
            ("munge.key", key.to_vec(), 0o600),
            ("slurm.sh", SCRIPT.into(), 0o644),
        ];
        for (name, bytes, mode) in &files {
            write(&directory.join(name), bytes, *mode)?;
            for host in &slurm.hosts {
                lab.write_file(host, &directory.join(name), bytes, *mode)?;
            }
        }
        slurm.each_node("start")?;
        let mut seen = String::new();
        let started = wait_until(START, "the nodes of Slurm to be idle", || {
            let mut sinfo = slurm.command(Account::Root);
            let output = sinfo.args(["sinfo", "-h", "-N", "-o", "%N %t"]).output();
            let output = output.map_err(LabError::io("run sinfo"))?;
            seen = String::from_utf8_lossy(&output.stdout).into_owned();
            Ok(seen.lines().count() == slurm.hosts.len()
                && seen.lines().all(|line| line.ends_with(" idle")))
        });
        started.map_err(|error| super::sshd::with_detail(error, &seen))?;
        Ok(slurm)
    }

    /// Makes a command for the launch node that knows of this Slurm; the caller appends the program and its arguments. It
    /// runs in a directory that all nodes have.
    pub fn command(&self, account: Account) -> Command {
        let mut command = self.lab.exec_in(account, Path::new("/tmp"));
        command.env("SLURM_CONF", self.conf());
        command
    }

    /// Returns the path of the configuration, which is the value of `SLURM_CONF` on each node.
    pub fn conf(&self) -> PathBuf {
        self.directory().join("slurm.conf")
    }

    /// Ends Slurm, and everything else that runs in the lab.
    pub fn stop(&self) -> Result<(), LabError> {
        self.lab.clear()?;
        self.each_node("stop")
    }

    fn directory(&self) -> PathBuf {
        Path::new("/tmp").join(format!("slurm-{}", self.lab.name()))
    }

    fn each_node(&self, verb: &str) -> Result<(), LabError> {
        let directory = self.directory();
        for node in [names::LAUNCH].into_iter().chain(self.hosts.iter().map(String::as_str)) {
            let mut command = match node {
                names::LAUNCH => self.lab.exec_in(Account::Root, Path::new("/")),
                host => self.lab.on(host, Account::Root)?,
            };
            command.args(["sh", "-c", SCRIPT, "slurm.sh", verb]).arg(&directory).arg(node);
            run(&format!("{verb} Slurm on {node}"), &mut command)?;
        }
        Ok(())
    }

    fn configuration(&self) -> Result<String, LabError> {
        let (directory, name) = (self.directory(), self.lab.name());
        let has_cgroups =
            fs::read_to_string("/proc/cgroups").is_ok_and(|text| has_first_version(&text));
        let (tracks, limits) = if has_cgroups {
            ("proctrack/cgroup", "task/affinity,task/cgroup")
        } else {
            ("proctrack/linuxproc", "task/affinity")
        };
        let launch = names::launch_address(self.lab.record.net);
        let mut text = format!("ClusterName={name}\nSlurmctldHost={}({launch})\n", names::LAUNCH);
        let _ = writeln!(text, "ProctrackType={tracks}\nTaskPlugin={limits}");
        text += &SETTINGS.replace("DIRECTORY", &directory.display().to_string());
        for host in &self.hosts {
            let address = self.lab.address(host)?;
            let _ = writeln!(text, "NodeName={host} NodeAddr={address} {NODE}");
        }
        let _ =
            writeln!(text, "PartitionName=lab Nodes={} Default=YES State=UP", self.hosts.join(","));
        Ok(text)
    }
}

/// Tells by the text of `/proc/cgroups` whether the controllers that Slurm needs are those of version 1.
fn has_first_version(text: &str) -> bool {
    let is_first = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('\t'));
        line.and_then(|line| line.split('\t').next()).is_some_and(|hierarchy| hierarchy != "0")
    };
    is_first("freezer") && is_first("cpuset")
}

const CGROUPS: &str = "\
CgroupPlugin=cgroup/v1
CgroupAutomount=no
ConstrainCores=yes
ConstrainRAMSpace=no
";

/// Processors and memory that each node has, whatever the machine has.
const NODE: &str = "CPUs=2 Sockets=1 CoresPerSocket=2 ThreadsPerCore=1 RealMemory=1000";

const SETTINGS: &str = "\
AuthType=auth/munge
AuthInfo=socket=DIRECTORY/munge.socket
SlurmUser=root
StateSaveLocation=DIRECTORY/state
SlurmdSpoolDir=DIRECTORY/spool
SlurmctldPidFile=DIRECTORY/slurmctld.pid
SlurmdPidFile=DIRECTORY/slurmd.pid
SlurmctldLogFile=DIRECTORY/slurmctld.log
SlurmdLogFile=DIRECTORY/slurmd.log
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
ReturnToService=2
InactiveLimit=0
KillWait=3
MpiDefault=none
PrologFlags=Contain
LaunchParameters=use_interactive_step
JobAcctGatherType=jobacct_gather/linux
MailProg=/bin/true
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_of_cgroups_is_read() {
        let text = |freezer: u32| {
            format!("#subsys_name\thierarchy\ncpuset\t3\t1\t1\nfreezer\t{freezer}\t1\t1\n")
        };
        assert!(has_first_version(&text(6)));
        assert!(!has_first_version(&text(0)));
        assert!(!has_first_version("cpuset\t3\t1\t1\n"));
    }
}
