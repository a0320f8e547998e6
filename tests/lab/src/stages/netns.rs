//! Stage netns: tests on hosts made of network namespaces, with the lab's own tests beside them, then a
//! short soak.

use std::path::Path;
use std::process::{Command, Stdio};

use super::ledger::Tally;
use super::nextest::{TestPrograms, Tests};
use super::{TestPlan, failed, hosts};
use crate::dist::{self, Profile, aarch64, packages};
use crate::netns::cgroup;
use crate::setup::venv::BASE;
use crate::setup::{self, PackageSet, mpi, python, roots};
use crate::{LabError, soak};

pub(super) const NAME: &str = "netns";

/// Name of the soak for `--filter`.
const SOAK: &str = "soak";
/// Number of jobs of each soak (one on a quiet machine, one on a busy machine), and of hosts.
const SOAK_LAUNCHES: usize = 20;
const SOAK_HOSTS: usize = 16;

pub(super) fn test(plan: &TestPlan) -> Result<Tally, LabError> {
    if let Err(error) = setup::require_root() {
        return Ok(Tally::skip(error.to_string()));
    }
    dist::build_everything()?;
    let (tests, skipped) = selected(plan, &TestPrograms::build()?)?;
    let mut tally = hosts::run(&tests)?;
    for (tests, why) in skipped {
        tally.add(Tally::skip(format!("{tests}…: {why}")));
    }
    if plan.reach.everything && plan.filter.as_ref().is_none_or(|filter| SOAK.contains(filter)) {
        tally.add(soak(&dist::launcher(Profile::Lab)?));
    }
    Ok(tally)
}

/// Returns the tests that this machine can run, and those that it cannot run; makes what several of
/// them need.
pub(super) fn selected(
    plan: &TestPlan,
    programs: &TestPrograms,
) -> Result<(Tests, SkippedTests), LabError> {
    let own = if plan.reach.everything { "all()" } else { "none()" };
    let set = format!(
        "(binary_id(rlaunch-lab::lab) & {own}) | (binary_id(rlaunch-tests::netns) & {})",
        plan.reach.netns.filterset()
    );
    let tests = programs.select(NAME, set, plan);
    let skipped = skipped(&tests.names()?);
    let left_out = skipped.iter().map(|(part, _)| format!(" - test({part})"));
    if !tests.and(&format!("test({PACKAGES})")).names()?.is_empty() {
        packages::pack(Profile::Lab)?;
    }
    let tests = tests.and(&format!("all(){}", left_out.collect::<String>()));
    Ok((tests, skipped))
}

/// Runs the short form of `cargo lab soak launch`, on a quiet machine and on a busy one.
fn soak(launcher: &Path) -> Tally {
    let mut tally = Tally::default();
    for load in [false, true] {
        let plan = soak::SoakOptions { launches: SOAK_LAUNCHES, hosts: SOAK_HOSTS, load };
        tally.add(match soak::launch(&plan, launcher) {
            Ok(passed) => Tally::check(passed),
            Err(error) => failed("the soak", &error),
        });
    }
    tally
}

/// Parts of the names of tests that this machine cannot run, each with the reason.
pub(super) type SkippedTests = Vec<(&'static str, String)>;

/// Finds which of the tests called `names` this machine cannot run.
fn skipped(names: &[String]) -> SkippedTests {
    let is_wanted = |part: &str| names.iter().any(|name| name.contains(part));
    let mut skipped = Vec::new();
    if is_wanted(AARCH64) {
        let missing = aarch64::build(Profile::Lab).unwrap_or_else(|error| vec![error.to_string()]);
        let missing = missing.into_iter().chain(aarch64::cannot_run()).map(|why| (AARCH64, why));
        skipped.extend(missing);
        skipped.extend(aarch64::python().err().map(|why| (AARCH64_PYTHON, why.to_string())));
    }
    if is_wanted(NUMPY) && !has_numpy() {
        skipped.push((NUMPY, format!("{BASE} has no numpy")));
    }
    if is_wanted(GPU) && !has_gpu() {
        skipped.push((GPU, "this machine has no NVIDIA GPU".to_owned()));
    }
    let missing = setup::missing(PackageSet::Headers);
    if is_wanted(MPI) && !missing.is_empty() {
        skipped.push((MPI, format!("not installed: {}", missing.join(", "))));
    }
    for (part, programs) in INSTALLED {
        let missing: Vec<_> = programs.iter().copied().filter(|one| !setup::has(one)).collect();
        if is_wanted(part) && !missing.is_empty() {
            skipped.push((part, format!("not installed: {}", missing.join(", "))));
        }
    }
    let without_cgroups = if cgroup::are_available() { &[][..] } else { &CGROUPS };
    let are_wanted = without_cgroups.iter().filter(|part| is_wanted(part));
    skipped.extend(are_wanted.map(|part| (*part, "no cgroups of version 2 here".to_owned())));
    for (part, what, make) in MADE {
        if is_wanted(part)
            && !without_cgroups.contains(&part)
            && let Err(error) = make()
        {
            skipped.push((part, format!("no {what}: {error}")));
        }
    }
    skipped
}

/// Parts of the names of tests, and the programs that they need.
const INSTALLED: [(&str, &[&str]); 3] = [
    ("slurm::", &["slurmctld", "slurmd", "srun", "munged"]),
    ("shells::", &["fish", "zsh", "tcsh"]),
    ("bsd_csh_", &["bsd-csh"]),
];
type Make = fn() -> Result<(), LabError>;
/// Parts of the names of tests, what they need that is made once, and what makes it: before hosts start, which mount it then.
const MADE: [(&str, &str, Make); 7] = [
    ("torch_", "Python with torch", || python::TORCH.build().map(drop)),
    ("torch_starters_", "Python with accelerate and DeepSpeed", || {
        python::TORCH_STARTERS.build().map(drop)
    }),
    ("jax_", "Python with JAX", || python::NEW_JAX.build().map(drop)),
    ("mpi::wheels::", "Python with an MPI library", mpi::build),
    ("images::mpi_", "image with an MPI library", || roots::MPI_IMAGE.make().map(drop)),
    (SYSTEMD, "machine with systemd", || roots::SYSTEMD.make().map(drop)),
    (NETWORKED, "machine with systemd-networkd", || roots::NETWORKED.make().map(drop)),
];
const SYSTEMD: &str = "logout::systemd_";
const NETWORKED: &str = "up_systemd::";
/// Parts of the names of tests that need cgroups.
const CGROUPS: [&str; 3] = [SYSTEMD, NETWORKED, "logout::logind_"];
/// Parts of the names of tests that need numpy, Debian's MPI libraries, an NVIDIA GPU, or hosts of another architecture.
const NUMPY: &str = "numpy_";
const MPI: &str = "mpi::";
const GPU: &str = "gpu::";
const AARCH64: &str = "aarch64::";
const AARCH64_PYTHON: &str = "aarch64::python_";
/// Beginning of the names of tests that install packages.
const PACKAGES: &str = "packages::";

fn has_gpu() -> bool {
    let look = Command::new("nvidia-smi").arg("-L").stdout(Stdio::null()).status();
    look.is_ok_and(|status| status.success())
}

fn has_numpy() -> bool {
    let program = "import importlib.util as u, sys; sys.exit(not u.find_spec('numpy'))";
    Command::new(BASE).args(["-c", program]).status().is_ok_and(|status| status.success())
}
