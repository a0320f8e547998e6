//! Tests of the flight recorder's client, with dumps as torch writes them.

use super::*;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::AsFd;

/// Dump of torch 2.15 with gloo: two operations of a function `step`.
const DUMP: &[u8] = include_bytes!("fixtures/torch-2.15-gloo.pickle");

fn expected(number: u64) -> Vec<GroupPosition> {
    let (name, caller) = ("all_reduce".to_owned(), "step train.py:5".to_owned());
    let operation = EnteredOperation { number, name, is_complete: true, caller };
    let progress = GroupProgress::Entered(operation);
    vec![GroupPosition {
        rank: Rank(7),
        started: None,
        group: "default_pg".into(),
        size: 1,
        progress,
    }]
}

#[test]
fn the_last_operation_of_a_group_is_the_position() {
    assert_eq!(positions(Rank(7), DUMP).unwrap(), expected(2));
    assert!(positions(Rank(7), b"").is_err());
}

#[test]
fn groups_are_named_by_their_purpose() {
    let config = GroupConfig { ranks: "[0, 2]".into() };
    let name = |name: &str, purpose: &str| {
        group_name(&(name.to_owned(), purpose.to_owned()), Some(&config))
    };
    assert_eq!(name("0", "default_pg"), "default_pg");
    assert_eq!(name("3", "mesh_dp"), "mesh_dp 3 [0, 2]");
    assert_eq!([name("3", "undefined"), name("3", "")], ["3 [0, 2]"; 2]);
}

#[test]
fn a_dump_is_requested_and_read() {
    let directory = tempfile::tempdir().unwrap();
    let (pipe, file) = (directory.path().join("p7.pipe"), directory.path().join("d7"));
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let process = RankProcess {
        rank: Rank(7),
        started: None,
        pids: vec![1],
        ras_address: None,
        recorder: Some((pipe.clone(), vec![directory.path().join("absent"), file.clone()])),
    };
    let found = recorders(&[process.clone(), process]);
    let [recorder] = &found[..] else { panic!("{found:?}") };
    // No process of torch reads the pipe.
    let deadline = Instant::now() + Duration::from_secs(20);
    assert!(recorder.positions(deadline).is_err());
    let mut reader =
        OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(&pipe).unwrap();
    let writer = std::thread::spawn(move || {
        let ready = PollFd::new(reader.as_fd(), PollFlags::POLLIN);
        poll(&mut [ready], PollTimeout::MAX).unwrap();
        reader.read_to_end(&mut Vec::new()).unwrap_or_default();
        fs::write(&file, DUMP).unwrap();
    });
    assert_eq!(recorder.positions(deadline).unwrap(), expected(2));
    writer.join().unwrap();
}
