//! Barrier algorithms: no rank continues before all ranks have arrived.

use super::builder::ScheduleBuilder;
use super::{Member, Schedule};

/// Builds a barrier of ⌈log₂ size⌉ rounds. The distance is 1 in the first round and doubles in each
/// further round; each rank signals the rank at this distance ahead, and awaits a signal from the
/// rank at this distance behind.
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
