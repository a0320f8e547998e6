//! Hosts that a scheduler has allocated, found in this shell's environment variables: by Slurm (`salloc`, `sbatch`), by
//! another batch system (`batch`), or by mpirun's configuration, as Kubernetes' mpi-operator sets it.

mod batch;

use batch::BatchError;
pub(crate) use batch::hint_at_unread;
use rlaunch_engine::connect::connector::{Rsh, RshError, SlurmJob};
use rlaunch_plan::hosts::hostfile::{self, HostfileError};
use rlaunch_plan::hosts::{self, Host, HostsError, MAX_HOSTS, SlotsBy};
use rlaunch_text::text;
use std::ffi::OsString;
use std::path::PathBuf;

/// Hosts that a scheduler has allocated.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Allocation {
    pub(crate) hosts: Vec<Host>,
    /// Description of the allocation for messages: `Slurm's job 4711 (SLURM_JOB_NODELIST)`.
    pub(crate) source: String,
}

/// Hosts that environment variables name, by the kind of variables.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum AllocatedHosts {
    Scheduler(Allocation),
    /// Hosts of mpirun's or mpiexec's configuration.
    MpiJob(MpiJob),
}

/// Error in the variables of an allocation.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AllocationError {
    #[error(transparent)]
    Slurm(#[from] SlurmError),
    #[error(transparent)]
    Batch(#[from] BatchError),
}

impl AllocationError {
    pub(crate) fn hint(&self) -> String {
        let variable = match self {
            AllocationError::Slurm(SlurmError::Heterogeneous { .. }) => {
                return "-H \"$SLURM_JOB_NODELIST_HET_GROUP_0\" names the hosts of a part, which are then \
                        reached by SSH"
                    .to_owned();
            }
            AllocationError::Slurm(_) => NODES,
            AllocationError::Batch(error) => error.variable(),
        };
        format!("-H names hosts, in place of those of {variable}")
    }
}

/// Finds the hosts of Slurm, or else of another batch system, or else of mpirun's configuration; `None` if no variable
/// names hosts.
pub(crate) fn find(
    env: impl Fn(&str) -> Option<OsString>,
) -> Result<Option<AllocatedHosts>, AllocationError> {
    if let Some(allocation) = slurm_hosts(&env)? {
        return Ok(Some(AllocatedHosts::Scheduler(allocation)));
    }
    let machine = nix::unistd::gethostname().unwrap_or_default();
    if let Some(allocation) = batch::hosts(&env, &machine.to_string_lossy())? {
        return Ok(Some(AllocatedHosts::Scheduler(allocation)));
    }
    Ok(MpiJob::from_environment(env).map(AllocatedHosts::MpiJob))
}

/// Returns the text of a variable without surrounding spaces; `None` if that is empty.
fn trimmed(env: &impl Fn(&str) -> Option<OsString>, name: &str) -> Option<String> {
    let value = env(name)?.to_string_lossy().trim().to_owned();
    Some(value).filter(|value| !value.is_empty())
}

/// Variable with the number of the job.
const JOB: &str = "SLURM_JOB_ID";
/// Variables of a task of srun, whose step may have fewer nodes than the job.
const STEP_NODES: &str = "SLURM_STEP_NODELIST";
const STEP_TASKS: &str = "SLURM_STEP_TASKS_PER_NODE";
/// Lowest number of steps that srun has not started: 4294967290 and above are shells, scripts and the like.
const FIRST_SPECIAL_STEP: u32 = 0xffff_fff0;
/// Variable that lists the nodes: `n[01-03],login`.
const NODES: &str = "SLURM_JOB_NODELIST";
/// Variable that lists the nodes in Slurm 1, before it was renamed.
const OLD_NODES: &str = "SLURM_NODELIST";
/// Variable with the number of tasks on each node, in the order of the nodes: `2(x3),1`.
const TASKS: &str = "SLURM_TASKS_PER_NODE";
/// Variable with the number of tasks on every node, which Slurm sets only if the user chose that number.
const TASKS_PER_NODE: &str = "SLURM_NTASKS_PER_NODE";

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SlurmError {
    #[error("the nodes of {variable}")]
    Nodes { variable: &'static str, source: HostsError },
    #[error("{variable} is `{value}`, which is not understood")]
    Tasks { variable: &'static str, value: String },
    #[error("{tasks} `{value}` is for {counts} nodes, and {NODES} has {nodes}")]
    Lengths { tasks: &'static str, value: String, counts: usize, nodes: usize },
    #[error(
        "Slurm's job{job} is heterogeneous, of {parts} parts, and a job of rlaunch runs in one"
    )]
    Heterogeneous { job: String, parts: String },
}

/// Reads the allocation of Slurm, if there is one. A node has a slot for each task that Slurm would start there, or
/// one slot if no variable has the number of tasks.
fn slurm_hosts(env: &impl Fn(&str) -> Option<OsString>) -> Result<Option<Allocation>, SlurmError> {
    let job = trimmed(env, JOB).map(|id| format!(" {id}")).unwrap_or_default();
    if let Some(parts) = trimmed(env, "SLURM_HET_SIZE").filter(|parts| parts != "1") {
        return Err(SlurmError::Heterogeneous { job, parts });
    }
    let named = |variable| Some((variable, trimmed(env, variable)?));
    let of_step = || named(STEP_NODES).filter(|_| is_in_step(env));
    let listed = of_step().or_else(|| named(NODES)).or_else(|| named(OLD_NODES));
    let Some((variable, list)) = listed else { return Ok(None) };
    let hosts = hosts::parse(&[list]);
    let mut hosts = hosts.map_err(|source| SlurmError::Nodes { variable, source })?;
    let tasks = tasks(env, if variable == STEP_NODES { STEP_TASKS } else { TASKS }, hosts.len())?;
    for (host, tasks) in hosts.iter_mut().zip(tasks) {
        *host = Host { slots: tasks, slots_by: SlotsBy::Given, ..host.clone() };
    }
    Ok(Some(Allocation { hosts, source: format!("Slurm's job{job} ({variable})") }))
}

/// Tells whether this process is a task of a step of srun. The scripts of sbatch and the shells of salloc are steps of their
/// own kind, with numbers at the end of the range.
fn is_in_step(env: &impl Fn(&str) -> Option<OsString>) -> bool {
    let number = trimmed(env, "SLURM_STEP_ID").and_then(|number| number.parse().ok());
    number.is_some_and(|number: u32| number < FIRST_SPECIAL_STEP)
}

/// Returns the Slurm job in which this process runs, with all its nodes.
pub(crate) fn slurm_job(env: impl Fn(&str) -> Option<OsString>) -> Option<SlurmJob> {
    // The number becomes a word of commands on hosts.
    let is_number = |id: &String| id.bytes().all(|byte| byte.is_ascii_digit());
    let id = trimmed(&env, JOB).filter(is_number)?;
    let list = trimmed(&env, NODES).or_else(|| trimmed(&env, OLD_NODES))?;
    let nodes = hosts::parse(&[list]).ok()?;
    Some(SlurmJob { id, nodes: nodes.into_iter().map(|node| node.name).collect() })
}

/// Returns the sentence for a launcher that srun has started several times.
pub(crate) fn hint_at_copies(env: impl Fn(&str) -> Option<OsString>) -> Option<String> {
    let tasks =
        trimmed(&env, "SLURM_STEP_NUM_TASKS").filter(|tasks| tasks != "1" && is_in_step(&env))?;
    let is_first = trimmed(&env, "SLURM_PROCID").is_some_and(|task| task == "0");
    is_first.then(|| {
        format!(
            "srun has started {tasks} rlaunches, and each runs the whole job: leave srun out, or start \
             one by srun -N1 -n1"
        )
    })
}

/// Returns the number of tasks on each node, in the order of the nodes; empty if no variable has it.
fn tasks(
    env: &impl Fn(&str) -> Option<OsString>,
    variable: &'static str,
    nodes: usize,
) -> Result<Vec<u32>, SlurmError> {
    if let Some(value) = trimmed(env, variable) {
        let counts = counts(&value);
        let counts = counts.ok_or_else(|| SlurmError::Tasks { variable, value: value.clone() })?;
        if counts.len() != nodes {
            return Err(SlurmError::Lengths {
                tasks: variable,
                value,
                counts: counts.len(),
                nodes,
            });
        }
        return Ok(counts);
    }
    let Some(value) = trimmed(env, TASKS_PER_NODE) else { return Ok(Vec::new()) };
    let each = value.parse().ok().filter(|&each: &u32| each > 0);
    let each = each.ok_or(SlurmError::Tasks { variable: TASKS_PER_NODE, value })?;
    Ok(vec![each; nodes])
}

/// Parses `2(x3),1` to 2, 2, 2, 1.
fn counts(text: &str) -> Option<Vec<u32>> {
    let mut counts = Vec::new();
    for part in text.split(',') {
        let (count, times) = match part.trim().split_once('(') {
            Some((count, times)) => {
                (count, times.strip_prefix('x')?.strip_suffix(')')?.parse::<usize>().ok()?)
            }
            None => (part.trim(), 1),
        };
        let count: u32 = count.parse().ok().filter(|&count| count > 0)?;
        if times > MAX_HOSTS - counts.len() {
            return None;
        }
        counts.extend(std::iter::repeat_n(count, times));
    }
    Some(counts)
}

/// Variables that name a hostfile: of Open MPI up to version 4, of Open MPI from version 5 on, of MPICH, and
/// of Intel MPI. The first that is set takes effect.
const HOSTFILES: &[&str] = &[
    "OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile", "HYDRA_HOST_FILE",
    "I_MPI_HYDRA_HOST_FILE",
];

/// Pairs of variables: the first names a remote shell, the second has options for it.
const SHELLS: &[(&str, &str)] = &[
    ("OMPI_MCA_plm_rsh_agent", "OMPI_MCA_plm_rsh_args"),
    ("PRTE_MCA_plm_ssh_agent", "PRTE_MCA_plm_ssh_args"),
    ("HYDRA_LAUNCHER_EXEC", "HYDRA_LAUNCHER_EXTRA_ARGS"),
    ("HYDRA_BOOTSTRAP_EXEC", "HYDRA_LAUNCHER_EXTRA_ARGS"),
    ("I_MPI_HYDRA_BOOTSTRAP_EXEC", "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS"),
];

/// Variables that name the kind of a remote shell, such as `ssh` or `rsh`, and not a command.
const KINDS: &[&str] = &["HYDRA_LAUNCHER", "HYDRA_BOOTSTRAP", "I_MPI_HYDRA_BOOTSTRAP"];

/// Hostfile and remote shell that variables configure for mpirun.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MpiJob {
    hostfile: PathBuf,
    /// Variable that names the hostfile.
    variable: &'static str,
    /// Variable that configures a remote shell, and the shell's command line; `None` for rlaunch's own SSH.
    shell: Option<(&'static str, String)>,
}

/// Error in the hostfile that a variable of mpirun names.
#[derive(Debug, thiserror::Error)]
#[error("the hosts of {variable}")]
pub(crate) struct MpiJobError {
    variable: &'static str,
    source: HostfileError,
}

impl MpiJobError {
    pub(crate) fn hint(&self) -> String {
        format!("-H names hosts in its place; with `unset {}` the job runs here", self.variable)
    }
}

impl MpiJob {
    /// Reads the variables; returns `None` if none of them names a hostfile.
    pub(crate) fn from_environment(env: impl Fn(&str) -> Option<OsString>) -> Option<MpiJob> {
        // In Open MPI, the value `none` stands for no file.
        let is_file = |value: &OsString| !value.is_empty() && value != "none";
        let file = |name: &&'static str| Some((*name, env(name).filter(is_file)?));
        let (variable, hostfile) = HOSTFILES.iter().find_map(file)?;
        Some(MpiJob { hostfile: hostfile.into(), variable, shell: remote_shell(&env) })
    }

    pub(crate) fn hosts(&self) -> Result<Vec<Host>, MpiJobError> {
        let variable = self.variable;
        hostfile::read(&self.hostfile).map_err(|source| MpiJobError { variable, source })
    }

    /// Returns the remote shell; `None` if rlaunch's own SSH can take its place.
    pub(crate) fn rsh(&self) -> Result<Option<Rsh>, RshError> {
        self.shell.as_ref().map(|(name, words)| Rsh::parse(name, words)).transpose()
    }

    /// Returns the hostfile and its variable for messages: `/etc/mpi/hostfile (HYDRA_HOST_FILE)`.
    pub(crate) fn source(&self) -> String {
        format!("{} ({})", self.hostfile.display(), self.variable)
    }

    /// Describes the origin of `hosts`: `hosts of /etc/mpi/hostfile (HYDRA_HOST_FILE): a, b; by rsh`.
    pub(crate) fn origin(&self, hosts: &[Host]) -> String {
        let by = self.shell.as_ref().map(|(_, words)| format!("; by {words}")).unwrap_or_default();
        format!("hosts of {}: {}{by}", self.source(), text::list(hosts))
    }
}

/// Chooses the remote shell: the command that a variable names, or else `rsh` if a variable asks for this kind, or
/// else `ssh` if a variable has options for it. Returns the variable and the command line; `None` if rlaunch's own SSH
/// can take its place.
fn remote_shell(env: &impl Fn(&str) -> Option<OsString>) -> Option<(&'static str, String)> {
    let value_of = |name: &str| {
        let value = env(name).filter(|value| !value.is_empty())?;
        Some(value.to_string_lossy().trim().to_owned())
    };
    for (name, args) in SHELLS {
        if let Some(command) = value_of(name) {
            return Some((*name, shell_command(&command, value_of(args))?));
        }
    }
    for name in KINDS {
        if value_of(name).is_some_and(|kind| kind == "rsh") {
            return Some((*name, shell_command("rsh", value_of("HYDRA_LAUNCHER_EXTRA_ARGS"))?));
        }
    }
    let (args, options) = SHELLS.iter().find_map(|(_, args)| Some((*args, value_of(args)?)))?;
    Some((args, shell_command("ssh", Some(options))?))
}

/// Joins a remote shell and its options to one command line; returns `None` if rlaunch's own SSH can take its
/// place.
pub(crate) fn shell_command(command: &str, args: Option<String>) -> Option<String> {
    // Open MPI takes the first of `ssh : rsh` that is installed.
    let command = command.split(" : ").next().unwrap_or_default().trim();
    let args = args.unwrap_or_default();
    if command == "ssh" && only_retries(&args) {
        return None;
    }
    Some(format!("{command} {args}").trim().to_owned())
}

/// Tells whether options of ssh only ask for more connection attempts, which rlaunch makes by itself.
fn only_retries(args: &str) -> bool {
    let mut words = args.split_whitespace();
    while let Some(word) = words.next() {
        let option = match word.strip_prefix("-o") {
            Some("") => words.next().unwrap_or_default(),
            Some(option) => option,
            None => return false,
        };
        if !option.to_ascii_lowercase().starts_with("connectionattempts") {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn slurm_comes_first_and_then_other_batch_systems_and_then_mpirun() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("nodes");
        std::fs::write(&file, "p\n").unwrap();
        let mut settings = vec![
            (NODES, OsString::from("s1")),
            ("PBS_NODEFILE", file.clone().into_os_string()),
            ("LSB_MCPU_HOSTS", OsString::from("l1 2 l2 2")),
            ("OMPI_MCA_orte_default_hostfile", file.into_os_string()),
        ];
        let mut found = Vec::new();
        while !settings.is_empty() {
            let env = |name: &str| settings.iter().find(|(n, _)| *n == name).map(|s| s.1.clone());
            found.push(match find(env).unwrap() {
                Some(AllocatedHosts::Scheduler(allocation)) => allocation.hosts[0].name.clone(),
                Some(AllocatedHosts::MpiJob(job)) => {
                    format!("mpirun's {}", job.hosts().unwrap()[0].name)
                }
                None => String::new(),
            });
            settings.remove(0);
        }
        assert_eq!(found, ["s1", "p", "l1", "mpirun's p"]);
        assert_eq!(find(|_| None).unwrap(), None);
        assert_eq!(find(|_| Some(OsString::new())).unwrap(), None);
    }

    fn slurm_parsed(settings: &[(&str, &str)]) -> Result<Option<Vec<(String, u32)>>, SlurmError> {
        let value =
            |name: &str| settings.iter().find(|(n, _)| *n == name).map(|(_, v)| OsString::from(v));
        let named = |host: &Host| (host.name.clone(), host.slots);
        Ok(slurm_hosts(&value)?.map(|allocation| allocation.hosts.iter().map(named).collect()))
    }

    fn some(hosts: &[(&str, u32)]) -> Result<Option<Vec<(String, u32)>>, SlurmError> {
        Ok(Some(hosts.iter().map(|(name, slots)| ((*name).to_owned(), *slots)).collect()))
    }

    #[test]
    fn nodes_take_the_tasks_that_slurm_would_start() {
        let nodes = (NODES, "n[01-03],login");
        let expected = [("n01", 2), ("n02", 2), ("n03", 2), ("login", 1)];
        assert_eq!(slurm_parsed(&[nodes, (TASKS, "2(x3),1")]), some(&expected));
        assert_eq!(
            slurm_parsed(&[(OLD_NODES, "a,b"), (TASKS, "4(x2)")]),
            some(&[("a", 4), ("b", 4)])
        );
        assert_eq!(
            slurm_parsed(&[(NODES, "a,b"), (TASKS_PER_NODE, "3")]),
            some(&[("a", 3), ("b", 3)])
        );
        let both = [(NODES, "a"), (TASKS, "2"), (TASKS_PER_NODE, "3")];
        assert_eq!(slurm_parsed(&both), some(&[("a", 2)]));
        // The number of CPUs on a node says nothing about tasks.
        assert_eq!(
            slurm_parsed(&[(NODES, "a,b"), ("SLURM_CPUS_ON_NODE", "64")]),
            some(&[("a", 1), ("b", 1)])
        );
        assert_eq!(slurm_parsed(&[(TASKS, "2")]), Ok(None));
    }

    #[test]
    fn it_is_said_whose_hosts_they_are() {
        let settings = [(NODES, "a"), ("SLURM_JOB_ID", "4711")];
        let value =
            |name: &str| settings.iter().find(|(n, _)| *n == name).map(|(_, v)| OsString::from(v));
        let source = slurm_hosts(&value).unwrap().unwrap().source;
        assert_eq!(source, "Slurm's job 4711 (SLURM_JOB_NODELIST)");
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        let error = |settings: &[(&str, &str)]| {
            rlaunch_bootstrap::error_chain(&slurm_parsed(settings).unwrap_err())
        };
        assert_eq!(
            error(&[(NODES, "n[1-")]),
            "the nodes of SLURM_JOB_NODELIST: `n[1-`: a bracket is not closed"
        );
        assert_eq!(
            error(&[(NODES, "n[1-4]"), (TASKS, "1")]),
            "SLURM_TASKS_PER_NODE `1` is for 1 nodes, and SLURM_JOB_NODELIST has 4"
        );
        for bad in ["2(y3)", "2(x3", "x", "0", "2,", "2(x99999)", "2(x18446744073709551616)"] {
            assert!(error(&[(NODES, "a"), (TASKS, bad)]).contains("not understood"), "{bad}");
        }
        assert!(error(&[(NODES, "a"), (TASKS_PER_NODE, "-1")]).contains(TASKS_PER_NODE));
    }

    #[test]
    fn a_step_that_is_smaller_than_the_job_has_its_own_nodes() {
        let job = [(NODES, "n[1-3]"), (JOB, "7"), (TASKS, "1")];
        let step = [("SLURM_STEP_ID", "0"), (STEP_NODES, "n2"), (STEP_TASKS, "2")];
        assert_eq!(slurm_parsed(&[job, step].concat()), some(&[("n2", 2)]));
        // The shell of salloc is a step on the first node.
        let shell = [("SLURM_STEP_ID", "4294967290"), (STEP_NODES, "n1"), (STEP_TASKS, "1")];
        let of_job = [(NODES, "n[1-3]"), (JOB, "7"), (TASKS, "2(x3)")];
        let all = some(&[("n1", 2), ("n2", 2), ("n3", 2)]);
        assert_eq!(slurm_parsed(&[of_job, shell].concat()), all);
    }

    #[test]
    fn a_heterogeneous_job_is_refused() {
        let parts = [(JOB, "7"), ("SLURM_HET_SIZE", "2"), ("SLURM_JOB_NODELIST_HET_GROUP_0", "a")];
        let error = slurm_parsed(&parts).unwrap_err().to_string();
        assert_eq!(
            error,
            "Slurm's job 7 is heterogeneous, of 2 parts, and a job of rlaunch runs in one"
        );
    }

    #[test]
    fn several_launchers_of_one_srun_are_said_once() {
        let said = |settings: &[(&str, &str)]| {
            hint_at_copies(|name| settings.iter().find(|(n, _)| *n == name).map(|(_, v)| v.into()))
        };
        let of = |task, tasks, step| {
            said(&[
                ("SLURM_PROCID", task),
                ("SLURM_STEP_NUM_TASKS", tasks),
                ("SLURM_STEP_ID", step),
            ])
        };
        assert!(of("0", "2", "0").unwrap().starts_with("srun has started 2 rlaunches"));
        assert_eq!(
            [of("1", "2", "0"), of("0", "1", "0"), of("0", "2", "4294967290")],
            [None, None, None]
        );
    }

    proptest! {
        #[test]
        fn counts_are_read_as_they_are_written(runs in prop::collection::vec((1..300u32, 1..5usize), 1..6)) {
            let text: Vec<String> = runs
                .iter()
                .map(|(count, times)| match times {
                    1 => count.to_string(),
                    _ => format!("{count}(x{times})"),
                })
                .collect();
            let expected: Vec<u32> =
                runs.iter().flat_map(|(count, times)| vec![*count; *times]).collect();
            prop_assert_eq!(counts(&text.join(",")), Some(expected));
        }

        #[test]
        fn anything_is_counts_or_nothing(text in "[0-9x(),]{0,20}|.{0,12}") {
            prop_assert!(counts(&text).is_none_or(|counts| counts.iter().all(|&count| count > 0)));
        }
    }

    /// Reads the variables `settings`, and returns the hostfile's variable and the remote shell's command
    /// line.
    fn mpirun_parsed(settings: &[(&str, &str)]) -> Option<(&'static str, Option<String>)> {
        let value =
            |name: &str| settings.iter().find(|(n, _)| *n == name).map(|(_, v)| OsString::from(v));
        let job = MpiJob::from_environment(value)?;
        assert_eq!(job.hostfile, PathBuf::from("/etc/mpi/hostfile"));
        Some((job.variable, job.shell.map(|(_, words)| words)))
    }

    const OPEN_MPI: (&str, &str) = ("OMPI_MCA_orte_default_hostfile", "/etc/mpi/hostfile");

    #[test]
    fn mpi_operator_v1alpha1_leads_by_kubexec() {
        let kubexec = ("OMPI_MCA_plm_rsh_agent", "/etc/mpi/kubexec.sh");
        assert_eq!(
            mpirun_parsed(&[OPEN_MPI, kubexec]),
            Some((OPEN_MPI.0, Some(kubexec.1.to_owned())))
        );
        let job = MpiJob::from_environment(|name| {
            [OPEN_MPI, kubexec].iter().find(|(n, _)| *n == name).map(|(_, v)| OsString::from(v))
        });
        let hosts = rlaunch_plan::hosts::parse(&["rl-worker-0,rl-worker-1".into()]).unwrap();
        assert_eq!(
            job.unwrap().origin(&hosts),
            "hosts of /etc/mpi/hostfile (OMPI_MCA_orte_default_hostfile): rl-worker-0, \
             rl-worker-1; by /etc/mpi/kubexec.sh"
        );
    }

    #[test]
    fn mpi_operator_v2beta1_leads_by_ssh() {
        let again = "-o ConnectionAttempts=10";
        assert_eq!(
            mpirun_parsed(&[OPEN_MPI, ("OMPI_MCA_plm_rsh_args", again)]),
            Some((OPEN_MPI.0, None))
        );
        let mpich = ("HYDRA_HOST_FILE", "/etc/mpi/hostfile");
        assert_eq!(
            mpirun_parsed(&[mpich, ("HYDRA_LAUNCH_EXTRA_ARGS", again)]),
            Some((mpich.0, None))
        );
        let intel = ("I_MPI_HYDRA_HOST_FILE", "/etc/mpi/hostfile");
        let args = ("I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS", again);
        assert_eq!(mpirun_parsed(&[intel, args]), Some((intel.0, None)));
        let newer = ("PRTE_MCA_prte_default_hostfile", "/etc/mpi/hostfile");
        assert_eq!(mpirun_parsed(&[newer]), Some((newer.0, None)));
    }

    #[test]
    fn a_shell_of_its_own_is_called_as_it_is_named() {
        let words = |settings: &[(&str, &str)]| {
            mpirun_parsed(&[&[OPEN_MPI][..], settings].concat()).unwrap().1
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(words(&[("OMPI_MCA_plm_rsh_agent", "ssh : rsh")]), None);
        assert_eq!(words(&[("OMPI_MCA_plm_rsh_agent", "rsh")]), some("rsh"));
        assert_eq!(words(&[("OMPI_MCA_plm_rsh_args", "-p 2222")]), some("ssh -p 2222"));
        let hydra = [("HYDRA_LAUNCHER_EXEC", "/k.sh"), ("HYDRA_LAUNCHER_EXTRA_ARGS", "-c x")];
        assert_eq!(words(&hydra), some("/k.sh -c x"));
        assert_eq!(words(&[("HYDRA_LAUNCHER", "rsh")]), some("rsh"));
        assert_eq!(words(&[("HYDRA_LAUNCHER", "ssh")]), None);
    }

    #[test]
    fn without_a_hostfile_there_is_nothing_to_follow() {
        assert_eq!(mpirun_parsed(&[]), None);
        assert_eq!(mpirun_parsed(&[("OMPI_MCA_plm_rsh_agent", "/etc/mpi/kubexec.sh")]), None);
        assert_eq!(mpirun_parsed(&[(OPEN_MPI.0, "none")]), None);
        assert_eq!(mpirun_parsed(&[(OPEN_MPI.0, "")]), None);
    }
}
