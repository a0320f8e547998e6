//! `--mca NAME VALUE`: parameters of Open MPI and PRRTE.
//!
//! Parameters that have a meaning in rlaunch are recognized by their names in Open MPI 1.8 to 5. Parameters of
//! the MPI library reach the ranks as variables (`OMPI_MCA_pml`); the launcher's own are reported as ignored.

use super::values::{self, is_true};
use super::{Effect, files};
use crate::cli::allocation::shell_command;
use rlaunch_plan::hosts::addresses::Preference;
use std::ffi::OsString;

/// Parameter of Open MPI on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Parameter {
    /// Option that sets the parameter, with its dashes: `--mca`.
    pub(super) option: String,
    pub(super) name: String,
    pub(super) value: String,
}

impl Parameter {
    /// Tells whether a variable such as `OMPI_MCA_rmaps` sets the parameter.
    fn is_of_environment(&self) -> bool {
        ENVIRONMENT.contains(&self.option.as_str())
    }

    /// Returns the option with the parameter, or the variable.
    pub(super) fn words(&self) -> String {
        let space = if self.is_of_environment() { "" } else { " " };
        format!("{}{space}{}", self.option, self.name)
    }
}

/// Beginnings of variables that set parameters.
const ENVIRONMENT: [&str; 2] = ["OMPI_MCA_", "PRTE_MCA_"];

/// Meaning of a parameter whose effect does not depend on other parameters.
enum ParameterMeaning {
    /// Equivalent to rlaunch's option of this name, with the same value.
    SameAs(&'static str),
    /// Effects that this function derives from the value.
    Computed(fn(&str) -> Result<Vec<Effect>, String>),
    /// Sets rlaunch's option of this name to this value, if the parameter is true.
    Sets(&'static str, Option<&'static str>),
    /// Sets rlaunch's flag of this name, if the parameter is false.
    SetsIfFalse(&'static str),
    /// No effect, or what rlaunch does anyway.
    Silent,
    /// An error, with this sentence.
    Refused(&'static str),
}

use ParameterMeaning::{Computed, Refused, SameAs, Sets, SetsIfFalse, Silent};

/// Names of a parameter in different releases, rlaunch's options that override it, and its meaning.
type ParameterRule = (&'static [&'static str], &'static [&'static str], ParameterMeaning);

const PARAMETERS: &[ParameterRule] = &[
    (
        &["orte_default_hostfile", "prte_default_hostfile"],
        &["host", "hostfile"],
        SameAs("hostfile"),
    ),
    (&["plm_rsh_num_concurrent", "plm_ssh_num_concurrent"], &["ssh-fanout"], SameAs("ssh-fanout")),
    (&["plm"], &["launcher", "rsh"], Computed(launcher)),
    (&["btl_openib_if_include"], &["hca"], Computed(exact_ports)),
    (&["btl_openib_if_exclude"], &["hca"], Computed(other_ports)),
    (&["btl_openib_gid_index"], &["gid-index"], SameAs("gid-index")),
    (&["btl_openib_ib_service_level"], &["service-level"], SameAs("service-level")),
    (
        &["hwloc_base_binding_policy", "hwloc_default_binding_policy"],
        &["bind", "cpus-per-rank"],
        Computed(values::bind_to),
    ),
    (
        &["rmaps_base_mapping_policy", "rmaps_default_mapping_policy"],
        &["map-by"],
        Computed(values::map_by),
    ),
    (
        &["rmaps_base_ranking_policy", "rmaps_default_ranking_policy"],
        &["rank-by"],
        Computed(values::rank_by),
    ),
    (&["rmaps"], &["rankfile"], Computed(mapper)),
    (
        &["rmaps_rank_file_path", "rmaps_rankfile_path", "orte_rankfile"],
        &["rankfile"],
        SameAs("rankfile"),
    ),
    (&["rmaps_ppr_pattern", "rmaps_base_pattern"], &["map-by", "npernode"], Computed(values::ppr)),
    (&["rmaps_base_n_pernode"], &["npernode"], SameAs("npernode")),
    (&["rmaps_base_pernode"], &["npernode"], Sets("npernode", Some("1"))),
    (
        &["rmaps_base_cpus_per_proc", "rmaps_base_cpus_per_rank"],
        &["cpus-per-rank"],
        SameAs("cpus-per-rank"),
    ),
    (&["rmaps_base_no_schedule_local"], &[], Sets("no-local", None)),
    (
        &[
            "hwloc_base_cpu_list", "hwloc_base_cpu_set", "hwloc_base_slot_list",
            "hwloc_default_cpu_list",
        ],
        &["bind"],
        Computed(values::cpu_set),
    ),
    (
        &["hwloc_base_mem_alloc_policy"],
        &[],
        Refused("numactl goes before the program: rlaunch … numactl --localalloc PROGRAM"),
    ),
    (
        &["orte_set_default_slots", "prte_set_default_slots"],
        &[],
        Refused("-H a:N gives a host N slots"),
    ),
    (&["ras"], &[], Refused("-H names hosts, in place of those that a batch system has allocated")),
    (
        &["orte_abort_on_non_zero_status", "prte_abort_on_non_zero_status"],
        &["continue-on-error"],
        SetsIfFalse("continue-on-error"),
    ),
    (
        &["orte_enable_recovery", "prte_enable_recovery"],
        &["continue-on-error"],
        Sets("continue-on-error", None),
    ),
    (&["orte_timestamp_output", "prte_timestamp_output"], &[], Computed(values::timestamps)),
    (&["orte_execute_quiet"], &["quiet", "verbose"], Sets("quiet", None)),
    (&["orte_display_alloc"], &[], Sets("show", Some("placement"))),
    (&["mca_base_env_list"], &[], Computed(variables)),
    (&["mca_base_param_files", "mca_base_envar_file_prefix"], &[], Computed(no_parameter_file)),
    (
        &[
            "rmaps_base_no_oversubscribe", "hwloc_base_use_hwthreads_as_cpus",
            "hwloc_base_mem_bind_failure_action", "rmaps_base_inherit", "orte_base_help_aggregate",
            "plm_rsh_no_tree_spawn", "plm_ssh_no_tree_spawn", "orte_launch_agent",
            "orte_keep_fqdn_hostnames", "orte_hetero_nodes",
        ],
        &[],
        Silent,
    ),
    (&["rmaps_base_oversubscribe"], &[], Sets("oversubscribe", None)),
    (
        &["hwloc_base_report_bindings", "orte_report_bindings"],
        &[],
        Sets("show", Some("placement=stderr")),
    ),
    (&["rmaps_base_display_map"], &[], Sets("show", Some("placement"))),
    (&["orte_tag_output", "prte_tag_output"], &["tag-output"], Sets("tag-output", None)),
    (
        &["orte_output_filename", "prte_output_filename"],
        &["output-dir"],
        Computed(values::output_filename),
    ),
    (
        &["odls_base_sigkill_timeout", "prte_odls_base_sigkill_timeout"],
        &["kill-after"],
        SameAs("kill-after"),
    ),
];

/// Parameters that choose networks (first list), and parameters that exclude networks (second list). If the
/// command line has several parameters of one list, the one listed first takes effect: those for agents
/// (`oob`, `prte`) precede the one for ranks (`btl`).
const INTERFACES: [&[&str]; 2] = [
    &["oob_tcp_if_include", "prte_if_include", "btl_tcp_if_include"],
    &["oob_tcp_if_exclude", "prte_if_exclude", "btl_tcp_if_exclude"],
];
/// Options of rlaunch that override [`INTERFACES`].
const NETWORKS: &[&str] = &["oob-if", "oob-net"];

/// Parameters that name a remote shell. The parameters in [`SHELL_OPTIONS`] set options of that shell.
const SHELLS: &[&str] = &["plm_ssh_agent", "plm_rsh_agent", "pls_rsh_agent"];
const SHELL_OPTIONS: &[&str] = &["plm_ssh_args", "plm_rsh_args"];

/// Frameworks of Open MPI 1.8 to 4 and of PRRTE that belong to the launcher. All others, such as `pml` and
/// `btl`, belong to the MPI library.
const LAUNCHER_FRAMEWORKS: &[&str] = &[
    "dfs", "errmgr", "ess", "filem", "grpcomm", "hwloc", "iof", "odls", "oob", "orte", "plm",
    "pls", "prte", "ras", "rmaps", "rml", "routed", "rtc", "schizo", "snapc", "sstore", "state",
];

/// Frameworks by which daemons of mpirun find and talk to each other, which rlaunch's agents do in their own way.
const OF_DAEMONS: &[&str] = &[
    "dfs", "errmgr", "ess", "filem", "grpcomm", "iof", "oob", "rml", "routed", "rtc", "schizo",
    "snapc", "sstore", "state",
];

/// Frameworks that decide where ranks run.
const OF_PLACEMENT: &[&str] = &["hwloc", "ras", "rmaps"];

/// Returns the parameters of the launcher that variables set. Those of the hosts and of the remote shell have a place of
/// their own ([`crate::cli::allocation`]).
pub(super) fn of_environment(env: &impl Fn(&str) -> Option<OsString>) -> Vec<Parameter> {
    const ELSEWHERE: [&str; 3] = ["orte_default_hostfile", "prte_default_hostfile", "plm"];
    let of_table = PARAMETERS.iter().flat_map(|(names, ..)| names.iter());
    let names = of_table.chain(INTERFACES.iter().flat_map(|names| names.iter()));
    let names = names.filter(|name| is_of_launcher(name) && !ELSEWHERE.contains(name));
    let set = names.flat_map(|name| {
        ENVIRONMENT.iter().filter_map(move |prefix| {
            let value = env(&format!("{prefix}{name}"))?.to_string_lossy().trim().to_owned();
            let parameter = Parameter { option: (*prefix).into(), name: (*name).into(), value };
            Some(parameter).filter(|parameter| !parameter.value.is_empty())
        })
    });
    set.collect()
}

fn is_of_launcher(name: &str) -> bool {
    LAUNCHER_FRAMEWORKS.contains(&framework(name))
}

fn framework(name: &str) -> &str {
    name.split('_').next().unwrap_or_default()
}

/// Returns the effects of each parameter, or the reason why its value is refused. If a parameter is repeated,
/// only the last one is returned. `is_set` tells whether rlaunch's option of a given long name is on the
/// command line.
pub(super) fn effects(
    parameters: &[Parameter],
    is_set: impl Fn(&str) -> bool,
) -> Vec<(&Parameter, Result<Vec<Effect>, String>)> {
    let is_last = |(at, parameter): &(usize, &Parameter)| {
        parameters.iter().skip(at + 1).all(|later| later.name != parameter.name)
    };
    let last = parameters.iter().enumerate().filter(is_last).map(|(_, parameter)| parameter);
    let all = Parameters { parameters, is_set: &is_set };
    last.map(|parameter| {
        let effects = match (all.effects_of(parameter), variable(parameter)) {
            (Some(effects), variable) => effects.map(|mut effects| {
                effects.extend(variable);
                effects
            }),
            (None, Some(variable)) => Ok(vec![variable]),
            (None, None) => all.without_effect(parameter),
        };
        (parameter, effects)
    })
    .collect()
}

/// Lists rlaunch's options to which [`PARAMETERS`] refers by name.
#[cfg(test)]
pub(super) fn options() -> impl Iterator<Item = &'static str> {
    PARAMETERS.iter().filter_map(|(_, _, meaning)| match meaning {
        SameAs(option) | Sets(option, _) | SetsIfFalse(option) => Some(*option),
        Computed(_) | Refused(_) | Silent => None,
    })
}

/// Returns the variable by which a parameter reaches the MPI library of the ranks; `None` for parameters
/// that concern only the launcher.
fn variable(parameter: &Parameter) -> Option<Effect> {
    let option = parameter.option.trim_start_matches('-');
    let prefix = match option {
        "prtemca" | "gprtemca" => return None,
        "pmixmca" | "gpmixmca" => "PMIX_MCA_",
        _ => "OMPI_MCA_",
    };
    let is_of_launcher = is_of_launcher(&parameter.name) || parameter.name == "mca_base_env_list";
    if parameter.is_of_environment() || (prefix == "OMPI_MCA_" && is_of_launcher) {
        return None;
    }
    Some(Effect::value("env", format!("{prefix}{}={}", parameter.name, parameter.value)))
}

fn ignored(parameter: &Parameter) -> Effect {
    Effect::Ignored(format!("{} {}", parameter.option, parameter.name))
}

/// All parameters (`--mca NAME VALUE`) of a command line.
struct Parameters<'a> {
    parameters: &'a [Parameter],
    /// Tells whether rlaunch's option of a given long name is on the command line.
    is_set: &'a dyn Fn(&str) -> bool,
}

impl Parameters<'_> {
    /// Finds the first of `names` that is on the command line, and returns it with its last value.
    fn first(&self, names: &[&'static str]) -> Option<(&'static str, &str)> {
        names.iter().find_map(|name| {
            let parameter = self.parameters.iter().rfind(|parameter| parameter.name == *name)?;
            Some((*name, parameter.value.as_str()))
        })
    }

    fn has_any(&self, options: &[&str]) -> bool {
        options.iter().any(|option| (self.is_set)(option))
    }

    /// Decides about a parameter without effect: one that places ranks is refused unless an option overrides it.
    fn without_effect(&self, parameter: &Parameter) -> Result<Vec<Effect>, String> {
        let name = parameter.name.as_str();
        let is_known = PARAMETERS.iter().any(|(names, ..)| names.contains(&name));
        let framework = framework(name);
        if parameter.is_of_environment()
            || (!is_known && OF_DAEMONS.contains(&framework) && !is_network(name))
        {
            return Ok(Vec::new());
        }
        if !is_known && OF_PLACEMENT.contains(&framework) && !name.ends_with("_verbose") {
            return Err(
                "rlaunch knows no such parameter; --map-by, --bind, --rankfile and -H place ranks"
                    .to_owned(),
            );
        }
        Ok(vec![ignored(parameter)])
    }

    /// Returns the effects of one parameter; `None` if it is ignored.
    fn effects_of(&self, parameter: &Parameter) -> Option<Result<Vec<Effect>, String>> {
        let name = parameter.name.as_str();
        if let Some(names) = INTERFACES.iter().find(|names| names.contains(&name)) {
            return self.interfaces(parameter, names);
        }
        if SHELLS.contains(&name) || SHELL_OPTIONS.contains(&name) {
            return self.shell(name).map(Ok);
        }
        let (_, overrides, meaning) =
            PARAMETERS.iter().find(|(names, ..)| names.contains(&name))?;
        if self.has_any(overrides) {
            return None;
        }
        let value = parameter.value.as_str();
        Some(match meaning {
            SameAs(option) => Ok(vec![Effect::value(option, value)]),
            Computed(compute) => compute(value),
            Sets(option, with) if is_true(value) => {
                Ok(vec![Effect::Set(option, with.map(OsString::from))])
            }
            SetsIfFalse(option) if !is_true(value) => Ok(vec![Effect::flag(option)]),
            Sets(..) | SetsIfFalse(_) | Silent => Ok(Vec::new()),
            Refused(why) => Err((*why).to_owned()),
        })
    }

    fn interfaces(
        &self,
        parameter: &Parameter,
        names: &[&'static str],
    ) -> Option<Result<Vec<Effect>, String>> {
        let (name, value) = self.first(names).filter(|_| !self.has_any(NETWORKS))?;
        if name != parameter.name {
            // This parameter is overridden. If its value is the same, nothing is lost, so it is not reported
            // as ignored.
            return (value == parameter.value).then(|| Ok(Vec::new()));
        }
        let words = format!("{name} {value}");
        let preference = words.parse::<Preference>();
        Some(preference.map(|_| vec![Effect::value("interfaces", words)]))
    }

    /// Combines the parameter that names a remote shell with the parameter that sets options of that shell.
    /// If both are given, the former has the combined effect, and the latter has none. Returns `None` if the
    /// parameter `name` is ignored.
    fn shell(&self, name: &str) -> Option<Vec<Effect>> {
        if self.has_any(&["rsh", "port"]) {
            return None;
        }
        let (agent, options) = (self.first(SHELLS), self.first(SHELL_OPTIONS));
        let effective = agent.or(options)?.0;
        if name != effective {
            let is_part = options.is_some_and(|(options, _)| options == name);
            return is_part.then(Vec::new);
        }
        let command = agent.map_or("ssh", |(_, command)| command);
        let options = options.map(|(_, options)| options.to_owned());
        if let Some(port) = options.as_deref().filter(|_| is_ssh(command)).and_then(port) {
            return Some(vec![Effect::value("port", port.to_string())]);
        }
        let words = shell_command(command, options);
        Some(words.map(|words| Effect::value("rsh", words)).into_iter().collect())
    }
}

/// Tells whether the shell is ssh. In a list like `ssh : rsh`, Open MPI takes the first that is installed, so
/// only the first is compared.
fn is_ssh(command: &str) -> bool {
    command.split(" : ").next().is_some_and(|first| first.trim() == "ssh")
}

/// Returns the port in options of ssh; `None` if they set anything else.
fn port(options: &str) -> Option<u16> {
    options.trim().strip_prefix("-p")?.trim().parse().ok().filter(|&port| port > 0)
}

/// Tells whether a parameter chooses networks.
fn is_network(name: &str) -> bool {
    INTERFACES.iter().any(|names| names.contains(&name))
}

/// Translates the component that maps ranks.
fn mapper(text: &str) -> Result<Vec<Effect>, String> {
    match text {
        "seq" => Ok(vec![Effect::HostfileIsRankfile]),
        "round_robin" | "rank_file" | "ppr" => Ok(Vec::new()),
        _ => Err("--map-by and --rankfile place ranks".to_owned()),
    }
}

/// Translates variables of ranks, such as `A=1;B`.
fn variables(text: &str) -> Result<Vec<Effect>, String> {
    let names = text.split(';').filter(|name| !name.is_empty());
    Ok(names.map(|name| Effect::value("env", name)).collect())
}

/// Refuses files of parameters, which another option reads.
fn no_parameter_file(text: &str) -> Result<Vec<Effect>, String> {
    files::settings(text)?;
    Err(format!("--tune {text} reads it"))
}

/// Translates what Open MPI is to start its daemons by: a name, or `^` and names that it must not use.
fn launcher(text: &str) -> Result<Vec<Effect>, String> {
    Ok(match text {
        "slurm" => vec![Effect::value("launcher", "srun")],
        "rsh" | "ssh" | "^slurm" => vec![Effect::value("launcher", "ssh")],
        _ => vec![Effect::Ignored(format!("--mca plm {text}"))],
    })
}

/// Translates a list like `mlx5_0:1,mlx5_1`. The `=` makes `--hca` compare whole names, and not their
/// beginnings.
fn exact_ports(text: &str) -> Result<Vec<Effect>, String> {
    Ok(vec![Effect::value("hca", format!("={text}"))])
}

fn other_ports(text: &str) -> Result<Vec<Effect>, String> {
    Ok(vec![Effect::value("hca", format!("^={text}"))])
}
