//! Copies of the files that an inventory was read from, so that the inventory can be read again on
//! another machine.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// File, directory or symbolic link that the inventory was read from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RecordedEntry {
    /// Directory whose entries were listed or whose existence was checked.
    Directory,
    /// Content of a regular file.
    File(#[serde(with = "serde_bytes")] Vec<u8>),
    /// Absolute path that a symbolic link points to.
    Link(String),
}

/// Recorded entries by their absolute paths, such as `/sys/class/net/eth0/mtu`. No path leads
/// through a symbolic link.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recording(BTreeMap<String, RecordedEntry>);

impl Recording {
    /// Makes a recording of `entries`, whose paths may lead through symbolic links if the links are
    /// entries too. Paths in `listed` were seen in a directory but not read; they become empty
    /// files.
    pub fn from_entries(
        entries: &BTreeMap<String, RecordedEntry>,
        listed: &BTreeSet<String>,
    ) -> Recording {
        let resolved = entries.iter().map(|(path, entry)| (resolve(path, entries), entry.clone()));
        let mut recorded: BTreeMap<String, RecordedEntry> = resolved.collect();
        for path in listed.iter().map(|path| resolve(path, entries)) {
            let below = format!("{path}/");
            let has_more = recorded.range(below.clone()..).next();
            let is_parent = has_more.is_some_and(|(next, _)| next.starts_with(&below));
            if !is_parent {
                recorded.entry(path).or_insert_with(|| RecordedEntry::File(Vec::new()));
            }
        }
        Recording(recorded)
    }

    /// Returns the recorded paths and entries. A directory comes before its contents.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &RecordedEntry)> {
        self.0.iter().map(|(path, entry)| (path.as_str(), entry))
    }
}

/// Resolves the symbolic links in a path, except in its last component.
fn resolve(path: &str, entries: &BTreeMap<String, RecordedEntry>) -> String {
    let (mut prefix, mut real) = (String::new(), String::new());
    let mut components = path.split('/').filter(|part| !part.is_empty()).peekable();
    while let Some(component) = components.next() {
        prefix = format!("{prefix}/{component}");
        real = match entries.get(&prefix) {
            // The target of a link contains no links itself, so one step is enough.
            Some(RecordedEntry::Link(target)) if components.peek().is_some() => target.clone(),
            _ => format!("{real}/{component}"),
        };
    }
    real
}

/// Converts the absolute path `target` into a path relative to the directory of `path`, so that a
/// link works wherever the recorded tree is copied to.
pub fn relative(path: &str, target: &str) -> String {
    let depth = path.split('/').filter(|part| !part.is_empty()).count().saturating_sub(1);
    format!("{}{}", "../".repeat(depth), target.trim_start_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_below_a_link() {
        let file = |text: &str| RecordedEntry::File(text.into());
        let entries = [
            ("/sys/class/net", RecordedEntry::Directory),
            ("/sys/class/net/eth0", RecordedEntry::Link("/sys/devices/pci/eth0".into())),
            ("/sys/class/net/eth0/device", RecordedEntry::Link("/sys/devices/pci".into())),
            ("/sys/class/net/eth0/device/vendor", file("0x1af4")),
            ("/sys/class/net/eth0/mtu", file("1500")),
        ];
        let entries = entries.map(|(path, entry)| (path.to_owned(), entry)).into_iter().collect();
        let listed = ["/sys/class/net/eth0", "/sys/class/net/eth0/lower_x"].map(str::to_owned);
        let recording = Recording::from_entries(&entries, &listed.into_iter().collect());
        let paths: Vec<&str> = recording.entries().map(|(path, _)| path).collect();
        let wanted = [
            "/sys/class/net", "/sys/class/net/eth0", "/sys/devices/pci/eth0/device",
            "/sys/devices/pci/eth0/lower_x", "/sys/devices/pci/eth0/mtu",
            "/sys/devices/pci/vendor",
        ];
        assert_eq!(paths, wanted);
    }

    #[test]
    fn links_are_relative() {
        let way = relative("/sys/class/net/eth0", "/sys/devices/pci/eth0");
        assert_eq!(way, "../../../sys/devices/pci/eth0");
        assert_eq!(relative("/a", "/b/c"), "b/c");
    }
}
