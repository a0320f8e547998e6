//! Messages of ranks that fork in between, like programs that load data in child processes. Devices
//! must read and write the parent's memory, whichever process writes to a page first.

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use rlaunch_comm::{Cause, Communicator, Registered};
use std::thread;
use std::time::Duration;

/// Length of an eager message, and of one that a device writes directly, in words.
const SHORT: usize = 1 << 8;
const LONG: usize = 1 << 17;
/// Number of times that a child overwrites its memory, and the pause in between.
const WRITES: u64 = 4;
const REST: Duration = Duration::from_millis(50);

/// Memory of a rank, allocated before the first fork.
struct Memory {
    own: Registered<u64>,
    came: Registered<u64>,
    /// Memory that the communicator registers anew for each message.
    plain: Vec<u64>,
}

/// Sends from each rank to the next and forks in each round. Children keep running, overwrite their
/// copies of the memory, and check that their copy of the communicator refuses calls.
pub fn forks(comm: &Communicator, rounds: u64) -> Result<(), String> {
    let said = |error: rlaunch_comm::CommError| error.to_string();
    let (me, size) = (comm.rank() as u64, comm.size());
    let (next, last) = ((comm.rank() + 1) % size, (comm.rank() + size - 1) % size);
    let mut memory = Memory {
        own: comm.buffer(LONG).map_err(said)?,
        came: comm.buffer(LONG).map_err(said)?,
        plain: vec![0; LONG],
    };
    let mut children = Vec::new();
    for round in 0..rounds {
        match rlaunch_sys::fork().map_err(|error| format!("fork: {error}"))? {
            rlaunch_sys::Fork::Child => child(comm, memory),
            rlaunch_sys::Fork::Parent(pid) => children.push(Pid::from_raw(pid)),
        }
        for length in [SHORT, LONG] {
            let value = |rank: u64, at: usize| rank << 48 | round << 32 | at as u64;
            memory.own.iter_mut().enumerate().for_each(|(at, word)| *word = value(me, at));
            memory.came.fill(u64::MAX);
            memory.plain.fill(u64::MAX);
            let tag = round as u32;
            let (own, came) = (&memory.own[..length], &mut memory.came[..length]);
            comm.sendrecv(own, (next, tag), came, (last, tag)).map_err(said)?;
            let plain = &mut memory.plain[..length];
            comm.sendrecv(own, (next, tag), plain, (last, tag)).map_err(said)?;
            for came in [&memory.came[..], &memory.plain] {
                let is_right = |(at, word): (usize, &u64)| {
                    *word == if at < length { value(last as u64, at) } else { u64::MAX }
                };
                if let Some(at) = came.iter().enumerate().position(|word| !is_right(word)) {
                    return Err(format!("round {round}: word {at} of {length} is {:x}", came[at]));
                }
            }
        }
    }
    for child in children {
        match waitpid(child, None) {
            Ok(WaitStatus::Exited(_, 0)) => {}
            other => return Err(format!("a child ended otherwise than it should: {other:?}")),
        }
    }
    Ok(())
}

/// Runs a child, which exits with 0 if all calls were refused.
fn child(comm: &Communicator, mut memory: Memory) -> ! {
    for write in 0..WRITES {
        memory.plain.fill(write);
        thread::sleep(REST);
    }
    let refused = |error: rlaunch_comm::CommError| matches!(error.cause, Cause::Forked);
    let is_refused = comm.send(&[1_u8], 0, 0).is_err_and(refused)
        && comm.barrier().is_err_and(refused)
        && comm.buffer::<u8>(1).is_err_and(refused);
    drop(memory);
    std::process::exit(i32::from(!is_refused))
}
