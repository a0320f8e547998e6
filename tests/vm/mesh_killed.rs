//! Processes that are killed while the mesh is proved: no queue pair and no process is left, and
//! the processes that still run report what happened.

use crate::background::{Background, until};
use crate::support::{ALL, Field};

/// Delays in seconds between the start of a process and its end by SIGKILL: provers open their
/// devices, exchange adverts, connect and write during this time.
const MOMENTS: [&str; 2] = ["0.1", "0.6"];

/// Starts a job that proves its mesh.
fn start(field: &Field) -> Background {
    Background::start(field, &format!("-H {ALL} --hca rxe --mesh-timeout 10 true"))
}

/// Runs `act` in a shell on n2 when a process called `name` has run there for `moment`, with its
/// number in `$pid`.
fn after(field: &Field, (name, moment): (&str, &str), act: &str) {
    let line = format!(
        "timeout 40 sh -c 'until pid=$(pgrep -o \"^{name}\"); do sleep 0.02; done; \
         sleep {moment}; {act}'"
    );
    // The process may have ended by itself already.
    field.tries("n2", &line);
}

/// Starts a job, kills the process called `name` on n2 after `moment`, and waits until nothing of
/// the job is left. Returns its exit code and its stderr.
fn killed(field: &Field, name: &str, moment: &str) -> (i32, String) {
    let job = start(field);
    after(field, (name, moment), "kill -9 $pid");
    let (code, said) = (job.ends(), job.said());
    nothing_is_left(field, &said);
    (code, said)
}

/// Waits until nothing of a job that said this is left.
fn nothing_is_left(field: &Field, said: &str) {
    for guest in ["n1", "n2", "n3"] {
        let left = || {
            let processes = field.tries(guest, "pgrep -a ^rlaunch").out;
            let pairs = field.on(guest, "rdma resource show qp | grep rlaunch || true");
            format!("{processes}{pairs}")
        };
        until(|| left().is_empty(), || format!("left on {guest}: {}\n{said}", left()));
    }
}

#[test]
fn a_killed_prover_leaves_its_host_to_tcp() {
    let field = Field::new();
    for moment in MOMENTS {
        let (code, said) = killed(&field, "rlaunch-prover", moment);
        assert_eq!(code, 0, "{said}");
        // A prover that was killed after the proof may not be reported in such a short job.
        let is_said = said.contains("n2: rlaunch-prover: it has ended: TCP is used");
        let was_proved = said.contains("6/6 paths up");
        assert!(is_said || was_proved || said.contains("no RDMA between"), "{said}");
    }
}

#[test]
fn a_killed_agent_is_a_lost_node() {
    let field = Field::new();
    let (code, said) = killed(&field, "rlaunch-worker", "0.6");
    // The job may have ended before.
    assert!(code == 0 || said.contains("node n2 is lost"), "{code:?} {said}");
}

#[test]
fn a_killed_launcher_takes_everything_with_it() {
    let field = Field::new();
    let job = start(&field);
    after(&field, ("rlaunch-prover", "0.3"), "true");
    job.kill();
    nothing_is_left(&field, &job.said());
}
