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
    /// Whether both streams lead to the same terminal, pipe or file. Then both count as stdout in `line_of`.
    is_shared: bool,
    /// Ranks' streams that wrote the unfinished lines at the ends of the streams.
    line_of: PerStream<Option<StreamId>>,
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
        Sink::of(PerStream { stdout, stderr: OutputStream::stderr() }, tags)
    }

    fn of(streams: PerStream<OutputStream>, tags: Option<Tags>) -> Sink {
        let PerStream { stdout, stderr } = &streams;
        let is_same = match (&stdout.outlet, &stderr.outlet) {
            (Some(stdout), Some(stderr)) => stdout.is_same_file(stderr),
            _ => false,
        };
        // A terminal has several names.
        let is_shared = is_same || (stdout.is_terminal && stderr.is_terminal);
        let line_of = PerStream { stdout: None, stderr: None };
        Sink { streams, tags, is_shared, line_of, line: Vec::new() }
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

    /// Writes the whole of a chunk of one rank's output, behind a newline if another rank's line is unfinished there.
    pub(crate) fn write(
        &mut self,
        (source, stamp): (StreamId, Option<u64>),
        data: &[u8],
    ) -> io::Result<()> {
        let stream = self.streams.of(source.1);
        if stream.outlet.is_none() || data.is_empty() {
            return Ok(());
        }
        let coloured = stream.coloured;
        self.line.clear();
        let place = self.place(source.1);
        if self.line_of.of(place).is_some_and(|begun| begun.0 != source.0) {
            self.end_unfinished(place);
        }
        *self.line_of.of_mut(place) = (data.last() != Some(&b'\n')).then_some(source);
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
        self.end_unfinished(self.place(stream));
        let stream = self.streams.of_mut(stream);
        let tag = format!("[{}] ", text::ranges(ranks.iter().map(|rank| rank.0), MAX_RANGES));
        let bold = if stream.coloured { Style::new().bold() } else { Style::new() };
        self.line.extend_from_slice(format!("{bold}{tag}{bold:#}").as_bytes());
        self.line.extend_from_slice(line);
        stream.write(&self.line)
    }

    /// Returns the stream under which `line_of` has the line that is unfinished at the end of a stream.
    fn place(&self, stream: Stream) -> Stream {
        if self.is_shared { Stream::Stdout } else { stream }
    }

    /// Ends the line that a rank has not finished.
    fn end_unfinished(&mut self, place: Stream) {
        if let Some(begun) = self.line_of.of_mut(place).take() {
            self.line.push(b'\n');
            self.tags.iter_mut().for_each(|tags| tags.newline_inserted(begun));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::{PipeReader, PipeWriter, Read};

    fn stream(writer: PipeWriter, is_terminal: bool) -> OutputStream {
        let outlet = Some(Outlet::new(writer.into()));
        OutputStream { outlet, is_terminal, coloured: false }
    }

    /// Makes a sink that writes to a pipe as if it were a terminal, and the read end of the pipe.
    fn terminal() -> (PipeReader, Sink) {
        let (reader, writer) = io::pipe().unwrap();
        let stderr = stream(writer.try_clone().unwrap(), true);
        let stdout = stream(writer, true);
        (reader, Sink::of(PerStream { stdout, stderr }, None))
    }

    /// Makes a sink that writes to two pipes, or both streams to the first, and the read ends.
    fn pipes(is_shared: bool) -> ([PipeReader; 2], Sink) {
        let (out, stdout) = io::pipe().unwrap();
        let (err, stderr) = io::pipe().unwrap();
        let stderr = if is_shared { stdout.try_clone().unwrap() } else { stderr };
        let streams = PerStream { stdout: stream(stdout, false), stderr: stream(stderr, false) };
        ([out, err], Sink::of(streams, None))
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

    #[test]
    fn in_a_pipe_a_newline_precedes_the_output_of_another_rank() {
        for (is_shared, expected) in [(true, "half half\nwhole\nrest"), (false, "half rest")] {
            let ([mut out, _err], mut sink) = pipes(is_shared);
            let mut write = |rank: u32, stream, text: &str| {
                sink.write(((Rank(rank), stream), None), text.as_bytes()).unwrap();
            };
            write(0, Stream::Stdout, "half ");
            write(0, Stream::Stderr, "half");
            write(1, Stream::Stderr, "whole\n");
            write(0, Stream::Stdout, "rest");
            drop(sink);
            let mut all = String::new();
            out.read_to_string(&mut all).unwrap();
            assert_eq!(all, expected);
        }
    }

    proptest! {
        /// Each rank prints a letter of its own.
        #[test]
        fn ranks_are_kept_apart_by_newlines_and_nothing_else_is_added(
            pieces in prop::collection::vec((0..3_u8, any::<bool>(), 0..5_usize), 0..40),
            is_shared in any::<bool>(),
        ) {
            let (mut readers, mut sink) = pipes(is_shared);
            let mut printed = [Vec::new(), Vec::new()];
            for (rank, is_error, piece) in pieces {
                let letter = |byte: u8| if byte == b'x' { b'a' + rank } else { byte };
                let piece: Vec<u8> =
                    ["x", "x\n", "\rx", "x\r", "x\nx"][piece].bytes().map(letter).collect();
                let stream = if is_error { Stream::Stderr } else { Stream::Stdout };
                sink.write(((Rank(rank.into()), stream), None), &piece).unwrap();
                printed[usize::from(is_error && !is_shared)].push(piece);
            }
            drop(sink);
            for (reader, printed) in readers.iter_mut().zip(printed) {
                let mut shown = Vec::new();
                reader.read_to_end(&mut shown).unwrap();
                for line in shown.split(|&byte| byte == b'\n') {
                    let mut letters = line.iter().filter(|byte| byte.is_ascii_lowercase());
                    let first = letters.next();
                    prop_assert!(letters.all(|letter| Some(letter) == first), "{:?}", line);
                }
                // Newlines are only where one rank's piece does not end a line and another's follows.
                let mut rest = &shown[..];
                for piece in &printed {
                    rest = match rest.strip_prefix(&piece[..]) {
                        Some(behind) => behind,
                        None => rest.strip_prefix(&[&b"\n"[..], piece].concat()[..]).unwrap(),
                    };
                }
                prop_assert!(rest.is_empty());
            }
        }
    }
}
