//! Command that runs a part of the suite as a rank. Rank 0 prints the result.

use rlaunch_comm::{Communicator, Op, error_chain};
use rlaunch_comm_suite as suite;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

const USAGE: &str = "comm-suite all | cover [PART/PARTS] | long ELEMENTS | stream MESSAGES [registered] | forks ROUNDS | \
                     traffic SECONDS | pair LINE | lose RANK SIGNAL|EXIT|LEAVE ELEMENTS | abort | \
                     give-up | give-up-all ELEMENTS | leave MESSAGES | unruly SECONDS SEED";
/// Calls that must succeed before a rank is lost.
const CALLS: usize = 50;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match part(&words) {
        Ok(said) => {
            said.into_iter().for_each(|line| println!("{line}"));
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a part of the suite. Returns the line to print, if any.
fn part(words: &[&str]) -> Result<Option<String>, String> {
    let comm = Communicator::from_env().map_err(|error| {
        let hint = error.hint().map(|hint| format!("\nhint: {hint}")).unwrap_or_default();
        format!("{}{hint}", error_chain(&error))
    })?;
    let (me, size) = (comm.rank(), comm.size());
    let cases = |cases: Vec<suite::Case>| {
        cases.iter().try_for_each(|case| suite::run(&comm, case))?;
        Ok::<_, String>(format!("{} cases hold among {size} ranks", cases.len()))
    };
    let said = match words {
        ["all"] => cases(suite::all()),
        ["cover"] => cases(suite::cover()),
        ["cover", part] => cases(share(part).ok_or(USAGE)?),
        ["long", elements] => {
            let elements = elements.parse().map_err(|_| USAGE)?;
            Ok(format!("{} cases hold among {size} ranks", suite::long(&comm, elements)?))
        }
        ["traffic", seconds] => {
            let seconds = seconds.parse().map_err(|_| USAGE)?;
            let tell = |progress: &suite::TrafficReport| println!("{progress}");
            let rounds = suite::traffic(&comm, Duration::from_secs(seconds), tell)?;
            Ok(format!("{rounds} rounds of messages among {size} ranks"))
        }
        ["pair", line] => pair(&comm, line),
        ["stream", messages] => stream(&comm, messages.parse().map_err(|_| USAGE)?, false),
        ["stream", messages, "registered"] => {
            stream(&comm, messages.parse().map_err(|_| USAGE)?, true)
        }
        ["forks", rounds] => {
            let rounds = rounds.parse().map_err(|_| USAGE)?;
            suite::forks(&comm, rounds)?;
            Ok(format!("{rounds} forks during messages among {size} ranks"))
        }
        ["lose", rank, how, elements] => {
            let elements = elements.parse().map_err(|_| USAGE)?;
            lose(&comm, rank.parse().map_err(|_| USAGE)?, how, elements)
        }
        // The other ranks wait in the barrier for a rank that never arrives.
        ["abort"] if me == 1 => Err(comm.abort("no data").to_string()),
        ["abort"] => Ok(String::new()),
        ["give-up"] => suite::cancel_a_message(&comm),
        ["give-up-all", elements] => {
            let elements = elements.parse().map_err(|_| USAGE)?;
            return suite::cancel_a_collective(&comm, elements).map(|_| None);
        }
        ["unruly", seconds, seed] => {
            let seconds: u64 = seconds.parse().map_err(|_| USAGE)?;
            let tell = |report: &suite::CancelReport| println!("{report}");
            let seed = seed.parse().map_err(|_| USAGE)?;
            let report = suite::cancel_randomly(&comm, seed, Duration::from_secs(seconds), tell)?;
            Ok(format!("seed {seed}: {report}"))
        }
        ["leave", messages] => {
            let messages = messages.parse().map_err(|_| USAGE)?;
            return suite::leave(&comm, messages).map(|said| (me == 0).then_some(said));
        }
        _ => Err(USAGE.to_owned()),
    }?;
    comm.barrier().map_err(|error| error.to_string())?;
    Ok((me == 0).then_some(said))
}

/// Returns one share of the cases, such as `1/3`.
fn share(part: &str) -> Option<Vec<suite::Case>> {
    let (part, parts) = part.split_once('/')?;
    let (part, parts): (usize, usize) = (part.parse().ok()?, parts.parse().ok()?);
    let mut shares = suite::cover_by(Some(parts).filter(|parts| (1..=8).contains(parts))?);
    (1..=parts).contains(&part).then(|| shares.swap_remove(part - 1))
}

/// Exchanges messages between ranks 0 and 1 only; then all ranks run a shell command.
fn pair(comm: &Communicator, line: &str) -> Result<String, String> {
    let said = |error: rlaunch_comm::CommError| error.to_string();
    for length in [1, 1 << 12, 1 << 20] {
        let own = vec![comm.rank() as u8; length];
        let mut came = vec![9; length];
        let Some(other) = 1_usize.checked_sub(comm.rank()) else { continue };
        comm.sendrecv(&own, (other, 0), &mut came, (other, 0)).map_err(said)?;
        if came.iter().any(|byte| usize::from(*byte) != other) {
            return Err(format!("{length} bytes of rank {other} have come wrong"));
        }
    }
    let ran = Command::new("sh").args(["-c", line]).status();
    let ran = ran.map_err(|error| error.to_string())?;
    ran.success().then(|| "2 ranks have spoken".to_owned()).ok_or(format!("sh: {ran}"))
}

/// Sends long messages from rank 0 to rank 1, from memory that is registered once or for each
/// message.
fn stream(comm: &Communicator, messages: usize, registered: bool) -> Result<String, String> {
    const LENGTH: usize = 1 << 20;
    let said = |error: rlaunch_comm::CommError| error.to_string();
    let mut vector = vec![comm.rank() as u8; LENGTH];
    let mut buffer = registered.then(|| comm.buffer::<u8>(LENGTH)).transpose().map_err(said)?;
    let data = buffer.as_deref_mut().unwrap_or(&mut vector);
    let mut times = Vec::with_capacity(messages);
    for message in 0..messages {
        let begin = Instant::now();
        let done = match comm.rank() {
            0 => comm.send(data, 1, message as u32),
            1 => comm.recv(data, 0, message as u32).map(drop),
            _ => Ok(()),
        };
        done.map_err(said)?;
        times.push(begin.elapsed().as_micros());
    }
    times.sort_unstable();
    let median = times.get(messages / 2).copied().unwrap_or(0);
    Ok(format!("{messages} messages from rank 0 to rank 1, {median} us each"))
}

/// Runs all-reduces until `rank` exits or sends itself a signal, and then until the other ranks
/// notice the loss. Rank 0 prints a line when the loss is due.
fn lose(comm: &Communicator, rank: usize, how: &str, elements: usize) -> Result<String, String> {
    let (own, mut sum) = (vec![1_u64; elements], vec![0; elements]);
    for call in 0.. {
        if call == CALLS && comm.rank() == 0 {
            println!("{CALLS} calls hold");
        }
        if call == CALLS && comm.rank() == rank {
            // Exit without the goodbye packets that end connections.
            match how {
                "EXIT" => std::process::exit(3),
                "LEAVE" => std::process::exit(0),
                _ => {}
            }
            let pid = std::process::id().to_string();
            let killed = Command::new("kill").args(["-s", how, &pid]).status();
            killed.map_err(|error| error.to_string())?;
        }
        comm.all_reduce(&own, &mut sum, Op::Sum).map_err(|error| error.to_string())?;
    }
    Ok(String::new())
}
