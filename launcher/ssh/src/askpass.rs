//! Who is asked for passphrases and passwords: whoever sits at the terminal, or a program that shows
//! a window or knows the answer, as ssh(1) has it (`SSH_ASKPASS`).

use super::passphrase::{Echo, LONGEST, Terminal};
use rlaunch_console::{messages, open_files, printable};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::process::Command;
use zeroize::Zeroizing;

/// The program where none is named.
const USUAL: &str = "/usr/bin/ssh-askpass";
/// How long it may take: somebody has to notice a window and to type.
const PATIENCE: Duration = Duration::from_secs(120);

/// The user at the terminal, or a program of theirs that answers questions.
pub struct Prompter(Source);

enum Source {
    Terminal(Terminal),
    Helper(Helper),
}

/// A program that answers.
#[derive(Debug, PartialEq, Eq)]
struct Helper {
    program: PathBuf,
}

/// What the environment wants of such a program.
#[derive(Debug, PartialEq, Eq)]
enum Wish {
    Never,
    /// Where there is no terminal.
    Instead(Helper),
    /// Even if there is one.
    First(Helper),
}

impl Prompter {
    /// `None` where nobody can be asked.
    pub fn open() -> Option<Prompter> {
        let wish = Wish::of(|name| std::env::var_os(name).filter(|value| !value.is_empty()));
        let terminal = || Terminal::open().map(Source::Terminal);
        let source = match wish {
            Wish::Never => terminal(),
            Wish::Instead(helper) => terminal().or(Some(Source::Helper(helper))),
            Wish::First(helper) => Some(Source::Helper(helper)),
        };
        source.map(Prompter)
    }

    /// The answer to `prompt`, of which nothing is shown; `None` when there is none.
    pub async fn ask(&self, prompt: &str) -> Option<Zeroizing<String>> {
        self.answer(prompt, Echo::Off).await
    }

    /// The answer to a question about no secret: it is seen while it is typed.
    pub async fn ask_openly(&self, prompt: &str) -> Option<Zeroizing<String>> {
        self.answer(prompt, Echo::On).await
    }

    async fn answer(&self, prompt: &str, echo: Echo) -> Option<Zeroizing<String>> {
        let prompt = &printable::text(prompt);
        match &self.0 {
            Source::Terminal(terminal) => terminal.ask(prompt, echo).await,
            Source::Helper(helper) => match helper.ask(prompt, PATIENCE).await {
                Ok(answer) => answer,
                Err(error) => {
                    messages::warn(&format!("SSH_ASKPASS, {}: {error}", helper.program.display()));
                    None
                }
            },
        }
    }
}

impl Wish {
    /// As ssh(1) reads it: a display allows a program, and `SSH_ASKPASS_REQUIRE` may know better.
    fn of(variable: impl Fn(&str) -> Option<OsString>) -> Wish {
        let has_display =
            ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(|name| variable(name).is_some());
        let required = variable("SSH_ASKPASS_REQUIRE").unwrap_or_default().to_ascii_lowercase();
        let (allowed, first) = match required.to_str() {
            Some("never") => (false, false),
            Some("force") => (true, true),
            Some("prefer") => (has_display, has_display),
            _ => (has_display, false),
        };
        let usual = || Path::new(USUAL).exists().then(|| PathBuf::from(USUAL));
        match variable("SSH_ASKPASS").map(PathBuf::from).or_else(usual) {
            Some(program) if first => Wish::First(Helper { program }),
            Some(program) if allowed => Wish::Instead(Helper { program }),
            _ => Wish::Never,
        }
    }
}

impl Helper {
    /// The first line that the program prints; `None` when it fails, as it does when somebody
    /// closes its window.
    async fn ask(&self, prompt: &str, patience: Duration) -> io::Result<Option<Zeroizing<String>>> {
        let mut command = Command::new(&self.program);
        open_files::restore(command.as_std_mut());
        let mut child = command
            .arg(prompt.trim_end())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let stdout = child.stdout.take().ok_or_else(|| io::Error::other("no pipe to it"))?;
        let mut said = Zeroizing::new(Vec::with_capacity(LONGEST));
        let answering = async {
            stdout.take(LONGEST as u64).read_to_end(&mut said).await?;
            child.wait().await
        };
        let late = |_| {
            let text = format!("it has not answered within {} s", patience.as_secs_f32());
            io::Error::new(io::ErrorKind::TimedOut, text)
        };
        let status = tokio::time::timeout(patience, answering).await.map_err(late)??;
        if !status.success() {
            return Ok(None);
        }
        let line = said.split(|byte| matches!(byte, b'\n' | b'\r')).next().unwrap_or_default();
        Ok(Some(Zeroizing::new(String::from_utf8_lossy(line).into_owned())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn wish(variables: &[(&str, &str)]) -> Wish {
        let variables = [variables, &[("SSH_ASKPASS", "/x/ask")]].concat();
        Wish::of(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn a_program_is_asked_where_ssh_would_ask_it() {
        let helper = || Helper { program: "/x/ask".into() };
        let display = ("DISPLAY", ":0");
        let require = |how| ("SSH_ASKPASS_REQUIRE", how);
        assert_eq!(wish(&[]), Wish::Never);
        assert_eq!(wish(&[display]), Wish::Instead(helper()));
        assert_eq!(wish(&[("WAYLAND_DISPLAY", "w")]), Wish::Instead(helper()));
        assert_eq!(wish(&[display, require("never")]), Wish::Never);
        assert_eq!(wish(&[display, require("prefer")]), Wish::First(helper()));
        assert_eq!(wish(&[require("prefer")]), Wish::Never);
        assert_eq!(wish(&[require("FORCE")]), Wish::First(helper()));
    }

    /// A program with these lines.
    fn helper(directory: &Path, lines: &str) -> Helper {
        let (text, program) = (directory.join("text"), directory.join("ask"));
        fs::write(&text, format!("#!/bin/sh\n{lines}\n")).unwrap();
        // By another process: what this one has written is busy while a child of another test's,
        // not yet a program of its own, still has it open.
        let copy = std::process::Command::new("install").args([&text, &program]).status();
        assert!(copy.unwrap().success());
        Helper { program }
    }

    #[tokio::test]
    async fn what_a_program_prints_is_the_answer() {
        let directory = tempfile::tempdir().unwrap();
        // Wide, since a machine may stand still for seconds: each answer comes at once.
        let patience = Duration::from_secs(60);
        let ask = async |lines: &str, patience| {
            let answer = helper(directory.path(), lines).ask("passphrase for x: ", patience).await;
            answer.map(|answer| answer.map(|text| text.to_string()))
        };
        let answer = ask("echo \"<$1>\"; echo more", patience).await;
        assert_eq!(answer.unwrap().unwrap(), "<passphrase for x:>");
        assert_eq!(ask("printf 'a b'", patience).await.unwrap().unwrap(), "a b");
        assert_eq!(ask("echo secret; exit 1", patience).await.unwrap(), None);
        let late = ask("exec sleep 1000", Duration::from_millis(200)).await.unwrap_err();
        assert_eq!(late.to_string(), "it has not answered within 0.2 s");
        let missing = Helper { program: directory.path().join("none") };
        assert!(missing.ask("x", patience).await.is_err());
    }
}
