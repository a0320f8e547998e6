//! Variables by which Kubernetes' mpi-operator and others configure mpirun and mpiexec. rlaunch reads them, so that
//! it can replace mpirun in such a job without other changes.

use rlaunch_engine::connect::connector::{Rsh, RshError};
use rlaunch_plan::hosts::Host;
use rlaunch_plan::hosts::hostfile::{self, HostfileError};
use rlaunch_text::text;
use std::ffi::OsString;
use std::path::PathBuf;

/// Variables that name a hostfile: of Open MPI up to version 4, of Open MPI from version 5 on, of MPICH, and
/// of Intel MPI. The first that is set takes effect.
const HOSTFILES: &[&str] = &[
    "OMPI_MCA_orte_default_hostfile",
    "PRTE_MCA_prte_default_hostfile",
    "HYDRA_HOST_FILE",
    "I_MPI_HYDRA_HOST_FILE",
];

/// Pairs of variables: the first names a remote shell, the second has options for it.
const SHELLS: &[(&str, &str)] = &[
    ("OMPI_MCA_plm_rsh_agent", "OMPI_MCA_plm_rsh_args"),
    ("PRTE_MCA_plm_ssh_agent", "PRTE_MCA_plm_ssh_args"),
    ("HYDRA_LAUNCHER_EXEC", "HYDRA_LAUNCHER_EXTRA_ARGS"),
    ("HYDRA_BOOTSTRAP_EXEC", "HYDRA_LAUNCHER_EXTRA_ARGS"),
    ("I_MPI_HYDRA_BOOTSTRAP_EXEC", "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS"),
];

/// Variables that name the kind of a remote shell, such as `ssh` or `rsh`, and not a command.
const KINDS: &[&str] = &["HYDRA_LAUNCHER", "HYDRA_BOOTSTRAP", "I_MPI_HYDRA_BOOTSTRAP"];

/// Hostfile and remote shell that variables configure for mpirun.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MpiJob {
    hostfile: PathBuf,
    /// Variable that names the hostfile.
    variable: &'static str,
    /// Variable that configures a remote shell, and the shell's command line; `None` for rlaunch's own SSH.
    shell: Option<(&'static str, String)>,
}

/// Error in the hostfile that a variable of mpirun names.
#[derive(Debug, thiserror::Error)]
#[error("the hosts of {variable}")]
pub(crate) struct MpiJobError {
    variable: &'static str,
    source: HostfileError,
}

impl MpiJobError {
    pub(crate) fn hint(&self) -> String {
        format!("-H names hosts in its place; with `unset {}` the job runs here", self.variable)
    }
}

impl MpiJob {
    /// Reads the variables; returns `None` if none of them names a hostfile.
    pub(crate) fn from_environment(env: impl Fn(&str) -> Option<OsString>) -> Option<MpiJob> {
        let set = |name: &str| env(name).filter(|value| !value.is_empty());
        let text = |name: &str| Some(set(name)?.to_string_lossy().trim().to_owned());
        // In Open MPI, the value `none` stands for no file.
        let file = |name: &&'static str| Some((*name, set(name).filter(|file| file != "none")?));
        let (variable, hostfile) = HOSTFILES.iter().find_map(file)?;
        let named = SHELLS.iter().find_map(|(name, args)| Some((*name, text(name)?, text(args))));
        let by_kind = || {
            let rsh = KINDS.iter().find(|kind| text(kind).is_some_and(|kind| kind == "rsh"))?;
            Some((*rsh, "rsh".to_owned(), text("HYDRA_LAUNCHER_EXTRA_ARGS")))
        };
        let by_args = || {
            let (name, args) = SHELLS.iter().find_map(|(_, args)| Some((*args, text(args)?)))?;
            Some((name, "ssh".to_owned(), Some(args)))
        };
        let shell = named.or_else(by_kind).or_else(by_args);
        let shell =
            shell.and_then(|(name, command, args)| Some((name, shell_command(&command, args)?)));
        Some(MpiJob { hostfile: hostfile.into(), variable, shell })
    }

    pub(crate) fn hosts(&self) -> Result<Vec<Host>, MpiJobError> {
        let variable = self.variable;
        hostfile::read(&self.hostfile).map_err(|source| MpiJobError { variable, source })
    }

    /// Returns the remote shell; `None` if rlaunch's own SSH can take its place.
    pub(crate) fn rsh(&self) -> Result<Option<Rsh>, RshError> {
        self.shell.as_ref().map(|(name, words)| Rsh::parse(name, words)).transpose()
    }

    /// Returns the hostfile and its variable for messages: `/etc/mpi/hostfile (HYDRA_HOST_FILE)`.
    pub(crate) fn source(&self) -> String {
        format!("{} ({})", self.hostfile.display(), self.variable)
    }

    /// Describes the origin of `hosts`: `hosts of /etc/mpi/hostfile (HYDRA_HOST_FILE): a, b; by rsh`.
    pub(crate) fn origin(&self, hosts: &[Host]) -> String {
        let by = self.shell.as_ref().map(|(_, words)| format!("; by {words}")).unwrap_or_default();
        format!("hosts of {}: {}{by}", self.source(), text::list(hosts))
    }
}

/// Joins a remote shell and its options to one command line; returns `None` if rlaunch's own SSH can take its
/// place.
pub(crate) fn shell_command(command: &str, args: Option<String>) -> Option<String> {
    // Open MPI takes the first of `ssh : rsh` that is installed.
    let command = command.split(" : ").next().unwrap_or_default().trim();
    let args = args.unwrap_or_default();
    if command == "ssh" && only_retries(&args) {
        return None;
    }
    Some(format!("{command} {args}").trim().to_owned())
}

/// Tells whether options of ssh only ask for more connection attempts, which rlaunch makes by itself.
fn only_retries(args: &str) -> bool {
    let mut words = args.split_whitespace();
    while let Some(word) = words.next() {
        let option = match word.strip_prefix("-o") {
            Some("") => words.next().unwrap_or_default(),
            Some(option) => option,
            None => return false,
        };
        if !option.to_ascii_lowercase().starts_with("connectionattempts") {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads the variables `settings`, and returns the hostfile's variable and the remote shell's command
    /// line.
    fn parsed(settings: &[(&str, &str)]) -> Option<(&'static str, Option<String>)> {
        let value =
            |name: &str| settings.iter().find(|(n, _)| *n == name).map(|(_, v)| OsString::from(v));
        let job = MpiJob::from_environment(value)?;
        assert_eq!(job.hostfile, PathBuf::from("/etc/mpi/hostfile"));
        Some((job.variable, job.shell.map(|(_, words)| words)))
    }

    const OPEN_MPI: (&str, &str) = ("OMPI_MCA_orte_default_hostfile", "/etc/mpi/hostfile");

    #[test]
    fn mpi_operator_v1alpha1_leads_by_kubexec() {
        let kubexec = ("OMPI_MCA_plm_rsh_agent", "/etc/mpi/kubexec.sh");
        assert_eq!(parsed(&[OPEN_MPI, kubexec]), Some((OPEN_MPI.0, Some(kubexec.1.to_owned()))));
        let job = MpiJob::from_environment(|name| {
            [OPEN_MPI, kubexec].iter().find(|(n, _)| *n == name).map(|(_, v)| OsString::from(v))
        });
        let hosts = rlaunch_plan::hosts::parse(&["rl-worker-0,rl-worker-1".into()]).unwrap();
        assert_eq!(
            job.unwrap().origin(&hosts),
            "hosts of /etc/mpi/hostfile (OMPI_MCA_orte_default_hostfile): rl-worker-0, \
             rl-worker-1; by /etc/mpi/kubexec.sh"
        );
    }

    #[test]
    fn mpi_operator_v2beta1_leads_by_ssh() {
        let again = "-o ConnectionAttempts=10";
        assert_eq!(parsed(&[OPEN_MPI, ("OMPI_MCA_plm_rsh_args", again)]), Some((OPEN_MPI.0, None)));
        let mpich = ("HYDRA_HOST_FILE", "/etc/mpi/hostfile");
        assert_eq!(parsed(&[mpich, ("HYDRA_LAUNCH_EXTRA_ARGS", again)]), Some((mpich.0, None)));
        let intel = ("I_MPI_HYDRA_HOST_FILE", "/etc/mpi/hostfile");
        let args = ("I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS", again);
        assert_eq!(parsed(&[intel, args]), Some((intel.0, None)));
        let newer = ("PRTE_MCA_prte_default_hostfile", "/etc/mpi/hostfile");
        assert_eq!(parsed(&[newer]), Some((newer.0, None)));
    }

    #[test]
    fn a_shell_of_its_own_is_called_as_it_is_named() {
        let words =
            |settings: &[(&str, &str)]| parsed(&[&[OPEN_MPI][..], settings].concat()).unwrap().1;
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(words(&[("OMPI_MCA_plm_rsh_agent", "ssh : rsh")]), None);
        assert_eq!(words(&[("OMPI_MCA_plm_rsh_agent", "rsh")]), some("rsh"));
        assert_eq!(words(&[("OMPI_MCA_plm_rsh_args", "-p 2222")]), some("ssh -p 2222"));
        let hydra = [("HYDRA_LAUNCHER_EXEC", "/k.sh"), ("HYDRA_LAUNCHER_EXTRA_ARGS", "-c x")];
        assert_eq!(words(&hydra), some("/k.sh -c x"));
        assert_eq!(words(&[("HYDRA_LAUNCHER", "rsh")]), some("rsh"));
        assert_eq!(words(&[("HYDRA_LAUNCHER", "ssh")]), None);
    }

    #[test]
    fn without_a_hostfile_there_is_nothing_to_follow() {
        assert_eq!(parsed(&[]), None);
        assert_eq!(parsed(&[("OMPI_MCA_plm_rsh_agent", "/etc/mpi/kubexec.sh")]), None);
        assert_eq!(parsed(&[(OPEN_MPI.0, "none")]), None);
        assert_eq!(parsed(&[(OPEN_MPI.0, "")]), None);
    }
}
