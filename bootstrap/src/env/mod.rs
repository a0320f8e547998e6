//! Environment variables: names that ranks can rely on, and rules for variables of the launching
//! shell that must not reach the ranks.

mod secrets;

pub use secrets::{is_secret, redacted, redacted_value};

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Prefix of rlaunch's own variables. Options of the launcher can also be set by variables with
/// this prefix, except those of [`is_rank_variable`].
pub const RLAUNCH_PREFIX: &str = "RLAUNCH_";

/// Number of the rank in the job, from 0 to `WORLD_SIZE - 1`.
pub const RANK: &str = "RANK";
/// Number of ranks in the job.
pub const WORLD_SIZE: &str = "WORLD_SIZE";
/// Number of the rank on its node, from 0.
pub const LOCAL_RANK: &str = "LOCAL_RANK";
/// Number of ranks on this node.
pub const LOCAL_WORLD_SIZE: &str = "LOCAL_WORLD_SIZE";
/// Copy of [`NODE_RANK`] under the name that torchrun uses.
pub const GROUP_RANK: &str = "GROUP_RANK";
/// Number of the rank's node, from 0.
pub const NODE_RANK: &str = "NODE_RANK";
/// IP address of rank 0's node, never a host name. Every other node has reached this address.
pub const MASTER_ADDR: &str = "MASTER_ADDR";
/// TCP port on rank 0's node, which was free when the ranks started.
pub const MASTER_PORT: &str = "MASTER_PORT";
/// [`MASTER_ADDR`] and [`MASTER_PORT`] joined by a colon, for JAX.
pub const JAX_COORDINATOR_ADDRESS: &str = "JAX_COORDINATOR_ADDRESS";
/// Devices that a process of JAX uses, by number. Without it a process takes the one of its [`LOCAL_RANK`].
pub const JAX_LOCAL_DEVICE_IDS: &str = "JAX_LOCAL_DEVICE_IDS";
/// Copy of [`RLAUNCH_NODES`] under the name that torchrun uses.
pub const GROUP_WORLD_SIZE: &str = "GROUP_WORLD_SIZE";
/// Copy of [`LOCAL_WORLD_SIZE`] under the name that DeepSpeed uses.
pub const LOCAL_SIZE: &str = "LOCAL_SIZE";
/// Copy of [`NODE_RANK`] under the name that DeepSpeed uses.
pub const CROSS_RANK: &str = "CROSS_RANK";
/// Copy of [`RLAUNCH_NODES`] under the name that DeepSpeed uses.
pub const CROSS_SIZE: &str = "CROSS_SIZE";

/// Copy of [`RANK`] for programs that expect Open MPI's `mpirun`.
pub const OMPI_RANK: &str = "OMPI_COMM_WORLD_RANK";
/// Copy of [`WORLD_SIZE`] for programs that expect Open MPI's `mpirun`.
pub const OMPI_SIZE: &str = "OMPI_COMM_WORLD_SIZE";
/// Copy of [`LOCAL_RANK`] for programs that expect Open MPI's `mpirun`.
pub const OMPI_LOCAL_RANK: &str = "OMPI_COMM_WORLD_LOCAL_RANK";
/// Copy of [`LOCAL_WORLD_SIZE`] for programs that expect Open MPI's `mpirun`.
pub const OMPI_LOCAL_SIZE: &str = "OMPI_COMM_WORLD_LOCAL_SIZE";
/// Copy of [`LOCAL_RANK`] under another name that Open MPI's `mpirun` sets.
pub const OMPI_NODE_RANK: &str = "OMPI_COMM_WORLD_NODE_RANK";
/// Number of ranks that may run, by the name of Open MPI's `mpirun`.
pub const OMPI_UNIVERSE_SIZE: &str = "OMPI_UNIVERSE_SIZE";
/// Address of Open MPI's `mpirun`. JAX refuses the variables above without it; Open MPI reads it in its own daemons alone.
pub const OMPI_HNP_URI: &str = "OMPI_MCA_orte_hnp_uri";
/// Copy of [`RANK`] for programs that expect MPICH or Intel MPI.
pub const PMI_RANK: &str = "PMI_RANK";
/// Copy of [`WORLD_SIZE`] for programs that expect MPICH or Intel MPI.
pub const PMI_SIZE: &str = "PMI_SIZE";
/// Copy of [`LOCAL_RANK`] for programs that expect MPICH or Intel MPI.
pub const MPI_LOCAL_RANK: &str = "MPI_LOCALRANKID";
/// Copy of [`LOCAL_WORLD_SIZE`] for programs that expect MPICH or Intel MPI.
pub const MPI_LOCAL_SIZE: &str = "MPI_LOCALNRANKS";

/// Identifier of the job, different for every run of rlaunch: 32 hexadecimal digits.
pub const RLAUNCH_JOB_ID: &str = "RLAUNCH_JOB_ID";
/// Mark of the session that a process belongs to, for commands that run beside a rank.
pub const RLAUNCH_EXEC: &str = "RLAUNCH_EXEC";
/// Name of the rank's host, as the user gave it to rlaunch.
pub const RLAUNCH_HOST: &str = "RLAUNCH_HOST";
/// Number of nodes in the job.
pub const RLAUNCH_NODES: &str = "RLAUNCH_NODES";
/// Number of restarts of the job so far, from 0. Set only with `--max-restarts`.
pub const RLAUNCH_RESTART_COUNT: &str = "RLAUNCH_RESTART_COUNT";
/// Number of restarts of the job so far, under the name that torchrun uses.
pub const TORCHELASTIC_RESTART_COUNT: &str = "TORCHELASTIC_RESTART_COUNT";
/// Maximum number of restarts of the job, under the name that torchrun uses.
pub const TORCHELASTIC_MAX_RESTARTS: &str = "TORCHELASTIC_MAX_RESTARTS";
/// Copy of [`RLAUNCH_JOB_ID`] under the name by which torch and Lightning know ranks of torchrun.
pub const TORCHELASTIC_RUN_ID: &str = "TORCHELASTIC_RUN_ID";
/// File to which torch writes the error of a rank whose `main` has the decorator `record`. The agent sets it to a path in the
/// job's directory.
pub const TORCHELASTIC_ERROR_FILE: &str = "TORCHELASTIC_ERROR_FILE";
/// Copy of [`RANK`] under another name that torchrun uses.
pub const ROLE_RANK: &str = "ROLE_RANK";
/// Copy of [`WORLD_SIZE`] under another name that torchrun uses.
pub const ROLE_WORLD_SIZE: &str = "ROLE_WORLD_SIZE";
/// Name of a group of ranks, as torchrun has it for all ranks by default.
pub const ROLE_NAME: &str = "ROLE_NAME";
/// Number of nodes, for torchrun itself.
pub const PET_NNODES: &str = "PET_NNODES";
/// Number of the node, for torchrun itself.
pub const PET_NODE_RANK: &str = "PET_NODE_RANK";
/// Address at which torchrun's first node listens, for torchrun itself.
pub const PET_MASTER_ADDR: &str = "PET_MASTER_ADDR";
/// Port at which torchrun's first node listens, for torchrun itself.
pub const PET_MASTER_PORT: &str = "PET_MASTER_PORT";
/// Copy of [`RANK`] under a name that no other launcher sets.
pub const RLAUNCH_RANK: &str = "RLAUNCH_RANK";
/// Path of the Unix socket at which this node's agent serves its ranks.
pub const RLAUNCH_SOCKET: &str = "RLAUNCH_SOCKET";
/// Secret with which a process proves to its agent that it belongs to the job: 32 hexadecimal
/// digits.
pub const RLAUNCH_TOKEN: &str = "RLAUNCH_TOKEN";
/// Path of the JSON file with the rank table, readable by this node's ranks.
pub const RLAUNCH_RANK_TABLE: &str = "RLAUNCH_RANK_TABLE";
/// Timeout of barriers, gathers and waits for keys, in seconds, set by the user. Without this
/// variable they wait for ever.
pub const RLAUNCH_COMM_TIMEOUT: &str = "RLAUNCH_COMM_TIMEOUT";
/// Time within which all ranks must join a communicator, in seconds, set by the user. The default
/// is 300.
pub const RLAUNCH_INIT_TIMEOUT: &str = "RLAUNCH_INIT_TIMEOUT";
/// Choice of how a communicator waits, set by the user. With 0, a waiting rank goes to sleep almost
/// at once, which leaves the CPU to computing threads. With 1, a waiting rank spins first, even if
/// other processes share the CPUs.
pub const RLAUNCH_SPIN: &str = "RLAUNCH_SPIN";
/// Number of ranks above which ranks of different nodes connect only when they first communicate.
/// Set by the user; the default is 256.
pub const RLAUNCH_EAGER_RANKS: &str = "RLAUNCH_EAGER_RANKS";
/// Directory with `librlaunch.so` on this node. Its subdirectory `python` contains the Python
/// package.
pub const RLAUNCH_LIB: &str = "RLAUNCH_LIB";
/// Directory with this node's copies of `--copy` files. Set only if there are any.
pub const RLAUNCH_PRELOAD_DIR: &str = "RLAUNCH_PRELOAD_DIR";

/// Private directory of the job on this node, removed when the job ends. A value that the user has
/// set is kept, and so is the node's if only that leaves room for the names of sockets.
pub const TMPDIR: &str = "TMPDIR";
/// Directory in which the rank starts. Shells and programs take it for the path by which the user
/// knows the directory, if it leads there.
pub const PWD: &str = "PWD";

/// Number of operations that torch's flight recorder keeps.
pub const TORCH_FR_BUFFER_SIZE: &str = "TORCH_FR_BUFFER_SIZE";
/// Beginning of the paths of the pipes through which processes of torch are asked for what their
/// flight recorders keep. The agent sets it to a path in the job's directory.
pub const TORCH_NCCL_DEBUG_INFO_PIPE_FILE: &str = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE";
/// Directory in which torch.compile keeps what it has made. A value of the user or the node is kept.
pub const TORCHINDUCTOR_CACHE_DIR: &str = "TORCHINDUCTOR_CACHE_DIR";

/// Variable that rlaunch sets to 1 unless the user has set it, so that Python prints each line
/// immediately.
pub const PYTHONUNBUFFERED: &str = "PYTHONUNBUFFERED";
/// Function that Python's `breakpoint()` calls. It is [`BREAKPOINT`] unless the user or the node has
/// set it.
pub const PYTHONBREAKPOINT: &str = "PYTHONBREAKPOINT";
/// Function of the Python package that waits for `rlaunch attach`.
pub const BREAKPOINT: &str = "rlaunch.breakpoint";
/// Search path of the dynamic loader. The directory of `librlaunch.so` is its last entry.
pub const LD_LIBRARY_PATH: &str = "LD_LIBRARY_PATH";
/// Search path of Python: the node's own entries, then those of the launching shell, then rlaunch's
/// package.
pub const PYTHONPATH: &str = "PYTHONPATH";
/// Search path of programs: the entries of the launching shell, then the node's own.
pub const PATH: &str = "PATH";

pub mod horovod {
    //! Variables through which the ranks of a Horovod program find each other with the Gloo library.
    //! Horovod expects either all of them or none.

    /// Number of the rank in the job.
    pub const RANK: &str = "HOROVOD_RANK";
    /// Number of ranks in the job.
    pub const SIZE: &str = "HOROVOD_SIZE";
    /// Number of the rank on its node.
    pub const LOCAL_RANK: &str = "HOROVOD_LOCAL_RANK";
    /// Number of ranks on the node.
    pub const LOCAL_SIZE: &str = "HOROVOD_LOCAL_SIZE";
    /// Position of the rank among those ranks of the job that have an equal local rank.
    pub const CROSS_RANK: &str = "HOROVOD_CROSS_RANK";
    /// Number of nodes that have a rank with this local rank.
    pub const CROSS_SIZE: &str = "HOROVOD_CROSS_SIZE";
    /// Name shared by all ranks of a node, and by no rank of another node.
    pub const HOSTNAME: &str = "HOROVOD_HOSTNAME";
    /// Address of the rendezvous store, through which the ranks exchange their addresses.
    pub const RENDEZVOUS_ADDR: &str = "HOROVOD_GLOO_RENDEZVOUS_ADDR";
    /// Port of the rendezvous store.
    pub const RENDEZVOUS_PORT: &str = "HOROVOD_GLOO_RENDEZVOUS_PORT";
    /// Library that coordinates the ranks: `gloo` or `mpi`.
    pub const CONTROLLER: &str = "HOROVOD_CONTROLLER";
    /// Library for reductions on CPUs: `gloo`, `mpi` or `ccl`.
    pub const CPU_OPERATIONS: &str = "HOROVOD_CPU_OPERATIONS";
    /// Network interface through which ranks of other nodes reach this rank.
    pub const IFACE: &str = "HOROVOD_GLOO_IFACE";
    /// Time that ranks wait for each other at the start, in seconds.
    pub const TIMEOUT: &str = "HOROVOD_GLOO_TIMEOUT_SECONDS";

    /// Variables whose values are valid for one job only. They are never taken over from an outer
    /// launcher.
    pub const PER_LAUNCH: &[&str] = &[
        RANK, SIZE, LOCAL_RANK, LOCAL_SIZE, CROSS_RANK, CROSS_SIZE, HOSTNAME, RENDEZVOUS_ADDR,
        RENDEZVOUS_PORT,
    ];
}

/// Variables of rlaunch that are valid for one job only.
const OF_JOB: &[&str] = &[
    RLAUNCH_JOB_ID, RLAUNCH_EXEC, RLAUNCH_HOST, RLAUNCH_LIB, RLAUNCH_NODES, RLAUNCH_PRELOAD_DIR,
    RLAUNCH_RANK, RLAUNCH_RANK_TABLE, RLAUNCH_RESTART_COUNT, RLAUNCH_SOCKET, RLAUNCH_TOKEN,
];

/// Tells whether a variable belongs to another launch: to an `srun` or `mpirun` around this one, or
/// to an outer rlaunch. Such variables are not forwarded, because programs would mistake their
/// numbers for numbers of this job.
pub fn is_foreign_launch(name: &str) -> bool {
    const EXACT: &[&str] = &[
        RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, NODE_RANK, MASTER_ADDR,
        MASTER_PORT, JAX_COORDINATOR_ADDRESS, GROUP_WORLD_SIZE, LOCAL_SIZE, CROSS_RANK, CROSS_SIZE,
    ];
    const OF_OTHERS: &str = "\
        ROLE_RANK ROLE_NAME ROLE_WORLD_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS HYDI_CONTROL_FD \
        PRTE_LAUNCHED OMPI_UNIVERSE_SIZE OMPI_NUM_APP_CTX OMPI_APP_CTX_NUM_PROCS OMPI_FIRST_RANKS \
        OMPI_COMMAND OMPI_ARGV OMPI_FILE_LOCATION OMPI_WORLD_SIZE OMPI_WORLD_LOCAL_SIZE";
    const PREFIX: &str = "\
        PMI_ PMIX_ OMPI_COMM_WORLD_ OMPI_MCA_orte_ OMPI_MCA_plm_ PRTE_MCA_ OMPI_MCA_ess_ \
        OMPI_MCA_pmix SLURM_ SLURMD_ HYDRA_ I_MPI_HYDRA_ PALS_ TORCHELASTIC_ PET_ FLUX_ JSM_";
    EXACT.contains(&name)
        || OF_JOB.contains(&name)
        || horovod::PER_LAUNCH.contains(&name)
        || OF_OTHERS.split(' ').any(|other| name == other)
        || PREFIX.split(' ').any(|prefix| name.starts_with(prefix))
}

/// Tells whether a variable says something of a Slurm job as a whole. Others say it of a step, a task or a node.
pub fn is_of_slurm_job(name: &str) -> bool {
    const PREFIX: &str = "\
        SLURM_JOB SLURM_SUBMIT_ SLURM_ARRAY_ SLURM_CLUSTER_NAME SLURM_CONF SLURM_CPUS_PER_ \
        SLURM_MEM_PER_ SLURM_GPUS SLURM_TRES_PER_TASK SLURM_THREADS_PER_CORE SLURM_HINT \
        SLURM_RESTART_COUNT SLURM_WORKING_CLUSTER";
    PREFIX.split(' ').any(|prefix| name.starts_with(prefix)) && name != "SLURM_JOB_GPUS"
}

/// Tells whether Slurm sets a variable on each node of a step by itself. The agent of that node passes it on.
pub fn is_of_slurm_node(name: &str) -> bool {
    const EXACT: &str = "\
        SLURMD_NODENAME SLURM_CPUS_ON_NODE SLURM_STEP_ID SLURM_STEPID SLURM_JOB_GPUS SLURM_STEP_GPUS \
        SLURM_TOPOLOGY_ADDR SLURM_TOPOLOGY_ADDR_PATTERN SLURM_LAUNCH_NODE_IPADDR";
    EXACT.split(' ').any(|exact| name == exact)
}

/// Tells whether a variable is set for ranks or read by them. Such a name never sets an option of
/// the launcher, because a launcher may itself run inside a rank.
pub fn is_rank_variable(name: &str) -> bool {
    const SETTINGS: &[&str] =
        &[RLAUNCH_COMM_TIMEOUT, RLAUNCH_INIT_TIMEOUT, RLAUNCH_SPIN, RLAUNCH_EAGER_RANKS];
    OF_JOB.contains(&name) || SETTINGS.contains(&name)
}

/// Tells whether a login sets this variable by itself on every host. Such a variable says nothing
/// about the program that is launched.
pub fn is_host_variable(name: &OsStr) -> bool {
    name == PATH || name == "LANG" || is_node_specific(&name.to_string_lossy())
}

/// Tells whether the value of a variable is meaningful only on the node that set it. Such variables
/// are not forwarded; each node keeps its own.
pub fn is_node_specific(name: &str) -> bool {
    const EXACT: &[&str] = &[
        "HOME USER LOGNAME SHELL PWD OLDPWD TMPDIR TMP TEMP TEMPDIR DISPLAY WAYLAND_DISPLAY XAUTHORITY",
        "WINDOWID SESSION_MANAGER TMUX TMUX_PANE STY HOSTNAME HOST HOSTTYPE MACHTYPE OSTYPE REMOTEHOST",
        "MAIL SHLVL _ LINES COLUMNS NVIDIA_VISIBLE_DEVICES NVIDIA_DRIVER_CAPABILITIES",
        // Most name a file, or a key of this kernel. A login that brings a ticket sets it on each host.
        "KRB5CCNAME KRB5_KTNAME GPG_AGENT_INFO GPG_TTY",
        // The container in which rlaunch runs.
        "container SINGULARITY_NAME SINGULARITY_CONTAINER APPTAINER_NAME APPTAINER_CONTAINER",
        // Names that manifests of Kubernetes give to what they tell a container of its own pod and node.
        "POD_NAME POD_IP POD_IPS POD_UID NODE_NAME NODE_IP HOST_IP",
        // Variables of a systemd service: a rank on another host has neither its sockets nor its files, and is not who
        // keeps its watchdog quiet.
        "CREDENTIALS_DIRECTORY INVOCATION_ID JOURNAL_STREAM LISTEN_FDNAMES LISTEN_FDS LISTEN_PID",
        "MAINPID MANAGERPID NOTIFY_SOCKET RUNTIME_DIRECTORY STATE_DIRECTORY SYSTEMD_EXEC_PID",
    ];
    const PREFIX: &str = "XDG_ DBUS_ SSH_ KUBERNETES_ MEMORY_PRESSURE_ WATCHDOG_";
    EXACT.iter().any(|names| names.split(' ').any(|exact| name == exact))
        || PREFIX.split(' ').any(|prefix| name.starts_with(prefix))
}

/// Tells whether a variable belongs to a notebook, an editor, a terminal or a batch system of the machine that set it. Such
/// variables are not forwarded: on other hosts they name helpers that are not there, or draw into a cell that is not.
pub fn is_of_session(name: &str) -> bool {
    const EXACT: &str = "\
        MPLBACKEND IPYTHONENABLE COLAB_RELEASE_TAG \
        GIT_ASKPASS GIT_EDITOR BROWSER CURSOR_TRACE_ID PYCHARM_HOSTED INSIDE_EMACS NVIM VIM VIMRUNTIME MYVIMRC \
        FORCE_COLOR CLICOLOR_FORCE COLORTERM VTE_VERSION TERMINAL_EMULATOR LC_TERMINAL LC_TERMINAL_VERSION \
        DESKTOP_SESSION DESKTOP_STARTUP_ID GDMSESSION GIO_LAUNCHED_DESKTOP_FILE \
        GIO_LAUNCHED_DESKTOP_FILE_PID PE_HOSTFILE";
    const PREFIX: &str = "\
        JPY_ JUPYTERHUB_ JUPYTER_SERVER_ VSCODE_ ELECTRON_ PYDEVD_ DEBUGPY_ \
        TERM_PROGRAM TERM_SESSION_ ITERM_ KITTY_ WEZTERM_ ALACRITTY_ GHOSTTY_ KONSOLE_ GNOME_TERMINAL_ WT_ ZELLIJ \
        PBS_ LSB_ LSF_ SGE_ OAR_ COBALT_ PJM_ _CONDOR_ NOMAD_ AWS_BATCH_";
    EXACT.split(' ').any(|exact| name == exact)
        || PREFIX.split(' ').any(|prefix| name.starts_with(prefix))
}

/// Joins two search paths and drops duplicates. Empty entries are dropped too, because they would
/// mean the working directory.
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
        for name in [
            "PET_NNODES", "PMI_RANK", "PMIX_NAMESPACE", "SLURM_PROCID", "OMPI_MCA_orte_hnp_uri",
            "RANK",
        ]
        .into_iter()
        .chain(["HOROVOD_SIZE", "HOROVOD_GLOO_RENDEZVOUS_PORT"])
        .chain([TORCHELASTIC_RESTART_COUNT, RLAUNCH_RESTART_COUNT, "SLURMD_NODENAME"])
        .chain([TORCHELASTIC_RUN_ID, OMPI_UNIVERSE_SIZE, OMPI_HNP_URI, PMI_SIZE, ROLE_NAME])
        .chain([MPI_LOCAL_RANK, "FLUX_TASK_RANK"])
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
    fn what_slurm_says_of_a_job_differs_from_what_it_says_of_a_task() {
        for name in ["SLURM_JOB_ID", "SLURM_JOBID", "SLURM_CPUS_PER_TASK", "SLURM_SUBMIT_DIR"] {
            assert!(is_of_slurm_job(name) && !is_of_slurm_node(name), "{name}");
        }
        for name in ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_NODELIST", "SLURM_TASKS_PER_NODE"]
        {
            assert!(!is_of_slurm_job(name) && !is_of_slurm_node(name), "{name}");
        }
        for name in ["SLURMD_NODENAME", "SLURM_STEP_ID", "SLURM_JOB_GPUS"] {
            assert!(!is_of_slurm_job(name) && is_of_slurm_node(name), "{name}");
        }
    }

    #[test]
    fn what_names_one_host_or_a_session_there_is_its_own() {
        for name in ["PWD", "HOST", "HOSTNAME", "KRB5CCNAME", "TMUX_PANE", "NOTIFY_SOCKET"]
            .into_iter()
            .chain(["XDG_RUNTIME_DIR", "SSH_AUTH_SOCK", "MACHTYPE"])
            .chain(["TMP", "TEMP", "GPG_TTY", "POD_NAME", "POD_IP", "NODE_NAME", "HOST_IP"])
            .chain(["KRB5_KTNAME", "container", "APPTAINER_CONTAINER", "STATE_DIRECTORY"])
            .chain(["WATCHDOG_USEC", "MAINPID", "CREDENTIALS_DIRECTORY", "MEMORY_PRESSURE_WATCH"])
        {
            assert!(is_node_specific(name), "{name}");
        }
        for name in
            ["HOSTS", "KRB5_CONFIG", "TERM", "CC", "MODULEPATH", "POD_NAMESPACE", "VLLM_HOST_IP"]
        {
            assert!(!is_node_specific(name), "{name}");
        }
    }

    #[test]
    fn what_names_a_notebook_an_editor_or_a_terminal_is_of_its_session() {
        for name in ["MPLBACKEND", "JPY_PARENT_PID", "FORCE_COLOR", "VSCODE_IPC_HOOK_CLI"]
            .into_iter()
            .chain([
                "GIT_ASKPASS", "PBS_JOBID", "LSB_HOSTS", "TERM_PROGRAM", "TERM_PROGRAM_VERSION",
            ])
        {
            assert!(is_of_session(name), "{name}");
        }
        for name in ["NO_COLOR", "TERM", "JUPYTER_CONFIG_DIR", "MPLCONFIGDIR", "JOB_NAME", "EDITOR"]
        {
            assert!(!is_of_session(name), "{name}");
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
