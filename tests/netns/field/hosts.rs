//! Hosts that are not as a launcher expects: what their kernel forbids, what a program lacks there, where their
//! temporary files go, and their login shell.

use crate::shells::login_shell;
use crate::support::{Field, Undo, launch_directory};
use rlaunch_lab::Account;
use std::os::unix::fs::chown;
use std::path::Path;
use std::time::Duration;

/// Executes a program under a seccomp filter that answers `EPERM` to two system calls, and to those that older
/// container engines do not know: clone3, openat2 and all others since Linux 5.1. See [`filter`].
const FILTER: &str = r#"
import ctypes, os, platform, struct, sys
one, other = NUMBERS[platform.machine()]
steps = [(0x20, 0, 0), (0x35, 3, 424), (0x15, 2, one), (0x15, 1, other),
         (0x06, 0, 0x7fff0000), (0x06, 0, 0x50001)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", c, t, 0, k) for c, t, k in steps))
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]
program = Program(len(steps), ctypes.addressof(code))
prctl = ctypes.CDLL(None).prctl
assert prctl(38, 1, 0, 0, 0) == 0 and prctl(22, 2, ctypes.byref(program)) == 0
os.execvp(sys.argv[1], sys.argv[1:])
"#;

/// Numbers of statx and execveat, which older container engines do not know either.
const RECENT: &str = r#"{"x86_64": (332, 322), "aarch64": (291, 281)}"#;
/// Number of sched_setaffinity.
const AFFINITY: &str = r#"{"x86_64": (203, 203), "aarch64": (122, 122)}"#;

/// Returns the filter for system calls of these numbers.
fn filter(numbers: &str) -> String {
    FILTER.replace("NUMBERS", numbers)
}

/// Start-up file of a shell that goes on under the filter.
const FILTERED: &str = "[ \"$FILTERED\" ] || FILTERED=1 exec python3 /tmp/field/filter.py \
    bash -c \"$BASH_EXECUTION_STRING\"\n";

/// Returns the path of root's start-up file of bash.
fn bashrc() -> String {
    Account::Root.home().join(".bashrc").to_str().unwrap().to_owned()
}

/// `moby#42680`: a container engine that answers `EPERM` to clone3 and to whatever else it does not know.
#[test]
fn ranks_start_where_recent_system_calls_are_forbidden() {
    let field = Field::new();
    field.warm("a,b", Account::Root);
    let _filter = field.files(&["b"], "/tmp/field/filter.py", &filter(RECENT), 0o644);
    let _bashrc = field.files(&["b"], &bashrc(), FILTERED, 0o644);
    let script = "echo $(hostname) $(grep ^Seccomp: /proc/self/status)";
    let ran = field.rlaunch("-H a,b -np 2").sh(script).run();
    let lines = ran.succeeded().sorted();
    assert!(lines.len() == 2 && lines[1] == "b Seccomp: 2", "{ran}");
}

/// A filter that forbids to bind kept every rank from starting, though nobody had asked for it.
#[test]
fn ranks_start_where_binding_is_forbidden() {
    let field = Field::new();
    field.warm("b", Account::Root);
    let _filter = field.files(&["b"], "/tmp/field/filter.py", &filter(AFFINITY), 0o644);
    let _bashrc = field.files(&["b"], &bashrc(), FILTERED, 0o644);
    let ran = field.rlaunch("-H b hostname").run();
    assert_eq!(ran.succeeded().out(), "b\n", "{ran}");
    ran.says(&["warning: ranks on b are not bound to CPUs: Operation not permitted"])
        .hints("--bind none");
    let ran = field.rlaunch("-H b --bind numa hostname").run();
    ran.refused(202, &["ranks cannot be bound to CPUs on b"]).hints("--bind none");
    let ran = field.rlaunch("-H b --bind none hostname").run();
    assert_eq!(ran.succeeded().out(), "b\n", "{ran}");
    ran.says_nothing();
}

/// `nccl#290`: a container with little shared memory, where programs die of SIGBUS or cannot make their files.
#[test]
fn too_little_shared_memory_is_named() {
    let field = Field::new();
    field.on("b", "mount -o remount,size=1m /dev/shm");
    let _size = Undo(|| {
        let mut mount = field.lab.on("b", Account::Root)?;
        let words = ["mount", "-o", "remount,size=50%", "/dev/shm"];
        rlaunch_lab::command::run("remount", mount.args(words)).map(drop)
    });
    let ran = field.rlaunch("-H b:2 python3 -c").args(["import rlaunch; rlaunch.init()"]).run();
    ran.ended_with(1).says(&["/dev/shm has no room for ", "it has 1024 KiB, of which "]);
    let ran = field.rlaunch("-H b").sh("kill -BUS $$").run();
    ran.ended_with(135).hints("SIGBUS often means that /dev/shm, here of b, is full or small");
    let doctor = field.rlaunch("doctor -H b").run();
    let out = doctor.out();
    assert!(out.contains("/dev/shm of this ") && out.contains(" has only 1 MiB"), "{doctor}");
}

/// A /dev/shm in which no file can be made passed for a healthy one, and ranks failed without a hint.
#[test]
fn shared_memory_that_takes_no_files_is_named() {
    let field = Field::new();
    field.on("b", "mount -t tmpfs -o ro none /dev/shm");
    let _mount = Undo(|| {
        let mut umount = field.lab.on("b", Account::Root)?;
        rlaunch_lab::command::run("umount", umount.args(["umount", "/dev/shm"])).map(drop)
    });
    let ran = field.rlaunch("-H b:2 python3 -c").args(["import rlaunch; rlaunch.init()"]).run();
    ran.ended_with(1).hints("/dev/shm of b is mounted read-only");
    let doctor = field.rlaunch("doctor -H b").run();
    assert!(doctor.out().contains("/dev/shm is mounted read-only"), "{doctor}");
}

/// `ompi#4528`: "No such file or directory" about a program that is there.
#[test]
fn what_a_program_lacks_is_named_before_any_rank_starts() {
    let field = Field::new();
    let hosts = ["a", "b"];
    let program = |text: &str| field.files(&hosts, "/tmp/field/run", text, 0o755);
    let refused = |code: i32, texts: &[&str], hint: &str| {
        let ran = field.rlaunch("-H a,b -np 2 /tmp/field/run").run();
        ran.refused(code, texts).hints(hint);
    };
    let cannot = "/tmp/field/run cannot start on a, b";
    {
        let _script = program("#!/opt/venv/bin/python\nprint()\n");
        refused(127, &[cannot, "/opt/venv/bin/python"], "python /tmp/field/run");
    }
    {
        let _script = program("#!/usr/bin/env bash\r\nhostname\r\n");
        refused(127, &[cannot, "CRLF"], r"sed -i 's/\r$//' /tmp/field/run");
    }
    let _scratch = field.scratch(&hosts, "/tmp/field");
    for host in hosts {
        // The name of the loader, by another of the same length.
        let moved = "LC_ALL=C sed 's|/ld-linux|/no-linux|' /bin/true >/tmp/field/run";
        field.on(host, &format!("mkdir -p /tmp/field && {moved} && chmod 755 /tmp/field/run"));
    }
    refused(127, &[cannot, "it needs the loader", "/no-linux"], "C library");
    let ran = field.rlaunch("-H a,b -np 2 /tmp/field").run();
    ran.refused(126, &["/tmp/field is a directory on a, b"]);
}

/// A shell runs Python where the kernel does not see the first line of a script, and "import: not found" names no cause.
#[test]
fn no_shell_runs_what_another_interpreter_is_for() {
    let field = Field::new();
    let script = |text: &str| field.files(&["a"], "/tmp/field/run", text, 0o755);
    let long = format!("#!/{}/bin/python3\nimport os\n", "x".repeat(260));
    for (text, said, hint) in [
        (long.as_str(), "longer than the 255 bytes", "#!/usr/bin/env python3"),
        ("\u{feff}#!/usr/bin/env python3\nimport os\n", "a byte order mark", "sed -i"),
        ("\n#!/usr/bin/env python3\nimport os\n", "blanks or empty lines", "begin with #!"),
        ("version https://git-lfs.github.com/spec/v1\n", "a pointer of Git LFS", "git lfs pull"),
    ] {
        let _script = script(text);
        let ran = field.rlaunch("-H a /tmp/field/run").run();
        ran.refused(126, &["/tmp/field/run cannot start on a: ", said]).hints(hint);
    }
    let _script = script("\n#!/bin/bash\nhostname\n");
    assert_eq!(field.rlaunch("-H a /tmp/field/run").run().succeeded().out(), "a\n");
}

/// A start-up file that logs all that a shell prints takes its answers, too.
#[test]
fn a_shell_whose_stdout_leads_to_a_file_is_not_a_connection_that_stalls() {
    let field = Field::new();
    field.warm("a", Account::Root);
    let hosts = ["a", "b"];
    let _scratch = field.scratch(&hosts, "/tmp/field");
    let logged = "mkdir -p /tmp/field; exec >>/tmp/field/log 2>&1\n";
    let _bashrc = field.files(&hosts, &bashrc(), logged, 0o644);
    for line in ["-H a hostname", "-H b --agent-dir /tmp/none hostname"] {
        let ran = field.rlaunch(line).within(Duration::from_secs(60)).run();
        ran.refused(202, &["no ", " within "]).hints("echo hello").hints("exec >FILE");
        ran.keeps_quiet_about(&["stalls"]);
    }
}

/// What a host has is not said to be missing, and a shell executes no binary.
#[test]
fn a_program_that_is_there_but_cannot_be_used() {
    let field = Field::new();
    let _scratch = field.scratch(&["a"], "/tmp/field");
    let binary = r"printf '\177ELF\001\ntouch /tmp/field/ran\n' >odd && chmod 755 odd";
    field.on("a", "mkdir -p /tmp/field/noexec && mount -t tmpfs -o noexec none /tmp/field/noexec");
    let _mount = Undo(|| {
        let mut umount = field.lab.on("a", Account::Root)?;
        let words = ["umount", "/tmp/field/noexec"];
        rlaunch_lab::command::run("umount", umount.args(words)).map(drop)
    });
    let made = "cd /tmp/field && cp /bin/true noexec && mkdir -m 700 closed && cp /bin/true closed && \
                ln -s gone link && : >data && head -c 1000 /bin/true >cut && chmod 755 cut";
    field.on("a", &format!("{made} && {binary}"));
    let refused = |account, words: &str, code: i32, text: &str, hint: &str| {
        let ran = field.rlaunch("-H a").args(words.split(' ')).account(account).run();
        ran.refused(code, &[text]).hints(hint);
    };
    let closed = "this user may not enter /tmp/field/closed";
    for (account, words, code, text, hint) in [
        (Account::Root, "/tmp/field/noexec/true", 126, "is mounted noexec", "findmnt -T"),
        (Account::User, "/tmp/field/closed/true", 126, closed, "ls -ld /tmp/field/closed"),
        (Account::User, "--wdir /tmp/field/closed pwd", 203, closed, "ls -ld /tmp/field/closed"),
        (
            Account::Root,
            "/tmp/field/link",
            127,
            "a link to /tmp/field/gone",
            "ls -l /tmp/field/link",
        ),
        (
            Account::Root,
            "-x PATH=/tmp/field:/bin data",
            126,
            "/tmp/field/data is not executable on a",
            "chmod +x /tmp/field/data",
        ),
        (
            Account::Root,
            "--wdir /tmp/field/data pwd",
            203,
            "/tmp/field/data is a file on a",
            "--wdir",
        ),
        (Account::Root, "/tmp/field/cut", 126, "only 1000 of its", "copy it there again"),
    ] {
        refused(account, words, code, text, hint);
    }
    let ran = field.rlaunch("-H a /tmp/field/odd").run();
    ran.ended_with(126).says(&["it is neither a script nor a program for this host"]);
    let left = field.on("a", "ls /tmp/field");
    assert!(!left.contains("ran"), "{left}");
}

/// Where no more processes or threads may be started, that is the error: no bug of rlaunch, and no rank with a number of
/// a process that has never been.
#[test]
fn a_limit_of_processes_is_named() {
    let field = Field::new();
    let home = launch_directory();
    chown(home.path(), Some(54322), Some(54322)).unwrap();
    let (home, rlaunch) = (home.path().display(), field.rlaunch.display());
    for limit in 2..=8 {
        let line = format!(
            "setpriv --reuid=54322 --regid=54322 --clear-groups env HOME={home} bash -c 'ulimit -u \
             {limit}; exec {rlaunch} --no-record -np 2 sh -c \"echo hi\"' 2>&1"
        );
        let said = field.shell(&line, Path::new("/"));
        assert!(!said.contains("bug of rlaunch") && !said.contains("pid 0"), "{limit}: {said}");
        assert!(said.contains("hi\nhi\n") || said.contains("`ulimit -u` is "), "{limit}: {said}");
    }
}

/// `ompi#3798`: a host's TMPDIR below which the path of a socket would be too long.
#[test]
fn files_stay_below_the_hosts_tmpdir_however_long_its_path_is() {
    let field = Field::new();
    let project = launch_directory();
    std::fs::write(project.path().join("data.txt"), "x").unwrap();
    // Python's multiprocessing, as in torch's data loaders, has its sockets in TMPDIR.
    let listens = "import multiprocessing.connection as c; c.Listener(family='AF_UNIX').close()";
    let script = "rlaunch barrier x && test -s $RLAUNCH_PRELOAD_DIR/data.txt && \
                  echo $TMPDIR && echo $RLAUNCH_PRELOAD_DIR";
    for (length, has_room) in [(70, true), (150, false)] {
        let _scratch = field.scratch(&["a"], "/tmp/field");
        let long = format!("/tmp/field/{}", "x".repeat(length - 11));
        field.on("a", &format!("mkdir -p {long}"));
        let text = format!("export TMPDIR={long}\n");
        let _bashrc = field.files(&["a"], &bashrc(), &text, 0o644);
        let run = |script: &str| {
            let run = field.rlaunch("-H a --preload data.txt").in_directory(project.path());
            run.sh(script).run()
        };
        let below = format!("{long}/rlaunch-");
        let ran = run(script);
        let said = ran.succeeded().out().into_owned();
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines.len(), 2, "{ran}");
        assert!(lines[1].starts_with(&below), "{ran}");
        if has_room {
            // A directory in it would leave none for the names of sockets.
            assert_eq!(lines[0], long, "{ran}");
        } else {
            assert!(lines[0].starts_with("/tmp/rlaunch-"), "{ran}");
        }
        run(&format!("python3 -c \"{listens}\"")).succeeded();
        let left = field.on("a", &format!("ls {long}"));
        assert!(!left.contains("rlaunch-"), "{left}");
    }
}

/// A machine on which another package had brought the csh of BSD as `/bin/csh`.
#[test]
fn bsd_csh_as_login_shell_starts_agents_that_are_there() {
    let field = Field::new();
    let _shell = login_shell(&field, "a", "/bin/bsd-csh");
    field.forget_agents(&["a"], Account::Root);
    let cold = field.rlaunch("-H a hostname").logging().run();
    assert_eq!(cold.succeeded().out(), "a\n", "{cold}");
    cold.says(&["agent sent to a ("]);
    let warm = field.rlaunch("-H a hostname").run();
    assert_eq!(warm.succeeded().out(), "a\n", "{warm}");
    warm.says_nothing();
}
