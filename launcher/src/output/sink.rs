//! This process's own stdout and stderr, and the tags in front of lines.

use super::Source;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rlaunch_bootstrap::wire::Stream;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;

/// Writes to the two streams, unbuffered.
pub(crate) struct Sink {
    stdout: Option<File>,
    stderr: Option<File>,
    tags: Option<Tags>,
}

/// Tags by rank, and which streams are in the middle of a line.
struct Tags {
    by_rank: Vec<String>,
    unfinished: Vec<Source>,
    line: Vec<u8>,
}

impl Sink {
    /// With `aside`, both go to stderr.
    pub(crate) fn new(tags: Option<Vec<String>>, aside: bool) -> Sink {
        // Duplicates, because the standard handles buffer by line.
        let own = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned().ok().map(File::from);
        Sink {
            stdout: if aside { own(io::stderr().as_fd()) } else { own(io::stdout().as_fd()) },
            stderr: own(io::stderr().as_fd()),
            tags: tags.map(|by_rank| Tags { by_rank, unfinished: vec![], line: vec![] }),
        }
    }

    /// Writes a piece of one rank's output, all of it.
    pub(crate) fn write(&mut self, source: Source, data: &[u8]) -> io::Result<()> {
        let data = match &mut self.tags {
            Some(tags) => tags.apply(source, data),
            None => data,
        };
        let file = match source.1 {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        };
        // A stream that failed once is not written again.
        let Some(open) = file else { return Ok(()) };
        let written = write_all(open, data);
        if written.is_err() {
            *file = None;
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

impl Tags {
    fn apply(&mut self, source: Source, data: &[u8]) -> &[u8] {
        self.line.clear();
        let tag = self.by_rank.get(source.0.index()).map_or("", String::as_str);
        let begun = self.unfinished.iter().position(|&s| s == source);
        let mut at_start = begun.is_none();
        for line in data.split_inclusive(|&byte| byte == b'\n') {
            if at_start {
                self.line.extend_from_slice(tag.as_bytes());
            }
            self.line.extend_from_slice(line);
            at_start = line.last() == Some(&b'\n');
        }
        match begun {
            Some(at) if at_start => {
                self.unfinished.swap_remove(at);
            }
            None if !at_start => self.unfinished.push(source),
            _ => {}
        }
        &self.line
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_bootstrap::id::Rank;

    #[test]
    fn every_line_is_tagged_once() {
        let mut tags = Tags { by_rank: vec!["[0,a] ".into()], unfinished: vec![], line: vec![] };
        let out = (Rank(0), Stream::Stdout);
        assert_eq!(tags.apply(out, b"one\ntwo\nthr"), b"[0,a] one\n[0,a] two\n[0,a] thr");
        assert_eq!(tags.apply(out, b"ee\n"), b"ee\n");
        assert_eq!(tags.apply(out, b"\n"), b"[0,a] \n");
    }
}
