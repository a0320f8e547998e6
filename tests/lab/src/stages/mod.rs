//! `cargo lab test`: every test of the project, from cheap to dear, each stage with a budget on
//! two cores.

mod deny;
#[expect(dead_code, unused_imports, reason = "`cargo lab test --changed` will ask it")]
mod reach;
mod run;
mod vm;

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::dist::{self, Profile, aarch64};
use crate::ledger::{Ledger, Tally};
use crate::setup::{self, Extent};
use crate::vm::VmLab;
use crate::{Lab, LabError, Options, fuzz, python, sim, soak};

/// How `cargo lab test` tells the tests of rlaunch which lab is theirs.
const LAB_VARIABLE: &str = "RLAUNCH_LAB";
/// How it tells them where the launcher is.
const LAUNCHER_VARIABLE: &str = "RLAUNCH_LAB_LAUNCHER";

/// The lab the tests of rlaunch run in: a name and addresses that a lab made by hand hardly has.
const TEST_LAB: &str = "test";
const TEST_NET: [u8; 2] = [10, 95];
const TEST_HOSTS: usize = 8;

/// What `--filter` calls the soak of the netns stage.
const SOAK: &str = "soak";
/// Jobs in the test run's soak, quiet and busy each, and on how many hosts.
const SOAK_LAUNCHES: usize = 40;
const SOAK_HOSTS: usize = 16;

/// Seeds of the test run's simulation: the same ones, and those that the commit draws.
const FIXED_SEEDS: &str = "200";
const FRESH_SEEDS: &str = "50";

/// For how long each decoder is fuzzed.
const FUZZ_SECONDS: u64 = 10;

/// A part of the test run.
struct Stage {
    name: &'static str,
    minutes: u64,
    run: fn(&Plan, &Ledger) -> Result<Tally, LabError>,
}

/// All stages, in order.
const STAGES: &[Stage] = &[
    Stage { name: "setup", minutes: 3, run: set_up },
    Stage { name: "build", minutes: 10, run: build },
    Stage { name: "unit", minutes: 3, run: unit },
    Stage { name: "sim", minutes: 4, run: simulate },
    Stage { name: "fuzz", minutes: 3, run: fuzz },
    Stage { name: NETNS, minutes: 15, run: netns },
    Stage { name: vm::NAME, minutes: 13, run: vm::test },
];

const NETNS: &str = "netns";

/// What clippy looks at. It passes over targets with `test = false`, so these are named.
const LINTED: &[&[&str]] = &[
    &["--workspace", "--all-targets"],
    &["--package", "rlaunch-lab", "--test", "lab"],
    &["--package", "rlaunch-tests", "--test", "netns"],
    &["--package", "rlaunch-tests", "--test", "vm"],
];

/// What to run.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// Only this stage.
    pub stage: Option<String>,
    /// Only tests whose names contain this.
    pub filter: Option<String>,
}

impl Plan {
    /// Whether a Python with torch is worth being built; one that is there is used anyway.
    fn wants_torch(&self) -> bool {
        let about =
            |filter: &String| ["torch", "training"].iter().any(|name| filter.contains(name));
        self.filter.as_ref().is_none_or(about)
    }

    /// Whether what hosts of aarch64 are sent is worth being built.
    fn wants_aarch64(&self) -> bool {
        self.filter.as_ref().is_none_or(|filter| filter.contains("aarch64"))
    }
}

/// What a test of rlaunch runs with.
#[derive(Debug)]
pub struct UnderTest {
    /// Hosts a to h.
    pub lab: Lab,
    /// The launcher, where both accounts of the launch node can run it.
    pub rlaunch: PathBuf,
}

impl UnderTest {
    /// What `cargo lab test` prepared for the calling test program.
    pub fn from_env() -> Result<UnderTest, LabError> {
        match (env::var(LAB_VARIABLE), env::var_os(LAUNCHER_VARIABLE)) {
            (Ok(name), Some(rlaunch)) => {
                Ok(UnderTest { lab: Lab::attach(&name)?, rlaunch: rlaunch.into() })
            }
            _ => Err(not_set(NETNS)),
        }
    }
}

/// What a test of rlaunch among guests runs with.
#[derive(Debug)]
pub struct VmUnderTest {
    /// Guests n1 to n3, a triangle.
    pub lab: VmLab,
    /// The launcher, as n1 sees it.
    pub rlaunch: String,
}

impl VmUnderTest {
    /// What `cargo lab test` prepared for the calling test program.
    pub fn from_env() -> Result<VmUnderTest, LabError> {
        match (env::var(LAB_VARIABLE), env::var(LAUNCHER_VARIABLE)) {
            (Ok(name), Ok(rlaunch)) => Ok(VmUnderTest { lab: VmLab::find(&name)?, rlaunch }),
            _ => Err(not_set(vm::NAME)),
        }
    }
}

fn not_set(stage: &str) -> LabError {
    LabError::Usage(format!(
        "{LAB_VARIABLE} and {LAUNCHER_VARIABLE} are not set: these tests are run by \
         `cargo lab test --stage {stage}`"
    ))
}

/// The names of all stages.
pub fn names() -> Vec<&'static str> {
    STAGES.iter().map(|stage| stage.name).collect()
}

/// Runs the stages and prints the ledger; true if nothing failed.
pub fn test(plan: &Plan) -> bool {
    let mut ledger = Ledger::default();
    let wanted = |stage: &&Stage| plan.stage.as_ref().is_none_or(|name| name == stage.name);
    let stages: Vec<&Stage> = STAGES.iter().filter(wanted).collect();
    let has = |name| stages.iter().any(|stage| stage.name == name);
    let (with_guests, with_torch) = (has(vm::NAME), has(NETNS) && plan.wants_torch());
    // They end with this run at the latest.
    let (mut image, mut python) = (None, None);
    for stage in stages {
        // The first stage installs packages, of which these need some as well.
        let is_set_up = stage.name != STAGES[0].name;
        if with_guests && image.is_none() && is_set_up {
            image = vm::start_image();
        }
        if with_torch && python.is_none() && is_set_up {
            python = python::build_beside();
        }
        let budget = Duration::from_secs(60 * stage.minutes);
        println!("\n== {} (budget {} min)", stage.name, stage.minutes);
        let start = Instant::now();
        let tally = (stage.run)(plan, &ledger).unwrap_or_else(|error| {
            run::report(stage.name, &error);
            Tally::check(false)
        });
        ledger.record(stage.name, start.elapsed(), budget, tally);
    }
    println!("\n{ledger}");
    ledger.total().failed == 0
}

fn set_up(_: &Plan, _: &Ledger) -> Result<Tally, LabError> {
    setup::install(Extent::Peers)?;
    if let Err(error) = aarch64::prepare() {
        // What needs it is listed as skipped.
        run::report("adding Rust's targets for aarch64", &error);
    }
    println!("everything the lab needs is installed");
    Ok(Tally::check(true))
}

/// Formatting, lints and dependencies, then what the other stages run. Nothing is left out when
/// something fails, so that one run shows all there is to mend.
fn build(_: &Plan, _: &Ledger) -> Result<Tally, LabError> {
    let mut tally = Tally::default();
    tally.add(run::check(dist::cargo().args(["fmt", "--all", "--check"])));
    for targets in LINTED {
        let clippy = ["clippy", "--profile", "lab"];
        let strict = ["--", "-D", "warnings"];
        tally.add(run::check(dist::cargo().args(clippy).args(*targets).args(strict)));
    }
    tally.add(match deny::command() {
        Ok(mut deny) => run::check(&mut deny),
        Err(error) => run::failed("cargo deny", &error),
    });
    tally.add(match dist::build(Profile::Lab) {
        Ok(_) => Tally::check(true),
        Err(error) => run::failed("the build", &error),
    });
    tally.add(match aarch64::build(Profile::Lab) {
        Ok(lacking) if lacking.is_empty() => Tally::check(true),
        Ok(lacking) => Tally::skip(lacking.join("; ")),
        Err(error) => run::failed("the build for aarch64", &error),
    });
    let tests = ["test", "--workspace", "--profile", "lab", "--no-run"];
    tally.add(run::check(dist::cargo().args(tests)));
    Ok(tally)
}

fn unit(plan: &Plan, _: &Ledger) -> Result<Tally, LabError> {
    let mut test = dist::cargo();
    test.args(["test", "--workspace", "--profile", "lab", "--no-fail-fast"]);
    test.args(&plan.filter);
    let mut tally = run::tests(&mut test)?;
    // The guests' own stage has less time to spare, where they are wanted at all.
    if plan.stage.is_none()
        && let Err(error) = vm::build_ahead()
    {
        tally.add(run::failed("building what the guests run", &error));
    }
    Ok(tally)
}

/// The same seeds every time, and some that nobody has run before.
fn simulate(_: &Plan, _: &Ledger) -> Result<Tally, LabError> {
    let fresh = sim::fresh_seed();
    println!("fresh seeds begin at {fresh}");
    let mut tally = Tally::check(sim::run(&["--seeds", FIXED_SEEDS])?);
    let from = fresh.to_string();
    tally.add(Tally::check(sim::run(&["--from", &from, "--seeds", FRESH_SEEDS])?));
    Ok(tally)
}

/// What is known is replayed, and a little more is looked for.
fn fuzz(_: &Plan, _: &Ledger) -> Result<Tally, LabError> {
    fuzz::run(None, FUZZ_SECONDS)
}

/// The lab's own tests, then those of rlaunch in a lab of their own.
fn netns(plan: &Plan, ledger: &Ledger) -> Result<Tally, LabError> {
    if ledger.has_failed("build") && dist::build(Profile::Lab).is_err() {
        return Ok(Tally::skip("the build failed"));
    }
    if let Err(error) = setup::require_root() {
        return Ok(Tally::skip(error.to_string()));
    }
    let launcher = dist::build(Profile::Lab)?;
    dist::build_suite(Profile::Lab)?;
    dist::build_bench(Profile::Lab)?;
    let own = run::root_tests("rlaunch-lab", "lab", plan, &[]);
    let mut tally = own.unwrap_or_else(|error| run::failed("the lab's own tests", &error));
    let mut lacking = Vec::new();
    if plan.wants_aarch64() {
        let lacked = aarch64::build(Profile::Lab).unwrap_or_else(|error| vec![error.to_string()]);
        let lacked = lacked.into_iter().chain(aarch64::cannot_run()).map(|why| (AARCH64, why));
        lacking.extend(lacked);
        lacking.extend(aarch64::python().err().map(|why| (AARCH64_PYTHON, why.to_string())));
    }
    // Hosts see it from their start.
    let torch = if plan.wants_torch() { python::build().err() } else { None };
    lacking.extend(lacked(torch));
    // An interrupted run leaves its lab behind, in whatever state.
    Lab::down(TEST_LAB)?;
    let lab = Lab::up(&Options { net: TEST_NET, ..Options::new(TEST_LAB, TEST_HOSTS) })?;
    let tests = in_lab(&lab, &launcher, plan, lacking);
    let down = Lab::down(TEST_LAB);
    tally.add(tests?);
    down?;
    if plan.filter.as_ref().is_none_or(|filter| SOAK.contains(filter)) {
        tally.add(soak(&launcher));
    }
    Ok(tally)
}

/// The quick form of `cargo lab soak launch`, on a quiet machine and on a busy one.
fn soak(launcher: &Path) -> Tally {
    let mut tally = Tally::default();
    for load in [false, true] {
        let plan = soak::Plan { launches: SOAK_LAUNCHES, hosts: SOAK_HOSTS, load };
        tally.add(match soak::launch(&plan, launcher) {
            Ok(passed) => Tally::check(passed),
            Err(error) => run::failed("the soak", &error),
        });
    }
    tally
}

/// Runs the tests in their lab, without those for which something is lacking: of each kind what
/// names have in common, and why.
fn in_lab(
    lab: &Lab,
    launcher: &Path,
    plan: &Plan,
    lacking: Vec<(&'static str, String)>,
) -> Result<Tally, LabError> {
    let launcher = lab.install(launcher.parent().unwrap_or(launcher))?.join("rlaunch");
    let environment = [(LAB_VARIABLE, TEST_LAB.into()), (LAUNCHER_VARIABLE, launcher)];
    let program = run::test_program("rlaunch-tests", "netns")?;
    let left_out: Vec<&str> = lacking.iter().map(|(tests, _)| *tests).collect();
    let mut tally = run::program_without(&program, plan, &left_out, &environment)?;
    for (tests, why) in lacking {
        tally.add(Tally::skip(format!("{tests}…: {why}")));
    }
    Ok(tally)
}

/// What this machine lacks for some tests; `torch` is why there is no Python with torch, where one
/// was wanted.
fn lacked(torch: Option<LabError>) -> Vec<(&'static str, String)> {
    let mut lacking = Vec::new();
    if !has_numpy() {
        lacking.push((NUMPY, format!("{} has no numpy", python::BASE)));
    }
    if python::find().is_none() {
        let why = torch.map_or("it was not asked for".into(), |error| error.to_string());
        lacking.push((TORCH, format!("no Python with torch: {why}")));
    }
    if !has_gpu() {
        lacking.push((GPU, "this machine has no GPU of NVIDIA's".to_owned()));
    }
    let shells: Vec<_> = LOGIN_SHELLS.into_iter().filter(|shell| !setup::has(shell)).collect();
    if !shells.is_empty() {
        lacking.push((SHELLS, format!("not installed: {}", shells.join(", "))));
    }
    lacking
}

/// What the names have of tests that need numpy, torch, a GPU and torch mostly, hosts of another
/// architecture, or all these login shells.
const NUMPY: &str = "numpy_";
const TORCH: &str = "torch_";
const GPU: &str = "gpu::";
const AARCH64: &str = "aarch64::";
const AARCH64_PYTHON: &str = "aarch64::python_";
const SHELLS: &str = "shells::";
const LOGIN_SHELLS: [&str; 3] = ["fish", "zsh", "csh"];

fn has_gpu() -> bool {
    let look = Command::new("nvidia-smi").arg("-L").stdout(Stdio::null()).status();
    look.is_ok_and(|status| status.success())
}

fn has_numpy() -> bool {
    let program = "import importlib.util as u, sys; sys.exit(not u.find_spec('numpy'))";
    Command::new(python::BASE).args(["-c", program]).status().is_ok_and(|status| status.success())
}
