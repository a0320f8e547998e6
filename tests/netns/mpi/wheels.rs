//! The newest libraries, of the Python package index. A Python program is not linked with its
//! library, so ranks are offered what each library needs.

use super::{DIRECTORY, HOSTS, PATIENCE};
use crate::engines::{BARE, Engine};
use crate::images::PROGRAMS;
use crate::support::Field;
use rlaunch_lab::mpi::WHEELS;
use std::path::Path;

#[test]
fn results_are_right() {
    super::results_are_right(&WHEELS);
}

/// Docker's filter of system calls forbids ranks to read each other's memory.
#[test]
fn results_are_right_in_containers_of_docker() {
    let field = Field::new();
    let _engine = Engine::Docker.on(&field, &HOSTS);
    let _programs = field.scratch(&HOSTS, DIRECTORY);
    let volumes = format!(
        "{PROGRAMS} --volume /run/rlaunch-mpi:/run/rlaunch-mpi:ro --volume {DIRECTORY}:{DIRECTORY}:ro"
    );
    for library in &WHEELS {
        println!("with {}:", library.name);
        let (path, contents) = (format!("{DIRECTORY}/program"), library.program().unwrap());
        for host in HOSTS {
            field.lab.write_file(host, Path::new(&path), &contents, 0o755).unwrap();
        }
        let run = field.rlaunch(&format!("-H a:2,b:2 --image {BARE} {volumes}")).within(PATIENCE);
        let run = run.args(library.words(&path)).args(["all", "65536"]);
        let ran = run.spawn().finish_first();
        assert!(ran.succeeded().out().contains("right on 4 ranks"), "{ran}");
    }
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
