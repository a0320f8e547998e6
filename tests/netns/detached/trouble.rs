//! Whatever happens to a job that has left its terminal, or is about to: how it ends, and what its log has then.

use crate::example::make_launcher;
use crate::running::Outcome;
use crate::support::{Field, Run, Undo, launch_directory};
use crate::terminal::open_pair;
use rlaunch_lab::{Account, Cut};
use serde_json::Value;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread::{scope, sleep};
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    /// The terminal is closed.
    Terminal,
    /// The login at the launching machine ends, as its connection does.
    Login,
    /// The launcher gets SIGTERM.
    Term,
    /// The launcher gets SIGKILL.
    Kill,
    /// The host of a rank is cut off.
    Host,
    /// The disk with the output is full for a while.
    Disk,
}
use Trouble::{Disk, Host, Kill, Login, Term, Terminal};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// The host of the rank is being reached.
    Connecting,
    /// The rank runs.
    Running,
    /// The launcher has been told to end, and the rank has its grace.
    Ending,
}
use Moment::{Connecting, Ending, Running};

/// Codes with which the job ends, by moment, and the host of its rank.
const CELLS: [(Trouble, &str, [i32; 3]); 6] = [
    (Terminal, "a", [129, 0, 143]),
    (Login, "b", [129, 0, 143]),
    (Term, "c", [143, 143, 143]),
    (Kill, "d", [137, 137, 137]),
    (Host, "e", [201, 206, 143]),
    (Disk, "f", [0, 0, 143]),
];
/// Host from which the job of [`Login`] is started.
const HEAD: &str = "g";
/// Directory of the cell on the host of its rank, and on the launching machine.
const PLACE: &str = "/tmp/detached";
/// Numbers that are 1.3 MB of lines: more than is ever under way, so that much of them has come to the launcher once all are
/// printed.
const NUMBERS: u32 = 200_000;

/// Job with one rank, in one trouble at one moment.
struct Cell<'a> {
    field: &'a Field,
    trouble: Trouble,
    moment: Moment,
    /// Host of the rank.
    host: &'static str,
    /// Directory of the launching machine, with records and files that hold the job up.
    directory: &'a str,
}

/// What the job was started from.
struct Start {
    child: Child,
    /// The keyboard of its terminal.
    terminal: Option<OwnedFd>,
}

#[test]
fn every_trouble_at_every_moment_has_its_end() {
    let field = Field::new();
    let hosts = CELLS.map(|(_, host, _)| host);
    field.warm(&hosts.join(","), Account::Root);
    let _places = field.scratch(&hosts, PLACE);
    let _head = field.scratch(&[HEAD], PLACE);
    let _copy = field.scratch(&[HEAD], "/tmp/dist");
    let _launcher = make_launcher(&field, HEAD, Account::Root);
    let field = &field;
    scope(|threads| {
        for (trouble, host, codes) in CELLS {
            threads.spawn(move || {
                for (moment, code) in [Connecting, Running, Ending].into_iter().zip(codes) {
                    let directory = launch_directory();
                    let on_head = format!("{PLACE}/{moment:?}");
                    let directory = match trouble {
                        Login => on_head.as_str(),
                        _ => directory.path().to_str().unwrap(),
                    };
                    Cell { field, trouble, moment, host, directory }.run(code);
                }
            });
        }
    });
}

impl Cell<'_> {
    /// Runs the job through its trouble to its end, which has this code.
    fn run(&self, code: i32) {
        let Cell { field, trouble, moment, host, .. } = *self;
        let cell = format!("{trouble:?}, {moment:?}");
        field.on(host, &format!("rm -rf {PLACE}; mkdir {PLACE}"));
        let healed = (trouble == Host).then(|| Undo(move || field.lab.heal(host)));
        let mut start = self.start();
        self.reach_moment();
        self.strike(&mut start);
        let waited = self.rlaunch("wait last").spawn().finish_first();
        assert_eq!(waited.code, code, "{cell}: {waited}");
        // A rank whose launcher was killed, or whose host is cut off, has its grace.
        field.on(host, &format!("touch {PLACE}/go"));
        if moment == Connecting && matches!(trouble, Term | Kill | Host) {
            let status = start.child.wait().unwrap();
            assert_eq!(status.code(), Some(code), "{cell}");
        }
        self.check_log(&cell);
        if trouble == Disk {
            self.on_launcher(&format!("umount -l {}", self.directory));
        }
        // An ssh that has lost its terminal, or whose command waits for ever.
        let _ = start.child.kill();
        let _ = start.child.wait();
        drop(start.terminal);
        drop(healed);
        if trouble == Host {
            // TCP tries again ever more rarely while it is cut off, so an sshd there may learn only much later that
            // its peer is gone.
            field.on(host, "pkill -KILL -f '^sshd.*@notty' || true");
        }
        field.wait_for(&format!("the end on {host} ({cell})"), || {
            field.started().iter().all(|process| process.host != host)
        });
    }

    fn rlaunch(&self, words: &str) -> Run<'_> {
        let run = self.field.rlaunch(words).env("XDG_STATE_HOME", self.directory);
        if self.trouble == Login { run.started_on(HEAD) } else { run }
    }

    fn ask(&self, words: &str) -> Outcome {
        self.rlaunch(words).spawn().finish_first()
    }

    /// Runs a shell line on the launching machine.
    fn on_launcher(&self, line: &str) -> String {
        match self.trouble {
            Login => self.field.on(HEAD, line),
            _ => self.field.shell(line, Path::new("/")),
        }
    }

    /// Returns the program of the rank. It prints much when it finds a file `print`, and comes to its end when it finds `go`.
    fn script(&self) -> String {
        let wait = format!(
            "until [ -e {PLACE}/go ]; do sleep 0.05; [ ! -e {PLACE}/print ] || \
             {{ seq {NUMBERS}; rm {PLACE}/print; mkdir {PLACE}/printed; }}; done; echo after"
        );
        match self.moment {
            Ending => format!(
                "trap 'echo ending; {wait}; exit 0' TERM; echo up; while :; do sleep 0.05; done"
            ),
            _ => format!("echo up; {wait}"),
        }
    }

    /// Starts the job. While it connects, a script in place of ssh waits for a file `go` beside it.
    fn start(&self) -> Start {
        let Cell { field, trouble, moment, host, directory } = *self;
        let held = format!(
            "mkdir -p {directory}; printf '%s\\n' '#!/bin/sh' 'touch {directory}/held' \
             'until [ -e {directory}/go ]; do kill -0 $PPID || exit 1; sleep 0.05; done' \
             'exec ssh -o StrictHostKeyChecking=no \"$@\"' >{directory}/ssh; \
             chmod 755 {directory}/ssh"
        );
        if trouble == Disk {
            self.on_launcher(&format!("mount -t tmpfs -o size=4m none {directory}"));
        }
        self.on_launcher(&held);
        let is_held = moment == Connecting && trouble != Host;
        let rsh = if is_held { format!("--rsh {directory}/ssh") } else { String::new() };
        let words = format!("-d -H {host} --no-pty --kill-after 20 {rsh}");
        if moment == Connecting && trouble == Host {
            field.lab.cut(host, Cut::Silent).unwrap();
        }
        let run = self.rlaunch(&words).sh(&self.script());
        match trouble {
            Terminal => {
                let pair = open_pair();
                let end = || pair.slave.try_clone().unwrap();
                let mut command = run.at_terminal().command();
                let child = command.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
                Start { child, terminal: Some(pair.master) }
            }
            Login => {
                let script = self.script().replace('\'', r"'\''");
                let line = format!(
                    "XDG_STATE_HOME={directory} /tmp/dist/rlaunch {words} sh -c '{script}'; \
                     exec sleep 1000"
                );
                let mut command = field.lab.exec_in(Account::Root, Path::new("/"));
                command.args(["ssh", "-tt", HEAD, &line]).stdin(Stdio::piped());
                let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
                Start { child, terminal: None }
            }
            _ => {
                let mut command = run.command();
                command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
                Start { child: command.spawn().unwrap(), terminal: None }
            }
        }
    }

    fn reach_moment(&self) {
        let what = format!("{:?}, {:?}", self.trouble, self.moment);
        match self.moment {
            Connecting if self.trouble == Host => {
                self.field.wait_for(&what, || self.launcher().is_some());
            }
            Connecting => {
                let held = format!("[ ! -e {}/held ] || echo held", self.directory);
                self.field.wait_for(&what, || self.on_launcher(&held) == "held\n");
            }
            Running => self.wait_for_log("up\n"),
            Ending => {
                self.wait_for_log("up\n");
                self.signal("TERM");
                self.wait_for_log("ending\n");
            }
        }
    }

    fn wait_for_log(&self, text: &str) {
        let what = format!("{text:?} ({:?}, {:?})", self.trouble, self.moment);
        self.field.wait_for(&what, || self.ask("logs last").out().contains(text));
    }

    /// Returns the pid of the launcher, if the job runs.
    fn launcher(&self) -> Option<u64> {
        let listed = self.ask("jobs --json");
        let jobs: Value = serde_json::from_slice(&listed.stdout).ok()?;
        jobs[0]["pid"].as_u64()
    }

    fn signal(&self, signal: &str) {
        let launcher = self.launcher().unwrap();
        self.on_launcher(&format!("kill -{signal} {launcher}"));
    }

    fn strike(&self, start: &mut Start) {
        let Cell { field, trouble, moment, host, directory } = *self;
        let touch = |name: &str| field.on(host, &format!("touch {PLACE}/{name}"));
        match trouble {
            Terminal | Login => {
                drop(start.terminal.take());
                if trouble == Login {
                    start.child.kill().unwrap();
                }
                if moment != Connecting {
                    sleep(Duration::from_millis(500));
                    touch("go");
                }
            }
            Term => {
                // It has no terminal that could hang up.
                if moment == Running {
                    self.signal("HUP");
                }
                // Sooner it may be the same request, passed on.
                sleep(Duration::from_millis(600));
                self.signal("TERM");
            }
            Kill => self.signal("KILL"),
            Host if moment == Connecting => {}
            Host => field.lab.cut(host, Cut::Silent).unwrap(),
            Disk => {
                self.on_launcher(&format!("cat /dev/zero >{directory}/filler 2>/dev/null"));
                if moment == Connecting {
                    // No file is needed for it.
                    self.on_launcher(&format!("mv {directory}/held {directory}/go"));
                }
                touch("print");
                let printed = format!("[ ! -d {PLACE}/printed ] || echo printed");
                field.wait_for("the numbers", || field.on(host, &printed) == "printed\n");
                self.on_launcher(&format!("rm {directory}/filler"));
                touch("go");
            }
        }
    }

    /// Checks what the log has once the job is over.
    fn check_log(&self, cell: &str) {
        let Cell { trouble, moment, host, .. } = *self;
        let logs = self.ask("logs last");
        logs.succeeded();
        let out = logs.out();
        // A rank that never started has printed nothing.
        let has_started = moment != Connecting || trouble == Disk;
        let first = match moment {
            Ending => "up\nending\n",
            _ => "up\n",
        };
        assert_eq!(out.starts_with(first), has_started, "{cell}: {logs}");
        let is_whole = has_started && matches!(trouble, Terminal | Login | Disk);
        assert_eq!(out.ends_with("after\n"), is_whole, "{cell}: {logs}");
        let lost = format!("error: node {host} is lost");
        match (trouble, moment) {
            (Disk, _) => logs.says(&["could not be kept here"]),
            (Host, Running) => logs.says(&[&lost]),
            (Term, Running) => logs.says(&["ended by SIGTERM"]),
            _ => &logs,
        };
    }
}
