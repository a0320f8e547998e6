//! Table of other launchers' options and what each of them means in rlaunch.
//!
//! An option that changes where ranks run, what they find in their environment or where their output goes is done, or
//! refused with the words to type. One that has no effect here is accepted; a note says so only where people may wait for
//! the effect.

use super::Effect;
use super::values::{
    bind_to, copy_program, cpu_set, display, each_cpu, fork_signals, launcher, map_by, master_addr,
    nproc_per_node, output, output_filename, ppr, prefix, preload_files, prepend_pattern, rank_by,
    resource_manager, runtime_options, timestamps,
};

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
    /// Flag with the effects of this value.
    Means(fn(&str) -> Result<Vec<Effect>, String>, &'static str),
    /// Environment variable for ranks: NAME VALUE or NAME=VALUE.
    Variable,
    /// Environment variables of this shell to pass on, and no others: NAME,...
    Variables,
    /// Parameter of mpirun: NAME VALUE.
    McaParameter,
    /// File of options (`-x`, `--mca`) or of lines NAME = VALUE, which are parameters.
    OptionFile,
    /// File with a line for each program, in place of programs on the command line.
    ProgramFile,
    /// No effect, which is reported. The option has this number of values.
    Ignored(usize),
    /// No effect, and no difference that a user would notice. The option has this number of values.
    Silent(usize),
    /// An error, with this sentence.
    Refused(&'static str),
}

use Dashes::{Any, One};
use Meaning::{
    Computed, Ignored, McaParameter, Means, OptionFile, ProgramFile, Refused, SameAs, Sets, Silent,
    Variable, Variables,
};

const DEBUGGER: &str = "`rlaunch stack JOB` shows where ranks are, and `rlaunch exec JOB RANK gdb -p PID` attaches to one";
const REPORT_PID: &str =
    "`rlaunch jobs` lists running jobs, which --job-name names and `rlaunch stop NAME` ends";
const OUTPUT_FILES: &str = "--output-dir DIR writes DIR/rank.N/stdout and DIR/rank.N/stderr";
const SOCKETS: &str = "--npernode N starts N ranks on each host, and --map-by numa deals them to its NUMA nodes in turn";
const ONE_VARIABLE: &str =
    "-x NAME=VALUE sets a variable of ranks, as in -x PATH=\"/opt/bin:$PATH\"";
const WITHOUT_VARIABLE: &str = "env -u NAME rlaunch … starts the job without it";
const NO_DAEMONS: &str = "each job has agents of its own: leave it out";
const HOSTS: &str = "-H a,b names the hosts of a job, --hostfile FILE a file of them";
const NO_TOOL: &str = "the tool goes before the program: rlaunch … TOOL PROGRAM";

/// All options, grouped by launcher. An option that several launchers have is in the first of their groups
/// only.
pub(super) const OPTIONS: &[ForeignOption] = &[
    // mpirun: hosts and ranks.
    option("n", Any, SameAs("np")),
    option("c", One, SameAs("np")),
    option("N", Any, SameAs("npernode")),
    option("pernode", Any, Sets("npernode", Some("1"))),
    option("npersocket", Any, Refused(SOCKETS)),
    option("ppr", Any, Computed(ppr)),
    option("default-hostfile", Any, SameAs("hostfile")),
    option("rf", Any, SameAs("rankfile")),
    option("map-by", Any, Computed(map_by)),
    option("rank-by", Any, Computed(rank_by)),
    option("byslot", Any, Sets("map-by", Some("slot"))),
    option("bynode", Any, Sets("map-by", Some("node"))),
    option("bycore", Any, Means(map_by, "core")),
    option("bysocket", Any, Means(map_by, "socket")),
    option("bind-to", Any, Computed(bind_to)),
    option("bind-to-none", Any, Sets("bind", Some("none"))),
    option("bind-to-core", Any, Sets("bind", Some("core"))),
    option("bind-to-socket", Any, Means(bind_to, "socket")),
    option("cpu-list", Any, Computed(cpu_set)),
    option("cpu-set", Any, Computed(cpu_set)),
    option("cpus-per-proc", Any, SameAs("cpus-per-rank")),
    option("nooversubscribe", Any, Silent(0)),
    option("no-oversubscribe", Any, Silent(0)),
    option("nolocal", Any, SameAs("no-local")),
    option("use-hwthread-cpus", Any, Silent(0)),
    option("hetero-nodes", Any, Silent(0)),
    option("use-regexp", Any, Silent(0)),
    option("do-not-resolve", Any, Silent(0)),
    option("cf", One, Silent(1)),
    option("cartofile", Any, Silent(1)),
    option("gpu-support", Any, Silent(1)),
    option("add-host", Any, Refused(HOSTS)),
    option("add-hostfile", Any, Refused(HOSTS)),
    // mpirun: the program.
    option("x", Any, SameAs("env")),
    option("set-env", Any, Refused(ONE_VARIABLE)),
    option("append-env", Any, Refused(ONE_VARIABLE)),
    option("prepend-env", Any, Refused(ONE_VARIABLE)),
    option("unset-env", Any, Refused(WITHOUT_VARIABLE)),
    option("wd", Any, SameAs("wdir")),
    option(
        "set-cwd-to-session-dir",
        Any,
        Refused(
            "the directory of a job is TMPDIR of its ranks: rlaunch … sh -c 'cd \"$TMPDIR\" && exec PROGRAM'",
        ),
    ),
    option("path", Any, Refused("name the program by its path, or set -x PATH=\"DIR:$PATH\"")),
    option("prefix", Any, Computed(prefix)),
    option("noprefix", Any, Silent(0)),
    option("app-prefix", Any, Computed(prefix)),
    option("no-app-prefix", Any, Silent(0)),
    option("pmix-prefix", Any, Silent(1)),
    option("app-pmix-prefix", Any, Silent(1)),
    option("preload-files", Any, Computed(preload_files)),
    option("preload-binary", Any, Means(copy_program, "")),
    option("s", One, Means(copy_program, "")),
    option("allow-run-as-root", Any, Silent(0)),
    option("app", Any, ProgramFile),
    option(
        "index-argv-by-rank",
        Any,
        Refused("{{rank.index}} in an argument is the rank: rlaunch help programs"),
    ),
    option("tmpdir", Any, Refused("-x TMPDIR=DIR sets the directory of ranks for temporary files")),
    option("memory-alloc-kind", Any, Refused("rlaunch passes on none: leave it out")),
    option(
        "with-ft",
        Any,
        Refused("--continue-on-error -x OMPI_MCA_mpi_ft_enable=1 lets the other ranks go on"),
    ),
    option("pset", Any, Refused("ranks are in no named sets of processes: leave it out")),
    // mpirun: parameters.
    option("mca", Any, McaParameter),
    option("gmca", Any, McaParameter),
    option("omca", Any, McaParameter),
    option("gomca", Any, McaParameter),
    option("prtemca", Any, McaParameter),
    option("gprtemca", Any, McaParameter),
    option("pmixmca", Any, McaParameter),
    option("gpmixmca", Any, McaParameter),
    option("am", Any, OptionFile),
    option("tune", Any, OptionFile),
    option("personality", Any, Silent(1)),
    // mpirun: output.
    option("report-bindings", Any, Sets("show", Some("placement=stderr"))),
    option("display-map", Any, Sets("show", Some("placement"))),
    option("display-devel-map", Any, Sets("show", Some("placement"))),
    option("display-diffable-map", Any, Sets("show", Some("placement"))),
    option("display-allocation", Any, Sets("show", Some("placement"))),
    option("display-devel-allocation", Any, Sets("show", Some("placement"))),
    option("display-topo", Any, Refused("`rlaunch topo -H HOST` shows what a host has")),
    option("display", Any, Computed(display)),
    option("output", Any, Computed(output)),
    option("output-filename", Any, Computed(output_filename)),
    option("output-directory", Any, SameAs("output-dir")),
    option("output-proctable", Any, Refused("--show placement prints the host of each rank")),
    option("timestamp-output", Any, Means(timestamps, "true")),
    option("merge-stderr-to-stdout", Any, SameAs("merge-stderr")),
    option("stream-buffering", Any, Refused("--pty lets C programs print line by line")),
    option("xml", Any, Refused("--events FILE writes what happens as JSON")),
    option("xml-file", Any, Refused("--events FILE writes what happens as JSON")),
    option(
        "xterm",
        Any,
        Refused("--tag-output tells ranks apart; each has a file with --output-dir DIR"),
    ),
    option("q", One, SameAs("quiet")),
    option("do-not-launch", Any, SameAs("dry-run")),
    option("show-progress", Any, Silent(0)),
    option("report-pid", Any, Refused(REPORT_PID)),
    option("report-uri", Any, Refused(REPORT_PID)),
    option("report-events", Any, Refused("--events FILE writes what happens as JSON")),
    option("report-child-jobs-separately", Any, Silent(0)),
    // mpirun: its daemons, which rlaunch does not have.
    option("debug-daemons", Any, Silent(0)),
    option("debug-daemons-file", Any, Silent(0)),
    option("debug-devel", Any, Silent(0)),
    option("leave-session-attached", Any, Silent(0)),
    option("launch-agent", Any, Silent(1)),
    option("enable-instant-on-support", Any, Silent(0)),
    option("fwd-mpirun-port", Any, Silent(0)),
    option("novm", Any, Silent(0)),
    option("max-vm-size", Any, Silent(1)),
    option("spawn-timeout", Any, Silent(1)),
    option("set-sid", Any, Silent(0)),
    option("exec-agent", Any, Refused(NO_TOOL)),
    option("hnp", Any, Refused(NO_DAEMONS)),
    option("dvm", Any, Refused(NO_DAEMONS)),
    option("dvm-uri", Any, Refused(NO_DAEMONS)),
    option(
        "ompi-server",
        Any,
        Refused(
            "names are published within a job alone: several programs of one are joined by `:`",
        ),
    ),
    option(
        "daemonize",
        Any,
        Refused(
            "-d returns when the ranks have started, and `rlaunch logs -f NAME` shows their output",
        ),
    ),
    option("debug", Any, Refused(DEBUGGER)),
    option("debugger", Any, Refused(DEBUGGER)),
    option("tv", Any, Refused(DEBUGGER)),
    option("stop-on-exec", Any, Refused(DEBUGGER)),
    option("stop-in-init", Any, Refused(DEBUGGER)),
    option("stop-in-app", Any, Refused(DEBUGGER)),
    // mpirun: termination.
    option("enable-recovery", Any, SameAs("continue-on-error")),
    option("disable-recovery", Any, Silent(0)),
    option("continuous", Any, SameAs("continue-on-error")),
    option("report-state-on-timeout", Any, SameAs("report-state-on-timeout")),
    option("get-stack-traces", Any, SameAs("get-stack-traces")),
    option("forward-signals", Any, Computed(fork_signals)),
    option("runtime-options", Any, Computed(runtime_options)),
    option("rtos", Any, Computed(runtime_options)),
    option("keepalive", Any, Refused("--node-timeout SECONDS says when a silent host is lost")),
    // mpiexec of MPICH and Intel MPI.
    option("f", One, SameAs("hostfile")),
    option("machine", One, Refused(HOSTS)),
    option("machinelist", Any, SameAs("host")),
    option("hosts-group", Any, Refused(HOSTS)),
    option("perhost", Any, SameAs("npernode")),
    option("grr", One, SameAs("npernode")),
    option("rr", One, Sets("map-by", Some("node"))),
    option("order-nodes", Any, Refused("hosts are used in the order of -H or of the hostfile")),
    option("skip-launch-node", Any, SameAs("no-local")),
    option("env", One, Variable),
    option("genv", Any, Variable),
    option("envlist", Any, Variables),
    option("genvlist", Any, Variables),
    option("envall", Any, Silent(0)),
    option("genvall", Any, Silent(0)),
    option("envnone", Any, SameAs("no-env")),
    option("genvnone", Any, SameAs("no-env")),
    option("envexcl", Any, Refused(WITHOUT_VARIABLE)),
    option("genvexcl", Any, Refused(WITHOUT_VARIABLE)),
    option("dir", One, SameAs("wdir")),
    option("configfile", Any, ProgramFile),
    option("iface", Any, SameAs("oob-if")),
    option("launcher", Any, Computed(launcher)),
    option("bootstrap", Any, Computed(launcher)),
    option("rmk", Any, Computed(resource_manager)),
    option("launcher-exec", Any, SameAs("rsh")),
    option("bootstrap-exec", Any, SameAs("rsh")),
    option("binding", Any, Computed(each_cpu)),
    option(
        "membind",
        Any,
        Refused("numactl goes before the program: rlaunch … numactl --interleave=all PROGRAM"),
    ),
    option("gpus-per-proc", Any, Refused("--gpu-mask lets each rank see a GPU of its own")),
    option("ranks-per-proc", Any, Refused("each rank is a process")),
    option("topolib", Any, Silent(1)),
    option("demux", Any, Silent(1)),
    option("enable-x", Any, Silent(0)),
    option("disable-x", Any, Silent(0)),
    option("localhost", Any, Silent(1)),
    option("usize", Any, Silent(1)),
    option("pmi-port", Any, Silent(0)),
    option("profile", One, Ignored(0)),
    option("prot", One, Silent(0)),
    option("silent-abort", Any, Silent(0)),
    option("disable-hostname-propagation", Any, Silent(0)),
    option("enable-hostname-propagation", Any, Silent(0)),
    option("nameserver", Any, Refused("names are published within a job alone")),
    option("l", One, SameAs("tag-output")),
    option("prepend-rank", Any, SameAs("tag-output")),
    option("prepend-timestamp", Any, Means(timestamps, "true")),
    option("prepend-pattern", Any, Computed(prepend_pattern)),
    option("outfile-pattern", Any, Refused(OUTPUT_FILES)),
    option("errfile-pattern", Any, Refused(OUTPUT_FILES)),
    option("outfile", Any, Refused(OUTPUT_FILES)),
    option("errfile", Any, Refused(OUTPUT_FILES)),
    option("info", One, Refused("`rlaunch --version` says what this is")),
    option("disable-auto-cleanup", Any, SameAs("continue-on-error")),
    option("enable-auto-cleanup", Any, Silent(0)),
    option(
        "cleanup",
        Any,
        Refused("`rlaunch reap --all -H a,b` ends what jobs have left on hosts"),
    ),
    option("print-rank-map", Any, Sets("show", Some("placement"))),
    option("print-all-exitcodes", Any, Ignored(0)),
    option("gdb", One, Refused(DEBUGGER)),
    option("gtool", Any, Refused(NO_TOOL)),
    option("aps", One, Refused(NO_TOOL)),
    option("trace", One, Refused(NO_TOOL)),
    option("check-mpi", One, Refused(NO_TOOL)),
    option("soft", One, Refused("-np N starts N ranks, neither more nor fewer")),
    option("arch", One, Refused(HOSTS)),
    option("file", One, Refused("-configfile FILE has a line for each program")),
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
    option("gloo", Any, Silent(0)),
    option("use-gloo", Any, Silent(0)),
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
