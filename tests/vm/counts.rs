//! What rlaunch's verbs ask of a device per message, beside perftest: posts, doorbells, signalled
//! completions and copies are counted, so no clock is asked.

use crate::support::{Field, PATIENT};
use rlaunch_lab::command;
use rlaunch_lab::vm::pair::{Act, Pair, Program};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const SOURCE: &str = include_str!("counts.c");
/// In the guests: what counts, and where it says how much.
const COUNTER: &str = "/run/counts.so";
const COUNTED: &str = "/run/counted";
/// On the launcher's guest.
const SUITE: &str = "/share/comm-suite";

#[test]
fn messages_cost_what_they_cost_perftest() {
    let field = Field::new();
    let mut pair = Pair::of(&field.lab).unwrap();
    install_counter(&field);
    pair.copy(COUNTER).unwrap();
    let environment = format!("COUNTS={COUNTED} LD_PRELOAD={COUNTER}");
    let large =
        "posts 100 calls 100 doorbells 100 signalled 100 completions 100 copies 0 writes 100";
    let huge = "posts 20 calls 20 doorbells 20 signalled 20 completions 20 copies 0 writes 20";
    let small =
        "posts 1000 calls 1000 doorbells 1000 signalled 10 completions 10 copies 0 writes 1000";
    let echo =
        "posts 300 calls 300 doorbells 300 signalled 300 completions 300 copies 0 writes 300";
    let nothing = "posts 0 calls 0 doorbells 0 signalled 0 completions 0 copies 0 writes 0";
    for (act, size, iterations, client, server) in [
        (Act::WriteBandwidth, 64 << 10, 100, large, nothing),
        (Act::WriteBandwidth, 1 << 20, 20, huge, nothing),
        (Act::WriteBandwidth, 4 << 10, 1000, small, nothing),
        (Act::WriteLatency, 2, 300, echo, echo),
    ] {
        for program in [Program::Perftest, Program::Rlaunch] {
            pair.run(program, act, (size, iterations), &environment).unwrap();
            let read = format!("cat {COUNTED}");
            let counted = (pair.on_client(&read).unwrap(), pair.on_server(&read).unwrap());
            let counted = (counted.0.trim(), counted.1.trim());
            assert_eq!(counted, (client, server), "{program:?}, {act:?} of {size} bytes");
        }
    }
}

/// What one end of a communicator has asked of its device while so many messages of 1 MiB went from
/// rank 0 to rank 1: posts, copies and writes.
fn streamed(field: &Field, messages: usize, rank: usize) -> [usize; 3] {
    let line = format!(
        "COUNTS={COUNTED} LD_PRELOAD={COUNTER} \"$RLAUNCH_PRELOAD_DIR\"/comm-suite stream {messages} && \
         test $RANK != {rank} || cat {COUNTED}"
    );
    let words =
        format!("-H n1,n2 -np 2 {PATIENT} --transport rdma --hca rxe --preload {SUITE} sh -c");
    let ran = field.rlaunch(&words, &[&line]);
    let counts = ran.succeeded().out.lines().find(|line| line.starts_with("posts ")).unwrap();
    let words: Vec<&str> = counts.split_whitespace().collect();
    ["posts", "copies", "writes"].map(|name| {
        let at = words.iter().position(|word| *word == name).unwrap();
        words[at + 1].parse().unwrap()
    })
}

/// Everything else is short, and carried by its request.
#[test]
fn a_long_message_is_one_write_and_no_copy() {
    let field = Field::new();
    let pair = Pair::of(&field.lab).unwrap();
    install_counter(&field);
    pair.copy(COUNTER).unwrap();
    let [posts, copies, writes] = streamed(&field, 10, 0);
    assert_eq!((writes, copies), (10, posts - writes));
    let [posts, copies, writes] = streamed(&field, 10, 1);
    assert_eq!((writes, copies), (0, posts));
}

/// Compiles it and brings it to the first guest.
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

/// Those of libibverbs that the bindings are made of: this machine may have none of its own.
fn headers() -> PathBuf {
    let words = ["metadata", "--format-version", "1", "--offline"];
    let printed = command::run("ask cargo", Command::new("cargo").args(words)).unwrap().stdout;
    let metadata: serde_json::Value = serde_json::from_slice(&printed).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let package = packages.iter().find(|package| package["name"] == "rdma-mummy-sys").unwrap();
    let manifest = Path::new(package["manifest_path"].as_str().unwrap());
    manifest.with_file_name("rdma-core-mummy").join("include")
}
