//! Hosts that batch systems other than Slurm have allocated, by a variable that lists them or names a file of them.

use super::{Allocation, trimmed};
use rlaunch_plan::hosts::hostfile::{self, HostfileError};
use rlaunch_plan::hosts::{Host, SlotsBy};
use std::ffi::OsString;
use std::path::Path;

/// How a variable names hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Hosts, each with its slots: `a 4 b 2`.
    List,
    /// A host for each slot: `a a b`.
    Words,
    /// Path of a file with a line for each slot.
    Lines,
    /// Path of a file with lines that begin with a host and its slots, followed by queue and processors.
    Counts,
}

/// Variables in the order in which they take effect, each with the name of its batch system.
const VARIABLES: &[(&str, &str, Form)] = &[
    (PBS_FILE, "PBS", Form::Lines),
    ("LSB_MCPU_HOSTS", "LSF", Form::List),
    ("LSB_DJOB_HOSTFILE", "LSF", Form::Lines),
    ("LSB_HOSTS", "LSF", Form::Words),
    ("PE_HOSTFILE", "Grid Engine", Form::Counts),
    ("OAR_NODEFILE", "OAR", Form::Lines),
    ("OAR_FILE_NODES", "OAR", Form::Lines),
    ("COBALT_NODEFILE", "Cobalt", Form::Lines),
];

const PBS_FILE: &str = "PBS_NODEFILE";
/// Variable of Torque with the number of allocated CPUs on each node, for files with a line for each node.
const CPUS_PER_NODE: &str = "PBS_NUM_PPN";

/// What the value of a variable says of the number of hosts.
#[derive(Clone, Copy)]
enum Several {
    /// Nothing: the variable is set in every job.
    Unknown,
    /// It lists them, with a comma or a semicolon between two.
    Listed,
    /// It lists them, each on a line.
    Lines,
    /// It is their number.
    Counted,
}

impl Several {
    fn are_in(self, value: &str) -> bool {
        match self {
            Several::Unknown => true,
            Several::Listed => value.contains([',', ';']),
            Several::Lines => value.trim().contains('\n'),
            Several::Counted => value != "1",
        }
    }
}

/// Variables of jobs whose hosts rlaunch does not read, each with the name of its system and the option that names the
/// hosts. Some give no names, others come from systems whose hosts seldom have an sshd. Slurm and PBS name hosts by
/// another variable, which containers and cleaned environments may lack.
const UNREAD: &[(&str, Several, &str, &str)] = &[
    ("FLUX_URI", Several::Unknown, "Flux", OF_FLUX),
    ("FLUX_JOB_ID", Several::Unknown, "Flux", OF_FLUX),
    ("PJM_O_NODEINF", Several::Unknown, "PJM", r#"--hostfile "$PJM_O_NODEINF""#),
    ("LOADL_HOSTFILE", Several::Unknown, "LoadLeveler", r#"--hostfile "$LOADL_HOSTFILE""#),
    ("AZ_BATCH_HOST_LIST", Several::Listed, "Azure Batch", r#"-H "$AZ_BATCH_HOST_LIST""#),
    (
        "AZ_BATCH_NODE_LIST",
        Several::Listed,
        "Azure Batch",
        r#"-H "$(echo "$AZ_BATCH_NODE_LIST" | tr ';' ,)""#,
    ),
    ("SM_HOSTS", Several::Listed, "SageMaker", r#"-H "$(echo "$SM_HOSTS" | tr -d '[]" ')""#),
    ("VC_WORKER_HOSTS", Several::Listed, "Volcano", r#"-H "$VC_WORKER_HOSTS""#),
    ("BATCH_HOSTS_FILE", Several::Unknown, "Google Batch", r#"--hostfile "$BATCH_HOSTS_FILE""#),
    (
        "SKYPILOT_NODE_IPS",
        Several::Lines,
        "SkyPilot",
        r#"-H "$(echo "$SKYPILOT_NODE_IPS" | paste -sd,)""#,
    ),
    ("JOB_COMPLETION_INDEX", Several::Unknown, "Kubernetes", "-H JOB-0.SUBDOMAIN,JOB-1.SUBDOMAIN"),
    ("NHOSTS", Several::Counted, "Grid Engine", "-H HOST,..."),
    ("LSB_JOBID", Several::Unknown, "LSF", "-H HOST:N,..."),
    ("_CONDOR_NPROCS", Several::Counted, "HTCondor", "-H HOST,..."),
    ("AWS_BATCH_JOB_NUM_NODES", Several::Counted, "AWS Batch", "-H HOST,..."),
    ("SLURM_JOB_ID", Several::Unknown, "Slurm", r#"-H "$(squeue -h -j "$SLURM_JOB_ID" -o %N)""#),
    ("PBS_JOBID", Several::Unknown, "PBS", r#"--hostfile "/var/spool/pbs/aux/$PBS_JOBID""#),
];

const OF_FLUX: &str = r#"-H "$(flux hostlist local)""#;

#[derive(Debug, thiserror::Error)]
pub(crate) enum BatchError {
    #[error("the hosts of {variable}")]
    File { variable: &'static str, source: HostfileError },
    #[error("{variable} is `{value}`, which is not a list of hosts and their slots")]
    List { variable: &'static str, value: String },
    #[error("{CPUS_PER_NODE} is `{0}`, which is not a number of ranks")]
    CpusPerNode(String),
}

impl BatchError {
    /// Returns the variable that names the hosts.
    pub(super) fn variable(&self) -> &'static str {
        match self {
            BatchError::File { variable, .. } | BatchError::List { variable, .. } => variable,
            BatchError::CpusPerNode(_) => PBS_FILE,
        }
    }
}

/// Reads the allocation of a batch system, if there is one. `machine` is the name of this machine.
pub(super) fn hosts(
    env: &impl Fn(&str) -> Option<OsString>,
    machine: &str,
) -> Result<Option<Allocation>, BatchError> {
    let is_set = |(name, _, _): &&(&str, &str, Form)| trimmed(env, name).is_some();
    let Some(&(variable, system, form)) = VARIABLES.iter().find(is_set) else { return Ok(None) };
    let value = env(variable).unwrap_or_default();
    let path = Path::new(&value);
    let in_file = |source| BatchError::File { variable, source };
    let hosts = match form {
        Form::Lines => hostfile::read(path).map_err(in_file)?,
        Form::Counts => hostfile::read_rewritten(path, counted).map_err(in_file)?,
        Form::List => {
            let text = value.to_string_lossy();
            let wrong = || BatchError::List { variable, value: text.clone().into_owned() };
            hostfile::parse(&one_a_line(&text)).map_err(|_| wrong())?
        }
        Form::Words => {
            let text = value.to_string_lossy();
            let lines = text.split_whitespace().collect::<Vec<_>>().join("\n");
            let wrong = |_| BatchError::List { variable, value: text.clone().into_owned() };
            hostfile::parse(&lines).map_err(wrong)?
        }
    };
    let hosts = with_slots(env, variable, hosts)?;
    let source = match form {
        Form::List | Form::Words => format!("{system}'s allocation ({variable})"),
        Form::Lines | Form::Counts => format!("{} ({variable})", path.display()),
    };
    // Clusters of the other systems often have no SSH between hosts, which a job on one host does not need.
    let hosts = if variable == PBS_FILE { hosts } else { without_ssh(hosts, machine) };
    Ok(Some(Allocation { hosts, source }))
}

/// Returns what to type for hosts that a system has allocated and that rlaunch does not read.
pub(crate) fn hint_at_unread(env: impl Fn(&str) -> Option<OsString>) -> Option<String> {
    let is_set = |(name, several, ..): &&(&str, Several, &str, &str)| {
        trimmed(&env, name).is_some_and(|value| several.are_in(&value))
    };
    let (variable, _, system, option) = UNREAD.iter().find(is_set)?;
    Some(format!(
        "the hosts that {system} has allocated ({variable}) are not used: {option} names them"
    ))
}

/// Rewrites the lines of Grid Engine's file, such as `a 4 all.q@a UNDEFINED`, as those of a hostfile.
fn counted(text: &str) -> String {
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        match (words.next(), words.next()) {
            (Some(host), Some(slots)) => format!("{host} slots={slots}\n"),
            (host, _) => format!("{}\n", host.unwrap_or_default()),
        }
    };
    text.lines().map(line).collect()
}

/// Rewrites `a 4 b 2` as the lines of a hostfile.
fn one_a_line(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.chunks(2).map(|pair| format!("{}\n", pair.join(" slots="))).collect()
}

/// Gives each host the slots that its lines say. If every host has only one line, without a number, each has
/// the number of Torque's variable, or one without that variable.
fn with_slots(
    env: &impl Fn(&str) -> Option<OsString>,
    variable: &str,
    hosts: Vec<Host>,
) -> Result<Vec<Host>, BatchError> {
    let once = variable == PBS_FILE && hosts.iter().all(|host| host.slots_by == SlotsBy::Open);
    let each = match trimmed(env, CPUS_PER_NODE).filter(|_| once) {
        Some(each) => {
            let number = each.parse().ok().filter(|&each: &u32| each > 0);
            number.ok_or(BatchError::CpusPerNode(each))?
        }
        None => 1,
    };
    let given = |host: Host| Host {
        slots: if host.slots_by == SlotsBy::Open { each } else { host.slots },
        slots_by: SlotsBy::Given,
        ..host
    };
    Ok(hosts.into_iter().map(given).collect())
}

/// Names an only host `localhost` if it is this machine, on which a job then runs without SSH.
fn without_ssh(mut hosts: Vec<Host>, machine: &str) -> Vec<Host> {
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_ascii_lowercase();
    if let [host] = &mut hosts[..]
        && !machine.is_empty()
        && short(&host.name) == short(machine)
    {
        host.name = Host::this_machine().name;
    }
    hosts
}

#[cfg(test)]
mod tests {
    use super::*;

    type Found = Result<Option<Allocation>, BatchError>;

    /// Reads an allocation on machine `login`; the value of a variable of files is the file's text.
    fn found(settings: &[(&str, &str)]) -> Found {
        let directory = tempfile::tempdir().unwrap();
        let value = |name: &str| {
            let (_, text) = settings.iter().find(|(set, _)| *set == name)?;
            let of_file = |(known, _, form): &&(&str, &str, Form)| {
                *known == name && !matches!(form, Form::List | Form::Words)
            };
            if VARIABLES.iter().any(|variable| of_file(&variable)) {
                let file = directory.path().join(name);
                std::fs::write(&file, text).unwrap();
                return Some(file.into_os_string());
            }
            Some(OsString::from(text))
        };
        hosts(&value, "login.site.org")
    }

    fn slots(settings: &[(&str, &str)]) -> Vec<String> {
        let hosts = found(settings).unwrap().unwrap().hosts;
        assert!(hosts.iter().all(|host| host.slots_by == SlotsBy::Given));
        hosts.iter().map(|host| format!("{host} {}", host.slots)).collect()
    }

    fn error(settings: &[(&str, &str)]) -> String {
        rlaunch_bootstrap::error_chain(&found(settings).unwrap_err())
    }

    #[test]
    fn a_line_is_a_slot() {
        let pbs = |text| slots(&[(PBS_FILE, text)]);
        assert_eq!(pbs("a\na\nb\n"), ["a 2", "b 1"]);
        assert_eq!(pbs("a\nb\n"), ["a 1", "b 1"]);
        assert_eq!(slots(&[("LSB_DJOB_HOSTFILE", "a\na\nb\n")]), ["a 2", "b 1"]);
        assert_eq!(slots(&[("OAR_NODEFILE", "n-1.site.org\nn-1.site.org\n")]), ["n-1.site.org 2"]);
        assert_eq!(
            slots(&[("COBALT_NODEFILE", "thetagpu01\nthetagpu02\n")]),
            ["thetagpu01 1", "thetagpu02 1"]
        );
    }

    /// Each host has a line for each of its slots, so Torque's number has no effect, or one line.
    #[test]
    fn torque_may_give_the_slots_of_a_node() {
        let torque = |text, each| slots(&[(PBS_FILE, text), (CPUS_PER_NODE, each)]);
        assert_eq!(torque("a\na\nb\nb\n", "2"), ["a 2", "b 2"]);
        assert_eq!(torque("a\nb\n", "4"), ["a 4", "b 4"]);
        assert_eq!(slots(&[("OAR_NODEFILE", "a\nb\n"), (CPUS_PER_NODE, "4")]), ["a 1", "b 1"]);
    }

    #[test]
    fn lsf_lists_hosts_with_their_slots() {
        let listed = |text| slots(&[("LSB_MCPU_HOSTS", text)]);
        assert_eq!(listed("hostA 2 hostB 3 "), ["hostA 2", "hostB 3"]);
        assert_eq!(listed("a 2 b 1 a 2"), ["a 4", "b 1"]);
        assert_eq!(slots(&[("LSB_HOSTS", "hostA hostA hostB ")]), ["hostA 2", "hostB 1"]);
        assert!(error(&[("LSB_HOSTS", "a; b")]).starts_with("LSB_HOSTS is `a; b`, which is not"));
        let both = [("LSB_MCPU_HOSTS", "a 2"), ("LSB_DJOB_HOSTFILE", "a\nb\n")];
        assert_eq!(slots(&both), ["a 2"]);
    }

    /// As sge_pe(5) has it: host, slots, queue and processors. A host of two queues has two lines.
    #[test]
    fn grid_engine_has_queues_and_processors_behind_the_slots() {
        let file = "n1.site.org 4 all.q@n1.site.org UNDEFINED\nn2 2 all.q@n2 0,1:0,2\n\
                    n2 1 gpu.q@n2 <NULL>\n";
        assert_eq!(slots(&[("PE_HOSTFILE", file)]), ["n1.site.org 4", "n2 3"]);
    }

    #[test]
    fn a_job_on_this_machine_alone_needs_no_ssh() {
        assert_eq!(slots(&[("LSB_MCPU_HOSTS", "Login 4")]), ["localhost 4"]);
        assert_eq!(slots(&[("LSB_MCPU_HOSTS", "login 4 b 2")]), ["login 4", "b 2"]);
        assert_eq!(slots(&[(PBS_FILE, "login\n")]), ["login 1"]);
    }

    #[test]
    fn it_is_said_whose_hosts_they_are() {
        let source = found(&[("LSB_MCPU_HOSTS", "a 1")]).unwrap().unwrap().source;
        assert_eq!(source, "LSF's allocation (LSB_MCPU_HOSTS)");
        let source = found(&[("PE_HOSTFILE", "a 1 q@a x\n")]).unwrap().unwrap().source;
        assert!(source.ends_with("/PE_HOSTFILE (PE_HOSTFILE)"), "{source}");
    }

    #[test]
    fn what_cannot_be_read_is_an_error() {
        assert!(error(&[(PBS_FILE, "a\nb c\n")]).ends_with("E:2: `c` is not understood"));
        assert!(error(&[(PBS_FILE, "")]).starts_with("the hosts of PBS_NODEFILE: "));
        let torque = error(&[(PBS_FILE, "a\n"), (CPUS_PER_NODE, "many")]);
        assert_eq!(torque, "PBS_NUM_PPN is `many`, which is not a number of ranks");
        let lsf = error(&[("LSB_MCPU_HOSTS", "a 2 b many")]);
        assert!(lsf.starts_with("LSB_MCPU_HOSTS is `a 2 b many`, which is not"), "{lsf}");
        let sge = error(&[("PE_HOSTFILE", "a 2 q@a x\nb x q@b x\n")]);
        assert!(sge.ends_with("PE_HOSTFILE:2: `b`: `x` is not a number of slots"), "{sge}");
        assert_eq!(found(&[]).unwrap(), None);
        assert_eq!(found(&[("LSB_MCPU_HOSTS", " ")]).unwrap(), None);
    }

    #[test]
    fn hosts_that_are_not_read_are_not_left_out_without_a_word() {
        let hint = |set: &str, value: &str| {
            hint_at_unread(|name| (name == set).then(|| OsString::from(value))).unwrap_or_default()
        };
        for (set, value, words) in [
            (
                "FLUX_URI",
                "f",
                "Flux has allocated (FLUX_URI) are not used: -H \"$(flux hostlist local)\"",
            ),
            ("BATCH_HOSTS_FILE", "/etc/hosts.batch", "--hostfile \"$BATCH_HOSTS_FILE\""),
            ("SKYPILOT_NODE_IPS", "10.0.0.4\n10.0.0.5", "paste -sd,"),
            ("JOB_COMPLETION_INDEX", "0", "Kubernetes has allocated (JOB_COMPLETION_INDEX)"),
            ("NHOSTS", "2", "Grid Engine"),
            ("LSB_JOBID", "7", "LSF has allocated (LSB_JOBID) are not used: -H HOST:N"),
            ("FLUX_JOB_ID", "f", "flux hostlist"),
            ("PJM_O_NODEINF", "/var/nodes", "--hostfile \"$PJM_O_NODEINF\""),
            ("LOADL_HOSTFILE", "/var/nodes", "--hostfile \"$LOADL_HOSTFILE\""),
            ("AZ_BATCH_HOST_LIST", "10.0.0.4,10.0.0.5", "-H \"$AZ_BATCH_HOST_LIST\""),
            ("AZ_BATCH_NODE_LIST", "10.0.0.4;10.0.0.5", "tr ';' ,"),
            ("SM_HOSTS", r#"["algo-1", "algo-2"]"#, "SageMaker"),
            ("VC_WORKER_HOSTS", "w-0.w,w-1.w", "-H \"$VC_WORKER_HOSTS\""),
            ("_CONDOR_NPROCS", "2", "HTCondor"),
            ("AWS_BATCH_JOB_NUM_NODES", "2", "AWS Batch"),
            ("SLURM_JOB_ID", "4711", "squeue"),
            ("PBS_JOBID", "7.head", "/var/spool/pbs/aux/$PBS_JOBID"),
        ] {
            let hint = hint(set, value);
            assert!(hint.contains(words), "{set}: {hint}");
        }
        for (set, value) in [
            ("SKYPILOT_NODE_IPS", "10.0.0.4\n"),
            ("NHOSTS", "1"),
            ("AZ_BATCH_HOST_LIST", "10.0.0.4"),
            ("SM_HOSTS", r#"["algo-1"]"#),
            ("_CONDOR_NPROCS", "1"),
            ("AWS_BATCH_JOB_NUM_NODES", "1"),
            ("SLURM_JOB_ID", " "),
        ] {
            assert_eq!(hint(set, value), "", "{set}");
        }
    }
}
