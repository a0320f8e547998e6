//! Table of other launchers' options and what each of them means in rlaunch.

use super::{Effect, values};

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
    option("map-by", Any, Computed(values::map_by)),
    option("byslot", Any, Sets("map-by", Some("slot"))),
    option("bynode", Any, Sets("map-by", Some("node"))),
    option("bind-to", Any, Computed(values::bind_to)),
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
    option("preload-files", Any, Computed(values::preload_files)),
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
    option("display", Any, Computed(values::display)),
    option("output", Any, Computed(values::output)),
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
    option("launcher", Any, Computed(values::launcher)),
    option("bootstrap", Any, Computed(values::launcher)),
    option("rmk", Any, Ignored(1)),
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
    option("nproc-per-node", Any, Computed(values::nproc_per_node)),
    option("master-addr", Any, Computed(values::master_addr)),
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
    option("no-python", Any, Default),
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
