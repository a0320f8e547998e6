//! Nobody goes on before everyone has come.

use super::builder::ScheduleBuilder;
use super::{Member, Schedule};

/// In each round everyone tells whoever is twice as far ahead as before. ⌈log₂ size⌉ rounds.
pub fn dissemination(me: Member) -> Schedule {
    let mut builder = ScheduleBuilder::default();
    for round in 0..me.rounds() {
        let distance = 1 << round;
        builder.signal(me.ahead(distance));
        builder.await_signal(me.behind(distance));
        builder.then();
    }
    builder.finish()
}
