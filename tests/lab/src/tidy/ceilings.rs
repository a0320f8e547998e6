//! Maximum numbers of findings of each crate under the rules on the English of doc comments.

use super::finding::{Known, Rule};

/// The ceilings. Crates without one may have no findings.
pub(super) const CEILINGS: &[Known] = &[
    Known::at_most(Rule::DocOpening, "launcher", &[("", 452)]),
    Known::at_most(Rule::DocOpening, "launcher/console", &[("", 6)]),
    Known::at_most(Rule::DocOpening, "launcher/ssh", &[("", 62)]),
    Known::at_most(Rule::DocOpening, "tests/comm", &[("", 10)]),
    Known::at_most(Rule::DocOpening, "tests/fuzz", &[("", 23)]),
    Known::at_most(Rule::DocOpening, "worker", &[("", 63)]),
    Known::at_most(Rule::DocOpening, "worker/comm", &[("", 249)]),
    Known::at_most(Rule::DocOpening, "worker/comm/bench", &[("", 12)]),
    Known::at_most(Rule::DocOpening, "worker/comm/capi", &[("", 8)]),
    Known::at_most(Rule::DocOpening, "worker/comm/python", &[("", 30)]),
    Known::at_most(Rule::DocOpening, "worker/prover", &[("", 35)]),
    Known::at_most(Rule::DocOpening, "worker/sys", &[("", 2)]),
    Known::at_most(Rule::DocOpening, "worker/verbs", &[("", 59)]),
    Known::at_most(Rule::VagueWord, "launcher", &[("", 170)]),
    Known::at_most(Rule::VagueWord, "launcher/console", &[("", 4)]),
    Known::at_most(Rule::VagueWord, "launcher/ssh", &[("", 34)]),
    Known::at_most(Rule::VagueWord, "tests/comm", &[("", 7)]),
    Known::at_most(Rule::VagueWord, "tests/fuzz", &[("", 4)]),
    Known::at_most(Rule::VagueWord, "worker", &[("", 58)]),
    Known::at_most(Rule::VagueWord, "worker/comm", &[("", 154)]),
    Known::at_most(Rule::VagueWord, "worker/comm/bench", &[("", 5)]),
    Known::at_most(Rule::VagueWord, "worker/comm/capi", &[("", 6)]),
    Known::at_most(Rule::VagueWord, "worker/comm/python", &[("", 6)]),
    Known::at_most(Rule::VagueWord, "worker/lock", &[("", 1)]),
    Known::at_most(Rule::VagueWord, "worker/prover", &[("", 11)]),
    Known::at_most(Rule::VagueWord, "worker/sys", &[("", 3)]),
    Known::at_most(Rule::VagueWord, "worker/verbs", &[("", 23)]),
];
