//! What a user meets on the first day: each obstacle ends the job with one sentence and with what to type next.

use crate::support::{Field, Undo, launch_directory};
use rlaunch_lab::{Account, LabError};
use std::any::Any;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

/// Obstacle to a first job.
struct Obstacle {
    name: &'static str,
    /// Puts the obstacle up, until the guards are dropped. The directory is for files of the launching machine, which
    /// has an ssh configuration for the job as `config` there.
    set_up: fn(&'static Field, &Path) -> Vec<Box<dyn Any>>,
    /// Arguments of the job; DIRECTORY stands for the directory.
    words: &'static str,
    code: i32,
    sentence: &'static str,
    /// Line to type next, or a part of it.
    advice: &'static str,
}

const OBSTACLES: &[Obstacle] = &[
    Obstacle {
        name: "no key and no SSH agent",
        set_up: |field, directory| {
            fs::write(directory.join("config"), configuration("IdentityFile none")).unwrap();
            vec![sshd_with(field, "b", &["PasswordAuthentication yes"])]
        },
        words: "-H b hostname",
        code: 201,
        sentence: "b: root may not log in: there is no key to try, no file and no SSH agent",
        advice: "  rlaunch ssh-setup -H root@b",
    },
    Obstacle {
        name: "no key, and a host without passwords",
        set_up: |_, directory| {
            fs::write(directory.join("config"), configuration("IdentityFile none")).unwrap();
            vec![]
        },
        words: "-H b hostname",
        code: 201,
        sentence: "b: root may not log in: there is no key to try",
        advice: "  ssh-keygen -t ed25519",
    },
    Obstacle {
        name: "a key with a passphrase, and no SSH agent",
        set_up: |_, directory| {
            let key = directory.join("locked");
            let mut keygen = Command::new("ssh-keygen");
            keygen.args(["-q", "-t", "ed25519", "-a", "1", "-N", "sesame", "-f"]).arg(&key);
            assert!(keygen.status().unwrap().success());
            // A key that can be offered is refused first, since this host does not have it.
            let line = format!("IdentityFile {}", key.display());
            fs::write(directory.join("config"), configuration(&line)).unwrap();
            vec![]
        },
        words: "-H b hostname",
        code: 201,
        sentence: "b: root may not log in: tried DIRECTORY/locked",
        advice: "add DIRECTORY/locked.pub to ~root/.ssh/authorized_keys",
    },
    Obstacle {
        name: "passwords alone",
        set_up: |field, _| {
            let lines = ["PubkeyAuthentication no", "PasswordAuthentication yes"];
            vec![sshd_with(field, "b", &lines)]
        },
        words: "-H b hostname",
        code: 201,
        sentence: "b: root may not log in: the host accepts no keys, only password;",
        advice: "rlaunch ssh-setup -H root@b",
    },
    Obstacle {
        name: "a user that the host does not have",
        set_up: |_, _| vec![],
        words: "-H nosuch@b hostname",
        code: 201,
        sentence: "b: nosuch may not log in: tried ",
        advice: "another account is named by -H NAME@b",
    },
    Obstacle {
        name: "a firewall that answers",
        set_up: |field, _| vec![firewall(field, "reject with tcp reset")],
        words: "-H b hostname",
        code: 201,
        sentence: "b: cannot connect to ",
        advice: "or a firewall rejects connections; on b:",
    },
    Obstacle {
        name: "a firewall as of firewalld",
        set_up: |field, _| vec![firewall(field, "reject with icmpx type admin-prohibited")],
        words: "-H b hostname",
        code: 201,
        sentence: "b: cannot connect to ",
        advice: "or a firewall rejects connections to port 22; `ping ",
    },
    Obstacle {
        name: "a firewall that says nothing",
        set_up: |field, directory| {
            let lines = "ConnectTimeout 2\n  IdentityFile ~/.ssh/id_ed25519";
            fs::write(directory.join("config"), configuration(lines)).unwrap();
            vec![firewall(field, "drop")]
        },
        words: "-H b hostname",
        code: 201,
        sentence: "within 2 s",
        advice: "a firewall may drop the packets",
    },
    Obstacle {
        name: "no Python on the hosts",
        set_up: |_, _| vec![],
        words: "-H a,b -x PATH=/nonexistent python3 -c pass",
        code: 127,
        sentence: "python3 is not on a, b",
        advice: "sudo apt install python3 ||",
    },
    Obstacle {
        name: "a script that only this machine has",
        set_up: |_, directory| {
            fs::write(directory.join("train.py"), "print('trained')\n").unwrap();
            vec![]
        },
        words: "-H a,b python3 train.py",
        code: 203,
        sentence: "train.py is not on a, b",
        advice: "-H a,b --copy train.py python3 train.py",
    },
    Obstacle {
        name: "-np forgotten before the number",
        set_up: |_, _| vec![],
        words: "-H a,b 2 hostname",
        code: 127,
        sentence: "2 is not on a, b",
        advice: "rlaunch --ssh-config DIRECTORY/config -H a,b -np 2 hostname",
    },
    Obstacle {
        name: "the number of -np forgotten",
        set_up: |_, _| vec![],
        words: "-H a,b -np hostname",
        code: 200,
        sentence: "invalid value 'hostname' for '--np <N>': a number of ranks, 1 or more",
        advice: "--help",
    },
];

/// Returns an ssh configuration for all hosts, with what the lab's own has about host keys.
fn configuration(lines: &str) -> String {
    format!("Host *\n  {lines}\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n")
}

fn sshd_with(field: &'static Field, host: &'static str, lines: &[&str]) -> Box<dyn Any> {
    field.lab.sshd(host).unwrap().restart(lines).unwrap();
    Box::new(Undo(move || -> Result<(), LabError> { field.lab.sshd(host)?.restart(&[]) }))
}

/// Makes host b treat connections to its sshd in this way.
fn firewall(field: &'static Field, action: &str) -> Box<dyn Any> {
    let chain = "{ type filter hook input priority 0; }";
    let line = format!(
        "nft add table inet first && nft add chain inet first in '{chain}' && \
         nft add rule inet first in tcp dport 22 {action}"
    );
    field.on("b", &line);
    Box::new(Undo(move || {
        field.on("b", "nft delete table inet first");
        Ok::<(), LabError>(())
    }))
}

/// Without these capabilities root may do what an NFS server with root_squash lets root do: nothing of others.
const SQUASHED: [&str; 3] = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"];

#[test]
fn a_home_on_nfs_that_root_may_not_read() {
    let field = Field::new();
    let directory = launch_directory();
    let home = directory.path().join("home");
    fs::create_dir(&home).unwrap();
    fs::set_permissions(&home, fs::Permissions::from_mode(0o700)).unwrap();
    chown(&home, Some(1000), Some(1000)).unwrap();
    let run = |words: &[&str]| {
        let mut command = field.lab.exec_in(Account::Root, Path::new("/"));
        command.args(SQUASHED).arg(&field.rlaunch).args(words).env("HOME", &home);
        command.output().unwrap()
    };
    let refused = run(&["-np", "2", "echo", "up"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(200), "{said}");
    assert!(said.contains("rlaunch.toml: Permission denied"), "{said}");
    assert!(said.contains("as on NFS with root_squash: run rlaunch as the owner"), "{said}");
    let works = run(&["--cluster", "none", "-np", "2", "echo", "up"]);
    let said = String::from_utf8_lossy(&works.stderr);
    assert_eq!(works.stdout, b"up\nup\n", "{said}");
    assert!(said.contains("cannot write the job's record"), "{said}");
}

#[test]
fn each_obstacle_ends_in_a_sentence_and_what_to_type() {
    let field: &'static Field = Box::leak(Box::new(Field::new()));
    for obstacle in OBSTACLES {
        let directory = launch_directory();
        let config = directory.path().join("config");
        fs::write(&config, configuration("IdentityFile ~/.ssh/id_ed25519")).unwrap();
        let guards = (obstacle.set_up)(field, directory.path());
        let filled = |text: &str| text.replace("DIRECTORY", directory.path().to_str().unwrap());
        let run = field.rlaunch("--ssh-config").args([config.as_os_str()]);
        let run = run.args(obstacle.words.split(' ')).in_directory(directory.path());
        let ran = run.run();
        drop(guards);
        println!("== {}\n{}", obstacle.name, ran.err());
        ran.refused(obstacle.code, &[&filled(obstacle.sentence)]);
        // Errors of the command line are clap's, which has another word for hints.
        match obstacle.code {
            200 => ran.says(&[obstacle.advice]),
            _ => ran.hints(&filled(obstacle.advice)),
        };
    }
    field.assert_idle();
}
