//! Standard input, from this process to the ranks that read it: every byte, in order, and no faster
//! than the slowest of them takes it.
//!
//! One thread does the reading, since files and terminals cannot be waited for otherwise. It reads
//! only what every node that still reads has room for, so nothing piles up anywhere, and sends it
//! behind everything else that a node is told.

use crate::console::exit::Exit;
use crate::console::report::{self, Failed};
use crate::plan::map::RankMap;
use crate::run::session::Commands;
use bytes::Bytes;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{getpgrp, tcgetpgrp};
use rlaunch_bootstrap::id::{NodeId, Rank};
use rlaunch_bootstrap::wire::{self, MAX_STDIN, ToAgent, stdin_cost};
use std::convert::Infallible;
use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// How often a job in the background looks whether it may read its terminal: nobody tells it.
const FOREGROUND_CHECK: Duration = Duration::from_millis(250);

/// `--stdin` as it was typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StdinArg {
    None,
    All,
    Rank(u32),
    File(PathBuf),
}

impl FromStr for StdinArg {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<StdinArg, Infallible> {
        Ok(match text {
            "none" => StdinArg::None,
            "all" => StdinArg::All,
            _ => match text.parse() {
                Ok(rank) => StdinArg::Rank(rank),
                Err(_) => StdinArg::File(text.into()),
            },
        })
    }
}

/// What is read, and by whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stdin {
    readers: Readers,
    /// In place of this process's own.
    file: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Readers {
    Nobody,
    One(Rank),
    All,
}

/// A `--stdin` that cannot be meant.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StdinError {
    #[error("cannot read {} (--stdin)", path.display())]
    File { path: PathBuf, source: io::Error },
}

impl StdinError {
    /// What could be meant.
    pub(crate) fn hint(&self) -> Option<String> {
        Some("--stdin takes a rank, all, none or a file".into())
    }
}

impl Stdin {
    /// What was asked for. Otherwise rank 0 reads a pipe or a file; a terminal is left alone, since
    /// reading it from the background would stop the job.
    pub(crate) fn of(asked: Option<&StdinArg>) -> Result<Stdin, StdinError> {
        let own = |readers| Stdin { readers, file: None };
        match asked {
            None if carries_something(io::stdin().as_fd()) => Ok(own(Readers::One(Rank(0)))),
            None | Some(StdinArg::None) => Ok(own(Readers::Nobody)),
            Some(StdinArg::All) => Ok(own(Readers::All)),
            Some(StdinArg::Rank(rank)) => Ok(own(Readers::One(Rank(*rank)))),
            Some(StdinArg::File(path)) => {
                let failed = |source| StdinError::File { path: path.clone(), source };
                let metadata = File::open(path).and_then(|file| file.metadata()).map_err(failed)?;
                if metadata.is_dir() {
                    return Err(failed(io::ErrorKind::IsADirectory.into()));
                }
                Ok(Stdin { readers: Readers::One(Rank(0)), file: Some(path.clone()) })
            }
        }
    }

    /// What another attempt at the same job reads: a file anew, and nothing of what the first has
    /// taken from this process's own.
    pub(crate) fn once_more(self) -> Stdin {
        let readers = if self.file.is_some() { self.readers } else { Readers::Nobody };
        Stdin { readers, ..self }
    }

    /// Whether a rank reads it; the others find nothing.
    pub(crate) fn is_read_by(&self, rank: Rank) -> bool {
        match self.readers {
            Readers::Nobody => false,
            Readers::One(reader) => reader == rank,
            Readers::All => true,
        }
    }

    /// Whether there are so many ranks.
    pub(crate) fn check(&self, ranks: u32) -> Result<(), Failed> {
        match self.readers {
            Readers::One(Rank(rank)) if rank >= ranks => {
                let last = ranks.saturating_sub(1);
                let message = format!("--stdin {rank}: ranks are 0 to {last}");
                let hint = format!("a file of that name is ./{rank}");
                Err(Failed::new(Exit::USAGE, message).hint(Some(hint)))
            }
            _ => Ok(()),
        }
    }
}

/// Whether an inherited stdin is a pipe, a socket or a file, not a terminal or /dev/null.
fn carries_something(stdin: BorrowedFd<'_>) -> bool {
    let file = stdin.try_clone_to_owned().map(File::from);
    let kind = file.and_then(|file| file.metadata()).map(|metadata| metadata.file_type());
    kind.is_ok_and(|kind| kind.is_fifo() || kind.is_socket() || kind.is_file())
}

/// The way by which nodes say that they have room; clones share it. It leads nowhere until it is
/// opened.
#[derive(Clone, Default)]
pub(crate) struct Feed(Arc<OnceLock<Nodes>>);

struct Nodes {
    rooms: Arc<Mutex<Vec<Room>>>,
    /// Says that something has changed, and at its end that nobody is left.
    waker: PipeWriter,
}

/// A node that reads standard input.
struct Room {
    node: NodeId,
    commands: Commands,
    /// What may be sent to it.
    bytes: u32,
}

impl Feed {
    /// Starts to read as soon as nodes have room. Their sessions report that, and when the last of
    /// them is gone, it ends.
    pub(crate) fn open(
        &self,
        stdin: &Stdin,
        map: &RankMap,
        commands: &[Commands],
    ) -> io::Result<()> {
        let reads = |ranks: &[Rank]| ranks.iter().any(|rank| stdin.is_read_by(*rank));
        let nodes = map.nodes.iter().zip(commands).filter(|(node, _)| reads(&node.ranks));
        let rooms = nodes.map(|(node, commands)| Room {
            node: node.id,
            commands: commands.clone(),
            bytes: 0,
        });
        let rooms: Vec<Room> = rooms.collect();
        if rooms.is_empty() {
            return Ok(());
        }
        let input = match &stdin.file {
            Some(path) => File::open(path)?,
            // A duplicate, because the standard handle reads ahead.
            None => File::from(io::stdin().as_fd().try_clone_to_owned()?),
        };
        let rooms = Arc::new(Mutex::new(rooms));
        let (wake, waker) = io::pipe()?;
        let feeder = Feeder { input, rooms: rooms.clone(), wake };
        std::thread::Builder::new().name("stdin".into()).spawn(|| feeder.run())?;
        // It is opened once.
        let _ = self.0.set(Nodes { rooms, waker });
        Ok(())
    }

    /// A node can take so many bytes more.
    pub(crate) fn add_room(&self, node: NodeId, bytes: u32) {
        self.change(|rooms| {
            let mut rooms = rooms.iter_mut();
            if let Some(room) = rooms.find(|room| room.node == node) {
                room.bytes = room.bytes.saturating_add(bytes);
            }
        });
    }

    /// A node's ranks read no more.
    pub(crate) fn close(&self, node: NodeId) {
        self.change(|rooms| rooms.retain(|room| room.node != node));
    }

    fn change(&self, change: impl FnOnce(&mut Vec<Room>)) {
        let Some(nodes) = self.0.get() else { return };
        change(&mut nodes.rooms.lock().unwrap_or_else(PoisonError::into_inner));
        // A byte for each frame that was sent: what is not read yet is far from filling the pipe.
        let _ = (&nodes.waker).write(&[0]);
    }
}

/// The reading thread.
struct Feeder {
    input: File,
    rooms: Arc<Mutex<Vec<Room>>>,
    wake: PipeReader,
}

/// What the thread does next.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Read,
    Wait,
    Leave,
}

/// What a wait has seen.
struct Seen {
    /// The input has something to say.
    input: bool,
    /// Every session is gone.
    over: bool,
}

impl Feeder {
    fn run(mut self) {
        // To be told that this is the background is enough: it is no reason to stop the job.
        let _ = SigSet::from(Signal::SIGTTIN).thread_block();
        let mut buffer = vec![0; MAX_STDIN];
        loop {
            let next = self.next();
            if next == Next::Leave {
                return;
            }
            let Ok(seen) = self.wait(next == Next::Read, PollTimeout::NONE) else { return };
            if seen.over {
                return;
            }
            // Whoever reads may have gone meanwhile.
            if !seen.input || self.next() != Next::Read {
                continue;
            }
            match self.input.read(&mut buffer) {
                Ok(0) => return self.send(&[]),
                Ok(length) => self.send(&buffer[..length]),
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock => {}
                    _ if self.is_in_background() => {
                        let pause = PollTimeout::try_from(FOREGROUND_CHECK);
                        let seen = self.wait(false, pause.unwrap_or(PollTimeout::MAX));
                        if seen.is_ok_and(|seen| seen.over) {
                            return;
                        }
                    }
                    _ => {
                        report::warn(&format!("cannot read standard input: {error}"));
                        return self.send(&[]);
                    }
                },
            }
        }
    }

    fn next(&self) -> Next {
        let rooms = self.rooms.lock().unwrap_or_else(PoisonError::into_inner);
        let least = rooms.iter().map(|room| room.bytes as usize).min();
        match least {
            None => Next::Leave,
            Some(bytes) if bytes >= MAX_STDIN => Next::Read,
            Some(_) => Next::Wait,
        }
    }

    /// Waits until a session has news, and for the input where it is wanted.
    fn wait(&mut self, for_input: bool, limit: PollTimeout) -> Result<Seen, Errno> {
        let mut fds = vec![PollFd::new(self.wake.as_fd(), PollFlags::POLLIN)];
        if for_input {
            fds.push(PollFd::new(self.input.as_fd(), PollFlags::POLLIN));
        }
        match poll(&mut fds, limit) {
            Err(Errno::EINTR) => return Ok(Seen { input: false, over: false }),
            other => other?,
        };
        let is_ready = |fd: Option<&PollFd<'_>>| fd.and_then(PollFd::any).unwrap_or(false);
        let (news, input) = (is_ready(fds.first()), is_ready(fds.get(1)));
        // Nothing to read but readable: the other end is closed.
        let over = news && self.wake.read(&mut [0; 256]).is_ok_and(|length| length == 0);
        Ok(Seen { input, over })
    }

    /// The same to every node that reads; nothing means the end.
    fn send(&self, data: &[u8]) {
        let frame = match wire::encode(&ToAgent::Stdin(data.to_vec())) {
            Ok(frame) => Bytes::from(frame),
            Err(error) => return tracing::error!("{error}"),
        };
        let cost = stdin_cost(data.len());
        let mut rooms = self.rooms.lock().unwrap_or_else(PoisonError::into_inner);
        for room in rooms.iter_mut() {
            room.bytes = room.bytes.saturating_sub(cost);
            room.commands.send_last(frame.clone());
        }
    }

    /// Whether it is a terminal that others use now.
    fn is_in_background(&self) -> bool {
        tcgetpgrp(&self.input).is_ok_and(|foreground| foreground != getpgrp())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts;
    use crate::run::session::Orders;
    use rlaunch_bootstrap::wire::{FrameReader, STDIN_WINDOW};
    use std::time::Instant;

    /// Limit for what must come. It is wide, since a machine may stand still for seconds.
    const BOUND: Duration = Duration::from_secs(60);

    fn asked(text: &str) -> StdinArg {
        let Ok(asked) = text.parse();
        asked
    }

    #[test]
    fn what_is_typed_is_told_apart() {
        assert_eq!(asked("none"), StdinArg::None);
        assert_eq!(asked("all"), StdinArg::All);
        assert_eq!(asked("3"), StdinArg::Rank(3));
        assert_eq!(asked("./3"), StdinArg::File("./3".into()));
    }

    #[test]
    fn who_reads_is_checked() {
        let three = Stdin::of(Some(&StdinArg::Rank(3))).unwrap();
        assert!(three.is_read_by(Rank(3)) && !three.is_read_by(Rank(0)));
        assert_eq!(three.check(3).unwrap_err().message, "--stdin 3: ranks are 0 to 2");
        assert!(three.check(4).is_ok());
        let all = Stdin::of(Some(&StdinArg::All)).unwrap();
        assert!(all.is_read_by(Rank(7)));
        assert!(!Stdin::of(Some(&StdinArg::None)).unwrap().is_read_by(Rank(0)));
        let missing = Stdin::of(Some(&asked("/no/such/file"))).unwrap_err();
        assert_eq!(missing.to_string(), "cannot read /no/such/file (--stdin)");
        assert!(Stdin::of(Some(&asked("/tmp"))).is_err());
    }

    #[test]
    fn pipes_and_files_carry_something() {
        let (pipe, _other) = io::pipe().unwrap();
        assert!(carries_something(pipe.as_fd()));
        assert!(carries_something(tempfile::tempfile().unwrap().as_fd()));
        assert!(!carries_something(File::open("/dev/null").unwrap().as_fd()));
    }

    /// What a node is told, until this much of standard input or its end has come.
    fn read_from(orders: &mut Orders, most: usize) -> Vec<u8> {
        let (mut all, started) = (Vec::new(), Instant::now());
        while all.len() < most {
            assert!(started.elapsed() < BOUND, "{} bytes have come", all.len());
            let Ok(frame) = orders.last.try_recv() else {
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
        let (commands, orders): (Vec<_>, Vec<_>) = (0..2).map(|_| Commands::new()).unzip();
        let stdin = Stdin { readers: Readers::All, file: Some(file.path().to_owned()) };
        let feed = Feed::default();
        feed.open(&stdin, &map, &commands).unwrap();
        let [mut a, mut b] = <[Orders; 2]>::try_from(orders).ok().unwrap();
        feed.add_room(NodeId(0), u32::MAX);
        feed.add_room(NodeId(1), STDIN_WINDOW);
        let window = STDIN_WINDOW as usize;
        let mut of_b = read_from(&mut b, window);
        assert_eq!(of_b.len(), window);
        assert_eq!(read_from(&mut a, window).len(), window);
        assert!(a.last.try_recv().is_err(), "more than the slower has room for");
        feed.add_room(NodeId(1), u32::MAX - STDIN_WINDOW);
        of_b.extend(read_from(&mut b, usize::MAX));
        assert!(of_b == content);
    }

    #[test]
    fn when_nobody_reads_any_more_nothing_is_read() {
        let (input, mut source) = io::pipe().unwrap();
        let (commands, mut orders) = Commands::new();
        let rooms = Arc::new(Mutex::new(vec![Room { node: NodeId(0), commands, bytes: 0 }]));
        let (wake, waker) = io::pipe().unwrap();
        let input = File::from(std::os::fd::OwnedFd::from(input));
        let feeder = Feeder { input, rooms: rooms.clone(), wake };
        let thread = std::thread::spawn(|| feeder.run());
        let feed = Feed(Arc::new(OnceLock::from(Nodes { rooms, waker })));
        feed.add_room(NodeId(0), STDIN_WINDOW);
        source.write_all(b"one\n").unwrap();
        assert_eq!(read_from(&mut orders, 4), b"one\n");
        feed.close(NodeId(0));
        thread.join().unwrap();
        // Its end went with the thread.
        assert_eq!(source.write(b"two\n").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn a_job_that_ends_leaves_what_is_not_read() {
        let (input, _source) = io::pipe().unwrap();
        let (commands, _orders) = Commands::new();
        let rooms =
            Arc::new(Mutex::new(vec![Room { node: NodeId(0), commands, bytes: STDIN_WINDOW }]));
        let (wake, waker) = io::pipe().unwrap();
        let input = File::from(std::os::fd::OwnedFd::from(input));
        let feeder = Feeder { input, rooms: rooms.clone(), wake };
        let thread = std::thread::spawn(|| feeder.run());
        drop(Feed(Arc::new(OnceLock::from(Nodes { rooms, waker }))));
        thread.join().unwrap();
    }
}
