//! The prover without agents, on real devices: its own tests, run in a guest.

use crate::support::Field;

/// Path of the prover on n1.
pub(crate) const PROVER: &str = "/share/lib/rlaunch/x86_64-unknown-linux-gnu/rlaunch-prover";

/// Runs the test `name` of the prover on n1, between two devices, with the variables `more`.
pub(crate) fn passes(field: &Field, name: &str, ends: &str, more: &str) {
    let line = format!(
        "RLAUNCH_PROVER={PROVER} RLAUNCH_PROVER_ENDS={ends} {more} \
         timeout 200 /share/two_provers --ignored --exact {name}"
    );
    let ran = field.tries("n1", &line);
    assert!(ran.succeeded().out.contains("1 passed"), "{ran}");
}

#[test]
fn two_provers_prove_watch_and_prove_again() {
    let field = Field::new();
    passes(&field, "paths_are_proved_watched_and_proved_again", "rxe0:1,rxe0:1", "");
    let waited = "what_a_peer_cannot_prepare_is_waited_for_by_the_other_end";
    passes(&field, waited, "rxe0:1,rxe0:1", "");
    let measured = "the_dialling_end_of_each_path_measures_it";
    passes(&field, measured, "rxe0:1,rxe0:1", "");
}
