//! `--against DIR` of benches: this build of rlaunch beside an earlier one, in turn on the same
//! hosts in one run, so that disturbances of the machine affect both.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::Args;

use super::contender::{Contender, Launcher, Testbed};
use super::series::FEWEST;
use super::table::Bar;
use crate::LabError;
use crate::command::last_lines;
use crate::dist::{self, Profile};
use crate::setup::{self, PackageSet};

/// Name by which clap knows `--against`.
pub(super) const AGAINST: &str = "against";
/// Default number of rounds with `--against`: with fewer, a 90 % interval spans nearly all measured
/// values.
pub(super) const USUAL_ROUNDS: &str = "15";
/// Name of the launcher in its distribution.
const LAUNCHER: &str = "rlaunch";

/// Long help of `--against`. Each paragraph is one line, which clap wraps to the terminal's width.
const HELP: &str = include_str!("against.txt").trim_ascii_end();

/// Earlier build to compare with.
#[derive(Debug, Clone, Args)]
pub(super) struct Against {
    /// Measure beside an earlier build of rlaunch instead of other launchers.
    #[arg(id = AGAINST, long = "against", value_name = "DIR", long_help = HELP)]
    directory: Option<PathBuf>,
}

impl Against {
    /// Finds the earlier build, if one was given. Fails if it cannot run here.
    pub(super) fn find(&self) -> Result<Option<EarlierBuild>, LabError> {
        let own = dist::directory(Profile::Release)?;
        self.directory.as_deref().map(|path| EarlierBuild::find_beside(&own, path)).transpose()
    }
}

/// Returns the bars of a row beside an earlier build, or `usual` beside other launchers.
pub(super) fn bars<'a>(earlier: Option<&EarlierBuild>, usual: &'a [Bar]) -> &'a [Bar] {
    if earlier.is_some() { &[Bar::NoSlower] } else { usual }
}

/// Earlier build that can run here, as `cargo lab build --profile release` laid it out.
#[derive(Debug, Clone)]
pub(super) struct EarlierBuild {
    rlaunch: PathBuf,
}

impl EarlierBuild {
    /// Finds the build at `path`, which is the directory of its `rlaunch` or that program itself,
    /// unless it is in `own`, the directory of this build.
    fn find_beside(own: &Path, path: &Path) -> Result<EarlierBuild, LabError> {
        let refused =
            |why: String| Err(LabError::Usage(format!("--against {}: {why}", path.display())));
        // The path is resolved, since launchers run in `/`, and a link may change.
        let rlaunch = if path.is_dir() { path.join(LAUNCHER) } else { path.to_path_buf() };
        let rlaunch = match rlaunch.canonicalize() {
            Ok(rlaunch) => rlaunch,
            Err(error) => return refused(format!("no {LAUNCHER} there: {error}")),
        };
        let place = rlaunch.parent().unwrap_or(&rlaunch);
        if own.canonicalize().is_ok_and(|own| own == place) {
            return refused(
                "this build would overwrite the earlier one; copy the earlier one first".into(),
            );
        }
        if let Err(why) = try_running(&rlaunch) {
            return refused(format!("{} {why}", rlaunch.display()));
        }
        let agent = dist::agent_beside()?;
        if !place.join(&agent).is_file() {
            let agent = agent.display();
            return refused(format!(
                "no {agent} beside {LAUNCHER}; copy all that `cargo lab build --profile release` made"
            ));
        }
        Ok(EarlierBuild { rlaunch })
    }

    /// Builds this checkout; returns this build and the earlier one. First warns if there are too
    /// few rounds to compare them.
    pub(super) fn contenders(&self, rounds: usize) -> Result<Vec<Contender>, LabError> {
        if USUAL_ROUNDS.parse().is_ok_and(|usual: usize| rounds < usual) {
            eprintln!(
                "warning: the 90 % interval of {rounds} rounds spans nearly all of them, and there is none below \
                 {FEWEST} rounds; {USUAL_ROUNDS} are usual"
            );
        }
        // Peers are not needed. The packages for verbs are, or this build would lack what the
        // earlier one has.
        setup::install(PackageSet::Verbs)?;
        let this = dist::build(Profile::Release)?;
        println!("this build beside {}", self.rlaunch.display());
        let contender =
            |name, rlaunch: &Path| Contender { name, ..Contender::new(Launcher::Rlaunch, rlaunch) };
        Ok(vec![contender("this build", &this), contender("earlier", &self.rlaunch)])
    }

    /// Checks that the build has one of the programs that measure a communicator.
    pub(super) fn has_program(&self, name: &str) -> Result<(), LabError> {
        if self.rlaunch.with_file_name(name).is_file() {
            return Ok(());
        }
        let place = self.rlaunch.parent().unwrap_or(&self.rlaunch).display();
        Err(LabError::Usage(format!(
            "--against {place}: no `{name}` beside {LAUNCHER}, which measures that build's communicator. \
             `cargo lab build --profile release` in its checkout puts it there; if that checkout is older, \
             `cargo build --release -p rlaunch-comm --example measure --example init`, and copy both \
             from target/release/examples"
        )))
    }

    /// Fails on a machine that does not measure CPU time.
    pub(super) fn needs_cpu(&self, testbed: &Testbed) -> Result<(), LabError> {
        testbed.lab.cpu_usage().map(drop).ok_or_else(|| {
            LabError::Unexpected(
                "this machine has no cgroup v2, which is needed to measure the CPU time of a build"
                    .into(),
            )
        })
    }
}

/// Runs `rlaunch --version`; on failure returns why it does not run.
fn try_running(rlaunch: &Path) -> Result<(), String> {
    let mut command = Command::new(rlaunch);
    let output = command.arg("--version").stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("does not start: {error}"))?;
    let stderr = last_lines(&String::from_utf8_lossy(&output.stderr), 5);
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("--version ended with {}\n{stderr}", output.status)),
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    /// Writes an executable file through another process. If this process wrote it, children of other
    /// tests might have the file open for writing for a moment, and it could not be executed.
    fn program(directory: &TempDir, name: &str, text: &str) {
        let script = r#"mkdir -p "$(dirname "$1")" && printf %s "$2" >"$1" && chmod +x "$1""#;
        let mut shell = Command::new("sh");
        let shell = shell.args(["-c", script, "sh"]).arg(directory.path().join(name)).arg(text);
        assert!(shell.status().unwrap().success());
    }

    #[test]
    fn only_another_build_that_runs_is_taken() {
        let directory = TempDir::new().unwrap();
        let rlaunch = directory.path().join("rlaunch");
        let find = |own: &Path| {
            let found = EarlierBuild::find_beside(own, &rlaunch);
            found.map_or_else(|refused| refused.to_string(), |_| "found".to_owned())
        };
        let elsewhere = Path::new("/nonexistent");
        assert!(find(elsewhere).contains("no rlaunch there"));
        program(&directory, "rlaunch", "#!/bin/sh\nexit 3\n");
        assert!(find(elsewhere).contains("ended with exit status: 3"));
        program(&directory, "rlaunch", "#!/bin/sh\n");
        assert!(find(elsewhere).contains("rlaunch-worker beside rlaunch"));
        program(&directory, dist::agent_beside().unwrap().to_str().unwrap(), "");
        assert_eq!(find(elsewhere), "found");
        assert!(find(directory.path()).contains("would overwrite"));
        EarlierBuild::find_beside(elsewhere, directory.path()).unwrap();
    }
}
