//! What the environment says of hosts, when the command line says nothing: whoever gave us these
//! machines has written down which they are.

pub(crate) mod mpijob;
mod pbs;
mod slurm;

pub(crate) use mpijob::{MpiJob, MpiJobError};
pub(crate) use pbs::PbsError;
pub(crate) use slurm::SlurmError;

use crate::hosts::Host;
use std::ffi::OsString;

/// Hosts of a scheduler's allocation.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Allocation {
    pub(crate) hosts: Vec<Host>,
    /// Who says so, as in `hosts of …`.
    pub(crate) source: String,
}

/// Hosts that somebody has set aside for this shell.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Scheduler(Allocation),
    /// What is set for mpirun or mpiexec in our place.
    MpiJob(MpiJob),
}

/// An allocation that cannot be followed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AllocationError {
    #[error(transparent)]
    Slurm(#[from] SlurmError),
    #[error(transparent)]
    Pbs(#[from] PbsError),
}

impl AllocationError {
    /// What the user can do.
    pub(crate) fn hint(&self) -> String {
        let variable = match self {
            AllocationError::Slurm(_) => slurm::NODES,
            AllocationError::Pbs(_) => pbs::FILE,
        };
        format!("-H names hosts, which then count; without {variable} nobody looks at the others")
    }
}

/// The first of Slurm, PBS and what is set for mpirun that these variables speak of.
pub(crate) fn find(
    env: impl Fn(&str) -> Option<OsString>,
) -> Result<Option<Found>, AllocationError> {
    if let Some(allocation) = slurm::hosts(&env)? {
        return Ok(Some(Found::Scheduler(allocation)));
    }
    if let Some(allocation) = pbs::hosts(&env)? {
        return Ok(Some(Found::Scheduler(allocation)));
    }
    Ok(MpiJob::from_environment(env).map(Found::MpiJob))
}

/// The text of a variable that is set to something.
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
                Some(Found::Scheduler(allocation)) => allocation.hosts[0].name.clone(),
                Some(Found::MpiJob(job)) => format!("mpirun's {}", job.hosts().unwrap()[0].name),
                None => String::new(),
            });
            settings.remove(0);
        }
        assert_eq!(found, ["s1", "p", "mpirun's p"]);
        assert_eq!(find(|_| None).unwrap(), None);
        assert_eq!(find(|_| Some(OsString::new())).unwrap(), None);
    }
}
