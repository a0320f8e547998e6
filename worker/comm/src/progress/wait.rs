//! Waiting: what a process does until its messages have come.
//!
//! It looks again and again for about as long as it takes to be woken, since most answers are there
//! within a microsecond; then it sleeps on its links. So a wait takes twice as long as it must, at
//! worst, whatever a look costs, and who is waited for is not kept from its processor.

use crate::progress::agent::{Agent, AgentEvent};
use crate::progress::engine::{Engine, SlabKey, Status};
use crate::progress::idle::{Idle, LONGEST_SLEEP};
use crate::types::error::{Cause, CommError, LinkError, Operation, PeerName};
use rlaunch_bootstrap::client::Client;
use rlaunch_lock::{EngineGuard, EngineLock};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// A wait that has lasted so long says whom it waits for.
const NOTICE: Duration = Duration::from_secs(10);
/// How long the last words may take: a peer that does not read them has other worries.
const GOODBYE: Duration = Duration::from_secs(2);

/// How long devices may take that copy from or to memory of a request that was given up.
const DEVICES: Duration = Duration::from_secs(2);

/// Longest buffer of a collective that may run in its caller's frame, in bytes.
pub(crate) const SHORT: usize = 1 << 10;

/// How long a rank looks before it sleeps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpinPolicy {
    /// Fruitless looks in a row before it looks at the clock as well.
    looks: u32,
    /// For so long it goes on with that.
    spin: Duration,
    /// It lets others run meanwhile: who could answer may be waiting for this processor.
    yields: bool,
}

impl SpinPolicy {
    /// A clock costs as much as a look at a few links.
    const LOOKS: u32 = 8;

    /// For as long as it takes to be woken; `yields` where ranks may share processors.
    pub(crate) fn new(wake_latency: Duration, yields: bool) -> SpinPolicy {
        SpinPolicy { looks: SpinPolicy::LOOKS, spin: wake_latency, yields }
    }

    /// Sleeps almost at once.
    pub(crate) fn none() -> SpinPolicy {
        SpinPolicy::new(Duration::ZERO, false)
    }
}

/// The engine of a process, and how it waits.
#[derive(Debug)]
pub(crate) struct Progress {
    pub(crate) engine: EngineLock<Engine>,
    pub(crate) idle: Arc<dyn Idle>,
    /// Collectives of so many bytes run in their callers' frames.
    pub(crate) short: usize,
    spin_policy: SpinPolicy,
    /// How long a wait may take; for ever when `None`.
    timeout: Option<Duration>,
    /// Asked after each sleep, by a thread that has released the engine lock: whether the wait is to end.
    pub(crate) interrupted: OnceLock<fn() -> bool>,
    /// Where rlaunch started this process.
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
        engine.threads.set_waker(idle.clone());
        let engine = EngineLock::new(engine, |engine| engine.threads.on_unlock());
        Progress { engine, idle, short, spin_policy, timeout, interrupted, agent }
    }

    /// Asks the agent for something, if there is one.
    pub(crate) fn with_agent<R>(&self, tells: impl FnOnce(&mut Client) -> R) -> Option<R> {
        let told = self.agent.get().map(|agent| agent.ask(tells));
        // What it said meanwhile does not make its socket readable again.
        self.take_agent_events(&mut self.engine.lock());
        told
    }

    /// From now on the agent is asked, and listened to.
    pub(crate) fn set_agent(&self, agent: Agent) -> Result<(), LinkError> {
        agent.with_fd(|socket| self.idle.watch_agent(socket))?;
        let _ = self.agent.set(agent);
        self.take_agent_events(&mut self.engine.lock());
        Ok(())
    }

    /// Takes in what the agent has said.
    fn take_agent_events(&self, guard: &mut EngineGuard<'_, Engine>) {
        let Some(agent) = self.agent.get() else { return };
        while let Some(event) = agent.poll_event() {
            let is_last = matches!(event, AgentEvent::Gone);
            let (engine, _) = guard.parts();
            engine.apply_event(event, &agent.nodes);
            if is_last {
                return;
            }
        }
    }

    /// Why a call failed, as well as anybody knows. Who has lost a rank sees an effect, and maybe
    /// that of an effect; the launcher is about to tell the cause.
    #[cold]
    pub(crate) fn explain(&self, operation: Operation, cause: Cause) -> CommError {
        let lost = matches!(cause, Cause::Lost { .. } | Cause::Left(_));
        if let Some(agent) = self.agent.get().filter(|_| lost) {
            loop {
                let mut guard = self.engine.lock();
                let (engine, _) = guard.parts();
                if let Some(verdict) = engine.launcher_cause() {
                    return CommError { operation, cause: verdict.clone() };
                }
                drop(guard);
                if !agent.may_still_explain() {
                    break;
                }
                if let Some(event) = agent.wait_for_event() {
                    self.engine.lock().parts().0.apply_event(event, &agent.nodes);
                }
            }
        }
        CommError { operation, cause }
    }

    /// Goes on with everything until this request has ended.
    pub(crate) fn wait(
        &self,
        guard: &mut EngineGuard<'_, Engine>,
        key: SlabKey,
    ) -> Result<Status, Cause> {
        let mut pause = WaitState::default();
        loop {
            let (engine, buffers) = guard.parts();
            let progress = engine.progress(buffers);
            if let Some(ended) = engine.take(key) {
                return ended;
            }
            if progress {
                pause.end();
                continue;
            }
            let missing = |engine: &mut Engine| (engine.operation(key), engine.missing(key));
            if let Err(cause) = self.pause(&mut pause, guard, missing) {
                self.cancel(guard, key, &cause);
                return Err(cause);
            }
        }
    }

    /// Gives up a request, and waits until no device uses its memory: one that has begun to copy goes
    /// on on its own, or as soon as the peer looks. After a while such a peer is lost.
    pub(crate) fn cancel(&self, guard: &mut EngineGuard<'_, Engine>, key: SlabKey, cause: &Cause) {
        let (engine, buffers) = guard.parts();
        let Some(owner) = engine.cancel(key, cause, buffers) else { return };
        let begin = self.idle.now();
        loop {
            let (engine, buffers) = guard.parts();
            let progress = engine.progress(buffers);
            let lasted = self.idle.now().saturating_sub(begin);
            if !engine.is_with_device(owner) {
                return;
            } else if lasted >= DEVICES {
                return engine.lose_devices(owner);
            } else if !progress {
                self.sleep(guard, DEVICES - lasted);
            }
        }
    }

    /// After a look that found nothing: rests, the longer the more there were. Fails when that takes
    /// too long; `missing` says what is being done, and whom it waits for.
    #[inline]
    pub(crate) fn pause(
        &self,
        pause: &mut WaitState,
        guard: &mut EngineGuard<'_, Engine>,
        missing: impl FnOnce(&mut Engine) -> (Option<Operation>, Vec<PeerName>),
    ) -> Result<(), Cause> {
        pause.fruitless += 1;
        if pause.fruitless < self.spin_policy.looks {
            std::hint::spin_loop();
            return Ok(());
        }
        self.sleep_or_fail(pause, guard, missing)
    }

    /// Whether the next pause is more than a moment.
    #[inline]
    pub(crate) fn is_about_to_yield(&self, pause: &WaitState) -> bool {
        pause.fruitless + 1 >= self.spin_policy.looks
    }

    fn sleep_or_fail(
        &self,
        pause: &mut WaitState,
        guard: &mut EngineGuard<'_, Engine>,
        missing: impl FnOnce(&mut Engine) -> (Option<Operation>, Vec<PeerName>),
    ) -> Result<(), Cause> {
        let now = self.idle.now();
        let clock = pause.clock.get_or_insert_with(|| WaitClock::start(now, self.timeout));
        let since = *pause.since.get_or_insert(now);
        // Whoever looks is in the way of the other threads.
        let is_alone = !guard.is_contended() && guard.parts().0.threads.waiting_threads == 0;
        match clock.look(now) {
            Tick::Wait(_) if is_alone && now.saturating_sub(since) < self.spin_policy.spin => {
                pause.fruitless = 0;
                if self.spin_policy.yields {
                    guard.unlocked(|| self.idle.yield_now());
                }
            }
            Tick::Wait(longest) => {
                self.sleep(guard, longest);
                if let Some(interrupted) = self.interrupted.get()
                    && guard.unlocked(interrupted)
                {
                    return Err(Cause::Interrupted);
                }
            }
            Tick::Notice(after) => {
                let (operation, missing) = missing(guard.parts().0);
                if let Some(operation) = operation {
                    eprintln!("rlaunch: {}", waiting(operation, after, &missing));
                }
            }
            Tick::Over(after) => {
                let (_, waiting_for) = missing(guard.parts().0);
                return Err(Cause::TimedOut { after, waiting_for });
            }
        }
        Ok(())
    }

    /// One thread sleeps on the links, the others on it.
    fn sleep(&self, guard: &mut EngineGuard<'_, Engine>, longest: Duration) {
        let (engine, _) = guard.parts();
        if engine.threads.has_sleeper() {
            engine.threads.waiting_threads += 1;
            guard.wait(longest.min(LONGEST_SLEEP));
            guard.parts().0.threads.waiting_threads -= 1;
            return;
        }
        if !engine.arm(&*self.idle) {
            return engine.disarm();
        }
        engine.threads.begin_sleep();
        let mut has_news = false;
        guard.unlocked(|| has_news = self.idle.sleep(longest));
        let (engine, _) = guard.parts();
        engine.threads.end_sleep();
        engine.disarm();
        if engine.threads.waiting_threads > 0 {
            self.engine.wake_all();
        }
        if has_news {
            self.take_agent_events(guard);
        }
    }
}

/// Peers learn that this rank has left, and that they are not to wait for it.
impl Drop for Progress {
    fn drop(&mut self) {
        // A forked process would take leave in its parent's place.
        if self.engine.is_inherited() {
            return;
        }
        let begin = self.idle.now();
        let mut guard = self.engine.lock();
        let mut is_first = true;
        loop {
            let (engine, buffers) = guard.parts();
            let all = engine.bye(is_first, buffers);
            is_first = false;
            if all || self.idle.now().saturating_sub(begin) > GOODBYE {
                return;
            }
            engine.progress(buffers);
            guard.unlocked(|| self.idle.yield_now());
        }
    }
}

/// How long somebody has waited.
#[derive(Debug, Default)]
pub(crate) struct WaitState {
    /// Looks in a row that found nothing, since the clock was looked at.
    pub(crate) fruitless: u32,
    /// When the first of them was followed by a look at the clock.
    since: Option<Duration>,
    clock: Option<WaitClock>,
}

impl WaitState {
    /// Something has come: patience begins anew.
    #[inline]
    pub(crate) fn end(&mut self) {
        self.fruitless = 0;
        self.since = None;
    }
}

/// How long a wait has lasted.
#[derive(Debug)]
struct WaitClock {
    begin: Duration,
    noticed: bool,
    timeout: Option<Duration>,
}

enum Tick {
    /// For so long at most.
    Wait(Duration),
    /// It is time to say who is missing.
    Notice(Duration),
    /// It has taken too long.
    Over(Duration),
}

impl WaitClock {
    fn start(now: Duration, timeout: Option<Duration>) -> WaitClock {
        WaitClock { begin: now, noticed: false, timeout }
    }

    fn look(&mut self, now: Duration) -> Tick {
        let lasted = now.saturating_sub(self.begin);
        if let Some(timeout) = self.timeout
            && lasted >= timeout
        {
            return Tick::Over(timeout);
        }
        if lasted >= NOTICE && !self.noticed {
            self.noticed = true;
            return Tick::Notice(lasted);
        }
        let to_notice = if self.noticed { Duration::MAX } else { NOTICE - lasted };
        Tick::Wait(self.timeout.map_or(to_notice, |timeout| to_notice.min(timeout - lasted)))
    }
}

fn waiting(operation: Operation, after: Duration, missing: &[PeerName]) -> String {
    let names: Vec<String> = missing.iter().map(ToString::to_string).collect();
    let names = if names.is_empty() { "a message".to_owned() } else { names.join(", ") };
    format!("{operation}: waiting {} s for {names}", after.as_secs())
}

#[cfg(test)]
mod tests;
