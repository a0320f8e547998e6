//! Environment as data: what goes along from the launching shell, and what each rank is told.

use crate::map::RankMap;
use rlaunch_bootstrap::env as names;
use rlaunch_bootstrap::id::{JobId, LocalRank, NodeId, Rank};
use rlaunch_bootstrap::job::{EnvRule, EnvVar};
use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};

/// A `-x` that cannot be meant.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EnvError {
    #[error("`-x {0}`: a variable's name is missing")]
    NoName(String),
    #[error("`-x {0}`: {0} is not set here")]
    Unset(String),
}

impl EnvError {
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            EnvError::NoName(_) => None,
            EnvError::Unset(name) => Some(format!("export {name} first, or use -x {name}=VALUE")),
        }
    }
}

/// What every rank gets from here: `own` without what belongs to one host or another launch, then
/// what `-x` asks for. Also returns the names that `-x` set.
pub(crate) fn forwarded(
    own: impl Iterator<Item = (OsString, OsString)>,
    asked: &[OsString],
) -> Result<(Vec<EnvVar>, Vec<String>), EnvError> {
    let own: Vec<(OsString, OsString)> = own.collect();
    let mut env: Vec<EnvVar> = Vec::new();
    for (name, value) in &own {
        let text = name.to_string_lossy();
        if names::is_node_own(&text) || names::is_foreign_launch(&text) {
            continue;
        }
        let rule = match &*text {
            names::PATH => EnvRule::PathBefore,
            names::PYTHONPATH => EnvRule::PathAfter,
            _ => EnvRule::Set,
        };
        env.push(EnvVar { name: name.clone(), value: value.clone(), rule });
    }
    if !own.iter().any(|(name, _)| name == names::PYTHONUNBUFFERED) {
        set(&mut env, names::PYTHONUNBUFFERED.into(), "1".into());
    }
    let mut explicit = Vec::new();
    ask(&mut env, &mut explicit, &own, asked)?;
    Ok((env, explicit))
}

/// The same for another program, which gets what the first does (`env`, and of it `explicit` by
/// `-x`), and what its own `-x` ask for.
pub(crate) fn extended(
    (mut env, mut explicit): (Vec<EnvVar>, Vec<String>),
    own: impl Iterator<Item = (OsString, OsString)>,
    asked: &[OsString],
) -> Result<(Vec<EnvVar>, Vec<String>), EnvError> {
    let own: Vec<(OsString, OsString)> = own.collect();
    ask(&mut env, &mut explicit, &own, asked)?;
    Ok((env, explicit))
}

fn ask(
    env: &mut Vec<EnvVar>,
    explicit: &mut Vec<String>,
    own: &[(OsString, OsString)],
    asked: &[OsString],
) -> Result<(), EnvError> {
    for asked in asked {
        let (name, value) = split(asked, own)?;
        explicit.push(name.to_string_lossy().into_owned());
        set(env, name, value);
    }
    Ok(())
}

fn set(env: &mut Vec<EnvVar>, name: OsString, value: OsString) {
    env.retain(|var| var.name != name);
    env.push(EnvVar { name, value, rule: EnvRule::Set });
}

/// `NAME=VALUE`, or `NAME` with the value it has here.
fn split(asked: &OsString, own: &[(OsString, OsString)]) -> Result<(OsString, OsString), EnvError> {
    let text = asked.to_string_lossy().into_owned();
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value.into())),
        None => (text.as_str(), own.iter().find(|(n, _)| n == asked).map(|(_, v)| v.clone())),
    };
    if name.is_empty() {
        return Err(EnvError::NoName(text));
    }
    let value = value.ok_or_else(|| EnvError::Unset(name.to_owned()))?;
    Ok((name.into(), value))
}

/// What only this rank is told, but for what `-x` has set.
pub(crate) fn of_rank(
    job: JobId,
    map: &RankMap,
    node: NodeId,
    local: LocalRank,
    explicit: &[String],
) -> Vec<(String, String)> {
    let Some(mapped) = map.nodes.get(node.index()) else { return Vec::new() };
    let rank = mapped.ranks.get(local.index()).copied().unwrap_or(Rank(0)).to_string();
    let local = local.to_string();
    let local_size = mapped.ranks.len().to_string();
    let (world, group) = (map.world_size.to_string(), node.to_string());
    let groups = map.nodes.len().to_string();
    let all = [
        (names::RANK, &rank),
        (names::WORLD_SIZE, &world),
        (names::LOCAL_RANK, &local),
        (names::LOCAL_WORLD_SIZE, &local_size),
        (names::GROUP_RANK, &group),
        (names::NODE_RANK, &group),
        (names::GROUP_WORLD_SIZE, &groups),
        (names::LOCAL_SIZE, &local_size),
        (names::CROSS_RANK, &group),
        (names::CROSS_SIZE, &groups),
        (names::OMPI_RANK, &rank),
        (names::OMPI_SIZE, &world),
        (names::OMPI_LOCAL_RANK, &local),
        (names::OMPI_LOCAL_SIZE, &local_size),
        (names::OMPI_NODE_RANK, &local),
        (names::RLAUNCH_RANK, &rank),
        (names::RLAUNCH_JOB_ID, &job.to_string()),
        (names::RLAUNCH_HOST, &mapped.host.name),
        (names::RLAUNCH_NODES, &groups),
    ];
    without(explicit, all.into_iter().map(|(name, value)| (name.to_owned(), value.clone())))
}

/// Where rank 0 can be met, but for what `-x` has set.
pub(crate) fn of_master(address: IpAddr, port: u16, explicit: &[String]) -> Vec<(String, String)> {
    let all = [
        (names::MASTER_ADDR, address.to_string()),
        (names::MASTER_PORT, port.to_string()),
        // Of what a job uses, only one listens there.
        (names::JAX_COORDINATOR_ADDRESS, SocketAddr::new(address, port).to_string()),
    ];
    without(explicit, all.into_iter().map(|(name, value)| (name.to_owned(), value)))
}

fn without(
    explicit: &[String],
    all: impl Iterator<Item = (String, String)>,
) -> Vec<(String, String)> {
    all.filter(|(name, _)| !explicit.contains(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell() -> Vec<(OsString, OsString)> {
        [("HOME", "/h"), ("PATH", "/bin"), ("NCCL_DEBUG", "INFO"), ("PMI_RANK", "0"), ("A", "1")]
            .map(|(n, v)| (n.into(), v.into()))
            .to_vec()
    }

    fn names(env: &[EnvVar]) -> Vec<String> {
        env.iter().map(|v| format!("{}={}", v.name.display(), v.value.display())).collect()
    }

    #[test]
    fn what_belongs_elsewhere_stays_here() {
        let (env, _) = forwarded(shell().into_iter(), &[]).unwrap();
        let expected = ["PATH=/bin", "NCCL_DEBUG=INFO", "A=1", "PYTHONUNBUFFERED=1"];
        assert_eq!(names(&env), expected);
    }

    #[test]
    fn what_is_asked_for_wins() {
        let asked = ["A=2", "HOME", "PYTHONUNBUFFERED=", "RANK=7"].map(OsString::from);
        let (env, explicit) = forwarded(shell().into_iter(), &asked).unwrap();
        assert_eq!(explicit, ["A", "HOME", "PYTHONUNBUFFERED", "RANK"]);
        let env = names(&env);
        for expected in ["A=2", "HOME=/h", "PYTHONUNBUFFERED=", "RANK=7"] {
            assert!(env.contains(&expected.to_owned()), "{expected}");
        }
        let map = RankMap::by_slot(&crate::hosts::parse(&["a:2,b".into()]).unwrap(), None, false);
        let own = of_rank(JobId(1), &map.unwrap(), NodeId(0), LocalRank(1), &explicit);
        assert!(own.contains(&("LOCAL_RANK".into(), "1".into())));
        assert!(!own.iter().any(|(name, _)| name == "RANK"));
    }

    #[test]
    fn another_program_has_what_the_first_has_and_its_own() {
        let first = forwarded(shell().into_iter(), &["A=2".into(), "B=1".into()]).unwrap();
        let own = ["B=3", "NCCL_DEBUG=WARN"].map(OsString::from);
        let (env, explicit) = extended(first, shell().into_iter(), &own).unwrap();
        assert_eq!(explicit, ["A", "B", "B", "NCCL_DEBUG"]);
        let expected = ["PATH=/bin", "PYTHONUNBUFFERED=1", "A=2", "B=3", "NCCL_DEBUG=WARN"];
        assert_eq!(names(&env), expected);
    }

    #[test]
    fn a_name_without_a_value_must_be_set() {
        let ask = |x: &str| forwarded(shell().into_iter(), &[x.into()]).unwrap_err();
        assert_eq!(ask("NOPE"), EnvError::Unset("NOPE".into()));
        assert_eq!(ask("=1"), EnvError::NoName("=1".into()));
    }
}
