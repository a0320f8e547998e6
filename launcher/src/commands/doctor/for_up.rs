//! Examination for `rlaunch up`, which tests the paths between hosts itself: what may be fixed, and the hardware.

#[cfg(test)]
use super::{Diagnosed, Examination};
use super::{DoctorArgs, ProbeWhen, judge, selected_checks, sessions};
use clap::Parser;
use rlaunch_bootstrap::inventory::Inventory;
#[cfg(test)]
use rlaunch_bootstrap::protocol::diagnosis::Diagnosis;
use rlaunch_engine::connect::connector::Reach;
use rlaunch_plan::fixes::{self, PlannedFix};
use rlaunch_plan::hosts::Host;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;

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
