//! Signals that tell this process to end, also if it was started with some of them blocked or ignored.

use nix::sys::signal::{SigSet, Signal};
use std::future::poll_fn;
use std::task::Poll;
use std::{fs, io};
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

/// Signals that tell this process to end: those of users, and others that would end it without a word. Of a Ctrl-C and the
/// signal by which a wrapper passes it on, the user's own, which is first here, is the cause that is named.
const ENDS: [Signal; 11] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGXCPU,
    Signal::SIGALRM,
    Signal::SIGVTALRM,
    Signal::SIGPROF,
    Signal::SIGIO,
    Signal::SIGPWR,
    Signal::SIGSTKFLT,
];

/// Signals that stay ignored if they were when this process was started: by nohup(1), or by a shell without job control,
/// which does not mean its commands in the background when the user presses Ctrl-C. SIGTERM is not one of them, so that
/// there is always a way to end in order.
const MAY_BE_IGNORED: [Signal; 3] = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT];

/// Takes back the mask of blocked signals that a parent has handed down: whoever sends a signal relies on it. To be called
/// before the first thread is started, which inherits the mask.
pub fn unblock_all() {
    // Fails for no set.
    let _ = SigSet::empty().thread_set_mask();
}

/// Streams of the signals that tell this process to end.
#[derive(Debug)]
pub struct EndSignals(Vec<(Signal, Stream)>);

impl EndSignals {
    /// Catches the signals, but those that are ignored on purpose. They are caught until the process ends.
    pub fn install() -> io::Result<EndSignals> {
        // Looked at before the streams are made, which replace what was there.
        let caught =
            ENDS.into_iter().filter(|end| !(MAY_BE_IGNORED.contains(end) && is_ignored(*end)));
        let streams = caught.map(|end| Ok((end, signal(SignalKind::from_raw(end as i32))?)));
        let streams: io::Result<Vec<_>> = streams.collect();
        streams.map(EndSignals)
    }

    /// Waits for the next one. Cancel-safe.
    pub async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            let mut streams = self.0.iter_mut();
            let came = streams
                .find_map(|(end, stream)| stream.poll_recv(context).is_ready().then_some(*end));
            came.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

/// Tells whether this process ignores a signal. Where the kernel does not say, it does not.
fn is_ignored(signal: Signal) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal as i32 - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::raise;

    #[test]
    fn ignored_signals_are_known() {
        assert!(!is_ignored(Signal::SIGUSR1));
        // The runtime of Rust programs ignores it.
        assert!(is_ignored(Signal::SIGPIPE));
    }

    #[test]
    fn a_signal_that_would_end_the_process_is_named() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut ends = EndSignals::install().unwrap();
            for signal in [Signal::SIGTERM, Signal::SIGXCPU, Signal::SIGALRM, Signal::SIGPWR] {
                raise(signal).unwrap();
                assert_eq!(ends.next().await, signal);
            }
        });
    }

    #[test]
    fn a_mask_that_was_handed_down_is_taken_back() {
        // The mask is the thread's own.
        SigSet::all().thread_block().unwrap();
        unblock_all();
        assert_eq!(SigSet::thread_get_mask().unwrap(), SigSet::empty());
    }
}
