//! End of rlaunch at a panic, which is a bug of rlaunch: at once, with a sentence and [`Exit::BUG`]. If only the task or
//! thread with the bug ended, the rest of a job could wait for it for ever. Agents notice that rlaunch is gone, and end
//! their ranks.

use crate::messages;
use nix::libc::termios;
use nix::sys::termios::{SetArg, tcgetattr, tcsetattr};
use nix::unistd::{getpgrp, tcgetpgrp};
use rlaunch_text::exit::Exit;
use std::panic::{self, PanicHookInfo};
use std::{io, process};

/// Makes this process end at the next panic of any thread. The terminal at stdin gets back its present modes then.
pub fn end_at_panics() {
    let modes = tcgetattr(io::stdin()).ok().map(termios::from);
    panic::set_hook(Box::new(move |panic| {
        if let Some(modes) = modes {
            restore_terminal(modes);
        }
        let hint = "this is a bug of rlaunch; please report it, with the line above";
        let said = format!("rlaunch: error: {}\n  hint: {hint}\n", describe(panic));
        messages::last_words(said.into_bytes());
        process::exit(Exit::BUG.0.into());
    }));
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
