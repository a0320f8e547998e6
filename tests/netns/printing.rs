//! Printing of ranks' output: tags, colours, files, merged streams, and rlaunch's own messages.

use crate::output::{check_flood, flood};
use crate::support::{BOUND, Field, Run, launch_directory};
use crate::terminal::Terminal;
use rlaunch_lab::Account;
use rlaunch_lab::command::wait_until;
use std::fs;
use std::io::{BufRead, BufReader};
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
    let (out, err) = (ran.succeeded().out().into_owned(), ran.err().into_owned());
    assert_eq!((out.lines().count(), err.lines().count()), (3, 3), "{ran}");
    let mut ranks = Vec::new();
    for line in out.lines().chain(err.lines()) {
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
        let run = field.rlaunch(&format!("-H a:3,b:3 --merge-stderr {options}")).sh(script);
        run.in_directory(directory.path()).env("NO_COLOR", "1").env("TERM", "xterm")
    };
    let lines = |shown: &str| {
        let mut lines: Vec<String> = shown.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let losses = |tag: &str| (0..6).map(|rank| format!("{tag}loss 0.{rank}")).collect::<Vec<_>>();
    let shown = lines(&OnTerminal::start(&run("--output-dir D")).finish());
    assert_eq!(shown[0], "[0-5] same");
    assert_eq!((&shown[1..7], &shown[7..]), (&losses("")[..], &["mine".to_owned()][..]));
    let file =
        |rank: u32| fs::read_to_string(directory.path().join(format!("D/rank.{rank}/stdout")));
    assert_eq!(file(5).unwrap(), "same\nloss 0.5\nmine\n");

    let shown = lines(&OnTerminal::start(&run("--fold=numbers")).finish());
    assert_eq!(shown, ["[0-5] loss 0.0..0.5", "[0-5] same", "mine"]);
    let shown = lines(&OnTerminal::start(&run("--fold=none")).finish());
    assert_eq!(shown.iter().filter(|line| *line == "same").count(), 6);
    let piped = run("--fold").run();
    assert_eq!(piped.succeeded().out().lines().filter(|line| *line == "same").count(), 6);
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
    // The last lines are right above the report of the failure.
    ran.keeps_quiet_about(&["its last lines"]);
    let run = field.rlaunch("-H a:2 --merge-stderr --kill-after 60");
    let ran = run.sh("trap '' TERM; [ $RANK = 0 ] && echo why && exit 3; sleep 1; seq 100").run();
    ran.ended_with(3).says(&["its last lines:\n    why\n"]);
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
