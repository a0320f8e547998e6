//! Versions of dependencies, compared with those in which their last known vulnerability was fixed.
//! This needs neither a database nor network, only a table that is maintained by hand.

use semver::Version;
use serde::Deserialize;

use super::ledger::Tally;
use crate::{LabError, dist, files};

const TABLE: &str = ".advisories.toml";
const LOCK: &str = "Cargo.lock";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    #[serde(rename = "crate")]
    crates: Vec<Watched>,
}

/// Dependency whose vulnerabilities would affect rlaunch.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Watched {
    name: String,
    /// Oldest version without a known vulnerability.
    since: Version,
    why: String,
    #[serde(rename = "mended")]
    _mended: Vec<String>,
    /// Vulnerability that no version fixes, and why it does not matter here.
    open: Option<String>,
}

#[derive(Deserialize)]
struct Lock {
    package: Vec<Locked>,
}

#[derive(Deserialize)]
struct Locked {
    name: String,
    version: Version,
}

/// Reads the table and the lock file, and prints what is wrong.
pub(super) fn check() -> Result<Tally, LabError> {
    let read = |name: &str| files::read(&dist::workspace().join(name));
    let (faults, open) = inspect(&read(TABLE)?, &read(LOCK)?);
    for line in faults.iter().chain(&open) {
        println!("{TABLE}: {line}");
    }
    if faults.is_empty() {
        println!("{TABLE}: every crate has its last fix; {} known to be open", open.len());
    }
    Ok(Tally::check(faults.is_empty()))
}

/// Returns what is to be said about the versions in a lock file, one sentence each: reasons to fail, and
/// vulnerabilities that were looked at and that no version fixes.
fn inspect(table: &str, lock: &str) -> (Vec<String>, Vec<String>) {
    let unread = |fault: String| (vec![fault], Vec::new());
    let table: Table = match toml::from_str(table) {
        Ok(table) => table,
        Err(error) => return unread(error.to_string()),
    };
    let lock: Lock = match toml::from_str(lock) {
        Ok(lock) => lock,
        Err(error) => return unread(format!("{LOCK}: {error}")),
    };
    let (mut faults, mut open) = (Vec::new(), Vec::new());
    for Watched { name, since, why, open: known, .. } in &table.crates {
        open.extend(known.iter().map(|known| format!("{name}: open: {known}")));
        let versions = lock.package.iter().filter(|locked| locked.name == *name);
        let versions: Vec<&Version> = versions.map(|locked| &locked.version).collect();
        if versions.is_empty() {
            faults.push(format!("{name} ({why}) is not in {LOCK}: watch its replacement, or remove it from the table"));
        }
        let old = versions.into_iter().filter(|version| *version < since);
        faults.extend(old.map(|old| {
            format!("{name} {old} ({why}) has a known vulnerability, fixed in {since}")
        }));
    }
    (faults, open)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: &str = "version = 4\n[[package]]\nname = \"a\"\nversion = \"1.2.3\"\n\
        [[package]]\nname = \"b\"\nversion = \"0.9.12+spec-1.1.0\"\n\
        [[package]]\nname = \"b\"\nversion = \"1.0.0-rc.2\"\n";

    fn row(name: &str, since: &str) -> String {
        format!("[[crate]]\nname = \"{name}\"\nsince = \"{since}\"\nwhy = \"x\"\nmended = []\n")
    }

    #[test]
    fn an_old_version_and_a_crate_that_is_gone_are_said() {
        let faults = |table: &str| inspect(table, LOCK).0;
        let sound = row("a", "1.2.3") + &row("b", "0.9.12");
        assert_eq!(faults(&sound), [""; 0]);
        let old = "b 0.9.12+spec-1.1.0 (x) has a known vulnerability, fixed in 1.0.0-rc.1";
        assert_eq!(faults(&row("b", "1.0.0-rc.1")), [old]);
        let gone = "c (x) is not in Cargo.lock: watch its replacement, or remove it from the table";
        assert_eq!(faults(&row("c", "1.0.0")), [gone]);
        assert_eq!(faults("[[crate]]\nnom = \"a\"\n").len(), 1, "an unknown word");
    }

    #[test]
    fn what_no_version_fixes_is_said_and_fails_nothing() {
        let open = row("a", "1.0.0") + "open = \"X-1: not used\"\n";
        let (faults, open) = inspect(&open, LOCK);
        assert_eq!((faults.len(), open), (0, vec!["a: open: X-1: not used".to_owned()]));
    }
}
