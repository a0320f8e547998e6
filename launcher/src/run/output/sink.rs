//! This process's own stdout and stderr.

use super::Source;
use super::tags::Tags;
use anstream::{AutoStream, ColorChoice};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rlaunch_bootstrap::protocol::control::Stream;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;

/// Writes to the two streams, unbuffered.
pub(crate) struct Sink {
    stdout: Door,
    stderr: Door,
    tags: Option<Tags>,
    /// Who has begun the line that the terminal is in.
    line_of: Option<Source>,
    /// What goes out by one call.
    line: Vec<u8>,
}

/// One of the two.
struct Door {
    /// A stream that failed once is not written again.
    file: Option<File>,
    is_terminal: bool,
    /// Tags have colours there.
    coloured: bool,
}

impl Door {
    fn stdout() -> Door {
        Door::of(&io::stdout(), AutoStream::choice(&io::stdout()))
    }

    fn stderr() -> Door {
        Door::of(&io::stderr(), AutoStream::choice(&io::stderr()))
    }

    /// A duplicate, because the standard handles buffer by line.
    fn of(stream: &(impl AsFd + IsTerminal), colours: ColorChoice) -> Door {
        Door {
            file: stream.as_fd().try_clone_to_owned().ok().map(File::from),
            is_terminal: stream.is_terminal(),
            coloured: colours != ColorChoice::Never,
        }
    }
}

impl Sink {
    /// With `aside`, both go to stderr.
    pub(crate) fn new(tags: Option<Tags>, aside: bool) -> Sink {
        let stdout = if aside { Door::stderr() } else { Door::stdout() };
        Sink { stdout, stderr: Door::stderr(), tags, line_of: None, line: Vec::new() }
    }

    /// The tags of what follows.
    pub(crate) fn tags(&mut self) -> Option<&mut Tags> {
        self.tags.as_mut()
    }

    /// Writes a piece of one rank's output, all of it.
    pub(crate) fn write(
        &mut self,
        (source, stamp): (Source, Option<u64>),
        data: &[u8],
    ) -> io::Result<()> {
        let door = match source.1 {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        };
        let Some(file) = door.file.as_mut().filter(|_| !data.is_empty()) else { return Ok(()) };
        self.line.clear();
        // On a terminal a line may stand unfinished, so that a prompt is seen; what another rank
        // writes next does not go on in it.
        if door.is_terminal {
            let begun = self.line_of.filter(|begun| begun.0 != source.0);
            if let Some(begun) = begun {
                self.line.push(b'\n');
                self.tags.iter_mut().for_each(|tags| tags.broken_off(begun));
            }
            self.line_of = (data.last() != Some(&b'\n')).then_some(source);
        }
        match &mut self.tags {
            Some(tags) => tags.apply((source, stamp), door.coloured, data, &mut self.line),
            None if !self.line.is_empty() => self.line.extend_from_slice(data),
            None => {}
        }
        let whole = if self.line.is_empty() { data } else { &self.line };
        let written = write_all(file, whole);
        if written.is_err() {
            door.file = None;
        }
        written
    }
}

/// `write_all` that also works when whoever shares the stream has made it non-blocking.
fn write_all(file: &mut File, mut data: &[u8]) -> io::Result<()> {
    while !data.is_empty() {
        match file.write(data) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => data = &data[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let mut fds = [PollFd::new(file.as_fd(), PollFlags::POLLOUT)];
                poll(&mut fds, PollTimeout::NONE)?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_bootstrap::id::Rank;
    use std::io::{PipeReader, Read};
    use std::os::fd::OwnedFd;

    /// A sink that takes one pipe for a terminal, and the other end of it.
    fn terminal() -> (PipeReader, Sink) {
        let (reader, writer) = io::pipe().unwrap();
        let door = |writer: OwnedFd| Door {
            file: Some(File::from(writer)),
            is_terminal: true,
            coloured: false,
        };
        let stderr = door(writer.try_clone().unwrap().into());
        let stdout = door(writer.into());
        (reader, Sink { stdout, stderr, tags: None, line_of: None, line: Vec::new() })
    }

    #[test]
    fn on_a_terminal_nobody_goes_on_in_anothers_line() {
        let (mut reader, mut sink) = terminal();
        let mut write = |rank: u32, stream, text: &str| {
            sink.write(((Rank(rank), stream), None), text.as_bytes()).unwrap();
        };
        write(0, Stream::Stdout, "name? ");
        write(0, Stream::Stderr, "(hurry) ");
        write(1, Stream::Stderr, "other\n");
        write(0, Stream::Stdout, "rest\n");
        write(1, Stream::Stdout, "end\n");
        drop(sink);
        let mut all = String::new();
        reader.read_to_string(&mut all).unwrap();
        assert_eq!(all, "name? (hurry) \nother\nrest\nend\n");
    }
}
