//! Tests of the flight recorder's client, with dumps as torch writes them.

use super::*;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::AsFd;

/// Dump of a process that has completed an operation and waits in another one, as `pickle.dumps` of Python 3 and torch
/// write it with protocol 2: dictionaries, lists, tuples, strings, numbers.
fn dump(state: &str) -> Vec<u8> {
    use serde_pickle::value::{HashableValue, Value};
    let text = |text: &str| Value::String(text.into());
    let dictionary = |pairs: Vec<(&str, Value)>| {
        let pairs =
            pairs.into_iter().map(|(key, value)| (HashableValue::String(key.into()), value));
        Value::Dict(pairs.collect())
    };
    let frame = |name: &str, file: &str, line| {
        dictionary(vec![("name", text(name)), ("filename", text(file)), ("line", Value::I64(line))])
    };
    let entry = |number, state: &str| {
        dictionary(vec![
            (
                "frames",
                Value::List(vec![
                    frame("all_reduce", "/x/torch/distributed/distributed_c10d.py", 2900),
                    frame("step", "/home/u/train.py", 88),
                ]),
            ),
            ("process_group", Value::Tuple(vec![text("0"), text("default_pg")])),
            ("collective_seq_id", Value::I64(number)),
            ("profiling_name", text("nccl:all_reduce")),
            ("input_sizes", Value::List(vec![Value::List(vec![Value::I64(3)])])),
            ("time_discovered_completed_ns", Value::None),
            ("state", text(state)),
            ("is_p2p", Value::Bool(false)),
        ])
    };
    let config = dictionary(vec![("name", text("0")), ("ranks", text("[0, 1, 2]"))]);
    let dump = dictionary(vec![
        ("version", text("2.10")),
        ("pg_config", dictionary(vec![("0", config)])),
        ("entries", Value::List(vec![entry(41, "completed"), entry(42, state)])),
    ]);
    serde_pickle::value_to_vec(&dump, serde_pickle::SerOptions::new().proto_v2()).unwrap()
}

fn entered(is_complete: bool) -> Vec<GroupPosition> {
    let (name, caller) = ("all_reduce".to_owned(), "step train.py:88".to_owned());
    let operation = EnteredOperation { number: 42, name, is_complete, caller };
    let progress = GroupProgress::Entered(operation);
    vec![GroupPosition { rank: Rank(7), group: "default_pg".into(), size: 3, progress }]
}

#[test]
fn the_last_operation_of_a_group_is_the_position() {
    assert_eq!(positions(Rank(7), &dump("scheduled")).unwrap(), entered(false));
    assert_eq!(positions(Rank(7), &dump("completed")).unwrap(), entered(true));
}

#[test]
fn a_pickle_with_code_is_refused() {
    // What `pickle.loads` would run as os.system("true").
    assert!(positions(Rank(0), b"cos\nsystem\n(S'true'\ntR.").is_err());
    assert!(positions(Rank(0), b"").is_err());
}

#[test]
fn a_dump_is_requested_and_read() {
    let directory = tempfile::tempdir().unwrap();
    let (pipe, file) = (directory.path().join("p7.pipe"), directory.path().join("d7"));
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let process = RankProcess {
        rank: Rank(7),
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
        fs::write(&file, dump("scheduled")).unwrap();
    });
    assert_eq!(recorder.positions(deadline).unwrap(), entered(false));
    writer.join().unwrap();
}
