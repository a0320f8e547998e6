//! The agent's ends of a program's streams: of a rank, or of a command beside it.
//!
//! A program may hold the lock of a pipe for as long as it likes: splice(2) keeps it while it waits for a silent socket, or
//! for one that nobody reads. Whoever reads, writes or closes the other end meanwhile sleeps in the kernel, even if the end
//! does not block, and no signal wakes him. Waiting for readiness takes no lock. So the agent's loop only waits, and threads
//! of a pool do the rest: the few that are busy at a time, and one for each stream that is held up.

mod pool;

pub(crate) use pool::{in_thread, refused_thread};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use pool::POOL;
use rustix::buffer::spare_capacity;
use rustix::io::{ioctl_fionbio, read, retry_on_intr, write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::FileTypeExt;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use std::{fs, io, thread};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, Interest, ReadBuf};
use tokio::net::unix::OwnedReadHalf;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Size of the largest read or write, in bytes: that of a pipe.
const PART: usize = 64 << 10;

/// Time without output after which an abandoned stream counts as ended.
const SILENCE: Duration = Duration::from_millis(50);

/// Number of silences after which it does so although a thread is reading it: another process holds the thread up.
const MAX_SILENCES: u32 = 40;

/// Stream that a program writes to.
pub(super) trait Output: AsyncRead + Unpin {
    /// Tells whether a thread is reading the stream, so that there may be bytes although none have come.
    fn is_being_read(&self) -> bool {
        false
    }
}

impl Output for OwnedReadHalf {}

#[cfg(test)]
impl Output for tokio::io::DuplexStream {}

/// Reads what comes, or returns zero: at the end of the stream, or once nothing has come for a moment after nobody is left
/// whom the stream belongs to. Another process may keep it open.
pub(super) async fn read_unless_abandoned(
    output: &mut impl Output,
    buffer: &mut Vec<u8>,
    abandoned: impl Future<Output = ()>,
) -> io::Result<usize> {
    tokio::select! {
        biased;
        read = output.read_buf(buffer) => return read,
        () = abandoned => {}
    }
    for _ in 0..MAX_SILENCES {
        let was_being_read = output.is_being_read();
        if let Ok(read) = timeout(SILENCE, output.read_buf(buffer)).await {
            return read;
        }
        // On a busy machine the thread may not have had its turn, or its answer may have come with the end of the silence.
        if !was_being_read && !output.is_being_read() {
            break;
        }
    }
    Ok(0)
}

/// The agent's end of a stream that a program writes to.
///
/// A program that writes all the time is read at intervals, and nothing is told of what it writes meanwhile: to wake the
/// loop for each write, and then a thread, would cost more than all the rest.
pub(crate) struct OutputEnd {
    file: Arc<File>,
    /// Told when there is something to read; `None` while the stream is read without that.
    readable: Option<AsyncFd<Arc<File>>>,
    reading: Option<oneshot::Receiver<io::Result<Vec<u8>>>>,
    /// Bytes that were read, of which the first `taken` have been passed on.
    part: Vec<u8>,
    taken: usize,
    /// Time of the last read.
    read_at: Instant,
    /// When to read again.
    next: NextRead,
    /// A terminal may have more although a read returns less than it could.
    is_pipe: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextRead {
    WhenReadable,
    AtOnce,
    After(Duration),
}

impl NextRead {
    /// Longest time for which what was written waits.
    const MAX_PAUSE: Duration = Duration::from_micros(500);
    /// Time between two reads from which on they are no flow.
    const APART: Duration = Duration::from_millis(2);

    /// Decides after a read of `length` bytes that has left nothing, `since` the last one that found any.
    fn behind(length: usize, since: Duration) -> NextRead {
        if since >= NextRead::APART {
            return NextRead::WhenReadable;
        }
        // Half of what a pipe holds will be there.
        let until_half = since * (PART / 2 / length.max(1)) as u32;
        NextRead::After(until_half.min(NextRead::MAX_PAUSE))
    }
}

impl OutputEnd {
    pub(crate) fn new(end: impl Into<OwnedFd>) -> io::Result<OutputEnd> {
        let end = fs::File::from(end.into());
        let is_pipe = end.metadata()?.file_type().is_fifo();
        let file = Arc::new(File::open(end.into())?);
        let readable = Some(file.register(Interest::READABLE)?);
        Ok(OutputEnd {
            file,
            readable,
            reading: None,
            part: Vec::new(),
            taken: 0,
            read_at: Instant::now(),
            next: NextRead::WhenReadable,
            is_pipe,
        })
    }
}

impl Output for OutputEnd {
    fn is_being_read(&self) -> bool {
        self.reading.is_some()
    }
}

impl AsFd for OutputEnd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl AsyncRead for OutputEnd {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let left = &self.part[self.taken..];
            if !left.is_empty() {
                let length = left.len().min(buffer.remaining());
                buffer.put_slice(&left[..length]);
                self.taken += length;
                if self.taken == self.part.len() {
                    SPARE.give_back(std::mem::take(&mut self.part));
                    self.taken = 0;
                }
                return Poll::Ready(Ok(()));
            }
            if let Some(reading) = &mut self.reading {
                let read = ready!(Pin::new(reading).poll(context)).map_err(io::Error::other)?;
                self.reading = None;
                if self.is_end(read)? {
                    return Poll::Ready(Ok(()));
                }
                continue;
            }
            let mut turn = None;
            if let NextRead::After(pause) = self.next {
                turn = Turn::take(pause);
                match turn {
                    Some(_) => self.readable = None,
                    None => self.next = self.file.next_event(),
                }
            }
            if self.next == NextRead::WhenReadable && ready!(self.poll_closed(context))? {
                // No process has the other end, so none has the lock.
                let length = read(&self.file, buffer.initialize_unfilled())?;
                buffer.advance(length);
                return Poll::Ready(Ok(()));
            }
            let file = self.file.clone();
            self.reading = Some(POOL.call(move || {
                if let Some(turn) = turn {
                    turn.pause();
                }
                file.read_part()
            }));
        }
    }
}

impl OutputEnd {
    /// Takes what a thread has read, and returns whether that was the end of the stream.
    fn is_end(&mut self, read: io::Result<Vec<u8>>) -> io::Result<bool> {
        match read {
            Ok(part) if part.is_empty() => {
                SPARE.give_back(part);
                return Ok(true);
            }
            Ok(part) => {
                let before = std::mem::replace(&mut self.read_at, Instant::now());
                let is_drained = part.len() < PART && self.is_pipe;
                self.next = if is_drained {
                    NextRead::behind(part.len(), self.read_at.duration_since(before))
                } else {
                    NextRead::AtOnce
                };
                if self.next == NextRead::WhenReadable {
                    self.next = self.file.next_event();
                }
                self.part = part;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.next = NextRead::behind(0, self.read_at.elapsed());
            }
            Err(error) => return Err(error),
        }
        Ok(false)
    }

    /// Waits until there is something to read, and returns whether no process has the other end.
    fn poll_closed(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let readable = match self.readable.take() {
            Some(readable) => readable,
            None => self.file.register(Interest::READABLE)?,
        };
        let mut event = ready!(self.readable.insert(readable).poll_read_ready(context))?;
        let is_closed = event.ready().is_read_closed();
        if !is_closed {
            // Before the read: bytes that come later are an event of their own.
            event.clear_ready();
        }
        Poll::Ready(Ok(is_closed))
    }
}

/// Turn of a thread that pauses before it reads, of which there are a few: many programs that write all the time are read
/// as they write.
struct Turn(Duration);

static TURNS: AtomicUsize = AtomicUsize::new(4);

impl Turn {
    fn take(pause: Duration) -> Option<Turn> {
        let less = |turns: usize| turns.checked_sub(1);
        TURNS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).ok()?;
        Some(Turn(pause))
    }

    fn pause(self) {
        thread::sleep(self.0);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        TURNS.fetch_add(1, Ordering::Relaxed);
    }
}

/// The agent's end of a stream that a program reads.
pub(crate) struct InputEnd {
    file: Arc<File>,
    writable: AsyncFd<Arc<File>>,
    writing: Option<oneshot::Receiver<io::Result<usize>>>,
    /// Whether the last write has found the pipe full.
    is_full: bool,
}

impl InputEnd {
    pub(crate) fn new(end: impl Into<OwnedFd>) -> io::Result<InputEnd> {
        let file = Arc::new(File::open(end.into())?);
        let writable = file.register(Interest::WRITABLE)?;
        Ok(InputEnd { file, writable, writing: None, is_full: false })
    }
}

impl AsyncWrite for InputEnd {
    /// Writes a part of `data`. What has been begun is finished: a call that is not ready must be repeated with the same data.
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let data = &data[..data.len().min(PART)];
        loop {
            if let Some(writing) = &mut self.writing {
                let written = ready!(Pin::new(writing).poll(context)).map_err(io::Error::other)?;
                self.writing = None;
                match written {
                    Ok(length) => {
                        self.is_full = length < data.len();
                        return Poll::Ready(Ok(length));
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.is_full = true,
                    Err(error) => return Poll::Ready(Err(error)),
                }
            }
            match self.writable.poll_write_ready(context) {
                Poll::Ready(event) => {
                    let mut event = event?;
                    if event.ready().is_write_closed() {
                        return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
                    }
                    // Before the write: space that is made later is an event of its own.
                    event.clear_ready();
                }
                Poll::Pending if self.is_full => return Poll::Pending,
                Poll::Pending => {}
            }
            let (file, data) = (self.file.clone(), data.to_vec());
            self.writing = Some(POOL.call(move || Ok(retry_on_intr(|| write(&file, &data))?)));
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Does nothing: a pipe ends when it is closed.
    fn poll_shutdown(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Open file of an end. Its last clone closes it, in the pool as well.
struct File(Option<OwnedFd>);

impl File {
    fn open(end: OwnedFd) -> io::Result<File> {
        // The guardian relies on this too, if it inherits the end.
        ioctl_fionbio(&end, true)?;
        Ok(File(Some(end)))
    }

    #[expect(
        deprecated,
        reason = "what replaces it is unsafe; this file stays open as long as it is registered"
    )]
    fn register(self: &Arc<File>, interest: Interest) -> io::Result<AsyncFd<Arc<File>>> {
        AsyncFd::with_interest(self.clone(), interest)
    }

    /// Decides how to wait for more. A pipe in packet mode (`O_DIRECT` of its writer) gives one packet a read, and nothing
    /// tells of those behind it, which were there when it was told of the first.
    fn next_event(&self) -> NextRead {
        let mut polled = [PollFd::new(self.as_fd(), PollFlags::POLLIN)];
        match poll(&mut polled, PollTimeout::ZERO) {
            Ok(_) if polled[0].all() == Some(true) => NextRead::AtOnce,
            _ => NextRead::WhenReadable,
        }
    }

    /// Reads what there is, [`PART`] at most.
    fn read_part(&self) -> io::Result<Vec<u8>> {
        let mut part = SPARE.take();
        match retry_on_intr(|| read(self, spare_capacity(&mut part))) {
            Ok(_) => Ok(part),
            Err(error) => {
                SPARE.give_back(part);
                Err(error.into())
            }
        }
    }
}

impl AsRawFd for File {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_ref().expect("it is there until the drop").as_fd()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if let Some(end) = self.0.take() {
            drop(POOL.call(move || drop(end)));
        }
    }
}

/// Buffers of parts that have been passed on, few of them. Streams that are silent have none.
static SPARE: Spare = Spare(Mutex::new(Vec::new()));

struct Spare(Mutex<Vec<Vec<u8>>>);

impl Spare {
    /// Number of buffers that are kept: more streams seldom have parts at the same moment.
    const MOST: usize = 4;

    fn take(&self) -> Vec<u8> {
        self.buffers().pop().unwrap_or_else(|| Vec::with_capacity(PART))
    }

    fn give_back(&self, mut part: Vec<u8>) {
        part.clear();
        let mut buffers = self.buffers();
        if buffers.len() < Spare::MOST {
            buffers.push(part);
        }
    }

    fn buffers(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::fcntl::OFlag;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc;
    use tokio::io::AsyncWriteExt;
    use tokio::time::sleep;

    /// Time limit for events that must happen.
    const BOUND: Duration = Duration::from_secs(60);

    /// Starts a thread that copies by splice(2), and waits until it sleeps in there.
    async fn splice(from: impl Into<OwnedFd>, to: impl Into<OwnedFd>) -> thread::JoinHandle<u64> {
        let (mut from, mut to) = (fs::File::from(from.into()), fs::File::from(to.into()));
        let (tell, told) = mpsc::channel();
        let copying = thread::spawn(move || {
            tell.send(nix::unistd::gettid()).unwrap();
            // Its copy loop of files, pipes and sockets is splice(2).
            io::copy(&mut from, &mut to).unwrap_or(0)
        });
        let call = format!("/proc/self/task/{}/syscall", told.recv().unwrap());
        let splice = format!("{} ", libc::SYS_splice);
        let in_splice = async {
            while !fs::read_to_string(&call).unwrap().starts_with(&splice) {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(BOUND, in_splice).await.unwrap();
        copying
    }

    #[tokio::test]
    async fn a_splice_from_a_silent_socket_holds_up_its_own_stream_alone() {
        let (reader, mut writer) = io::pipe().unwrap();
        let (mut other_reader, other_writer) = io::pipe().unwrap();
        writer.write_all(b"before ").unwrap();
        let (socket, mut far) = UnixStream::pair().unwrap();
        let copying = splice(socket, writer).await;
        let mut end = OutputEnd::new(reader).unwrap();
        let mut text = [0; 13];
        // The loop goes on: its timers, and other streams.
        let early = timeout(Duration::from_millis(300), end.read_exact(&mut text)).await;
        assert!(early.is_err() && end.is_being_read());
        let mut other = InputEnd::new(other_writer).unwrap();
        timeout(BOUND, other.write_all(b"other")).await.unwrap().unwrap();
        let mut others = [0; 5];
        other_reader.read_exact(&mut others).unwrap();
        far.write_all(b"after!").unwrap();
        drop(far);
        timeout(BOUND, end.read_exact(&mut text)).await.unwrap().unwrap();
        assert_eq!((&text, &others), (b"before after!", b"other"));
        assert_eq!(timeout(BOUND, end.read(&mut text)).await.unwrap().unwrap(), 0);
        assert_eq!(copying.join().unwrap(), 6);
    }

    #[tokio::test]
    async fn a_splice_into_a_socket_that_nobody_reads_holds_up_neither_writer_nor_close() {
        let (reader, writer) = io::pipe().unwrap();
        let (socket, mut far) = UnixStream::pair().unwrap();
        let mut end = InputEnd::new(writer).unwrap();
        // More than socket and pipe hold.
        let data = vec![b'x'; 4 << 20];
        let copying = splice(reader, socket).await;
        let early = timeout(Duration::from_millis(300), end.write_all(&data)).await;
        assert!(early.is_err());
        drop(end);
        sleep(Duration::from_millis(1)).await;
        let reading = thread::spawn(move || {
            let mut all = Vec::new();
            far.read_to_end(&mut all).map(|length| length as u64)
        });
        let ended = async {
            while !(copying.is_finished() && reading.is_finished()) {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(BOUND, ended).await.unwrap();
        let copied = copying.join().unwrap();
        assert!(copied > 0 && reading.join().unwrap().unwrap() == copied);
    }

    #[tokio::test]
    async fn every_byte_comes_in_order_whatever_the_sizes() {
        let (reader, mut writer) = io::pipe().unwrap();
        let data: Vec<u8> =
            (0..3_000_000_u32).map(|n| n.to_le_bytes()[0] ^ n.to_le_bytes()[1]).collect();
        let sent = data.clone();
        let writing = thread::spawn(move || {
            let mut rest = &sent[..];
            for size in (1..).map(|n: usize| n * n * 37 % 100_003) {
                let (part, after) = rest.split_at(size.min(rest.len()));
                writer.write_all(part).unwrap();
                rest = after;
                if rest.is_empty() {
                    return;
                }
            }
        });
        let mut end = OutputEnd::new(reader).unwrap();
        let mut all = Vec::new();
        timeout(BOUND, end.read_to_end(&mut all)).await.unwrap().unwrap();
        writing.join().unwrap();
        assert!(all == data);
    }

    #[test]
    fn a_flow_is_read_when_half_a_pipe_is_there_and_a_line_at_once() {
        let (half, ms) = (PART / 2, Duration::from_millis);
        let behind = NextRead::behind;
        assert_eq!(
            behind(half, Duration::from_micros(50)),
            NextRead::After(Duration::from_micros(50))
        );
        assert_eq!(
            behind(half / 4, Duration::from_micros(50)),
            NextRead::After(Duration::from_micros(200))
        );
        assert_eq!(behind(80, ms(1)), NextRead::After(NextRead::MAX_PAUSE));
        assert_eq!(behind(0, ms(1)), NextRead::After(NextRead::MAX_PAUSE));
        assert_eq!(behind(PART - 1, Duration::ZERO), NextRead::After(Duration::ZERO));
        for length in [0, 80, half] {
            assert_eq!(behind(length, ms(2)), NextRead::WhenReadable);
        }
    }

    #[tokio::test]
    async fn every_packet_of_a_pipe_in_packet_mode_comes_without_another_write() {
        // Streams that are read at intervals, those beyond them, and such as seldom write.
        for (turns, since) in [(0, 0), (4, 0), (0, 1000)] {
            let (reader, writer) = nix::unistd::pipe2(OFlag::O_DIRECT).unwrap();
            let mut writer = fs::File::from(writer);
            let mut end = OutputEnd::new(reader).unwrap();
            let held: Vec<_> = (0..turns).map_while(|_| Turn::take(Duration::ZERO)).collect();
            end.read_at -= Duration::from_millis(since);
            for packet in ["a", "b", "c"] {
                writer.write_all(packet.as_bytes()).unwrap();
            }
            let mut text = [0; 3];
            timeout(BOUND, end.read_exact(&mut text)).await.unwrap().unwrap();
            assert_eq!(&text, b"abc", "{turns} {since}");
            drop(held);
        }
    }

    #[tokio::test]
    async fn streams_beyond_those_that_are_paced_are_read_as_well() {
        let ends: Vec<_> = (0..10)
            .map(|_| {
                let (reader, mut writer) = io::pipe().unwrap();
                let writing = thread::spawn(move || {
                    for _ in 0..3_000 {
                        writer.write_all(&[b'x'; 100]).unwrap();
                    }
                });
                (writing, OutputEnd::new(reader).unwrap())
            })
            .collect();
        let mut tasks = Vec::new();
        for (writing, mut end) in ends {
            tasks.push(tokio::spawn(async move {
                let mut all = Vec::new();
                end.read_to_end(&mut all).await.unwrap();
                writing.join().unwrap();
                all.len()
            }));
        }
        for task in tasks {
            assert_eq!(timeout(BOUND, task).await.unwrap().unwrap(), 300_000);
        }
    }

    #[tokio::test]
    async fn input_for_which_there_is_no_reader_is_an_error() {
        let (reader, writer) = io::pipe().unwrap();
        let mut end = InputEnd::new(writer).unwrap();
        drop(reader);
        let error = timeout(BOUND, end.write_all(b"x")).await.unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}
