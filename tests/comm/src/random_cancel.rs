//! Random calls, some of which ranks cancel: by a signal at a random time, or by dropping the
//! request. No message may have wrong contents, and none may be missing unless its sender or
//! receiver cancelled it. All ranks must learn of a cancelled collective.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rlaunch_comm::sim::Dice;
use rlaunch_comm::{Cause, CommError, Communicator, Op};
use signal_hook::consts::SIGUSR1;
use signal_hook::flag;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

/// Number of messages in a round; each has one bit in a set.
const MESSAGES: usize = 24;
/// Maximum length in words of 8 bytes; most messages are much shorter.
const LONGEST: usize = 1 << 18;
/// End mark that follows each message, so that its receiver knows when no more of it arrives.
const END: [u64; 1] = [u64::MAX];
/// Longest time from the beginning of a call to its signal.
const LONGEST_DELAY: Duration = Duration::from_millis(2);

/// Whether this rank's calls may be interrupted, and whether a signal has arrived since.
static IS_ARMED: AtomicBool = AtomicBool::new(false);
static HAS_ARRIVED: OnceLock<Arc<AtomicBool>> = OnceLock::new();
/// Number of interrupted calls.
static INTERRUPTED: AtomicU64 = AtomicU64::new(0);

fn is_interrupted() -> bool {
    let has_arrived = HAS_ARRIVED.get().is_some_and(|flag| flag.load(Ordering::Relaxed));
    IS_ARMED.load(Ordering::Relaxed) && has_arrived
}

/// Thread that sends signals to this process.
struct SignalTimer(Sender<Duration>);

impl SignalTimer {
    fn start() -> Result<SignalTimer, String> {
        let has_arrived = HAS_ARRIVED.get_or_init(Arc::default);
        flag::register(SIGUSR1, has_arrived.clone()).map_err(|error| error.to_string())?;
        let (timer, delays) = channel::<Duration>();
        thread::spawn(move || {
            for delay in delays {
                thread::sleep(delay);
                // Cannot fail: the process signals itself.
                let _ = kill(Pid::this(), Signal::SIGUSR1);
            }
        });
        Ok(SignalTimer(timer))
    }

    /// Runs `calls`, with a signal after `delay` if there is one.
    fn during<R>(&self, delay: Option<Duration>, calls: impl FnOnce() -> R) -> R {
        if let Some(flag) = HAS_ARRIVED.get() {
            flag.store(false, Ordering::Relaxed);
        }
        IS_ARMED.store(delay.is_some(), Ordering::Relaxed);
        if let Some(delay) = delay {
            // Cannot fail: the thread runs as long as this value exists.
            let _ = self.0.send(delay);
        }
        let called = calls();
        IS_ARMED.store(false, Ordering::Relaxed);
        called
    }
}

/// Results so far at this rank.
#[derive(Clone, Copy, Debug, Default)]
pub struct CancelReport {
    /// Rounds of messages and collectives.
    pub rounds: u64,
    /// Messages that this rank sent or received.
    pub messages: u64,
    /// Messages of this rank whose first send or receive did not complete.
    pub cancelled: u64,
    /// Messages that arrived although an earlier receive of them was cancelled.
    pub kept: u64,
    /// Collectives that some rank cancelled.
    pub collectives: u64,
}

impl fmt::Display for CancelReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CancelReport { rounds, messages, cancelled, kept, collectives } = self;
        let interrupted = INTERRUPTED.load(Ordering::Relaxed);
        write!(
            f,
            "{rounds} rounds; {messages} messages of rank 0, {cancelled} cancelled and {kept} "
        )?;
        write!(f, "of these received later; {collectives} collectives cancelled by some rank; ")?;
        write!(f, "{interrupted} calls of rank 0 interrupted")
    }
}

struct TestMessage {
    from: usize,
    to: usize,
    words: Vec<u64>,
}

fn draw(seed: u64, size: usize) -> Vec<TestMessage> {
    let mut dice = Dice::new(seed);
    let message = |_| {
        let (from, to) = (dice.below(size), dice.below(size));
        let most = 1 << dice.below(LONGEST.ilog2() as usize + 1);
        let length = 2 + dice.below(most);
        let mut content = Dice::new(dice.draw() >> 1);
        // Contents never equal the end mark.
        TestMessage { from, to, words: (0..length).map(|_| content.draw() >> 1).collect() }
    };
    (0..MESSAGES).map(message).collect()
}

/// Runs rounds of random calls for the given time, by rank 0's clock.
pub fn cancel_randomly(
    comm: &Communicator,
    seed: u64,
    lasts: Duration,
    tell: impl Fn(&CancelReport),
) -> Result<CancelReport, String> {
    comm.set_interrupt_check(is_interrupted);
    let (timer, begin, mut reported) = (SignalTimer::start()?, Instant::now(), 0);
    let mut report = CancelReport::default();
    let mut work = comm.split(0, comm.rank() as i64).map_err(text)?;
    loop {
        let lasted = begin.elapsed();
        let mut goes_on = [u8::from(lasted < lasts)];
        comm.broadcast(&mut goes_on, 0).map_err(text)?;
        if goes_on == [0] {
            return Ok(report);
        }
        if comm.rank() == 0 && lasted.as_secs() / 60 > reported {
            reported = lasted.as_secs() / 60;
            tell(&report);
        }
        let round = report.rounds;
        let failed =
            |why: String| format!("seed {seed}, round {round}, rank {}: {why}", comm.rank());
        let of_round = seed ^ round.wrapping_mul(0x2545_f491_4f6c_dd1d);
        // Decisions of this rank alone.
        let mut own = Dice::new(of_round.wrapping_add(1 + comm.rank() as u64));
        if round % 3 < 2 {
            let messages = draw(of_round, comm.size());
            exchange(&work, comm, &timer, &messages, &mut own, &mut report).map_err(failed)?;
        } else if call(&work, comm, &timer, of_round, &mut own).map_err(failed)? {
            report.collectives += 1;
            work = comm.split(0, comm.rank() as i64).map_err(text)?;
        }
        report.rounds += 1;
    }
}

#[expect(clippy::needless_pass_by_value, reason = "it is mapped by")]
fn text(error: CommError) -> String {
    error.to_string()
}

/// Returns the delay of a signal, for half of the calls.
fn delay(dice: &mut Dice) -> Option<Duration> {
    let micros = dice.below(LONGEST_DELAY.as_micros() as usize) as u64;
    (dice.below(2) == 0).then(|| Duration::from_micros(micros))
}

/// Tells whether a call was cancelled; any other failure is an error.
fn is_cancelled(error: &CommError) -> Result<bool, String> {
    match error.cause {
        Cause::Interrupted => {
            INTERRUPTED.fetch_add(1, Ordering::Relaxed);
            Ok(true)
        }
        Cause::Cancelled | Cause::Withdrawn(_) | Cause::OutOfStep { .. } => Ok(true),
        _ => Err(error.to_string()),
    }
}

/// State of the messages from the view of this rank. Each set has one bit per message, by tag.
#[derive(Debug, Default)]
struct Outcome {
    sent: u64,
    received: u64,
    /// Messages whose end mark has arrived.
    ended: u64,
}

fn has(set: u64, tag: usize) -> bool {
    set >> tag & 1 == 1
}

fn exchange(
    work: &Communicator,
    control: &Communicator,
    timer: &SignalTimer,
    messages: &[TestMessage],
    dice: &mut Dice,
    report: &mut CancelReport,
) -> Result<(), String> {
    let me = work.rank();
    let ours = |rank: fn(&TestMessage) -> usize| {
        (0..).zip(messages).filter(move |(_, message)| rank(message) == me)
    };
    let mut buffers: Vec<(usize, Vec<u64>)> =
        ours(|message| message.to).map(|(tag, m)| (tag, vec![0; m.words.len() + 1])).collect();
    let mut outcome = Outcome::default();
    let drops = dice.below(8) == 0;
    let result =
        timer.during(delay(dice), || attempt(work, messages, &mut buffers, drops, &mut outcome));
    match result {
        Ok(None) => {}
        Ok(Some(wrong)) => return Err(wrong),
        Err(error) => drop(is_cancelled(&error)?),
    }
    for (tag, data) in &buffers {
        if has(outcome.received, *tag) {
            check(*tag, &messages[*tag], data)?;
        } else if has(outcome.ended, *tag) && data[..1] != END {
            return Err(format!("message {tag} of {} is too short", messages[*tag].from));
        }
    }
    let mine = ours(|message| message.to).count() + ours(|message| message.from).count();
    let completed = outcome.sent.count_ones() + outcome.received.count_ones();
    report.messages += mine as u64;
    report.cancelled += mine as u64 - u64::from(completed);
    for (tag, message) in ours(|message| message.from) {
        work.send(&END, message.to, tag as u32).map_err(text)?;
    }
    let first = outcome.received;
    drain(work, messages, &mut buffers, &mut outcome)?;
    report.kept += u64::from((outcome.received & !first).count_ones());
    // Messages that were sent completely must have arrived.
    let mut all = vec![0; work.size()];
    control.all_gather(&[outcome.sent], &mut all).map_err(text)?;
    let due = all.iter().fold(0, |due, sent| due | sent);
    for (tag, _) in ours(|message| message.to) {
        // A message that arrived before its receive was dropped is lost with it.
        if has(due, tag) && !has(outcome.received, tag) && !drops {
            return Err(format!("message {tag} of {} is missing", messages[tag].from));
        }
    }
    Ok(())
}

/// Begins all messages of this rank and waits for them, or drops them if `drops`. Returns an error
/// that no cancellation explains.
fn attempt(
    work: &Communicator,
    messages: &[TestMessage],
    buffers: &mut [(usize, Vec<u64>)],
    drops: bool,
    outcome: &mut Outcome,
) -> Result<Option<String>, CommError> {
    let me = work.rank();
    work.scope(|scope| {
        let mut requests = Vec::new();
        for (tag, data) in buffers {
            let from = messages[*tag].from;
            requests.push((*tag, false, scope.irecv(data, from, *tag as u32)?));
        }
        for (tag, message) in messages.iter().enumerate().filter(|(_, sent)| sent.from == me) {
            let request = scope.isend(&message.words, message.to, tag as u32)?;
            requests.push((tag, true, request));
        }
        if drops {
            return Err(CommError {
                operation: rlaunch_comm::Operation::Start,
                cause: Cause::Cancelled,
            });
        }
        let mut wrong = None;
        for (tag, is_send, request) in requests {
            match scope.wait(request) {
                Ok(_) if is_send => outcome.sent |= 1 << tag,
                // The sender cancelled the message before it was sent, so only the end mark
                // arrives.
                Ok(received) if received.length < messages[tag].words.len() => {
                    outcome.ended |= 1 << tag;
                }
                Ok(_) => outcome.received |= 1 << tag,
                Err(error) => wrong = is_cancelled(&error).err().or(wrong),
            }
        }
        Ok(wrong)
    })
}

/// Receives what is left of the messages, up to the end mark of each. All receives run at once,
/// because senders wait for their long messages before they send end marks.
fn drain(
    work: &Communicator,
    messages: &[TestMessage],
    buffers: &mut [(usize, Vec<u64>)],
    outcome: &mut Outcome,
) -> Result<(), String> {
    loop {
        let mut left: Vec<&mut (usize, Vec<u64>)> =
            buffers.iter_mut().filter(|(tag, _)| !has(outcome.ended, *tag)).collect();
        if left.is_empty() {
            return Ok(());
        }
        let received = work.scope(|scope| {
            let mut requests = Vec::new();
            for (tag, data) in &mut left {
                requests.push(scope.irecv(data, messages[*tag].from, *tag as u32)?);
            }
            Ok(requests.into_iter().map(|request| scope.wait(request)).collect::<Vec<_>>())
        });
        for ((tag, data), received) in left.into_iter().zip(received.map_err(text)?) {
            let (of, bit) = (&messages[*tag], 1 << *tag);
            match received {
                Ok(received) if data[..received.length] == END => outcome.ended |= bit,
                Ok(received)
                    if has(outcome.received, *tag) || received.length != of.words.len() =>
                {
                    return Err(format!(
                        "message {tag} of {} arrived twice or was cut short",
                        of.from
                    ));
                }
                Ok(_) => {
                    outcome.received |= bit;
                    check(*tag, of, data)?;
                }
                Err(CommError { cause: Cause::Withdrawn(_), .. }) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
    }
}

fn check(tag: usize, message: &TestMessage, data: &[u64]) -> Result<(), String> {
    let length = message.words.len();
    (data[..length] == message.words)
        .then_some(())
        .ok_or_else(|| format!("message {tag} of {} is wrong", message.from))
}

/// Runs a collective that ranks may cancel. Tells whether any rank did.
fn call(
    work: &Communicator,
    control: &Communicator,
    timer: &SignalTimer,
    seed: u64,
    dice: &mut Dice,
) -> Result<bool, String> {
    let mut of_all = Dice::new(seed);
    let most = 1 << of_all.below(LONGEST.ilog2() as usize);
    let (count, which) = (1 + of_all.below(most), of_all.below(3));
    let (me, size) = (work.rank() as u64, work.size() as u64);
    let own: Vec<u64> = (0..count as u64).map(|at| at * 7 + me).collect();
    let mut data = own.clone();
    let delay = if dice.below(4) == 0 { delay(dice) } else { None };
    let ended = timer.during(delay, || match which {
        0 => work.all_reduce(&own, &mut data, Op::Sum),
        1 => work.broadcast(&mut data, 0),
        _ => work.barrier(),
    });
    let cancelled = match &ended {
        Ok(()) => false,
        Err(error) => is_cancelled(error)?,
    };
    let expected = |at: u64| match which {
        0 => at * 7 * size + size * (size - 1) / 2,
        1 => at * 7,
        _ => at * 7 + me,
    };
    if !cancelled && (0..).zip(&data).any(|(at, word)| *word != expected(at)) {
        return Err("a collective has a wrong result".to_owned());
    }
    let mut all = [0_u64];
    control.all_reduce(&[u64::from(cancelled)], &mut all, Op::Max).map_err(text)?;
    if all == [0] {
        return Ok(false);
    }
    match work.barrier() {
        Err(CommError { cause: Cause::OutOfStep { .. }, .. }) => Ok(true),
        Err(error) => Err(error.to_string()),
        Ok(()) => Err("a collective succeeded after one that was cancelled".to_owned()),
    }
}
