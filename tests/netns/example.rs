//! Command lines that rlaunch is made for, as users type them.

use crate::running::Outcome;
use crate::support::{Field, PATH, Undo, launch_directory};
use rlaunch_lab::Account;
use std::fs;
use std::path::{Path, PathBuf};

const HOSTS: [&str; 3] = ["a", "b", "c"];
/// Example program, as users have it.
const TRAIN: &str = include_str!("../../examples/train/train.py");

/// Makes a directory with the example, on the launching machine only.
fn project() -> tempfile::TempDir {
    let directory = launch_directory();
    fs::write(directory.path().join("train.py"), TRAIN).unwrap();
    directory
}

/// Makes `name` a second name of python3 in `/tmp/bin` of every host, until the guard is dropped.
fn with_python<'a>(field: &'a Field, name: &str) -> impl Drop + 'a {
    let guard = field.scratch(&HOSTS, "/tmp/bin");
    for host in HOSTS {
        field.on(host, &format!("mkdir /tmp/bin && ln -s $(command -v python3) /tmp/bin/{name}"));
    }
    guard
}

fn trained(ran: &Outcome) {
    let out = ran.succeeded().out();
    let losses: Vec<f64> = out
        .lines()
        .filter_map(|line| line.strip_prefix("step ")?.split_once(" loss ")?.1.parse().ok())
        .collect();
    assert!(losses.len() >= 6 && losses.last() < losses.first(), "{ran}");
    assert!(out.contains("weights equal on 3 ranks"), "{ran}");
}

#[test]
fn a_script_that_only_the_launching_machine_has() {
    let field = Field::new();
    let project = project();
    let _python = with_python(&field, "python");
    let path = format!("/tmp/bin:{PATH}");
    let run = |words| field.rlaunch(words).in_directory(project.path()).env("PATH", &path).run();
    let refused = run("-H a,b,c -np 3 python train.py");
    refused.refused(203, &["train.py is not on a, b, c"]).hints("--copy train.py");
    trained(&run("-H a,b,c -np 3 --preload train.py python train.py"));
    trained(&run("-H a,b,c -np 3 --preload ./train.py python ./train.py --steps 60"));
}

#[test]
fn without_python_the_hint_leads_to_a_line_that_works() {
    let field = Field::new();
    let project = project();
    let _python = with_python(&field, "python3");
    let bare = "-x PATH=/tmp/bin";
    let run =
        |words: &str| field.rlaunch(bare).args(words.split(' ')).in_directory(project.path()).run();
    let refused = run("-H a,b,c -np 3 python train.py");
    refused.refused(127, &["python is not on a, b, c", "train.py is not on a, b, c"]);
    refused.hints("-H a,b,c -np 3 --copy train.py python3 train.py");
    refused.keeps_quiet_about(&["python3 is there"]);
    trained(&run("-H a,b,c -np 3 --preload train.py python3 train.py"));
}

#[test]
fn a_script_that_every_host_has() {
    let field = Field::new();
    let project = project();
    let script = project.path().join("train.py");
    let _copies = field.files(&HOSTS, script.to_str().unwrap(), TRAIN, 0o644);
    let _python = with_python(&field, "python");
    let path = format!("/tmp/bin:{PATH}");
    for account in Account::ALL {
        field.warm("a,b,c", account);
        let run = field.rlaunch("-H a,b,c -np 3 python train.py").account(account);
        let ran = run.in_directory(project.path()).env("PATH", &path).run();
        trained(&ran);
        ran.says_nothing();
    }
}

#[test]
fn a_look_at_the_gpus_of_other_hosts() {
    let field = Field::new();
    let text = "#!/bin/sh\necho NVIDIA-SMI on $(hostname)\n";
    let _tool = field.files(&["b", "c"], "/tmp/smi/nvidia-smi", text, 0o755);
    let run = field.rlaunch("-H b,c -np 2 nvidia-smi").env("PATH", &format!("/tmp/smi:{PATH}"));
    let ran = run.run();
    assert_eq!(ran.succeeded().sorted(), ["NVIDIA-SMI on b", "NVIDIA-SMI on c"], "{ran}");
}

/// Gives `account` on `host` a copy of rlaunch and the key that opens all hosts, as on the launch
/// node.
pub(crate) fn make_launcher<'a>(
    field: &'a Field,
    host: &'a str,
    account: Account,
) -> impl Drop + 'a {
    let ssh = account.home().join(".ssh");
    for entry in fs::read_dir(field.lab.ssh_dir(account)).unwrap().flatten() {
        let bytes = fs::read(entry.path()).unwrap();
        field.lab.write_file(host, &ssh.join(entry.file_name()), &bytes, 0o600).unwrap();
    }
    let agent = field.agent();
    let from = field.rlaunch.parent().unwrap();
    for program in [&field.rlaunch, &agent] {
        let path: PathBuf = Path::new("/tmp/dist").join(program.strip_prefix(from).unwrap());
        field.lab.write_file(host, &path, &fs::read(program).unwrap(), 0o755).unwrap();
    }
    Undo(move || fs::remove_dir_all(field.lab.home(host, account).unwrap().join(".ssh")))
}

#[test]
fn started_on_one_of_the_hosts() {
    let field = Field::new();
    let _copy = field.scratch(&["a"], "/tmp/dist");
    for account in Account::ALL {
        let _launcher = make_launcher(&field, "a", account);
        let run = field.rlaunch("-H a,b,c -np 3 hostname").account(account).started_on("a");
        let ran = run.run();
        assert_eq!(ran.succeeded().sorted(), ["a", "b", "c"], "{ran}");
    }
    let _launcher = make_launcher(&field, "a", Account::Root);
    let script = Account::Root.home().join("train.py");
    let _script = field.files(&["a"], script.to_str().unwrap(), TRAIN, 0o644);
    let run = field.rlaunch("-H a,b,c --preload train.py python3 train.py").started_on("a");
    trained(&run.run());
}
