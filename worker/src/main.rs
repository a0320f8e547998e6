//! The agent: one process per node that starts, watches and ends the ranks of one job.
//!
//! The launcher starts the agent as `rlaunch-worker agent` over SSH, and sends it the job through
//! the SSH channel. If the remote shell passes the agent no stdin, the agent connects back to the
//! launcher over TCP instead. Ranks find this executable as `rlaunch` on their PATH. The other
//! verbs serve the launcher (`reap`, `inventory`, `diagnose`) or the agent itself (`__exec-rank`).
//!
//! The modules, each of which uses only those above it:
//!
//! | module | contents |
//! |---|---|
//! | [`console`] | printing to a stdout or stderr that may be closed; messages on stdout |
//! | [`node`] | this host: inventory, diagnostics, facts, environment, limits, the cache of builds |
//! | [`cleanup`] | guardian, cgroup, grace period, `reap`, shared-memory files, the job's directory |
//! | [`network`] | channel to the launcher, tree of agents, the socket for ranks, proxy for Horovod |
//! | [`ranks`] | ranks: preparation, start, streams, shutdown |
//! | [`agent`] | the steps of a job on this node, and the prover of its RDMA paths |
//! | [`changes`] | changes to this host by root, their journal, and their undoing |
//! | [`diagnosis`] | answers to `rlaunch doctor`, and probes of other hosts; answers to `rlaunch monitor` |

#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod agent;
mod changes;
mod cleanup;
mod console;
mod diagnosis;
mod network;
mod node;
mod ranks;

use cleanup::{guardian, jobs, reap};
use console::{errln, outln};
use network::cabling;
use network::channel::CallbackTarget;
use nix::sys::signal::SigSet;
use node::slurm_task::SlurmTask;
use node::{cache, delivery, diagnostics, environment, inventory};
use ranks::child::{self, StubKind};
use rlaunch_bootstrap::protocol::control::NO_PROC;
use rlaunch_client::command;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "\
rlaunch-worker is the agent of rlaunch. `rlaunch` starts it on each host; it is not run by hand.

  rlaunch-worker agent             run a job, with the launcher on stdin and stdout
    --within JOB PID               on the CPUs of a process of Slurm's job
    --callback ADDRESS,… KEY NODE  or, if stdin carries nothing, over TCP
  rlaunch-worker reap JOB|all      end what a job has left on this host
    [AGENT-PID GUARDIAN-PID GRACE-MS]
                                   after its agent, which does not respond
  rlaunch-worker jobs              list the jobs that run on this host
  rlaunch-worker inventory [DIR]   write the inventory of this host, or of a recorded one
  rlaunch-worker diagnose [DIR]    examine this host and, asked by the launcher on stdin, its ways
                                   to others; or examine a recorded host
  rlaunch-worker monitor           read counters of this host whenever the launcher asks on stdin
  rlaunch-worker network [change]  find cables of this host, and give them addresses, as the
                                   launcher orders on stdin
  rlaunch-worker changes           change this host as root, on trial or to stay, and undo that, as
                                   the launcher orders on stdin
  rlaunch-worker capture           record the files that inventory and diagnosis are read from
  rlaunch-worker cache [clean]     list what this account keeps of rlaunch here, or remove it
  rlaunch-worker __verify SHA256   check the hash of this executable
  rlaunch-worker __keep SHA256     check it, and move this executable into place in the cache
  rlaunch-worker __exec-rank …     become a rank (called by the agent)
  rlaunch-worker __exec-beside …   become a command in the place of a rank (called by the agent)
  rlaunch-worker __changes         make changes as root (called by `rlaunch-worker changes`)
  rlaunch-worker __environment …   print the environment (called by a login shell)
  rlaunch-worker --version

Under the name `rlaunch`, which is on the PATH of ranks, it offers commands for their scripts:
see `rlaunch barrier --help`.";

fn main() -> ExitCode {
    // Signals that sshd, or whoever has started it, has left blocked would be blocked in ranks as well, and the guardian
    // would not hear of the agent's end. Fails for no set.
    let _ = SigSet::empty().thread_set_mask();
    // A file that may not grow is an error like others: it must cost neither the agent nor its guardian.
    rlaunch_sys::survive_file_size_limit();
    rlaunch_sys::share_heap();
    let mut args = std::env::args_os();
    let name = args.next().map(PathBuf::from).unwrap_or_default();
    if name.file_name() == Some(OsStr::new("rlaunch")) {
        return command::run(args);
    }
    let verb = args.next();
    let verb = verb.as_ref().and_then(|verb| verb.to_str());
    if matches!(verb, Some("agent" | "__verify" | "__keep")) && !Path::new("/proc/self").exists() {
        errln!("rlaunch-worker: {NO_PROC}");
        return ExitCode::FAILURE;
    }
    match verb {
        Some("agent") => match agent_options(args) {
            Ok((task, target)) => {
                leave_cache();
                if let Some(task) = task {
                    task.share_cpus();
                }
                guardian::guard(|workspace, grace| agent::run(workspace, grace, target))
            }
            Err(()) => usage(),
        },
        Some("reap") => reap::reap(args),
        Some("jobs") => console::write_message(&jobs::list_jobs()),
        Some("inventory") => inventory::print(args.next()),
        Some("diagnose") => diagnosis::diagnose(args.next()),
        Some("monitor") => diagnosis::monitor(),
        Some("network") => cabling::run(args.next()),
        Some("changes") => changes::run(),
        Some("__changes") => changes::run_as_root(args.next().as_deref().and_then(OsStr::to_str)),
        Some("capture") => diagnostics::capture(),
        Some("cache") => cache::print_report(args.next().as_deref()),
        Some("__exec-rank") => child::exec(StubKind::Rank, args),
        Some("__exec-beside") => child::exec(StubKind::Beside, args),
        Some("__environment") => environment::print_login(args.next()),
        Some("__verify") => delivery::verify(args.next()),
        Some("__keep") => delivery::keep(args.next()),
        Some("--version") => {
            outln!("rlaunch-worker {}", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
        _ => usage(),
    }
}

/// Parses the words behind `agent`.
fn agent_options(
    args: impl Iterator<Item = OsString>,
) -> Result<(Option<SlurmTask>, Option<CallbackTarget>), ()> {
    let mut args = args.peekable();
    let is_within = args.next_if(|word| word == "--within").is_some();
    let task = if is_within { Some(SlurmTask::parse(&mut args)?) } else { None };
    Ok((task, CallbackTarget::parse(args)?))
}

/// Changes back to the directory in which the login shell was, if the shell changed into the cache
/// directory to execute this file.
fn leave_cache() {
    let (Ok(here), Some(agent)) = (std::env::current_dir(), cache::agent_path()) else { return };
    let entered = agent.parent().and_then(Path::parent) == Some(&here);
    if let Some(before) = std::env::var_os("PWD").filter(|_| entered) {
        // The directory may be gone; the agent uses no relative path.
        let _ = std::env::set_current_dir(before);
    }
}

fn usage() -> ExitCode {
    errln!("{USAGE}");
    ExitCode::from(2)
}
