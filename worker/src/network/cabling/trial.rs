//! Changes on trial, and the guardian that undoes them if the agent is killed.

use super::host_network::{COMMAND_INTERVAL, COMMAND_TIMEOUT, TOO_LONG};
use super::ip_lists::{Address, change_by_ip, list_addresses, monotonic_seconds};
use super::record::{self, Record};
use crate::console::errln;
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use rlaunch_bootstrap::protocol::control::{FrameReader, encode};
use rlaunch_bootstrap::protocol::network::{
    ChangeFailure, NetworkChange, NetworkReply, Privilege, RollBackReport,
};
use rlaunch_sys::Fork;
use std::io::{self, ErrorKind, PipeReader, PipeWriter, Read, Write};
use std::net::IpAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Changes that were made and not confirmed.
pub(super) struct Changes {
    record: Record,
    /// Pipe to the guardian, which must know before a change is made how it is undone.
    guardian: Option<PipeWriter>,
}

impl Changes {
    pub(super) fn new(privilege: Privilege, guardian: Option<PipeWriter>) -> Changes {
        Changes { record: Record::new(privilege), guardian }
    }

    /// Makes changes in order, up to the first that fails, or until the time at which they are to be undone.
    pub(super) fn apply(
        &mut self,
        changes: &[NetworkChange],
        until: Option<Instant>,
    ) -> Result<(), ChangeFailure> {
        self.record.note(changes)?;
        let made = changes.iter().try_for_each(|change| {
            if until.is_some_and(|until| Instant::now() >= until) {
                let cause = "the time of the trial is over".to_owned();
                return Err(ChangeFailure { line: change.to_string(), cause });
            }
            self.make(change)
        });
        self.record.note_lost();
        // If it is not told, it restores also what others have removed meanwhile.
        let _ = self.tell_guardian();
        made
    }

    fn make(&mut self, change: &NetworkChange) -> Result<(), ChangeFailure> {
        let known = self.record.inverses.len();
        self.record.inverses.extend(inverse(change, &Before::read(change.interface())));
        let untold = |error: io::Error| ChangeFailure {
            line: change.to_string(),
            cause: format!("cannot tell the guardian how it is undone: {error}"),
        };
        self.tell_guardian().map_err(untold)?;
        let neighbours = Neighbours::of(change)?;
        let made = change_by_ip(self.record.privilege, &change.arguments());
        // A driver may still make a change that took too long.
        if made.as_ref().is_err_and(|failure| failure.cause != TOO_LONG) {
            self.record.inverses.truncate(known);
        }
        made?;
        neighbours.map_or(Ok(()), |neighbours| neighbours.restore(self.record.privilege))
    }

    fn tell_guardian(&mut self) -> io::Result<()> {
        let Some(guardian) = &mut self.guardian else { return Ok(()) };
        guardian.write_all(&encode(&self.record).map_err(io::Error::other)?)
    }

    /// Keeps the changes.
    pub(super) fn confirm(&mut self) {
        self.forget();
    }

    /// Undoes all changes that were not confirmed.
    pub(super) fn roll_back(&mut self) -> RollBackReport {
        let report = self.record.restore();
        self.forget();
        report
    }

    fn forget(&mut self) {
        self.record.clear();
        // Only a guardian that is gone cannot be told.
        let _ = self.tell_guardian();
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        self.roll_back();
    }
}

/// Tells whether a change would change nothing.
pub(crate) fn is_in_effect(change: &NetworkChange) -> bool {
    let before = Before::read(change.interface());
    let lists = |address: IpAddr, prefix| {
        let listed = list_addresses(change.interface());
        listed.map(|all| all.iter().any(|one| one.has_address(address, prefix)))
    };
    match change {
        NetworkChange::SetUp { up, .. } => before.is_up == Some(*up),
        NetworkChange::SetMtu { mtu, .. } => before.mtu == Some(*mtu),
        NetworkChange::SetIpoibMode { mode, .. } => before.ipoib_mode.as_ref() == Some(mode),
        NetworkChange::AddAddress { address: address @ IpAddr::V4(_), prefix, .. } => {
            lists(*address, *prefix).unwrap_or(false)
        }
        NetworkChange::RemoveAddress { address: address @ IpAddr::V4(_), prefix, .. } => {
            lists(*address, *prefix).is_ok_and(|is_there| !is_there)
        }
        NetworkChange::AddAddress { .. } | NetworkChange::RemoveAddress { .. } => {
            record::is_in_effect(change)
        }
    }
}

/// Records what a single change by root may cost.
pub(crate) fn note(change: &NetworkChange) -> Result<Record, ChangeFailure> {
    let mut record = Record::new(Privilege::Root);
    record.note(std::slice::from_ref(change))?;
    record.inverses.extend(inverse(change, &Before::read(change.interface())));
    Ok(record)
}

/// Makes a change that is recorded, and records what it has cost.
pub(crate) fn make(change: &NetworkChange, record: &mut Record) -> Result<(), ChangeFailure> {
    let neighbours = Neighbours::of(change)?;
    change_by_ip(record.privilege, &change.arguments())?;
    neighbours.map_or(Ok(()), |neighbours| neighbours.restore(record.privilege))?;
    record.note_lost();
    Ok(())
}

/// Other addresses of an interface that loses one. Without `promote_secondaries`, the kernel removes the other
/// addresses of a network together with its first.
struct Neighbours<'a> {
    interface: &'a str,
    all: Vec<Address>,
}

impl Neighbours<'_> {
    /// Lists the neighbours of the address that a change removes, `None` if it removes no IPv4 address.
    fn of(change: &NetworkChange) -> Result<Option<Neighbours<'_>>, ChangeFailure> {
        let NetworkChange::RemoveAddress { interface, address: address @ IpAddr::V4(_), prefix } =
            change
        else {
            return Ok(None);
        };
        let mut all = list_addresses(interface)?;
        all.retain(|one| !one.has_address(*address, *prefix));
        Ok(Some(Neighbours { interface, all }))
    }

    /// Adds those again that are gone.
    fn restore(&self, privilege: Privilege) -> Result<(), ChangeFailure> {
        let left = list_addresses(self.interface)?;
        let now = monotonic_seconds();
        let mut gone = self.all.iter().filter(|one| !left.contains(one));
        gone.try_for_each(|one| change_by_ip(privilege, &one.addition(self.interface, now)))
    }
}

/// State of an interface before a change; `None` if it cannot be read.
#[derive(Debug, Default)]
struct Before {
    is_up: Option<bool>,
    mtu: Option<u32>,
    ipoib_mode: Option<String>,
}

impl Before {
    fn read(interface: &str) -> Before {
        let text = |file: &str| {
            let text = std::fs::read_to_string(format!("/sys/class/net/{interface}/{file}"));
            text.ok().map(|text| text.trim().to_owned())
        };
        let flags = text("flags");
        let flags = flags.and_then(|text| u32::from_str_radix(text.strip_prefix("0x")?, 16).ok());
        Before {
            is_up: flags.map(|flags| flags & 1 != 0),
            mtu: text("mtu").and_then(|text| text.parse().ok()),
            ipoib_mode: text("mode"),
        }
    }
}

/// Returns the change that undoes another, or `None` if there is nothing to undo, or the record has the addresses
/// before it.
fn inverse(change: &NetworkChange, before: &Before) -> Option<NetworkChange> {
    let interface = change.interface().to_owned();
    match change {
        NetworkChange::SetUp { up, .. } => {
            let was = before.is_up.filter(|was| was != up)?;
            Some(NetworkChange::SetUp { interface, up: was })
        }
        NetworkChange::SetMtu { mtu, .. } => {
            let was = before.mtu.filter(|was| was != mtu)?;
            Some(NetworkChange::SetMtu { interface, mtu: was })
        }
        NetworkChange::SetIpoibMode { mode, .. } => {
            let was = before.ipoib_mode.clone().filter(|was| was != mode)?;
            Some(NetworkChange::SetIpoibMode { interface, mode: was })
        }
        NetworkChange::AddAddress { address: address @ IpAddr::V6(_), prefix, .. } => {
            let (address, prefix) = (*address, *prefix);
            Some(NetworkChange::RemoveAddress { interface, address, prefix })
        }
        NetworkChange::RemoveAddress { address: address @ IpAddr::V6(_), prefix, .. } => {
            let (address, prefix) = (*address, *prefix);
            Some(NetworkChange::AddAddress { interface, address, prefix })
        }
        NetworkChange::AddAddress { .. } | NetworkChange::RemoveAddress { .. } => None,
    }
}

/// Runs `agent` in a child process. This process stays as its guardian: `guard` gets the id of the agent and what the agent
/// writes to it, and undoes what an agent that was killed has left. It keeps stdout open until then, so that the launcher
/// does not take the end of the agent for the end of its changes.
pub(crate) fn guard(
    agent: impl FnOnce(Option<PipeWriter>) -> ExitCode,
    guard: impl FnOnce(Pid, PipeReader) -> ExitCode,
) -> ExitCode {
    let forked = io::pipe().and_then(|(records, writer)| {
        // A program that the agent leaves becomes a child of the guardian.
        prctl::set_child_subreaper(true)?;
        Ok((records, writer, rlaunch_sys::fork()?))
    });
    match forked {
        Ok((records, writer, Fork::Child)) => {
            drop(records);
            // Without its guardian, the agent undoes its changes and ends.
            let _ = prctl::set_pdeathsig(Signal::SIGTERM);
            agent(Some(writer))
        }
        Ok((records, writer, Fork::Parent(pid))) => {
            drop(writer);
            guard(Pid::from_raw(pid), records)
        }
        Err(error) => {
            errln!("rlaunch-worker: cannot guard the agent: {error}");
            agent(None)
        }
    }
}

/// Waits for the end of the agent and undoes what it has left. Returns its exit code.
pub(super) fn undo_after(agent: Pid, records: PipeReader) -> ExitCode {
    let record = last_record(records);
    let status = reap_all(agent, COMMAND_TIMEOUT);
    // The record is empty if the agent has ended in order.
    let report = record.map(|record| record.restore());
    if let Some(WaitStatus::Exited(_, code)) = status {
        return ExitCode::from(u8::try_from(code).unwrap_or(1));
    }
    let frame = report.map(|report| encode(&NetworkReply::RolledBack(report)));
    if let Some(Ok(frame)) = frame {
        // The launcher may be gone as well.
        let mut stdout = io::stdout();
        let _ = stdout.write_all(&frame).and_then(|()| stdout.flush());
    }
    ExitCode::FAILURE
}

/// Reads records until the agent's end of the pipe is closed. Returns the last that is complete.
fn last_record(mut records: impl Read) -> Option<Record> {
    let (mut frames, mut last) = (FrameReader::default(), None);
    let mut buffer = vec![0; 64 << 10];
    loop {
        match records.read(&mut buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Ok(0) | Err(_) => return last,
            Ok(length) => frames.push(&buffer[..length]),
        }
        while let Ok(Some(record)) = frames.next_frame() {
            last = Some(record);
        }
    }
}

/// Waits until the agent and every program that it has left have ended, at most for `limit`, so that no change comes after
/// its undoing. Returns how the agent ended.
pub(crate) fn reap_all(agent: Pid, limit: Duration) -> Option<WaitStatus> {
    let deadline = Instant::now() + limit;
    let mut ended = None;
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) if Instant::now() < deadline => {
                std::thread::sleep(COMMAND_INTERVAL);
            }
            Ok(WaitStatus::StillAlive) | Err(_) => return ended,
            Ok(status) if status.pid() == Some(agent) => ended = Some(status),
            Ok(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set_up(up: bool) -> NetworkChange {
        NetworkChange::SetUp { interface: "eth1".into(), up }
    }

    #[test]
    fn inverses_restore_what_was() {
        let before =
            Before { is_up: Some(false), mtu: Some(1500), ipoib_mode: Some("connected".into()) };
        let interface = || "eth1".to_owned();
        assert_eq!(inverse(&set_up(true), &before), Some(set_up(false)));
        assert_eq!(inverse(&set_up(false), &before), None);
        let mtu = |mtu| NetworkChange::SetMtu { interface: interface(), mtu };
        assert_eq!(inverse(&mtu(9000), &before), Some(mtu(1500)));
        assert_eq!(inverse(&mtu(1500), &before), None);
        let mode =
            |mode: &str| NetworkChange::SetIpoibMode { interface: interface(), mode: mode.into() };
        assert_eq!(inverse(&mode("datagram"), &before), Some(mode("connected")));
        let change = |address: &str| {
            let (address, prefix) = (address.parse().unwrap(), 64);
            let add = NetworkChange::AddAddress { interface: interface(), address, prefix };
            (add, NetworkChange::RemoveAddress { interface: interface(), address, prefix })
        };
        let (add, remove) = change("fe80::1");
        assert_eq!(inverse(&add, &before), Some(remove.clone()));
        assert_eq!(inverse(&remove, &before), Some(add));
        let (add, remove) = change("192.168.101.2");
        assert_eq!((inverse(&add, &before), inverse(&remove, &before)), (None, None));
    }

    #[test]
    fn a_change_that_fails_says_why() {
        let change = NetworkChange::SetUp { interface: "no-such-if".into(), up: true };
        let mut changes = Changes::new(Privilege::Root, None);
        let failure = changes.apply(std::slice::from_ref(&change), None).unwrap_err();
        assert_eq!(failure.line, "ip link set dev no-such-if up");
        assert!(!failure.cause.is_empty(), "{failure:?}");
        // Changes that take long are not made when they are to be undone.
        let late = changes.apply(&[change], Some(Instant::now())).unwrap_err();
        assert_eq!(late.cause, "the time of the trial is over");
        assert_eq!(changes.roll_back(), RollBackReport::default());
    }

    /// An address that could not be recorded is not touched.
    #[test]
    fn what_cannot_be_recorded_is_not_changed() {
        let (address, prefix) = ("192.168.101.2".parse().unwrap(), 24);
        let change =
            NetworkChange::RemoveAddress { interface: "no-such-if".into(), address, prefix };
        let mut changes = Changes::new(Privilege::Root, None);
        let failure = changes.apply(&[change], None).unwrap_err();
        assert_eq!(failure.line, "ip -o -4 address show dev no-such-if");
    }

    #[test]
    fn a_guardian_knows_a_change_before_it_is_made() {
        let (reader, writer) = io::pipe().unwrap();
        let mut changes = Changes::new(Privilege::Root, Some(writer));
        changes.record.inverses.push(set_up(false));
        changes.tell_guardian().unwrap();
        // It is killed while it writes the next record.
        let mut writer = changes.guardian.take().unwrap();
        writer.write_all(&[9, 0, 0]).unwrap();
        drop(writer);
        changes.record.clear();
        let record = last_record(reader).unwrap();
        assert_eq!(record.inverses, [set_up(false)], "the last one that is complete");
    }

    #[test]
    fn a_guardian_has_nothing_to_undo_after_the_end_of_a_trial() {
        let (reader, writer) = io::pipe().unwrap();
        let mut changes = Changes::new(Privilege::Root, Some(writer));
        changes.record.inverses.push(set_up(false));
        changes.tell_guardian().unwrap();
        changes.confirm();
        drop(changes);
        assert!(last_record(reader).unwrap().inverses.is_empty());
        assert!(last_record(io::empty()).is_none(), "there was no trial");
    }
}
