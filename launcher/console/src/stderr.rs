//! Writer of messages to stderr, a thread of its own: a reader that does not read delays nobody who has something to
//! say.
//!
//! Whoever writes waits a moment until the message is written, so that messages stay in order with what others write to
//! the same terminal. While the reader is behind, nobody waits; messages that find no room are dropped and
//! counted.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

/// Time for which a writer waits until its message is written.
const WRITE_TIMEOUT: Duration = Duration::from_millis(20);
/// Time for the last messages at the end of the process.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of bytes that wait to be written.
const CAPACITY: usize = 256 << 10;

static WRITER: OnceLock<MessageWriter> = OnceLock::new();

/// Writes a message, whole lines, to stderr. Escape sequences are removed if stderr does not support them.
pub(crate) fn write(message: Vec<u8>) {
    let print = |message: &[u8]| anstream::stderr().lock().write_all(message);
    WRITER.get_or_init(|| MessageWriter::start(print)).write(message);
}

/// Waits for a short time until all messages are written. Call it before the process exits.
pub fn flush() {
    if let Some(writer) = WRITER.get() {
        writer.flush(FLUSH_TIMEOUT);
    }
}

/// Destination of log lines.
pub(crate) struct LogLines;

impl Write for LogLines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        write(line.to_vec());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Handle of the writing thread.
struct MessageWriter(Arc<Shared>);

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    messages: VecDeque<Vec<u8>>,
    /// Size of `messages`.
    bytes: usize,
    /// Number of messages that found no room.
    dropped: usize,
    /// Whether the thread is writing a message.
    is_writing: bool,
}

impl Queue {
    fn is_behind(&self) -> bool {
        self.is_writing || !self.messages.is_empty() || self.dropped > 0
    }

    /// Takes the next message: after all others, the number of those that were dropped.
    fn take(&mut self) -> Option<Vec<u8>> {
        if let Some(message) = self.messages.pop_front() {
            self.bytes -= message.len();
            return Some(message);
        }
        let dropped = std::mem::take(&mut self.dropped);
        let line = || format!("rlaunch: {dropped} messages dropped, since stderr was not read\n");
        (dropped > 0).then(|| line().into_bytes())
    }
}

impl MessageWriter {
    /// Starts a thread that writes messages by `print`.
    fn start(print: impl Fn(&[u8]) -> io::Result<()> + Send + 'static) -> MessageWriter {
        let shared = Arc::new(Shared::default());
        let of_thread = shared.clone();
        thread::spawn(move || of_thread.write_all(print));
        MessageWriter(shared)
    }

    fn write(&self, message: Vec<u8>) {
        let mut queue = self.0.lock();
        if queue.bytes + message.len() > CAPACITY {
            queue.dropped += 1;
            return;
        }
        let was_behind = queue.is_behind();
        queue.bytes += message.len();
        queue.messages.push_back(message);
        self.0.changed.notify_all();
        drop(queue);
        if !was_behind {
            self.flush(WRITE_TIMEOUT);
        }
    }

    /// Waits until all messages are written, or for the time `limit`.
    fn flush(&self, limit: Duration) {
        let queue = self.0.lock();
        drop(self.0.changed.wait_timeout_while(queue, limit, |queue| queue.is_behind()));
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_all(&self, print: impl Fn(&[u8]) -> io::Result<()>) {
        let mut queue = self.lock();
        loop {
            if let Some(message) = queue.take() {
                queue.is_writing = true;
                drop(queue);
                // A reader that has closed stderr wants no messages.
                let _ = print(&message);
                queue = self.lock();
                queue.is_writing = false;
                self.changed.notify_all();
            } else {
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::time::Instant;

    #[test]
    fn a_reader_that_does_not_read_delays_nobody_and_learns_what_it_missed() {
        let (mut reader, pipe) = io::pipe().unwrap();
        let writer = MessageWriter::start(move |message| (&pipe).write_all(message));
        let began = Instant::now();
        // A pipe holds 64 KiB.
        for number in 0..1000 {
            writer.write(format!("{number:01023}\n").into_bytes());
        }
        writer.flush(Duration::from_millis(100));
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        let mut all = String::new();
        while !all.contains("dropped") {
            let mut part = [0; 64 << 10];
            let read = reader.read(&mut part).unwrap();
            all.push_str(std::str::from_utf8(&part[..read]).unwrap());
        }
        let lines: Vec<&str> = all.lines().collect();
        let (last, written) = lines.split_last().unwrap();
        assert!(written.iter().enumerate().all(|(at, line)| line.parse() == Ok(at)));
        let dropped = 1000 - written.len();
        assert!(dropped > 0);
        assert_eq!(
            *last,
            format!("rlaunch: {dropped} messages dropped, since stderr was not read")
        );
    }

    #[test]
    fn a_message_is_written_when_its_writer_goes_on() {
        let (mut reader, pipe) = io::pipe().unwrap();
        let writer = MessageWriter::start(move |message| (&pipe).write_all(message));
        for text in ["one\n", "two\n"] {
            writer.write(text.as_bytes().to_vec());
            writer.flush(FLUSH_TIMEOUT);
            let mut read = [0; 4];
            reader.read_exact(&mut read).unwrap();
            assert_eq!(read, text.as_bytes());
        }
    }
}
