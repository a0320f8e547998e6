//! Whatever is killed while the mesh comes about: no queue pair and no process is left, and whoever
//! is still there says what happened.

use crate::background::{Background, until};
use crate::support::{ALL, Field};

/// How long after its start the victim is killed, in seconds: while provers open their devices, tell
/// each other of them, connect and write.
const MOMENTS: [&str; 2] = ["0.1", "0.6"];

/// Starts a job, kills the process of this name on `guest` at `moment`, and returns the job's code
/// and words once nothing of it is left.
fn killed(field: &Field, guest: &str, name: &str, moment: &str) -> (Option<i32>, String) {
    let words = format!("-H {ALL} --hca rxe --mesh-timeout 10 true");
    let job = Background::start(field, &words);
    let line = format!(
        "timeout 40 sh -c 'until pid=$(pgrep -o \"^{name}\"); do sleep 0.02; done; \
         sleep {moment}; kill -9 $pid'"
    );
    // It may have ended by itself by then.
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
        // After the proof it is missed by nobody in a job as short as this.
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
        // The job may have been over.
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
