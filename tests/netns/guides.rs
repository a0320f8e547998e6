//! The guides: those with recorded machines are followed here, and all of them are parsed.

use crate::guide::{self, Step};
use crate::mpi::stand_in::StandIn;
use crate::support::{Field, launch_directory};
use crate::tree;
use rlaunch_lab::Account;
use rlaunch_lab::mpi::NAMES;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Recorded first computer; the second one differs in its addresses.
const PC1: &str = include_str!("../../worker/fixtures/connectx3.tree");
const PC2_HAS: [(&str, &str); 6] = [
    ("192.168.1.11/24", "192.168.1.12/24"),
    ("10.99.0.1/30", "10.99.0.2/30"),
    ("192.168.100.1/24", "192.168.100.2/24"),
    ("0012:345", "0012:346"),
    ("12:34:5", "12:34:6"),
    ("\nlid = 0x1", "\nlid = 0x2"),
];

/// Writes the recording that `rlaunch capture -H pc1,pc2 -o pair.tar` would have made there.
fn record(directory: &Path) {
    let machines = tempfile::tempdir().unwrap();
    let pc2 = PC2_HAS.iter().fold(PC1.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "{from} is not recorded");
        text.replace(from, to)
    });
    for (name, text) in [("pc1", PC1), ("pc2", &pc2)] {
        tree::lay_out_below(&machines.path().join(name), text).unwrap();
    }
    let mut tar = Command::new("tar");
    tar.arg("-C").arg(machines.path()).arg("-cf").arg(directory.join("pair.tar"));
    assert!(tar.args(["pc1", "pc2"]).status().unwrap().success());
}

#[test]
fn two_small_computers_with_connectx3() {
    let field = Field::new();
    let directory = launch_directory();
    record(directory.path());
    guide::follow("connectx3", field.rlaunch.to_str().unwrap(), |line| {
        field.shell(line, directory.path())
    });
}

/// Program in C of the guide on MPI, and the one in Python.
const HELLO_C: &str = include_str!("../../examples/guides/mpi/hello.c");
const HELLO_PY: &str = include_str!("../../examples/guides/mpi/hello.py");

#[test]
fn mpi_programs_of_four_libraries() {
    const HOSTS: [&str; 2] = ["a", "b"];
    let field = Field::new();
    let directory = launch_directory();
    let here = directory.path().to_str().unwrap();
    let _shared = field.scratch(&HOSTS, here);
    for library in NAMES {
        let program = StandIn { source: HELLO_C, library, options: "" };
        program.compile(&field, &HOSTS, &format!("{here}/hello-{library}"));
    }
    fs::write(directory.path().join("hello.py"), HELLO_PY).unwrap();
    for host in HOSTS {
        let script = directory.path().join("hello.py");
        field.lab.write_file(host, &script, HELLO_PY.as_bytes(), 0o644).unwrap();
        field.on(host, &format!("ln -s /run/rlaunch-mpi/open-mpi-5 {here}/.venv"));
    }
    // The agents are on the hosts already, so rlaunch prints nothing about sending them.
    field.warm("a,b", Account::Root);
    guide::follow("mpi", field.rlaunch.to_str().unwrap(), |line| {
        field.shell(line, directory.path())
    });
}

/// Follows a guide whose programs are stand-ins of these hosts, with its own files and these on the launching machine.
fn follow_with_stand_ins(name: &str, files: &[(&str, &str)], on_hosts: &[(&str, &str)]) {
    const HOSTS: [&str; 3] = ["a", "b", "c"];
    let field = Field::new();
    let directory = launch_directory();
    let here = directory.path().to_str().unwrap();
    let _programs = field.scratch(&HOSTS, here);
    for (file, text) in files {
        fs::write(directory.path().join(file), text).unwrap();
    }
    for host in HOSTS {
        for (program, text) in on_hosts {
            let path = directory.path().join(program);
            field.lab.write_file(host, &path, text.as_bytes(), 0o755).unwrap();
        }
    }
    field.warm("a,b,c", Account::Root);
    guide::follow(name, field.rlaunch.to_str().unwrap(), |line| {
        field.shell(&format!("PATH={here}:$PATH\n{line}"), directory.path())
    });
}

#[test]
fn prefill_and_decode_on_two_hosts() {
    let files = [
        ("lmcache.yaml", include_str!("../../examples/guides/split/lmcache.yaml")),
        ("disagg_proxy_server.py", include_str!("frameworks/proxy_stand_in.py")),
    ];
    let programs = [
        ("mooncake_master", include_str!("frameworks/mooncake_stand_in.py")),
        ("vllm", include_str!("frameworks/vllm_stand_in.py")),
    ];
    follow_with_stand_ins("split", &files, &programs);
}

#[test]
fn a_cluster_of_ray() {
    let programs = [
        ("ray", include_str!("frameworks/ray_stand_in.py")),
        ("driver.py", "print('tasks 6 on 3 nodes')\n"),
    ];
    follow_with_stand_ins("ray", &[], &programs);
}

#[test]
fn guides_speak_of_nothing_that_is_not_run() {
    let guides = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/guides");
    for guide in fs::read_dir(guides).unwrap() {
        let path = guide.unwrap().path().join("README.md");
        let text = fs::read_to_string(&path).unwrap();
        let run = guide::steps(&text).len();
        let mentioned = text.lines().filter(|line| line.starts_with("    $ rlaunch ")).count();
        assert_eq!(run, mentioned, "{}: a block begins with something else", path.display());
    }
}

const GUIDE: &str = "\
# A guide

    # For the reader:
    $ rlaunch of another block
    and what it prints

Text.

    $ rlaunch one | sort
    first
      second
    $ rlaunch two \\
        : more
    $ rlaunch of two lines

    $ rlaunch three
    …
";

#[test]
fn commands_are_found() {
    let step = |line, command: &str, printed: &[&str]| Step {
        line,
        command: command.into(),
        printed: printed.iter().map(|&line| line.into()).collect(),
    };
    let wanted = [
        step(9, "rlaunch one | sort", &["first", "  second"]),
        step(12, "rlaunch two : more", &[]),
        step(14, "rlaunch of two lines", &[]),
        step(16, "rlaunch three", &["…"]),
    ];
    assert_eq!(guide::steps(GUIDE), wanted);
}

#[test]
fn what_is_left_open_may_be_anything() {
    let is = |said: &str, found: &str| {
        let (said, found): (Vec<&str>, Vec<&str>) =
            (said.lines().collect(), found.lines().collect());
        guide::is_as_said(&said, &found)
    };
    assert!(is("a  b", "a b"));
    assert!(!is("a b", "a b c") && !is("a b c", "a b") && !is("", "a") && !is("a", ""));
    assert!(is("tested in … ms", "tested in 597 ms") && !is("tested in … ms", "tested in 597 s"));
    assert!(is("… up, …, …", "6/6 paths up, RoCE v2, 3 subnets") && !is("…up, …", "6 up"));
    assert!(!is("aa…aa", "aaa"), "nothing is counted twice");
    assert!(is("a\n…\nd", "a\nb\nc\nd") && is("a\n  …\nd", "a\nd") && is("…", ""));
    assert!(!is("a\n…\nd", "a\nb") && !is("a\n…\nd", "b\nd"));
}
