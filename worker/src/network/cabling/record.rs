//! Record of what a trial may change on this host, by which all of it comes back.
//!
//! What is kept are the words of `ip` ([`super::ip_lists`]), so that labels, metrics and whatever else an address or a route
//! has come back as well.

use super::ip_lists::{
    Address, change_by_ip, difference, has_ipv6, list_addresses, list_held, list_ipv6,
    list_neighbours, list_routes, monotonic_seconds, neighbour_repairs, route_repairs, tied_routes,
    values,
};
use rlaunch_bootstrap::protocol::network::{
    ChangeFailure, NetworkChange, Privilege, RollBackReport,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::net::IpAddr;

/// State of the host before the changes of a trial. It can be restored at any moment, in the midst of a change or
/// twice. Journals keep it by position: later versions add no fields.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Record {
    /// Right to undo the changes.
    pub(super) privilege: Privilege,
    /// Changes that undo those of links and of IPv6 addresses, in the order in which those were made.
    pub(super) inverses: Vec<NetworkChange>,
    /// IPv4 addresses of each interface whose addresses change, in the kernel's order, which makes the first one of a
    /// network primary.
    addresses: Vec<(String, Vec<Address>)>,
    /// Routes that may go with these addresses, in the kernel's order.
    routes: Vec<Listed>,
    /// Permanent neighbours and proxies of each interface that changes. The kernel removes them with the last IPv4
    /// address, and when the interface is set down.
    neighbours: Vec<Listed>,
    /// IPv4 addresses that the trial adds, with interface and prefix length.
    additions: Vec<(String, IpAddr, u8)>,
    /// Addresses of each interface that is set up, with prefix lengths. One that has got others since stays up, since
    /// somebody uses it.
    held: Vec<(String, Vec<String>)>,
}

/// Route or neighbour, as `ip` takes it. Journals keep it by position: later versions add no fields.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Listed {
    line: String,
    /// Whether the changes have removed it, or may yet. Others may remove it as well, and then it stays away.
    is_lost: bool,
}

impl Record {
    /// Records that nothing was changed yet.
    pub(super) fn new(privilege: Privilege) -> Record {
        Record { privilege, ..Record::default() }
    }

    pub(super) fn clear(&mut self) {
        *self = Record::new(self.privilege);
    }

    /// Records what these changes may cost.
    pub(super) fn note(&mut self, changes: &[NetworkChange]) -> Result<(), ChangeFailure> {
        note_tied_neighbours(&mut self.neighbours, changes, &list_neighbours()?);
        for change in changes {
            let NetworkChange::SetUp { interface, up: true } = change else { continue };
            if self.held.iter().all(|(known, _)| known != interface) {
                // An interface that is not there fails later, with the line that a person would type.
                self.held.push((interface.clone(), list_held(interface).unwrap_or_default()));
            }
        }
        let fresh = self.note_addresses(changes)?;
        if self.addresses.is_empty() {
            return Ok(());
        }
        self.additions.extend(changes.iter().filter_map(|change| match change {
            NetworkChange::AddAddress { interface, address: address @ IpAddr::V4(_), prefix } => {
                Some((interface.clone(), *address, *prefix))
            }
            _ => None,
        }));
        self.note_routes(&fresh)
    }

    /// Records the addresses of interfaces that are about to change. Returns those that are new in the record.
    fn note_addresses<'a>(
        &mut self,
        changes: &'a [NetworkChange],
    ) -> Result<BTreeSet<&'a str>, ChangeFailure> {
        let mut fresh = BTreeSet::new();
        let changed = changes.iter().filter(|change| is_ipv4(change));
        for interface in changed.map(NetworkChange::interface) {
            if self.addresses.iter().all(|(known, _)| known != interface) {
                self.addresses.push((interface.to_owned(), list_addresses(interface)?));
                fresh.insert(interface);
            }
        }
        Ok(fresh)
    }

    /// Records the routes that may go with the addresses of these interfaces.
    fn note_routes(&mut self, fresh: &BTreeSet<&str>) -> Result<(), ChangeFailure> {
        let present = list_routes()?;
        let sources = self.addresses.iter().filter(|(interface, _)| fresh.contains(&**interface));
        let sources =
            sources.flat_map(|(_, all)| all.iter().map(Address::without_prefix)).collect();
        let tied = tied_routes(&present, fresh, &sources).into_iter().cloned().collect();
        note_listed(&mut self.routes, &present, tied);
        Ok(())
    }

    /// Records which routes and neighbours are gone after the changes.
    pub(super) fn note_lost(&mut self) {
        note_lost(&mut self.routes, list_routes);
        note_lost(&mut self.neighbours, list_neighbours);
    }

    /// Makes a record good for a host that has booted since: what a boot takes away, the changes have not. An interface that is
    /// up by now may be the host's only one.
    pub(crate) fn forget_boot(&mut self) {
        self.inverses.retain(|change| !matches!(change, NetworkChange::SetUp { up: false, .. }));
        let addresses = self.addresses.iter_mut().flat_map(|(_, all)| all);
        addresses.for_each(|address| address.expires_at = 0);
        let listed = self.routes.iter_mut().chain(&mut self.neighbours);
        listed.for_each(|one| one.is_lost = false);
    }

    /// Brings back what was recorded.
    pub(crate) fn restore(&self) -> RollBackReport {
        let mut undo = Undo { privilege: self.privilege, report: RollBackReport::default() };
        // Routes go with addresses that go, also with those that the trial has added, and neighbours with the last one.
        let routes = undo.wanted(&self.routes, list_routes);
        let neighbours = undo.wanted(&self.neighbours, list_neighbours);
        let now = monotonic_seconds();
        let mut recorded = Vec::new();
        for (interface, all) in &self.addresses {
            if let Some(present) = undo.listed(list_addresses(interface)) {
                let wanted = self.wanted_addresses(interface, all, &present, now);
                // From the last one on, since secondary addresses may go with their primary one.
                let (superfluous, _) = difference(&wanted, &present);
                for address in superfluous.iter().rev() {
                    // networkd takes away what a file has set that is gone, a moment after it was told to read its files.
                    let is_gone =
                        || list_addresses(interface).is_ok_and(|now| !now.contains(address));
                    undo.run_unless(&address.deletion(interface), is_gone);
                }
                recorded.push((interface, wanted));
            }
        }
        // It may be restored before a change was made, or again; `ip` refuses what is so already.
        for change in self.inverses.iter().rev() {
            if !is_in_effect(change) && !self.cuts_off_others(change) {
                undo.run_unless(&change.arguments(), || is_in_effect(change));
            }
        }
        // Behind all removals, since an address may have moved to another interface.
        for (interface, wanted) in recorded {
            let Some(present) = undo.listed(list_addresses(interface)) else { continue };
            let (_, missing) = difference(&wanted, &present);
            for address in missing {
                undo.run(&address.addition(interface, now));
            }
        }
        undo.restore(&routes, list_routes, route_repairs);
        undo.restore(&neighbours, list_neighbours, neighbour_repairs);
        undo.report
    }

    /// Tells whether a change sets down an interface that has addresses which it had not before it was set up.
    fn cuts_off_others(&self, change: &NetworkChange) -> bool {
        let NetworkChange::SetUp { interface, up: false } = change else { return false };
        let mut held = self.held.iter().filter(|(known, _)| known == interface);
        let had = held.next().map_or(&[][..], |(_, had)| had);
        list_held(interface).is_ok_and(|now| has_others(had, &now))
    }

    /// Returns the addresses that an interface is to have at the time `now`: those that it had, with the lifetimes
    /// that they have by now, and behind them those that others have added meanwhile.
    fn wanted_addresses(
        &self,
        interface: &str,
        had: &[Address],
        present: &[Address],
        now: u64,
    ) -> Vec<Address> {
        let living = had.iter().filter_map(|one| {
            let renewed = present.iter().find(|other| *other == one);
            renewed.or(Some(one).filter(|one| one.expires_at > now))
        });
        let is_of_trial = |one: &&Address| {
            let mut own = self.additions.iter().filter(|(own, ..)| own == interface);
            own.any(|(_, address, prefix)| one.has_address(*address, *prefix))
        };
        let foreign = present.iter().filter(|one| !had.contains(one) && !is_of_trial(one));
        living.chain(foreign).cloned().collect()
    }
}

/// Records the permanent neighbours and proxies of interfaces that are about to change.
fn note_tied_neighbours(known: &mut Vec<Listed>, changes: &[NetworkChange], present: &[String]) {
    let is_tied = |line: &&String| {
        values(line, "dev").any(|name| changes.iter().any(|change| change.interface() == name))
    };
    let tied = present.iter().filter(is_tied).cloned().collect();
    note_listed(known, present, tied);
}

/// Records the lines `tied`, which may go. From now on, each recorded line counts as lost, until [`note_lost`] has looked.
fn note_listed(known: &mut Vec<Listed>, present: &[String], mut tied: Vec<String>) {
    // Others have removed what is gone now and was not lost.
    known.retain(|one| one.is_lost || present.contains(&one.line));
    tied.retain(|line| known.iter().all(|one| one.line != *line));
    known.extend(tied.into_iter().map(|line| Listed { line, is_lost: true }));
    known.iter_mut().for_each(|one| one.is_lost = true);
}

/// Records which lines are gone after the changes.
fn note_lost(known: &mut [Listed], list: fn() -> Result<Vec<String>, ChangeFailure>) {
    if known.is_empty() {
        return;
    }
    if let Ok(present) = list() {
        known.iter_mut().for_each(|one| one.is_lost = !present.contains(&one.line));
    }
}

/// Tells whether a change is recorded as the addresses that its interface had.
fn is_ipv4(change: &NetworkChange) -> bool {
    matches!(
        change,
        NetworkChange::AddAddress { address: IpAddr::V4(_), .. }
            | NetworkChange::RemoveAddress { address: IpAddr::V4(_), .. }
    )
}

/// Runs `ip` to tell whether the IPv6 address that a change adds is there, or the one that it removes is not.
/// Returns false if `ip` fails.
pub(super) fn is_in_effect(change: &NetworkChange) -> bool {
    match change {
        NetworkChange::AddAddress { interface, address, prefix } => {
            list_ipv6(interface).is_ok_and(|listed| has_ipv6(&listed, *address, *prefix))
        }
        NetworkChange::RemoveAddress { interface, address, prefix } => {
            list_ipv6(interface).is_ok_and(|listed| !has_ipv6(&listed, *address, *prefix))
        }
        _ => false,
    }
}

fn has_others(had: &[String], now: &[String]) -> bool {
    now.iter().any(|one| !had.contains(one))
}

/// Restoring in progress.
struct Undo {
    privilege: Privilege,
    report: RollBackReport,
}

impl Undo {
    fn run(&mut self, arguments: &[String]) {
        self.run_unless(arguments, || false);
    }

    /// Runs a change. One that is refused is no failure if `is_so` finds that another program has made it meanwhile.
    fn run_unless(&mut self, arguments: &[String], is_so: impl FnOnce() -> bool) {
        match change_by_ip(self.privilege, arguments) {
            Ok(()) => self.report.undone += 1,
            Err(_) if is_so() => {}
            Err(failure) => self.report.failed.push(failure),
        }
    }

    fn listed<T>(&mut self, listed: Result<Vec<T>, ChangeFailure>) -> Option<Vec<T>> {
        listed.map_err(|failure| self.report.failed.push(failure)).ok()
    }

    /// Returns the recorded lines that are to be there: those that the changes have removed, and those that others have
    /// left there.
    fn wanted<'a>(
        &mut self,
        recorded: &'a [Listed],
        list: fn() -> Result<Vec<String>, ChangeFailure>,
    ) -> Vec<&'a str> {
        if recorded.is_empty() {
            return Vec::new();
        }
        let present = self.listed(list());
        let is_there = |line: &String| present.as_ref().is_none_or(|all| all.contains(line));
        let wanted = recorded.iter().filter(|one| one.is_lost || is_there(&one.line));
        wanted.map(|one| &*one.line).collect()
    }

    /// Runs the repairs that bring wanted lines back among those present.
    fn restore(
        &mut self,
        wanted: &[&str],
        list: fn() -> Result<Vec<String>, ChangeFailure>,
        repairs: fn(&[&str], &[String]) -> Vec<Vec<String>>,
    ) {
        if wanted.is_empty() {
            return;
        }
        if let Some(present) = self.listed(list()) {
            for arguments in repairs(wanted, &present) {
                self.run(&arguments);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::cabling::ip_lists::tests::ADDRESSES;
    use crate::network::cabling::ip_lists::{held_addresses, words};

    /// Without the interface, what is so cannot be known, and `ip` says what is wrong.
    #[test]
    fn what_cannot_be_listed_is_tried() {
        let (address, prefix) = ("fe80::1".parse().unwrap(), 64);
        let interface = "no-such-if".to_owned();
        assert!(!is_in_effect(&NetworkChange::RemoveAddress { interface, address, prefix }));
    }

    #[test]
    fn what_another_has_undone_meanwhile_is_no_failure() {
        let mut undo = Undo { privilege: Privilege::Root, report: RollBackReport::default() };
        let refused = words("address delete 192.0.2.9/24 dev no-such-if");
        undo.run_unless(&refused, || true);
        assert_eq!(undo.report, RollBackReport::default());
        undo.run_unless(&refused, || false);
        assert_eq!(undo.report.failed.len(), 1);
    }

    #[test]
    fn an_interface_that_others_use_stays_up() {
        let link = "3: eth1    inet6 fe80::1/64 scope link \\       valid_lft forever preferred_lft forever\n";
        let had = held_addresses(&format!("{link}{ADDRESSES}"));
        let wanted = ["192.168.101.2/24", "10.1.1.1", "10.9.9.9/24", "192.168.101.3/24"];
        assert_eq!(had, wanted);
        assert!(!has_others(&had, &had) && !has_others(&had, &[]) && has_others(&[], &had));
        let mut record = Record::new(Privilege::Root);
        let interface = || "eth1".to_owned();
        let mtu = NetworkChange::SetMtu { interface: interface(), mtu: 1500 };
        let down = NetworkChange::SetUp { interface: interface(), up: false };
        let up = NetworkChange::SetUp { interface: interface(), up: true };
        record.inverses = vec![mtu.clone(), down, up.clone()];
        record.forget_boot();
        assert_eq!(record.inverses, [mtu, up], "a boot later it may be the only one");
    }

    #[test]
    fn what_others_add_or_renew_during_a_trial_stays() {
        let listed = |text: &str, now: u64| -> Vec<Address> {
            let line = |one: &str| format!("3: eth1    inet {one}");
            text.lines().map(|one| Address::parse(&line(one), now).unwrap()).collect()
        };
        let leased = "10.1.0.2/24 scope global eth1\\       valid_lft 60sec preferred_lft 60sec";
        let of_trial =
            "10.2.0.2/24 scope global eth1\\       valid_lft forever preferred_lft forever";
        let foreign =
            "10.1.0.99/32 scope global eth1\\       valid_lft forever preferred_lft forever";
        let had = listed(leased, 0);
        let present = listed(&[leased, of_trial, foreign].join("\n"), 50);
        let mut record = Record::new(Privilege::Root);
        record.additions.push(("eth1".into(), [10, 2, 0, 2].into(), 24));
        let wanted = record.wanted_addresses("eth1", &had, &present, 90);
        let words: Vec<&str> = wanted.iter().map(Address::without_prefix).collect();
        assert_eq!(words, ["10.1.0.2", "10.1.0.99"]);
        assert_eq!(wanted[0].expires_at, 110, "the lease was renewed");
        let gone = record.wanted_addresses("eth1", &had, &[], 90);
        assert!(gone.is_empty(), "the lease has run out");
    }

    #[test]
    fn neighbours_that_went_with_an_address_come_back() {
        let change = NetworkChange::RemoveAddress {
            interface: "eth1".into(),
            address: [10, 0, 0, 1].into(),
            prefix: 24,
        };
        let line = |address: &str, interface: &str, last: u8| {
            format!("{address} dev {interface} lladdr 00:11:22:33:44:{last:02} nud permanent")
        };
        let proxy = "proxy 10.0.0.9 dev eth1".to_owned();
        let [one, other, removed, replaced] =
            [9, 10, 11, 12].map(|last| line(&format!("10.0.0.{last}"), "eth1", 1));
        let elsewhere = line("10.0.0.9", "eth2", 1);
        let had = [&one, &other, &removed, &replaced, &elsewhere, &proxy].map(Clone::clone);
        let mut known = Vec::new();
        note_tied_neighbours(&mut known, &[change], &had);
        let lines: Vec<&str> = known.iter().map(|one| &*one.line).collect();
        assert_eq!(lines, [&one, &other, &removed, &replaced, &proxy], "of eth1");
        // All are lost, one is added again with another link address, one is there.
        let present = [line("10.0.0.12", "eth1", 7), other.clone()];
        let wanted = [&*one, &*other, &*replaced, &*proxy];
        let repairs = neighbour_repairs(&wanted, &present).into_iter();
        let repairs: Vec<String> = repairs.map(|line| line.join(" ")).collect();
        assert_eq!(repairs, [format!("neigh replace {one}"), format!("neigh replace {proxy}")]);
    }

    #[test]
    fn nothing_is_restored_without_a_record() {
        let mut record = Record::new(Privilege::Sudo);
        let up = NetworkChange::SetUp { interface: "eth1".into(), up: true };
        assert!(record.note(std::slice::from_ref(&up)).is_ok());
        assert_eq!(record.restore(), RollBackReport::default());
        record.inverses.push(up);
        record.clear();
        assert_eq!((record.privilege, record.inverses.len()), (Privilege::Sudo, 0));
    }
}
