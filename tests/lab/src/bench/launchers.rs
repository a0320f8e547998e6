//! Command lines of rlaunch and its peers for starting a program on every host.

use std::path::Path;
use std::process::Command;

use super::testbed::Testbed;
use crate::Account;

/// Script that starts a program by plain ssh, with its fastest key exchange: newer defaults take
/// three times as long. Arguments: program, hosts.
const PLAIN_SSH: &str = r#"program=$1; shift
    for host; do ssh -o KexAlgorithms=curve25519-sha256 $host "$program" & done; wait"#;

/// Program that starts another one on many hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Launcher {
    Rlaunch,
    Hydra,
    OpenMpi,
    PlainSsh,
}

impl Launcher {
    pub(super) const ALL: [Launcher; 4] =
        [Launcher::Rlaunch, Launcher::Hydra, Launcher::OpenMpi, Launcher::PlainSsh];

    /// Launchers with services through which ranks exchange data, rlaunch first.
    pub(super) const WITH_SERVICES: [Launcher; 3] =
        [Launcher::Rlaunch, Launcher::Hydra, Launcher::OpenMpi];

    pub(super) fn name(self) -> &'static str {
        match self {
            Launcher::Rlaunch => "rlaunch",
            Launcher::Hydra => "hydra",
            Launcher::OpenMpi => "mpirun",
            Launcher::PlainSsh => "ssh",
        }
    }

    /// Makes the command for `per_host` ranks of `program` on every host. The command runs in `/`,
    /// since Hydra and Open MPI need the current directory on every host, and its process becomes
    /// the launcher.
    pub(super) fn command(self, testbed: &Testbed, per_host: usize, program: &[&str]) -> Command {
        self.command_with(&[], testbed, per_host, program)
    }

    /// Makes the command with options of this launcher; plain ssh takes none.
    pub(super) fn command_with(
        self,
        options: &[&str],
        testbed: &Testbed,
        per_host: usize,
        program: &[&str],
    ) -> Command {
        self.command_on(&testbed.hosts, options, testbed, per_host, program)
    }

    /// Makes the command for these hosts only.
    pub(super) fn command_on(
        self,
        hosts: &[String],
        options: &[&str],
        testbed: &Testbed,
        per_host: usize,
        program: &[&str],
    ) -> Command {
        let mut command = testbed.lab.exec_in(Account::Root, Path::new("/"));
        let slots = |host: &String| format!("{host}:{per_host}");
        let slots = hosts.iter().map(slots).collect::<Vec<_>>().join(",");
        let count = (hosts.len() * per_host).to_string();
        match self {
            Launcher::Rlaunch => command
                .arg(&testbed.rlaunch)
                .args(["-H", &slots, "-np", &count])
                .args(options)
                .args(program),
            Launcher::Hydra => command
                .args(["mpiexec.hydra", "-launcher", "ssh", "-hosts", &hosts.join(",")])
                .args(["-n", &count, "-ppn", &per_host.to_string()])
                .args(options)
                .args(program),
            Launcher::OpenMpi => command
                .args(["mpirun.openmpi", "--allow-run-as-root", "-H", &slots, "-np", &count])
                .args(options)
                .args(program),
            Launcher::PlainSsh => {
                command.args(["sh", "-c", PLAIN_SSH, "sh", &program.join(" ")]).args(hosts)
            }
        };
        command
    }
}
