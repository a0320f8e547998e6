//! `--notify`: a command of the user at the end of a job, on this machine.

use crate::run::signals::Signals;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use rlaunch_bootstrap::env::redacted;
use rlaunch_bootstrap::id::JobId;
use rlaunch_console::{limits, messages};
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

/// Time limit of the command. rlaunch returns when it has ended.
const LIMIT: Duration = Duration::from_secs(10);

/// Job that is over, as the command is told of it.
pub(crate) struct Notice<'a> {
    /// Id of the last attempt.
    pub job: JobId,
    /// Time from the start of the first attempt.
    pub took: Duration,
    pub ended: &'a Result<Exit, Failed>,
}

impl Notice<'_> {
    /// Runs the command, a line for a shell. Its failure is only a warning, since the job is over. A request of the user
    /// to end ends it.
    pub(crate) async fn send(&self, command: &str, signals: &mut Signals) {
        if let Err(why) = self.run(command, signals).await {
            messages::warn(&format!("the command of --notify {why}"));
        }
    }

    async fn run(&self, command: &str, signals: &mut Signals) -> Result<(), String> {
        let spawned = self.shell().spawn();
        let mut child = spawned.map_err(|error| format!("cannot be run: {error}"))?;
        let stdin = child.stdin.take();
        let run = async {
            if let Some(mut stdin) = stdin {
                // An error means that the shell has ended, and its status says how.
                let _ = stdin.write_all(command.as_bytes()).await;
            }
            child.wait().await
        };
        let why = tokio::select! {
            ended = run => return outcome(ended),
            () = tokio::time::sleep(LIMIT) => {
                format!("has not ended within {} s, and was killed", LIMIT.as_secs())
            }
            signal = signals.end() => format!("was killed: {signal}"),
        };
        kill(&mut child).await;
        Err(why)
    }

    /// Returns a shell that runs the line that it reads from its stdin. Every user of this machine sees the words of a
    /// process, and the line may have a secret.
    fn shell(&self) -> Command {
        let (exit, message) = match self.ended {
            Ok(exit) => (*exit, String::new()),
            Err(failed) => (failed.exit, redacted(&failed.message)),
        };
        let mut shell = Command::new("sh");
        limits::restore_open_files(shell.as_std_mut());
        shell
            .args(["-c", "eval \"$(cat)\" </dev/null"])
            .env("RLAUNCH_JOB", self.job.to_string())
            .env("RLAUNCH_EXIT_CODE", exit.0.to_string())
            .env("RLAUNCH_DURATION", self.took.as_secs().to_string())
            .env("RLAUNCH_MESSAGE", message)
            .stdin(Stdio::piped())
            // stdout belongs to the ranks.
            .stdout(io::stderr())
            // A Ctrl-C for rlaunch is not one for the command, which may tell of it.
            .process_group(0);
        shell
    }
}

fn outcome(ended: io::Result<ExitStatus>) -> Result<(), String> {
    match ended {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(match status.code() {
            Some(code) => format!("exited with code {code}"),
            None => format!("was ended by {status}"),
        }),
        Err(error) => Err(format!("cannot be waited for: {error}")),
    }
}

/// Kills the command and what it has started.
async fn kill(child: &mut Child) {
    if let Some(group) = child.id().and_then(|pid| i32::try_from(pid).ok()) {
        // An error means that it has just ended.
        let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
    }
    let _ = child.wait().await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::signals::UserSignal;

    async fn run(ended: &Result<Exit, Failed>, command: &str) -> Result<(), String> {
        let (_sender, mut signals) = Signals::scripted();
        let notice = Notice { job: JobId(5), took: Duration::from_millis(61_900), ended };
        notice.run(command, &mut signals).await
    }

    #[tokio::test]
    async fn the_command_is_told_how_the_job_ended() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("told");
        let told = format!(
            "echo \"$RLAUNCH_JOB:$RLAUNCH_EXIT_CODE:$RLAUNCH_DURATION:$RLAUNCH_MESSAGE\" > {}",
            file.display()
        );
        let failed = Err(Failed::new(Exit(7), "rank 1 on b exited with code 7: TOKEN=abc"));
        run(&failed, &told).await.unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        let expected = format!("{}:7:61:rank 1 on b exited with code 7: ", JobId(5));
        assert!(text.starts_with(&expected) && !text.contains("abc"), "{text}");
        run(&Ok(Exit::SUCCESS), &told).await.unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), format!("{}:0:61:\n", JobId(5)));
    }

    #[tokio::test]
    async fn other_users_do_not_see_the_line_nor_does_it_read_itself() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("seen");
        let line = format!("cat /proc/$$/cmdline - >{}\n: hunter2", file.display());
        run(&Ok(Exit::SUCCESS), &line).await.unwrap();
        let seen = std::fs::read_to_string(&file).unwrap();
        assert!(seen.starts_with("sh\0-c\0") && !seen.contains("hunter2"), "{seen}");
    }

    #[tokio::test]
    async fn a_command_that_fails_is_told_of() {
        let ended = Ok(Exit::SUCCESS);
        assert_eq!(run(&ended, "exit 3").await, Err("exited with code 3".to_owned()));
        let killed = run(&ended, "kill -9 $$").await.unwrap_err();
        assert!(killed.starts_with("was ended by signal: 9"), "{killed}");
    }

    #[tokio::test]
    async fn a_request_to_end_ends_the_command_and_what_it_has_started() {
        let (sender, mut signals) = Signals::scripted();
        let directory = tempfile::tempdir().unwrap();
        let [started, late] = ["started", "late"].map(|name| directory.path().join(name));
        let ended = Ok(Exit::SUCCESS);
        let notice = Notice { job: JobId(5), took: Duration::ZERO, ended: &ended };
        let line =
            format!("(touch {}; sleep 2; touch {}) & wait", started.display(), late.display());
        let asking = async {
            while !started.exists() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            sender.send(UserSignal::End(Signal::SIGINT)).unwrap();
        };
        let (ran, ()) = tokio::join!(notice.run(&line, &mut signals), asking);
        let why = ran.unwrap_err();
        assert_eq!(why, "was killed: SIGINT");
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert!(!late.exists());
    }
}
