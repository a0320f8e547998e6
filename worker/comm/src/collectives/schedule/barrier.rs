//! Barrier algorithms: no rank continues before all ranks have arrived.

use super::builder::ScheduleBuilder;
use super::{Member, Schedule};

/// Builds a barrier in ⌈log₂ size⌉ rounds: each rank signals the rank 1, 2, 4, … ahead and awaits a
/// signal from the rank as far behind, one distance in each round.
pub fn dissemination(me: Member) -> Schedule {
    let mut builder = ScheduleBuilder::default();
    for round in 0..me.rounds() {
        let distance = 1 << round;
        builder.signal(me.ahead(distance));
        builder.await_signal(me.behind(distance));
        builder.begin_step();
    }
    builder.finish()
}
