//! Hosts that a scheduler has allocated, found in this shell's environment variables.
//!
//! | file | subject |
//! |---|---|
//! | `slurm` | `salloc`, `sbatch` |
//! | `pbs` | PBS and Torque |
//! | `mpijob` | variables that configure mpirun, as Kubernetes' mpi-operator sets them |

pub(crate) mod mpijob;
mod pbs;
mod slurm;

pub(crate) use mpijob::{MpiJob, MpiJobError};
pub(crate) use pbs::PbsError;
pub(crate) use slurm::SlurmError;

use rlaunch_plan::hosts::Host;
use std::ffi::OsString;

/// Hosts that a scheduler has allocated.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Allocation {
    pub(crate) hosts: Vec<Host>,
    /// Description of the allocation for messages: `Slurm's job 4711 (SLURM_JOB_NODELIST)`.
    pub(crate) source: String,
}

/// Hosts that environment variables name, by the kind of variables.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum AllocatedHosts {
    Scheduler(Allocation),
    /// Hosts of mpirun's or mpiexec's configuration.
    MpiJob(MpiJob),
}

/// Error in the variables of an allocation.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AllocationError {
    #[error(transparent)]
    Slurm(#[from] SlurmError),
    #[error(transparent)]
    Pbs(#[from] PbsError),
}

impl AllocationError {
    pub(crate) fn hint(&self) -> String {
        let variable = match self {
            AllocationError::Slurm(_) => slurm::NODES,
            AllocationError::Pbs(_) => pbs::FILE,
        };
        format!("-H names hosts, in place of those of {variable}")
    }
}

/// Finds the hosts of Slurm, or else of PBS, or else of mpirun's configuration; `None` if no variable names
/// hosts.
pub(crate) fn find(
    env: impl Fn(&str) -> Option<OsString>,
) -> Result<Option<AllocatedHosts>, AllocationError> {
    if let Some(allocation) = slurm::hosts(&env)? {
        return Ok(Some(AllocatedHosts::Scheduler(allocation)));
    }
    if let Some(allocation) = pbs::hosts(&env)? {
        return Ok(Some(AllocatedHosts::Scheduler(allocation)));
    }
    Ok(MpiJob::from_environment(env).map(AllocatedHosts::MpiJob))
}

/// Returns the text of a variable without surrounding spaces; `None` if that is empty.
fn text(env: &impl Fn(&str) -> Option<OsString>, name: &str) -> Option<String> {
    let value = env(name)?.to_string_lossy().trim().to_owned();
    Some(value).filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slurm_comes_first_and_then_pbs_and_then_mpirun() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("nodes");
        std::fs::write(&file, "p\n").unwrap();
        let mut settings = vec![
            (slurm::NODES, OsString::from("s1")),
            (pbs::FILE, file.clone().into_os_string()),
            ("OMPI_MCA_orte_default_hostfile", file.into_os_string()),
        ];
        let mut found = Vec::new();
        while !settings.is_empty() {
            let env = |name: &str| settings.iter().find(|(n, _)| *n == name).map(|s| s.1.clone());
            found.push(match find(env).unwrap() {
                Some(AllocatedHosts::Scheduler(allocation)) => allocation.hosts[0].name.clone(),
                Some(AllocatedHosts::MpiJob(job)) => {
                    format!("mpirun's {}", job.hosts().unwrap()[0].name)
                }
                None => String::new(),
            });
            settings.remove(0);
        }
        assert_eq!(found, ["s1", "p", "mpirun's p"]);
        assert_eq!(find(|_| None).unwrap(), None);
        assert_eq!(find(|_| Some(OsString::new())).unwrap(), None);
    }
}
