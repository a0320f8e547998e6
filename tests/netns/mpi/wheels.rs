//! The newest libraries, of the Python package index. A Python program is not linked with its
//! library, so ranks are offered what each library needs.

use rlaunch_lab::mpi::WHEELS;

#[test]
fn results_are_right() {
    super::results_are_right(&WHEELS);
}

#[test]
fn mpi_abort_ends_the_job_with_its_code() {
    super::mpi_abort_ends_the_job_with_its_code(&WHEELS);
}

#[test]
fn a_rank_that_leaves_before_mpi_finalize_is_named() {
    super::a_rank_that_leaves_before_mpi_finalize_is_named(&WHEELS);
}

#[test]
fn a_rank_that_is_killed_in_a_collective_is_named() {
    super::a_rank_that_is_killed_in_a_collective_is_named(&WHEELS);
}

#[test]
fn several_programs_are_one_world_that_does_not_grow() {
    super::several_programs_are_one_world_that_does_not_grow(&WHEELS);
}
