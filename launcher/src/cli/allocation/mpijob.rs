//! The variables by which Kubernetes' mpi-operator and others configure mpirun and mpiexec, so that
//! rlaunch takes their place in a job as it is.

use crate::connect::connector::{Rsh, RshError};
use crate::hosts::Host;
use crate::hosts::hostfile::{self, HostfileError};
use rlaunch_console::text;
use std::ffi::OsString;
use std::path::PathBuf;

/// Variables that name a hostfile, the first that is set counts: Open MPI up to 4 and from 5 on,
/// MPICH, Intel MPI.
const HOSTFILES: &[&str] = &[
    "OMPI_MCA_orte_default_hostfile",
    "PRTE_MCA_prte_default_hostfile",
    "HYDRA_HOST_FILE",
    "I_MPI_HYDRA_HOST_FILE",
];

/// Variables that name a remote shell, and those that name its options.
const SHELLS: &[(&str, &str)] = &[
    ("OMPI_MCA_plm_rsh_agent", "OMPI_MCA_plm_rsh_args"),
    ("PRTE_MCA_plm_ssh_agent", "PRTE_MCA_plm_ssh_args"),
    ("HYDRA_LAUNCHER_EXEC", "HYDRA_LAUNCHER_EXTRA_ARGS"),
    ("HYDRA_BOOTSTRAP_EXEC", "HYDRA_LAUNCHER_EXTRA_ARGS"),
    ("I_MPI_HYDRA_BOOTSTRAP_EXEC", "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS"),
];

/// Variables that name a remote shell by its kind.
const KINDS: &[&str] = &["HYDRA_LAUNCHER", "HYDRA_BOOTSTRAP", "I_MPI_HYDRA_BOOTSTRAP"];

/// The hosts and the way to them, as an environment has them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MpiJob {
    hostfile: PathBuf,
    /// The variable that names it.
    variable: &'static str,
    /// The variable that names a remote shell, and its words.
    shell: Option<(&'static str, String)>,
}

/// An environment that cannot be followed.
#[derive(Debug, thiserror::Error)]
#[error("the hosts of {variable}")]
pub(crate) struct MpiJobError {
    variable: &'static str,
    source: HostfileError,
}

impl MpiJobError {
    /// What the user can do.
    pub(crate) fn hint(&self) -> String {
        format!("-H names hosts, which then count; `unset {}` is this machine alone", self.variable)
    }
}

impl MpiJob {
    /// What these variables say; `None` where none of them names a hostfile.
    pub(crate) fn from_environment(env: impl Fn(&str) -> Option<OsString>) -> Option<MpiJob> {
        let set = |name: &str| env(name).filter(|value| !value.is_empty());
        let text = |name: &str| Some(set(name)?.to_string_lossy().trim().to_owned());
        // Open MPI's word for no file.
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
        let shell = shell.and_then(|(name, command, args)| Some((name, words(&command, args)?)));
        Some(MpiJob { hostfile: hostfile.into(), variable, shell })
    }

    /// The hosts of its file.
    pub(crate) fn hosts(&self) -> Result<Vec<Host>, MpiJobError> {
        let variable = self.variable;
        hostfile::read(&self.hostfile).map_err(|source| MpiJobError { variable, source })
    }

    /// The command that leads there; `None` where that is SSH.
    pub(crate) fn rsh(&self) -> Result<Option<Rsh>, RshError> {
        self.shell.as_ref().map(|(name, words)| Rsh::parse(name, words)).transpose()
    }

    /// `/etc/mpi/hostfile (OMPI_MCA_orte_default_hostfile)`
    pub(crate) fn source(&self) -> String {
        format!("{} ({})", self.hostfile.display(), self.variable)
    }

    /// `hosts of /etc/mpi/hostfile (OMPI_MCA_orte_default_hostfile): a, b`
    pub(crate) fn origin(&self, hosts: &[Host]) -> String {
        let by = self.shell.as_ref().map(|(_, words)| format!("; by {words}")).unwrap_or_default();
        format!("hosts of {}: {}{by}", self.source(), text::list(hosts))
    }
}

/// A remote shell and its options as one line; `None` where rlaunch's own SSH does the same.
pub(crate) fn words(command: &str, args: Option<String>) -> Option<String> {
    // Open MPI takes the first of `ssh : rsh` that it finds.
    let command = command.split(" : ").next().unwrap_or_default().trim();
    let args = args.unwrap_or_default();
    if command == "ssh" && is_patience(&args) {
        return None;
    }
    Some(format!("{command} {args}").trim().to_owned())
}

/// Whether options of ssh say no more than to try again, which rlaunch does by itself.
fn is_patience(args: &str) -> bool {
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

    /// What these settings mean: the hostfile's variable, and the words of a remote shell.
    fn of(settings: &[(&str, &str)]) -> Option<(&'static str, Option<String>)> {
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
        assert_eq!(of(&[OPEN_MPI, kubexec]), Some((OPEN_MPI.0, Some(kubexec.1.to_owned()))));
        let job = MpiJob::from_environment(|name| {
            [OPEN_MPI, kubexec].iter().find(|(n, _)| *n == name).map(|(_, v)| OsString::from(v))
        });
        let hosts = crate::hosts::parse(&["rl-worker-0,rl-worker-1".into()]).unwrap();
        assert_eq!(
            job.unwrap().origin(&hosts),
            "hosts of /etc/mpi/hostfile (OMPI_MCA_orte_default_hostfile): rl-worker-0, \
             rl-worker-1; by /etc/mpi/kubexec.sh"
        );
    }

    #[test]
    fn mpi_operator_v2beta1_leads_by_ssh() {
        let again = "-o ConnectionAttempts=10";
        assert_eq!(of(&[OPEN_MPI, ("OMPI_MCA_plm_rsh_args", again)]), Some((OPEN_MPI.0, None)));
        let mpich = ("HYDRA_HOST_FILE", "/etc/mpi/hostfile");
        assert_eq!(of(&[mpich, ("HYDRA_LAUNCH_EXTRA_ARGS", again)]), Some((mpich.0, None)));
        let intel = ("I_MPI_HYDRA_HOST_FILE", "/etc/mpi/hostfile");
        let args = ("I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS", again);
        assert_eq!(of(&[intel, args]), Some((intel.0, None)));
        let newer = ("PRTE_MCA_prte_default_hostfile", "/etc/mpi/hostfile");
        assert_eq!(of(&[newer]), Some((newer.0, None)));
    }

    #[test]
    fn a_shell_of_its_own_is_called_as_it_is_named() {
        let words =
            |settings: &[(&str, &str)]| of(&[&[OPEN_MPI][..], settings].concat()).unwrap().1;
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
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[("OMPI_MCA_plm_rsh_agent", "/etc/mpi/kubexec.sh")]), None);
        assert_eq!(of(&[(OPEN_MPI.0, "none")]), None);
        assert_eq!(of(&[(OPEN_MPI.0, "")]), None);
    }
}
