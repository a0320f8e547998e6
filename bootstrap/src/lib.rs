//! Types and protocols shared by rlaunch's launcher, agents and ranks.
//!
//! The crate opens no sockets, reads no files and keeps no clock. Protocols are state machines that
//! take inputs and the current time and return actions, so all of them run in unit tests. The
//! connection of a rank to its agent, with its socket, is the crate `rlaunch-client`.
//!
//! # Reading order
//!
//! | module | contents |
//! |---|---|
//! | [`id`], [`frame`], [`deadline`], [`decimal`] | small types that the others use |
//! | [`env`](mod@env), [`shell_safe`] | names of environment variables, valid host names |
//! | [`inventory`] | hardware and system software of a node |
//! | [`security`] | authentication and encryption of TCP connections |
//! | [`rendezvous`] | the tree of agents, and its services for ranks |
//! | [`job`] | description of a job for one node |
//! | [`rank_table`] | where each rank runs, and how two ranks reach each other |
//! | [`protocol`] | messages between launcher, agent, prover and ranks |
//! | [`bench`] | results of `rlaunch bench` |
//!
//! # Glossary
//!
//! | word | meaning |
//! |---|---|
//! | job | one run of rlaunch; its description is the *JobSpec* |
//! | Launch | a job, the way to its hosts, and where its output goes |
//! | JobRun | one attempt at a job; `--max-restarts` allows several |
//! | host | entry of `-H` or a host file |
//! | node | host that takes part in the job |
//! | slot | room for one rank on a host |
//! | application, program | what ranks execute: an application is a program with its settings and ranks; a job may have several |
//! | rank | process of the job, and its number; *local rank*: its number on the node |
//! | world size | number of ranks in the job |
//! | launcher | the `rlaunch` process that the user starts |
//! | agent | the `rlaunch-worker` process on each node, which starts and watches the ranks |
//! | guardian | parent of the agent, which cleans up the node if the agent dies |
//! | control channel | connection between launcher and agent, usually the stdin and stdout of an SSH session |
//! | session | the launcher's conversation with one agent; *session beside a rank*: that of `rlaunch exec` or `attach` with it |
//! | callback | connection from agent to launcher, for shells that pass no stdin |
//! | beat | empty message as a sign of life |
//! | credit | permission to send a number of bytes of output or stdin; *window*: the credit for output at the start |
//! | turn | time in which only one stream may send or print, so that its long line stays whole |
//! | room | free space in a bounded buffer, which a message occupies until it is handled |
//! | outbox | queue of messages for one connection |
//! | grace | time between SIGTERM and SIGKILL when ranks are ended |
//! | helper | program that the agent runs beside the ranks: the prover, the reader of stacks; to users also a process that a rank leaves behind |
//! | receipt | report of an agent about what it ended on its node and what it could not end |
//! | out-of-band (oob) | over TCP between agents, not over RDMA |
//! | rendezvous | agents join a tree, and every node receives the rank table |
//! | edge | connection between parent and child in the tree |
//! | carrier | TCP connection or relay below an edge |
//! | relay | path of an edge through the launcher, if there is no TCP connection |
//! | collective | barrier or gather of all ranks |
//! | inventory | hardware and system software of a node |
//! | device, port | RDMA device and one of its ports, such as `mlx5_0` port 1 |
//! | GID index | entry of a port's GID table, which selects address and packet format |
//! | rail | ports with the same number on their nodes, usually connected to one switch |
//! | placement | assignment of CPUs, NUMA node, GPU and NICs to a rank |
//! | rank table | where each rank runs, and its NICs; equal on every node |
//! | queue pair | end of an RDMA connection |
//! | endpoint | data about a queue pair that its peer needs |
//! | path | pair of ports on two nodes, and the queue pairs between them |
//! | mesh | all paths of a job |
//! | prover | process that proves and watches paths on a node |
//! | round | proof of several paths at the same time on all nodes |
//! | communicator | collective operations of ranks over RDMA, shared memory or TCP |
//! | problem, notice | what an agent finds when it prepares: a reason why its node cannot run the job; a fact worth knowing |
//! | finding | what a check of the catalogue finds, with an id such as `mtu.path` |
//! | first failure | the failure that ended the job, which decides its exit code |
//! | change | what `up` or `doctor --fix` does to a host, with what undoes it; the *journal* of the host has them all |
//! | trial | time in which a host undoes changes by itself unless they are confirmed |
//! | record | files about a job that the launcher keeps |

pub mod bench;
pub mod deadline;
pub mod decimal;
pub mod env;
pub mod frame;
pub mod id;
pub mod inventory;
pub mod job;
pub mod protocol;
pub mod rank_table;
pub mod rendezvous;
pub mod security;
mod serde_path;
pub mod shell_safe;

use std::error::Error;

/// Formats an error and its sources as `error: cause: cause`. A cause whose text is already
/// contained in the line is left out.
pub fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

/// Implements two functions for a state enum: `after` returns the next state, `graph` formats the
/// table as text.
///
/// ```
/// #[derive(Clone, Copy, Debug, PartialEq)]
/// enum Door { Open, Closed }
/// #[derive(Clone, Copy, Debug, PartialEq)]
/// enum Push { Shut, Pull }
///
/// rlaunch_bootstrap::transitions! {
///     Door on Push {
///         Open   + Shut => Closed,
///         Closed + Pull => Open,
///     }
/// }
/// assert_eq!(Door::Open.after(Push::Shut), Some(Door::Closed));
/// assert_eq!(Door::Open.after(Push::Pull), None);
/// ```
#[macro_export]
macro_rules! transitions {
    ($state:ident on $event:ident { $($from:ident + $on:ident => $to:ident,)* }) => {
        impl $state {
            const TRANSITIONS: &[($state, $event, $state)] =
                &[$(($state::$from, $event::$on, $state::$to),)*];

            /// Returns the next state, or `None` if `event` is not allowed in this state.
            pub fn after(self, event: $event) -> Option<$state> {
                let found = Self::TRANSITIONS.iter().find(|(from, on, _)| (*from, *on) == (self, event));
                found.map(|&(_, _, to)| to)
            }

            /// Formats the transitions, one on each line.
            pub fn graph() -> String {
                let line = |(from, on, to): &($state, $event, $state)| {
                    format!("{from:?} -- {on:?} -> {to:?}\n")
                };
                Self::TRANSITIONS.iter().map(line).collect()
            }
        }
    };
}
