//! The environment of a rank: variables of the node, then those forwarded from the launcher, then
//! those of the rank.

use rlaunch_bootstrap::env::{is_foreign_launch, join_search_path};
use rlaunch_bootstrap::job::{EnvRule, EnvVar};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

/// Environment variables, sorted by name.
pub(crate) type Environment = BTreeMap<OsString, OsString>;

/// Returns the variables that all ranks of an application have in common: the node's own, without
/// those of other launchers, and the variables in `forwarded`. The [`EnvRule`] of each forwarded
/// variable says how it is combined with the node's value.
pub(crate) fn common(
    node: impl Iterator<Item = (OsString, OsString)>,
    forwarded: &[EnvVar],
) -> Environment {
    let mut env: Environment = node.filter(|(name, _)| !is_foreign(name)).collect();
    for var in forwarded {
        let own = env.get(&var.name).map_or(OsStr::new(""), OsString::as_os_str);
        let value = match var.rule {
            EnvRule::Default if env.contains_key(&var.name) => continue,
            EnvRule::Set | EnvRule::Default => var.value.clone(),
            EnvRule::PathBefore => join_search_path(&var.value, own),
            EnvRule::PathAfter => join_search_path(own, &var.value),
        };
        env.insert(var.name.clone(), value);
    }
    env
}

/// Returns the environment of one rank. The rank's variables `own` replace those of `common`;
/// `defaults` are added where neither has the variable.
pub(crate) fn for_rank<'a>(
    common: &Environment,
    own: impl Iterator<Item = &'a (String, String)>,
    defaults: &[(String, String)],
) -> Environment {
    let mut env = common.clone();
    env.extend(own.map(|(name, value)| (name.into(), value.into())));
    for (name, value) in defaults {
        env.entry(name.into()).or_insert_with(|| value.into());
    }
    env
}

fn is_foreign(name: &OsStr) -> bool {
    name.to_str().is_some_and(is_foreign_launch)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(list: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
        list.iter().map(|(name, value)| (name.into(), value.into())).collect()
    }

    fn var(name: &str, value: &str, rule: EnvRule) -> EnvVar {
        EnvVar { name: name.into(), value: value.into(), rule }
    }

    #[test]
    fn layers_meet_as_documented() {
        let node = pairs(&[
            ("HOME", "/home/u"),
            ("LANG", "C"),
            ("PATH", "/usr/bin:/opt/node"),
            ("PYTHONPATH", "/node/py"),
            ("PMI_RANK", "4"),
            ("SLURM_PROCID", "1"),
        ]);
        let forwarded = [
            var("PATH", "/usr/bin:/my/bin", EnvRule::PathBefore),
            var("PYTHONPATH", "/my/py", EnvRule::PathAfter),
            var("NCCL_DEBUG", "INFO", EnvRule::Set),
            var("LANG", "de", EnvRule::Default),
            var("LC_ALL", "de", EnvRule::Default),
        ];
        let common = common(node.into_iter(), &forwarded);
        let own = [("RANK".to_owned(), "1".to_owned())];
        let defaults = [("NCCL_DEBUG", "WARN"), ("OMP_NUM_THREADS", "2")];
        let defaults = defaults.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let env = for_rank(&common, own.iter(), &defaults);
        let expected = pairs(&[
            ("HOME", "/home/u"),
            ("LANG", "C"),
            ("LC_ALL", "de"),
            ("NCCL_DEBUG", "INFO"),
            ("OMP_NUM_THREADS", "2"),
            ("PATH", "/usr/bin:/my/bin:/opt/node"),
            ("PYTHONPATH", "/node/py:/my/py"),
            ("RANK", "1"),
        ]);
        assert_eq!(env.into_iter().collect::<Vec<_>>(), expected);
    }
}
