//! Writer to this process's own stdout and stderr.

use super::outlet::Outlet;
use super::tags::Tags;
use super::{PerStream, Stdio, StreamId};
use anstream::{AutoStream, ColorChoice};
use anstyle::Style;
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::protocol::control::Stream;
use rlaunch_text::text;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::sync::Arc;

/// Maximum number of ranges of ranks that are named in front of a folded line.
const MAX_RANGES: usize = 8;

/// Unbuffered writer to stdout and stderr.
pub(crate) struct Sink {
    streams: PerStream<OutputStream>,
    tags: Option<Tags>,
    /// Rank's stream that wrote the unfinished line at the cursor of the terminal.
    line_of: Option<StreamId>,
    /// Buffer that is reused for each write.
    line: Vec<u8>,
}

/// Stdout or stderr of this process.
struct OutputStream {
    /// `None` once a write has failed.
    outlet: Option<Arc<Outlet>>,
    is_terminal: bool,
    /// Whether tags have colours.
    coloured: bool,
}

impl OutputStream {
    fn stdout() -> OutputStream {
        OutputStream::new(&io::stdout(), AutoStream::choice(&io::stdout()))
    }

    fn stderr() -> OutputStream {
        OutputStream::new(&io::stderr(), AutoStream::choice(&io::stderr()))
    }

    /// Makes a stream from a duplicate of the descriptor, because the standard handles buffer by line.
    fn new(stream: &(impl AsFd + IsTerminal), colours: ColorChoice) -> OutputStream {
        OutputStream {
            outlet: stream.as_fd().try_clone_to_owned().ok().map(Outlet::new),
            is_terminal: stream.is_terminal(),
            coloured: colours != ColorChoice::Never,
        }
    }

    /// Writes all of `data`. After an error nothing more is written.
    fn write(&mut self, data: &[u8]) -> io::Result<()> {
        let Some(outlet) = &self.outlet else { return Ok(()) };
        let written = outlet.write_all(data);
        if written.is_err() {
            self.outlet = None;
        }
        written
    }
}

impl Sink {
    /// Makes the writer, which writes stdout of ranks to `stdio`.
    pub(crate) fn new(tags: Option<Tags>, stdio: &Stdio) -> Sink {
        let stdout = match stdio {
            Stdio::Stdout => OutputStream::stdout(),
            Stdio::Stderr => OutputStream::stderr(),
            Stdio::Pipe(writer) => OutputStream::new(&writer.as_fd(), ColorChoice::Never),
        };
        let streams = PerStream { stdout, stderr: OutputStream::stderr() };
        Sink { streams, tags, line_of: None, line: Vec::new() }
    }

    /// Returns the files to which it writes.
    pub(super) fn outlets(&self) -> Vec<Arc<Outlet>> {
        [&self.streams.stdout, &self.streams.stderr]
            .into_iter()
            .filter_map(|stream| stream.outlet.clone())
            .collect()
    }

    pub(crate) fn tags(&mut self) -> Option<&mut Tags> {
        self.tags.as_mut()
    }

    /// Writes the whole of a chunk of one rank's output.
    pub(crate) fn write(
        &mut self,
        (source, stamp): (StreamId, Option<u64>),
        data: &[u8],
    ) -> io::Result<()> {
        let stream = self.streams.of(source.1);
        if stream.outlet.is_none() || data.is_empty() {
            return Ok(());
        }
        let (is_terminal, coloured) = (stream.is_terminal, stream.coloured);
        self.line.clear();
        // A terminal shows unfinished lines, such as prompts. Output of another rank then begins on the next
        // line.
        if is_terminal {
            if self.line_of.is_some_and(|begun| begun.0 != source.0) {
                self.end_unfinished();
            }
            self.line_of = (data.last() != Some(&b'\n')).then_some(source);
        }
        match &mut self.tags {
            Some(tags) => tags.apply((source, stamp), coloured, data, &mut self.line),
            None if !self.line.is_empty() => self.line.extend_from_slice(data),
            None => {}
        }
        let whole = if self.line.is_empty() { data } else { &self.line };
        self.streams.of_mut(source.1).write(whole)
    }

    /// Writes a whole line that several ranks have printed, behind these ranks.
    pub(crate) fn write_folded(
        &mut self,
        stream: Stream,
        ranks: &[Rank],
        line: &[u8],
    ) -> io::Result<()> {
        self.line.clear();
        if self.line_of.is_some() {
            self.end_unfinished();
        }
        let stream = self.streams.of_mut(stream);
        let tag = format!("[{}] ", text::ranges(ranks.iter().map(|rank| rank.0), MAX_RANGES));
        let bold = if stream.coloured { Style::new().bold() } else { Style::new() };
        self.line.extend_from_slice(format!("{bold}{tag}{bold:#}").as_bytes());
        self.line.extend_from_slice(line);
        stream.write(&self.line)
    }

    /// Ends the line at the cursor of the terminal, which its rank has not finished.
    fn end_unfinished(&mut self) {
        if let Some(begun) = self.line_of.take() {
            self.line.push(b'\n');
            self.tags.iter_mut().for_each(|tags| tags.newline_inserted(begun));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{PipeReader, Read};
    use std::os::fd::OwnedFd;

    /// Makes a sink that writes to a pipe as if it were a terminal, and the read end of the pipe.
    fn terminal() -> (PipeReader, Sink) {
        let (reader, writer) = io::pipe().unwrap();
        let stream = |writer: OwnedFd| OutputStream {
            outlet: Some(Outlet::new(writer)),
            is_terminal: true,
            coloured: false,
        };
        let stderr = stream(writer.try_clone().unwrap().into());
        let stdout = stream(writer.into());
        let streams = PerStream { stdout, stderr };
        (reader, Sink { streams, tags: None, line_of: None, line: Vec::new() })
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
        write(1, Stream::Stdout, "end ");
        sink.write_folded(Stream::Stdout, &[Rank(0), Rank(1), Rank(3)], b"same\n").unwrap();
        drop(sink);
        let mut all = String::new();
        reader.read_to_string(&mut all).unwrap();
        assert_eq!(all, "name? (hurry) \nother\nrest\nend \n[0-1,3] same\n");
    }
}
