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
    // Built before hosts start: they mount it then.
    if is_wanted(TORCH)
        && let Err(error) = python::TORCH.build()
    {
        skipped.push((TORCH, format!("no Python with torch: {error}")));
    }
    if is_wanted(STARTERS)
        && let Err(error) = python::TORCH_STARTERS.build()
    {
        skipped.push((STARTERS, format!("no Python with accelerate and DeepSpeed: {error}")));
    }
    if is_wanted(JAX)
        && let Err(error) = python::NEW_JAX.build()
    {
        skipped.push((JAX, format!("no Python with JAX: {error}")));
    }
    let missing = setup::missing(PackageSet::Headers);
    if is_wanted(MPI) && !missing.is_empty() {
        skipped.push((MPI, format!("not installed: {}", missing.join(", "))));
    }
    if is_wanted(MPI_WHEELS)
        && let Err(error) = mpi::build()
    {
        skipped.push((MPI_WHEELS, format!("no Python with an MPI library: {error}")));
    }
    if is_wanted(MPI_IMAGE)
        && let Err(error) = roots::MPI_IMAGE.make()
    {
        skipped.push((MPI_IMAGE, format!("no image with an MPI library: {error}")));
    }
    if is_wanted(GPU) && !has_gpu() {
        skipped.push((GPU, "this machine has no NVIDIA GPU".to_owned()));
    }
    if !cgroup::are_available() {
        let are_wanted = CGROUPS.into_iter().filter(|part| is_wanted(part));
        skipped.extend(are_wanted.map(|part| (part, "no cgroups of version 2 here".to_owned())));
    } else if is_wanted(SYSTEMD)
        && let Err(error) = roots::SYSTEMD.make()
    {
        skipped.push((SYSTEMD, format!("no machine with systemd: {error}")));
    }
    if cgroup::are_available()
        && is_wanted(NETWORKED)
        && let Err(error) = roots::NETWORKED.make()
    {
        skipped.push((NETWORKED, format!("no machine with systemd-networkd: {error}")));
    }
    let slurm: Vec<_> = SLURM_PROGRAMS.into_iter().filter(|program| !setup::has(program)).collect();
    if is_wanted(SLURM) && !slurm.is_empty() {
        skipped.push((SLURM, format!("not installed: {}", slurm.join(", "))));
    }
    let shells: Vec<_> = LOGIN_SHELLS.into_iter().filter(|shell| !setup::has(shell)).collect();
    if is_wanted(SHELLS) && !shells.is_empty() {
        skipped.push((SHELLS, format!("not installed: {}", shells.join(", "))));
    }
    if is_wanted(BSD_CSH) && !setup::has("bsd-csh") {
        skipped.push((BSD_CSH, "not installed: bsd-csh".to_owned()));
    }
    skipped
}

/// Parts of the names of tests that need numpy, torch, programs that start torch's, JAX, Debian's MPI
/// libraries, those of the Python package index, an NVIDIA GPU, hosts of another architecture, several login
/// shells, Slurm, a machine with systemd, or an image with an MPI library.
const NUMPY: &str = "numpy_";
const TORCH: &str = "torch_";
const STARTERS: &str = "torch_starters_";
const JAX: &str = "jax_";
const MPI: &str = "mpi::";
const MPI_WHEELS: &str = "mpi::wheels::";
const GPU: &str = "gpu::";
const AARCH64: &str = "aarch64::";
const AARCH64_PYTHON: &str = "aarch64::python_";
const SHELLS: &str = "shells::";
const LOGIN_SHELLS: [&str; 3] = ["fish", "zsh", "tcsh"];
const SYSTEMD: &str = "logout::systemd_";
/// Beginning of the names of tests that need machines with systemd-networkd and netplan.
const NETWORKED: &str = "up_systemd::";
const MPI_IMAGE: &str = "images::mpi_";
const SLURM: &str = "slurm::";
const SLURM_PROGRAMS: [&str; 4] = ["slurmctld", "slurmd", "srun", "munged"];
/// Parts of the names of tests that need cgroups.
const CGROUPS: [&str; 3] = [SYSTEMD, NETWORKED, "logout::logind_"];
/// Part of the names of tests that need the csh of BSD.
const BSD_CSH: &str = "bsd_csh_";
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
