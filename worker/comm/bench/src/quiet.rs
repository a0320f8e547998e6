//! Barrier in which a rank may wait for as long as a measurement of others lasts.

use rlaunch_comm::{CommError, Communicator};
use std::thread;
use std::time::Duration;

/// Shortest and longest time between two looks at a barrier. The first ones are close together, since
/// most ranks enter at about the same time.
const SHORTEST: Duration = Duration::from_micros(20);
const LONGEST: Duration = Duration::from_millis(5);

/// Waits until all ranks have called this function. [`Communicator::barrier`] would report after
/// 10 s which ranks it waits for, though they only measure, and would use the processor meanwhile.
pub(crate) fn barrier(comm: &Communicator) -> Result<(), CommError> {
    comm.scope(|scope| {
        let (mut request, mut pause) = (scope.ibarrier()?, SHORTEST);
        loop {
            match scope.test(request)? {
                Ok(_) => return Ok(()),
                Err(pending) => request = pending,
            }
            thread::sleep(pause);
            pause = (pause * 2).min(LONGEST);
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_alone_does_not_wait() {
        barrier(&Communicator::from_env().unwrap()).unwrap();
    }
}
