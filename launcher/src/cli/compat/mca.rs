//! `--mca NAME VALUE`: parameters of Open MPI and PRRTE that mean something here.
//!
//! Their names are those of releases 1.8 to 5, where an older one has become another. What rlaunch
//! has no use for (which of its own transports Open MPI takes, above all) is named and left.

use super::translate::Meant;
use super::values;
use crate::cli::allocation::mpijob;
use crate::hosts::addresses::Preference;

/// A parameter as typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Parameter {
    /// `--mca`, with its dashes.
    pub(super) option: String,
    pub(super) name: String,
    pub(super) value: String,
}

/// What a parameter stands for by itself.
enum Means {
    /// The option of this name, with the same value.
    Is(&'static str),
    /// What this makes of its value.
    Reads(fn(&str) -> Result<Vec<Meant>, String>),
    /// This option and its value, where the parameter is true.
    Sets(&'static str, Option<&'static str>),
}

/// Names of a parameter, the options in whose presence it does not count, and its meaning.
type Row = (&'static [&'static str], &'static [&'static str], Means);

const PARAMETERS: &[Row] = &[
    (
        &["orte_default_hostfile", "prte_default_hostfile"],
        &["host", "hostfile"],
        Means::Is("hostfile"),
    ),
    (
        &["plm_rsh_num_concurrent", "plm_ssh_num_concurrent"],
        &["ssh-fanout"],
        Means::Is("ssh-fanout"),
    ),
    (&["btl_openib_if_include"], &["hca"], Means::Reads(these_ports)),
    (&["btl_openib_if_exclude"], &["hca"], Means::Reads(other_ports)),
    (&["btl_openib_gid_index"], &["gid-index"], Means::Is("gid-index")),
    (&["btl_openib_ib_service_level"], &["service-level"], Means::Is("service-level")),
    (
        &["hwloc_base_binding_policy", "hwloc_default_binding_policy"],
        &["bind", "cpus-per-rank"],
        Means::Reads(values::bind_to),
    ),
    (
        &["rmaps_base_mapping_policy", "rmaps_default_mapping_policy"],
        &["map-by"],
        Means::Reads(values::map_by),
    ),
    (
        &["rmaps_base_ranking_policy", "rmaps_default_ranking_policy"],
        &["rank-by"],
        Means::Is("rank-by"),
    ),
    (&["rmaps_base_oversubscribe"], &[], Means::Sets("oversubscribe", None)),
    (
        &["rmaps_base_display_map", "hwloc_base_report_bindings", "orte_report_bindings"],
        &[],
        Means::Sets("show", Some("placement")),
    ),
    (&["orte_tag_output", "prte_tag_output"], &["tag-output"], Means::Sets("tag-output", None)),
    (&["orte_output_filename", "prte_output_filename"], &["output-dir"], Means::Is("output-dir")),
    (
        &["odls_base_sigkill_timeout", "prte_odls_base_sigkill_timeout"],
        &["kill-after"],
        Means::Is("kill-after"),
    ),
];

/// Networks by which agents reach one another, and those by which they do not. The first that is
/// typed counts; what Open MPI's ranks would use stands last.
const INTERFACES: [&[&str]; 2] = [
    &["oob_tcp_if_include", "prte_if_include", "btl_tcp_if_include"],
    &["oob_tcp_if_exclude", "prte_if_exclude", "btl_tcp_if_exclude"],
];
/// Options that say more of networks than a preference does.
const NETWORKS: &[&str] = &["oob-if", "oob-net"];

/// Remote shells, and their options.
const SHELLS: &[&str] = &["plm_ssh_agent", "plm_rsh_agent", "pls_rsh_agent"];
const SHELL_OPTIONS: &[&str] = &["plm_ssh_args", "plm_rsh_args"];

/// Each parameter, the last of a name, with the options that it stands for or why it cannot.
pub(super) fn meant(
    parameters: &[Parameter],
    is_typed: impl Fn(&str) -> bool,
) -> Vec<(&Parameter, Result<Vec<Meant>, String>)> {
    let is_last = |(at, parameter): &(usize, &Parameter)| {
        parameters.iter().skip(at + 1).all(|later| later.name != parameter.name)
    };
    let last = parameters.iter().enumerate().filter(is_last).map(|(_, parameter)| parameter);
    let typed = Typed { parameters, is_typed: &is_typed };
    last.map(|parameter| {
        let meant = typed.meant(parameter).unwrap_or_else(|| Ok(vec![ignored(parameter)]));
        (parameter, meant)
    })
    .collect()
}

/// The options that parameters stand for by themselves.
#[cfg(test)]
pub(super) fn options() -> impl Iterator<Item = &'static str> {
    PARAMETERS.iter().filter_map(|(_, _, means)| match means {
        Means::Is(option) | Means::Sets(option, _) => Some(*option),
        Means::Reads(_) => None,
    })
}

fn ignored(parameter: &Parameter) -> Meant {
    Meant::ignored(format!("{} {}", parameter.option, parameter.name))
}

/// All that was typed.
struct Typed<'a> {
    parameters: &'a [Parameter],
    is_typed: &'a dyn Fn(&str) -> bool,
}

impl Typed<'_> {
    /// The last value of the first of these names that has one, and that name.
    fn first(&self, names: &[&'static str]) -> Option<(&'static str, &str)> {
        names.iter().find_map(|name| {
            let parameter = self.parameters.iter().rfind(|parameter| parameter.name == *name)?;
            Some((*name, parameter.value.as_str()))
        })
    }

    fn has_any(&self, options: &[&str]) -> bool {
        options.iter().any(|option| (self.is_typed)(option))
    }

    /// What one stands for; `None` where that is nothing.
    fn meant(&self, parameter: &Parameter) -> Option<Result<Vec<Meant>, String>> {
        let name = parameter.name.as_str();
        if let Some(names) = INTERFACES.iter().find(|names| names.contains(&name)) {
            return self.interfaces(parameter, names);
        }
        if SHELLS.contains(&name) || SHELL_OPTIONS.contains(&name) {
            return self.shell(name).map(Ok);
        }
        let (_, options, means) = PARAMETERS.iter().find(|(names, ..)| names.contains(&name))?;
        if self.has_any(options) {
            return None;
        }
        let value = parameter.value.as_str();
        Some(match means {
            Means::Is(option) => Ok(vec![Meant::with(option, value)]),
            Means::Reads(read) => read(value),
            Means::Sets(option, with) if is_true(value) => {
                Ok(vec![Meant { option, value: with.map(std::ffi::OsString::from) }])
            }
            Means::Sets(..) => Ok(Vec::new()),
        })
    }

    fn interfaces(
        &self,
        parameter: &Parameter,
        names: &[&'static str],
    ) -> Option<Result<Vec<Meant>, String>> {
        let (name, value) = self.first(names).filter(|_| !self.has_any(NETWORKS))?;
        if name != parameter.name {
            // The same networks for ranks as for agents.
            return (value == parameter.value).then(|| Ok(Vec::new()));
        }
        let words = format!("{name} {value}");
        let preference = words.parse::<Preference>();
        Some(preference.map(|_| vec![Meant::with("interfaces", words)]))
    }

    /// The shell with its options, at the first of the two that was typed.
    fn shell(&self, name: &str) -> Option<Vec<Meant>> {
        if self.has_any(&["rsh", "port"]) {
            return None;
        }
        let (agent, options) = (self.first(SHELLS), self.first(SHELL_OPTIONS));
        let counts = agent.or(options)?.0;
        if name != counts {
            let is_part = options.is_some_and(|(options, _)| options == name);
            return is_part.then(Vec::new);
        }
        let command = agent.map_or("ssh", |(_, command)| command);
        let options = options.map(|(_, options)| options.to_owned());
        if let Some(port) = options.as_deref().filter(|_| is_ssh(command)).and_then(port) {
            return Some(vec![Meant::with("port", port.to_string())]);
        }
        let words = mpijob::words(command, options);
        Some(words.map(|words| Meant::with("rsh", words)).into_iter().collect())
    }
}

/// Open MPI takes the first of `ssh : rsh` that it finds.
fn is_ssh(command: &str) -> bool {
    command.split(" : ").next().is_some_and(|first| first.trim() == "ssh")
}

/// The port, where options of ssh name nothing else.
fn port(options: &str) -> Option<u16> {
    options.trim().strip_prefix("-p")?.trim().parse().ok().filter(|&port| port > 0)
}

fn is_true(value: &str) -> bool {
    match value.to_ascii_lowercase().as_str() {
        "true" | "t" | "yes" | "y" | "enabled" => true,
        number => number.parse().is_ok_and(|number: i64| number != 0),
    }
}

/// `mlx5_0:1,mlx5_1`, as whole names.
fn these_ports(text: &str) -> Result<Vec<Meant>, String> {
    Ok(vec![Meant::with("hca", format!("={text}"))])
}

fn other_ports(text: &str) -> Result<Vec<Meant>, String> {
    Ok(vec![Meant::with("hca", format!("^={text}"))])
}
