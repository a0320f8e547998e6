//! Writer to this process's own stdout and stderr.

use super::outlet::Outlet;
use super::rows::Row;
use super::tags::{Cursor, Tags};
use super::{PerStream, Stdio, StreamId};
use anstream::{AutoStream, ColorChoice};
use anstyle::Style;
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::protocol::control::Stream;
use rlaunch_console::{footer, terminal};
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
    /// Whether both streams lead to the same terminal, pipe or file. Then both count as stdout in `unfinished`.
    is_shared: bool,
    /// Unfinished lines at the ends of the streams.
    unfinished: PerStream<Option<Unfinished>>,
    /// Whether there are rows below the lines.
    has_rows: bool,
    /// Asks for the width of the terminal.
    columns: fn() -> Option<u16>,
    /// Buffer that is reused for each write.
    line: Vec<u8>,
}

/// Line that a rank has begun, by either of its streams.
#[derive(Clone, Copy)]
struct Unfinished {
    rank: Rank,
    cursor: Cursor,
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

    fn nowhere() -> OutputStream {
        OutputStream { outlet: None, is_terminal: false, coloured: false }
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
            Stdio::Nowhere => OutputStream::nowhere(),
        };
        let stderr = match stdio {
            Stdio::Nowhere => OutputStream::nowhere(),
            _ => OutputStream::stderr(),
        };
        Sink::with_streams(PerStream { stdout, stderr }, tags)
    }

    fn with_streams(streams: PerStream<OutputStream>, tags: Option<Tags>) -> Sink {
        let PerStream { stdout, stderr } = &streams;
        let is_same = match (&stdout.outlet, &stderr.outlet) {
            (Some(stdout), Some(stderr)) => stdout.is_same_file(stderr),
            _ => false,
        };
        // A terminal has several names.
        let is_shared = is_same || (stdout.is_terminal && stderr.is_terminal);
        let unfinished = PerStream { stdout: None, stderr: None };
        let columns = terminal::columns;
        Sink { streams, tags, is_shared, unfinished, has_rows: false, columns, line: Vec::new() }
    }

    pub(super) fn into_tags(self) -> Option<Tags> {
        self.tags
    }

    /// Returns the files to which it writes.
    pub(super) fn outlets(&self) -> Vec<Arc<Outlet>> {
        [&self.streams.stdout, &self.streams.stderr]
            .into_iter()
            .filter_map(|stream| stream.outlet.clone())
            .collect()
    }

    /// Tells whether both streams lead to the same place.
    pub(super) fn is_shared(&self) -> bool {
        self.is_shared
    }

    pub(crate) fn tags(&mut self) -> Option<&mut Tags> {
        self.tags.as_mut()
    }

    /// Writes the whole of a chunk of one rank's output, behind a newline if another rank's line is unfinished there.
    pub(crate) fn write(
        &mut self,
        ((rank, stream), stamp): (StreamId, Option<u64>),
        data: &[u8],
    ) -> io::Result<()> {
        self.erase_rows(stream)?;
        let place = self.unfinished_under(stream);
        let stream = self.streams.of_mut(stream);
        if stream.outlet.is_none() || data.is_empty() {
            return Ok(());
        }
        self.line.clear();
        let mut begun = self.unfinished.of_mut(place).take();
        if begun.is_some_and(|begun| begun.rank != rank) {
            self.line.push(b'\n');
            begun = None;
        }
        let cursor = Cursor::behind(data);
        if cursor != Cursor::LineStart {
            *self.unfinished.of_mut(place) = Some(Unfinished { rank, cursor });
        }
        let from = begun.map_or(Cursor::LineStart, |begun| begun.cursor);
        match self.tags.as_ref().filter(|tags| tags.are_shown(stream.is_terminal)) {
            Some(tags) if from == Cursor::LineStart && tags.would_break(data, self.columns) => {
                self.line.extend_from_slice(tags.heading(rank, stream.coloured).as_bytes());
                self.line.extend_from_slice(data);
            }
            Some(tags) => tags.apply((rank, stamp), stream.coloured, from, data, &mut self.line),
            None if !self.line.is_empty() => self.line.extend_from_slice(data),
            None => {}
        }
        stream.write(if self.line.is_empty() { data } else { &self.line })
    }

    /// Writes whole lines that several ranks have printed, each behind these ranks.
    pub(crate) fn write_folded(
        &mut self,
        stream: Stream,
        ranks: &[Rank],
        lines: &[u8],
    ) -> io::Result<()> {
        self.erase_rows(stream)?;
        self.line.clear();
        let place = self.unfinished_under(stream);
        if self.unfinished.of_mut(place).take().is_some() {
            self.line.push(b'\n');
        }
        let stream = self.streams.of_mut(stream);
        let ranges = text::ranges(ranks.iter().map(|rank| rank.0), MAX_RANGES);
        let bold = if stream.coloured { Style::new().bold() } else { Style::new() };
        let tag = match self.tags.as_ref().filter(|tags| tags.are_shown(stream.is_terminal)) {
            Some(tags) if tags.would_break(lines, self.columns) => {
                self.line.extend_from_slice(format!("{bold}[{ranges}]:{bold:#}\n").as_bytes());
                String::new()
            }
            Some(tags) => format!("{bold}{}{bold:#}", tags.of_several(&ranges)),
            None => format!("{bold}[{ranges}] {bold:#}"),
        };
        for line in lines.split_inclusive(|&byte| byte == b'\n') {
            self.line.extend_from_slice(tag.as_bytes());
            self.line.extend_from_slice(line);
        }
        stream.write(&self.line)
    }

    /// Draws rows below the lines, in place of those that are there. The last line must be finished, or there are none.
    pub(crate) fn draw(&mut self, rows: &[Row]) -> io::Result<()> {
        let is_at_line = self.unfinished.of(Stream::Stdout).is_none();
        if rows.is_empty() || !is_at_line || self.streams.stdout.outlet.is_none() {
            return self.erase_rows(Stream::Stdout);
        }
        let coloured = self.streams.stdout.coloured;
        let tags = self.tags.as_ref().filter(|tags| tags.are_shown(true));
        let line = |row: &Row| {
            let tag = tags.zip(row.rank).map(|(tags, rank)| tags.of_row(rank, coloured));
            format!("{}{}", tag.unwrap_or_default(), row.text)
        };
        let lines = rows.iter().map(line).collect();
        self.has_rows = true;
        footer::draw(lines, |bytes| self.streams.stdout.write(bytes))
    }

    /// Erases the rows, if what is written to this stream would stand behind them.
    fn erase_rows(&mut self, stream: Stream) -> io::Result<()> {
        if !self.has_rows || !self.streams.of(stream).is_terminal {
            return Ok(());
        }
        self.has_rows = false;
        footer::draw(Vec::new(), |bytes| self.streams.stdout.write(bytes))
    }

    /// Returns the stream under which `unfinished` has the line at the end of a stream.
    fn unfinished_under(&self, stream: Stream) -> Stream {
        if self.is_shared { Stream::Stdout } else { stream }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::output::bursts::{Bursts, ShownOutput};
    use crate::run::output::rows;
    use proptest::prelude::*;
    use rlaunch_plan::job::options::Folding;
    use rlaunch_plan::job::tag_pattern::LineOrigin;
    use std::io::{PipeReader, PipeWriter, Read, Seek};
    use std::time::{Duration, Instant};

    fn stream(writer: PipeWriter, is_terminal: bool) -> OutputStream {
        let outlet = Some(Outlet::new(writer.into()));
        OutputStream { outlet, is_terminal, coloured: false }
    }

    /// Makes a sink that writes to a pipe as if it were a terminal, and the read end of the pipe.
    fn terminal(tags: Option<Tags>) -> (PipeReader, Sink) {
        let (reader, writer) = io::pipe().unwrap();
        let stderr = stream(writer.try_clone().unwrap(), true);
        let stdout = stream(writer, true);
        (reader, Sink::with_streams(PerStream { stdout, stderr }, tags))
    }

    /// Makes a sink that writes to two pipes, or both streams to the first, and the read ends.
    fn pipes(is_shared: bool) -> ([PipeReader; 2], Sink) {
        let (out, stdout) = io::pipe().unwrap();
        let (err, stderr) = io::pipe().unwrap();
        let stderr = if is_shared { stdout.try_clone().unwrap() } else { stderr };
        let streams = PerStream { stdout: stream(stdout, false), stderr: stream(stderr, false) };
        ([out, err], Sink::with_streams(streams, None))
    }

    #[test]
    fn on_a_terminal_nobody_goes_on_in_anothers_line() {
        let (mut reader, mut sink) = terminal(None);
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

    /// Stdout and stderr of a rank go on in one line there, which has one tag.
    #[test]
    fn every_line_that_is_seen_has_a_tag() {
        let origin = |rank| LineOrigin { rank, host: "a".into(), local_rank: rank, pid: None };
        let tags = Tags::from_ranks("%r:".parse().unwrap(), vec![origin(0), origin(1)]);
        let (mut reader, mut sink) = terminal(Some(tags));
        let mut write = |rank: u32, stream, text: &str| {
            sink.write(((Rank(rank), stream), None), text.as_bytes()).unwrap();
        };
        write(0, Stream::Stdout, "half ");
        write(0, Stream::Stderr, "other\n");
        write(0, Stream::Stdout, "rest\n");
        write(0, Stream::Stderr, "5%\r");
        write(0, Stream::Stderr, "6%\r");
        write(1, Stream::Stdout, "line\r\n");
        write(0, Stream::Stderr, "7%\r");
        write(0, Stream::Stdout, "end\n");
        drop(sink);
        let mut all = String::new();
        reader.read_to_string(&mut all).unwrap();
        assert_eq!(all, "0:half other\n0:rest\n0:5%\r0:6%\r\n1:line\r\n0:7%\r0:end\n");
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

    #[test]
    fn a_table_that_tags_would_break_stands_below_its_host() {
        let origin = |rank| LineOrigin { rank, host: "a".into(), local_rank: rank, pid: None };
        let mut tags = Tags::short_from_ranks(vec![origin(0), origin(1)]);
        tags.need();
        let (mut reader, mut sink) = terminal(Some(tags));
        sink.columns = || Some(12);
        let mut write = |text: &str| {
            sink.write(((Rank(1), Stream::Stdout), None), text.as_bytes()).unwrap();
        };
        write("123456\n1\n");
        write("123456\n\u{1b}[1m1234567\u{1b}[0m\n");
        // One line alone is legible, and what is wider than the terminal breaks in any case.
        write("1234567\n");
        write("1\n1234567890123\n");
        sink.write_folded(Stream::Stdout, &[Rank(0), Rank(1)], b"1\n123456789012\n").unwrap();
        drop(sink);
        let mut all = String::new();
        reader.read_to_string(&mut all).unwrap();
        let expected = "1 a | 123456\n1 a | 1\n1 a:\n123456\n\u{1b}[1m1234567\u{1b}[0m\n\
                        1 a | 1234567\n1 a | 1\n1 a | 1234567890123\n[0-1]:\n1\n123456789012\n";
        assert_eq!(all, expected);
    }

    /// Bursts that are written to a file as if it were a terminal.
    struct Shown {
        bursts: Bursts,
        sink: Sink,
        now: Instant,
    }

    impl Shown {
        fn new(file: &std::fs::File) -> Shown {
            let origin =
                |rank| LineOrigin { rank, host: format!("h{rank}"), local_rank: 0, pid: None };
            let mut tags = Tags::short_from_ranks((0..3).map(origin).collect());
            tags.need();
            let stream = || {
                let outlet = Some(Outlet::new(file.try_clone().unwrap().into()));
                OutputStream { outlet, is_terminal: true, coloured: false }
            };
            let streams = PerStream { stdout: stream(), stderr: stream() };
            let is_terminal = PerStream { stdout: true, stderr: true };
            let bursts = Bursts::new(Some(Folding::None), 3, is_terminal, true).unwrap();
            let mut sink = Sink::with_streams(streams, Some(tags));
            sink.columns = || None;
            Shown { bursts, sink, now: Instant::now() }
        }

        fn look(&mut self) {
            for shown in self.bursts.take(self.now) {
                let ShownOutput::Plain { source, stamp, data } = shown else { panic!("{shown:?}") };
                self.sink.write((source, stamp), &data).unwrap();
            }
            if let Some(rows) = self.bursts.rows(self.now) {
                self.sink.draw(&rows).unwrap();
            }
        }

        fn wait(&mut self, time: Duration) {
            let until = self.now + time;
            while let Some(left) = self.bursts.timeout(self.now)
                && self.now + left <= until
            {
                self.now += left;
                self.look();
            }
            self.now = until;
        }
    }

    /// Returns the lines that a terminal of any size shows in the end.
    fn screen(shown: &str) -> Vec<String> {
        let (mut lines, mut line, mut column) = (vec![Vec::<char>::new()], 0_usize, 0_usize);
        let mut rest = shown;
        while let Some(c) = rest.chars().next() {
            let mut length = c.len_utf8();
            match c {
                '\r' => column = 0,
                '\n' => {
                    (line, column) = (line + 1, 0);
                    lines.resize(lines.len().max(line + 1), Vec::new());
                }
                '\u{1b}' => {
                    length = 1 + rest.find(|c: char| c.is_ascii_alphabetic()).unwrap();
                    match &rest[..length] {
                        "\u{1b}[J" => {
                            lines.truncate(line + 1);
                            lines[line].truncate(column);
                        }
                        "\u{1b}[?7l" | "\u{1b}[?7h" => {}
                        up => line -= up[2..length - 1].parse::<usize>().unwrap(),
                    }
                }
                c => {
                    let width = lines[line].len().max(column + 1);
                    lines[line].resize(width, ' ');
                    lines[line][column] = c;
                    column += 1;
                }
            }
            rest = &rest[length..];
        }
        lines.iter().map(|line| line.iter().collect::<String>().trim_end().to_owned()).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn a_terminal_shows_in_the_end_what_was_printed(
            steps in prop::collection::vec((0..3_u32, 0..8_usize, 0..9_u64), 0..60),
        ) {
            let flood = format!("flood {:060}\n", 7).repeat(300);
            let pieces =
                ["line\n", "a\nb\n", "half ", "\r 1%|#   |", "\r20%|##  |\r", "ü\r\n", "xyz\r", &flood[..]];
            let mut file = tempfile::tempfile().unwrap();
            let mut shown = Shown::new(&file);
            let mut printed = vec![String::new(); 3];
            for (rank, piece, wait) in steps {
                printed[rank as usize].push_str(pieces[piece]);
                let source = (Rank(rank), Stream::Stdout);
                shown.bursts.push(shown.now, (source, None), pieces[piece].as_bytes());
                shown.look();
                shown.wait(Duration::from_millis(60 * wait));
            }
            shown.bursts.show_all(shown.now);
            shown.look();
            shown.sink.draw(&[]).unwrap();
            let mut text = String::new();
            file.rewind().unwrap();
            file.read_to_string(&mut text).unwrap();
            let lines = screen(&text);
            for (rank, mut printed) in printed.into_iter().enumerate() {
                if !printed.is_empty() && !printed.ends_with('\n') {
                    printed.push('\n');
                }
                let settled = rows::settle(printed.as_bytes());
                let settled = String::from_utf8_lossy(&settled);
                let expected: Vec<&str> = settled.lines().map(str::trim_end).collect();
                let tag = format!("h{rank} | ");
                let of_rank = |line: &&String| line.starts_with(tag.trim_end());
                let seen = lines.iter().filter(of_rank).map(|line| line.get(tag.len()..).unwrap_or_default());
                prop_assert_eq!(seen.collect::<Vec<_>>(), expected);
            }
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
