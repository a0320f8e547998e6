//! Questions to the user about passphrases, passwords and unknown host keys. They are asked on the terminal
//! (`terminal`) or by the program of `SSH_ASKPASS`, whichever ssh(1) would use.

mod terminal;

pub use terminal::restore as restore_terminal;

use self::terminal::{Echo, MAX_ANSWER, Terminal};
use rlaunch_console::{messages, open_files};
use rlaunch_text::printable;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::process::Command;
use zeroize::Zeroizing;

/// Askpass program if `SSH_ASKPASS` is not set.
const DEFAULT_PROGRAM: &str = "/usr/bin/ssh-askpass";
/// Time limit for an answer by an askpass program. It is long, because the user has to notice the program's
/// window.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// Means of asking the user: the terminal or an askpass program.
pub struct Prompter(Source);

enum Source {
    Terminal(Terminal),
    Program(AskpassProgram),
}

/// Askpass program, which shows a question in a window and prints the answer.
#[derive(Debug, PartialEq, Eq)]
struct AskpassProgram {
    path: PathBuf,
}

/// Rule for using the askpass program, as set by environment variables.
#[derive(Debug, PartialEq, Eq)]
enum AskpassPolicy {
    Never,
    /// Use the program only if there is no terminal.
    WithoutTerminal(AskpassProgram),
    /// Use the program even if there is a terminal.
    Always(AskpassProgram),
}

impl Prompter {
    /// Opens the terminal or chooses the askpass program; `None` if neither can be used.
    pub fn open() -> Option<Prompter> {
        let policy =
            AskpassPolicy::read(|name| std::env::var_os(name).filter(|value| !value.is_empty()));
        let terminal = || Terminal::open().map(Source::Terminal);
        let source = match policy {
            AskpassPolicy::Never => terminal(),
            AskpassPolicy::WithoutTerminal(program) => {
                terminal().or(Some(Source::Program(program)))
            }
            AskpassPolicy::Always(program) => Some(Source::Program(program)),
        };
        source.map(Prompter)
    }

    /// Asks for a secret, which is not visible while it is typed; `None` if the user gives no answer.
    pub async fn ask(&self, prompt: &str) -> Option<Zeroizing<String>> {
        self.answer(prompt, Echo::Off).await
    }

    /// Asks a question whose answer is visible while it is typed; `None` if the user gives no answer.
    pub async fn ask_visibly(&self, prompt: &str) -> Option<Zeroizing<String>> {
        self.answer(prompt, Echo::On).await
    }

    async fn answer(&self, prompt: &str, echo: Echo) -> Option<Zeroizing<String>> {
        let prompt = &printable::text(prompt);
        match &self.0 {
            Source::Terminal(terminal) => terminal.ask(prompt, echo).await,
            Source::Program(program) => match program.ask(prompt, ANSWER_TIMEOUT).await {
                Ok(answer) => answer,
                Err(error) => {
                    messages::warn(&format!("SSH_ASKPASS, {}: {error}", program.path.display()));
                    None
                }
            },
        }
    }
}

impl AskpassPolicy {
    /// Reads the environment variables as ssh(1) does: the program may be used if there is a display,
    /// unless `SSH_ASKPASS_REQUIRE` sets another rule.
    fn read(variable: impl Fn(&str) -> Option<OsString>) -> AskpassPolicy {
        let has_display =
            ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(|name| variable(name).is_some());
        let required = variable("SSH_ASKPASS_REQUIRE").unwrap_or_default().to_ascii_lowercase();
        let (allowed, first) = match required.to_str() {
            Some("never") => (false, false),
            Some("force") => (true, true),
            Some("prefer") => (has_display, has_display),
            _ => (has_display, false),
        };
        let default =
            || Path::new(DEFAULT_PROGRAM).exists().then(|| PathBuf::from(DEFAULT_PROGRAM));
        match variable("SSH_ASKPASS").map(PathBuf::from).or_else(default) {
            Some(path) if first => AskpassPolicy::Always(AskpassProgram { path }),
            Some(path) if allowed => AskpassPolicy::WithoutTerminal(AskpassProgram { path }),
            _ => AskpassPolicy::Never,
        }
    }
}

impl AskpassProgram {
    /// Runs the program and returns the first line that it prints. `None` if the program fails, as it does
    /// when the user closes its window.
    async fn ask(&self, prompt: &str, limit: Duration) -> io::Result<Option<Zeroizing<String>>> {
        let mut command = Command::new(&self.path);
        open_files::restore(command.as_std_mut());
        let mut child = command
            .arg(prompt.trim_end())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let stdout = child.stdout.take().ok_or_else(|| io::Error::other("no pipe to it"))?;
        let mut output = Zeroizing::new(Vec::with_capacity(MAX_ANSWER));
        let answering = async {
            stdout.take(MAX_ANSWER as u64).read_to_end(&mut output).await?;
            child.wait().await
        };
        let late = |_| {
            let text = format!("no answer within {} s", limit.as_secs_f32());
            io::Error::new(io::ErrorKind::TimedOut, text)
        };
        let status = tokio::time::timeout(limit, answering).await.map_err(late)??;
        if !status.success() {
            return Ok(None);
        }
        let line = output.split(|byte| matches!(byte, b'\n' | b'\r')).next().unwrap_or_default();
        Ok(Some(Zeroizing::new(String::from_utf8_lossy(line).into_owned())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn policy(variables: &[(&str, &str)]) -> AskpassPolicy {
        let variables = [variables, &[("SSH_ASKPASS", "/x/ask")]].concat();
        AskpassPolicy::read(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn a_program_is_asked_where_ssh_would_ask_it() {
        let program = || AskpassProgram { path: "/x/ask".into() };
        let display = ("DISPLAY", ":0");
        let require = |how| ("SSH_ASKPASS_REQUIRE", how);
        assert_eq!(policy(&[]), AskpassPolicy::Never);
        assert_eq!(policy(&[display]), AskpassPolicy::WithoutTerminal(program()));
        assert_eq!(policy(&[("WAYLAND_DISPLAY", "w")]), AskpassPolicy::WithoutTerminal(program()));
        assert_eq!(policy(&[display, require("never")]), AskpassPolicy::Never);
        assert_eq!(policy(&[display, require("prefer")]), AskpassPolicy::Always(program()));
        assert_eq!(policy(&[require("prefer")]), AskpassPolicy::Never);
        assert_eq!(policy(&[require("FORCE")]), AskpassPolicy::Always(program()));
    }

    /// Writes a shell script with these lines.
    fn program(directory: &Path, lines: &str) -> AskpassProgram {
        let (text, path) = (directory.join("text"), directory.join("ask"));
        fs::write(&text, format!("#!/bin/sh\n{lines}\n")).unwrap();
        // Another process writes the file. If this process wrote it, executing it could fail (ETXTBSY),
        // because a child that another test has just forked may still have it open.
        let copy = std::process::Command::new("install").args([&text, &path]).status();
        assert!(copy.unwrap().success());
        AskpassProgram { path }
    }

    #[tokio::test]
    async fn what_a_program_prints_is_the_answer() {
        let directory = tempfile::tempdir().unwrap();
        // Long, because the test machine may be suspended for seconds; the programs answer at once.
        let limit = Duration::from_secs(60);
        let ask = async |lines: &str, limit| {
            let answer = program(directory.path(), lines).ask("passphrase for x: ", limit).await;
            answer.map(|answer| answer.map(|text| text.to_string()))
        };
        let answer = ask("echo \"<$1>\"; echo more", limit).await;
        assert_eq!(answer.unwrap().unwrap(), "<passphrase for x:>");
        assert_eq!(ask("printf 'a b'", limit).await.unwrap().unwrap(), "a b");
        assert_eq!(ask("echo secret; exit 1", limit).await.unwrap(), None);
        let late = ask("exec sleep 1000", Duration::from_millis(200)).await.unwrap_err();
        assert_eq!(late.to_string(), "no answer within 0.2 s");
        let missing = AskpassProgram { path: directory.path().join("none") };
        assert!(missing.ask("x", limit).await.is_err());
    }
}
