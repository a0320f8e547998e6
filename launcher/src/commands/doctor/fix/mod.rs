//! `rlaunch doctor --fix`: faults fixed, and each fix proved by a new examination.
//!
//! 1. Examine, and plan: what may be done about which fault is in `rlaunch_plan::fixes`.
//! 2. Ask where that is needed (`choose`).
//! 3. Change what is wrong here (`here`) and on the hosts, on trial but for what nothing undoes, such as packages.
//! 4. Examine again while the trial runs. An MTU whose packets get lost on the way is set back. Hosts that are not reached any
//!    more undo their changes; the others keep them.
//! 5. Say what came of each (`outcome`). What shows only now is fixed in another round.

mod here;
mod outcome;

use super::{DoctorArgs, Examination, select_hosts};
use crate::cli::command_line::CommandLine;
use crate::commands::changes::{self, ChangingHosts, Restored};
use crate::commands::doctor::report::DoctorReport;
pub(super) use outcome::FixRecord;
use outcome::Outcome;
use rlaunch_bootstrap::protocol::changes::Change;
use rlaunch_bootstrap::protocol::network::NetworkChange;
use rlaunch_console::{messages, stdout};
use rlaunch_engine::connect::connector::Reach;
use rlaunch_plan::checks::Check;
use rlaunch_plan::checks::cluster::{Probe, ProbeKind, ProbeOutcome};
use rlaunch_plan::findings::CheckId;
use rlaunch_plan::fixes::{self, Class, PlannedFix, is_fixable};
use rlaunch_plan::hosts::Host;
use rlaunch_ssh::prompt::Prompter;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::text;
use std::collections::BTreeSet;
use std::time::Duration;

/// Command for the journals of hosts.
const BY: &str = "rlaunch doctor --fix";
/// Time until hosts undo changes that were not confirmed: longer than an examination takes without its test of RDMA.
const TRIAL: Duration = Duration::from_secs(180);
/// Maximum number of rounds. The faults of a host that is reached at last show in the second.
const MAX_ROUNDS: usize = 3;

/// Examines, fixes, and examines again.
pub(super) async fn run(
    args: &DoctorArgs,
    line: &CommandLine,
    selected: &[&'static Check],
) -> Result<Exit, Failed> {
    let wanted = wanted(args.fix.as_deref().unwrap_or_default())?;
    check_options(args)?;
    let (mut examination, mut report) = super::look(args, line, selected).await?;
    if args.dry_run {
        return dry_run(args, &report, &fixes::plan(&report.folded, &wanted));
    }
    if !args.json {
        stdout::print_styled(&report.to_text(args.verbose));
    }
    let mut records: Vec<FixRecord> = Vec::new();
    for _ in 0..MAX_ROUNDS {
        let is_new = |fix: &PlannedFix| !records.iter().any(|record| record.is_of(fix));
        let planned = fixes::plan(&report.folded, &wanted).into_iter().filter(is_new).collect();
        let (chosen, left_out) = choose(planned, args.yes).await;
        records.extend(left_out);
        if chosen.is_empty() {
            break;
        }
        let mut round = Round::new(chosen);
        round.work_here(args).await;
        let hosts = round.change_hosts(args, line).await?;
        let before = examination;
        (examination, report) = super::look(args, line, selected).await?;
        if let Some(mut hosts) = hosts {
            let trial = TRIAL + args.mesh_timeout;
            let set_back = round.set_mtus_back(&mut hosts, (&before, &examination), trial).await;
            let is_kept = round.keep_or_undo(hosts, &examination, &set_back, trial).await;
            if !is_kept || set_back != SetBack::None {
                (examination, report) = super::look(args, line, selected).await?;
            }
        }
        records.extend(round.prove(&report, &examination));
    }
    conclude(args, &report, &records)
}

/// Prints what came of the fixes, and what is left.
fn conclude(
    args: &DoctorArgs,
    report: &DoctorReport,
    records: &[FixRecord],
) -> Result<Exit, Failed> {
    if args.json {
        stdout::print(&report.to_json(Some(records))?);
        return Ok(report.exit(args.strict));
    }
    let is_changed = records.iter().any(FixRecord::was_tried);
    stdout::print_styled(&outcome::to_text(records));
    if is_changed {
        stdout::print_styled(&report.to_text(args.verbose));
    }
    let changed: BTreeSet<&str> = records.iter().flat_map(FixRecord::changed_hosts).collect();
    if !changed.is_empty() {
        let hosts = changed.into_iter().collect::<Vec<_>>().join(",");
        messages::hint(&format!("`rlaunch down -H {hosts}` undoes what was changed there"));
    } else if records.is_empty() {
        messages::info("nothing here that rlaunch can fix by itself");
    }
    Ok(report.exit(args.strict))
}

/// Prints what would be done.
fn dry_run(
    args: &DoctorArgs,
    report: &DoctorReport,
    planned: &[PlannedFix],
) -> Result<Exit, Failed> {
    if args.json {
        let records: Vec<FixRecord> = planned.iter().map(FixRecord::planned).collect();
        stdout::print(&report.to_json(Some(&records))?);
    } else {
        stdout::print(&fixes::script(planned));
        if planned.is_empty() {
            messages::info("nothing here that rlaunch can fix by itself");
        }
    }
    Ok(report.exit(args.strict))
}

fn check_options(args: &DoctorArgs) -> Result<(), Failed> {
    let refused =
        |message: &str, hint: &str| Err(Failed::new(Exit::USAGE, message).hint(Some(hint)));
    if args.from.is_some() && !args.dry_run {
        return refused("a recording cannot be fixed", "--dry-run prints what would be done");
    }
    if args.connect.container.is_some() {
        let hint =
            "leave --container out: what a container lacks is given to it when it is started";
        return refused("--fix changes hosts, and no containers", hint);
    }
    Ok(())
}

/// Returns the ids that the user wants to have fixed; none means all. Each word is an id or its first part.
fn wanted(words: &[String]) -> Result<Vec<CheckId>, Failed> {
    let mut ids = Vec::new();
    for word in words {
        let named = super::selected_checks(std::slice::from_ref(word), &[])?;
        let fixable: Vec<CheckId> =
            named.iter().map(|check| check.id).filter(|id| is_fixable(*id)).collect();
        if fixable.is_empty() {
            return Err(not_fixed(word, named.first().map(|check| check.id)));
        }
        ids.extend(fixable);
    }
    Ok(ids)
}

fn not_fixed(word: &str, id: Option<CheckId>) -> Failed {
    let class = id.map_or(Class::Printed, fixes::class);
    let message = format!("{word} is not fixed by rlaunch");
    match class {
        Class::Never(why) => Failed::new(Exit::USAGE, format!("{message}: {why}"))
            .hint(Some(format!("`rlaunch help {word}` says what to do"))),
        Class::ByMesh => Failed::new(Exit::USAGE, message).hint(Some(
            "`rlaunch network mesh --apply` with the same hosts gives each cable its addresses",
        )),
        _ => Failed::new(Exit::USAGE, message).hint(Some(
            "its finding and `rlaunch help ID` say what to do; `rlaunch help doctor` lists what --fix fixes",
        )),
    }
}

/// Outcome for interfaces whose new MTU was too large for the path.
#[derive(PartialEq, Eq)]
enum SetBack {
    /// There were none.
    None,
    /// Contains the hosts on which it could not be set back.
    Some { failed: Vec<String> },
}

/// Fixes that are made together.
struct Round {
    /// Each with what failed, by host; the name is empty for this machine.
    fixes: Vec<(PlannedFix, Vec<(String, String)>)>,
}

impl Round {
    fn new(chosen: Vec<PlannedFix>) -> Round {
        Round { fixes: chosen.into_iter().map(|fix| (fix, Vec::new())).collect() }
    }

    /// Corrects files of this machine, and installs keys on hosts that accept none.
    async fn work_here(&mut self, args: &DoctorArgs) {
        for (fix, failures) in &mut self.fixes {
            for line in fix.lines_here() {
                if let Err(cause) = here::run(line).await {
                    failures.push((String::new(), cause));
                    break;
                }
            }
            if let Err(cause) = here::install_key(fix.hosts_without_key(), args).await {
                let hosts = fix.hosts_without_key().iter();
                failures.extend(hosts.map(|host| (host.clone(), cause.clone())));
            }
        }
    }

    /// Makes the changes on the hosts, each fix after the other, on trial. Returns the hosts, if any was changed.
    async fn change_hosts(
        &mut self,
        args: &DoctorArgs,
        line: &CommandLine,
    ) -> Result<Option<ChangingHosts>, Failed> {
        let names: BTreeSet<String> =
            self.fixes.iter().flat_map(|(fix, _)| fix.changes()).map(|(host, _)| host).collect();
        if names.is_empty() {
            return Ok(None);
        }
        let (hosts, reach): (Vec<Host>, Reach) = select_hosts(args, line)?;
        let is_changed = |host: &Host| names.contains(&host.to_string());
        let hosts: Vec<Host> = hosts.into_iter().filter(is_changed).collect();
        let (mut changing, failures) = ChangingHosts::open(&hosts, &reach).await?;
        failures.iter().for_each(messages::error);
        // The time of a trial must not run while a package is installed.
        for is_on_trial in [false, true] {
            let trial = is_on_trial.then_some(TRIAL + args.mesh_timeout);
            for (fix, failed) in &mut self.fixes {
                if can_be_undone(fix) == is_on_trial {
                    failed.extend(make(fix, &mut changing, &failures, trial).await);
                }
            }
        }
        Ok(Some(changing))
    }

    /// Sets interfaces back to the MTU that they had before, if packets of the new one get lost on the way: that is worse than
    /// what it has fixed.
    async fn set_mtus_back(
        &mut self,
        hosts: &mut ChangingHosts,
        (before, after): (&Examination, &Examination),
        trial: Duration,
    ) -> SetBack {
        let (names, lossy) = (hosts.names(), lossy_ends(after));
        let old = lossy_ends(before);
        let mut back: Vec<Vec<Change>> = vec![Vec::new(); names.len()];
        // Each with the index of its fix and of its host.
        let mut raised = Vec::new();
        for (index, (fix, _)) in self.fixes.iter().enumerate() {
            for (host, changes) in fix.changes() {
                let Some(at) = names.iter().position(|name| *name == host) else { continue };
                for (interface, mtu) in raised_mtus(before, &host, &changes) {
                    let end = (host.clone(), interface.clone());
                    if lossy.contains(&end) && !old.contains(&end) {
                        raised.push((index, at, interface.clone(), mtu));
                        back[at].push(Change::Network(NetworkChange::SetMtu { interface, mtu }));
                    }
                }
            }
        }
        if back.iter().all(Vec::is_empty) {
            return SetBack::None;
        }
        messages::warn("packets of the new MTU get lost on the way: setting it back");
        let changed = hosts.apply(back.clone(), BY, Some(trial)).await;
        let complaints: Vec<Option<String>> = changed
            .iter()
            .zip(&back)
            .map(|(changed, changes)| changed.complaint(changes))
            .collect();
        for (index, at, interface, mtu) in raised {
            let lost = "packets of that size get lost on the way";
            let cause = match &complaints[at] {
                None => format!("{lost}: {interface} has MTU {mtu} again"),
                Some(complaint) => format!("{lost}, and {interface} was not set back: {complaint}"),
            };
            self.fixes[index].1.push((names[at].clone(), cause));
        }
        let failed = names.iter().zip(&complaints).filter(|(_, complaint)| complaint.is_some());
        SetBack::Some { failed: failed.map(|(name, _)| name.clone()).collect() }
    }

    /// Keeps the changes of the hosts, unless one of them cannot be reached any more. Returns whether they are kept.
    async fn keep_or_undo(
        &mut self,
        mut hosts: ChangingHosts,
        examination: &Examination,
        set_back: &SetBack,
        trial: Duration,
    ) -> bool {
        let is_lost = |name: &&String| examination.unreached.iter().any(|lost| lost.host == **name);
        let names = hosts.names();
        let lost: Vec<&String> = names.iter().filter(is_lost).collect();
        let why = match set_back {
            _ if !lost.is_empty() => Some(format!("{} was not reached with it", text::list(&lost))),
            SetBack::Some { failed } if !failed.is_empty() => {
                Some(format!("an MTU of {} could not be set back", text::list(failed)))
            }
            _ => None,
        };
        let Some(why) = &why else {
            let answers = hosts.confirm().await;
            for (name, cause) in names.iter().zip(answers) {
                if let Some(cause) = cause {
                    self.fail(name, &format!("its changes may be undone: {cause}"));
                }
            }
            hosts.close().await;
            return true;
        };
        messages::warn(&format!("{why}: undoing the changes"));
        let restored = hosts.roll_back().await;
        changes::report_roll_back(&names, &restored, trial);
        for (name, restored) in names.iter().zip(&restored) {
            self.fail(name, &rolled_back(restored, why));
        }
        hosts.close().await;
        false
    }

    /// Notes why what was on trial on a host is not kept.
    fn fail(&mut self, host: &str, cause: &str) {
        for (fix, failures) in &mut self.fixes {
            if can_be_undone(fix) && fix.changes().iter().any(|(own, _)| own == host) {
                failures.push((host.to_owned(), cause.to_owned()));
            }
        }
    }

    /// Compares the fixes with the examination after them.
    fn prove(self, report: &DoctorReport, examination: &Examination) -> Vec<FixRecord> {
        let fixes = self.fixes.into_iter();
        fixes
            .flat_map(|(fix, failures)| outcome::of_fix(&fix, &failures, report, examination))
            .collect()
    }
}

/// Makes a fix on its hosts. Returns those where it failed, and why; `unable` are failures of those that are not open.
async fn make(
    fix: &PlannedFix,
    changing: &mut ChangingHosts,
    unable: &[Failed],
    trial: Option<Duration>,
) -> Vec<(String, String)> {
    let (all, names) = (fix.changes(), changing.names());
    let of = |name: &String| all.iter().find(|(host, _)| host == name);
    let changes: Vec<Vec<Change>> = names
        .iter()
        .map(|name| of(name).map(|(_, changes)| changes.clone()).unwrap_or_default())
        .collect();
    let missing = all.iter().filter(|(host, _)| !names.contains(host));
    let mut failed: Vec<(String, String)> =
        missing.map(|(host, _)| (host.clone(), cause_of(host, unable))).collect();
    if changes.iter().all(Vec::is_empty) {
        return failed;
    }
    messages::info(&format!("fixing {} on {}", fix.id(), fix.place()));
    let changed = changing.apply(changes.clone(), BY, trial).await;
    for ((name, changed), changes) in names.into_iter().zip(changed).zip(changes) {
        failed.extend(changed.complaint(&changes).map(|complaint| (name, complaint)));
    }
    failed
}

/// Lists the interfaces at the ends of paths on which short packets arrive and large ones do not, each with its host.
fn lossy_ends(examination: &Examination) -> BTreeSet<(String, String)> {
    let is_lossy =
        |probe: &&Probe| probe.outcome == ProbeOutcome::OnlyShort && probe.kind != ProbeKind::Tcp;
    let ends = |probe: &Probe| {
        let from = examination.hosts.get(probe.from)?;
        let to = examination.hosts.get(probe.to)?;
        let reached = to.diagnosis.inventory.netdev_with_address(probe.address?)?;
        let mut netdevs = from.diagnosis.inventory.netdevs.iter();
        let own = netdevs.find(|netdev| Some(&netdev.name) == probe.netdev.as_ref())?;
        // Packets that do not fit an end's own interface say nothing of the way.
        if let ProbeKind::PathMtu(size) = probe.kind
            && own.mtu.min(reached.mtu) < size
        {
            return None;
        }
        Some([(from.name.clone(), probe.netdev.clone()?), (to.name.clone(), reached.name.clone())])
    };
    let probes = examination.probes.iter().flatten();
    probes.filter(is_lossy).filter_map(ends).flatten().collect()
}

/// Lists the interfaces of a host whose MTU changes raise, with the MTU that they had.
fn raised_mtus(before: &Examination, host: &str, changes: &[Change]) -> Vec<(String, u32)> {
    let host = before.hosts.iter().find(|known| known.name == host);
    let netdevs = host.map_or(&[][..], |host| &host.diagnosis.inventory.netdevs[..]);
    let raised = |change: &Change| {
        let Change::Network(NetworkChange::SetMtu { interface, mtu }) = change else {
            return None;
        };
        let netdev = netdevs.iter().find(|netdev| netdev.name == *interface)?;
        (netdev.mtu < *mtu).then(|| (interface.clone(), netdev.mtu))
    };
    changes.iter().filter_map(raised).collect()
}

/// Tells whether the end of a trial would undo any of a fix.
fn can_be_undone(fix: &PlannedFix) -> bool {
    let mut changes = fix.changes().into_iter().flat_map(|(_, changes)| changes);
    changes.any(|change| !matches!(change, Change::Run { undo: None, .. }))
}

/// Says what became of the changes of a host because others were not reached.
fn rolled_back(restored: &Restored, why: &str) -> String {
    let undone = if restored.is_complete() { "undone" } else { "not undone as a whole" };
    format!("{undone}, because {why}")
}

/// Returns why a host cannot be changed.
fn cause_of(host: &str, failures: &[Failed]) -> String {
    let own =
        |failed: &Failed| Some(failed.message.strip_prefix(host)?.strip_prefix(": ")?.to_owned());
    failures.iter().find_map(own).unwrap_or_else(|| "its agent did not answer".to_owned())
}

/// Divides fixes in those that are to be made and those that are not, by questions where they are needed.
async fn choose(planned: Vec<PlannedFix>, yes: bool) -> (Vec<PlannedFix>, Vec<FixRecord>) {
    let asks = planned.iter().any(|fix| matches!(fix.class, Class::Asked(_)));
    let prompter = if asks && !yes { Prompter::open() } else { None };
    let (mut chosen, mut left_out) = (Vec::new(), Vec::new());
    for fix in planned {
        match may_be_done(&fix, yes, prompter.as_ref()).await {
            Ok(()) => chosen.push(fix),
            Err(why) => left_out.push(FixRecord::new(&fix, Outcome::Skipped(why))),
        }
    }
    (chosen, left_out)
}

/// Returns why a fix is not to be made.
async fn may_be_done(
    fix: &PlannedFix,
    yes: bool,
    prompter: Option<&Prompter>,
) -> Result<(), &'static str> {
    let Class::Asked(does) = fix.class else { return Ok(()) };
    if yes {
        return Ok(());
    }
    let Some(prompter) = prompter else {
        return Err("it needs your consent: --yes, or a terminal");
    };
    messages::info(&format!("{} on {} {does}:", fix.id(), fix.place()));
    fix.finding.hints().iter().for_each(|hint| messages::hint(hint));
    let answer = prompter.ask_visibly("do it? [y/N] ").await.unwrap_or_default();
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err("you said no"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::Diagnosed;
    use rlaunch_bootstrap::inventory::Inventory;
    use rlaunch_bootstrap::inventory::net::{Netdev, NetdevKind};
    use rlaunch_bootstrap::protocol::diagnosis::Diagnosis;

    #[test]
    fn what_is_not_undone_is_not_called_so() {
        let mut restored = Restored::default();
        let why = "b was not reached with it";
        assert_eq!(rolled_back(&restored, why), "undone, because b was not reached with it");
        restored.lost = Some("its agent ended".into());
        let partly = "not undone as a whole, because b was not reached with it";
        assert_eq!(rolled_back(&restored, why), partly);
    }

    fn examined(mtu: u32, outcome: ProbeOutcome) -> Examination {
        let host = |name: &str, address: &str| {
            let netdev = Netdev {
                name: "eth1".into(),
                index: 2,
                kind: NetdevKind::Physical,
                mtu,
                speed: None,
                running: true,
                hardware_address: None,
                pci: None,
                device_port: None,
                port_name: None,
                addresses: vec![(address.parse().unwrap(), 24)],
            };
            let inventory = Inventory { netdevs: vec![netdev], ..Inventory::default() };
            let host = Host { name: name.into(), ..Host::this_machine() };
            Diagnosed::recorded(&host, Diagnosis { inventory, ..Diagnosis::default() })
        };
        let probe = Probe {
            from: 0,
            to: 1,
            kind: ProbeKind::PathMtu(4156),
            netdev: Some("eth1".into()),
            address: Some("10.0.0.2".parse().unwrap()),
            outcome,
        };
        let hosts = vec![host("a", "10.0.0.1"), host("b", "10.0.0.2")];
        Examination { hosts, probes: Some(vec![probe]), ..Examination::default() }
    }

    #[test]
    fn both_ends_of_a_path_that_loses_large_packets_are_known_with_the_mtu_before() {
        let before = examined(1500, ProbeOutcome::Worked(9));
        assert!(lossy_ends(&before).is_empty());
        let ends = lossy_ends(&examined(9000, ProbeOutcome::OnlyShort));
        let both = ["a", "b"].map(|host| (host.to_owned(), "eth1".to_owned()));
        assert_eq!(ends, BTreeSet::from(both));
        let set = |mtu| [Change::Network(NetworkChange::SetMtu { interface: "eth1".into(), mtu })];
        assert_eq!(raised_mtus(&before, "b", &set(9000)), [("eth1".to_owned(), 1500)]);
        assert!(raised_mtus(&before, "b", &set(1400)).is_empty());
    }

    #[test]
    fn what_is_never_fixed_is_refused_with_its_reason() {
        let wanted = |word: &str| super::wanted(&[word.to_owned()]);
        let ids = |word| -> Vec<&str> {
            wanted(word).unwrap().into_iter().map(CheckId::as_str).collect::<Vec<_>>()
        };
        assert_eq!(ids("net.arp"), ["net.arp"]);
        assert_eq!(ids("fw"), ["fw.ports", "fw.roce"]);
        let refused = |word| {
            let failed = wanted(word).unwrap_err();
            (failed.message, failed.hints.concat())
        };
        let (message, hint) = refused("gpu.acs");
        assert!(
            message.starts_with("gpu.acs is not fixed by rlaunch: a host of virtual"),
            "{message}"
        );
        assert_eq!(hint, "`rlaunch help gpu.acs` says what to do");
        assert!(refused("mesh.subnet").1.starts_with("`rlaunch network mesh --apply`"));
        assert!(refused("odd").1.starts_with("its finding and "));
        assert!(refused("net.arpp").1.starts_with("did you mean net.arp?"));
    }
}
