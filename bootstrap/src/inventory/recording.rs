//! The files that an inventory was read from, to read it again elsewhere.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Something that was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RecordedEntry {
    /// A directory whose names were listed, or that was looked for.
    Directory,
    /// A file's bytes.
    File(#[serde(with = "serde_bytes")] Vec<u8>),
    /// A link to this path of the machine.
    Link(String),
}

/// Entries by their paths, `/sys/class/net/eth0/mtu`. No entry is below a link.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recording(BTreeMap<String, RecordedEntry>);

impl Recording {
    /// Of paths as they were asked for, which may have led through links that were seen as well, and
    /// of the paths that were `listed`, whether or not anything was read there.
    pub fn from_entries(
        seen: &BTreeMap<String, RecordedEntry>,
        listed: &BTreeSet<String>,
    ) -> Recording {
        let resolved = seen.iter().map(|(path, entry)| (resolve(path, seen), entry.clone()));
        let mut entries: BTreeMap<String, RecordedEntry> = resolved.collect();
        for path in listed.iter().map(|path| resolve(path, seen)) {
            let below = format!("{path}/");
            let has_more = entries.range(below.clone()..).next();
            let is_parent = has_more.is_some_and(|(next, _)| next.starts_with(&below));
            if !is_parent {
                entries.entry(path).or_insert_with(|| RecordedEntry::File(Vec::new()));
            }
        }
        Recording(entries)
    }

    /// Paths and what is there, directories before what is in them.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &RecordedEntry)> {
        self.0.iter().map(|(path, entry)| (path.as_str(), entry))
    }
}

/// The path without the links above its last component.
fn resolve(path: &str, seen: &BTreeMap<String, RecordedEntry>) -> String {
    let (mut asked, mut real) = (String::new(), String::new());
    let mut components = path.split('/').filter(|part| !part.is_empty()).peekable();
    while let Some(component) = components.next() {
        asked = format!("{asked}/{component}");
        real = match seen.get(&asked) {
            // It leads to a real path, so one step is enough.
            Some(RecordedEntry::Link(target)) if components.peek().is_some() => target.clone(),
            _ => format!("{real}/{component}"),
        };
    }
    real
}

/// The way from the directory of `path` to `target`, so that a link works wherever the tree is.
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
        let seen = [
            ("/sys/class/net", RecordedEntry::Directory),
            ("/sys/class/net/eth0", RecordedEntry::Link("/sys/devices/pci/eth0".into())),
            ("/sys/class/net/eth0/device", RecordedEntry::Link("/sys/devices/pci".into())),
            ("/sys/class/net/eth0/device/vendor", file("0x1af4")),
            ("/sys/class/net/eth0/mtu", file("1500")),
        ];
        let seen = seen.map(|(path, entry)| (path.to_owned(), entry)).into_iter().collect();
        let listed = ["/sys/class/net/eth0", "/sys/class/net/eth0/lower_x"].map(str::to_owned);
        let recording = Recording::from_entries(&seen, &listed.into_iter().collect());
        let paths: Vec<&str> = recording.entries().map(|(path, _)| path).collect();
        let wanted = [
            "/sys/class/net",
            "/sys/class/net/eth0",
            "/sys/devices/pci/eth0/device",
            "/sys/devices/pci/eth0/lower_x",
            "/sys/devices/pci/eth0/mtu",
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
