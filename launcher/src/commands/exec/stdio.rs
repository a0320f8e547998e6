//! The client's own streams and its terminal. Threads read and write the streams, which may block for ever. They hold one
//! part of input and one of output, and are left to themselves at the end of the process.

use rlaunch_bootstrap::protocol::control::Stream;
use rlaunch_bootstrap::protocol::session::MAX_SESSION_DATA;
use rlaunch_console::stdout::or_broken_pipe;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::sync::mpsc as blocking;
use std::thread;
use tokio::sync::mpsc;

/// Reader of stdin. It reads a part when asked.
pub(super) struct PartReader {
    requests: blocking::Sender<()>,
    parts: mpsc::UnboundedReceiver<io::Result<Vec<u8>>>,
}

/// Writer of stdout and stderr.
pub(super) struct PartWriter {
    parts: blocking::Sender<(Stream, Vec<u8>)>,
    written: mpsc::UnboundedReceiver<io::Result<()>>,
}

impl PartReader {
    pub(super) fn start() -> io::Result<PartReader> {
        // The descriptor is duplicated because the standard handle reads ahead.
        let mut stdin = File::from(io::stdin().as_fd().try_clone_to_owned()?);
        let (requests, asked) = blocking::channel();
        let (sender, parts) = mpsc::unbounded_channel();
        let read = move || {
            let mut buffer = vec![0; MAX_SESSION_DATA];
            while let Ok(()) = asked.recv() {
                let part = loop {
                    match stdin.read(&mut buffer) {
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                        read => break read.map(|length| buffer[..length].to_vec()),
                    }
                };
                if sender.send(part).is_err() {
                    return;
                }
            }
        };
        thread::Builder::new().name("stdin".into()).spawn(read)?;
        Ok(PartReader { requests, parts })
    }

    /// Asks for the next part.
    pub(super) fn ask(&self) {
        // An error means that the thread has ended, and `next` waits for ever.
        let _ = self.requests.send(());
    }

    /// Waits for the part that was asked for; an empty one is the end. Cancel-safe.
    pub(super) async fn next(&mut self) -> io::Result<Vec<u8>> {
        match self.parts.recv().await {
            Some(part) => part,
            None => std::future::pending().await,
        }
    }
}

impl PartWriter {
    pub(super) fn start() -> io::Result<PartWriter> {
        // Written without the standard handle, which waits for whole lines.
        let mut stdout = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        let mut stderr = File::from(io::stderr().as_fd().try_clone_to_owned()?);
        let (parts, queue) = blocking::channel::<(Stream, Vec<u8>)>();
        let (sender, written) = mpsc::unbounded_channel();
        let write = |stream: &mut File, data: &[u8]| {
            let written = stream.write_all(data);
            written.map_err(|error| or_broken_pipe(&*stream, error))
        };
        let write_parts = move || {
            while let Ok((stream, data)) = queue.recv() {
                let result = match stream {
                    Stream::Stdout => write(&mut stdout, &data),
                    Stream::Stderr => write(&mut stderr, &data),
                };
                if sender.send(result).is_err() {
                    return;
                }
            }
        };
        thread::Builder::new().name("stdout".into()).spawn(write_parts)?;
        Ok(PartWriter { parts, written })
    }

    /// Queues a part for writing.
    pub(super) fn write(&self, stream: Stream, data: Vec<u8>) {
        // An error means that the thread has ended, and `written` waits for ever.
        let _ = self.parts.send((stream, data));
    }

    /// Waits until a part is written. Cancel-safe.
    pub(super) async fn written(&mut self) -> io::Result<()> {
        match self.written.recv().await {
            Some(result) => result,
            None => std::future::pending().await,
        }
    }
}

/// Terminal at stdin, in raw mode while a command beside a rank uses it. Dropping it restores its modes, also
/// when this process panics.
pub(super) struct LocalTerminal {
    /// Modes before the session; `None` if stdin is not a terminal that the session uses.
    before: Option<Termios>,
}

impl LocalTerminal {
    /// Takes no terminal: a session without one leaves the modes as they are.
    pub(super) fn none() -> LocalTerminal {
        LocalTerminal { before: None }
    }

    /// Takes the terminal at stdin, if there is one. Its modes do not change before [`LocalTerminal::make_raw`].
    pub(super) fn open() -> LocalTerminal {
        LocalTerminal { before: tcgetattr(io::stdin()).ok() }
    }

    /// Passes every key on, such as Ctrl-C, and leaves the echo to the command's terminal.
    pub(super) fn make_raw(&self) {
        if let Some(before) = &self.before {
            let mut raw = before.clone();
            raw.make_raw();
            // Fails if the terminal is gone.
            let _ = tcsetattr(io::stdin(), OptionalActions::Drain, &raw);
        }
    }

    /// Restores the modes.
    pub(super) fn restore(&self) {
        if let Some(before) = &self.before {
            // Output need not be waited for, which the user may have stopped by Ctrl-S.
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, before);
        }
    }
}

impl Drop for LocalTerminal {
    fn drop(&mut self) {
        self.restore();
    }
}
