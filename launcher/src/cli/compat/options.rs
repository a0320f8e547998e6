//! Table of other launchers' options and what each of them means in rlaunch. Of some, the value decides: a function returns
//! the effects of a value, or the reason why the value is refused.

use super::Effect;

/// Option of another launcher.
pub(super) struct ForeignOption {
    /// Name without leading dashes, with dashes in place of underscores.
    pub(super) name: &'static str,
    pub(super) dashes: Dashes,
    pub(super) meaning: Meaning,
}

/// Number of dashes with which an option is recognized.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Dashes {
    /// One only. With two dashes, the name is an option of rlaunch, or no option of the other launcher.
    One,
    /// One or two.
    Any,
}

/// Meaning of another launcher's option in rlaunch.
pub(super) enum Meaning {
    /// Equivalent to rlaunch's option of this name, with the same values.
    SameAs(&'static str),
    /// Flag that sets rlaunch's option of this name to this value.
    Sets(&'static str, Option<&'static str>),
    /// Effects that this function derives from the value, or the reason why the value is refused.
    Computed(fn(&str) -> Result<Vec<Effect>, String>),
    /// Environment variable for ranks: NAME VALUE or NAME=VALUE.
    Variable,
    /// Environment variables of this shell to pass on: NAME,...
    Variables,
    /// Parameter of mpirun: NAME VALUE.
    McaParameter,
    /// No effect, which is reported. The option has this number of values.
    Ignored(usize),
    /// Default behaviour of rlaunch, so nothing is reported.
    Default,
}

use Dashes::{Any, One};
use Meaning::{Computed, Default, Ignored, McaParameter, SameAs, Sets, Variable, Variables};

/// All options, grouped by launcher. An option that several launchers have is in the first of their groups
/// only.
pub(super) const OPTIONS: &[ForeignOption] = &[
    // mpirun: hosts and ranks.
    option("n", Any, SameAs("np")),
    option("c", One, SameAs("np")),
    option("N", Any, SameAs("npernode")),
    option("pernode", Any, Sets("npernode", Some("1"))),
    option("default-hostfile", Any, SameAs("hostfile")),
    option("map-by", Any, Computed(map_by)),
    option("byslot", Any, Sets("map-by", Some("slot"))),
    option("bynode", Any, Sets("map-by", Some("node"))),
    option("bind-to", Any, Computed(bind_to)),
    option("bind-to-none", Any, Sets("bind", Some("none"))),
    option("bind-to-core", Any, Sets("bind", Some("core"))),
    option("cpus-per-proc", Any, SameAs("cpus-per-rank")),
    option("nooversubscribe", Any, Default),
    option("no-oversubscribe", Any, Default),
    option("nolocal", Any, Ignored(0)),
    option("use-hwthread-cpus", Any, Ignored(0)),
    // mpirun: the program.
    option("x", Any, SameAs("env")),
    option("wd", Any, SameAs("wdir")),
    option("path", Any, Ignored(1)),
    option("prefix", Any, Ignored(1)),
    option("preload-files", Any, Computed(preload_files)),
    option("allow-run-as-root", Any, Default),
    // mpirun: parameters.
    option("mca", Any, McaParameter),
    option("gmca", Any, McaParameter),
    option("omca", Any, McaParameter),
    option("prtemca", Any, McaParameter),
    option("gprtemca", Any, McaParameter),
    option("pmixmca", Any, McaParameter),
    option("gpmixmca", Any, McaParameter),
    option("am", Any, Ignored(1)),
    option("tune", Any, Ignored(1)),
    option("personality", Any, Ignored(1)),
    // mpirun: output.
    option("report-bindings", Any, Sets("show", Some("placement"))),
    option("display-map", Any, Sets("show", Some("placement"))),
    option("display-devel-map", Any, Sets("show", Some("placement"))),
    option("display-allocation", Any, Sets("show", Some("placement"))),
    option("display", Any, Computed(display)),
    option("output", Any, Computed(output)),
    option("timestamp-output", Any, Ignored(0)),
    option("merge-stderr-to-stdout", Any, SameAs("merge-stderr")),
    option("q", One, SameAs("quiet")),
    option("do-not-launch", Any, SameAs("dry-run")),
    option("show-progress", Any, Ignored(0)),
    option("debug-daemons", Any, Ignored(0)),
    option("leave-session-attached", Any, Ignored(0)),
    // mpirun: termination.
    option("enable-recovery", Any, SameAs("continue-on-error")),
    option("disable-recovery", Any, Default),
    option("continuous", Any, SameAs("continue-on-error")),
    option("report-state-on-timeout", Any, SameAs("report-state-on-timeout")),
    option("get-stack-traces", Any, SameAs("get-stack-traces")),
    option("forward-signals", Any, Ignored(1)),
    // mpiexec of MPICH and Intel MPI.
    option("f", One, SameAs("hostfile")),
    option("perhost", Any, SameAs("npernode")),
    option("rr", One, Sets("map-by", Some("node"))),
    option("env", One, Variable),
    option("genv", Any, Variable),
    option("envlist", Any, Variables),
    option("genvlist", Any, Variables),
    option("envall", Any, Default),
    option("genvall", Any, Default),
    option("envnone", Any, SameAs("no-env")),
    option("genvnone", Any, SameAs("no-env")),
    option("dir", One, SameAs("wdir")),
    option("iface", Any, SameAs("oob-if")),
    option("launcher", Any, Computed(launcher)),
    option("bootstrap", Any, Computed(launcher)),
    option("rmk", Any, Computed(resource_manager)),
    option("launcher-exec", Any, SameAs("rsh")),
    option("bootstrap-exec", Any, SameAs("rsh")),
    option("l", One, SameAs("tag-output")),
    option("prepend-rank", Any, SameAs("tag-output")),
    option("disable-auto-cleanup", Any, SameAs("continue-on-error")),
    option("print-rank-map", Any, Sets("show", Some("placement"))),
    option("print-all-exitcodes", Any, Ignored(0)),
    option("order-nodes", Any, Ignored(1)),
    option("membind", Any, Ignored(1)),
    // torchrun.
    option("nproc-per-node", Any, Computed(nproc_per_node)),
    option("master-addr", Any, Computed(master_addr)),
    option("node-rank", Any, Ignored(1)),
    option("rdzv-backend", Any, Ignored(1)),
    option("rdzv-endpoint", Any, Ignored(1)),
    option("rdzv-id", Any, Ignored(1)),
    option("rdzv-conf", Any, Ignored(1)),
    option("standalone", Any, Ignored(0)),
    option("local-addr", Any, Ignored(1)),
    option("monitor-interval", Any, Ignored(1)),
    option("start-method", Any, Ignored(1)),
    option("role", Any, Ignored(1)),
    // horovodrun.
    option("ssh-port", Any, SameAs("port")),
    option("network-interface", Any, SameAs("oob-if")),
    option("network-interfaces", Any, SameAs("oob-if")),
    option("gloo", Any, Default),
    option("use-gloo", Any, Default),
    option("start-timeout", Any, Ignored(1)),
    option("disable-cache", Any, Ignored(0)),
];

const fn option(name: &'static str, dashes: Dashes, meaning: Meaning) -> ForeignOption {
    ForeignOption { name, dashes, meaning }
}

/// Finds the option with this name that is recognized with this number of dashes.
pub(super) fn find(dashes: usize, name: &str) -> Option<&'static ForeignOption> {
    OPTIONS.iter().find(|option| option.name == name && (option.dashes == Any || dashes == 1))
}

/// Translates values of mpirun's `--bind-to`, such as `core:overload-allowed`.
pub(super) fn bind_to(text: &str) -> Result<Vec<Effect>, String> {
    let (policy, qualifiers) = text.trim().split_once(':').unwrap_or((text.trim(), ""));
    let policy = policy.to_ascii_lowercase();
    let mut effects = match policy.as_str() {
        "none" | "core" | "numa" | "gpu" => vec![Effect::value("bind", policy.clone())],
        "hwthread" => vec![Effect::value("cpus-per-rank", "1")],
        "l1cache" | "l2cache" => vec![Effect::value("bind", "core")],
        "socket" | "package" | "l3cache" => {
            let note =
                format!("--bind-to {policy}: ranks are bound to NUMA nodes, as by --bind numa");
            vec![Effect::value("bind", "numa"), Effect::Note(note)]
        }
        "machine" | "board" | "node" => vec![Effect::value("bind", "none")],
        _ => {
            let known = "none, core, hwthread, numa, socket and package are understood; see --bind";
            return Err(known.to_owned());
        }
    };
    if !qualifiers.is_empty() {
        effects.push(Effect::Ignored(format!("--bind-to :{qualifiers}")));
    }
    Ok(effects)
}

/// Translates values of mpirun's `--map-by`, such as `slot`, `ppr:2:node` or `node:PE=4,OVERSUBSCRIBE`. A
/// policy that mpirun does not have is left for rlaunch's own `--map-by` to check.
pub(super) fn map_by(text: &str) -> Result<Vec<Effect>, String> {
    let mut parts = text.trim().split(':');
    let mut policy = parts.next().unwrap_or_default().to_ascii_lowercase();
    if policy == "ppr" {
        for part in parts.by_ref().take(2) {
            policy = format!("{policy}:{}", part.to_ascii_lowercase());
        }
    }
    let mut effects = match policy.as_str() {
        "" => Vec::new(),
        // These policies fill one host after the other, too.
        "core" | "hwthread" | "l1cache" | "l2cache" => vec![Effect::value("map-by", "slot")],
        "socket" | "package" | "l3cache" => {
            let note = format!(
                "--map-by {policy}: ranks go to the NUMA nodes in turn, as by --map-by numa"
            );
            vec![Effect::value("map-by", "numa"), Effect::Note(note)]
        }
        _ => vec![Effect::value("map-by", policy.clone())],
    };
    for qualifier in parts.flat_map(|part| part.split(',')) {
        let upper = qualifier.to_ascii_uppercase();
        match (upper.as_str(), upper.strip_prefix("PE=")) {
            ("" | "NOOVERSUBSCRIBE", _) => {}
            ("OVERSUBSCRIBE", _) => effects.push(Effect::flag("oversubscribe")),
            (_, Some(cpus)) => effects.push(Effect::value("cpus-per-rank", cpus)),
            _ => effects.push(Effect::Ignored(format!("--map-by :{qualifier}"))),
        }
    }
    Ok(effects)
}

/// Translates values of mpirun's `--preload-files`, such as `a,b`.
fn preload_files(text: &str) -> Result<Vec<Effect>, String> {
    Ok(text.split(',').map(|file| Effect::value("copy", file)).collect())
}

/// Translates values of mpirun's `--display`, such as `map,bind`.
fn display(text: &str) -> Result<Vec<Effect>, String> {
    let effect = |item: &str| match item.split(':').next().unwrap_or_default() {
        "map" | "map-devel" | "allocation" | "alloc" | "bind" | "bindings" => {
            Effect::value("show", "placement")
        }
        _ => Effect::Ignored(format!("--display {item}")),
    };
    Ok(text.split(',').map(effect).collect())
}

/// Translates values of mpirun's `--output`, such as `tag,merge,dir=D`.
fn output(text: &str) -> Result<Vec<Effect>, String> {
    let effect = |kind: &str| match kind.split_once('=') {
        Some(("dir", directory)) => Effect::value("output-dir", directory),
        None if matches!(kind, "tag" | "tag-detailed" | "tag-fullname" | "rank") => {
            Effect::flag("tag-output")
        }
        None if kind.starts_with("merge") => Effect::flag("merge-stderr"),
        _ => Effect::Ignored(format!("--output {kind}")),
    };
    Ok(text.split([',', ':']).map(effect).collect())
}

/// Translates values of mpiexec's `-launcher`, such as `ssh`.
fn launcher(text: &str) -> Result<Vec<Effect>, String> {
    Ok(match text {
        "slurm" => vec![Effect::value("launcher", "srun")],
        "rsh" => vec![Effect::value("rsh", "rsh")],
        "cobalt" | "fork" | "ll" | "lsf" | "manual" | "pbs" | "pdsh" | "persist" | "sge" => {
            vec![Effect::Ignored(format!("-launcher {text}"))]
        }
        // Others than our own are refused with the values that there are.
        _ => vec![Effect::value("launcher", text)],
    })
}

/// Translates values of mpiexec's `-rmk`, whose manager also starts processes if it is Slurm.
fn resource_manager(text: &str) -> Result<Vec<Effect>, String> {
    Ok(match text {
        "slurm" => vec![Effect::value("launcher", "srun")],
        "user" => Vec::new(),
        _ => vec![Effect::Ignored(format!("-rmk {text}"))],
    })
}

/// Translates values of torchrun's `--nproc-per-node`: a number, or a word that is refused.
fn nproc_per_node(text: &str) -> Result<Vec<Effect>, String> {
    match text.trim() {
        "gpu" | "auto" | "cpu" | "xpu" => Err(
            "rlaunch takes a number here; a line of a hostfile without slots= gives a host as many \
             ranks as it has GPUs"
                .to_owned(),
        ),
        number => Ok(vec![Effect::value("npernode", number)]),
    }
}

/// Translates values of torchrun's `--master-addr`, which have no effect in rlaunch.
fn master_addr(text: &str) -> Result<Vec<Effect>, String> {
    Ok(vec![Effect::Note(format!(
        "--master-addr {text} is left out: MASTER_ADDR is an address of rank 0's host that the other \
         hosts have reached; --oob-if and --oob-net choose the network"
    ))])
}
