//! Processes that are killed while the mesh is proved: no queue pair and no process is left, and
//! the processes that still run report what happened.

use crate::background::{Background, until};
use crate::support::{ALL, Field};

/// Delays in seconds between the start of a process and its end by SIGKILL: provers open their
/// devices, exchange adverts, connect and write during this time.
const MOMENTS: [&str; 2] = ["0.1", "0.6"];

/// Starts a job, kills the process called `name` on `guest` after `moment`, and waits until nothing
/// of the job is left. Returns the job's exit code, `None` if rlaunch was the process to kill, and
/// its stderr.
fn killed(field: &Field, guest: &str, name: &str, moment: &str) -> (Option<i32>, String) {
    let words = format!("-H {ALL} --hca rxe --mesh-timeout 10 true");
    let job = Background::start(field, &words);
    let line = format!(
        "timeout 40 sh -c 'until pid=$(pgrep -o \"^{name}\"); do sleep 0.02; done; \
         sleep {moment}; kill -9 $pid'"
    );
    // The process may have ended by itself already.
    field.tries(guest, &line);
    let code = (name != "rlaunch$").then(|| job.ends());
    let said = job.said();
    for guest in ["n1", "n2", "n3"] {
        let left = || {
            let processes = field.tries(guest, "pgrep -a ^rlaunch").out;
            let pairs = field.on(guest, "rdma resource show qp | grep rlaunch || true");
            format!("{processes}{pairs}")
        };
        until(|| left().is_empty(), || format!("left on {guest}: {}\n{said}", left()));
    }
    (code, said)
}

#[test]
fn a_killed_prover_leaves_its_host_to_tcp() {
    let field = Field::new();
    for moment in MOMENTS {
        let (code, said) = killed(&field, "n2", "rlaunch-prover", moment);
        assert_eq!(code, Some(0), "{said}");
        // A prover that was killed after the proof may not be reported in such a short job.
        let is_said = said.contains("n2: rlaunch-prover: it has ended: TCP is used");
        let was_proved = said.contains("6/6 paths up");
        assert!(is_said || was_proved || said.contains("no RDMA between"), "{said}");
    }
}

#[test]
fn a_killed_agent_is_a_lost_node() {
    let field = Field::new();
    for moment in MOMENTS {
        let (code, said) = killed(&field, "n2", "rlaunch-worker", moment);
        // The job may have ended before.
        assert!(code == Some(0) || said.contains("node n2 is lost"), "{code:?} {said}");
    }
}

#[test]
fn a_killed_launcher_takes_everything_with_it() {
    let field = Field::new();
    for moment in ["1", "2.5"] {
        killed(&field, "n1", "rlaunch$", moment);
    }
}
