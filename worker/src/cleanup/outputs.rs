//! Outputs of ranks whose agent has died: the guardian reads and drops them, so that SIGPIPE does not end a rank that
//! prints while it saves its work.
//!
//! The agent sends the reading end of each output over a socket. It stays open there, unread, as long as the guardian
//! has its end of the socket; the guardian takes it only when the agent is dead.

use crate::node::start_thread;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::read;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// Size of reads, in bytes: that of a pipe.
const PART: usize = 64 << 10;
/// Size of the stack of a thread that reads, in bytes.
const STACK: usize = 64 << 10;

/// Outputs that the agent has handed over. Agent and guardian have copies of both ends, since one forks the other.
#[derive(Clone, Debug)]
pub(crate) struct Outputs(Option<Arc<(UnixStream, UnixStream)>>);

impl Outputs {
    /// Makes the socket; without it nothing is handed over.
    pub(super) fn share() -> Outputs {
        Outputs(UnixStream::pair().ok().map(Arc::new))
    }

    /// Hands the reading end of an output over. Some hundreds fit; the rank of another is not protected.
    pub(crate) fn hand_over(&self, output: BorrowedFd<'_>) {
        let Some(socket) = &self.0 else { return };
        let outputs = [output];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut rights = SendAncillaryBuffer::new(&mut space);
        if rights.push(SendAncillaryMessage::ScmRights(&outputs)) {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            // An error means that there are too many.
            let _ = sendmsg(&socket.0, &[IoSlice::new(&[0])], &mut rights, flags);
        }
    }

    /// Takes everything that was handed over.
    pub(super) fn take(&self) -> Vec<OwnedFd> {
        let mut taken = Vec::new();
        let Some(socket) = &self.0 else { return taken };
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let (mut rights, mut byte) = (RecvAncillaryBuffer::new(&mut space), [0]);
            let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
            let bytes = &mut [IoSliceMut::new(&mut byte)];
            if recvmsg(&socket.1, bytes, &mut rights, flags).is_ok_and(|got| got.bytes > 0) {
                for message in rights.drain() {
                    if let RecvAncillaryMessage::ScmRights(outputs) = message {
                        taken.extend(outputs);
                    }
                }
            } else {
                return taken;
            }
        }
    }
}

/// Reads an output in a thread of its own until it ends, since a program may hold up whoever reads its pipe
/// ([`crate::ranks`], `stream_ends.rs`).
pub(super) fn drain(output: OwnedFd) {
    let output = Arc::new(output);
    let kept = Arc::clone(&output);
    let drain = move || {
        let mut part = vec![0; PART];
        loop {
            // A rank's output does not wait: the agent has made it so.
            let _ = poll(&mut [PollFd::new(output.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE);
            match read(output.as_fd(), &mut part) {
                Ok(1..) | Err(Errno::EAGAIN | Errno::EINTR) => {}
                _ => return,
            }
        }
    };
    if start_thread(Some(STACK), Box::new(drain)).is_err() {
        // There are too many threads. A rank that waits until its end may yet save its work; one whose output is closed dies.
        std::mem::forget(kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    use std::io::{self, Write};

    #[test]
    fn an_output_can_be_written_to_after_its_reader_has_gone() {
        let outputs = Outputs::share();
        let mut writers = Vec::new();
        for _ in 0..100 {
            let (reader, writer) = io::pipe().unwrap();
            fcntl(&reader, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
            outputs.hand_over(reader.as_fd());
            writers.push(writer);
        }
        let taken = outputs.take();
        assert_eq!((taken.len(), outputs.take().len()), (100, 0));
        taken.into_iter().for_each(drain);
        // More than a pipe holds: each write ends only if the output is read.
        let part = [b'x'; 100_000];
        writers.iter_mut().for_each(|writer| writer.write_all(&part).unwrap());
    }

    #[test]
    fn more_than_fit_are_left_out() {
        let outputs = Outputs::share();
        let (reader, _writer) = io::pipe().unwrap();
        (0..10_000).for_each(|_| outputs.hand_over(reader.as_fd()));
        let taken = outputs.take().len();
        assert!((50..10_000).contains(&taken), "{taken}");
    }
}
