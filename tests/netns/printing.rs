//! Printing of ranks' output: tags, colours, files, merged streams, and rlaunch's own messages.

use crate::mpi::stand_in::StandIn;
use crate::output::{check_flood, flood};
use crate::support::{BOUND, Field, Run, launch_directory};
use crate::terminal::{Terminal, screen};
use rlaunch_lab::Account;
use rlaunch_lab::command::wait_until;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Stdio};

#[test]
fn a_tag_says_who_where_and_when() {
    let field = Field::new();
    field.warm("a,b", Account::Root);
    let now = || field.on("a", "date -u +%FT%T.%6N").trim_end().to_owned();
    let before = now();
    let run = field.rlaunch("-H a:2,b").args(["--tag-output=%r|%h|%l|%p|%t|%%r|"]);
    let ran = run.sh("echo $$; echo $$ >&2").run();
    let after = now();
    let (out, err) = (ran.succeeded().out().into_owned(), ran.said());
    assert_eq!((out.lines().count(), err.len()), (3, 3), "{ran}");
    let mut ranks = Vec::new();
    for line in out.lines().chain(err.iter().map(String::as_str)) {
        let words: Vec<&str> = line.split('|').collect();
        let [rank, host, local, pid, time, percent, text] = words[..] else { panic!("{line}") };
        let expected = [("0", "a", "0"), ("1", "a", "1"), ("2", "b", "0")];
        assert!(expected.contains(&(rank, host, local)), "{line}");
        assert_eq!((percent, text), ("%r", pid), "{line}");
        // All hosts are this machine and share its clock.
        let time = time.strip_suffix('Z').unwrap_or_else(|| panic!("{line}"));
        assert!(before.as_str() <= time && time <= after.as_str(), "{before} {line} {after}");
        ranks.push(rank.to_owned());
    }
    ranks.sort_unstable();
    assert_eq!(ranks, ["0", "0", "1", "1", "2", "2"], "{ran}");
    let ran = field.rlaunch("-H a --tag-output=%q true").run();
    ran.ended_with(200).says(&["there is no %q; there are %r rank, %h host"]);
}

/// An unfinished line is in the rank's file after a moment. Elsewhere no other output is written
/// into it.
#[test]
fn an_unfinished_line_has_one_tag_and_stays_whole() {
    let field = Field::new();
    let directory = launch_directory();
    let script = "[ $RANK = 0 ] || { echo other; exit; }
        printf half; until [ -e /tmp/go ]; do sleep 0.02; done; rm /tmp/go; echo ' a line'";
    let run = field.rlaunch("-H a,b --tag-output --output-dir D").in_directory(directory.path());
    let mut running = run.sh(script).spawn();
    running.wait_for_text("[1,b] other\n", 1);
    let file = directory.path().join("D/rank.0/stdout");
    field.wait_for("half a line", || fs::read(&file).is_ok_and(|text| text == b"half"));
    assert_eq!(running.out(), "[1,b] other\n");
    field.lab.write_file("a", Path::new("/tmp/go"), b"", 0o644).unwrap();
    assert_eq!(running.finish().succeeded().out(), "[1,b] other\n[0,a] half a line\n");
    assert_eq!(fs::read(&file).unwrap(), b"half a line\n");
}

/// Running rlaunch with a terminal as stdout. Its own messages are ignored.
struct OnTerminal {
    child: Child,
    terminal: Terminal,
}

impl OnTerminal {
    fn start(run: &Run<'_>) -> OnTerminal {
        let (terminal, slave) = Terminal::open();
        let mut command = run.command();
        command.stdin(Stdio::null()).stderr(Stdio::null()).stdout(slave);
        OnTerminal { child: command.spawn().unwrap(), terminal }
    }

    /// Waits until exactly this text is shown.
    fn wait_for(&self, text: &str) {
        self.terminal.wait_until(BOUND, text, |shown| shown == text);
    }

    /// Waits until rlaunch has ended successfully, and returns everything that was shown.
    fn finish(mut self) -> String {
        let mut status = None;
        let ended = wait_until(BOUND, "rlaunch to end", || {
            status = self.child.try_wait().unwrap();
            Ok(status.is_some())
        });
        let _ = self.child.kill();
        assert!(ended.is_ok(), "{:?}", self.terminal.text());
        let shown = self.terminal.finish();
        assert!(status.is_some_and(|status| status.success()), "{status:?}: {shown:?}");
        shown
    }
}

/// Shows a job again where ranks were kept from a busy processor, so that what they print within a moment came apart.
fn shown_as(is_right: impl Fn(&str) -> bool, show: impl Fn() -> String) -> String {
    let mut shown = show();
    for _ in 0..4 {
        if is_right(&shown) {
            break;
        }
        shown = show();
    }
    shown
}

#[test]
fn tags_have_colours_where_somebody_looks() {
    let field = Field::new();
    field.warm("a,b", Account::Root);
    let run = || field.rlaunch("-H a,b --tag-output").sh("echo $RANK");
    let sorted = |shown: &str| {
        let mut lines: Vec<String> = shown.lines().map(str::to_owned).collect();
        lines.sort_by_key(|line| line.chars().last());
        lines
    };
    let coloured = ["\u{1b}[36m[0,a] \u{1b}[0m0", "\u{1b}[32m[1,b] \u{1b}[0m1"];
    let plain = ["[0,a] 0", "[1,b] 1"];
    let shown = OnTerminal::start(&run().env("TERM", "xterm")).finish();
    assert_eq!(sorted(&shown), coloured);
    let shown = OnTerminal::start(&run().env("TERM", "xterm").env("NO_COLOR", "1")).finish();
    assert_eq!(sorted(&shown), plain);
    let shown = OnTerminal::start(&run().env("TERM", "dumb")).finish();
    assert_eq!(sorted(&shown), plain);
    // With the option that forces colours they are in other outputs too, but not in the files of
    // ranks.
    let directory = launch_directory();
    let ran = field
        .rlaunch("-H a,b --tag-output --output-dir D")
        .env("CLICOLOR_FORCE", "1")
        .in_directory(directory.path())
        .sh("echo $RANK")
        .run();
    assert_eq!(sorted(&ran.succeeded().out()), coloured, "{ran}");
    assert_eq!(fs::read(directory.path().join("D/rank.1/stdout")).unwrap(), b"1\n");
    assert_eq!(sorted(&run().run().out()), plain);
}

#[test]
fn equal_lines_of_many_ranks_are_shown_once_at_a_terminal() {
    let field = Field::new();
    field.warm("a,b", Account::Root);
    let directory = launch_directory();
    let script = "rlaunch barrier; echo same; echo loss 0.$RANK; [ $RANK != 5 ] || echo mine";
    let run = |options: &str| {
        let run =
            field.rlaunch(&format!("-H a:3,b:3 --merge-stderr --no-tag {options}")).sh(script);
        run.in_directory(directory.path()).env("NO_COLOR", "1").env("TERM", "xterm")
    };
    let lines = |shown: &str| {
        let mut lines: Vec<String> = shown.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let losses = |tag: &str| (0..6).map(|rank| format!("{tag}loss 0.{rank}")).collect::<Vec<_>>();
    let show = |options: &str| OnTerminal::start(&run(options)).finish();
    let is_folded = |shown: &str| shown.contains("[0-5] same");
    let shown = lines(&shown_as(is_folded, || show("--fold --output-dir D")));
    assert_eq!(shown[0], "[0-5] same");
    assert_eq!((&shown[1..7], &shown[7..]), (&losses("")[..], &["mine".to_owned()][..]));
    let file =
        |rank: u32| fs::read_to_string(directory.path().join(format!("D/rank.{rank}/stdout")));
    assert_eq!(file(5).unwrap(), "same\nloss 0.5\nmine\n");

    let is_folded = |shown: &str| lines(shown).len() == 3;
    let shown = lines(&shown_as(is_folded, || show("--fold=numbers")));
    assert_eq!(shown, ["[0-5] loss 0.0..0.5", "[0-5] same", "mine"]);
    let shown = lines(&show("--fold=none"));
    assert_eq!(shown.iter().filter(|line| *line == "same").count(), 6);
    let piped = run("--fold").run();
    assert_eq!(piped.succeeded().out().lines().filter(|line| *line == "same").count(), 6);
}

#[test]
fn at_a_terminal_ranks_are_told_apart() {
    let field = Field::new();
    field.warm("a,b", Account::Root);
    let show = |options: &str, script: &str| {
        let run = field.rlaunch(options).sh(&format!("rlaunch barrier; {script}"));
        OnTerminal::start(&run.env("NO_COLOR", "1").env("TERM", "xterm")).finish()
    };
    let table = "echo $RANK head; sleep 0.1; echo $RANK end";
    let [first, second] = ["a | 0 head\r\na | 0 end\r\n", "b | 1 head\r\nb | 1 end\r\n"];
    let either = [format!("{first}{second}"), format!("{second}{first}")];
    let is_either = |shown: &str| either.iter().any(|one| one == shown);
    let shown = shown_as(is_either, || show("-H a,b", table));
    assert!(is_either(&shown), "{shown:?}");
    let folded = "[0-1] | one\r\n[0-1] | two\r\n";
    let shown = shown_as(|shown| shown == folded, || show("-H a,b", "echo one; echo two"));
    assert_eq!(shown, folded);
    let shown = show("-H a:2", "echo $RANK");
    assert!(shown.contains("0 a | 0\r\n") && shown.contains("1 a | 1\r\n"), "{shown:?}");
    let shown = show("-H a,b --no-tag", "echo $RANK");
    assert!(["0\r\n1\r\n", "1\r\n0\r\n"].contains(&&*shown), "{shown:?}");
    // Nobody has to be told from the only one who prints.
    assert_eq!(show("-H a,b", "[ $RANK = 1 ] || echo alone"), "alone\r\n");
}

#[test]
fn bars_of_several_ranks_stand_below_each_other() {
    let field = Field::new();
    field.warm("a,b", Account::Root);
    let script = "rlaunch barrier
        for i in 1 2 3; do printf '\\r%s: %s0%%|' $RANK $i; sleep 0.6; done
        [ $RANK = 1 ] || echo >&2 between
        printf '\\r%s: 100%%|\\n' $RANK; sleep 0.5";
    let run = field.rlaunch("-H a,b --merge-stderr").sh(script);
    let run = run.env("NO_COLOR", "1").env("TERM", "xterm");
    let both = "a | 0: 20%|\r\r\nb | 1: 20%|";
    let shown = shown_as(|shown| shown.contains(both), || OnTerminal::start(&run).finish());
    assert!(shown.contains(both), "{shown:?}");
    let mut lines = screen(&shown);
    lines.sort();
    assert_eq!(lines, ["a | 0: 100%|", "a | 0: 30%|between", "b | 1: 100%|"], "{shown:?}");
}

/// The prompt of one rank is shown immediately, and output of other ranks does not continue its
/// line.
#[test]
fn on_a_terminal_a_prompt_is_a_line_of_its_own() {
    let field = Field::new();
    field.warm("a,b", Account::Root);
    let script = "wait_for_it() { until [ -e /tmp/go ]; do sleep 0.02; done; rm /tmp/go; }
        if [ $RANK = 0 ]; then printf 'name? '; wait_for_it; echo you; exit; fi
        wait_for_it; echo other";
    let run = field.rlaunch("-H a,b --tag-output").env("NO_COLOR", "1").sh(script);
    let running = OnTerminal::start(&run);
    running.wait_for("[0,a] name? ");
    field.lab.write_file("b", Path::new("/tmp/go"), b"", 0o644).unwrap();
    running.wait_for("[0,a] name? \r\n[1,b] other\r\n");
    field.lab.write_file("a", Path::new("/tmp/go"), b"", 0o644).unwrap();
    assert_eq!(running.finish(), "[0,a] name? \r\n[1,b] other\r\n[0,a] you\r\n");
}

#[test]
fn every_rank_has_files_with_every_byte() {
    const LINES: usize = 20_000;
    let field = Field::new();
    let directory = launch_directory();
    let of = |rank: usize, stream: &str| {
        let path = directory.path().join(format!("deep/D/rank.{rank}/{stream}"));
        fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    // Checks the output of one rank as if it were the only one.
    let check = |rank: usize, bytes: &[u8], lines: usize| {
        let text = String::from_utf8_lossy(bytes);
        assert!(text.lines().all(|line| line.starts_with(&format!("{rank} "))), "rank {rank}");
        let other = text.replace(&format!("\n{rank} "), "\n0 ");
        check_flood(other.replacen(&format!("{rank} "), "0 ", 1).as_bytes(), 1, lines, |_| {
            String::new()
        });
    };
    let script = format!("{} & {} >&2; wait", flood(LINES), flood(LINES / 2));
    let run = field.rlaunch("-H a:2,b --tag-output --output-dir deep/D");
    let ran = run.in_directory(directory.path()).sh(&script).run();
    let tag = |rank: usize| format!("[{rank},{}] ", ["a", "a", "b"][rank]);
    check_flood(&ran.succeeded().stdout, 3, LINES, tag);
    for rank in 0..3 {
        check(rank, &of(rank, "stdout"), LINES);
        check(rank, &of(rank, "stderr"), LINES / 2);
    }
    // The option has the name that mpirun uses. Existing files are replaced, and the job continues
    // when its reader closes the pipe.
    let run = field.rlaunch("-H a:2,b --output-filename deep/D").in_directory(directory.path());
    let mut command = run.sh(&flood(LINES)).command();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut first = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
    wait_until(BOUND, "rlaunch to end", || Ok(child.try_wait().unwrap().is_some())).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    for rank in 0..3 {
        check(rank, &of(rank, "stdout"), LINES);
        assert!(of(rank, "stderr").is_empty());
    }
    fs::write(directory.path().join("file"), "").unwrap();
    let run = field.rlaunch("-H a --output-dir file hostname").in_directory(directory.path());
    run.run().refused(203, &["cannot make file/rank.0: Not a directory"]);
}

#[test]
fn one_stream_for_both_keeps_their_order() {
    const LINES: usize = 400;
    let field = Field::new();
    let directory = launch_directory();
    let script = format!(
        "i=0; while [ $i -lt {LINES} ]; do echo out $i; echo err $i >&2; i=$((i+1)); done; exit 3"
    );
    let run = field.rlaunch("-H a --merge-stderr --output-dir D").in_directory(directory.path());
    let ran = run.sh(&script).run();
    let expected: String = (0..LINES).map(|i| format!("out {i}\nerr {i}\n")).collect();
    assert!(ran.ended_with(3).out() == expected, "{ran}");
    assert_eq!(fs::read_to_string(directory.path().join("D/rank.0/stdout")).unwrap(), expected);
    assert!(!directory.path().join("D/rank.0/stderr").exists());
    // They went elsewhere than the report of the failure.
    ran.says(&["its last lines:\n", "    out 399\n    err 399\n"]);
}

/// Perl prints by stdio's rules: to a pipe in blocks.
#[test]
fn a_program_that_does_not_flush_is_seen_line_by_line_at_a_terminal() {
    let field = Field::new();
    field.warm("a", Account::Root);
    let script = "print qq(first\n); select undef, undef, undef, 0.02 until -e '/tmp/go'; \
                  unlink '/tmp/go'; print qq(last\n)";
    let running = OnTerminal::start(&field.rlaunch("-H a perl -e").args([script]));
    running.wait_for("first\r\n");
    field.lab.write_file("a", Path::new("/tmp/go"), b"", 0o644).unwrap();
    assert_eq!(running.finish(), "first\r\nlast\r\n");
}

#[test]
fn a_program_that_is_linked_with_mpi_is_seen_line_by_line_on_all_ranks() {
    let field = Field::new();
    let _program = field.scratch(&["a"], "/tmp/linked");
    let source = r#"#include <stdio.h>
        #include <unistd.h>
        int main(void) {
            printf("first\n");
            while (access("/tmp/linked/go", F_OK)) usleep(20000);
            return 0;
        }"#;
    let program = StandIn { source, library: "open-mpi-5", options: "-Wl,--no-as-needed" };
    program.compile(&field, &["a"], "/tmp/linked/program");
    let running = OnTerminal::start(&field.rlaunch("-H a:2 /tmp/linked/program"));
    running.wait_for("[0-1] | first\r\n");
    field.lab.write_file("a", Path::new("/tmp/linked/go"), b"", 0o644).unwrap();
    running.finish();
}

#[test]
fn ranks_print_to_a_terminal_where_people_expect_one() {
    const WHERE: &str = "[ -t 1 ] && echo terminal || echo pipe";
    let field = Field::new();
    field.warm("a", Account::Root);
    let at_terminal = |options: &str| {
        let run = field.rlaunch(options).args(["--no-tag", "--fold=none"]).sh(WHERE);
        OnTerminal::start(&run).finish()
    };
    assert_eq!(at_terminal("-H a"), "terminal\r\n");
    assert_eq!(at_terminal("-H a --no-pty"), "pipe\r\n");
    assert_eq!(at_terminal("-H a:2"), "pipe\r\n".repeat(2));
    // As a script may start an MPI program.
    assert_eq!(at_terminal("-H a:2 --mpi pmix"), "terminal\r\n".repeat(2));
    let in_pipe = |options: &str| field.rlaunch(options).sh(WHERE).run();
    assert_eq!(in_pipe("-H a").succeeded().out(), "pipe\n");
    assert_eq!(in_pipe("-H a:2 --pty").succeeded().out(), "terminal\n".repeat(2));
}

#[test]
fn the_terminal_of_a_rank_follows_the_size_of_the_users() {
    let field = Field::new();
    field.warm("a", Account::Root);
    let (mut terminal, slave) = Terminal::open();
    terminal.resize(24, 80);
    let script = "trap 'stty size <&1' WINCH; stty size <&1; while :; do sleep 0.1; done";
    let run = field.rlaunch("-H a").sh(script).at_terminal();
    let mut command = run.command();
    let shared = || slave.try_clone().unwrap();
    command.stdin(shared()).stdout(shared()).stderr(shared());
    let mut launcher = command.spawn().unwrap();
    let wait = |terminal: &Terminal, text: &str| {
        terminal.wait_until(BOUND, text, |shown| shown.contains(text));
    };
    wait(&terminal, "24 80\r\n");
    terminal.resize(30, 100);
    wait(&terminal, "30 100\r\n");
    terminal.write("\x03");
    assert_eq!(launcher.wait().unwrap().code(), Some(130), "{}", terminal.text());
    drop((command, slave));
    terminal.finish();
}

/// Only stdout is a terminal, and nobody's controlling one. It passes every byte, also those that are read after the rank
/// has ended.
#[test]
fn a_terminal_for_ranks_changes_no_byte() {
    let field = Field::new();
    let script = "[ -t 0 ] || [ -t 2 ] || echo stdout alone; ( : < /dev/tty ) 2>&- || echo no tty
        stty size <&1; printf 'a\\r\\n\\tb\\001\\003\\021\\377\\n'
        head -c 1000000 /dev/zero | tr '\\0' x; sleep 1000 & exit 3";
    let ran = field.rlaunch("-H a --pty").sh(script).run();
    let head = b"stdout alone\nno tty\n24 80\na\r\n\tb\x01\x03\x11\xff\n";
    let expected: Vec<u8> =
        head.iter().copied().chain(std::iter::repeat_n(b'x', 1_000_000)).collect();
    assert!(ran.ended_with(3).stdout == expected, "{:?}", &ran.stdout[..ran.stdout.len().min(99)]);
}

#[test]
fn typed_lines_run_on_all_hosts() {
    let field = Field::new();
    let mut command = field.rlaunch("shell -H a,b").command();
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let lines = b"hostname\n\n[ $RANK = 0 ] && exit 3; echo two\necho on; read nothing\n";
    child.stdin.take().unwrap().write_all(lines).unwrap();
    let ended = child.wait_with_output().unwrap();
    let out = String::from_utf8(ended.stdout).unwrap();
    let mut shown: Vec<&str> = out.lines().collect();
    shown.sort_unstable();
    assert_eq!(shown, ["[0,a] a", "[0,a] on", "[1,b] b", "[1,b] on", "[1,b] two"]);
    let err = String::from_utf8(ended.stderr).unwrap();
    assert!(err.contains("error: ") && !err.contains("placement"), "{err}");
    // `read` has failed on both: no rank takes the lines of the shell.
    assert_eq!(ended.status.code(), Some(1), "{err}");
}

#[test]
fn quiet_is_quiet_but_for_errors() {
    let field = Field::new();
    let words = "-H a,b -np 1";
    let ran = field.rlaunch(words).args(["hostname"]).run();
    assert_eq!(ran.succeeded().says(&["placement: a 0 · b none"]).out(), "a\n");
    let ran = field.rlaunch(words).args(["--quiet", "hostname"]).run();
    assert_eq!((&*ran.succeeded().out(), &*ran.err()), ("a\n", ""), "{ran}");
    field.rlaunch("-H a -q no-such-program").run().refused(127, &["no-such-program"]);
}
