//! Every environment variable a rank can rely on, and which of the launching shell's go with it.

pub mod horovod;
mod secrets;

pub use secrets::{is_secret, redacted, redacted_value};

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// What names of rlaunch's own begin with. A launcher's options can be given so, too, but never by a
/// name that [`is_rank_variable`].
pub const RLAUNCH_PREFIX: &str = "RLAUNCH_";

/// The process's number in the job, `0..WORLD_SIZE`.
pub const RANK: &str = "RANK";
/// How many ranks the job has.
pub const WORLD_SIZE: &str = "WORLD_SIZE";
/// The rank's number on its node, from 0.
pub const LOCAL_RANK: &str = "LOCAL_RANK";
/// How many ranks this node has.
pub const LOCAL_WORLD_SIZE: &str = "LOCAL_WORLD_SIZE";
/// The node's number, as torchrun names it.
pub const GROUP_RANK: &str = "GROUP_RANK";
/// The node's number.
pub const NODE_RANK: &str = "NODE_RANK";
/// A literal address of rank 0's node that every node can reach; never a name.
pub const MASTER_ADDR: &str = "MASTER_ADDR";
/// A TCP port that was free on rank 0's node when the ranks started.
pub const MASTER_PORT: &str = "MASTER_PORT";
/// [`MASTER_ADDR`] and [`MASTER_PORT`] as JAX takes them.
pub const JAX_COORDINATOR_ADDRESS: &str = "JAX_COORDINATOR_ADDRESS";
/// How many nodes there are, as torchrun names it.
pub const GROUP_WORLD_SIZE: &str = "GROUP_WORLD_SIZE";
/// [`LOCAL_WORLD_SIZE`], as DeepSpeed names it.
pub const LOCAL_SIZE: &str = "LOCAL_SIZE";
/// [`NODE_RANK`], as DeepSpeed names it.
pub const CROSS_RANK: &str = "CROSS_RANK";
/// How many nodes there are, as DeepSpeed names it.
pub const CROSS_SIZE: &str = "CROSS_SIZE";

/// [`RANK`], for programs that expect Open MPI's `mpirun`.
pub const OMPI_RANK: &str = "OMPI_COMM_WORLD_RANK";
/// [`WORLD_SIZE`], for programs that expect Open MPI's `mpirun`.
pub const OMPI_SIZE: &str = "OMPI_COMM_WORLD_SIZE";
/// [`LOCAL_RANK`], for programs that expect Open MPI's `mpirun`.
pub const OMPI_LOCAL_RANK: &str = "OMPI_COMM_WORLD_LOCAL_RANK";
/// [`LOCAL_WORLD_SIZE`], for programs that expect Open MPI's `mpirun`.
pub const OMPI_LOCAL_SIZE: &str = "OMPI_COMM_WORLD_LOCAL_SIZE";
/// The rank's number among the ranks of its node, as Open MPI names it.
pub const OMPI_NODE_RANK: &str = "OMPI_COMM_WORLD_NODE_RANK";

/// The job's id: 32 hexadecimal digits, unique for ever.
pub const RLAUNCH_JOB_ID: &str = "RLAUNCH_JOB_ID";
/// The host as it was given to rlaunch.
pub const RLAUNCH_HOST: &str = "RLAUNCH_HOST";
/// How many nodes the job has.
pub const RLAUNCH_NODES: &str = "RLAUNCH_NODES";
/// How often the job has begun again, 0 the first time; set where it may.
pub const RLAUNCH_RESTART_COUNT: &str = "RLAUNCH_RESTART_COUNT";
/// [`RLAUNCH_RESTART_COUNT`], as torchrun names it.
pub const TORCHELASTIC_RESTART_COUNT: &str = "TORCHELASTIC_RESTART_COUNT";
/// How often the job may begin again, as torchrun names it.
pub const TORCHELASTIC_MAX_RESTARTS: &str = "TORCHELASTIC_MAX_RESTARTS";
/// The rank's number in the job, under a name that nobody else sets.
pub const RLAUNCH_RANK: &str = "RLAUNCH_RANK";
/// The Unix socket of this node's agent.
pub const RLAUNCH_SOCKET: &str = "RLAUNCH_SOCKET";
/// Shows the agent that a process belongs to the job: 32 hexadecimal digits.
pub const RLAUNCH_TOKEN: &str = "RLAUNCH_TOKEN";
/// A file with the rank table as JSON, which this node's ranks can read.
pub const RLAUNCH_RANK_TABLE: &str = "RLAUNCH_RANK_TABLE";
/// Set by the user: how long barriers, gathers and waits may take, in seconds; for ever without.
pub const RLAUNCH_COMM_TIMEOUT: &str = "RLAUNCH_COMM_TIMEOUT";
/// Set by the user: how long a communicator waits for all ranks to ask for it, in seconds; 300.
pub const RLAUNCH_INIT_TIMEOUT: &str = "RLAUNCH_INIT_TIMEOUT";
/// Set by the user: 0 lets waits of a communicator sleep almost at once, as where a program's own
/// threads compute meanwhile; 1 lets them look for a while first, whoever shares the processors.
pub const RLAUNCH_SPIN: &str = "RLAUNCH_SPIN";
/// In jobs of more ranks than this, ranks of different nodes are connected when they first speak; 256
/// when unset.
pub const RLAUNCH_EAGER_RANKS: &str = "RLAUNCH_EAGER_RANKS";
/// Where this node has `librlaunch.so`, and below it, in `python`, the package for Python.
pub const RLAUNCH_LIB: &str = "RLAUNCH_LIB";
/// Where this node's copies of `--preload` files are; set when there are any.
pub const RLAUNCH_PRELOAD_DIR: &str = "RLAUNCH_PRELOAD_DIR";

/// A private directory of the job on this node, gone when the job is; unless the user set it.
pub const TMPDIR: &str = "TMPDIR";

/// Set to 1 unless the user set it: Python prints a line when it is written.
pub const PYTHONUNBUFFERED: &str = "PYTHONUNBUFFERED";
/// Where the dynamic loader looks first; the library for ranks comes behind all else.
pub const LD_LIBRARY_PATH: &str = "LD_LIBRARY_PATH";
/// Python's search path: the node's own first, then the launching shell's, then the package for
/// ranks.
pub const PYTHONPATH: &str = "PYTHONPATH";
/// The search path: the launching shell's first, then the node's own.
pub const PATH: &str = "PATH";

/// Names that belong to another launch (an `srun` or `mpirun` around this one, or an outer
/// rlaunch). They would make a program believe in ranks that do not exist, so they reach no rank.
pub fn is_foreign_launch(name: &str) -> bool {
    const EXACT: &[&str] = &[
        RANK,
        WORLD_SIZE,
        LOCAL_RANK,
        LOCAL_WORLD_SIZE,
        GROUP_RANK,
        NODE_RANK,
        MASTER_ADDR,
        MASTER_PORT,
        JAX_COORDINATOR_ADDRESS,
        GROUP_WORLD_SIZE,
        LOCAL_SIZE,
        CROSS_RANK,
        CROSS_SIZE,
        "ROLE_RANK",
        "ROLE_NAME",
        "ROLE_WORLD_SIZE",
        "GROUP_WORLD_SIZE",
        "MPI_LOCALRANKID",
        "MPI_LOCALNRANKS",
        "HYDI_CONTROL_FD",
        "PRTE_LAUNCHED",
        "OMPI_UNIVERSE_SIZE",
        "OMPI_NUM_APP_CTX",
        "OMPI_APP_CTX_NUM_PROCS",
        "OMPI_FIRST_RANKS",
        "OMPI_COMMAND",
        "OMPI_ARGV",
        "OMPI_FILE_LOCATION",
        "OMPI_WORLD_SIZE",
        "OMPI_WORLD_LOCAL_SIZE",
        RLAUNCH_JOB_ID,
        RLAUNCH_HOST,
        RLAUNCH_LIB,
        RLAUNCH_NODES,
        RLAUNCH_PRELOAD_DIR,
        RLAUNCH_RANK,
        RLAUNCH_RANK_TABLE,
        RLAUNCH_RESTART_COUNT,
        RLAUNCH_SOCKET,
        RLAUNCH_TOKEN,
    ];
    const PREFIX: &[&str] = &[
        "PMI_",
        "PMIX_",
        "OMPI_COMM_WORLD_",
        "OMPI_MCA_orte_",
        "OMPI_MCA_plm_",
        "PRTE_MCA_",
        "OMPI_MCA_ess_",
        "OMPI_MCA_pmix",
        "SLURM_",
        "HYDRA_",
        "I_MPI_HYDRA_",
        "PALS_",
        "TORCHELASTIC_",
    ];
    EXACT.contains(&name)
        || horovod::PER_LAUNCH.contains(&name)
        || PREFIX.iter().any(|prefix| name.starts_with(prefix))
}

/// Whether ranks are told something by this name, or read it for themselves: it stands for no option
/// of a launcher, which may itself run in a rank.
pub fn is_rank_variable(name: &str) -> bool {
    const NAMES: &[&str] = &[
        RLAUNCH_JOB_ID,
        RLAUNCH_HOST,
        RLAUNCH_NODES,
        RLAUNCH_RESTART_COUNT,
        RLAUNCH_RANK,
        RLAUNCH_SOCKET,
        RLAUNCH_TOKEN,
        RLAUNCH_RANK_TABLE,
        RLAUNCH_COMM_TIMEOUT,
        RLAUNCH_INIT_TIMEOUT,
        RLAUNCH_SPIN,
        RLAUNCH_EAGER_RANKS,
        RLAUNCH_LIB,
        RLAUNCH_PRELOAD_DIR,
    ];
    NAMES.contains(&name)
}

/// Whether a host has a variable of this name by itself, whichever program is started there.
pub fn is_host_variable(name: &OsStr) -> bool {
    name == PATH || name == "LANG" || is_node_specific(&name.to_string_lossy())
}

/// Names whose value only means something on the node that set it, so the launching shell's are
/// not forwarded and the node keeps its own.
pub fn is_node_specific(name: &str) -> bool {
    const EXACT: &[&str] = &[
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "PWD",
        "OLDPWD",
        "TMPDIR",
        "DISPLAY",
        "XAUTHORITY",
        "HOSTNAME",
        "MAIL",
        "SHLVL",
        "_",
        "LINES",
        "COLUMNS",
        "NVIDIA_VISIBLE_DEVICES",
        "NVIDIA_DRIVER_CAPABILITIES",
    ];
    const PREFIX: &[&str] = &["XDG_", "DBUS_", "SSH_", "KUBERNETES_"];
    EXACT.contains(&name) || PREFIX.iter().any(|prefix| name.starts_with(prefix))
}

/// `first` followed by those entries of `then` that are not in it. Empty entries are dropped: they
/// would mean the working directory.
pub fn join_search_path(first: &OsStr, then: &OsStr) -> OsString {
    let mut entries: Vec<&[u8]> = Vec::new();
    let all =
        [first, then].into_iter().flat_map(|path| path.as_bytes().split(|&byte| byte == b':'));
    for entry in all {
        if !entry.is_empty() && !entries.contains(&entry) {
            entries.push(entry);
        }
    }
    OsString::from_vec(entries.join(&b':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_launches_are_known_by_name() {
        for name in ["PMI_RANK", "PMIX_NAMESPACE", "SLURM_PROCID", "OMPI_MCA_orte_hnp_uri", "RANK"]
            .into_iter()
            .chain(["HOROVOD_SIZE", "HOROVOD_GLOO_RENDEZVOUS_PORT"])
            .chain([TORCHELASTIC_RESTART_COUNT, RLAUNCH_RESTART_COUNT])
        {
            assert!(is_foreign_launch(name), "{name}");
        }
        for name in
            ["OMPI_MCA_btl", "HOROVOD_CYCLE_TIME", "NCCL_DEBUG", "RANKING", "LD_LIBRARY_PATH"]
        {
            assert!(!is_foreign_launch(name), "{name}");
        }
    }

    #[test]
    fn no_name_that_ranks_know_stands_for_an_option() {
        let lines = include_str!("mod.rs").lines().filter(|line| line.starts_with("pub const "));
        let values = lines.filter_map(|line| line.split('"').nth(1));
        let names: Vec<&str> = values
            .filter(|name| name.starts_with(RLAUNCH_PREFIX) && *name != RLAUNCH_PREFIX)
            .collect();
        assert!(names.len() >= 13, "{names:?}");
        for name in names {
            assert!(is_rank_variable(name), "{name}");
        }
        assert!(!is_rank_variable("RLAUNCH_NP"));
    }

    #[test]
    fn search_paths_keep_order_and_drop_repeats() {
        let joined = |first: &[u8], then: &[u8]| {
            join_search_path(OsStr::from_bytes(first), OsStr::from_bytes(then)).into_vec()
        };
        assert_eq!(joined(b"/a:/b", b"/b:/c:"), b"/a:/b:/c");
        assert_eq!(joined(b"", b"/c"), b"/c");
        assert_eq!(joined(b"/\xff", b"/\xfe:/\xff"), b"/\xff:/\xfe");
    }
}
