//! Labs of the tests that nextest runs on hosts and guests: one for each slot of a test group, with
//! which `.config/nextest.toml` also says how many there are.

use std::env;
use std::fs;
use std::path::PathBuf;

use super::ledger::{FLAKY_LIMIT, Tally};
use super::nextest::{Outcome, Tests};
use super::report;
use crate::command::at_once;
use crate::dist::{self, Profile};
use crate::vm::{self, Topology, VmLab, VmOptions};
use crate::{Lab, LabError, Options, files};

/// Settings of nextest, from the workspace.
const SETTINGS: &str = ".config/nextest.toml";
/// Number of hosts of a lab, and of guests.
const HOSTS: usize = 8;
const GUESTS: usize = 3;

/// Test group of nextest, each slot of which has a lab.
#[derive(Debug)]
struct Group {
    name: &'static str,
    /// Second octet of the addresses in the first lab of hosts; none for guests, with a cable for each
    /// pair.
    net: Option<u8>,
}

const GROUPS: [Group; 4] = [
    Group { name: "computing", net: Some(100) },
    Group { name: "waiting", net: Some(110) },
    Group { name: "shared", net: Some(120) },
    Group { name: "triangles", net: None },
];

/// Slot of a test group.
#[derive(Debug, Clone, Copy)]
struct Slot {
    group: &'static Group,
    number: u8,
}

impl Slot {
    /// Returns the slot that nextest has given to this process.
    fn own() -> Option<Slot> {
        let group = env::var("NEXTEST_TEST_GROUP").ok()?;
        let number = env::var("NEXTEST_TEST_GROUP_SLOT").ok()?.parse().ok()?;
        let group = GROUPS.iter().find(|known| known.name == group)?;
        Some(Slot { group, number })
    }

    /// Returns the name of its lab.
    fn lab(self) -> String {
        format!("{}{}", self.group.name, self.number)
    }

    /// Makes its lab with fresh machines.
    fn up(self) -> Result<(), LabError> {
        self.down()?;
        let share = dist::directory(Profile::Lab)?;
        match self.group.net {
            Some(net) => {
                let net = [10, net + self.number];
                let lab = Lab::up(&Options { net, ..Options::new(&self.lab(), HOSTS) })?;
                lab.install(&share).map(drop)
            }
            None => {
                let new = VmOptions::new(&self.lab(), GUESTS, Topology::Triangle);
                let options = VmOptions { share: Some(share), is_share_fixed: true, ..new };
                VmLab::up(&options).map(drop)
            }
        }
    }

    /// Removes its lab, also one that an interrupted run left behind in any state.
    fn down(self) -> Result<(), LabError> {
        match self.group.net {
            Some(_) => Lab::down(&self.lab()).map(drop),
            None => VmLab::down(&self.lab()).map(drop),
        }
    }
}

/// Lists the slots of the groups, by the number of slots that nextest gives to each.
fn slots(
    mut wanted: impl FnMut(&Group, usize) -> Result<usize, LabError>,
) -> Result<Vec<Slot>, LabError> {
    let text = files::read(&dist::workspace().join(SETTINGS))?;
    let settings: toml::Table = toml::from_str(&text)
        .map_err(|error| LabError::Unexpected(format!("{SETTINGS}: {error}")))?;
    let mut slots = Vec::new();
    for group in &GROUPS {
        let named = settings.get("test-groups").and_then(|groups| groups.get(group.name));
        let size = named.and_then(|group| group.get("max-threads")?.as_integer());
        let size = size.and_then(|size| usize::try_from(size).ok()).unwrap_or_default();
        let numbers = 0..u8::try_from(wanted(group, size)?).unwrap_or(u8::MAX);
        slots.extend(numbers.map(|number| Slot { group, number }));
    }
    Ok(slots)
}

/// Labs of some tests. They go when this is dropped.
pub(super) struct Labs(Vec<Slot>);

impl Labs {
    /// Makes as many labs as tests can use at once. Of guests only the first are started: others cost
    /// minutes of processor time, and wait for their first test.
    pub(super) fn up(tests: &Tests) -> Result<Labs, LabError> {
        let labs = Labs(slots(|group, size| {
            let count = tests.and(&format!("group(={})", group.name)).names()?.len();
            Ok(count.min(size))
        })?);
        // Labs that an interrupted run left behind would be taken for labs of this one.
        labs.0.iter().try_for_each(|slot| slot.down())?;
        let is_first = |slot: &&Slot| slot.group.net.is_some() || slot.number == 0;
        if labs.0.iter().any(|slot| slot.group.net.is_none()) {
            // Built once, before two labs need it.
            vm::build()?;
        }
        at_once(labs.0.iter().filter(is_first), |slot| slot.up())?;
        Ok(labs)
    }
}

impl Drop for Labs {
    fn drop(&mut self) {
        for slot in &self.0 {
            if let Err(error) = slot.down() {
                report("taking a lab down", &error);
            }
        }
    }
}

/// Runs tests on labs of their own. If the machine stalls for a moment, one test in a thousand fails
/// without a reason, so those that fail are run again, each alone on fresh machines; but not if more
/// failed than bad luck can explain.
pub(super) fn run(tests: &Tests) -> Result<Tally, LabError> {
    let once = |tests: &Tests| {
        let _labs = Labs::up(tests)?;
        tests.run(1)
    };
    second_look(&once(tests)?, |test| once(&tests.and(&format!("test(={test})"))))
}

fn second_look(
    first: &Outcome,
    mut again: impl FnMut(&str) -> Result<Outcome, LabError>,
) -> Result<Tally, LabError> {
    let mut tally = first.tally();
    match first.failed().count() {
        0..FLAKY_LIMIT => {}
        many => {
            println!("no second attempt: {many} tests failed");
            return Ok(tally);
        }
    }
    for (test, log) in first.failed() {
        // The second attempt replaces the output of the first.
        let kept = log.with_extension("first.log");
        fs::rename(log, &kept).map_err(LabError::io(format!("keep {}", log.display())))?;
        println!("\nsecond attempt, alone on fresh machines: {test}");
        let second = again(test)?.tally();
        if (second.passed, second.failed) == (1, 0) {
            tally.passed_on_retry(test.to_owned(), kept);
        }
    }
    Ok(tally)
}

/// Environment of a test in stage netns.
#[derive(Debug)]
pub struct UnderTest {
    /// Lab with hosts a to h.
    pub lab: Lab,
    /// Path of the launcher, which both accounts of the launch node can execute.
    pub rlaunch: PathBuf,
}

impl UnderTest {
    /// Returns the lab that `cargo lab test` made for this test.
    pub fn from_env() -> Result<UnderTest, LabError> {
        let lab = Lab::attach(&Slot::own().ok_or_else(not_set)?.lab())?;
        let rlaunch = lab.installed().join("rlaunch");
        Ok(UnderTest { lab, rlaunch })
    }
}

/// Environment of a test in stage vm.
#[derive(Debug)]
pub struct VmUnderTest {
    /// Lab with guests n1 to n3.
    pub lab: VmLab,
    /// Directory of this machine that n1 sees as `/share`, with the launcher and what jobs send.
    pub share: PathBuf,
}

impl VmUnderTest {
    /// Returns the guests that `cargo lab test` made for this test, or starts them.
    pub fn from_env() -> Result<VmUnderTest, LabError> {
        let slot = Slot::own().ok_or_else(not_set)?;
        if let Err(LabError::NoGuests { .. }) = VmLab::find(&slot.lab()) {
            slot.up()?;
        }
        let lab = VmLab::find(&slot.lab())?;
        let share =
            lab.share().ok_or_else(|| LabError::Unexpected("a lab without a share".into()))?;
        Ok(VmUnderTest { share: share.into(), lab })
    }
}

fn not_set() -> LabError {
    LabError::Usage(
        "tests on hosts and guests are run by `cargo lab test`, which makes these".into(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stages::nextest::TestResult;

    /// Looks again at failed tests, of which those that begin with `u` pass.
    fn looked_at(failed: &[&str]) -> (Tally, Vec<String>) {
        let folder = tempfile::tempdir().unwrap();
        let mut first = Outcome::default();
        first.tests.push(TestResult::new("sound", None));
        for test in failed {
            let log = folder.path().join(format!("{test}.log"));
            fs::write(&log, "").unwrap();
            first.tests.push(TestResult::new(test, Some(log)));
        }
        let mut asked = Vec::new();
        let tally = second_look(&first, |test| {
            asked.push(test.to_owned());
            let log = Some("second.log".into()).filter(|_| !test.starts_with('u'));
            Ok(Outcome { tests: vec![TestResult::new(test, log)], ..Outcome::default() })
        });
        (tally.unwrap(), asked)
    }

    #[test]
    fn test_that_fails_twice_has_failed() {
        let (tally, asked) = looked_at(&["unlucky", "wrong"]);
        assert_eq!(asked, ["unlucky", "wrong"]);
        assert_eq!((tally.passed, tally.failed), (2, 1));
        assert_eq!(tally.flaky[0].0, "unlucky");
        assert!(tally.flaky[0].1.ends_with("unlucky.first.log"));
    }

    #[test]
    fn many_failures_are_no_bad_luck() {
        let (tally, asked) = looked_at(&["u1", "u2", "u3"]);
        assert!(asked.is_empty());
        assert_eq!((tally.passed, tally.failed), (1, 3));
    }

    #[test]
    fn every_group_has_labs_with_names_and_addresses_of_their_own() {
        let slots = slots(|_, size| Ok(size)).unwrap();
        assert!(GROUPS.iter().all(|group| slots.iter().any(|slot| slot.group.name == group.name)));
        for slot in slots {
            crate::names::check_lab_name(&slot.lab()).unwrap();
            assert!(slot.number < 10, "addresses of two groups would meet");
        }
    }
}
