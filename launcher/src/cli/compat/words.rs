//! Words of other launchers, and what each stands for here.

use super::translate::Meant;
use super::values;

/// A word of another launcher.
pub(super) struct Word {
    /// Without dashes, and with dashes for underscores.
    pub(super) name: &'static str,
    pub(super) dashes: Dashes,
    pub(super) meaning: Meaning,
}

/// How a word begins.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Dashes {
    /// By one: its launcher knows it so, or with two it is an option of rlaunch.
    One,
    /// By one or two.
    Any,
}

/// What a word stands for.
pub(super) enum Meaning {
    /// The option of this name, with the same values.
    Is(&'static str),
    /// The option of this name, with this value; it takes none itself.
    Sets(&'static str, Option<&'static str>),
    /// What this makes of its value, or why the value means nothing.
    Reads(fn(&str) -> Result<Vec<Meant>, String>),
    /// A variable: NAME VALUE or NAME=VALUE.
    Variable,
    /// Variables of this shell: NAME,...
    Variables,
    /// A parameter of mpirun: NAME VALUE.
    Parameter,
    /// Nothing, with so many values; that is said.
    Ignored(usize),
    /// What happens anyway.
    Already,
}

use Dashes::{Any, One};
use Meaning::{Already, Ignored, Is, Parameter, Reads, Sets, Variable, Variables};

/// Of one launcher after the other; a word that several have stands with the first.
pub(super) const WORDS: &[Word] = &[
    // mpirun: hosts and ranks.
    word("n", Any, Is("np")),
    word("c", One, Is("np")),
    word("N", Any, Is("npernode")),
    word("pernode", Any, Sets("npernode", Some("1"))),
    word("default-hostfile", Any, Is("hostfile")),
    word("map-by", Any, Reads(values::map_by)),
    word("byslot", Any, Sets("map-by", Some("slot"))),
    word("bynode", Any, Sets("map-by", Some("node"))),
    word("bind-to", Any, Reads(values::bind_to)),
    word("bind-to-none", Any, Sets("bind", Some("none"))),
    word("bind-to-core", Any, Sets("bind", Some("core"))),
    word("cpus-per-proc", Any, Is("cpus-per-rank")),
    word("nooversubscribe", Any, Already),
    word("no-oversubscribe", Any, Already),
    word("nolocal", Any, Ignored(0)),
    word("use-hwthread-cpus", Any, Ignored(0)),
    // mpirun: the program.
    word("x", Any, Is("env")),
    word("wd", Any, Is("wdir")),
    word("path", Any, Ignored(1)),
    word("prefix", Any, Ignored(1)),
    word("preload-files", Any, Reads(values::preload_files)),
    word("allow-run-as-root", Any, Already),
    // mpirun: parameters.
    word("mca", Any, Parameter),
    word("gmca", Any, Parameter),
    word("omca", Any, Parameter),
    word("prtemca", Any, Parameter),
    word("gprtemca", Any, Parameter),
    word("pmixmca", Any, Parameter),
    word("gpmixmca", Any, Parameter),
    word("am", Any, Ignored(1)),
    word("tune", Any, Ignored(1)),
    word("personality", Any, Ignored(1)),
    // mpirun: what is shown and printed.
    word("report-bindings", Any, Sets("show", Some("placement"))),
    word("display-map", Any, Sets("show", Some("placement"))),
    word("display-devel-map", Any, Sets("show", Some("placement"))),
    word("display-allocation", Any, Sets("show", Some("placement"))),
    word("display", Any, Reads(values::display)),
    word("output", Any, Reads(values::output)),
    word("timestamp-output", Any, Ignored(0)),
    word("merge-stderr-to-stdout", Any, Is("merge-stderr")),
    word("q", One, Is("quiet")),
    word("do-not-launch", Any, Is("dry-run")),
    word("show-progress", Any, Ignored(0)),
    word("debug-daemons", Any, Ignored(0)),
    word("leave-session-attached", Any, Ignored(0)),
    // mpirun: the end.
    word("enable-recovery", Any, Is("continue-on-error")),
    word("disable-recovery", Any, Already),
    word("continuous", Any, Is("continue-on-error")),
    word("report-state-on-timeout", Any, Ignored(0)),
    word("get-stack-traces", Any, Ignored(0)),
    word("forward-signals", Any, Ignored(1)),
    // mpiexec of MPICH and Intel MPI.
    word("f", One, Is("hostfile")),
    word("perhost", Any, Is("npernode")),
    word("rr", One, Sets("map-by", Some("node"))),
    word("env", One, Variable),
    word("genv", Any, Variable),
    word("envlist", Any, Variables),
    word("genvlist", Any, Variables),
    word("envall", Any, Already),
    word("genvall", Any, Already),
    word("envnone", Any, Is("no-env")),
    word("genvnone", Any, Is("no-env")),
    word("dir", One, Is("wdir")),
    word("iface", Any, Is("oob-if")),
    word("launcher", Any, Reads(values::launcher)),
    word("bootstrap", Any, Reads(values::launcher)),
    word("rmk", Any, Ignored(1)),
    word("launcher-exec", Any, Is("rsh")),
    word("bootstrap-exec", Any, Is("rsh")),
    word("l", One, Is("tag-output")),
    word("prepend-rank", Any, Is("tag-output")),
    word("disable-auto-cleanup", Any, Is("continue-on-error")),
    word("print-rank-map", Any, Sets("show", Some("placement"))),
    word("print-all-exitcodes", Any, Ignored(0)),
    word("order-nodes", Any, Ignored(1)),
    word("membind", Any, Ignored(1)),
    // torchrun.
    word("nproc-per-node", Any, Reads(values::nproc_per_node)),
    word("master-addr", Any, Reads(values::master_addr)),
    word("node-rank", Any, Ignored(1)),
    word("rdzv-backend", Any, Ignored(1)),
    word("rdzv-endpoint", Any, Ignored(1)),
    word("rdzv-id", Any, Ignored(1)),
    word("rdzv-conf", Any, Ignored(1)),
    word("standalone", Any, Ignored(0)),
    word("local-addr", Any, Ignored(1)),
    word("monitor-interval", Any, Ignored(1)),
    word("start-method", Any, Ignored(1)),
    word("role", Any, Ignored(1)),
    word("no-python", Any, Already),
    // horovodrun.
    word("ssh-port", Any, Is("port")),
    word("network-interface", Any, Is("oob-if")),
    word("network-interfaces", Any, Is("oob-if")),
    word("gloo", Any, Already),
    word("use-gloo", Any, Already),
    word("start-timeout", Any, Ignored(1)),
    word("disable-cache", Any, Ignored(0)),
];

const fn word(name: &'static str, dashes: Dashes, meaning: Meaning) -> Word {
    Word { name, dashes, meaning }
}

/// The word of this name, typed with so many dashes.
pub(super) fn find(dashes: usize, name: &str) -> Option<&'static Word> {
    WORDS.iter().find(|word| word.name == name && (word.dashes == Any || dashes == 1))
}
