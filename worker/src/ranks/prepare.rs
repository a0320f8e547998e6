//! Preparation of a node for its ranks: checks of what they need.
//!
//! [`prepare`] checks whether this node has everything that the job needs, reserves ports, and
//! returns all problems at once. [`PreparedRanks`] is the result; it also reads the inventory.

mod program;

use crate::network::ports::{self, LOOPBACK, ReservedPort};
use crate::node::inventory::{self, Root, libraries};
use crate::ranks::files::JobFiles;
use nix::errno::Errno;
use nix::sched::{sched_getaffinity, sched_setaffinity};
use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::Pid;
use program::prepare_program;
use rlaunch_bootstrap::env::TMPDIR;
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::job::{Application, Binding, FewFiles, Job, Notice, Problem, RankSpec};
use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use tokio::net::TcpListener;

pub(crate) use program::{Program, find_program, find_working_dir};

/// Number of files that the agent has open for itself, and for a moment while it starts a rank. With a limit of 1024,
/// 500 ranks start and 501 do not.
const OWN_FILES: u64 = 23;

/// Everything that was prepared for the ranks.
#[derive(Debug)]
pub(crate) struct PreparedRanks {
    /// Programs, by index of the application; at least one.
    pub(crate) programs: Vec<Program>,
    pub(crate) notices: Vec<Notice>,
    /// Whether the ranks can be bound to CPUs.
    pub(crate) can_bind: bool,
    /// Ports that no other process can take until these are dropped.
    pub(crate) reserved_ports: Vec<ReservedPort>,
    /// Listeners for this node's children in the tree of agents.
    pub(crate) listeners: Vec<TcpListener>,
}

impl PreparedRanks {
    /// Returns the addresses of the listeners.
    pub(crate) fn listening_at(&self) -> Vec<SocketAddr> {
        self.listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect()
    }

    /// Reads the inventory by which ranks are placed. On a node with GPUs, in a job of several
    /// nodes, it includes the version of NCCL that the first program would load; in a job of several
    /// ranks, whether a program would load a Horovod that needs MPI.
    pub(crate) fn inventory(&self, job: &Job) -> Inventory {
        let mut inventory = inventory::read_for_job(&Root::live(), job.wants_cores);
        let has_gpus = !inventory.gpus.is_empty() && job.oob.nodes > 1;
        let home = std::env::home_dir().unwrap_or_default();
        let mut loading = self.programs.iter().map(|program| program.loading(&home));
        if let Some(first) = loading.clone().next().filter(|_| has_gpus) {
            inventory.system.nccl = libraries::find_nccl(&first);
        }
        inventory.system.horovod_needs_mpi =
            job.world_size > 1 && loading.any(|program| libraries::horovod_needs_mpi(&program));
        inventory
    }
}

/// Checks everything and returns all problems at once, so that the user can solve them together.
/// `node` is the environment of this node itself.
pub(crate) fn prepare(
    job: &Job,
    files: &JobFiles,
    node: &[(OsString, OsString)],
) -> Result<PreparedRanks, Vec<Problem>> {
    let mut problems: Vec<Problem> = check_plugin(job).err().into_iter().collect();
    let mut notices = Vec::new();
    if let Some(cause) = files.workspace_error() {
        notices.push(Notice::NoWorkspace { cause: cause.to_owned() });
    }
    notices.extend(other_tmpdir(job, files));
    let of_rank = |rank: &RankSpec| job.applications.get(rank.application as usize);
    let waiting = job.ranks.iter().filter_map(of_rank).filter(|one| one.starts_on_request).count();
    match check_open_files(job.ranks.len(), waiting, job.merge_stderr, open_files_limit()) {
        Ok(few) => notices.extend(few.map(Notice::FewFiles)),
        Err(few) => problems.push(Problem::FewFiles(few)),
    }
    let binding = check_binding(job.binding, try_to_bind());
    let can_bind = binding == Ok(None);
    match binding {
        Ok(notice) => notices.extend(notice),
        Err(problem) => problems.push(problem),
    }
    let mut programs = Vec::with_capacity(job.applications.len());
    for application in &job.applications {
        match prepare_program(job, application, files, node) {
            Ok((program, found)) => {
                programs.push(program);
                extend_unique(&mut notices, found);
            }
            Err(found) => extend_unique(&mut problems, found),
        }
    }
    match reserve_ports(job) {
        Ok((reserved_ports, listeners)) if problems.is_empty() => {
            Ok(PreparedRanks { programs, notices, can_bind, reserved_ports, listeners })
        }
        ports => {
            problems.extend(ports.err());
            Err(problems)
        }
    }
}

/// Returns the number of files that this process may have open.
fn open_files_limit() -> u64 {
    getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft)
}

/// Checks whether the agent may have open as many files as its ranks take: two pipes for each, one if `merged`, and
/// a connection while the rank calls the agent. The error means that they would not start. Of all ranks, `waiting` wait
/// for others to have started or ended, and those may have ended before.
fn check_open_files(
    ranks: usize,
    waiting: usize,
    merged: bool,
    limit: u64,
) -> Result<Option<FewFiles>, FewFiles> {
    let pipes = if merged { 1 } else { 2 };
    let take = |per_rank: u64, ranks: usize| OWN_FILES + per_rank * ranks as u64;
    let needed = take(pipes + 1, ranks);
    let few = FewFiles { ranks: u32::try_from(ranks).unwrap_or(u32::MAX), limit, needed };
    if take(pipes, ranks - waiting) > limit {
        Err(few)
    } else {
        Ok((needed > limit).then_some(few))
    }
}

/// Binds this thread to the CPUs that it has already.
fn try_to_bind() -> Result<(), Errno> {
    let this = Pid::from_raw(0);
    sched_getaffinity(this).and_then(|cpus| sched_setaffinity(this, &cpus))
}

/// Returns a notice, or a problem for a user who has asked for a binding, if the system forbids it. `tried` is what came
/// of an attempt.
fn check_binding(binding: Binding, tried: Result<(), Errno>) -> Result<Option<Notice>, Problem> {
    // Other errors say nothing of ranks: a set of the C library is too small for all CPUs of some machines.
    let forbidden = [Errno::EPERM, Errno::EACCES, Errno::ENOSYS];
    let cause = tried.err().filter(|errno| forbidden.contains(errno));
    let cause = cause.map(|errno| errno.desc().to_owned());
    match (binding, cause) {
        (Binding::None, _) | (_, None) => Ok(None),
        (Binding::Usual, Some(cause)) => Ok(Some(Notice::Unbound { cause })),
        (Binding::Required, Some(cause)) => Err(Problem::CannotBind { cause }),
    }
}

/// Adds those items that are not yet in the list. Several applications may have the same problem.
fn extend_unique<T: PartialEq>(all: &mut Vec<T>, found: Vec<T>) {
    for one in found {
        if !all.contains(&one) {
            all.push(one);
        }
    }
}

/// Returns a notice if the account has a TMPDIR on this node that cannot be used, and ranks would have had it.
fn other_tmpdir(job: &Job, files: &JobFiles) -> Option<Notice> {
    let cause = files.passed_over()?;
    // That of a login shell, which ranks may have, is not the one that was tried.
    let is_set = std::env::var_os(TMPDIR).is_some_and(|own| Path::new(&own).is_absolute());
    let keeps_it = |one: &Application| one.env.iter().all(|var| var.name != TMPDIR);
    (is_set && job.applications.iter().any(keeps_it)).then(|| Notice::OtherTmpdir {
        cause: cause.to_owned(),
        instead: files.parent().to_owned(),
    })
}

/// Reserves the ports that ranks will listen on, and opens the listeners for the tree of agents.
fn reserve_ports(job: &Job) -> Result<(Vec<ReservedPort>, Vec<TcpListener>), Problem> {
    let plan = &job.oob;
    let alone = plan.nodes < 2;
    let addresses: &[IpAddr] = if alone { &[] } else { &plan.addresses };
    // Ranks listen on all addresses of their node, and Horovod's ranks find their store on
    // loopback.
    let loopback: &[IpAddr] = if ports::has_address(LOOPBACK) { &[LOOPBACK] } else { &[] };
    let all = [addresses, loopback].concat();
    let hold = || ReservedPort::reserve(plan.ports, job.id, &all);
    let master = job.master_port.map(|port| ReservedPort::reserve_port(port, &all)).transpose()?;
    let others = job.reserved_port_count.saturating_sub(u32::from(master.is_some()));
    let mut held: Vec<ReservedPort> = master.into_iter().collect();
    for _ in 0..others {
        held.push(hold()?);
    }
    let listeners = if alone {
        Vec::new()
    } else {
        // The salt keeps clear of the ports that rank 0's node tries first.
        ports::listen(addresses, plan.ports, job.id, job.node.0 + 1)?
    };
    // One more port is for NCCL's RAS service, which answers questions about the job. Ranks run
    // without it, so that a failure is ignored: the launcher then does not set NCCL_RAS_ADDR.
    if inventory::has_gpus(&Root::live()) {
        held.extend(hold());
    }
    Ok((held, listeners))
}

fn check_plugin(job: &Job) -> Result<(), Problem> {
    match &job.nccl_net_plugin {
        Some(path) if !path.is_file() => {
            Err(Problem::NoFile { option: "--nccl-net-plugin".to_owned(), path: path.clone() })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_take_more_files_than_are_allowed_are_found_before_they_start() {
        let check = |ranks, limit| check_open_files(ranks, 0, false, limit);
        assert_eq!(check(300, 1024), Ok(None));
        let few = |ranks, needed| FewFiles { ranks, limit: 1024, needed };
        assert_eq!(check(340, 1024), Ok(Some(few(340, 1043))));
        assert_eq!(check(500, 1024), Ok(Some(few(500, 1523))));
        assert_eq!(check(501, 1024), Err(few(501, 1526)));
        // One pipe for both streams takes less.
        assert_eq!(check_open_files(501, 0, true, 1024), Ok(Some(few(501, 1025))));
        // Ranks that wait may not run beside the others.
        assert_eq!(check_open_files(501, 1, false, 1024), Ok(Some(few(501, 1526))));
        assert_eq!(check(1, 26), Ok(None));
        assert!(check(1, 24).is_err());
    }

    #[test]
    fn a_binding_that_nobody_asked_for_prevents_no_job() {
        let cause = || "Operation not permitted".to_owned();
        let check = |binding| check_binding(binding, Err(Errno::EPERM));
        assert_eq!(check(Binding::None), Ok(None));
        assert_eq!(check(Binding::Usual), Ok(Some(Notice::Unbound { cause: cause() })));
        assert_eq!(check(Binding::Required), Err(Problem::CannotBind { cause: cause() }));
        for fine in [Ok(()), Err(Errno::EINVAL)] {
            assert_eq!(check_binding(Binding::Required, fine), Ok(None));
        }
    }
}
