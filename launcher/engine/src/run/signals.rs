//! Signals that rlaunch receives, as requests of the user.

use nix::sys::signal::{Signal, killpg, raise};
use nix::unistd::Pid;
use rlaunch_bootstrap::job::TerminalSize;
use rlaunch_console::signals::EndSignals;
use rlaunch_console::{messages, terminal};
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

/// Least time between two Ctrl-C that count as two requests. One that a wrapper or the shell of a terminal that closes
/// passes on comes as often as there are ways to rlaunch.
const MIN_REQUEST_GAP: Duration = Duration::from_millis(500);

/// Time in which what agents are told of a stop is on its way, before this process stops.
const TELLING: Duration = Duration::from_millis(100);

/// Whether SIGHUP asks for nothing any more.
static HANGUPS_IGNORED: AtomicBool = AtomicBool::new(false);
/// Process groups that stand still while this process does.
static COMPANIONS: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

/// Ignores SIGHUP from now on, since this process has left its terminal.
pub(crate) fn ignore_hangups() {
    HANGUPS_IGNORED.store(true, Ordering::Relaxed);
}

/// Request that the user makes by a signal to rlaunch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserSignal {
    /// End the job. A second request, which is a Ctrl-C, ends it without the grace period.
    End(Signal),
    /// Pass the signal on to every rank.
    Forward(Signal),
    /// Tell every rank that the user's terminal has this size.
    Resize(TerminalSize),
    /// Suspend the job and this process until SIGCONT.
    Suspend,
}

/// Streams of all signals that rlaunch handles. Install them before the first connection to a host, so that
/// no signal is missed.
pub struct Signals {
    source: Source,
    requests: Requests,
}

enum Source {
    Process(Streams),
    #[cfg(test)]
    Script(tests::Script),
}

struct Streams {
    ends: EndSignals,
    user1: Stream,
    user2: Stream,
    window: Stream,
    go_on: Stream,
    stop: Stream,
}

/// Requests of the user to end the job.
#[derive(Debug, Default)]
struct Requests {
    count: u32,
    last: Option<Instant>,
}

impl Requests {
    /// Tells whether `signal` is a request, and counts it then: the first signal is one, later ones if the user
    /// presses Ctrl-C again.
    fn count_if_request(&mut self, signal: Signal, now: Instant) -> bool {
        let is_request = self.last.is_none_or(|last| {
            signal == Signal::SIGINT && now.saturating_duration_since(last) >= MIN_REQUEST_GAP
        });
        if is_request {
            self.count += 1;
            self.last = Some(now);
        }
        is_request
    }
}

impl Signals {
    pub fn install() -> Result<Signals, Failed> {
        let streams = Streams::open()
            .map_err(|error| Failed::new(Exit::BUG, format!("cannot catch signals: {error}")))?;
        Ok(Signals { source: Source::Process(streams), requests: Requests::default() })
    }

    /// Makes signals that come from a test, by the sender.
    #[cfg(test)]
    pub(crate) fn scripted() -> (tokio::sync::mpsc::UnboundedSender<UserSignal>, Signals) {
        let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
        let source = Source::Script(tests::Script::new(receiver));
        (sender, Signals { source, requests: Requests::default() })
    }

    /// Returns how often the user has asked to end the job, by a [`UserSignal::End`] of [`Signals::next`].
    pub(crate) fn end_requests(&self) -> u32 {
        self.requests.count
    }

    /// Waits for the next signal that asks for something. Cancel-safe.
    pub async fn next(&mut self) -> UserSignal {
        loop {
            let signal = self.source.receive().await;
            let UserSignal::End(end) = signal else { return signal };
            if end == Signal::SIGHUP && HANGUPS_IGNORED.load(Ordering::Relaxed) {
                continue;
            }
            if self.requests.count_if_request(end, Instant::now()) {
                messages::hurry_last_messages();
                return signal;
            }
        }
    }

    /// Counts the requests to end the job that have come and were not taken; drops other signals.
    pub(crate) async fn count_pending(&mut self) {
        loop {
            tokio::select! {
                // What has come is looked at before the branch that is always ready.
                biased;
                _ = self.next() => {}
                () = std::future::ready(()) => return,
            }
        }
    }

    /// Stops this process as Ctrl-Z does, a moment later, so that what agents are told of it reaches them. Returns when the
    /// process is continued, and does not stop it if that happens first.
    pub(crate) async fn suspend(&mut self) {
        self.stop_after(TELLING).await;
    }

    /// Stops this process as Ctrl-Z does, unless it was continued since the user has asked for that.
    pub(crate) async fn stop(&mut self) {
        self.stop_after(Duration::ZERO).await;
    }

    async fn stop_after(&mut self, time: Duration) {
        tokio::select! {
            biased;
            () = self.source.continued() => {}
            () = tokio::time::sleep(time) => self.source.stop(),
        }
    }

    /// Waits until the user asks to end the job, and returns the signal. Meanwhile, Ctrl-Z stops this process
    /// and other signals are ignored.
    pub async fn end(&mut self) -> Signal {
        loop {
            match self.next().await {
                UserSignal::End(signal) => return signal,
                UserSignal::Suspend => self.suspend().await,
                UserSignal::Forward(_) | UserSignal::Resize(_) => {}
            }
        }
    }
}

impl Source {
    async fn receive(&mut self) -> UserSignal {
        match self {
            Source::Process(streams) => streams.receive().await,
            #[cfg(test)]
            Source::Script(script) => script.receive().await,
        }
    }

    /// Waits until this process is continued. Cancel-safe.
    async fn continued(&mut self) {
        match self {
            Source::Process(streams) => streams.continued().await,
            #[cfg(test)]
            Source::Script(script) => script.continued().await,
        }
    }

    fn stop(&mut self) {
        match self {
            Source::Process(_) => stop_process(),
            #[cfg(test)]
            Source::Script(script) => script.stops += 1,
        }
    }
}

impl Streams {
    fn open() -> io::Result<Streams> {
        Ok(Streams {
            ends: EndSignals::install()?,
            user1: signal(SignalKind::user_defined1())?,
            user2: signal(SignalKind::user_defined2())?,
            window: signal(SignalKind::window_change())?,
            go_on: signal(SignalKind::from_raw(Signal::SIGCONT as i32))?,
            stop: signal(SignalKind::from_raw(Signal::SIGTSTP as i32))?,
        })
    }

    async fn receive(&mut self) -> UserSignal {
        tokio::select! {
            biased;
            end = self.ends.next() => {
                if matches!(end, Signal::SIGINT | Signal::SIGQUIT) {
                    messages::end_line_of_key();
                }
                UserSignal::End(end)
            }
            _ = self.user1.recv() => UserSignal::Forward(Signal::SIGUSR1),
            _ = self.user2.recv() => UserSignal::Forward(Signal::SIGUSR2),
            _ = self.window.recv() => {
                messages::redraw();
                // A batch system may send it without a terminal.
                let size = terminal::size().map(UserSignal::Resize);
                size.unwrap_or(UserSignal::Forward(Signal::SIGWINCH))
            }
            _ = self.go_on.recv() => {
                self.revoke_stop();
                UserSignal::Forward(Signal::SIGCONT)
            }
            _ = self.stop.recv() => UserSignal::Suspend,
        }
    }

    async fn continued(&mut self) {
        self.go_on.recv().await;
        self.revoke_stop();
    }

    /// Drops a SIGTSTP that has come together with a SIGCONT: which was the last is not known, and a process that is to go on
    /// may not stand still for ever.
    fn revoke_stop(&mut self) {
        let _ = self.stop.poll_recv(&mut Context::from_waker(Waker::noop()));
    }
}

/// Makes the error of what a signal has ended. `rest` follows the signal in its message.
#[must_use]
pub fn ended_by(signal: Signal, rest: &str) -> Failed {
    let hint =
        "rlaunch has used the CPU time that a process may use here: `ulimit -t` shows and sets it";
    let hint = (signal == Signal::SIGXCPU).then_some(hint);
    Failed::new(Exit::signal(signal as i32), format!("ended by {signal}{rest}")).hint(hint)
}

/// Stops this process and its companions, as Ctrl-Z does by default. Returns when the process is continued, and so are they.
fn stop_process() {
    rlaunch_console::footer::erase();
    signal_companions(Signal::SIGSTOP);
    // A process that may not be stopped goes on.
    let _ = raise(Signal::SIGSTOP);
    signal_companions(Signal::SIGCONT);
}

fn signal_companions(signal: Signal) {
    for companion in companions().iter() {
        // Fails for one that has ended.
        let _ = killpg(*companion, signal);
    }
}

fn companions() -> MutexGuard<'static, Vec<Pid>> {
    COMPANIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Process group of a child, which Ctrl-Z at the terminal does not reach: it stands still while this process does, until this is
/// dropped. If this process dies meanwhile, the kernel continues the group with a SIGHUP, since nobody of the terminal's session
/// is left to do so.
#[derive(Debug)]
pub struct Companion(Pid);

impl Companion {
    /// Takes a child that leads its group and has not been waited for.
    pub fn new(child: u32) -> Companion {
        let group = Pid::from_raw(child.cast_signed());
        companions().push(group);
        Companion(group)
    }
}

impl Drop for Companion {
    fn drop(&mut self) {
        companions().retain(|group| *group != self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;
    use std::os::unix::process::CommandExt;
    use std::process::Command;
    use tokio::sync::mpsc::UnboundedReceiver;

    /// Signals that a test makes.
    pub(super) struct Script {
        signals: UnboundedReceiver<UserSignal>,
        /// Those that came before a SIGCONT that was waited for.
        before: VecDeque<UserSignal>,
        /// How often the process would have been stopped.
        pub(super) stops: usize,
    }

    impl Script {
        pub(super) fn new(signals: UnboundedReceiver<UserSignal>) -> Script {
            Script { signals, before: VecDeque::new(), stops: 0 }
        }

        pub(super) async fn receive(&mut self) -> UserSignal {
            match self.before.pop_front() {
                Some(signal) => signal,
                None => self.next().await,
            }
        }

        async fn next(&mut self) -> UserSignal {
            match self.signals.recv().await {
                Some(signal) => signal,
                None => std::future::pending().await,
            }
        }

        pub(super) async fn continued(&mut self) {
            loop {
                match self.next().await {
                    UserSignal::Forward(Signal::SIGCONT) => return,
                    other => self.before.push_back(other),
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_is_continued_before_it_has_stopped_goes_on() {
        let (user, mut signals) = Signals::scripted();
        let stops = |signals: &Signals| match &signals.source {
            Source::Script(script) => script.stops,
            Source::Process(_) => unreachable!("the signals are scripted"),
        };
        let other = UserSignal::Forward(Signal::SIGUSR1);
        for expected in [0, 1] {
            user.send(other).unwrap();
            if expected == 0 {
                user.send(UserSignal::Forward(Signal::SIGCONT)).unwrap();
            }
            signals.suspend().await;
            assert_eq!((stops(&signals), signals.next().await), (expected, other));
        }
        user.send(UserSignal::Forward(Signal::SIGCONT)).unwrap();
        signals.stop().await;
        assert_eq!(stops(&signals), 1);
        signals.stop().await;
        assert_eq!(stops(&signals), 2);
    }

    #[tokio::test]
    async fn a_stop_that_comes_together_with_a_resume_is_revoked() {
        // The second ones show when signals have come.
        let (mut streams, mut seen) = (Streams::open().unwrap(), Streams::open().unwrap());
        for is_suspending in [false, true] {
            raise(Signal::SIGTSTP).unwrap();
            raise(Signal::SIGCONT).unwrap();
            seen.stop.recv().await;
            seen.go_on.recv().await;
            if is_suspending {
                streams.continued().await;
            } else {
                assert_eq!(streams.receive().await, UserSignal::Forward(Signal::SIGCONT));
            }
            tokio::select! {
                biased;
                other = streams.receive() => panic!("{other:?} in {is_suspending}"),
                () = std::future::ready(()) => {}
            }
        }
        raise(Signal::SIGTSTP).unwrap();
        assert_eq!(streams.receive().await, UserSignal::Suspend);
    }

    /// Tells for each signal, with its time in milliseconds, whether it is a request.
    fn requests(signals: &[(Signal, u64)]) -> Vec<bool> {
        let (mut requests, begin) = (Requests::default(), Instant::now());
        let mut count = |&(signal, at): &(Signal, u64)| {
            requests.count_if_request(signal, begin + Duration::from_millis(at))
        };
        signals.iter().map(&mut count).collect()
    }

    #[test]
    fn companions_stand_still_as_long_as_this_process() {
        let mut sleep = Command::new("sleep");
        let mut child = sleep.arg("1000").process_group(0).spawn().unwrap();
        let state = || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
            stat.rsplit_once(") ").unwrap().1.chars().next().unwrap()
        };
        let companion = Companion::new(child.id());
        signal_companions(Signal::SIGSTOP);
        while state() != 'T' {
            std::thread::yield_now();
        }
        signal_companions(Signal::SIGCONT);
        while state() == 'T' {
            std::thread::yield_now();
        }
        drop(companion);
        assert!(!companions().contains(&Pid::from_raw(child.id().cast_signed())));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_second_ctrl_c_is_a_second_request() {
        use Signal::SIGINT;
        assert_eq!(requests(&[(SIGINT, 0), (SIGINT, 500), (SIGINT, 1100)]), [true; 3]);
        assert_eq!(requests(&[(SIGINT, 0), (SIGINT, 10), (SIGINT, 600)]), [true, false, true]);
        assert_eq!(requests(&[(Signal::SIGTERM, 0), (SIGINT, 700)]), [true; 2]);
    }

    #[test]
    fn what_is_passed_on_is_one_request() {
        use Signal::{SIGHUP, SIGINT, SIGTERM};
        // A terminal that closes: the kernel and the shell send it.
        assert_eq!(requests(&[(SIGHUP, 0), (SIGHUP, 3)]), [true, false]);
        // Ctrl-C, which a program that has started rlaunch follows up with terminate().
        assert_eq!(requests(&[(SIGINT, 0), (SIGTERM, 900)]), [true, false]);
        assert_eq!(requests(&[(SIGTERM, 0), (SIGTERM, 5000)]), [true, false]);
    }

    #[test]
    fn a_limit_of_cpu_time_is_named() {
        let failed = ended_by(Signal::SIGXCPU, " before any rank was started");
        assert_eq!(failed.exit, Exit(152));
        assert_eq!(failed.message, "ended by SIGXCPU before any rank was started");
        assert!(failed.hints[0].contains("`ulimit -t`"), "{:?}", failed.hints);
        assert!(ended_by(Signal::SIGTERM, "").hints.is_empty());
    }
}
