//! End of rlaunch at a panic, which is a bug of rlaunch: at once, with a sentence and [`Exit::BUG`]. If only the task or
//! thread with the bug ended, the rest of a job could wait for it for ever. Agents notice that rlaunch is gone, and end
//! their ranks. A thread that the system refuses is a panic as well, but no bug.

use crate::{limits, messages};
use nix::libc::termios;
use nix::sys::termios::{SetArg, tcgetattr, tcsetattr};
use nix::unistd::{getpgrp, tcgetpgrp};
use rlaunch_text::exit::Exit;
use rlaunch_text::printable;
use std::panic::{self, PanicHookInfo};
use std::{io, process};

/// Makes this process end at the next panic of any thread. The terminal at stdin gets back its present modes then.
pub fn end_at_panics() {
    let modes = tcgetattr(io::stdin()).ok().map(termios::from);
    panic::set_hook(Box::new(move |panic| {
        if let Some(modes) = modes {
            restore_terminal(modes);
        }
        let (exit, error, hint) = explain(panic);
        let hint = hint.map(|hint| format!("  hint: {hint}\n")).unwrap_or_default();
        messages::last_words(format!("rlaunch: error: {error}\n{hint}").into_bytes());
        process::exit(exit.0.into());
    }));
}

/// Returns the exit code of this process, an error and a hint.
fn explain(panic: &PanicHookInfo<'_>) -> (Exit, String, Option<String>) {
    if let Some(code) = panic.payload_as_str().and_then(refused_thread) {
        let cause = printable::without_codes(&io::Error::from_raw_os_error(code).to_string());
        return (
            Exit::USAGE,
            format!("cannot start a thread: {cause}"),
            limits::process_hint(code),
        );
    }
    let hint = "this is a bug of rlaunch; please report it, with the line above";
    (Exit::BUG, describe(panic), Some(hint.to_owned()))
}

/// Returns the number of the system's error if it has refused a thread, by the message of a panic of tokio or of Rust's
/// library.
fn refused_thread(message: &str) -> Option<i32> {
    const MESSAGES: [(&str, &str); 2] =
        [("OS can't spawn worker thread: ", "(os error "), ("failed to spawn thread: ", "code: ")];
    let is_of = |(begin, _): &&(&str, &str)| message.starts_with(*begin);
    let (_, before_code) = MESSAGES.iter().find(is_of)?;
    let (_, code) = message.split_once(*before_code)?;
    code.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
}

/// Sets the modes of the terminal at stdin. In the background this process would be stopped for that.
fn restore_terminal(modes: termios) {
    if tcgetpgrp(io::stdin()) == Ok(getpgrp()) {
        let _ = tcsetattr(io::stdin(), SetArg::TCSANOW, &modes.into());
    }
}

fn describe(panic: &PanicHookInfo<'_>) -> String {
    let what = panic.payload_as_str().unwrap_or("no message");
    match panic.location() {
        Some(at) => format!("panic at {}:{}: {what}", at.file(), at.line()),
        None => format!("panic: {what}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::thread;

    /// Variable by which the test knows that it runs in the process that is to end.
    const CHILD: &str = "TEST_OF_PANICS";

    /// The stack of a thread is too large here, so that the system refuses it as at a limit.
    #[test]
    fn a_thread_that_the_system_refuses_is_no_bug() {
        if let Some(kind) = std::env::var_os(CHILD) {
            end_at_panics();
            if kind == "tokio" {
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                let _ = runtime.block_on(async { tokio::task::spawn_blocking(|| ()).await });
            } else {
                let _ = thread::spawn(|| ()).join();
            }
            unreachable!("the thread has started");
        }
        let own = std::env::current_exe().unwrap();
        let test = "panics::tests::a_thread_that_the_system_refuses_is_no_bug";
        for kind in ["std", "tokio"] {
            let mut child = Command::new(&own);
            child.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(CHILD, kind);
            let output = child.env("RUST_MIN_STACK", (1_u64 << 60).to_string()).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(Exit::USAGE.0.into()), "{kind}: {said}");
            let error = "rlaunch: error: cannot start a thread: Resource temporarily unavailable\n";
            assert!(said.contains(error) && said.contains("`ulimit -u` is "), "{kind}: {said}");
        }
        assert_eq!(refused_thread("OS can't spawn worker thread: no (os error 1)"), Some(1));
        assert_eq!(refused_thread("index out of bounds"), None);
    }

    #[test]
    fn a_panic_of_any_thread_ends_the_process() {
        if std::env::var_os(CHILD).is_some() {
            end_at_panics();
            let ended = thread::spawn(|| panic!("on purpose")).join();
            unreachable!("{ended:?}");
        }
        let own = std::env::current_exe().unwrap();
        let test = "panics::tests::a_panic_of_any_thread_ends_the_process";
        let mut child = Command::new(own);
        let output = child.args(["--exact", test, "--nocapture"]).env(CHILD, "1").output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(Exit::BUG.0.into()), "{said}");
        let line = said.lines().find(|line| line.starts_with("rlaunch: error: ")).unwrap();
        assert!(line.contains("panics.rs:") && line.ends_with(": on purpose"), "{said}");
    }
}
