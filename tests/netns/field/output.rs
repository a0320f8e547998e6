//! A rank that does not end its lines keeps the output of no other rank waiting. Output that cannot be written is not
//! lost in silence, and a reader that has left is no error, whatever it has read from.

use crate::running::said;
use crate::support::{BOUND, Field, launch_directory};
use crate::terminal::{Terminal, open_pair};
use nix::pty::OpenptyResult;
use rlaunch_lab::command::wait_until;
use rlaunch_lab::{Account, Stopwatch};
use std::fs::{self, File};
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

/// Time within which a line has to be there: a turn of a second, and the way on a busy machine. Rank 0 writes far longer.
const SOON: Duration = Duration::from_secs(15);

/// End of rank 0's script: it waits for a file, half a minute at least.
const STOPPED: &str = "[ -e /tmp/stop ] || [ $((i += 1)) = 3000 ]";

/// Returns a script in which rank 0 writes as `writer` says. Rank 1 prints a line once there is a file, rank 2 prints
/// all the time.
fn script(writer: &str) -> String {
    format!(
        "until_there() {{ until [ -e /tmp/go$RANK ]; do eval $1; sleep 0.05; done; echo line $RANK; sleep 0.2; rm /tmp/go$RANK; }}
        i=0
        case $RANK in
        0) {writer}; rm -f /tmp/stop; echo end;;
        1) until_there :;;
        2) until_there 'echo beat';;
        esac"
    )
}

/// Runs the script until rank 0 has written `bytes`. Asserts that lines of the others come soon, and that all bytes
/// come in order.
fn assert_lines_beside(words: &str, hosts: [&str; 3], writer: &str, bytes: u64) {
    let (field, directory) = (Field::new(), launch_directory());
    let run = field.rlaunch(words).args(["--output-dir", "D"]).in_directory(directory.path());
    let mut running = run.sh(&script(writer)).spawn();
    let file = directory.path().join("D/rank.0/stdout");
    let has_written = || fs::metadata(&file).is_ok_and(|file| file.len() >= bytes);
    field.wait_for("rank 0 to write", has_written);
    let touch = |host, path: &str| field.lab.write_file(host, Path::new(path), b"", 0o644).unwrap();
    for rank in [1, 2] {
        let asked = Stopwatch::start();
        touch(hosts[rank], &format!("/tmp/go{rank}"));
        running.wait_for_text(&format!("line {rank}\n"), 1);
        assert!(asked.elapsed() < SOON, "rank {rank} after {:?}", asked.elapsed());
    }
    touch(hosts[0], "/tmp/stop");
    let ran = running.finish();
    let out = ran.succeeded().out();
    for line in ["line 1", "line 2"] {
        assert_eq!(out.lines().filter(|shown| *shown == line).count(), 1, "{ran}");
    }
    let of_others = |line: &&str| ["line 1\n", "line 2\n", "beat\n"].contains(line);
    let rest: String = out.split_inclusive('\n').filter(|line| !of_others(line)).collect();
    let printed = fs::read_to_string(&file).unwrap();
    assert!(rest.replace('\n', "") == printed.replace('\n', ""), "{ran}");
    assert!(printed.ends_with("end\n") && printed.matches('\n').count() == 1, "{ran}");
}

/// As `tqdm` draws one in a log: 50 steps a second, of 2 kB so that it does not take long.
#[test]
fn a_progress_bar() {
    let bar = format!(
        "p=$(printf %02000d 0); until {STOPPED}; do printf '\\r%s %d%%' $p $i; sleep 0.02; done"
    );
    assert_lines_beside("-H a,b,c -np 3", ["a", "b", "c"], &bar, 100_000);
}

/// More than a frame, and then nothing for a long time.
#[test]
fn half_of_a_long_line() {
    let half = format!("printf %040000d 0; until {STOPPED}; do sleep 0.02; done");
    assert_lines_beside("-H a,b,c -np 3", ["a", "b", "c"], &half, 40_000);
}

/// A line without end, of a rank that shares its host with one of the others.
#[test]
fn a_flood_without_newline() {
    let flood =
        format!("p=$(printf %08000d 0); until {STOPPED}; do printf %s $p; sleep 0.01; done");
    assert_lines_beside("-H a:2,b -np 3", ["a", "a", "b"], &flood, 200_000);
}

/// The same, where everything is shown at once.
#[test]
fn a_flood_at_a_terminal() {
    let field = Field::new();
    let flood =
        format!("p=$(printf %08000d 0); until {STOPPED}; do printf %s $p; sleep 0.01; done");
    let (terminal, slave) = Terminal::open();
    let mut command = field.rlaunch("-H a:2 -np 2 --no-tag").sh(&script(&flood)).command();
    command.stdin(Stdio::null()).stderr(Stdio::null()).stdout(slave);
    let mut child = command.spawn().unwrap();
    // It has the terminal open.
    drop(command);
    terminal.wait_until(BOUND, "the flood", |shown| shown.len() > 200_000);
    let touch = |path| field.lab.write_file("a", Path::new(path), b"", 0o644).unwrap();
    touch("/tmp/go1");
    let asked = Stopwatch::start();
    terminal.wait_until(BOUND, "a line of its own", |shown| shown.contains("\nline 1\r\n"));
    assert!(asked.elapsed() < SOON, "{:?}", asked.elapsed());
    touch("/tmp/stop");
    wait_until(BOUND, "rlaunch to end", || Ok(child.try_wait().unwrap().is_some())).unwrap();
    assert!(terminal.finish().ends_with("0end\r\n"));
}

/// Verbs ended with 0 on a full disk, as if there had been nothing to print.
#[test]
fn results_that_cannot_be_written_are_an_error() {
    let field = Field::new();
    let directory = launch_directory();
    let lines = [
        "jobs", "jobs --json", "history --json", "help", "help hosts", "-h", "jobs --help",
        "--version", "completions bash", "hostfile -H a,b", "-H a --dry-run=offline true",
        "-H a --dry-run true", "topo -H a", "monitor -H a --once",
    ];
    for line in lines {
        let run = field.rlaunch(line).env("XDG_STATE_HOME", directory.path().to_str().unwrap());
        let mut command = run.command();
        let full = File::options().write(true).open("/dev/full").unwrap();
        let ran = command.stdin(Stdio::null()).stdout(full).output().unwrap();
        let said = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(203), "{line}: {said}");
        let error = "error: cannot write to stdout: No space left on device";
        assert_eq!(said.matches(error).count(), 1, "{line}: {said}");
        // A reader that has left has read all that it wanted.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let ran = run.command().stdin(Stdio::null()).stdout(writer).output().unwrap();
        let said = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(0), "{line}: {said}");
        assert!(!said.contains("cannot write"), "{line}: {said}");
    }
}

#[test]
fn output_of_a_job_that_cannot_be_printed_again_is_an_error() {
    let (field, directory) = (Field::new(), launch_directory());
    let state = directory.path().to_str().unwrap();
    field.rlaunch("-H a echo x").env("XDG_STATE_HOME", state).run().succeeded();
    let mut command = field.rlaunch("logs last").env("XDG_STATE_HOME", state).command();
    let full = File::options().write(true).open("/dev/full").unwrap();
    let ran = command.stdin(Stdio::null()).stdout(full).output().unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(203), "{said}");
    assert!(said.contains("cannot write the job's output: No space left on device"), "{said}");
}

/// Waits until rlaunch has ended, and asserts that it ended as for a reader of a pipe that has left.
fn assert_left_quietly(field: &Field, mut child: Child) {
    wait_until(BOUND, "rlaunch to end", || Ok(child.try_wait().unwrap().is_some())).unwrap();
    let ran = child.wait_with_output().unwrap();
    let said = said(&String::from_utf8_lossy(&ran.stderr));
    assert_eq!((ran.status.code(), said), (Some(141), vec![]));
    let left = field.started();
    assert!(left.is_empty(), "{left:#?}");
}

/// As `rlaunch … > /dev/tcp/HOST/PORT` in a shell, below a server that closes while there is more.
#[test]
fn a_reader_that_resets_its_connection_has_left() {
    let field = Field::new();
    field.warm("a,b", Account::Root);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stdout = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut reader, _) = listener.accept().unwrap();
    let mut command = field.rlaunch("-H a,b --node-timeout 60 yes").command();
    command.stdin(Stdio::null()).stdout(OwnedFd::from(stdout)).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    // It has the connection open.
    drop(command);
    reader.read_exact(&mut [0; 100]).unwrap();
    drop(reader);
    assert_left_quietly(&field, child);
}

/// The terminal is not that of rlaunch's session, so that no hangup tells of its end.
#[test]
fn a_terminal_that_is_gone_has_left() {
    let field = Field::new();
    field.warm("a,b", Account::Root);
    let OpenptyResult { master, slave } = open_pair();
    let mut command = field.rlaunch("-H a,b --node-timeout 60 yes").command();
    command.stdin(Stdio::null()).stdout(slave).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    drop(command);
    File::from(master).read_exact(&mut [0; 100]).unwrap();
    assert_left_quietly(&field, child);
}

/// SIGXFSZ killed the launcher in the middle of its ranks' output, or when it wrote its record.
#[test]
fn a_limit_of_the_size_of_files_is_an_error_with_its_name() {
    let (field, directory) = (Field::new(), launch_directory());
    let state = directory.path().to_str().unwrap();
    let rlaunch = |limit| {
        let run = field.rlaunch("-H a").env("XDG_STATE_HOME", state);
        run.with_file_size(limit)
    };
    let shown = directory.path().join("shown");
    let mut command = rlaunch(64 << 10).sh("exec seq 1 100000").command();
    command.stdin(Stdio::null()).stdout(File::create(&shown).unwrap());
    let ran = command.output().unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(203), "{said}");
    let error = "error: cannot write the ranks' output to stdout: File too large";
    assert!(said.contains(error) && said.contains("hint: `ulimit -f` shows"), "{said}");
    assert_eq!(fs::metadata(&shown).unwrap().len(), 64 << 10);
    // The record is too large, and the job has succeeded.
    let ran = rlaunch(100).sh("echo x").run();
    assert_eq!(ran.succeeded().out(), "x\n");
    ran.says(&["warning: cannot write the job's record to ", "File too large"])
        .hints("`ulimit -f`");
}

/// SIGXFSZ killed the agent, whose node was lost.
#[test]
fn a_limit_of_the_size_of_files_on_a_host_is_an_error_with_its_name() {
    let (field, directory) = (Field::new(), launch_directory());
    field.warm("a", Account::Root);
    fs::write(directory.path().join("data"), vec![b'x'; 256 << 10]).unwrap();
    let bashrc = Account::Root.home().join(".bashrc");
    let _bashrc = field.files(&["a"], bashrc.to_str().unwrap(), "ulimit -f 16\n", 0o644);
    let run = field.rlaunch("-H a --copy data true").in_directory(directory.path()).run();
    run.refused(203, &["cannot copy files to a: write ", "File too large"]).hints("`ulimit -f`");
    // The program of ranks is ended as it would be without rlaunch.
    let ran = field.rlaunch("-H a").sh("head -c 64K /dev/zero > /tmp/large").run();
    field.on("a", "rm /tmp/large");
    ran.ended_with(153);
}
