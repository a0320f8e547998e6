//! Nobody goes on before everyone has come.

use super::plan::Plan;
use super::{Member, Schedule};

/// In each round everyone tells whoever is twice as far ahead as before. ⌈log₂ size⌉ rounds.
pub fn dissemination(me: Member) -> Schedule {
    let mut plan = Plan::default();
    for round in 0..me.rounds() {
        let distance = 1 << round;
        plan.signal(me.ahead(distance));
        plan.await_signal(me.behind(distance));
        plan.then();
    }
    plan.finish()
}
