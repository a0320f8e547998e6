//! Signals that rlaunch receives, as requests of the user.

use nix::sys::signal::Signal;
use rlaunch_console::messages;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use std::io;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

/// Request that the user makes by a signal to rlaunch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserSignal {
    /// End the job. A second request ends it without the grace period.
    End(Signal),
    /// Pass the signal on to every rank.
    Forward(Signal),
    /// Suspend the job and this process until SIGCONT.
    Suspend,
}

/// Streams of all signals that rlaunch handles. Install them before the first connection to a host, so that
/// no signal is missed.
pub struct Signals {
    interrupt: Stream,
    terminate: Stream,
    hangup: Stream,
    user1: Stream,
    user2: Stream,
    window: Stream,
    go_on: Stream,
    stop: Stream,
    /// Number of times that the user has asked to end the job, by a [`UserSignal::End`] of [`Signals::next`].
    pub(crate) end_requests: u32,
}

impl Signals {
    pub fn install() -> Result<Signals, Failed> {
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
            end_requests: 0,
        })
    }

    /// Waits for the next signal. Cancel-safe.
    pub async fn next(&mut self) -> UserSignal {
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
        if matches!(signal, UserSignal::End(_)) {
            self.end_requests += 1;
            messages::hurry();
        }
        signal
    }

    /// Counts the signals that have come and were not handled yet.
    pub(crate) async fn take_pending(&mut self) {
        loop {
            tokio::select! {
                biased;
                _ = self.next() => {}
                () = std::future::ready(()) => return,
            }
        }
    }

    /// Waits until the user asks to end the job, and returns the signal. Meanwhile, Ctrl-Z stops this process
    /// and other signals are ignored.
    pub async fn end(&mut self) -> Signal {
        loop {
            match self.next().await {
                UserSignal::End(signal) => return signal,
                UserSignal::Suspend => stop_process(),
                UserSignal::Forward(_) => {}
            }
        }
    }
}

/// Stops this process, as Ctrl-Z does by default. Returns when the process is continued.
pub(crate) fn stop_process() {
    // A process that may not be stopped goes on.
    let _ = nix::sys::signal::raise(Signal::SIGSTOP);
}
