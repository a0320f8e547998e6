//! `--against DIR` of benches: this build of rlaunch beside an earlier one, in turn on the same
//! hosts in one run, so that disturbances of the machine affect both.

mod earlier;
mod row;

use std::fs;
use std::path::{Path, PathBuf};

use super::interval;
use super::testbed::{Testbed, bench_lab};
use crate::dist::{self, Profile};
use crate::setup::{self, PackageSet};
use crate::{Lab, LabError};
pub use earlier::EarlierBuild;
pub(super) use row::{ComparisonRow, print};

/// Recommended number of rounds. With fewer, a 90 % interval spans nearly all measured values.
const USUAL_ROUNDS: usize = 15;

/// Builds that are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Build {
    This,
    Earlier,
}

impl Build {
    pub(super) const ALL: [Build; 2] = [Build::This, Build::Earlier];

    pub(super) fn name(self) -> &'static str {
        match self {
            Build::This => "this build",
            Build::Earlier => "earlier",
        }
    }
}

/// Launchers of both builds, each in its distribution.
pub(super) struct Builds {
    pub(super) this: PathBuf,
    pub(super) earlier: PathBuf,
}

impl Builds {
    /// Builds this checkout. First warns if there are too few rounds to compare it with the earlier
    /// build.
    pub(super) fn make(earlier: &EarlierBuild, rounds: usize) -> Result<Builds, LabError> {
        if let Some(warning) = warning(rounds) {
            eprintln!("warning: {warning}");
        }
        // Peers are not needed. The packages for verbs are, or this build would lack what the
        // earlier one has.
        setup::install(PackageSet::Verbs)?;
        let builds =
            Builds { this: dist::build(Profile::Release)?, earlier: earlier.rlaunch().into() };
        println!("this build beside {}", builds.earlier.display());
        if builds.are_the_same()? {
            println!(
                "both builds are identical: the ratios show how much this machine deviates from 1.00"
            );
        }
        Ok(builds)
    }

    /// Returns whether launcher and agent of both builds have the same content.
    fn are_the_same(&self) -> Result<bool, LabError> {
        let content = |path: PathBuf| {
            fs::read(&path).map_err(LabError::io(format!("read {}", path.display())))
        };
        let agent = dist::agent_beside()?;
        for name in [Path::new("rlaunch"), &agent] {
            let of = |launcher: &Path| content(launcher.with_file_name(name));
            if of(&self.this)? != of(&self.earlier)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Returns a warning if there are too few rounds for a verdict.
fn warning(rounds: usize) -> Option<String> {
    if rounds < interval::FEWEST {
        let fewest = interval::FEWEST;
        return Some(format!(
            "no 90 % interval exists below {fewest} rounds, so {rounds} rounds cannot show whether a \
             row is slower; {USUAL_ROUNDS} are usual"
        ));
    }
    (rounds < USUAL_ROUNDS).then(|| {
        format!(
            "the 90 % interval of {rounds} rounds spans nearly all of them; {USUAL_ROUNDS} are usual"
        )
    })
}

/// Hosts of one lab, once with the launcher of this build and once with the earlier one.
pub(super) struct Testbeds {
    this: Testbed,
    earlier: Testbed,
}

/// Run of one build in one round.
pub(super) struct Turn<'a> {
    pub(super) round: usize,
    pub(super) build: Build,
    pub(super) testbed: &'a Testbed,
}

impl Turn<'_> {
    /// Tells whether the turn is measured. Round 0 is the warm-up, in which hosts receive the files
    /// of the build.
    pub(super) fn counts(&self) -> bool {
        self.round > 0
    }
}

/// Formats the beginning of a line: `round 3: earlier`.
impl std::fmt::Display for Turn<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "round {}: {:<10}", self.round, self.build.name())
    }
}

impl Testbeds {
    pub(super) fn testbed(&self, build: Build) -> &Testbed {
        match build {
            Build::This => &self.this,
            Build::Earlier => &self.earlier,
        }
    }

    /// Calls `act` for each build in each round, after a warm-up round.
    pub(super) fn for_each_turn(
        &self,
        rounds: usize,
        mut act: impl FnMut(&Turn<'_>) -> Result<(), LabError>,
    ) -> Result<(), LabError> {
        for round in 0..=rounds {
            for build in order(round) {
                act(&Turn { round, build, testbed: self.testbed(build) })?;
            }
        }
        Ok(())
    }
}

/// Returns the order of the builds in a round. The order alternates, so that after-effects of the
/// first run disturb both builds equally often.
fn order(round: usize) -> [Build; 2] {
    let mut order = Build::ALL;
    order.rotate_left(round % 2);
    order
}

/// Starts hosts and calls `measure` with them.
pub(super) fn on_hosts<T>(
    hosts: usize,
    builds: Builds,
    measure: impl FnOnce(&Testbeds) -> Result<T, LabError>,
) -> Result<T, LabError> {
    println!("starting {hosts} hosts");
    Lab::with_fresh(&bench_lab(hosts), |lab| measure(&testbeds(lab, builds)?))
}

fn testbeds(lab: Lab, builds: Builds) -> Result<Testbeds, LabError> {
    if lab.cpu_usage().is_none() {
        return Err(LabError::Unexpected(
            "this machine has no cgroup v2, which is needed to measure the CPU time of a build"
                .into(),
        ));
    }
    let again = Lab::attach(lab.name())?;
    Ok(Testbeds {
        this: Testbed::new(lab, builds.this),
        earlier: Testbed::new(again, builds.earlier),
    })
}

/// Returns the CPU time of a run, or an error if the lab's cgroup has not reported it.
pub(super) fn required(cpu: Option<f64>) -> Result<f64, LabError> {
    cpu.ok_or_else(|| {
        LabError::Unexpected("the lab's cgroup no longer reports its CPU time".into())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_build_begins_every_other_round() {
        assert_eq!(order(0), [Build::This, Build::Earlier]);
        assert_eq!(order(1), [Build::Earlier, Build::This]);
        assert_eq!(order(2), order(0));
    }

    #[test]
    fn too_few_rounds_are_warned_of() {
        assert_eq!(warning(USUAL_ROUNDS), None);
        assert!(warning(USUAL_ROUNDS - 1).unwrap().contains("spans"));
        assert!(warning(5).unwrap().contains("spans"));
        assert!(warning(4).unwrap().contains("no 90 % interval"));
    }
}
