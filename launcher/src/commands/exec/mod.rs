//! `rlaunch exec` and `rlaunch attach`: sessions beside a rank of a running job.
//!
//! | file | subject |
//! |---|---|
//! | `mod.rs` | options of both verbs, and what they say at the end |
//! | `session` | the client's end of a session: relays input, output and sizes |
//! | `stdio` | the client's own streams, and its terminal: raw mode, size, and its restoration |

mod session;
mod stdio;

use super::found::live_failure;
use clap::Parser;
use nix::sys::signal::Signal;
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::protocol::session::{SessionError, SessionKind, SessionStart, Terminal};
use rlaunch_console::{messages, terminal};
use rlaunch_engine::run::live::client::{LiveError, RunningJob};
use rlaunch_engine::run::signals::ended_by;
use rlaunch_plan::map::HostRanks;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::typed::command_line;
use session::{SessionFailure, SessionOutcome};
use std::ffi::OsString;
use std::io::{self, IsTerminal};
use stdio::LocalTerminal;

/// Exit code of a session that ended with its job, as of a process whose terminal was closed.
const JOB_ENDED: Exit = Exit(129);

/// Run a command, or a shell, in the place of a rank of a running job.
///
/// The command runs on the rank's host and in its container, with its environment, working directory and CPUs.
/// It ends with the job, or when this rlaunch ends. Its exit code is passed on.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  rlaunch exec 3                     the shell of rank 3
  rlaunch exec 3 -- nvidia-smi       one command
  rlaunch exec 019a 3 -- py-spy top  the job whose id begins with 019a
  rlaunch exec 0 -- tar c out | tar x")]
pub(crate) struct ExecArgs {
    #[command(flatten)]
    pub(crate) target: TargetArgs,

    /// Command with its arguments; without it the rank's $SHELL
    #[arg(value_name = "COMMAND", last = true, value_hint = clap::ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,

    /// Give the command a terminal, which it has by default if stdin and stdout are terminals
    #[arg(short = 't', long, overrides_with = "no_terminal")]
    pub(crate) terminal: bool,

    /// Give the command no terminal: stdout and stderr are separate
    #[arg(short = 'T', long, overrides_with = "terminal")]
    pub(crate) no_terminal: bool,
}

/// Attach to a rank that waits in Python's breakpoint().
///
/// `breakpoint()` in the code of a rank prints its place and waits. This verb connects the debugger (pdb) there with
/// this terminal: `c` lets the rank go on, `q` ends it. Leaving with Ctrl-C or Ctrl-D keeps the rank waiting.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  rlaunch attach 3
  echo 'p loss
  c' | rlaunch attach 3")]
pub(crate) struct AttachArgs {
    #[command(flatten)]
    pub(crate) target: TargetArgs,
}

/// Rank of a running job on the command line.
#[derive(Debug, clap::Args)]
pub(crate) struct TargetArgs {
    /// Rank; before it the job's name or id, or the beginning of either, if several jobs run
    #[arg(value_name = "[JOB] RANK", num_args = 1..=2, required = true)]
    words: Vec<String>,
}

impl TargetArgs {
    fn parse(&self) -> Result<(Option<&str>, Rank), Failed> {
        let (job, rank) = match self.words.as_slice() {
            [job, rank] => (Some(job.as_str()), rank),
            [rank] => (None, rank),
            _ => return Err(Failed::new(Exit::USAGE, "name a rank")),
        };
        match rank.parse() {
            Ok(rank) => Ok((job, Rank(rank))),
            Err(_) => Err(Failed::new(Exit::USAGE, format!("`{rank}` is not a rank"))
                .hint(Some("a rank is a number; a command stands behind `--`"))),
        }
    }

    /// Returns the command line that was meant by words that begin with a rank, or with a host of a job as for ssh.
    fn meant(&self, command: &[OsString], hosts: &[HostRanks]) -> Option<String> {
        let (first, rest) = self.words.split_first()?;
        let (rank, what) = match first.parse::<u32>() {
            Ok(rank) => (rank, String::new()),
            Err(_) => {
                let rank = *hosts.iter().find(|host| host.host == *first)?.ranks.first()?;
                (rank, format!("rank {rank} is on {first}: "))
            }
        };
        // A number behind a host is meant as a rank.
        let rest = rest.iter().filter(|word| word.parse::<u32>().is_err()).map(OsString::from);
        let rest: Vec<OsString> = rest.chain(command.iter().cloned()).collect();
        let mut words = vec![OsString::from("exec"), rank.to_string().into()];
        if !rest.is_empty() {
            words.push("--".into());
            words.extend(rest);
        }
        Some(what + &command_line(&words))
    }

    /// Returns the command line for a command on a host, which needs no job.
    fn on_host(&self, command: &[OsString]) -> Option<String> {
        let (host, rest) = self.words.split_first()?;
        let has_rank = self.words.iter().any(|word| word.parse::<u32>().is_ok());
        if has_rank || (rest.is_empty() && command.is_empty()) {
            return None;
        }
        let mut words = vec![OsString::from("-H"), host.into()];
        words.extend(rest.iter().map(OsString::from).chain(command.iter().cloned()));
        Some(format!("on a host, without a job: {}", command_line(&words)))
    }
}

/// Adds the command line that was meant to an error of `exec`, if the only running job tells it.
async fn with_meant(failed: Failed, args: &ExecArgs) -> Failed {
    let hosts = match RunningJob::find(None).await {
        Ok(mut job) => job.status().await.map(|status| status.hosts).unwrap_or_default(),
        Err(LiveError::NoJob) => return failed.hint(args.target.on_host(&args.command)),
        Err(_) => Vec::new(),
    };
    failed.hint(args.target.meant(&args.command, &hosts))
}

/// Runs a command in a rank's place.
pub(super) async fn run_exec(args: ExecArgs) -> Result<Exit, Failed> {
    let (job, rank) = match args.target.parse() {
        Ok(target) => target,
        Err(failed) => return Err(with_meant(failed, &args).await),
    };
    let both = io::stdin().is_terminal() && io::stdout().is_terminal();
    let has_terminal = args.terminal || (both && !args.no_terminal);
    let mut job = match RunningJob::find(job).await {
        Ok(job) => job,
        Err(error @ LiveError::Unknown(_)) => {
            return Err(with_meant(live_failure(&error), &args).await);
        }
        Err(error) => return Err(live_failure(&error)),
    };
    let local = if has_terminal { LocalTerminal::open() } else { LocalTerminal::none() };
    let terminal = has_terminal
        .then(|| Terminal { term: std::env::var_os("TERM"), size: terminal::size_or_default() });
    let kind = SessionKind::Command { argv: args.command, terminal };
    let ended = session::run(&mut job, SessionStart { rank, kind }, local).await;
    match ended {
        Ok(SessionOutcome::Ended(status)) => Ok(Exit::from_rank(status)),
        Ok(SessionOutcome::Interrupted(signal)) => Err(ended_by(signal, "")),
        Ok(SessionOutcome::ReaderGone) => Ok(Exit::READER_GONE),
        // Only a debugger lets go.
        Ok(SessionOutcome::Detached) => Ok(Exit::SUCCESS),
        Err(failure) => Err(failed(&format!("cannot run a command beside rank {rank}"), failure)),
    }
}

/// Connects to the debugger of a rank.
pub(super) async fn run_attach(args: AttachArgs) -> Result<Exit, Failed> {
    let (job, rank) = args.target.parse()?;
    let start = SessionStart { rank, kind: SessionKind::Debugger };
    let mut job = RunningJob::find(job).await.map_err(|error| live_failure(&error))?;
    let waits = || {
        if io::stdout().is_terminal() {
            // The debugger's prompt stands there.
            rlaunch_console::stdout::write(b"\n");
        }
        messages::info(&format!("rank {rank} goes on waiting for `rlaunch attach`"));
    };
    match session::run(&mut job, start, LocalTerminal::none()).await {
        Ok(SessionOutcome::Ended(_)) => Ok(Exit::SUCCESS),
        Ok(SessionOutcome::Detached) => {
            waits();
            Ok(Exit::SUCCESS)
        }
        Ok(SessionOutcome::Interrupted(signal)) => {
            waits();
            // Leaving by Ctrl-C is no failure.
            let code = Exit::signal(signal as i32);
            Ok(if signal == Signal::SIGINT { Exit::SUCCESS } else { code })
        }
        Ok(SessionOutcome::ReaderGone) => Ok(Exit::READER_GONE),
        Err(failure) => Err(failed(&format!("cannot attach to rank {rank}"), failure)),
    }
}

/// Makes the failure of a session. `operation` is printed if the session did not begin.
fn failed(operation: &str, failure: SessionFailure) -> Failed {
    match failure {
        SessionFailure::Live(error) => live_failure(&error),
        SessionFailure::Refused(why) => Failed::new(Exit::USAGE, format!("{operation}: {why}")),
        SessionFailure::NotBegun(error) => {
            Failed::new(Exit::USAGE, format!("{operation}: {error}")).hint(error.hint())
        }
        SessionFailure::JobEnded | SessionFailure::Broken(SessionError::JobEnding) => {
            Failed::new(JOB_ENDED, "the job has ended, and this session with it")
        }
        SessionFailure::Broken(SessionError::RankEnded) => {
            Failed::new(JOB_ENDED, "the rank's process has ended, and this session with it")
        }
        SessionFailure::Broken(error) => {
            Failed::new(Exit::USAGE, format!("the session has ended: {error}")).hint(error.hint())
        }
        SessionFailure::NodeLost(why) => Failed::new(Exit::NODE_LOST, why),
        SessionFailure::Io(operation, error) => {
            Failed::new(Exit::FILES, format!("cannot {operation}: {error}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(words: &[&str]) -> Result<(Option<String>, u32), String> {
        let args = TargetArgs { words: words.iter().map(|word| (*word).to_owned()).collect() };
        let parsed = args.parse().map_err(|failed| failed.message);
        parsed.map(|(job, rank)| (job.map(str::to_owned), rank.0))
    }

    #[test]
    fn the_job_comes_before_the_rank() {
        assert_eq!(target(&["3"]), Ok((None, 3)));
        assert_eq!(target(&["019a", "3"]), Ok((Some("019a".into()), 3)));
        assert_eq!(target(&["3", "hostname"]), Err("`hostname` is not a rank".into()));
        assert!(target(&["-1"]).is_err());
    }

    #[test]
    fn a_host_in_the_place_of_a_rank_leads_to_the_line() {
        let hosts = [(&[0, 1][..], "a"), (&[2][..], "b")]
            .map(|(ranks, host)| HostRanks { host: host.to_owned(), ranks: ranks.to_vec() });
        let meant = |words: &str| {
            let words = words.split(' ').map(str::to_owned).collect();
            TargetArgs { words }.meant(&[], &hosts)
        };
        assert_eq!(meant("b bash").as_deref(), Some("rank 2 is on b: rlaunch exec 2 -- bash"));
        assert_eq!(meant("a").as_deref(), Some("rank 0 is on a: rlaunch exec 0"));
        assert_eq!(meant("b 0").as_deref(), Some("rank 2 is on b: rlaunch exec 2"));
        assert_eq!(meant("1 bash").as_deref(), Some("rlaunch exec 1 -- bash"));
        assert_eq!(meant("c bash"), None);
        let on_host = |words: &str| {
            let words = words.split(' ').map(str::to_owned).collect();
            TargetArgs { words }.on_host(&[])
        };
        let expected = "on a host, without a job: rlaunch -H c bash";
        assert_eq!(on_host("c bash").as_deref(), Some(expected));
        assert_eq!(on_host("1 bash"), None);
        assert_eq!(on_host("amber-fox 1"), None);
        assert_eq!(on_host("c"), None);
    }

    #[test]
    fn the_command_stands_behind_two_dashes() {
        let parse = |line: &str| ExecArgs::try_parse_from(line.split(' '));
        let args = parse("exec -T 019a 3 -- sh -c x -t").unwrap();
        assert_eq!(args.command, ["sh", "-c", "x", "-t"]);
        assert!(args.no_terminal && !args.terminal);
        assert_eq!(args.target.words, ["019a", "3"]);
        assert!(parse("exec -T -t 3").unwrap().terminal);
        assert!(parse("exec").is_err());
    }
}
