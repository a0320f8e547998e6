//! Links that fail while a job runs are reported, and so is their return.

use crate::background::{Background, until};
use crate::support::{ALL, Field, Undo};
use rlaunch_lab::Cut;

/// Guests at both ends of the cable that fails.
const PAIR: &str = "n1,n2";

/// Options like [`crate::support::PATIENT`], for links that are watched: a guest's processor may be
/// busy for seconds, and a link that is said to be down cannot be taken back.
const PATIENT: &str = "--mesh-timeout 40 --rdma-timeout 17 --rdma-retries 6";

/// Returns the options of a job with devices `hca`, whose program runs until [`enough`] is called.
pub(crate) fn job(hca: &str, options: &str) -> String {
    job_on(PAIR, hca, options)
}

fn job_on(guests: &str, hca: &str, options: &str) -> String {
    format!(
        "-H {guests} --hca {hca} {PATIENT} --transport rdma {options} \
         sh -c \"until test -e /run/enough; do sleep 0.1; done\""
    )
}

/// Ends the programs.
pub(crate) fn enough(field: &Field) {
    for guest in ALL.split(',') {
        field.on(guest, "touch /run/enough");
    }
}

/// Prepares the guests, so that no program ends before [`enough`].
pub(crate) fn field() -> Field {
    let field = Field::new();
    for guest in ALL.split(',') {
        field.on(guest, "rm -f /run/enough");
    }
    field
}

#[test]
fn a_cable_that_is_pulled_is_named_and_so_is_its_return() {
    let field = field();
    // On three, to see that the cable alone is named.
    let job = Background::start(&field, &job_on(ALL, "rxe", ""));
    job.says("6/6 paths up");
    {
        let _heal = Undo(|| field.lab.heal("n1", "eth1"));
        field.lab.cut("n1", "eth1", Cut::Carrier).unwrap();
        job.says("link down: n1 rxe0 ↔ n2 rxe0");
    }
    job.says("ranks 0 and 1 use it");
    job.says("link up: n1 rxe0 ↔ n2 rxe0");
    enough(&field);
    assert_eq!(job.ends(), 0, "{}", job.said());
    assert_eq!(job.said().matches("link down: n").count(), 1, "{}", job.said());
}

#[test]
fn a_link_that_only_loses_packets_is_named() {
    let field = field();
    let job = Background::start(&field, &job("rxe", ""));
    job.says("2/2 paths up");
    let _heal = Undo(|| field.lab.heal("n2", "eth1"));
    loses_packets(&field, &job, ("n2", "eth1"), "link down: n1 rxe0 ↔ n2 rxe0");
}

/// Cuts a link silently, waits until it is named so, and for the end of the job.
pub(crate) fn loses_packets(field: &Field, job: &Background, link: (&str, &str), named: &str) {
    field.lab.cut(link.0, link.1, Cut::Silent).unwrap();
    job.says(named);
    // Retries are exhausted before heartbeats are missed, or afterwards on a busy guest. Soft-iWARP runs
    // over TCP, by which the kernel may find the peer unreachable.
    let hows = ["(no answer: transport retry counter exceeded", "(no beat for"];
    assert!(hows.iter().any(|how| job.said().contains(how)), "{}", job.said());
    enough(field);
    assert_eq!(job.ends(), 0, "{}", job.said());
}

#[test]
fn a_job_that_cannot_do_without_a_link_ends_with_it() {
    let field = field();
    let job = Background::start(&field, &job("rxe", "--abort-on-link-down"));
    job.says("2/2 paths up");
    let _heal = Undo(|| field.lab.heal("n1", "eth1"));
    field.lab.cut("n1", "eth1", Cut::Carrier).unwrap();
    assert_eq!(job.ends(), 205, "{}", job.said());
    assert!(job.said().contains("error: link down: n1 rxe0 ↔ n2 rxe0"), "{}", job.said());
}

#[test]
fn nobody_watches_where_nobody_wants_it() {
    let field = field();
    let job = Background::start(&field, &job("rxe", "--no-watch"));
    job.says("2/2 paths up");
    let provers = || field.tries("n2", "pgrep -a rlaunch-prover").out;
    until(|| provers().is_empty(), || format!("left: {}", provers()));
    enough(&field);
    assert_eq!(job.ends(), 0, "{}", job.said());
}
