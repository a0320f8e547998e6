//! Place where a rank is: the thread of its processes that does the rank's work, what that waits for, and the other ends of
//! its sockets, named by the addresses of the job's nodes.

use rlaunch_bootstrap::id::{NodeId, Rank};
use rlaunch_bootstrap::protocol::inspection::{
    ProcessStacks, RankStacks, StackFrame, ThreadStack, Wait,
};
use rlaunch_text::printable;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

/// Parts of the paths of files whose code starts and watches other processes, which do the work.
const STARTERS: [&str; 5] = [
    "/torch/distributed/run.py", "/torch/distributed/launcher/", "/accelerate/commands/launch.py",
    "/deepspeed/launcher/", "/multiprocessing/resource_tracker.py",
];

/// Beginnings of the names of functions in which a process waits for other ranks, perhaps while it uses CPU: MPI
/// libraries, NCCL, gloo, and the communicator of rlaunch.
const OF_RANKS: [&str; 9] =
    ["MPI_", "PMPI_", "ompi_", "opal_", "MPIR_", "MPIDI_", "MPID_", "gloo::", "rl_"];
/// The same for GPUs, whose kernels may wait for other ranks.
const OF_GPUS: [&str; 5] = [
    "ncclGroup", "cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize",
    "cuStreamSynchronize",
];

/// End of the path of the file whose code waits for `rlaunch attach`.
const DEBUGGER: &str = "/rlaunch/_debugger.py";

/// Tells whether a thread of these processes stands at a breakpoint, where it waits for the user.
pub(super) fn is_at_breakpoint(processes: &[ProcessStacks]) -> bool {
    let mut threads = processes.iter().flat_map(|process| &process.threads);
    threads.any(|thread| thread.frames.iter().any(|frame| frame.file.ends_with(DEBUGGER)))
}

/// Tells whether a main thread of these processes waits for the rank's standard input. Any process may be the one that
/// reads it, such as the first one of a pipeline.
pub(super) fn reads_stdin(processes: &[ProcessStacks]) -> bool {
    let mut main_threads = processes.iter().filter_map(|process| process.threads.first());
    main_threads.any(|thread| thread.waits_for == Some(Wait::Stdin))
}

/// Tells whether a thread is in a function that waits for other ranks or for a GPU, even if it uses CPU meanwhile.
pub(super) fn waits_for_others(thread: &ThreadStack) -> bool {
    thread.frames.iter().any(is_waiting)
}

/// Tells whether a thread is in a function that waits for other ranks alone.
pub(super) fn waits_for_ranks(thread: &ThreadStack) -> bool {
    thread.frames.iter().any(|frame| starts_with(frame, &OF_RANKS))
}

/// Returns the frames of a thread that stay while it waits: those of an interpreter if there are any, else those from the
/// outermost function that waits for other ranks on, since that function calls others while it spins.
pub(super) fn steady_frames(thread: &ThreadStack) -> Vec<&StackFrame> {
    let frames = &thread.frames;
    let interpreted: Vec<&StackFrame> = frames.iter().filter(|frame| !frame.native).collect();
    if !interpreted.is_empty() {
        return interpreted;
    }
    let outermost = frames.iter().rposition(is_waiting);
    frames[outermost.unwrap_or_default()..].iter().collect()
}

fn is_waiting(frame: &StackFrame) -> bool {
    starts_with(frame, &OF_RANKS) || starts_with(frame, &OF_GPUS)
}

fn starts_with(frame: &StackFrame, starts: &[&str]) -> bool {
    starts.iter().any(|start| frame.function.starts_with(start))
}

/// Returns the thread that does a rank's work: the main thread of its outermost process that does more than to wait for
/// others. Those that a program starts beside itself, such as the workers of a data loader, are further in. Processes
/// with frames are preferred.
pub(super) fn working_thread(processes: &[ProcessStacks]) -> Option<&ThreadStack> {
    let main_threads = || processes.iter().filter_map(|process| process.threads.first());
    let with_frames: Vec<&ThreadStack> =
        main_threads().filter(|thread| !thread.frames.is_empty()).collect();
    let candidates = if with_frames.is_empty() { main_threads().collect() } else { with_frames };
    let working = candidates.iter().find(|thread| !starts_others(thread));
    working.or(candidates.last()).copied()
}

/// Returns the process that a thread belongs to.
pub(super) fn process_of<'a>(
    thread: &ThreadStack,
    processes: &'a [ProcessStacks],
) -> Option<&'a ProcessStacks> {
    processes
        .iter()
        .find(|process| process.threads.first().is_some_and(|main| main.tid == thread.tid))
}

fn starts_others(thread: &ThreadStack) -> bool {
    let is_starter = |file: &str| STARTERS.iter().any(|part| file.contains(part));
    thread.waits_for == Some(Wait::Child)
        || thread.frames.iter().any(|frame| is_starter(&frame.file))
}

/// Number of objects of one kind that are named.
const NAMED: usize = 3;

/// Kinds of waits. Threads that wait in the same way, each for an object of its own, do the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WaitKind(String);

/// Returns the kind of a thread's wait, and the object that the thread waits for, if it has a name.
pub(super) fn wait_of(thread: &ThreadStack) -> (WaitKind, Option<String>) {
    let (kind, object) = match &thread.waits_for {
        // A collective looks at its connections again and again, and may sleep in between.
        None | Some(Wait::Descriptors | Wait::Futex | Wait::Socket { .. })
            if waits_for_others(thread) && thread.state != 'T' =>
        {
            ("waits for other ranks".to_owned(), None)
        }
        None if thread.state == 'T' => ("stopped".to_owned(), None),
        None if thread.state == 'D' => ("waits in the kernel".to_owned(), None),
        None => ("runs".to_owned(), None),
        Some(Wait::Futex) => ("waits for a lock or another thread".to_owned(), None),
        Some(Wait::Socket { peer, owner }) => {
            let owner = owner.as_ref().map(|owner| format!(" ({owner})")).unwrap_or_default();
            let peer = peer.as_ref().map(|peer| format!("{peer}{owner}"));
            ("waits at a socket".to_owned(), peer)
        }
        Some(Wait::Pipe { name }) => {
            // The kernel calls a pipe without a name `pipe:[INODE]`.
            let is_named = !name.starts_with("pipe:");
            ("waits for a pipe".to_owned(), is_named.then(|| format!("the pipe {name}")))
        }
        Some(Wait::File { path }) => ("waits for a file".to_owned(), Some(path.clone())),
        Some(Wait::Stdin) => ("waits for standard input".to_owned(), None),
        Some(Wait::Rdma) => ("waits for RDMA".to_owned(), None),
        Some(Wait::Descriptors) => ("waits for one of several descriptors".to_owned(), None),
        Some(Wait::Sleep) => ("sleeps".to_owned(), None),
        Some(Wait::Child) => ("waits for a child process".to_owned(), None),
        Some(Wait::Stopped) => ("is stopped by a signal".to_owned(), None),
        Some(Wait::Kernel { channel }) => (format!("waits in {channel}"), None),
    };
    (WaitKind(printable::first_line(&kind)), object.map(|object| printable::first_line(&object)))
}

/// Returns the kind of a wait of which nothing is known.
pub(super) fn unknown_wait() -> (WaitKind, Option<String>) {
    (WaitKind(String::new()), None)
}

/// Describes a wait for these objects.
pub(super) fn describe_wait(kind: &WaitKind, objects: &BTreeSet<String>) -> String {
    let named: Vec<&str> = objects.iter().take(NAMED).map(String::as_str).collect();
    match (named.is_empty(), objects.len().saturating_sub(NAMED)) {
        (true, _) => kind.0.clone(),
        (false, 0) => format!("waits for {}", named.join(", ")),
        (false, more) => format!("waits for {} and {more} more", named.join(", ")),
    }
}

/// Describes what a thread does: whether it runs, or what it waits for.
pub fn describe_thread(thread: &ThreadStack) -> String {
    let (kind, object) = wait_of(thread);
    describe_wait(&kind, &object.into_iter().collect())
}

/// Addresses of a node.
#[derive(Clone, Copy, Debug)]
pub struct PeerNode<'a> {
    /// Host as the user named it.
    pub host: &'a str,
    pub ranks: &'a [Rank],
    pub addresses: &'a [IpAddr],
}

/// Names the other ends of sockets in stacks of the node `from`. Replaces what the node's agent says about that.
pub fn name_peers(stacks: &mut [RankStacks], from: NodeId, nodes: &[PeerNode<'_>]) {
    let processes = stacks.iter_mut().flat_map(|rank| &mut rank.processes);
    for thread in processes.flat_map(|process| &mut process.threads) {
        if let Some(Wait::Socket { peer, owner }) = &mut thread.waits_for {
            let address = peer.as_ref().and_then(|peer| peer.parse::<SocketAddr>().ok());
            *owner = address.and_then(|address| owner_of(address.ip(), from, nodes));
        }
    }
}

/// Returns the rank of the node that has an address, or the node's host if it has several ranks. An address that several
/// nodes have, such as that of a bridge for containers, says nothing.
fn owner_of(address: IpAddr, from: NodeId, nodes: &[PeerNode<'_>]) -> Option<String> {
    let has = |node: &&PeerNode<'_>| node.addresses.contains(&address);
    let own = nodes.get(from.index());
    let own = own.filter(|own| address.is_loopback() || own.addresses.contains(&address));
    let mut others = nodes.iter().filter(has);
    let node = own.or_else(|| others.next().filter(|_| others.next().is_none()))?;
    Some(match node.ranks[..] {
        [rank] => format!("rank {rank} on {}", node.host),
        _ => node.host.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, file: &str, waits_for: Option<Wait>) -> ProcessStacks {
        let frame = StackFrame { file: file.to_owned(), ..StackFrame::default() };
        let frames = Some(frame).filter(|frame| !frame.file.is_empty()).into_iter().collect();
        let thread = ThreadStack { tid: pid, waits_for, frames, ..ThreadStack::default() };
        ProcessStacks { pid, threads: vec![thread], ..ProcessStacks::default() }
    }

    fn working(processes: &[ProcessStacks]) -> Option<u32> {
        working_thread(processes).map(|thread| thread.tid)
    }

    #[test]
    fn workers_of_a_program_are_not_the_program() {
        let worker = |pid| process(pid, "/l/torch/utils/data/_utils/worker.py", None);
        let all = [process(1, "/home/u/train.py", None), worker(2), worker(3)];
        assert_eq!(working(&all), Some(1));
        assert_eq!(process_of(&all[1].threads[0], &all).unwrap().pid, 2);
    }

    #[test]
    fn programs_that_start_others_are_not_where_the_rank_is() {
        let train = process(3, "/home/u/train.py", None);
        let shell = process(1, "", Some(Wait::Child));
        let torchrun = process(2, "/l/torch/distributed/run.py", Some(Wait::Sleep));
        assert_eq!(working(&[shell, torchrun.clone(), train]), Some(3));
        assert_eq!(working(&[torchrun]), Some(2));
    }

    #[test]
    fn a_thread_that_spins_in_a_collective_stays_there() {
        let frame = |function: &str| StackFrame {
            function: function.to_owned(),
            native: true,
            ..StackFrame::default()
        };
        let frames = ["poll", "opal_progress", "MPI_Allreduce", "main"].map(frame).to_vec();
        let thread = ThreadStack { frames, ..ThreadStack::default() };
        let names: Vec<&str> =
            steady_frames(&thread).iter().map(|frame| frame.function.as_str()).collect();
        assert_eq!(names, ["MPI_Allreduce", "main"]);
        assert!(waits_for_others(&thread));
    }

    #[test]
    fn without_frames_the_first_that_does_not_wait_for_others_is_taken() {
        let sleeps = |pid| process(pid, "", Some(Wait::Sleep));
        assert_eq!(working(&[process(1, "", Some(Wait::Child)), sleeps(2), sleeps(3)]), Some(2));
        assert_eq!(working(&[]), None);
    }

    fn waits(wait: Wait) -> String {
        describe_thread(&ThreadStack { waits_for: Some(wait), ..ThreadStack::default() })
    }

    #[test]
    fn an_object_with_a_name_is_named() {
        let peer = Some("10.0.0.2:4711".to_owned());
        let owner = Some("rank 1 on b".to_owned());
        let unknown = Wait::Socket { peer: peer.clone(), owner: None };
        assert_eq!(waits(unknown), "waits for 10.0.0.2:4711");
        assert_eq!(waits(Wait::Socket { peer, owner }), "waits for 10.0.0.2:4711 (rank 1 on b)");
        assert_eq!(waits(Wait::Pipe { name: "/tmp/x".into() }), "waits for the pipe /tmp/x");
        assert_eq!(waits(Wait::Pipe { name: "pipe:[7]".into() }), "waits for a pipe");
        assert_eq!(waits(Wait::Stdin), "waits for standard input");
        assert_eq!(waits(Wait::File { path: "/a\x1b[1m".into() }), "waits for /a\\x1b[1m");
    }

    #[test]
    fn many_objects_are_counted() {
        let (kind, _) = wait_of(&ThreadStack {
            waits_for: Some(Wait::File { path: "/a".into() }),
            ..ThreadStack::default()
        });
        let objects = ["/a", "/b", "/c", "/d", "/e"].map(str::to_owned);
        assert_eq!(describe_wait(&kind, &objects.into()), "waits for /a, /b, /c and 2 more");
    }

    #[test]
    fn an_address_is_that_of_a_rank_or_of_a_host() {
        let bridge = [172, 17, 0, 1];
        let ranks = [0, 1, 2, 3, 4].map(Rank);
        let ends = [1, 2, 3].map(|end| [[10, 0, 0, end], bridge].map(IpAddr::from));
        let nodes = [
            PeerNode { host: "a", ranks: &ranks[..2], addresses: &ends[0] },
            PeerNode { host: "b", ranks: &ranks[2..3], addresses: &ends[1] },
            PeerNode { host: "c", ranks: &ranks[3..], addresses: &ends[2] },
        ];
        let owner = |address: [u8; 4], from| owner_of(address.into(), NodeId(from), &nodes);
        assert_eq!(owner([10, 0, 0, 2], 0).as_deref(), Some("rank 2 on b"));
        assert_eq!(owner([10, 0, 0, 3], 0).as_deref(), Some("c"));
        assert_eq!(owner([127, 0, 0, 1], 0).as_deref(), Some("a"));
        assert_eq!(owner(bridge, 1).as_deref(), Some("rank 2 on b"));
        assert_eq!(owner(bridge, 7), None);
        assert_eq!(owner([10, 0, 0, 9], 0), None);
    }
}
