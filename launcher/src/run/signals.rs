//! Signals of the user, as events.

use nix::sys::signal::Signal;
use rlaunch_console::exit::Exit;
use rlaunch_console::messages::Failed;
use std::io;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

/// Request that a signal to rlaunch stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UserSignal {
    /// End the job; a second one ends it without the grace period.
    End(Signal),
    /// Pass the signal on to every rank.
    Forward(Signal),
    /// Stop until SIGCONT, as Ctrl-Z does.
    Suspend,
}

/// Streams of all signals that rlaunch handles. Install them before the first host is reached, so
/// that none is missed.
pub(crate) struct Signals {
    interrupt: Stream,
    terminate: Stream,
    hangup: Stream,
    user1: Stream,
    user2: Stream,
    window: Stream,
    go_on: Stream,
    stop: Stream,
    /// Whether [`Signals::next`] has returned an [`UserSignal::End`].
    end_requested: bool,
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
            end_requested: false,
        })
    }

    /// Waits for the next signal. Cancel-safe.
    pub(crate) async fn next(&mut self) -> UserSignal {
        let signal = tokio::select! {
            _ = self.interrupt.recv() => UserSignal::End(Signal::SIGINT),
            _ = self.terminate.recv() => UserSignal::End(Signal::SIGTERM),
            _ = self.hangup.recv() => UserSignal::End(Signal::SIGHUP),
            _ = self.user1.recv() => UserSignal::Forward(Signal::SIGUSR1),
            _ = self.user2.recv() => UserSignal::Forward(Signal::SIGUSR2),
            _ = self.window.recv() => UserSignal::Forward(Signal::SIGWINCH),
            _ = self.go_on.recv() => UserSignal::Forward(Signal::SIGCONT),
            _ = self.stop.recv() => UserSignal::Suspend,
        };
        self.end_requested |= matches!(signal, UserSignal::End(_));
        signal
    }

    /// Whether the user has ever asked for an end.
    pub(crate) fn end_was_requested(&self) -> bool {
        self.end_requested
    }

    /// Waits until the user asks for an end, and returns the signal. Other signals have their default
    /// effect or none.
    pub(crate) async fn end(&mut self) -> Signal {
        loop {
            match self.next().await {
                UserSignal::End(signal) => return signal,
                UserSignal::Suspend => stop_process(),
                UserSignal::Forward(_) => {}
            }
        }
    }
}

/// Stops this process as the terminal's Ctrl-Z would have; returns when it is continued.
pub(crate) fn stop_process() {
    // If the process may not be stopped, it simply goes on.
    let _ = nix::sys::signal::raise(Signal::SIGSTOP);
}
