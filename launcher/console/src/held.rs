//! Standard streams that another process holds. splice(2), as io::copy of Rust uses it, keeps the lock of a pipe while it
//! waits for a socket. Whoever reads, writes or closes the pipe meanwhile sleeps in the kernel, and no signal wakes him. So
//! a process that has such a stream cannot end before the other one goes on.

use crate::messages;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{Pid, gettid};
use rustix::io::ioctl_fionread;
use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;
use std::{io, thread};

/// Time after which a thread that still waits for a pipe is looked at.
const PATIENCE: Duration = Duration::from_millis(500);
/// Number of such times after which a thread that got no processor is given up, and nothing is known.
const LOOKS: u32 = 10;

/// Says so if this process cannot end because another one holds its stdin or stdout. To be called at its end.
pub fn say_who_holds_streams() {
    let streams =
        [("standard input", pipe_at(&io::stdin())), ("standard output", pipe_at(&io::stdout()))];
    let (names, pipes): (Vec<_>, Vec<_>) =
        streams.into_iter().filter_map(|(name, pipe)| Some((name, pipe?))).unzip();
    let links = pipes.iter().map(|pipe| format!("/proc/self/fd/{}", pipe.as_raw_fd()));
    let links: Vec<_> = links.map(|link| fs::read_link(link).unwrap_or_default()).collect();
    if let Some(held) = first_held(pipes) {
        let who = users_of(&links[held]).join(" or ");
        messages::warn(&format!(
            "{} is a pipe that another process holds in the kernel, as splice(2) does while it waits; rlaunch is done, and \
             ends when {} goes on or ends",
            names[held],
            if who.is_empty() { "that process" } else { &who }
        ));
    }
}

/// Returns the stream if it is a pipe whose other end is open.
fn pipe_at(stream: &impl AsFd) -> Option<File> {
    let file = File::from(stream.as_fd().try_clone_to_owned().ok()?);
    let is_pipe = file.metadata().is_ok_and(|about| about.file_type().is_fifo());
    let mut other_end = [PollFd::new(file.as_fd(), PollFlags::empty())];
    // Errors and hangups are reported whatever is asked for, and nothing locks the pipe for that.
    let is_alone = poll(&mut other_end, PollTimeout::ZERO) != Ok(0);
    (is_pipe && !is_alone).then_some(file)
}

/// Returns the index of the first pipe that is held.
fn first_held(pipes: Vec<File>) -> Option<usize> {
    if pipes.is_empty() {
        return None;
    }
    let (count, (tell, told), (started, thread)) = (pipes.len(), channel(), channel());
    // The thread stays behind in the kernel at a pipe that is held. Without one nothing is known.
    let try_locks = move || {
        let _ = started.send(gettid());
        for pipe in pipes {
            let _ = ioctl_fionread(&pipe);
            if tell.send(()).is_err() {
                return;
            }
        }
    };
    drop(thread::Builder::new().spawn(try_locks));
    let thread = thread.recv_timeout(PATIENCE * LOOKS).ok()?;
    for pipe in 0..count {
        if is_thread_held(&told, thread)? {
            return Some(pipe);
        }
    }
    None
}

/// Waits for the next pipe, and returns whether the thread sleeps in the kernel instead; `None` if that is not known, as
/// on a busy machine, where it may get no processor.
fn is_thread_held(told: &Receiver<()>, thread: Pid) -> Option<bool> {
    for _ in 0..LOOKS {
        match told.recv_timeout(PATIENCE) {
            Err(RecvTimeoutError::Timeout) if is_asleep(thread) => return Some(true),
            Err(RecvTimeoutError::Timeout) => {}
            told => return told.ok().map(|()| false),
        }
    }
    None
}

/// Returns whether a thread of this process is in a sleep that no signal ends.
fn is_asleep(thread: Pid) -> bool {
    is_in_state(thread, 'D')
}

fn is_in_state(thread: Pid, expected: char) -> bool {
    let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with(expected))
}

/// Returns names of other processes that have a pipe open, by what their links to it say.
fn users_of(pipe: &Path) -> Vec<String> {
    let numbers = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let has_pipe = |number: &u32| {
        let files = fs::read_dir(format!("/proc/{number}/fd")).into_iter().flatten().flatten();
        files.filter_map(|file| fs::read_link(file.path()).ok()).any(|link| link == pipe)
    };
    let others = numbers.filter(|number| *number != std::process::id()).filter(has_pipe);
    let name = |number| {
        let name = fs::read_to_string(format!("/proc/{number}/comm")).unwrap_or_default();
        format!("{} (pid {number})", name.trim_end())
    };
    others.map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::process::{Command, Stdio};

    #[test]
    fn a_pipe_that_is_held_is_told_from_one_that_is_not() {
        let ((free, mut filled), (reader, writer)) = (io::pipe().unwrap(), io::pipe().unwrap());
        filled.write_all(b"x").unwrap();
        let (socket, mut far) = UnixStream::pair().unwrap();
        let (started, copier) = channel();
        let copying = thread::spawn(move || {
            started.send(gettid()).unwrap();
            // Its copy loop of files, pipes and sockets is splice(2).
            let (mut from, mut to) =
                (File::from(OwnedFd::from(socket)), File::from(OwnedFd::from(writer)));
            io::copy(&mut from, &mut to)
        });
        far.write_all(b"y").unwrap();
        let copier = copier.recv().unwrap();
        // Once the byte is in the pipe, the thread waits for more, and for nothing else.
        let mut filled = [PollFd::new(reader.as_fd(), PollFlags::POLLIN)];
        assert_eq!(poll(&mut filled, 60_000_u16), Ok(1));
        while !is_in_state(copier, 'S') {
            assert!(!copying.is_finished(), "the copy has ended");
            thread::yield_now();
        }
        let fds = |pipe: &io::PipeReader| pipe_at(pipe).unwrap();
        assert_eq!(first_held(vec![fds(&free), fds(&reader)]), Some(1));
        assert_eq!(first_held(vec![fds(&free)]), None);
        drop(far);
        assert_eq!(copying.join().unwrap().unwrap(), 1);
        // The other end is closed, but for children of other tests for a moment.
        while pipe_at(&reader).is_some() {
            thread::yield_now();
        }
        assert!(pipe_at(&File::open("/dev/null").unwrap()).is_none());
    }

    #[test]
    fn processes_at_the_other_end_of_a_pipe_are_named() {
        let mut cat = Command::new("cat");
        let mut cat = cat.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let pipe = cat.stdin.take().unwrap();
        let link = fs::read_link(format!("/proc/self/fd/{}", pipe.as_raw_fd())).unwrap();
        assert_eq!(users_of(&link), [format!("cat (pid {})", cat.id())]);
        drop(pipe);
        assert!(cat.wait().unwrap().success());
    }
}
