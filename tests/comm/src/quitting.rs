//! Ranks that give up what they have begun, and ranks that leave while others wait for them.

use rlaunch_comm::{Communicator, Op};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Whether this rank's waits are to end.
static QUITS: AtomicBool = AtomicBool::new(false);

fn quits() -> bool {
    QUITS.load(Ordering::Relaxed)
}

/// Ranks meet by their agents, beside the communicator.
fn meet(name: &str) -> Result<(), String> {
    let met = Command::new("rlaunch").args(["barrier", name]).status();
    let met = met.map_err(|error| error.to_string())?;
    met.success().then_some(()).ok_or(format!("rlaunch barrier {name}: {met}"))
}

/// Rank 0 gives up a long message and uses its memory for something else; then rank 1 receives.
/// Rank 1 says what came of that, and then gets the message that follows.
pub fn give_up_a_message(comm: &Communicator) -> Result<String, String> {
    let mut data = vec![1_u8; 1 << 20];
    match comm.rank() {
        0 => {
            comm.set_interrupt_check(quits);
            QUITS.store(true, Ordering::Relaxed);
            let given_up = comm.send(&data, 1, 7).expect_err("rank 1 receives later");
            QUITS.store(false, Ordering::Relaxed);
            println!("rank 0: {given_up}");
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

/// Rank 2 gives up a collective of so many elements. Each rank says what becomes of its calls; then
/// all use another communicator.
pub fn give_up_a_collective(comm: &Communicator, elements: usize) -> Result<String, String> {
    let failed = |error: rlaunch_comm::CommError| error.to_string();
    let other = comm.split(0, comm.rank() as i64).map_err(failed)?;
    let (own, mut sum) = (vec![1_u64; elements], vec![0; elements]);
    let mut call = || match comm.all_reduce(&own, &mut sum, Op::Sum) {
        Ok(()) => "it holds".to_owned(),
        Err(error) => error.to_string(),
    };
    let mut said = Vec::new();
    if comm.rank() == 2 {
        comm.set_interrupt_check(quits);
        QUITS.store(true, Ordering::Relaxed);
        said.push(call());
        QUITS.store(false, Ordering::Relaxed);
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

/// Rank 1 leaves after so many messages to rank 0, which receives one more than there are, and says
/// how that ends. They meet for the first time then.
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
    // The news that rank 1 has left is there before rank 0 looks for its messages.
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
