//! Tests that end otherwise under rlaunch than under the launcher of the MPI library, and those that
//! are left out.

use std::collections::{BTreeMap, BTreeSet};

use super::TestEnds;
use super::record::TestEnd;

/// Tests, and the reason why they are not compared, or may be different under rlaunch.
struct KnownDifference {
    /// Library; empty for all.
    library: &'static str,
    /// Beginning of the tests' names; a pattern for those that are left out.
    tests: &'static str,
    reason: &'static str,
}

const fn known(
    library: &'static str,
    tests: &'static str,
    reason: &'static str,
) -> KnownDifference {
    KnownDifference { library, tests, reason }
}

impl KnownDifference {
    fn concerns(&self, library: &str) -> bool {
        [library, ""].contains(&self.library)
    }
}

/// Tests that are left out under every launcher, since they hang or crash under that of the library.
const LEFT_OUT: [KnownDifference; 2] = [
    known(
        "mpich",
        "test_comm_topo.TestTopoWorld*.testDistgraphcomm",
        "MPI_Dist_graph_create of MPICH 5.0 does not end",
    ),
    known("open-mpi-4", "test_spawn.*", "MPI_Comm_spawn under mpirun 4.1 does not end here"),
];

/// Tests that rlaunch cannot serve.
const DIFFERENT: [KnownDifference; 2] = [
    known("", "test_spawn.", "rlaunch starts no processes for MPI_Comm_spawn"),
    known("", "test_dynproc.", "rlaunch publishes no names of ports"),
];

/// Lists the patterns of tests that are left out with a library.
pub(super) fn left_out(library: &str) -> impl Iterator<Item = String> {
    let concerned = LEFT_OUT.iter().filter(move |known| known.concerns(library));
    concerned.map(|known| known.tests.to_owned())
}

/// Test that ended otherwise under rlaunch.
#[derive(Debug, PartialEq)]
struct Difference<'a> {
    test: &'a str,
    /// End under rlaunch; none if the test did not run.
    own: Option<TestEnd>,
    /// End under the launcher of the library; none if the test did not run.
    peer: Option<TestEnd>,
}

impl Difference<'_> {
    /// Returns the reason why rlaunch may be different here. It must not hang or crash, whatever is
    /// asked of it.
    fn reason(&self, library: &str) -> Option<&'static str> {
        let is_clean = |outcome: Option<TestEnd>| outcome.is_some_and(|o| o < TestEnd::Crashed);
        let is_known = |known: &&KnownDifference| {
            known.concerns(library) && self.test.starts_with(known.tests)
        };
        let known = DIFFERENT.iter().find(is_known)?;
        is_clean(self.own).then_some(known.reason)
    }

    fn describe(&self, library: &str) -> String {
        let name = |end: Option<TestEnd>| end.map_or("did not run".into(), |end| end.to_string());
        let reason = self.reason(library).unwrap_or("NO KNOWN REASON");
        let (own, peer) = (name(self.own), name(self.peer));
        format!("{own} under rlaunch, {peer} under its own launcher: {reason}")
    }
}

fn find<'a>(own: &'a TestEnds, peer: &'a TestEnds) -> Vec<Difference<'a>> {
    let tests: BTreeSet<&String> = own.keys().chain(peer.keys()).collect();
    let pairs = tests.into_iter().map(|test| Difference {
        test,
        own: own.get(test).copied(),
        peer: peer.get(test).copied(),
    });
    pairs.filter(|pair| pair.own != pair.peer).collect()
}

/// Prints the differences with a library, those with the same reason together; returns whether all
/// of them have a reason.
pub(super) fn print(library: &str, own: &TestEnds, peer: &TestEnds) -> bool {
    let differences = find(own, peer);
    let same = own.len() - differences.iter().filter(|pair| pair.own.is_some()).count();
    println!("{library}: {same} tests ended in the same way, {} did not", differences.len());
    let mut groups: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for pair in &differences {
        groups.entry(pair.describe(library)).or_default().push(pair.test);
    }
    for (what, tests) in groups {
        println!("  {what}\n    {}", tests.join("\n    "));
    }
    for (test, end) in own.iter().filter(|(_, end)| **end > TestEnd::Skipped) {
        if peer.get(test) == Some(end) {
            println!("  {test}: {end} under both");
        }
    }
    for known in LEFT_OUT.iter().filter(|known| known.concerns(library)) {
        println!("  {}: left out: {}", known.tests, known.reason);
    }
    differences.iter().all(|pair| pair.reason(library).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_difference_must_end() {
        let peer = TestEnds::from([("test_spawn.A.a".to_owned(), TestEnd::Passed)]);
        assert!(find(&peer, &peer).is_empty());
        for (end, is_known) in [(TestEnd::Raised, true), (TestEnd::Hung, false)] {
            let own = TestEnds::from([("test_spawn.A.a".to_owned(), end)]);
            assert_eq!(find(&own, &peer)[0].reason("mpich").is_some(), is_known);
        }
    }
}
