//! Writer of lines to a reader that may not read, such as the one of stderr: whoever has a line to write does not
//! wait for it.
//!
//! A line is usually written when [`LineWriter::write`] returns, so that lines stay in order with what others write
//! to the same terminal. While the reader is behind, lines wait in a queue. Those that find no room are dropped
//! and counted.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Time for which a writer waits until its line is written.
const WRITE_TIMEOUT: Duration = Duration::from_millis(20);
/// Number of waiting bytes beyond which lines are dropped.
const CAPACITY: usize = 256 << 10;

/// Writes lines to the reader.
type Print = Box<dyn Fn(&[u8]) -> io::Result<()> + Send + Sync>;
/// Makes the line that says how many lines were dropped.
type DroppedLine = Box<dyn Fn(usize) -> Vec<u8> + Send + Sync>;

/// Handle of the thread that writes, which ends with the last line after this is dropped.
pub struct LineWriter {
    shared: Arc<Shared>,
    /// Whether there is a thread. Without one, `write` itself waits for the reader.
    has_thread: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
    print: Print,
    dropped_line: DroppedLine,
}

#[derive(Default)]
struct Queue {
    lines: VecDeque<Vec<u8>>,
    /// Size of `lines`.
    bytes: usize,
    /// Number of lines that found no room.
    dropped: usize,
    /// Whether the thread is writing.
    is_writing: bool,
    /// Whether no line will follow.
    is_closed: bool,
}

impl Queue {
    fn is_behind(&self) -> bool {
        self.is_writing || !self.lines.is_empty() || self.dropped > 0
    }

    fn push(&mut self, line: Vec<u8>) {
        self.bytes += line.len();
        self.lines.push_back(line);
    }

    /// Takes the next line: after all others, the one that counts those that were dropped.
    fn take(&mut self, dropped_line: &DroppedLine) -> Option<Vec<u8>> {
        if self.lines.is_empty() {
            self.count_dropped(dropped_line);
        }
        let line = self.lines.pop_front()?;
        self.bytes -= line.len();
        Some(line)
    }

    /// Puts the line that counts dropped lines behind all others, if any were dropped.
    fn count_dropped(&mut self, dropped_line: &DroppedLine) {
        let dropped = std::mem::take(&mut self.dropped);
        if dropped > 0 {
            self.push(dropped_line(dropped));
        }
    }
}

impl LineWriter {
    /// Starts a thread that writes lines by `print`, and lines that count dropped ones, made by `dropped_line`.
    pub fn start(
        print: impl Fn(&[u8]) -> io::Result<()> + Send + Sync + 'static,
        dropped_line: impl Fn(usize) -> Vec<u8> + Send + Sync + 'static,
    ) -> LineWriter {
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            changed: Condvar::new(),
            print: Box::new(print),
            dropped_line: Box::new(dropped_line),
        });
        let of_thread = shared.clone();
        let thread = thread::Builder::new().spawn(move || of_thread.write_all());
        LineWriter { shared, has_thread: thread.is_ok() }
    }

    /// Writes a line, with its end. Drops it if the reader is too far behind.
    pub fn write(&self, line: Vec<u8>) {
        let mut queue = self.shared.lock();
        if queue.bytes + line.len() > CAPACITY && queue.is_behind() {
            queue.dropped += 1;
        } else {
            self.push(queue, line);
        }
    }

    /// Writes lines that are never dropped.
    pub fn write_always(&self, lines: Vec<u8>) {
        let mut queue = self.shared.lock();
        queue.count_dropped(&self.shared.dropped_line);
        self.push(queue, lines);
    }

    /// Waits until the reader has taken all lines, or for the time `limit`.
    pub fn wait(&self, limit: Duration) {
        self.wait_for_reader(self.shared.lock(), limit);
    }

    /// Tells whether lines wait for the reader.
    pub fn is_behind(&self) -> bool {
        self.shared.lock().is_behind()
    }

    fn push(&self, mut queue: MutexGuard<'_, Queue>, line: Vec<u8>) {
        if !self.has_thread {
            // A reader that has left wants no lines.
            let _ = (self.shared.print)(&line);
            return;
        }
        let was_behind = queue.is_behind();
        queue.push(line);
        self.shared.changed.notify_all();
        if !was_behind {
            self.wait_for_reader(queue, WRITE_TIMEOUT);
        }
    }

    fn wait_for_reader(&self, queue: MutexGuard<'_, Queue>, limit: Duration) {
        let changed = &self.shared.changed;
        drop(changed.wait_timeout_while(queue, limit, |queue| queue.is_behind()));
    }
}

impl Drop for LineWriter {
    fn drop(&mut self) {
        self.shared.lock().is_closed = true;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_all(&self) {
        let mut queue = self.lock();
        loop {
            if let Some(line) = queue.take(&self.dropped_line) {
                queue.is_writing = true;
                drop(queue);
                // A reader that has left wants no lines.
                let _ = (self.print)(&line);
                queue = self.lock();
                queue.is_writing = false;
                self.changed.notify_all();
            } else if queue.is_closed {
                return;
            } else {
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::time::Instant;

    fn start() -> (io::PipeReader, LineWriter) {
        let (reader, pipe) = io::pipe().unwrap();
        let print = move |line: &[u8]| (&pipe).write_all(line);
        (reader, LineWriter::start(print, |count| format!("{count} dropped\n").into_bytes()))
    }

    #[test]
    fn a_reader_that_does_not_read_delays_nobody_and_learns_what_it_missed() {
        let (mut reader, writer) = start();
        let began = Instant::now();
        // A pipe holds 64 KiB.
        for number in 0..1000 {
            writer.write(format!("{number:01023}\n").into_bytes());
        }
        writer.write_always(b"error\n".to_vec());
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        assert!(writer.is_behind());
        let mut all = String::new();
        drop(writer);
        reader.read_to_string(&mut all).unwrap();
        let lines: Vec<&str> = all.lines().collect();
        let [written @ .., count, "error"] = &lines[..] else { panic!("{lines:?}") };
        assert!(written.iter().enumerate().all(|(at, line)| line.parse() == Ok(at)));
        let dropped = 1000 - written.len();
        assert!(dropped > 0);
        assert_eq!(*count, format!("{dropped} dropped"));
    }

    #[test]
    fn a_line_is_written_when_its_writer_goes_on() {
        let (mut reader, writer) = start();
        // Larger than the queue, which is empty.
        let large = [vec![b'x'; CAPACITY], b"\n".to_vec()].concat();
        let reads = thread::spawn(move || {
            let mut read = vec![0; CAPACITY + 5];
            reader.read_exact(&mut read).unwrap();
            read
        });
        for line in [b"one\n".to_vec(), large.clone()] {
            writer.write(line);
        }
        assert_eq!(reads.join().unwrap(), [b"one\n".to_vec(), large].concat());
    }
}
