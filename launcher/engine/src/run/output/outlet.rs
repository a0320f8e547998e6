//! Files that output is written to, and their readers, which may not read.
//!
//! A reader may pause as long as it likes while the job runs. Once the job is to end whether or not its output is
//! read, a reader that takes nothing for a while, less than a page of a pipe, is given up: its descriptor then refers to
//! /dev/null. The writing thread goes on, so that everything behind the reader is complete: last lines, files,
//! the record, and the credit without which nodes cannot report their end. A regular file has no reader.
//!
//! A reader that holds its pipe (`held` in the crate `console`) cannot be given up: the thread sleeps in the kernel. Another
//! takes its place.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::pthread::pthread_kill;
use nix::sys::signal::Signal;
use rlaunch_console::stdout;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::thread::JoinHandleExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// Time between two looks at a reader.
const TICK: Duration = Duration::from_millis(250);
/// Number of looks at a write to a reader that was given up, each with a nudge, after which it counts as held.
const HELD_LOOKS: u64 = 4;
/// Signal that interrupts a write, which then returns what the reader has taken. Its default is to be ignored, and
/// nobody sends it to a process without urgent data.
const NUDGE: Signal = Signal::SIGURG;

/// Open file to which output is written: stdout or stderr of this process, or a pipe.
#[derive(Debug)]
pub(super) struct Outlet {
    file: File,
    has_reader: bool,
    /// Number of bytes that were written.
    written: AtomicU64,
    /// Number of bytes that no reader got, because it was given up.
    unread: AtomicU64,
    is_writing: AtomicBool,
    is_given_up: AtomicBool,
}

impl Outlet {
    pub(super) fn new(descriptor: OwnedFd) -> Arc<Outlet> {
        let file = File::from(descriptor);
        Arc::new(Outlet {
            has_reader: file.metadata().is_ok_and(|about| !about.is_file()),
            file,
            written: AtomicU64::new(0),
            unread: AtomicU64::new(0),
            is_writing: AtomicBool::new(false),
            is_given_up: AtomicBool::new(false),
        })
    }

    /// Tells whether what is written to both goes to one file, pipe or device.
    pub(super) fn is_same_file(&self, other: &Outlet) -> bool {
        let file = |outlet: &Outlet| outlet.file.metadata().map(|file| (file.dev(), file.ino()));
        matches!((file(self), file(other)), (Ok(own), Ok(other)) if own == other)
    }

    /// Writes all of `data`, even if another process that shares the stream has made it non-blocking. Fails with
    /// `BrokenPipe` if the reader has left.
    pub(super) fn write_all(&self, data: &[u8]) -> io::Result<()> {
        self.is_writing.store(true, Ordering::Relaxed);
        let written = self.write_parts(data);
        self.is_writing.store(false, Ordering::Relaxed);
        written.map_err(|error| stdout::or_broken_pipe(&self.file, error))
    }

    fn write_parts(&self, mut data: &[u8]) -> io::Result<()> {
        while !data.is_empty() {
            match (&self.file).write(data) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    data = &data[written..];
                    self.count(written);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let mut fds = [PollFd::new(self.file.as_fd(), PollFlags::POLLOUT)];
                    // The next write has the error, if there is one. Poll does not notice that the descriptor gets
                    // another file.
                    let _ = poll(&mut fds, PollTimeout::from(250_u8));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn count(&self, written: usize) {
        self.written.fetch_add(written as u64, Ordering::Relaxed);
        if self.is_given_up.load(Ordering::Acquire) {
            self.unread.fetch_add(written as u64, Ordering::Relaxed);
        }
    }

    /// Tells whether a write has begun and not ended, to a reader or to nowhere.
    fn is_writing(&self) -> bool {
        self.has_reader && self.is_writing.load(Ordering::Relaxed)
    }

    /// Tells whether a write has begun and its reader has not taken all of it.
    pub(super) fn waits_for_reader(&self) -> bool {
        self.is_writing() && !self.is_given_up.load(Ordering::Relaxed)
    }

    pub(super) fn unread(&self) -> u64 {
        self.unread.load(Ordering::Relaxed)
    }

    fn give_up(&self, nowhere: &File) {
        match rlaunch_sys::redirect(self.file.as_fd(), nowhere.as_fd()) {
            Ok(()) => self.is_given_up.store(true, Ordering::Release),
            Err(error) => tracing::warn!("cannot give up a reader: {error}"),
        }
    }
}

/// Time for which readers may take nothing, in looks at them. It only gets shorter.
#[derive(Debug)]
pub(super) struct Patience(AtomicU64);

impl Patience {
    pub(super) fn new() -> Arc<Patience> {
        Arc::new(Patience(AtomicU64::new(u64::MAX)))
    }

    /// Shortens it, to nothing if `time` is zero: then a reader that has not taken everything is given up.
    pub(super) fn shorten(&self, time: Duration) {
        let looks = u64::try_from(time.as_millis() / TICK.as_millis()).unwrap_or(u64::MAX);
        self.0.fetch_min(looks, Ordering::Relaxed);
    }
}

/// End of [`give_up_idle_readers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Watch {
    /// The thread has ended.
    Over,
    /// A reader that was given up holds the thread all the same.
    Held,
}

/// Gives up every reader that takes nothing for `patience`, until `thread`, which writes to the outlets, has ended or can
/// go on no more. Errors if it can give up none.
pub(super) async fn give_up_idle_readers(
    thread: Arc<JoinHandle<()>>,
    outlets: Vec<Arc<Outlet>>,
    patience: Arc<Patience>,
) -> io::Result<Watch> {
    let nowhere = File::options().write(true).open("/dev/null")?;
    // The handler lets the kernel start an interrupted write again, which then goes to the descriptor's new file.
    let _handler = signal(SignalKind::from_raw(NUDGE as i32))?;
    let mut watched: Vec<Watched> = outlets.into_iter().map(Watched::new).collect();
    while !thread.is_finished() {
        tokio::time::sleep(TICK).await;
        for reader in &mut watched {
            if reader.is_idle_for(patience.0.load(Ordering::Relaxed)) {
                reader.outlet.give_up(&nowhere);
            } else if reader.is_held() {
                return Ok(Watch::Held);
            }
        }
        // The handle keeps the thread's id valid. A thread that has ended needs no nudge.
        let _ = pthread_kill(thread.as_pthread_t(), NUDGE);
    }
    Ok(Watch::Over)
}

struct Watched {
    outlet: Arc<Outlet>,
    /// Number of bytes that the reader had taken at the last look.
    taken: u64,
    /// Number of looks since it has taken any.
    idle: u64,
    /// Number of these since it was given up.
    stuck: u64,
}

impl Watched {
    fn new(outlet: Arc<Outlet>) -> Watched {
        Watched { taken: outlet.written.load(Ordering::Relaxed), idle: 0, stuck: 0, outlet }
    }

    /// Looks at the reader, and tells whether it has taken nothing at `looks` successive looks although it was given
    /// something.
    fn is_idle_for(&mut self, looks: u64) -> bool {
        let taken = self.outlet.written.load(Ordering::Relaxed);
        let is_idle = self.outlet.is_writing() && taken == self.taken;
        self.idle = if is_idle { self.idle + 1 } else { 0 };
        self.taken = taken;
        self.outlet.waits_for_reader() && self.idle >= looks
    }

    /// Tells whether the reader was given up and yet the write goes on, at the last looks.
    fn is_held(&mut self) -> bool {
        let is_given_up = self.outlet.is_given_up.load(Ordering::Relaxed);
        let is_stuck = self.idle > 0 && is_given_up && a_thread_is_held();
        self.stuck = if is_stuck { self.stuck + 1 } else { 0 };
        self.stuck > HELD_LOOKS
    }
}

/// Tells whether a thread of this process is in the kernel and nothing can wake it; true if that cannot be seen. One that has
/// no processor only looks as if it wrote no more.
fn a_thread_is_held() -> bool {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return true };
    threads.flatten().any(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with('D'))
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::held_pipe;
    use super::*;
    use nix::pty::openpty;
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::time::Instant;

    /// More than a pipe holds.
    const DATA: usize = 256 << 10;

    /// Returns the reading end of a pipe, and a thread that writes [`DATA`] bytes to it.
    fn writing() -> (io::PipeReader, Arc<Outlet>, Arc<JoinHandle<()>>) {
        let (reader, writer) = io::pipe().unwrap();
        let outlet = Outlet::new(writer.into());
        let of_thread = outlet.clone();
        let write = move || of_thread.write_all(&vec![b'x'; DATA]).unwrap();
        (reader, outlet, Arc::new(std::thread::spawn(write)))
    }

    fn patience(time: Duration) -> Arc<Patience> {
        let patience = Patience::new();
        patience.shorten(time);
        // Another request does not make it longer.
        patience.shorten(2 * time);
        patience
    }

    #[tokio::test]
    async fn a_reader_that_takes_nothing_is_given_up() {
        let (mut reader, outlet, thread) = writing();
        give_up_idle_readers(thread, vec![outlet.clone()], patience(2 * TICK)).await.unwrap();
        let unread = usize::try_from(outlet.unread()).unwrap();
        drop(outlet);
        let mut read = Vec::new();
        reader.read_to_end(&mut read).unwrap();
        assert_eq!(read.len() + unread, DATA);
        assert!(unread > DATA / 2, "{unread}");
    }

    /// Writes until that fails.
    fn failed(writer: impl Into<OwnedFd>) -> io::ErrorKind {
        let outlet = Outlet::new(writer.into());
        (0..).find_map(|_| outlet.write_all(b"line\n").err()).unwrap().kind()
    }

    #[test]
    fn a_connection_that_is_reset_and_a_terminal_that_is_gone_are_readers_that_have_left() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut writer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        writer.write_all(b"x").unwrap();
        let reader = listener.accept().unwrap().0;
        reader.peek(&mut [0]).unwrap();
        // Whoever closes a connection with unread data resets it.
        drop(reader);
        assert_eq!(failed(writer), io::ErrorKind::BrokenPipe);
        let terminal = openpty(None, None).unwrap();
        drop(terminal.master);
        assert_eq!(failed(terminal.slave), io::ErrorKind::BrokenPipe);
    }

    #[tokio::test]
    async fn a_reader_that_holds_its_pipe_holds_the_thread() {
        let (writer, mut far, copying) = held_pipe();
        let outlet = Outlet::new(writer.into());
        let of_thread = outlet.clone();
        // More than pipe and socket hold.
        let data = vec![b'x'; 4 << 20];
        let thread = Arc::new(std::thread::spawn(move || of_thread.write_all(&data).unwrap()));
        let outlets = vec![outlet.clone()];
        let watch = give_up_idle_readers(thread.clone(), outlets, patience(2 * TICK)).await;
        assert_eq!((watch.unwrap(), thread.is_finished()), (Watch::Held, false));
        drop(outlet);
        // Once the reader goes on, so does the thread, to nowhere.
        let read = io::copy(&mut far, &mut io::sink()).unwrap();
        assert_eq!(copying.join().unwrap().unwrap(), read);
        Arc::into_inner(thread).unwrap().join().unwrap();
    }

    #[tokio::test]
    async fn a_slow_reader_gets_everything() {
        let (mut reader, outlet, thread) = writing();
        let began = Instant::now();
        let reads = std::thread::spawn(move || {
            let (mut read, mut part) = (0, vec![0; 32 << 10]);
            while read < DATA {
                std::thread::sleep(2 * TICK);
                read += reader.read(&mut part).unwrap();
            }
            read
        });
        give_up_idle_readers(thread, vec![outlet.clone()], patience(12 * TICK)).await.unwrap();
        assert!(began.elapsed() > 4 * TICK, "it waited for no reader: {:?}", began.elapsed());
        assert_eq!((reads.join().unwrap(), outlet.unread()), (DATA, 0));
    }
}
