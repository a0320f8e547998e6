//! The user's signals as events.

use nix::sys::signal::Signal;
use rlaunch_console::exit::Exit;
use rlaunch_console::messages::Failed;
use std::io;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

/// What a signal to rlaunch asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// End the job; a second time, at once.
    End(Signal),
    /// Pass it on to every rank.
    Forward(Signal),
    /// Stop until CONT, as Ctrl-Z does.
    Suspend,
}

/// Installed before the first host is reached, so that none is missed.
pub(crate) struct Signals {
    interrupt: Stream,
    terminate: Stream,
    hangup: Stream,
    user1: Stream,
    user2: Stream,
    window: Stream,
    go_on: Stream,
    stop: Stream,
    /// Somebody was told that the user wants an end.
    has_asked_to_end: bool,
}

impl Signals {
    pub(crate) fn install() -> Result<Signals, Failed> {
        Signals::streams()
            .map_err(|error| Failed::new(Exit::BUG, format!("cannot catch signals: {error}")))
    }

    fn streams() -> io::Result<Signals> {
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
            user1: signal(SignalKind::user_defined1())?,
            user2: signal(SignalKind::user_defined2())?,
            window: signal(SignalKind::window_change())?,
            go_on: signal(SignalKind::from_raw(Signal::SIGCONT as i32))?,
            stop: signal(SignalKind::from_raw(Signal::SIGTSTP as i32))?,
            has_asked_to_end: false,
        })
    }

    /// The next signal. Safe to cancel.
    pub(crate) async fn next(&mut self) -> Asked {
        let asked = tokio::select! {
            _ = self.interrupt.recv() => Asked::End(Signal::SIGINT),
            _ = self.terminate.recv() => Asked::End(Signal::SIGTERM),
            _ = self.hangup.recv() => Asked::End(Signal::SIGHUP),
            _ = self.user1.recv() => Asked::Forward(Signal::SIGUSR1),
            _ = self.user2.recv() => Asked::Forward(Signal::SIGUSR2),
            _ = self.window.recv() => Asked::Forward(Signal::SIGWINCH),
            _ = self.go_on.recv() => Asked::Forward(Signal::SIGCONT),
            _ = self.stop.recv() => Asked::Suspend,
        };
        self.has_asked_to_end |= matches!(asked, Asked::End(_));
        asked
    }

    /// Whether any of them has been a wish to end.
    pub(crate) fn have_asked_to_end(&self) -> bool {
        self.has_asked_to_end
    }

    /// Waits until the user wants the job to end.
    pub(crate) async fn end(&mut self) -> Signal {
        loop {
            match self.next().await {
                Asked::End(signal) => return signal,
                Asked::Suspend => stop_here(),
                Asked::Forward(_) => {}
            }
        }
    }
}

/// Stops this process as the terminal's Ctrl-Z would have; returns when it is continued.
pub(crate) fn stop_here() {
    // Nothing is to be done about a refusal: the process then simply goes on.
    let _ = nix::sys::signal::raise(Signal::SIGSTOP);
}
