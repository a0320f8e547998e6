//! Selection of a job's hosts: those of `-H` and `--hostfile`, or those that a scheduler has allocated, without
//! those of `--exclude`.

use crate::cli::allocation::{self, AllocatedHosts, AllocationError, MpiJob, MpiJobError};
use crate::cli::args::HostSourceArgs;
use rlaunch_console::messages;
use rlaunch_engine::connect::connector::{Launcher, Reach, RshError, SlurmJob};
use rlaunch_plan::hosts::host_table::HostTable;
use rlaunch_plan::hosts::hostfile::{self, HostfileError};
use rlaunch_plan::hosts::{Host, HostSet, HostsError};
use rlaunch_plan::map::MapBy;
use rlaunch_text::text;
use std::path::PathBuf;

pub(crate) struct HostOptions<'a> {
    /// Values of `-H`.
    pub(crate) lists: &'a [String],
    /// Paths of `--hostfile`.
    pub(crate) files: &'a [PathBuf],
    /// Values of `--exclude`.
    pub(crate) exclude: &'a [String],
    /// Tables `[hosts.NAME]` and `[groups]` of the configuration file.
    pub(crate) table: &'a HostTable,
}

impl<'a> HostOptions<'a> {
    pub(crate) fn of_verb(args: &'a HostSourceArgs, table: &'a HostTable) -> HostOptions<'a> {
        HostOptions { lists: &args.hosts, files: &args.hostfiles, exclude: &args.exclude, table }
    }
}

/// Hosts that were selected, and their origin.
pub(crate) struct HostSelection {
    /// Selected hosts. The list is empty if no hosts are named or allocated; the job then runs on this
    /// machine.
    pub(crate) hosts: Vec<Host>,
    /// Origin of the hosts, for messages like `hosts of SOURCE: a, b`.
    pub(crate) source: String,
    /// Configuration of mpirun, if the hosts come from it.
    mpi_job: Option<MpiJob>,
    /// Whether the hosts come from environment variables and not from options.
    is_allocated: bool,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum HostSelectionError {
    #[error(transparent)]
    Hosts(#[from] HostsError),
    #[error(transparent)]
    Hostfile(#[from] HostfileError),
    #[error(transparent)]
    Allocation(#[from] AllocationError),
    #[error(transparent)]
    MpiJob(#[from] MpiJobError),
    #[error(transparent)]
    Rsh(#[from] RshError),
    #[error("-H {host} is not a host of {source_of}: {known}")]
    NotInFile { host: String, source_of: String, known: String },
    #[error("--exclude {host} is not among the hosts: {known}")]
    NotExcluded { host: String, known: String },
    #[error("--exclude leaves none of the hosts: {known}")]
    NoneLeft { known: String },
    #[error("--launcher srun is for the nodes of a Slurm job, and {0}")]
    NoSlurm(String),
    #[error("--launcher srun and {0} exclude each other")]
    SrunAndRsh(&'static str),
    #[error(
        "`{entry}` of {source_of} gives a host {slots} slots, on which {slots} ranks would start"
    )]
    Port { entry: String, source_of: String, slots: u32 },
}

impl HostSelectionError {
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            HostSelectionError::Hosts(_) => Some(
                "-H takes names like a,b:2,user@c,n[01-16], and groups of rlaunch.toml like @gpu"
                    .into(),
            ),
            HostSelectionError::Hostfile(_) => Some(
                "a hostfile has a line for each host, such as `a slots=4` or `n[01-16]:4`".into(),
            ),
            HostSelectionError::Allocation(error) => Some(error.hint()),
            HostSelectionError::MpiJob(error) => Some(error.hint()),
            HostSelectionError::Rsh(error) => error.hint(),
            HostSelectionError::NotInFile { .. } => {
                Some("with --hostfile, -H chooses among its hosts".into())
            }
            HostSelectionError::NoSlurm(_) => Some("salloc -N2 rlaunch … allocates two".into()),
            HostSelectionError::NotExcluded { .. }
            | HostSelectionError::NoneLeft { .. }
            | HostSelectionError::SrunAndRsh(_) => None,
            HostSelectionError::Port { slots, .. } => Some(format!(
                "a port is given by --port {slots}, or for one host by Port in ~/.ssh/config; if it \
                 is not a port, -np says how many ranks start, or slots={slots} in a hostfile"
            )),
        }
    }
}

/// Selects the hosts of a job; the list is empty if none are named or allocated. Prints where allocated hosts
/// come from. If they come from mpirun's configuration, `connect` gets the remote shell of that
/// configuration, unless the user set `--rsh`. `count` says whether the hosts' slots are numbers of ranks.
pub(crate) fn select(
    options: &HostOptions<'_>,
    count: RankCount,
    connect: &mut Reach,
) -> Result<Vec<Host>, HostSelectionError> {
    let selection = HostSelection::new(options)?;
    if selection.is_allocated {
        // A number that a scheduler wrote is no port.
        messages::info(&selection.origin());
    } else {
        check_ports(&selection.hosts, &selection.source, count)?;
    }
    if selection.hosts.is_empty()
        && let Some(hint) = allocation::hint_at_unread(|name| std::env::var_os(name))
    {
        messages::info(&hint);
    }
    if let Some(job) = &selection.mpi_job {
        // The pods of an MPIJob may still be starting.
        connect.retry_until_up = true;
        if connect.rsh.is_none() {
            connect.rsh = job.rsh()?;
        }
    }
    Ok(selection.hosts)
}

/// Chooses by what the hosts of a job are reached: by steps of the Slurm job whose nodes they are, or else by SSH. Returns
/// whether they are its nodes.
pub(crate) fn choose_launcher(
    hosts: &[Host],
    reach: &mut Reach,
) -> Result<bool, HostSelectionError> {
    let job = allocation::slurm_job(|name| std::env::var_os(name));
    let wants_srun = reach.launcher == Launcher::Srun;
    if wants_srun && reach.rsh.is_some() {
        return Err(HostSelectionError::SrunAndRsh("--rsh"));
    }
    let Some(job) = job else {
        if wants_srun {
            return Err(HostSelectionError::NoSlurm("SLURM_JOB_ID is not set here".to_owned()));
        }
        return Ok(false);
    };
    if let Some(other) = job.foreign(hosts) {
        if wants_srun {
            let id = &job.id;
            return Err(HostSelectionError::NoSlurm(format!("{other} is none of job {id}")));
        }
        if hosts.iter().any(|host| job.nodes.contains(&host.name)) {
            let with = if other.user.is_some() { ", with a user," } else { "" };
            let has_tether = hosts.iter().any(|host| job.has(host))
                && reach.rsh.is_none()
                && SlurmJob::has_srun();
            let unheld =
                if has_tether { "" } else { ", and none of their ranks ends with the job" };
            messages::info(&format!(
                "{other}{with} is no node of Slurm's job {}: all hosts are reached by {}{unheld}",
                job.id,
                if reach.rsh.is_some() { "--rsh" } else { "SSH" },
            ));
            reach.tether = Some(job).filter(|_| has_tether);
        }
        return Ok(false);
    }
    if hosts.is_empty() {
        return Ok(false);
    }
    if let Some(rsh) = &reach.rsh {
        if rsh.runs("srun") {
            messages::info(
                "without --rsh one step of srun starts all agents; with it, srun needs -u, or it keeps \
                 back what they say",
            );
        }
        return Ok(true);
    }
    if let Some(hint) = allocation::hint_at_copies(|name| std::env::var_os(name)) {
        messages::warn(&hint);
    }
    if !SlurmJob::has_srun() {
        messages::info(&format!(
            "srun is not on PATH: by SSH ranks may use more than Slurm's job {} has, are not in its \
             accounting and may outlive it",
            job.id
        ));
        return Ok(true);
    }
    if reach.launcher == Launcher::Ssh {
        messages::info(&format!(
            "by SSH ranks end with Slurm's job {}, but are not in its accounting and its limit of \
             memory unless its nodes have pam_slurm_adopt",
            job.id
        ));
        reach.tether = Some(job);
        return Ok(true);
    }
    reach.slurm = Some(job);
    Ok(true)
}

/// What decides how many ranks start on hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RankCount {
    /// Their slots.
    Slots,
    /// An option, or a verb that starts no ranks.
    Other,
}

impl RankCount {
    /// Decides by the options; `ranks` is the number of ranks on the hosts.
    pub(crate) fn new(ranks: Option<u32>, map_by: MapBy) -> RankCount {
        let is_counted = ranks.is_some() || matches!(map_by, MapBy::Ppr(_));
        if is_counted { RankCount::Other } else { RankCount::Slots }
    }
}

/// Returns an error if a host's number of slots was probably meant as a port. `source` is the origin of the hosts.
pub(crate) fn check_ports(
    hosts: &[Host],
    source: &str,
    count: RankCount,
) -> Result<(), HostSelectionError> {
    match hosts.iter().find_map(Host::likely_port) {
        Some((entry, slots)) if count == RankCount::Slots => {
            Err(HostSelectionError::Port { entry, source_of: source.to_owned(), slots })
        }
        _ => Ok(()),
    }
}

impl HostSelection {
    pub(crate) fn new(options: &HostOptions<'_>) -> Result<HostSelection, HostSelectionError> {
        let selection = HostSelection::before_exclusion(options)?;
        if options.exclude.is_empty() {
            return Ok(selection);
        }
        let mut hosts = selection.hosts;
        if hosts.is_empty() {
            hosts.push(Host::this_machine());
        }
        let excluded = options.table.parse_hosts(options.exclude)?;
        Ok(HostSelection { hosts: exclude(hosts, &excluded)?, ..selection })
    }

    fn before_exclusion(options: &HostOptions<'_>) -> Result<HostSelection, HostSelectionError> {
        let HostOptions { lists, files, table, .. } = options;
        let (hosts, source) = match (lists, files) {
            ([], []) => return HostSelection::from_environment(),
            (lists, []) => (table.parse_hosts(lists)?, "-H".to_owned()),
            (lists, files) => {
                let source = file_names(files);
                let listed = read_hostfiles(files)?;
                let hosts = match lists {
                    [] => listed,
                    lists => choose(&listed, table.parse_hosts(lists)?, &source)?,
                };
                (hosts, source)
            }
        };
        Ok(HostSelection { hosts, source, mpi_job: None, is_allocated: false })
    }

    fn from_environment() -> Result<HostSelection, HostSelectionError> {
        let (hosts, source, mpi_job) = match allocation::find(|name| std::env::var_os(name))? {
            Some(AllocatedHosts::Scheduler(found)) => (found.hosts, found.source, None),
            Some(AllocatedHosts::MpiJob(job)) => (job.hosts()?, job.source(), Some(job)),
            None => (Vec::new(), "this machine: no others are named".to_owned(), None),
        };
        let is_allocated = !hosts.is_empty();
        Ok(HostSelection { hosts, source, mpi_job, is_allocated })
    }

    /// Describes the origin of the hosts: `hosts of Slurm's job 4711 (SLURM_JOB_NODELIST): n01, n02`.
    fn origin(&self) -> String {
        match &self.mpi_job {
            Some(job) => job.origin(&self.hosts),
            None => format!("hosts of {}: {}", self.source, text::list(&self.hosts)),
        }
    }
}

fn file_names(files: &[PathBuf]) -> String {
    let names: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    names.join(" and ")
}

/// Reads the hosts of all files; slots of repeated hosts add up.
fn read_hostfiles(files: &[PathBuf]) -> Result<Vec<Host>, HostSelectionError> {
    let mut hosts = HostSet::default();
    for file in files {
        for host in hostfile::read(file)? {
            hosts.add(host)?;
        }
    }
    Ok(hosts.into_hosts())
}

/// Tells whether a typed name means a host: `a` means that host for any user, `me@a` only for `me`.
fn matches_typed(host: &Host, typed: &Host) -> bool {
    host.name == typed.name && (typed.user.is_none() || host.user == typed.user)
}

/// Chooses the hosts of a hostfile that `-H` names, with the slots of `-H` if it has any.
fn choose(
    listed: &[Host],
    typed: Vec<Host>,
    source: &str,
) -> Result<Vec<Host>, HostSelectionError> {
    let mut hosts = HostSet::default();
    for typed in typed {
        let mut matching = listed.iter().filter(|host| matches_typed(host, &typed)).peekable();
        if matching.peek().is_none() {
            let (host, source_of) = (typed.to_string(), source.to_owned());
            let known = text::list(listed);
            return Err(HostSelectionError::NotInFile { host, source_of, known });
        }
        for host in matching {
            hosts.add(if typed.has_given_slots() {
                Host { user: host.user.clone(), ..typed.clone() }
            } else {
                host.clone()
            })?;
        }
    }
    Ok(hosts.into_hosts())
}

/// Removes the hosts of `--exclude`. Returns an error if one of them is not in `hosts`, or if no host is
/// left.
fn exclude(hosts: Vec<Host>, excluded: &[Host]) -> Result<Vec<Host>, HostSelectionError> {
    let known = text::list(&hosts);
    let unknown =
        excluded.iter().find(|typed| !hosts.iter().any(|host| matches_typed(host, typed)));
    if let Some(host) = unknown.map(Host::to_string) {
        return Err(HostSelectionError::NotExcluded { host, known });
    }
    let is_kept = |host: &Host| !excluded.iter().any(|typed| matches_typed(host, typed));
    let left: Vec<Host> = hosts.into_iter().filter(is_kept).collect();
    if left.is_empty() { Err(HostSelectionError::NoneLeft { known }) } else { Ok(left) }
}
