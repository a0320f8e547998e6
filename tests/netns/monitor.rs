//! What a running job and hosts do: `rlaunch monitor`.

use crate::running::{Outcome, Running};
use crate::support::{BOUND, Field, Run, State};
use crate::terminal::Terminal;
use nix::sys::signal::Signal;
use rlaunch_lab::Account;
use rlaunch_lab::setup::unpacked::promtool;
use std::cell::Cell;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

fn job<'a>(field: &'a Field, state: &State) -> Running<'a> {
    let run = field.rlaunch("-H a:2,b").env("XDG_STATE_HOME", state.path());
    let mut running = run.sh("echo up; while :; do :; done").spawn();
    running.wait_for_text("up\n", 3);
    running
}

/// Starts a page at a terminal.
fn page(run: Run<'_>, slave: &OwnedFd) -> Child {
    let mut command = run.at_terminal().command();
    let shared = || slave.try_clone().unwrap();
    command.stdin(shared()).stdout(shared()).stderr(shared());
    command.spawn().unwrap()
}

/// Returns what was shown with a blank for each sequence, since the page moves the cursor over blanks.
fn words(shown: &str) -> String {
    let mut parts = shown.split("\u{1b}[");
    let first = parts.next().unwrap_or_default().to_owned();
    let text = |part: &str| {
        part.split_once(|c: char| c.is_ascii_alphabetic())
            .map_or_else(String::new, |(_, text)| text.to_owned())
    };
    parts.fold(first, |shown, part| shown + " " + &text(part))
}

/// Waits for a text on the page. It is drawn anew for that, since of a text that replaces another one only what differs is
/// written.
fn wait_for(terminal: &Terminal, text: &str) {
    let rows = Cell::new(30);
    terminal.wait_until(BOUND, text, |shown| {
        rows.set(61 - rows.get());
        terminal.resize(rows.get(), 120);
        words(shown).contains(text)
    });
}

fn end(running: Running<'_>) -> Outcome {
    running.signal(Signal::SIGTERM);
    running.finish()
}

#[test]
fn a_job_is_a_table_of_hosts_and_one_of_ranks() {
    let (field, state) = (Field::new(), State::new());
    let running = job(&field, &state);
    let run = field.rlaunch("monitor --once --interval 0.5").env("XDG_STATE_HOME", state.path());
    let shown = run.spawn().finish_first();
    let out = shown.succeeded().out();
    assert!(out.contains("3 of 3 ranks run") && out.contains("sh -c echo up"), "{shown}");
    let ranks = out.lines().skip_while(|line| !line.starts_with("RANK")).skip(1);
    let ranks: Vec<Vec<&str>> = ranks.map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(ranks.len(), 3, "{shown}");
    // Endless loops on two hosts of one machine, which has much other work too.
    let cpu = |rank: &Vec<&str>| rank[2].parse::<f64>().unwrap();
    assert!(ranks.iter().map(cpu).sum::<f64>() > 5.0, "{shown}");
    assert_eq!((ranks[2][0], ranks[2][1]), ("2", "b"), "{shown}");
    end(running).ended_with(143);
}

#[test]
fn hosts_without_a_job_have_figures_too() {
    let field = Field::new();
    let shown = field.rlaunch("monitor -H a,b --once --interval 0.5").run();
    let out = shown.succeeded().out();
    let hosts: Vec<&str> = out.lines().filter_map(|line| line.split("  ").next()).collect();
    assert!(hosts.contains(&"a") && hosts.contains(&"b"), "{shown}");
    assert!(out.contains(" of ") && !out.contains("RANK"), "{shown}");
    let shown = field.rlaunch("monitor -H a").run();
    shown.refused(200, &["needs a terminal"]).hints("--once prints one table");
}

#[test]
fn prometheus_reads_the_same() {
    let (field, state) = (Field::new(), State::new());
    let running = job(&field, &state);
    let run = field.rlaunch("monitor --listen 0").env("XDG_STATE_HOME", state.path());
    let mut monitor = run.spawn();
    monitor.wait_for_stderr("/metrics\n", 1);
    let said = monitor.err();
    let url = said.split_whitespace().find(|word| word.starts_with("http://")).unwrap();
    let get = |path: &str| {
        let script = "import sys, urllib.request\n\
            sys.stdout.write(urllib.request.urlopen(sys.argv[1]).read().decode())\n";
        let url = url.replace("/metrics", path);
        let mut python = field.lab.exec_in(Account::Root, "/tmp".as_ref());
        python.args(["/usr/bin/python3", "-c", script, &url]).output().unwrap()
    };
    let scraped = String::from_utf8(get("/metrics").stdout).unwrap();
    for text in
        ["rlaunch_rank_cpu_seconds_total{job=", "host=\"b\",rank=\"2\"}", "rlaunch_host_up{"]
    {
        assert!(scraped.contains(text), "{text} in {scraped}");
    }
    assert!(String::from_utf8_lossy(&get("/x").stderr).contains("404"));
    let mut check = Command::new(promtool().unwrap());
    check.args(["check", "metrics"]).stdin(Stdio::piped());
    check.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut check = check.spawn().unwrap();
    check.stdin.take().unwrap().write_all(scraped.as_bytes()).unwrap();
    let checked = check.wait_with_output().unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));

    end(running).ended_with(143);
    monitor.finish_first().succeeded().says(&["ended: code 143"]);
}

#[test]
fn the_page_ends_a_job_by_two_keys() {
    let (field, state) = (Field::new(), State::new());
    let running = job(&field, &state);
    let (mut terminal, slave) = Terminal::open();
    terminal.resize(30, 120);
    let run = field.rlaunch("monitor --interval 0.2").env("XDG_STATE_HOME", state.path());
    let before = nix::sys::termios::tcgetattr(&slave).unwrap();
    let mut monitor = page(run.env("TERM", "xterm"), &slave);
    terminal.wait_until(BOUND, "the page", |shown| words(shown).contains("end the job"));
    terminal.write("e");
    terminal.wait_until(BOUND, "a question", |shown| words(shown).contains("any other key"));
    terminal.write("y");
    assert!(monitor.wait().unwrap().success(), "{}", terminal.text());
    assert!(nix::sys::termios::tcgetattr(&slave).unwrap() == before);
    drop(slave);
    let shown = terminal.finish();
    assert!(shown.contains("ended: code 143"), "{shown}");
    running.finish().ended_with(143);
}

#[test]
fn the_page_shows_graphs_keys_and_output() {
    let (field, state) = (Field::new(), State::new());
    let running = job(&field, &state);
    let (mut terminal, slave) = Terminal::open();
    terminal.resize(30, 120);
    let run = field.rlaunch("monitor --interval 0.2").env("XDG_STATE_HOME", state.path());
    let mut monitor = page(run.env("TERM", "xterm").env("NO_COLOR", "1"), &slave);
    // Memory in use is a part of a bar.
    wait_for(&terminal, "░");
    terminal.write("?");
    wait_for(&terminal, "highest");
    // The first one leaves the help.
    terminal.write("ll");
    wait_for(&terminal, "output of the job");
    wait_for(&terminal, "Esc back");
    terminal.write("q");
    assert!(monitor.wait().unwrap().success(), "{}", terminal.text());
    drop(slave);
    let shown = terminal.finish();
    let colours = ["\u{1b}[32m", "\u{1b}[36m", "\u{1b}[38;5;"];
    assert!(!colours.iter().any(|colour| shown.contains(colour)), "{shown:?}");
    end(running).ended_with(143);
}

#[test]
fn a_page_that_does_not_change_is_not_written() {
    let (field, state) = (Field::new(), State::new());
    let running = job(&field, &state);
    let (mut terminal, slave) = Terminal::open();
    terminal.resize(30, 120);
    // No UTF-8 here.
    let run = field.rlaunch("monitor --interval 600").env("LC_ALL", "C").env("TERM", "xterm");
    let mut monitor = page(run.env("XDG_STATE_HOME", state.path()), &slave);
    terminal.wait_until(BOUND, "the page", |shown| words(shown).contains("end the job"));
    // The first answers of the job may come a moment later.
    field.wait_for("a page that stays as it is", || {
        let drawn = terminal.text();
        sleep(Duration::from_millis(1500));
        terminal.text() == drawn
    });
    assert!(terminal.text().is_ascii(), "{}", terminal.text());
    terminal.write("q");
    assert!(monitor.wait().unwrap().success(), "{}", terminal.text());
    drop(slave);
    terminal.finish();
    end(running).ended_with(143);
}

#[test]
fn a_dumb_terminal_has_no_page() {
    let field = Field::new();
    let (terminal, slave) = Terminal::open();
    let mut monitor = page(field.rlaunch("monitor -H a").env("TERM", "dumb"), &slave);
    assert_eq!(monitor.wait().unwrap().code(), Some(200));
    drop(slave);
    let shown = terminal.finish();
    assert!(shown.contains("TERM is `dumb`") && shown.contains("--once"), "{shown}");
}
