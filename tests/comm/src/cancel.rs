//! Ranks that cancel operations, and ranks that leave while others wait for them.

use rlaunch_comm::{Communicator, Op};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Whether calls of this rank that are waiting shall be interrupted.
static INTERRUPTS: AtomicBool = AtomicBool::new(false);

fn is_interrupted() -> bool {
    INTERRUPTS.load(Ordering::Relaxed)
}

/// Waits for the other ranks through the agents instead of the communicator.
fn meet(name: &str) -> Result<(), String> {
    let met = Command::new("rlaunch").args(["barrier", name]).status();
    let met = met.map_err(|error| error.to_string())?;
    met.success().then_some(()).ok_or(format!("rlaunch barrier {name}: {met}"))
}

/// Cancels a long message at rank 0, which then reuses the memory, before rank 1 receives the
/// message. Rank 1 prints the outcome of its receive, and then receives the next message.
pub fn cancel_a_message(comm: &Communicator) -> Result<String, String> {
    let mut data = vec![1_u8; 1 << 20];
    match comm.rank() {
        0 => {
            comm.set_interrupt_check(is_interrupted);
            INTERRUPTS.store(true, Ordering::Relaxed);
            let failed_send = comm.send(&data, 1, 7).expect_err("rank 1 receives later");
            INTERRUPTS.store(false, Ordering::Relaxed);
            println!("rank 0: {failed_send}");
            data.fill(9);
            meet("given up")?;
            meet("received")?;
            comm.send(&data, 1, 7).map_err(|error| error.to_string())?;
        }
        1 => {
            meet("given up")?;
            match comm.recv(&mut data, 0, 7) {
                Ok(_) => println!("rank 1: received {} {}", data[0], data[data.len() - 1]),
                Err(error) => println!("rank 1: {error}"),
            }
            meet("received")?;
            comm.recv(&mut data, 0, 7).map_err(|error| error.to_string())?;
            if data.iter().any(|byte| *byte != 9) {
                return Err("the message that follows is wrong".to_owned());
            }
        }
        _ => {
            meet("given up")?;
            meet("received")?;
        }
    }
    Ok("both messages are accounted for".to_owned())
}

/// Cancels a collective at rank 2. Each rank prints the outcome of its calls; then all ranks use
/// another communicator.
pub fn cancel_a_collective(comm: &Communicator, elements: usize) -> Result<String, String> {
    let failed = |error: rlaunch_comm::CommError| error.to_string();
    let other = comm.split(0, comm.rank() as i64).map_err(failed)?;
    let (own, mut sum) = (vec![1_u64; elements], vec![0; elements]);
    let mut call = || match comm.all_reduce(&own, &mut sum, Op::Sum) {
        Ok(()) => "it holds".to_owned(),
        Err(error) => error.to_string(),
    };
    let mut said = Vec::new();
    if comm.rank() == 2 {
        comm.set_interrupt_check(is_interrupted);
        INTERRUPTS.store(true, Ordering::Relaxed);
        said.push(call());
        INTERRUPTS.store(false, Ordering::Relaxed);
        meet("given up")?;
    } else {
        meet("given up")?;
        said.push(call());
    }
    said.push(call());
    for (call, said) in (1..).zip(said) {
        println!("rank {}, call {call}: {said}", comm.rank());
    }
    let mut ranks = [0_u64];
    other.all_reduce(&[1], &mut ranks, Op::Sum).map_err(failed)?;
    (ranks == [comm.size() as u64]).then(String::new).ok_or("a wrong sum".to_owned())
}

/// Sends `messages` messages from rank 1, which then leaves. Rank 0 receives one message more and
/// returns the error. The two ranks have not communicated before.
pub fn leave(comm: &Communicator, messages: u8) -> Result<String, String> {
    let failed = |error: rlaunch_comm::CommError| error.to_string();
    if comm.rank() > 0 {
        let sends = comm.rank() == 1;
        return (0..messages)
            .filter(|_| sends)
            .try_for_each(|number| comm.send(&[number], 0, 0))
            .map_err(failed)
            .map(|()| String::new());
    }
    // Rank 0 shall know that rank 1 has left before it looks for the messages.
    thread::sleep(Duration::from_secs(1));
    let mut data = [0_u8];
    for number in 0..messages {
        comm.recv(&mut data, 1, 0).map_err(failed)?;
        if data != [number] {
            return Err(format!("{data:?} in place of message {number}"));
        }
    }
    let left = comm.recv(&mut data, 1, 0).expect_err("no message was sent");
    Ok(format!("{messages} messages, then {left}"))
}
