//! Threads for calls that programs can hold up. They stay: ranks may use up what the host permits of processes.

use crate::node::{Work, start_thread};
use std::collections::VecDeque;
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, oneshot};
use tokio::time::sleep_until;

/// Size of the stack of a thread of the pool, in bytes.
const STACK: usize = 512 << 10;

/// Time after which a thread that could not be started is tried again.
const RETRY: Duration = Duration::from_secs(1);

pub(super) static POOL: Pool = Pool::new(|work| start_thread(Some(STACK), work));

/// Waits until a stream waits for a thread because all are held up, and the host permits no other. Returns why; once, as
/// the next look may find one. Meanwhile tries again, so it has to be waited for as long as there are streams.
pub(crate) async fn refused_thread() -> io::Error {
    POOL.refused_thread().await
}

/// Makes a call in a thread, which begins at once, but where the host permits no other thread.
pub(crate) fn in_thread<T: Send + 'static>(
    call: impl FnOnce() -> T + Send + 'static,
) -> oneshot::Receiver<T> {
    POOL.call(call)
}

/// Call that returns how its result is told. Its thread is idle before that, since whoever is told may have the next call.
type Call = Box<dyn FnOnce() -> Tell + Send>;
type Tell = Box<dyn FnOnce()>;

pub(super) struct Pool {
    state: Mutex<PoolState>,
    wake: Condvar,
    start: fn(Work) -> io::Result<()>,
    /// Told when calls begin to wait for a thread that could not be started.
    refused: Notify,
}

struct PoolState {
    calls: VecDeque<Call>,
    threads: usize,
    /// Number of threads that wait for a call, or are about to.
    idle: usize,
    /// Time of the last attempt at a thread for calls that wait; `None` if none wait for one.
    refused_at: Option<Instant>,
    is_told: bool,
}

impl Pool {
    const fn new(start: fn(Work) -> io::Result<()>) -> Pool {
        let state = PoolState {
            calls: VecDeque::new(),
            threads: 0,
            idle: 0,
            refused_at: None,
            is_told: false,
        };
        Pool { state: Mutex::new(state), wake: Condvar::new(), start, refused: Notify::const_new() }
    }

    /// Makes a call in a thread.
    pub(super) fn call<T: Send + 'static>(
        &'static self,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> oneshot::Receiver<T> {
        let (tell, told) = oneshot::channel();
        self.take_on(Box::new(move || {
            let made = call();
            // Nobody may wait for it any more.
            Box::new(move || drop(tell.send(made)))
        }));
        told
    }

    fn take_on(&'static self, call: Call) {
        let mut state = self.lock();
        state.calls.push_back(call);
        if state.idle >= state.calls.len() {
            return self.wake.notify_one();
        }
        if self.start_worker(&mut state).is_ok() {
            return;
        }
        if state.threads > 0 {
            // One of the threads takes it, but a program may hold up all of them.
            state.refused_at.get_or_insert_with(Instant::now);
            self.refused.notify_one();
        } else if let Some(call) = state.calls.pop_back() {
            // No thread is permitted here, and programs that hold a call up are few.
            drop(state);
            call()();
        }
    }

    fn start_worker(&'static self, state: &mut PoolState) -> io::Result<()> {
        (self.start)(Box::new(|| self.work()))?;
        state.threads += 1;
        Ok(())
    }

    async fn refused_thread(&'static self) -> io::Error {
        loop {
            let refused_at = self.lock().refused_at;
            match refused_at {
                None => self.refused.notified().await,
                Some(at) => {
                    sleep_until((at + RETRY).into()).await;
                    if let Some(error) = self.start_another() {
                        return error;
                    }
                }
            }
        }
    }

    /// Starts a thread if calls still wait for one. Returns the error if that fails for the first time.
    fn start_another(&'static self) -> Option<io::Error> {
        let mut state = self.lock();
        state.refused_at = None;
        if state.idle >= state.calls.len() {
            return None;
        }
        let error = self.start_worker(&mut state).err();
        // Its call may be held up too, and others wait behind it.
        if error.is_some() || state.calls.len() > 1 {
            state.refused_at = Some(Instant::now());
        }
        error.filter(|_| !std::mem::replace(&mut state.is_told, true))
    }

    fn work(&self) {
        let mut state = self.lock();
        loop {
            if let Some(call) = state.calls.pop_front() {
                drop(state);
                let tell = call();
                self.lock().idle += 1;
                tell();
                state = self.lock();
                state.idle -= 1;
            } else {
                state.idle += 1;
                state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;
    use tokio::time::{sleep, timeout};

    /// Time limit for events that must happen.
    const BOUND: Duration = Duration::from_secs(60);

    static IS_PERMITTED: AtomicBool = AtomicBool::new(true);

    static LIMITED: Pool = Pool::new(|work| {
        if !IS_PERMITTED.load(Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(libc::EAGAIN));
        }
        start_thread(Some(STACK), work)
    });

    #[tokio::test]
    async fn calls_one_after_the_other_take_one_thread() {
        static CALM: Pool = Pool::new(|work| start_thread(Some(STACK), work));
        for number in 0..1000 {
            assert_eq!(timeout(BOUND, CALM.call(move || number)).await.unwrap(), Ok(number));
        }
        assert_eq!(CALM.lock().threads, 1);
    }

    #[tokio::test]
    async fn calls_behind_one_that_is_held_up_wait_for_a_thread_and_say_why() {
        let (release, held) = mpsc::channel::<()>();
        let (begin, begun) = oneshot::channel();
        let first = LIMITED.call(move || {
            begin.send(()).unwrap();
            held.recv()
        });
        timeout(BOUND, begun).await.unwrap().unwrap();
        IS_PERMITTED.store(false, Ordering::Relaxed);
        let mut others = [LIMITED.call(|| 2), LIMITED.call(|| 3)];
        let error = timeout(BOUND, LIMITED.refused_thread()).await.unwrap();
        assert_eq!(error.raw_os_error(), Some(libc::EAGAIN));
        assert!(others[0].try_recv().is_err());
        // It is said once, and tried until it succeeds.
        let again = timeout(3 * RETRY, LIMITED.refused_thread()).await;
        assert!(again.is_err() && others[0].try_recv().is_err());
        IS_PERMITTED.store(true, Ordering::Relaxed);
        tokio::select! {
            error = LIMITED.refused_thread() => panic!("{error}"),
            made = async { ((&mut others[0]).await, (&mut others[1]).await) } => {
                assert_eq!(made, (Ok(2), Ok(3)));
            }
            () = sleep(BOUND) => panic!("no thread was started"),
        }
        release.send(()).unwrap();
        assert_eq!(timeout(BOUND, first).await.unwrap(), Ok(Ok(())));
    }
}
