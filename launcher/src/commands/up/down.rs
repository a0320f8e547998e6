//! `rlaunch down`: undoes what was changed on hosts.

use super::settings;
use crate::cli::args::{ConnectArgs, HostSourceArgs, OTHER_HOSTS};
use crate::cli::command_line::CommandLine;
use crate::cli::host_selection::HostOptions;
use crate::commands::agent_session;
use crate::commands::changes::{self, ChangingHosts, Restored};
use clap::Parser;
use rlaunch_console::{messages, stdout};
use rlaunch_plan::hosts::{self, Host};
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use std::fmt::Write as _;

/// Undo what `rlaunch up` and `rlaunch doctor --fix` have changed on hosts.
///
/// Each host has a journal of its changes (/var/lib/rlaunch/journal). They are undone from the last to the first, also after
/// an `up` that was broken off, a crash, or a reboot. What others have changed since is left alone, and named. Keys, and
/// rlaunch.toml here, stay. This machine is meant only if it is named.
#[derive(Debug, Parser)]
#[command(mut_arg("hosts", |hosts| hosts.help(OTHER_HOSTS)), after_help = "\
Examples:
  rlaunch down -H a,b               undo all changes
  rlaunch down                      on the hosts of rlaunch.toml
  rlaunch down -H localhost         on this machine")]
pub(crate) struct DownArgs {
    #[command(flatten)]
    hosts: HostSourceArgs,

    #[command(flatten)]
    connect: ConnectArgs,
}

/// Undoes the changes, and prints them.
pub(in crate::commands) async fn run(args: &DownArgs, line: &CommandLine) -> Result<Exit, Failed> {
    let options = HostOptions::of_verb(&args.hosts, &line.config.hosts);
    args.check_container()?;
    let (hosts, reach) = agent_session::select_hosts(&options, &args.connect, line)?;
    args.check_named(&hosts)?;
    let (mut changing, mut failures) = ChangingHosts::open(&hosts, &reach).await?;
    let torn: Vec<bool> = changing.journals().iter().map(|journal| journal.was_torn).collect();
    let restored = changing.undo().await;
    let names = changing.names();
    changing.close().await;
    for ((name, restored), was_torn) in names.iter().zip(&restored).zip(torn) {
        if was_torn {
            messages::info(&format!(
                "{name}: the last line of its journal was cut off, and is ignored"
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
    if failures.is_empty() {
        settings::say_that_it_stays(&hosts);
    }
    agent_session::conclude(failures)
}

impl DownArgs {
    fn check_container(&self) -> Result<(), Failed> {
        if self.connect.container.is_none() {
            return Ok(());
        }
        let hint = "leave --container out: what was changed in a container is gone with it";
        Err(Failed::new(Exit::USAGE, "changes are undone on hosts, and in no containers")
            .hint(Some(hint)))
    }

    /// Refuses to change this machine unless it was named.
    fn check_named(&self, hosts: &[Host]) -> Result<(), Failed> {
        let has_named = !self.hosts.hosts.is_empty() || !self.hosts.hostfiles.is_empty();
        if has_named || !hosts::are_local(hosts) {
            return Ok(());
        }
        let message = "no hosts are named, and there is no rlaunch.toml with hosts";
        let hint = "`rlaunch down -H a,b` undoes what was changed on these hosts, -H localhost on this machine";
        Err(Failed::new(Exit::USAGE, message).hint(Some(hint)))
    }
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
    fn nothing_is_undone_where_nobody_said_so() {
        let parse = |words: &[&str]| DownArgs::try_parse_from([&["down"], words].concat()).unwrap();
        let here = [Host::this_machine()];
        let refused = parse(&[]).check_named(&here).unwrap_err();
        assert!(refused.hints[0].contains("-H localhost"), "{refused:?}");
        assert!(parse(&["-H", "localhost"]).check_named(&here).is_ok());
        let other = Host { name: "a".into(), ..Host::this_machine() };
        assert!(parse(&[]).check_named(&[other]).is_ok(), "rlaunch.toml names it");
        assert!(parse(&["--container", "docker:x"]).check_container().is_err());
        assert!(parse(&[]).check_container().is_ok());
    }

    #[test]
    fn a_journal_that_cannot_be_read_is_not_nothing() {
        let mut restored = Restored::default();
        restored.journal.unreadable = 2;
        assert_eq!(account("a", &restored), "");
    }

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
