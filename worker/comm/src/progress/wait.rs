//! Waiting for requests: spinning, sleeping, timeouts and cancellation.
//!
//! A wait first polls for about one wake-up latency: the time that a sleeping thread takes to
//! continue once data has arrived. Most answers arrive within this time. After it, the wait sleeps.
//! So a wait takes at most about twice as long as necessary, and a long wait does not keep the
//! awaited peer from using the processor. The answer of a rank that enters a collective at the same
//! time arrives within a fraction of a microsecond, so the first polls follow each other at once.
//!
//! Several threads may wait at once. One of them sleeps until a link has something to receive. The
//! others wait for the sleeping thread ([`Threads`](super::idle::Threads)), which wakes them when its
//! sleep ends.

use crate::progress::agent::{Agent, AgentEvent, WaitedTime};
use crate::progress::engine::{Engine, SlabKey, Status};
use crate::progress::idle::{Idle, LONGEST_SLEEP};
use crate::types::{Cause, CommError, LinkError, Operation, PeerName};
use rlaunch_client::Client;
use rlaunch_lock::{EngineGuard, EngineLock};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Duration after which a wait prints the ranks that it waits for.
const NOTICE_AFTER: Duration = Duration::from_secs(10);
/// Maximum time for sending goodbye packets when the last communicator of a process is dropped. A
/// peer that is stuck does not read them.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum time for which a cancellation waits for RDMA devices that still copy from or to the
/// memory of the cancelled request.
const DEVICE_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum length in bytes of each buffer (input, output and scratch memory) of a collective that
/// runs on its caller's stack.
pub(crate) const SHORT: usize = 1 << 10;

/// Rules for how a wait polls before it sleeps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpinPolicy {
    /// Number of polls without any progress, at the beginning of a wait, after which the wait polls
    /// again at once, without a pause of the processor.
    first_polls: u32,
    /// Number of consecutive polls without any progress after which a wait reads the clock. The
    /// first polls are not counted.
    polls: u32,
    /// Time without any progress for which a wait polls before it sleeps.
    spin: Duration,
    /// Whether a wait yields the processor between polls, since the awaited peer may need the same
    /// processor.
    yields: bool,
}

impl SpinPolicy {
    /// Value of [`SpinPolicy::first_polls`] of waits that neither yield nor sleep almost at once.
    /// That many polls of a link over shared memory take about as long as a message between two
    /// processors that share no cache.
    const FIRST_POLLS: u32 = 16;
    /// Value of [`SpinPolicy::polls`]. Reading the clock takes as long as polling a few links, so a
    /// wait does not read it after every poll.
    const POLLS: u32 = 8;

    /// Creates a policy that polls for `wake_latency` before a sleep. Ranks that may share
    /// processors set `yields`.
    pub(crate) fn new(wake_latency: Duration, yields: bool) -> SpinPolicy {
        let is_patient = !yields && !wake_latency.is_zero();
        let first_polls = if is_patient { SpinPolicy::FIRST_POLLS } else { 0 };
        SpinPolicy { first_polls, polls: SpinPolicy::POLLS, spin: wake_latency, yields }
    }

    /// Creates a policy that sleeps after a few polls.
    pub(crate) fn none() -> SpinPolicy {
        SpinPolicy::new(Duration::ZERO, false)
    }
}

/// Engine of a process with its lock, and everything that is needed to wait for messages.
#[derive(Debug)]
pub(crate) struct Progress {
    pub(crate) engine: EngineLock<Engine>,
    pub(crate) idle: Arc<dyn Idle>,
    /// Maximum length in bytes of each buffer of a collective that runs on its caller's stack:
    /// [`SHORT`], or less if a link sends only shorter messages eagerly, as one packet.
    pub(crate) short: usize,
    spin_policy: SpinPolicy,
    /// Time spent in waits, apart from their first polls.
    pub(crate) waited: WaitedTime,
    /// Time limit of each wait; `None` for no limit.
    timeout: Option<Duration>,
    /// Callback that runs after each sleep, without the engine lock. If it returns `true`, the wait
    /// fails.
    pub(crate) interrupted: OnceLock<fn() -> bool>,
    /// Connection to the agent; unset in a process that rlaunch did not start.
    agent: OnceLock<Agent>,
}

impl Progress {
    pub(crate) fn new(
        mut engine: Engine,
        idle: Arc<dyn Idle>,
        spin_policy: SpinPolicy,
        timeout: Option<Duration>,
    ) -> Progress {
        let short = SHORT.min(engine.least_eager());
        let (interrupted, agent) = (OnceLock::new(), OnceLock::new());
        let waited = WaitedTime::default();
        engine.threads.set_waker(idle.clone());
        let engine = EngineLock::new(engine, Engine::on_unlock);
        Progress { engine, idle, short, spin_policy, waited, timeout, interrupted, agent }
    }

    /// Runs `f` on the agent's client; returns `None` if there is no agent.
    pub(crate) fn with_agent<R>(&self, f: impl FnOnce(&mut Client) -> R) -> Option<R> {
        let answer = self.agent.get().map(|agent| agent.ask(f));
        // Events that arrived together with the answer do not make the socket readable again, so
        // take them here.
        self.take_agent_events(&mut self.engine.lock());
        answer
    }

    /// Sets the agent and begins to watch its socket.
    pub(crate) fn set_agent(&self, agent: Agent) -> Result<(), LinkError> {
        agent.with_fd(|socket| self.idle.watch_agent(socket))?;
        let _ = self.agent.set(agent);
        self.take_agent_events(&mut self.engine.lock());
        Ok(())
    }

    /// Applies the events that have arrived from the agent.
    fn take_agent_events(&self, guard: &mut EngineGuard<'_, Engine>) {
        let Some(agent) = self.agent.get() else { return };
        while let Some(event) = agent.poll_event() {
            let is_last = matches!(event, AgentEvent::Gone);
            let (engine, _) = guard.attach_and_split();
            engine.apply_event(event, &agent.nodes);
            if is_last {
                return;
            }
        }
    }

    /// Turns the cause of a failed communicator call into the error that the call returns. The loss
    /// of a rank is often only a consequence of an earlier failure elsewhere. If the cause is such
    /// a loss, this function waits up to 2 seconds for the launcher to report the earlier failure,
    /// and returns it instead.
    #[cold]
    pub(crate) fn explain(&self, operation: Operation, cause: Cause) -> CommError {
        let lost = matches!(cause, Cause::Lost { .. } | Cause::Left(_));
        if let Some(agent) = self.agent.get().filter(|_| lost) {
            loop {
                let mut guard = self.engine.lock();
                let (engine, _) = guard.attach_and_split();
                if let Some(original) = engine.launcher_cause() {
                    return CommError { operation, cause: original.clone() };
                }
                drop(guard);
                if !agent.may_still_explain() {
                    break;
                }
                if let Some(event) = agent.wait_for_event() {
                    self.engine.lock().attach_and_split().0.apply_event(event, &agent.nodes);
                }
            }
        }
        CommError { operation, cause }
    }

    /// Makes progress until a request completes, and returns its result. If the wait fails, the
    /// request is cancelled.
    pub(crate) fn wait(
        &self,
        guard: &mut EngineGuard<'_, Engine>,
        key: SlabKey,
    ) -> Result<Status, Cause> {
        let mut state = WaitState::default();
        loop {
            let (engine, buffers) = guard.attach_and_split();
            let progress = engine.progress(buffers);
            if let Some(ended) = engine.take(key) {
                return ended;
            }
            if progress {
                state.reset();
                continue;
            }
            let missing = |engine: &mut Engine| (engine.operation(key), engine.missing(key));
            if let Err(cause) = self.pause(&mut state, guard, missing) {
                self.cancel(guard, key, &cause);
                return Err(cause);
            }
        }
    }

    /// Cancels a request and waits until no RDMA device uses the request's memory. A device that
    /// has begun to copy finishes by itself, or when the peer next polls. If that takes longer than
    /// [`DEVICE_TIMEOUT`], the peer counts as lost.
    pub(crate) fn cancel(&self, guard: &mut EngineGuard<'_, Engine>, key: SlabKey, cause: &Cause) {
        let (engine, buffers) = guard.attach_and_split();
        let Some(owner) = engine.cancel(key, cause, buffers) else { return };
        let begin = self.idle.now();
        loop {
            let (engine, buffers) = guard.attach_and_split();
            let progress = engine.progress(buffers);
            let lasted = self.idle.now().saturating_sub(begin);
            if !engine.is_with_device(owner) {
                return;
            } else if lasted >= DEVICE_TIMEOUT {
                return engine.lose_devices(owner);
            } else if !progress {
                self.sleep(guard, DEVICE_TIMEOUT - lasted);
            }
        }
    }

    /// Pauses after a poll without progress: spins at first, later yields or sleeps. Fails when the
    /// wait has timed out or is interrupted. `missing` returns the operation and the awaited ranks,
    /// for the printed notice and for the error of a timeout.
    #[inline]
    pub(crate) fn pause(
        &self,
        state: &mut WaitState,
        guard: &mut EngineGuard<'_, Engine>,
        missing: impl FnOnce(&mut Engine) -> (Option<Operation>, Vec<PeerName>),
    ) -> Result<(), Cause> {
        let SpinPolicy { first_polls, polls, .. } = self.spin_policy;
        state.empty_polls += 1;
        if state.empty_polls <= first_polls {
            return Ok(());
        }
        if state.empty_polls < first_polls + polls {
            std::hint::spin_loop();
            return Ok(());
        }
        self.sleep_or_fail(state, guard, missing)
    }

    /// Tells whether the next [`Progress::pause`] of this wait does more than spin once.
    #[inline]
    pub(crate) fn is_about_to_yield(&self, state: &WaitState) -> bool {
        state.empty_polls + 1 >= self.spin_policy.first_polls + self.spin_policy.polls
    }

    fn sleep_or_fail(
        &self,
        state: &mut WaitState,
        guard: &mut EngineGuard<'_, Engine>,
        missing: impl FnOnce(&mut Engine) -> (Option<Operation>, Vec<PeerName>),
    ) -> Result<(), Cause> {
        let now = self.idle.now();
        let clock = state.clock.get_or_insert_with(|| WaitClock::start(now, self.timeout));
        let since = *state.since.get_or_insert(now);
        if let Some(last) = state.last_reading.replace(now) {
            self.waited.add(last, now);
        }
        // A thread that polls keeps other threads from the engine lock, so a thread polls only
        // while no other thread waits.
        let is_alone =
            !guard.is_contended() && guard.attach_and_split().0.threads.waiting_threads == 0;
        match clock.read(now) {
            Tick::Wait(_) if is_alone && now.saturating_sub(since) < self.spin_policy.spin => {
                state.empty_polls = self.spin_policy.first_polls;
                if self.spin_policy.yields {
                    guard.unlocked(|| self.idle.yield_now());
                }
            }
            Tick::Wait(longest) => {
                self.sleep(guard, longest);
                let woken = self.idle.now();
                self.waited.add(now, woken);
                state.last_reading = Some(woken);
                if let Some(interrupted) = self.interrupted.get()
                    && guard.unlocked(interrupted)
                {
                    return Err(Cause::Interrupted);
                }
            }
            Tick::Notice(after) => {
                let (operation, missing) = missing(guard.attach_and_split().0);
                if let Some(operation) = operation {
                    eprintln!("rlaunch: {}", waiting(operation, after, &missing));
                }
            }
            Tick::Over(after) => {
                let (_, waiting_for) = missing(guard.attach_and_split().0);
                return Err(Cause::TimedOut { after, waiting_for });
            }
        }
        Ok(())
    }

    /// Sleeps until a link, the agent or another thread ends the sleep, for at most `longest`. If
    /// another thread sleeps already, waits for that thread instead.
    fn sleep(&self, guard: &mut EngineGuard<'_, Engine>, longest: Duration) {
        let (engine, _) = guard.attach_and_split();
        if engine.threads.has_sleeper() {
            engine.threads.waiting_threads += 1;
            guard.wait(longest.min(LONGEST_SLEEP));
            guard.attach_and_split().0.threads.waiting_threads -= 1;
            return;
        }
        if !engine.arm(&*self.idle) {
            return engine.disarm();
        }
        engine.threads.begin_sleep();
        let mut has_agent_event = false;
        guard.unlocked(|| has_agent_event = self.idle.sleep(longest));
        let (engine, _) = guard.attach_and_split();
        engine.threads.end_sleep();
        engine.disarm();
        if engine.threads.waiting_threads > 0 {
            self.engine.wake_all();
        }
        if has_agent_event {
            self.take_agent_events(guard);
        }
    }
}

/// Sends goodbye packets, so that peers do not mistake the end of this process for a failure.
impl Drop for Progress {
    fn drop(&mut self) {
        // A forked child must not say goodbye on behalf of its parent.
        if self.engine.is_inherited() {
            return;
        }
        let begin = self.idle.now();
        let mut guard = self.engine.lock();
        let mut is_first = true;
        loop {
            let (engine, buffers) = guard.attach_and_split();
            let all = engine.bye(is_first, buffers);
            is_first = false;
            if all || self.idle.now().saturating_sub(begin) > GOODBYE_TIMEOUT {
                return;
            }
            engine.progress(buffers);
            guard.unlocked(|| self.idle.yield_now());
        }
    }
}

/// State of one wait: how long nothing has made progress, and the wait's time limits.
#[derive(Debug, Default)]
pub(crate) struct WaitState {
    /// Number of consecutive polls without progress. Reset to 0 by progress, and to
    /// [`SpinPolicy::first_polls`] when the wait has read the clock and continues to poll.
    pub(crate) empty_polls: u32,
    /// Time of the first reading of the clock after the last progress; `None` if the clock has not
    /// been read since then.
    since: Option<Duration>,
    /// Last reading of the clock since the last progress. The time until then is counted as waited.
    last_reading: Option<Duration>,
    clock: Option<WaitClock>,
}

impl WaitState {
    /// Makes the wait spin again, after progress.
    #[inline]
    pub(crate) fn reset(&mut self) {
        self.empty_polls = 0;
        self.since = None;
        self.last_reading = None;
    }
}

/// Time limits of one wait.
#[derive(Debug)]
struct WaitClock {
    begin: Duration,
    noticed: bool,
    timeout: Option<Duration>,
}

/// Next action of a wait, decided by the clock.
enum Tick {
    /// Keep waiting; a sleep may last for at most this duration.
    Wait(Duration),
    /// Print which ranks are awaited; the wait has lasted for this duration.
    Notice(Duration),
    /// Fail, because this timeout has passed.
    Over(Duration),
}

impl WaitClock {
    fn start(now: Duration, timeout: Option<Duration>) -> WaitClock {
        WaitClock { begin: now, noticed: false, timeout }
    }

    fn read(&mut self, now: Duration) -> Tick {
        let lasted = now.saturating_sub(self.begin);
        if let Some(timeout) = self.timeout
            && lasted >= timeout
        {
            return Tick::Over(timeout);
        }
        if lasted >= NOTICE_AFTER && !self.noticed {
            self.noticed = true;
            return Tick::Notice(lasted);
        }
        let to_notice = if self.noticed { Duration::MAX } else { NOTICE_AFTER - lasted };
        Tick::Wait(self.timeout.map_or(to_notice, |timeout| to_notice.min(timeout - lasted)))
    }
}

fn waiting(operation: Operation, after: Duration, missing: &[PeerName]) -> String {
    let names: Vec<String> = missing.iter().map(ToString::to_string).collect();
    let names = if names.is_empty() { "a message".to_owned() } else { names.join(", ") };
    format!("{operation}: still waiting after {} s for {names}", after.as_secs())
}

#[cfg(test)]
mod tests;
