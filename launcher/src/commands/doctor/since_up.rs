//! `--since-up`: whether hosts are as `rlaunch up` has left them.

use super::report::WARNINGS;
use super::{DoctorArgs, for_up, select_hosts};
use crate::cli::command_line::CommandLine;
use crate::commands::network::cabled::CabledHosts;
use crate::commands::snapshots::Snapshots;
use rlaunch_console::{messages, stdout};
use rlaunch_engine::connect::connector::Reach;
use rlaunch_plan::hosts::Host;
use rlaunch_plan::up::{Cables, Snapshot};
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::text;
use std::collections::BTreeSet;

/// Examines the hosts, and prints what has changed.
pub(super) async fn run(args: &DoctorArgs, line: &CommandLine) -> Result<Exit, Failed> {
    let (hosts, reach) = select_hosts(args, line)?;
    let before = read(&hosts)?;
    let examined = for_up::examine(&hosts, &reach).await?;
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
}
