//! The user's signals as events.

use nix::sys::signal::Signal;
use std::io;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

/// What a signal to rlaunch asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// End the job; a second time, at once.
    End(Signal),
    /// Pass it on to every rank.
    Forward(Signal),
}

/// Installed before the first host is reached, so that none is missed.
pub(crate) struct Signals {
    interrupt: Stream,
    terminate: Stream,
    hangup: Stream,
    user1: Stream,
    user2: Stream,
    window: Stream,
}

impl Signals {
    pub(crate) fn install() -> io::Result<Signals> {
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
            user1: signal(SignalKind::user_defined1())?,
            user2: signal(SignalKind::user_defined2())?,
            window: signal(SignalKind::window_change())?,
        })
    }

    /// The next signal. Safe to cancel.
    pub(crate) async fn next(&mut self) -> Asked {
        tokio::select! {
            _ = self.interrupt.recv() => Asked::End(Signal::SIGINT),
            _ = self.terminate.recv() => Asked::End(Signal::SIGTERM),
            _ = self.hangup.recv() => Asked::End(Signal::SIGHUP),
            _ = self.user1.recv() => Asked::Forward(Signal::SIGUSR1),
            _ = self.user2.recv() => Asked::Forward(Signal::SIGUSR2),
            _ = self.window.recv() => Asked::Forward(Signal::SIGWINCH),
        }
    }

    /// Waits until the user wants the job to end.
    pub(crate) async fn end(&mut self) -> Signal {
        loop {
            if let Asked::End(signal) = self.next().await {
                return signal;
            }
        }
    }
}
