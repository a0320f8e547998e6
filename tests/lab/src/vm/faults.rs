//! Faults of guests' links, made on purpose.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::topology::{guest_name, guest_number, interface_number};
use super::{VmLab, guest, network};
use crate::command::wait_until;
use crate::{Cut, LabError};

/// Time limit for a guest to notice that its cable was pulled or plugged.
const NOTICED: Duration = Duration::from_secs(60);

impl VmLab {
    /// Cuts the cable of an interface, at both ends if the other end is a guest as well. Guests
    /// that can see the cut have seen it when this returns.
    pub fn cut(&self, guest: &str, interface: &str, kind: Cut) -> Result<(), LabError> {
        let (number, index) = self.interface(guest, interface)?;
        match kind {
            Cut::Silent => network::set_tap(&self.paths, number, index, "down"),
            Cut::Carrier => self.set_cable(number, index, false),
        }
    }

    /// Restores a cable, however it was cut. The guests have their carrier when this returns.
    pub fn heal(&self, guest: &str, interface: &str) -> Result<(), LabError> {
        let (number, index) = self.interface(guest, interface)?;
        network::set_tap(&self.paths, number, index, "up")?;
        self.set_cable(number, index, true)
    }

    /// Plugs or unplugs both ends of a cable.
    fn set_cable(&self, number: usize, index: usize, up: bool) -> Result<(), LabError> {
        let ends = self.record.topology.ends(number, index);
        for &(number, index) in &ends {
            let dir = self.paths.guest(&guest_name(number));
            set_link(&guest::monitor(&dir), index, up)?;
        }
        // A guest that has lost eth0 cannot be reached by ssh.
        let mut asked = ends.iter().filter(|(_, index)| up || *index > 0);
        asked.try_for_each(|(number, index)| {
            let carrier = if up { "1" } else { "0" };
            self.await_carrier(&guest_name(*number), &format!("eth{index}"), carrier)
        })
    }

    /// Drops, delays or corrupts what an interface sends, in the words of `tc`: `["loss", "10%"]`.
    /// Without words it removes such a fault.
    pub fn netem(&self, guest: &str, interface: &str, words: &[&str]) -> Result<(), LabError> {
        self.interface(guest, interface)?;
        let verb: &[&str] = if words.is_empty() { &["del"] } else { &["replace"] };
        let mut line = [&["tc", "qdisc"], verb, &["dev", interface, "root"]].concat();
        if !words.is_empty() {
            line.push("netem");
            line.extend(words);
        }
        self.checked(guest, &line).map(drop)
    }

    /// Sets the MTU of an interface, in bytes.
    pub fn set_mtu(&self, guest: &str, interface: &str, mtu: u32) -> Result<(), LabError> {
        self.fabric_interface(guest, interface)?;
        let mtu = mtu.to_string();
        self.checked(guest, &["ip", "link", "set", interface, "mtu", &mtu]).map(drop)
    }

    /// Takes an interface down or up inside the guest, as its administrator would.
    pub fn set_port(&self, guest: &str, interface: &str, up: bool) -> Result<(), LabError> {
        self.fabric_interface(guest, interface)?;
        let state = if up { "up" } else { "down" };
        self.checked(guest, &["ip", "link", "set", interface, state])?;
        if up { self.await_carrier(guest, interface, "1") } else { Ok(()) }
    }

    /// Waits until the guest's kernel reports the wanted carrier state. An interface that is down
    /// has no carrier state.
    fn await_carrier(&self, guest: &str, interface: &str, wanted: &str) -> Result<(), LabError> {
        let file = format!("/sys/class/net/{interface}/carrier");
        let what = format!("{guest} to notice the cable of {interface}");
        wait_until(NOTICED, &what, || {
            // Right after eth0 was restored the guest may not answer yet.
            let Ok(output) = self.run(guest, &["cat", &file]) else { return Ok(false) };
            Ok(String::from_utf8_lossy(&output.stdout).trim() == wanted)
        })
    }

    /// Returns the numbers of a guest and of one of its interfaces.
    fn interface(&self, guest: &str, interface: &str) -> Result<(usize, usize), LabError> {
        self.check(guest)?;
        let number = guest_number(guest).unwrap_or_default();
        let count = self.record.topology.cables(number).len();
        match interface_number(interface).filter(|&index| index < count) {
            Some(index) => Ok((number, index)),
            None => Err(LabError::Usage(format!(
                "guest {guest} has no interface `{interface}`, but eth0 to eth{}",
                count.saturating_sub(1)
            ))),
        }
    }

    /// Returns the numbers of a guest and of one of its fabric interfaces. Rejects eth0, over which
    /// the guest is controlled.
    fn fabric_interface(&self, guest: &str, interface: &str) -> Result<(), LabError> {
        match self.interface(guest, interface)? {
            (_, 0) => Err(LabError::Usage(
                "the guest is controlled over eth0; `cut` works from outside".into(),
            )),
            _ => Ok(()),
        }
    }
}

/// Time limit of an answer.
const ANSWER: Duration = Duration::from_secs(60);

/// Plugs or unplugs the cable of a network card, as its guest sees it, by a command to its QEMU (QMP): one line of JSON in
/// each direction.
fn set_link(monitor: &Path, interface: usize, up: bool) -> Result<(), LabError> {
    let command = json!({
        "execute": "set_link",
        "arguments": { "name": format!("net{interface}"), "up": up },
    });
    let operation = format!("set the link of eth{interface} by {}", monitor.display());
    let io = || LabError::io(operation.clone());
    let stream = UnixStream::connect(monitor).map_err(io())?;
    stream.set_read_timeout(Some(ANSWER)).map_err(io())?;
    let mut writer = stream.try_clone().map_err(io())?;
    let mut lines = BufReader::new(stream).lines();
    for command in [json!({ "execute": "qmp_capabilities" }), command] {
        writer.write_all(format!("{command}\n").as_bytes()).map_err(io())?;
        // QEMU also sends a greeting and events.
        let answer = loop {
            let line =
                lines.next().unwrap_or_else(|| Err(std::io::ErrorKind::UnexpectedEof.into()));
            if let Some(answer) = answer(&line.map_err(io())?) {
                break answer;
            }
        };
        answer.map_err(|why| LabError::Unexpected(format!("could not {operation}: {why}")))?;
    }
    Ok(())
}

/// Parses the answer to the last command. Returns nothing if the line is not an answer.
fn answer(line: &str) -> Option<Result<(), String>> {
    let line: Value = serde_json::from_str(line).ok()?;
    match (line.get("return"), line.get("error")) {
        (Some(_), _) => Some(Ok(())),
        (_, Some(error)) => Some(Err(error["desc"].as_str().unwrap_or("QEMU refused").into())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_told_from_events() {
        assert_eq!(answer(r#"{"QMP": {"version": {}, "capabilities": []}}"#), None);
        assert_eq!(answer(r#"{"event": "NIC_RX_FILTER_CHANGED", "data": {}}"#), None);
        assert_eq!(answer(r#"{"return": {}}"#), Some(Ok(())));
        let line = r#"{"error": {"class": "DeviceNotFound", "desc": "Device 'net9' not found"}}"#;
        assert_eq!(answer(line), Some(Err("Device 'net9' not found".into())));
        assert_eq!(answer("no JSON"), None);
    }
}
