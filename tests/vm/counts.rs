//! Requests of rlaunch's verbs to a device per message, compared with perftest. Posts, doorbells,
//! signalled completions and copies are counted, so the results do not depend on time.

use crate::support::{Field, PATIENT};
use rlaunch_lab::command;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

mod pair;
use pair::{Benchmark, Pair, Program, Quantity, RdmaOperation};

const SOURCE: &str = include_str!("counts.c");
// Paths in the guests: the library that counts, and the file to which it writes its counts.
const COUNTER: &str = "/run/counts.so";
const COUNTED: &str = "/run/counted";

/// Numbers of messages of two runs. Their difference does not contain what both cost alike: the
/// messages of rlaunch's communicator, by which the ranks meet.
const FEW: usize = 100;
const MANY: usize = 1100;
/// Maximum difference between the counts of two programs for [`MANY`] less [`FEW`] messages. What
/// ranks exchange before and after may be found by one poll more or less.
const TOLERANCE: i64 = 4;

/// Counts of the client and of the server, by their names.
type Counts = [BTreeMap<String, i64>; 2];

fn counts_of(
    pair: &mut Pair<'_>,
    program: Program,
    benchmark: Benchmark,
    amount: (usize, usize),
) -> Counts {
    let environment = [("COUNTS", COUNTED), ("LD_PRELOAD", COUNTER)];
    pair.run(program, benchmark, amount, &environment).unwrap();
    let read = format!("cat {COUNTED}");
    [pair.on_client(&read).unwrap(), pair.on_server(&read).unwrap()].map(|counted| {
        let words: Vec<&str> = counted.lines().next().unwrap_or_default().split(' ').collect();
        let counts = words.chunks(2).map(|two| (two[0].to_owned(), two[1].parse().unwrap()));
        counts.collect()
    })
}

/// Returns the counts of [`MANY`] less [`FEW`] messages.
fn counts_of_messages(
    pair: &mut Pair<'_>,
    program: Program,
    benchmark: Benchmark,
    size: usize,
) -> Counts {
    let few = counts_of(pair, program, benchmark, (size, FEW));
    let mut many = counts_of(pair, program, benchmark, (size, MANY));
    for (many, few) in many.iter_mut().zip(few) {
        many.iter_mut().for_each(|(name, count)| *count -= few[name]);
    }
    many
}

#[test]
#[ignore = "takes minutes, and changes with worker/verbs and worker/bench alone: run before a release"]
fn messages_cost_what_they_cost_perftest() {
    use {Quantity::*, RdmaOperation::*};
    let field = Field::new();
    let mut pair = Pair::new(&field.lab).unwrap();
    install_counter(&field);
    pair.copy(COUNTER).unwrap();
    for (operation, quantity, size) in [
        (Write, Bandwidth, 16 << 10),
        (Write, Latency, 2),
        (Read, Bandwidth, 64),
        (Send, Bandwidth, 64),
        (Send, Latency, 2),
    ] {
        let benchmark = Benchmark { operation, quantity };
        let [theirs, ours] = [Program::Perftest, Program::Rlaunch]
            .map(|program| counts_of_messages(&mut pair, program, benchmark, size));
        let posts = theirs[0]["posts"];
        assert!(posts >= (MANY - FEW) as i64, "{benchmark:?}: {theirs:?}");
        for (ours, theirs) in ours.iter().zip(&theirs) {
            for (name, count) in theirs {
                let difference = (ours[name] - count).abs();
                let what = format!("{name} of {benchmark:?} of {size} bytes");
                assert!(difference <= TOLERANCE, "{what}: {ours:?}, perftest {theirs:?}");
            }
        }
    }
}

/// Sends `messages` messages of 1 MiB from rank 0 to rank 1 of a communicator, and returns the
/// counts of each: posts, copies, writes and registrations.
fn streamed(field: &Field, messages: &str) -> [[usize; 4]; 2] {
    let line = format!(
        "COUNTS={COUNTED} LD_PRELOAD={COUNTER} \"$RLAUNCH_PRELOAD_DIR\"/comm-suite stream {messages} && \
         echo of $RANK $(cat {COUNTED})"
    );
    let suite = field.shared("comm-suite");
    let words =
        format!("-H n1,n2 -np 2 {PATIENT} --transport rdma --hca rxe --preload {suite} sh -c");
    let ran = field.rlaunch(&words, &[&line]);
    let lines = || ran.succeeded().out.lines();
    ["of 0 ", "of 1 "].map(|begin| {
        let line = lines().find(|line| line.starts_with(begin)).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        ["posts", "copies", "writes", "registrations"].map(|name| {
            let at = words.iter().position(|word| *word == name).unwrap();
            words[at + 1].parse().unwrap()
        })
    })
}

/// Number of registrations for the slots of a rank's single queue pair.
const SLOTS: usize = 1;

/// All other requests are short and carry their data inline. Memory that the program has not
/// registered is registered for each message; what it has registered once is used for every message.
#[test]
fn a_long_message_is_one_write_no_copy_and_one_registration_unless_its_memory_has_one() {
    let field = Field::new();
    let pair = Pair::new(&field.lab).unwrap();
    install_counter(&field);
    pair.copy(COUNTER).unwrap();
    let [sender, receiver] = streamed(&field, "10");
    let [posts, copies, writes, registrations] = sender;
    assert_eq!((writes, copies, registrations), (10, posts - writes, SLOTS + 10));
    let [posts, copies, writes, registrations] = receiver;
    assert_eq!((writes, copies, registrations), (0, posts, SLOTS + 10));
    for ([_, _, writes, registrations], wanted) in
        streamed(&field, "10 registered").into_iter().zip([10, 0])
    {
        assert_eq!((writes, registrations), (wanted, SLOTS + 1));
    }
}

/// Compiles the library that counts, and copies it to n1.
fn install_counter(field: &Field) {
    let scratch = tempfile::tempdir().unwrap();
    let (source, library) = (scratch.path().join("counts.c"), scratch.path().join("counts.so"));
    std::fs::write(&source, SOURCE).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-fno-builtin", "-shared", "-fPIC", "-o"]).arg(&library).arg(&source);
    command::run("compile the counter", compiler.arg("-I").arg(headers())).unwrap();
    let mut ssh = field.lab.ssh("n1").unwrap();
    ssh.arg(format!("cat > {COUNTER}")).stdin(Stdio::from(std::fs::File::open(&library).unwrap()));
    assert!(ssh.status().unwrap().success());
}

/// Returns the directory of the headers of libibverbs that the bindings come with, since this
/// machine may not have any.
fn headers() -> PathBuf {
    // Dependencies of other platforms may not be on this machine.
    let host = rlaunch_lab::dist::host_triple().unwrap();
    let words = ["metadata", "--format-version", "1", "--offline", "--filter-platform", &host];
    let printed = command::run("ask cargo", Command::new("cargo").args(words)).unwrap().stdout;
    let metadata: serde_json::Value = serde_json::from_slice(&printed).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let package = packages.iter().find(|package| package["name"] == "rdma-mummy-sys").unwrap();
    let manifest = Path::new(package["manifest_path"].as_str().unwrap());
    manifest.with_file_name("rdma-core-mummy").join("include")
}
