//! Standard input, from this process to the ranks that read it: every byte, in order, and no faster
//! than the slowest rank reads.
//!
//! A thread reads, because reads of files and terminals block. It reads only while every node with reading
//! ranks has buffer space for a whole frame, so no data piles up in this process. Frames of standard input
//! are sent to nodes after all other commands.

use crate::connect::outbox::Outbox;
use bytes::Bytes;
use nix::errno::Errno;
use nix::libc::O_NONBLOCK;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{getpgrp, tcgetpgrp};
use rlaunch_bootstrap::id::{NodeId, Rank};
use rlaunch_bootstrap::protocol::control::{self, MAX_STDIN, ToAgent, stdin_cost};
use rlaunch_console::messages;
use rlaunch_plan::job::stdin::Stdin;
use rlaunch_plan::map::RankMap;
use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// Interval at which a job in the background checks whether it may read its terminal; no event
/// announces that.
const FOREGROUND_CHECK: Duration = Duration::from_millis(250);

/// Handle by which sessions report the nodes' buffer space for standard input. Clones share their state.
/// Reports before [`StdinFeed::open`] are dropped.
#[derive(Clone, Default)]
pub(crate) struct StdinFeed(Arc<OnceLock<OpenFeed>>);

struct OpenFeed {
    rooms: Arc<Mutex<Vec<NodeRoom>>>,
    /// Pipe that wakes the thread after a change. It is closed when no session is left, which ends the
    /// thread.
    waker: PipeWriter,
}

/// Node with ranks that read standard input.
struct NodeRoom {
    node: NodeId,
    commands: Outbox,
    /// Number of bytes that may be sent now.
    bytes: u32,
}

impl StdinFeed {
    /// Starts the thread, if any rank reads standard input. The thread ends when no rank reads any more, at
    /// the end of the input, or with the last session.
    pub(crate) fn open(&self, stdin: &Stdin, map: &RankMap, commands: &[Outbox]) -> io::Result<()> {
        let reads = |ranks: &[Rank]| ranks.iter().any(|rank| stdin.is_read_by(*rank));
        let nodes = map.nodes.iter().zip(commands).filter(|(node, _)| reads(&node.ranks));
        let rooms = nodes.map(|(node, commands)| NodeRoom {
            node: node.id,
            commands: commands.clone(),
            bytes: 0,
        });
        let rooms: Vec<NodeRoom> = rooms.collect();
        if rooms.is_empty() {
            return Ok(());
        }
        let input = match &stdin.file {
            // The thread waits for the writer of a named pipe, as for what he writes.
            Some(path) => File::options().read(true).custom_flags(O_NONBLOCK).open(path)?,
            // The descriptor is duplicated because the standard handle reads ahead.
            None => File::from(io::stdin().as_fd().try_clone_to_owned()?),
        };
        let rooms = Arc::new(Mutex::new(rooms));
        let (wake, waker) = io::pipe()?;
        let reader = StdinReader { input, rooms: rooms.clone(), wake };
        std::thread::Builder::new().name("stdin".into()).spawn(|| reader.run())?;
        // An error would mean a second call, which a job does not make.
        let _ = self.0.set(OpenFeed { rooms, waker });
        Ok(())
    }

    /// Records that a node has buffer space for `bytes` more bytes of standard input.
    pub(crate) fn add_room(&self, node: NodeId, bytes: u32) {
        self.change(|rooms| {
            let mut rooms = rooms.iter_mut();
            if let Some(room) = rooms.find(|room| room.node == node) {
                room.bytes = room.bytes.saturating_add(bytes);
            }
        });
    }

    /// Records that no rank of a node reads standard input any more.
    pub(crate) fn close(&self, node: NodeId) {
        self.change(|rooms| rooms.retain(|room| room.node != node));
    }

    /// Tells whether all that was read was sent, so that ranks that wait for more wait for the source of the input.
    pub(crate) fn waits_for_source(&self) -> bool {
        self.0.get().is_some_and(|feed| next_step(&feed.rooms) == NextStep::Read)
    }

    fn change(&self, change: impl FnOnce(&mut Vec<NodeRoom>)) {
        let Some(nodes) = self.0.get() else { return };
        change(&mut nodes.rooms.lock().unwrap_or_else(PoisonError::into_inner));
        // Each report writes one byte, so unread bytes are far from filling the pipe, where this write would
        // block.
        let _ = (&nodes.waker).write(&[0]);
    }
}

/// State of the thread that reads standard input.
struct StdinReader {
    input: File,
    rooms: Arc<Mutex<Vec<NodeRoom>>>,
    wake: PipeReader,
}

/// Next step of the thread that reads standard input.
#[derive(Debug, PartialEq, Eq)]
enum NextStep {
    Read,
    Wait,
    Leave,
}

/// Returns the next step where nodes have this buffer space.
fn next_step(rooms: &Mutex<Vec<NodeRoom>>) -> NextStep {
    let rooms = rooms.lock().unwrap_or_else(PoisonError::into_inner);
    let least = rooms.iter().map(|room| room.bytes as usize).min();
    match least {
        None => NextStep::Leave,
        Some(bytes) if bytes >= MAX_STDIN => NextStep::Read,
        Some(_) => NextStep::Wait,
    }
}

/// Result of [`StdinReader::wait`].
struct WaitResult {
    /// The input can be read.
    input: bool,
    /// Every session has ended.
    over: bool,
}

impl StdinReader {
    fn run(mut self) {
        // With SIGTTIN blocked, a read of the terminal in the background fails and does not stop this
        // process.
        let _ = SigSet::from(Signal::SIGTTIN).thread_block();
        let mut buffer = vec![0; MAX_STDIN];
        loop {
            let next = next_step(&self.rooms);
            if next == NextStep::Leave {
                return;
            }
            let Ok(waited) = self.wait(next == NextStep::Read, PollTimeout::NONE) else { return };
            if waited.over {
                return;
            }
            // Ranks that read may have ended meanwhile.
            if !waited.input || next_step(&self.rooms) != NextStep::Read {
                continue;
            }
            match self.input.read(&mut buffer) {
                Ok(0) => return self.send(&[]),
                Ok(length) => self.send(&buffer[..length]),
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock => {}
                    _ if self.is_in_background() => {
                        let pause = PollTimeout::try_from(FOREGROUND_CHECK);
                        let waited = self.wait(false, pause.unwrap_or(PollTimeout::MAX));
                        if waited.is_ok_and(|waited| waited.over) {
                            return;
                        }
                    }
                    _ => {
                        messages::warn(&format!("cannot read standard input: {error}"));
                        return self.send(&[]);
                    }
                },
            }
        }
    }

    /// Waits for a report of a session or, with `for_input`, until the input can be read.
    fn wait(&mut self, for_input: bool, limit: PollTimeout) -> Result<WaitResult, Errno> {
        let mut fds = vec![PollFd::new(self.wake.as_fd(), PollFlags::POLLIN)];
        if for_input {
            fds.push(PollFd::new(self.input.as_fd(), PollFlags::POLLIN));
        }
        match poll(&mut fds, limit) {
            Err(Errno::EINTR) => return Ok(WaitResult { input: false, over: false }),
            other => other?,
        };
        let is_ready = |fd: Option<&PollFd<'_>>| fd.and_then(PollFd::any).unwrap_or(false);
        let (reported, input) = (is_ready(fds.first()), is_ready(fds.get(1)));
        // A pipe that is readable and has no bytes is closed at the other end.
        let over = reported && self.wake.read(&mut [0; 256]).is_ok_and(|length| length == 0);
        Ok(WaitResult { input, over })
    }

    /// Sends data to every node with reading ranks. Empty data ends standard input.
    fn send(&self, data: &[u8]) {
        let frame = match control::encode(&ToAgent::Stdin(data.to_vec())) {
            Ok(frame) => Bytes::from(frame),
            Err(error) => return tracing::error!("{error}"),
        };
        let cost = stdin_cost(data.len());
        let mut rooms = self.rooms.lock().unwrap_or_else(PoisonError::into_inner);
        for room in rooms.iter_mut() {
            room.bytes = room.bytes.saturating_sub(cost);
            room.commands.send_low_priority(frame.clone());
        }
    }

    /// Tells whether the input is a terminal that has another process group in the foreground.
    fn is_in_background(&self) -> bool {
        tcgetpgrp(&self.input).is_ok_and(|foreground| foreground != getpgrp())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connect::outbox::OutboxReceiver;
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;
    use rlaunch_bootstrap::protocol::control::{FrameReader, STDIN_WINDOW};
    use rlaunch_plan::hosts;
    use rlaunch_plan::job::stdin::Readers;
    use std::time::Instant;

    /// Time limit for expected data. It is long, since the test machine may be suspended for seconds.
    const BOUND: Duration = Duration::from_secs(60);

    /// Collects the standard input that is sent to a node, until `most` bytes have come or it ends.
    fn read_from(orders: &mut OutboxReceiver, most: usize) -> Vec<u8> {
        let (mut all, started) = (Vec::new(), Instant::now());
        while all.len() < most {
            assert!(started.elapsed() < BOUND, "{} bytes have come", all.len());
            let Ok(frame) = orders.low_priority.try_recv() else {
                std::thread::yield_now();
                continue;
            };
            let mut reader = FrameReader::default();
            reader.push(&frame);
            match reader.next_frame() {
                Ok(Some(ToAgent::Stdin(data))) if data.is_empty() => break,
                Ok(Some(ToAgent::Stdin(data))) => all.extend(data),
                other => panic!("{other:?}"),
            }
        }
        all
    }

    #[test]
    fn every_node_gets_every_byte_at_the_pace_of_the_slowest() {
        let content: Vec<u8> = (0..1_000_000_u32).flat_map(u32::to_le_bytes).collect();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &content).unwrap();
        let hosts = hosts::parse(&["a,b".to_owned()]).unwrap();
        let map = RankMap::by_slot(&hosts, None, false).unwrap();
        let (commands, orders): (Vec<_>, Vec<_>) = (0..2).map(|_| Outbox::new()).unzip();
        let stdin = Stdin { readers: Readers::All, file: Some(file.path().to_owned()) };
        let feed = StdinFeed::default();
        feed.open(&stdin, &map, &commands).unwrap();
        let [mut a, mut b] = <[OutboxReceiver; 2]>::try_from(orders).ok().unwrap();
        feed.add_room(NodeId(0), u32::MAX);
        feed.add_room(NodeId(1), STDIN_WINDOW);
        let window = STDIN_WINDOW as usize;
        let mut of_b = read_from(&mut b, window);
        assert_eq!(of_b.len(), window);
        assert_eq!(read_from(&mut a, window).len(), window);
        assert!(a.low_priority.try_recv().is_err(), "more than the slower has room for");
        assert!(!feed.waits_for_source(), "it waits for the slower");
        feed.add_room(NodeId(1), u32::MAX - STDIN_WINDOW);
        of_b.extend(read_from(&mut b, usize::MAX));
        assert!(of_b == content);
    }

    #[test]
    fn a_named_pipe_is_read_whenever_its_writer_comes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pipe");
        mkfifo(&path, Mode::S_IRWXU).unwrap();
        let Ok(option) = path.to_str().unwrap().parse();
        let stdin = Stdin::from_option(Some(&option)).unwrap();
        let hosts = hosts::parse(&["a".to_owned()]).unwrap();
        let map = RankMap::by_slot(&hosts, None, false).unwrap();
        let (commands, mut orders) = Outbox::new();
        let feed = StdinFeed::default();
        feed.open(&stdin, &map, &[commands]).unwrap();
        feed.add_room(NodeId(0), STDIN_WINDOW);
        let mut writer = File::options().write(true).open(path).unwrap();
        writer.write_all(b"one\n").unwrap();
        assert_eq!(read_from(&mut orders, 4), b"one\n");
        writer.write_all(b"two\n").unwrap();
        drop(writer);
        assert_eq!(read_from(&mut orders, usize::MAX), b"two\n");
    }

    #[test]
    fn when_nobody_reads_any_more_nothing_is_read() {
        let (input, mut source) = io::pipe().unwrap();
        let (commands, mut orders) = Outbox::new();
        let rooms = Arc::new(Mutex::new(vec![NodeRoom { node: NodeId(0), commands, bytes: 0 }]));
        let (wake, waker) = io::pipe().unwrap();
        let input = File::from(std::os::fd::OwnedFd::from(input));
        let reader = StdinReader { input, rooms: rooms.clone(), wake };
        let thread = std::thread::spawn(|| reader.run());
        let feed = StdinFeed(Arc::new(OnceLock::from(OpenFeed { rooms, waker })));
        assert!(!feed.waits_for_source(), "no rank has started");
        feed.add_room(NodeId(0), STDIN_WINDOW);
        assert!(feed.waits_for_source());
        source.write_all(b"one\n").unwrap();
        assert_eq!(read_from(&mut orders, 4), b"one\n");
        feed.close(NodeId(0));
        assert!(!feed.waits_for_source());
        thread.join().unwrap();
        // The thread has closed its end of the pipe.
        assert_eq!(source.write(b"two\n").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn a_job_that_ends_leaves_what_is_not_read() {
        let (input, _source) = io::pipe().unwrap();
        let (commands, _orders) = Outbox::new();
        let rooms =
            Arc::new(Mutex::new(vec![NodeRoom { node: NodeId(0), commands, bytes: STDIN_WINDOW }]));
        let (wake, waker) = io::pipe().unwrap();
        let input = File::from(std::os::fd::OwnedFd::from(input));
        let reader = StdinReader { input, rooms: rooms.clone(), wake };
        let thread = std::thread::spawn(|| reader.run());
        drop(StdinFeed(Arc::new(OnceLock::from(OpenFeed { rooms, waker }))));
        thread.join().unwrap();
    }
}
