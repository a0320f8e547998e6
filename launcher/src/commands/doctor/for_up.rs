//! What doctor does for `rlaunch up`: an examination without paths, which it tests itself; `--since-up`: whether hosts are as it
//! has left them. `$XDG_STATE_HOME/rlaunch/up` has a file for each, with what it was like.

use super::report::WARNINGS;
#[cfg(test)]
use super::{Diagnosed, Examination};
use super::{DoctorArgs, ProbeWhen, judge, select_hosts, selected_checks, sessions};
use crate::cli::command_line::CommandLine;
use crate::commands::network::cabled::CabledHosts;
use clap::Parser;
use rlaunch_bootstrap::inventory::Inventory;
#[cfg(test)]
use rlaunch_bootstrap::protocol::diagnosis::Diagnosis;
use rlaunch_console::process_env::{ProcessEnv, create_state_directory};
use rlaunch_console::{messages, stdout};
use rlaunch_engine::connect::connector::Reach;
use rlaunch_plan::fixes::{self, PlannedFix};
use rlaunch_plan::hosts::Host;
use rlaunch_plan::up::{Cables, Snapshot};
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::text;
use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;

/// Examines the hosts, and prints what has changed.
pub(super) async fn since_up(args: &DoctorArgs, line: &CommandLine) -> Result<Exit, Failed> {
    let (hosts, reach) = select_hosts(args, line)?;
    let before = read(&hosts)?;
    let examined = examine(&hosts, &reach).await?;
    let cables = cables(&hosts, &reach, &before).await;
    let now = examined.inventories.iter().zip(cables);
    let now = now.map(|(inventory, cables)| Snapshot::new(inventory, cables));
    let names: Vec<String> = hosts.iter().map(|host| host.name.clone()).collect();
    let changes = before.iter().zip(now).map(|(before, now)| before.changes(&now, &names));
    let changes: Vec<Vec<String>> = changes.collect();
    stdout::print(&account(&names, &changes));
    let has_changed = changes.iter().any(|changes| !changes.is_empty());
    Ok(if has_changed && args.strict { WARNINGS } else { Exit::SUCCESS })
}

/// Reads what was kept of each host.
fn read(hosts: &[Host]) -> Result<Vec<Snapshot>, Failed> {
    let store = Snapshots::of_user()?;
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for host in hosts {
        match store.read(&host.name)? {
            Some(snapshot) => found.push(snapshot),
            None => missing.push(host.to_string()),
        }
    }
    if missing.is_empty() {
        return Ok(found);
    }
    let message = format!("`rlaunch up` has not set up {} from here", text::list(&missing));
    let hint = format!("rlaunch up -H {}", missing.join(","));
    Err(Failed::new(Exit::USAGE, message).hint(Some(hint)))
}

/// Looks for the cables of interfaces that had one. Where that fails, they are taken to be as before.
async fn cables(hosts: &[Host], reach: &Reach, before: &[Snapshot]) -> Vec<Cables> {
    let all = before.iter().flat_map(|snapshot| snapshot.cables.keys().cloned());
    let interfaces: BTreeSet<String> = all.collect();
    if interfaces.is_empty() || hosts.len() < 2 {
        return before.iter().map(|snapshot| snapshot.cables.clone()).collect();
    }
    let interfaces: Vec<String> = interfaces.into_iter().collect();
    match CabledHosts::find(hosts, reach, &interfaces, false).await {
        Ok(found) => {
            let cables = (0..hosts.len()).map(|host| found.cables(host, hosts)).collect();
            found.close().await;
            cables
        }
        Err(failed) => {
            messages::warn(&format!("cables were not looked for: {}", failed.message));
            before.iter().map(|snapshot| snapshot.cables.clone()).collect()
        }
    }
}

fn account(names: &[String], changes: &[Vec<String>]) -> String {
    let of_host = |(name, changes): (&String, &Vec<String>)| match changes.is_empty() {
        true => format!("{name}: as `rlaunch up` has left it\n"),
        false => changes.iter().map(|change| format!("{name}: {change}\n")).collect(),
    };
    names.iter().zip(changes).map(of_host).collect()
}

/// Directory of snapshots.
pub(in crate::commands) struct Snapshots {
    directory: PathBuf,
}

impl Snapshots {
    /// Returns those of this user; fails if there is no state directory.
    pub(in crate::commands) fn of_user() -> Result<Snapshots, Failed> {
        let state = ProcessEnv::current().state_directory();
        let none = || {
            let message = "no directory for snapshots: neither XDG_STATE_HOME nor HOME names one";
            Failed::new(Exit::FILES, message)
        };
        Ok(Snapshots { directory: state.ok_or_else(none)?.join("rlaunch/up") })
    }

    pub(in crate::commands) fn write(&self, host: &str, snapshot: &Snapshot) -> Result<(), Failed> {
        let write = || -> io::Result<()> {
            create_state_directory(&self.directory)?;
            let mut file = tempfile::NamedTempFile::new_in(&self.directory)?;
            serde_json::to_writer(&mut file, snapshot)?;
            file.write_all(b"\n")?;
            file.persist(self.path(host))?;
            Ok(())
        };
        write().map_err(|error| self.failed("write", host, &error))
    }

    /// Returns the snapshot of a host; `None` if there is none.
    fn read(&self, host: &str) -> Result<Option<Snapshot>, Failed> {
        let read = || -> io::Result<Option<Snapshot>> {
            match fs::read(self.path(host)) {
                Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
                Err(error) => Err(error),
            }
        };
        read().map_err(|error| self.failed("read", host, &error))
    }

    fn failed(&self, operation: &str, host: &str, error: &io::Error) -> Failed {
        let path = self.path(host);
        let message = format!("{host}: cannot {operation} {}: {error}", path.display());
        Failed::new(Exit::FILES, message)
            .hint(Some("`rlaunch up` with the same hosts writes it anew"))
    }

    /// Returns the path of a host's file. Users write the names of hosts, which may have any character.
    fn path(&self, host: &str) -> PathBuf {
        let plain = |byte: u8| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => {
                char::from(byte).to_string()
            }
            _ => format!("%{byte:02x}"),
        };
        self.directory.join(host.bytes().map(plain).collect::<String>() + ".json")
    }
}

/// Hosts that were examined.
pub(in crate::commands) struct ExaminedHosts {
    /// What rlaunch may fix.
    pub(in crate::commands) fixes: Vec<PlannedFix>,
    /// In the order of the hosts.
    pub(in crate::commands) inventories: Vec<Inventory>,
}

/// Examines hosts. A host that does not answer is an error.
pub(in crate::commands) async fn examine(
    hosts: &[Host],
    reach: &Reach,
) -> Result<ExaminedHosts, Failed> {
    let args = DoctorArgs::try_parse_from(["rlaunch doctor"]);
    let args = args.map_err(|error| Failed::from_error(Exit::BUG, &error))?;
    let args = DoctorArgs { probe: ProbeWhen::Never, ..args };
    let examination = sessions::examine(&args, hosts, reach).await?;
    if let Some(lost) = examination.unreached.first() {
        let failed = Failed::new(Exit::HOST, format!("{}: {}", lost.host, lost.cause));
        return Err(failed.hint(lost.hints.first().cloned()));
    }
    let report = judge(&examination, &selected_checks(&[], &[])?);
    let fixes = fixes::plan(&report.folded, &[]);
    let inventories = examination.hosts.into_iter().map(|host| host.diagnosis.inventory);
    Ok(ExaminedHosts { fixes, inventories: inventories.collect() })
}

/// Examines recorded machines.
#[cfg(test)]
pub(in crate::commands) fn fixes_of(machines: &[(&str, &Diagnosis)]) -> Vec<PlannedFix> {
    let host = |(name, diagnosis): &(&str, &Diagnosis)| {
        let host = Host { name: (*name).into(), ..Host::this_machine() };
        Diagnosed::recorded(&host, Diagnosis::clone(diagnosis))
    };
    let hosts = machines.iter().map(host).collect();
    let examination = Examination { hosts, ..Examination::default() };
    let report = judge(&examination, &selected_checks(&[], &[]).unwrap());
    fixes::plan(&report.folded, &[])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_host_has_its_changes_or_a_line() {
        let names = ["a", "b"].map(str::to_owned);
        let changes =
            [vec![], vec!["kernel: 7, was 6".to_owned(), "MTU of e: 9, was 8".to_owned()]];
        let expected =
            "a: as `rlaunch up` has left it\nb: kernel: 7, was 6\nb: MTU of e: 9, was 8\n";
        assert_eq!(account(&names, &changes), expected);
    }

    #[test]
    fn a_snapshot_is_kept_for_each_host() {
        let state = tempfile::tempdir().unwrap();
        let store = Snapshots { directory: state.path().join("rlaunch/up") };
        assert_eq!(store.read("a").unwrap(), None);
        let mut snapshot = Snapshot::default();
        snapshot.state.insert("kernel".into(), "6".into());
        for host in ["a", "../b", "fd00::1"] {
            store.write(host, &snapshot).unwrap();
            assert_eq!(store.read(host).unwrap().as_ref(), Some(&snapshot), "{host}");
        }
        let count = fs::read_dir(&store.directory).unwrap().count();
        assert_eq!(count, 3, "all are in the directory");
        fs::write(store.path("a"), "{").unwrap();
        let failed = store.read("a").unwrap_err();
        assert!(failed.message.starts_with("a: cannot read "), "{failed:?}");
    }
}
