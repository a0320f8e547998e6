//! `rlaunch down`: undoes what was changed on hosts.

use crate::cli::args::{ConnectArgs, HostSourceArgs};
use crate::cli::command_line::CommandLine;
use crate::cli::host_selection::HostOptions;
use crate::commands::agent_session;
use crate::commands::changes::{self, ChangingHosts, Restored};
use clap::Parser;
use rlaunch_console::{messages, stdout};
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use std::fmt::Write as _;

/// Undo what `rlaunch up` and `rlaunch doctor --fix` have changed on hosts.
///
/// Each host has a journal of its changes (/var/lib/rlaunch/journal). They are undone from the last to the first, also after
/// an `up` that was broken off, a crash, or a reboot. What others have changed since is left alone, and named. Keys, and
/// rlaunch.toml here, stay.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  rlaunch down -H a,b               undo all changes
  rlaunch down                      on the hosts of rlaunch.toml")]
pub(crate) struct DownArgs {
    #[command(flatten)]
    hosts: HostSourceArgs,

    #[command(flatten)]
    connect: ConnectArgs,
}

/// Undoes the changes, and prints them.
pub(in crate::commands) async fn run(args: &DownArgs, line: &CommandLine) -> Result<Exit, Failed> {
    let options = HostOptions::of_verb(&args.hosts, &line.config.hosts);
    let (hosts, reach) = agent_session::select_hosts(&options, &args.connect, line)?;
    let (mut changing, mut failures) = ChangingHosts::open(&hosts, &reach).await?;
    let torn: Vec<bool> = changing.journals().iter().map(|journal| journal.was_torn).collect();
    let restored = changing.undo().await;
    let names = changing.names();
    changing.close().await;
    for ((name, restored), was_torn) in names.iter().zip(&restored).zip(torn) {
        if was_torn {
            messages::info(&format!(
                "{name}: the last line of its journal was cut off; that change was not made"
            ));
        }
        stdout::print(&account(name, restored));
        changes::report_failures(name, restored);
        let message = match &restored.lost {
            Some(cause) => format!("{name}: {cause}"),
            None if !restored.is_complete() => format!("{name}: not all is undone"),
            None => continue,
        };
        let hint =
            "`rlaunch down` again undoes the rest; the journal on the host says what was there";
        failures.push(Failed::new(Exit::HOST, message).hint(Some(hint)));
    }
    agent_session::conclude(failures)
}

/// Lists what was restored on a host.
fn account(name: &str, restored: &Restored) -> String {
    let undone: Vec<_> = restored.undone.iter().filter(|one| one.failure.is_none()).collect();
    if undone.is_empty() && restored.is_complete() {
        return format!("{name}: there is nothing to undo\n");
    }
    let mut text = String::new();
    for one in undone {
        // A line that does nothing stands for its undoing, which others name.
        if one.change.title() != rlaunch_plan::up::ONLY_UNDO {
            let _ = writeln!(text, "{name}: undone: {} ({})", one.change.title(), one.by);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_bootstrap::protocol::changes::{Change, UndoneChange};

    #[test]
    fn an_account_names_what_was_undone() {
        let undone = |line: &str, failure: Option<&str>| UndoneChange {
            change: Change::Run { line: line.into(), save: None, undo: None },
            by: "rlaunch up".into(),
            time: 1,
            failure: failure.map(str::to_owned),
        };
        let mut restored = Restored::default();
        assert_eq!(account("a", &restored), "a: there is nothing to undo\n");
        restored.undone =
            vec![undone("ufw allow", None), undone(":", None), undone("x", Some("no"))];
        assert_eq!(account("a", &restored), "a: undone: ufw allow (rlaunch up)\n");
        assert!(!restored.is_complete());
    }
}
