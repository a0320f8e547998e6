//! Random calls of which ranks give up some: by a signal at a random moment, or since they want nothing
//! of it any more. No message may be wrong, and none may be missing whose sender and receiver did not
//! both give it up; of collectives all ranks learn what has become.

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

/// Messages between all ranks in a round: one bit each.
const MESSAGES: usize = 24;
/// The longest, in words of 8 bytes; most are much shorter.
const LONGEST: usize = 1 << 18;
/// Follows each message, so that its receiver knows when nothing of it comes any more.
const END: [u64; 1] = [u64::MAX];
/// The latest moment of a signal, after a call has begun.
const LATEST: Duration = Duration::from_millis(2);

/// Whether this rank's calls may be interrupted, and whether a signal has come since.
static IS_ARMED: AtomicBool = AtomicBool::new(false);
static HAS_COME: OnceLock<Arc<AtomicBool>> = OnceLock::new();
/// Calls that were interrupted.
static INTERRUPTED: AtomicU64 = AtomicU64::new(0);

fn is_interrupted() -> bool {
    let has_come = HAS_COME.get().is_some_and(|flag| flag.load(Ordering::Relaxed));
    IS_ARMED.load(Ordering::Relaxed) && has_come
}

/// Sends this process signals.
struct Alarm(Sender<Duration>);

impl Alarm {
    fn start() -> Result<Alarm, String> {
        let has_come = HAS_COME.get_or_init(Arc::default);
        flag::register(SIGUSR1, has_come.clone()).map_err(|error| error.to_string())?;
        let (alarm, delays) = channel::<Duration>();
        thread::spawn(move || {
            for delay in delays {
                thread::sleep(delay);
                // It is this process's, which is there.
                let _ = kill(Pid::this(), Signal::SIGUSR1);
            }
        });
        Ok(Alarm(alarm))
    }

    /// Runs `calls`, with a signal after `delay` if there is one.
    fn during<R>(&self, delay: Option<Duration>, calls: impl FnOnce() -> R) -> R {
        if let Some(flag) = HAS_COME.get() {
            flag.store(false, Ordering::Relaxed);
        }
        IS_ARMED.store(delay.is_some(), Ordering::Relaxed);
        if let Some(delay) = delay {
            // The thread ends with this value.
            let _ = self.0.send(delay);
        }
        let called = calls();
        IS_ARMED.store(false, Ordering::Relaxed);
        called
    }
}

/// How it has gone so far, at this rank.
#[derive(Clone, Copy, Debug, Default)]
pub struct Given {
    /// Rounds of messages and collectives.
    pub rounds: u64,
    /// Messages that this rank sent or received.
    pub messages: u64,
    /// Those of them that it gave up.
    pub given_up: u64,
    /// Messages that came although their receive had been given up before.
    pub kept: u64,
    /// Collectives that some rank gave up.
    pub collectives: u64,
}

impl fmt::Display for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Given { rounds, messages, given_up, kept, collectives } = self;
        let interrupted = INTERRUPTED.load(Ordering::Relaxed);
        write!(
            f,
            "{rounds} rounds; {messages} messages of rank 0, {given_up} given up and {kept} "
        )?;
        write!(f, "of these received later; {collectives} collectives given up by some rank; ")?;
        write!(f, "{interrupted} calls of rank 0 interrupted")
    }
}

struct Message {
    from: usize,
    to: usize,
    words: Vec<u64>,
}

fn draw(seed: u64, size: usize) -> Vec<Message> {
    let mut dice = Dice::new(seed);
    let message = |_| {
        let (from, to) = (dice.below(size), dice.below(size));
        let most = 1 << dice.below(LONGEST.ilog2() as usize + 1);
        let length = 2 + dice.below(most);
        let mut content = Dice::new(dice.draw() >> 1);
        // No word of it is the end.
        Message { from, to, words: (0..length).map(|_| content.draw() >> 1).collect() }
    };
    (0..MESSAGES).map(message).collect()
}

/// Rounds of such calls for so long, as rank 0's clock says.
pub fn unruly(
    comm: &Communicator,
    seed: u64,
    lasts: Duration,
    tell: impl Fn(&Given),
) -> Result<Given, String> {
    comm.set_interrupt_check(is_interrupted);
    let (alarm, begin, mut told) = (Alarm::start()?, Instant::now(), 0);
    let mut given = Given::default();
    let mut work = comm.split(0, comm.rank() as i64).map_err(said)?;
    loop {
        let lasted = begin.elapsed();
        let mut goes_on = [u8::from(lasted < lasts)];
        comm.broadcast(&mut goes_on, 0).map_err(said)?;
        if goes_on == [0] {
            return Ok(given);
        }
        if comm.rank() == 0 && lasted.as_secs() / 60 > told {
            told = lasted.as_secs() / 60;
            tell(&given);
        }
        let round = given.rounds;
        let failed =
            |why: String| format!("seed {seed}, round {round}, rank {}: {why}", comm.rank());
        let of_round = seed ^ round.wrapping_mul(0x2545_f491_4f6c_dd1d);
        // What only this rank does.
        let mut own = Dice::new(of_round.wrapping_add(1 + comm.rank() as u64));
        if round % 3 < 2 {
            let messages = draw(of_round, comm.size());
            exchange(&work, comm, &alarm, &messages, &mut own, &mut given).map_err(failed)?;
        } else if call(&work, comm, &alarm, of_round, &mut own).map_err(failed)? {
            given.collectives += 1;
            work = comm.split(0, comm.rank() as i64).map_err(said)?;
        }
        given.rounds += 1;
    }
}

#[expect(clippy::needless_pass_by_value, reason = "it is mapped by")]
fn said(error: CommError) -> String {
    error.to_string()
}

/// A moment for a signal, now and then.
fn moment(dice: &mut Dice) -> Option<Duration> {
    let micros = dice.below(LATEST.as_micros() as usize) as u64;
    (dice.below(2) == 0).then(|| Duration::from_micros(micros))
}

/// Whether a call was given up, which is the only way in which it may have failed.
fn is_given_up(error: &CommError) -> Result<bool, String> {
    match error.cause {
        Cause::Interrupted => {
            INTERRUPTED.fetch_add(1, Ordering::Relaxed);
            Ok(true)
        }
        Cause::Cancelled | Cause::Withdrawn(_) | Cause::OutOfStep { .. } => Ok(true),
        _ => Err(error.to_string()),
    }
}

fn exchange(
    work: &Communicator,
    control: &Communicator,
    alarm: &Alarm,
    messages: &[Message],
    dice: &mut Dice,
    given: &mut Given,
) -> Result<(), String> {
    let me = work.rank();
    let ours = |of: fn(&Message) -> usize| {
        (0..).zip(messages).filter(move |(_, message)| of(message) == me)
    };
    let mut buffers: Vec<(usize, Vec<u64>)> =
        ours(|message| message.to).map(|(tag, m)| (tag, vec![0; m.words.len() + 1])).collect();
    // By message: what this rank knows to have been sent and received.
    let (mut sent, mut came, mut ended) = (0_u64, 0_u64, 0_u64);
    let drops = dice.below(8) == 0;
    let result = alarm.during(moment(dice), || {
        work.scope(|scope| {
            let mut requests = Vec::new();
            for (tag, data) in &mut buffers {
                let from = messages[*tag].from;
                requests.push((*tag, false, scope.irecv(data, from, *tag as u32)?));
            }
            for (tag, message) in ours(|message| message.from) {
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
                    Ok(_) if is_send => sent |= 1 << tag,
                    // A message that was given up before it was sent: the end is all that comes.
                    Ok(received) if received.length < messages[tag].words.len() => {
                        ended |= 1 << tag;
                    }
                    Ok(_) => came |= 1 << tag,
                    Err(error) => wrong = is_given_up(&error).err().or(wrong),
                }
            }
            Ok(wrong)
        })
    });
    match result {
        Ok(None) => {}
        Ok(Some(wrong)) => return Err(wrong),
        Err(error) => drop(is_given_up(&error)?),
    }
    for (tag, data) in &buffers {
        if came >> tag & 1 == 1 {
            check(*tag, &messages[*tag], data)?;
        } else if ended >> tag & 1 == 1 && data[..1] != END {
            return Err(format!("message {tag} of {} is too short", messages[*tag].from));
        }
    }
    let mine = ours(|message| message.to).count() + ours(|message| message.from).count();
    given.messages += mine as u64;
    given.given_up += mine as u64 - u64::from(sent.count_ones() + came.count_ones());
    for (tag, message) in ours(|message| message.from) {
        work.send(&END, message.to, tag as u32).map_err(said)?;
    }
    let first = came;
    drain(work, messages, &mut buffers, (&mut came, &mut ended))?;
    given.kept += u64::from((came & !first).count_ones());
    // Those whose sends held have come, here or before.
    let mut all = vec![0; work.size()];
    control.all_gather(&[sent], &mut all).map_err(said)?;
    let due = all.iter().fold(0, |due, sent| due | sent);
    for (tag, _) in ours(|message| message.to) {
        // One that came before its receive was dropped is gone with it.
        if due >> tag & 1 == 1 && came >> tag & 1 == 0 && !drops {
            return Err(format!("message {tag} of {} is missing", messages[tag].from));
        }
    }
    Ok(())
}

/// Receives what is left of the messages until the end of each. All of them at once, since senders wait
/// for their long ones before they send any end.
fn drain(
    work: &Communicator,
    messages: &[Message],
    buffers: &mut [(usize, Vec<u64>)],
    (came, ended): (&mut u64, &mut u64),
) -> Result<(), String> {
    loop {
        let mut left: Vec<&mut (usize, Vec<u64>)> =
            buffers.iter_mut().filter(|(tag, _)| *ended >> tag & 1 == 0).collect();
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
        for ((tag, data), received) in left.into_iter().zip(received.map_err(said)?) {
            let (of, bit) = (&messages[*tag], 1 << *tag);
            match received {
                Ok(received) if data[..received.length] == END => *ended |= bit,
                Ok(received) if *came & bit != 0 || received.length != of.words.len() => {
                    return Err(format!("message {tag} of {} has come twice or short", of.from));
                }
                Ok(_) => {
                    *came |= bit;
                    check(*tag, of, data)?;
                }
                Err(CommError { cause: Cause::Withdrawn(_), .. }) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
    }
}

fn check(tag: usize, message: &Message, data: &[u64]) -> Result<(), String> {
    let length = message.words.len();
    (data[..length] == message.words)
        .then_some(())
        .ok_or_else(|| format!("message {tag} of {} is wrong", message.from))
}

/// A collective that ranks may give up; whether one has.
fn call(
    work: &Communicator,
    control: &Communicator,
    alarm: &Alarm,
    seed: u64,
    dice: &mut Dice,
) -> Result<bool, String> {
    let mut of_all = Dice::new(seed);
    let most = 1 << of_all.below(LONGEST.ilog2() as usize);
    let (count, which) = (1 + of_all.below(most), of_all.below(3));
    let (me, size) = (work.rank() as u64, work.size() as u64);
    let own: Vec<u64> = (0..count as u64).map(|at| at * 7 + me).collect();
    let mut data = own.clone();
    let moment = if dice.below(4) == 0 { moment(dice) } else { None };
    let ended = alarm.during(moment, || match which {
        0 => work.all_reduce(&own, &mut data, Op::Sum),
        1 => work.broadcast(&mut data, 0),
        _ => work.barrier(),
    });
    let gave_up = match &ended {
        Ok(()) => false,
        Err(error) => is_given_up(error)?,
    };
    let expected = |at: u64| match which {
        0 => at * 7 * size + size * (size - 1) / 2,
        1 => at * 7,
        _ => at * 7 + me,
    };
    if !gave_up && (0..).zip(&data).any(|(at, word)| *word != expected(at)) {
        return Err("a collective has a wrong result".to_owned());
    }
    let mut all = [0_u64];
    control.all_reduce(&[u64::from(gave_up)], &mut all, Op::Max).map_err(said)?;
    if all == [0] {
        return Ok(false);
    }
    match work.barrier() {
        Err(CommError { cause: Cause::OutOfStep { .. }, .. }) => Ok(true),
        Err(error) => Err(error.to_string()),
        Ok(()) => Err("a collective holds after one that was given up".to_owned()),
    }
}
