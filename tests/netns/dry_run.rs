//! `--dry-run`: prints what would happen, and starts no rank.

use crate::support::{Field, launch_directory};
use rlaunch_lab::Account;
use std::fs;
use std::path::Path;

const MARK: &str = "/tmp/dry-run-mark";

/// Returns the lines that begin with `word`.
fn lines<'a>(out: &'a str, word: &str) -> Vec<&'a str> {
    out.lines().filter(|line| line.split(' ').next() == Some(word)).collect()
}

#[test]
fn agents_say_what_would_be_and_start_no_rank() {
    let field = Field::new();
    let directory = launch_directory();
    fs::write(directory.path().join("data.txt"), "the data\n").unwrap();
    let _marks = field.scratch(&["a", "b", "c"], MARK);
    let options = "-H a:2,b,c -np 4 --preload data.txt -x OMP_NUM_THREADS=7 --no-record";
    for account in Account::ALL {
        let run = field.rlaunch(options).account(account).in_directory(directory.path());
        let run = run.args(["--show", "rank-table", "--dry-run"]);
        let ran = run.args(["sh", "-c", &format!("mkdir {MARK}; echo up")]).run();
        let out = ran.succeeded().out().into_owned();
        let hosts =
            ["host a slots=2 ranks=0-1", "host b slots=1 ranks=2", "host c slots=1 ranks=3"];
        assert_eq!(lines(&out, "host"), hosts, "{ran}");
        assert_eq!(lines(&out, "env"), ["env OMP_NUM_THREADS=7"], "{ran}");
        assert_eq!(lines(&out, "program"), [format!("program sh -c 'mkdir {MARK}; echo up'")]);
        // Placement, variables and the rank table, each with its header.
        assert_eq!(lines(&out, "rank").len(), 2, "{ran}");
        assert_eq!(lines(&out, "variable").len(), 1, "{ran}");
        let is_yours = |line: &&str| {
            line.starts_with("OMP_NUM_THREADS=7 ")
                && line.contains(" 0-3 ")
                && line.ends_with("(yours)")
        };
        assert_eq!(out.lines().filter(is_yours).count(), 1, "{ran}");
        assert!(out.contains("of eth0 is how other nodes reach this one"), "{ran}");
        assert!(out.contains(&field.lab.address("c").unwrap().to_string()), "{ran}");
        for host in ["a", "b", "c"] {
            let mark = field.lab.path(host, Path::new(MARK)).unwrap();
            assert!(!mark.exists(), "a rank has run on {host}: {ran}");
        }
    }
}

#[test]
fn a_picture_of_the_placement_is_alone_on_stdout() {
    let field = Field::new();
    let ran = field.rlaunch("-H a:2,b --dry-run --show placement=svg true").run();
    let out = ran.succeeded().out().into_owned();
    assert!(out.starts_with("<svg ") && out.trim_end().ends_with("</svg>"), "{ran}");
    for text in ["\nrank 0 · ", "\nrank 2 · ", "\nranks 0-1\n", "\neth0\n"] {
        assert!(out.contains(text), "no {text}: {ran}");
    }
    for text in ["\ndown\n", "\nlo\n"] {
        assert!(!out.contains(text), "{text}: {ran}");
    }
}

#[test]
fn what_is_missing_ends_a_dry_run_as_it_would_a_job() {
    let field = Field::new();
    let ran = field.rlaunch("-H a,b --dry-run no-such-program").run();
    ran.refused(127, &["no-such-program is not on a, b"]);
}

#[test]
fn offline_nobody_is_reached() {
    let field = Field::new();
    let run = field.rlaunch("-H nobody-1:2,me@nobody-2 -np 3 --dry-run=offline --wdir /data");
    let ran = run.args(["-x", "A=1 2", "train", "it's", ""]).run();
    let expected = r"host nobody-1 slots=2 ranks=0-1
host me@nobody-2 slots=1 ranks=2
wdir required /data
env 'A=1 2'
program train 'it'\''s' ''
";
    assert_eq!(ran.succeeded().out(), expected, "{ran}");
    let ran = field.rlaunch("-H nobody -np 3 --dry-run=offline true").run();
    ran.refused(200, &["3 ranks need 3 slots; nobody has 1"]);
}
