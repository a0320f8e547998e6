//! An earlier build of rlaunch, as `cargo lab build --profile release` laid it out.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::LabError;
use crate::command::last_lines;
use crate::dist::{self, Profile};

/// Name of the launcher in its distribution.
const LAUNCHER: &str = "rlaunch";

/// Earlier build that can run here.
#[derive(Debug, Clone)]
pub struct EarlierBuild {
    rlaunch: PathBuf,
}

impl EarlierBuild {
    /// Finds the build at `path`, which is the directory of its `rlaunch` or that program itself.
    /// Fails if it cannot run here.
    pub fn find(path: &Path) -> Result<EarlierBuild, LabError> {
        let own = dist::directory(Profile::Release)?;
        EarlierBuild::find_beside(&own, path)
    }

    /// Finds the build at `path`, unless it is in `own`, the directory of this build.
    fn find_beside(own: &Path, path: &Path) -> Result<EarlierBuild, LabError> {
        let refused =
            |why: String| Err(LabError::Usage(format!("--against {}: {why}", path.display())));
        // The path is resolved, since launchers run in `/`, and a link may change.
        let rlaunch = match find_launcher(path) {
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

    /// Returns the absolute path of the build's launcher.
    pub(super) fn rlaunch(&self) -> &Path {
        &self.rlaunch
    }

    /// Finds one of the build's programs that measure a communicator.
    pub(in crate::bench) fn program(&self, name: &str) -> Result<PathBuf, LabError> {
        let program = self.rlaunch.with_file_name(name);
        if program.is_file() {
            return Ok(program);
        }
        let place = self.rlaunch.parent().unwrap_or(&self.rlaunch).display();
        Err(LabError::Usage(format!(
            "--against {place}: no `{name}` beside {LAUNCHER}, which measures that build's communicator. \
             `cargo lab build --profile release` in its checkout puts it there; if that checkout is older, \
             `cargo build --release -p rlaunch-comm --example measure --example init`, and copy both \
             from target/release/examples"
        )))
    }
}

fn find_launcher(path: &Path) -> std::io::Result<PathBuf> {
    let rlaunch = if path.is_dir() { path.join(LAUNCHER) } else { path.to_path_buf() };
    let rlaunch = rlaunch.canonicalize()?;
    match fs::metadata(&rlaunch)?.is_file() {
        true => Ok(rlaunch),
        false => Err(std::io::Error::other("it is not a file")),
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

    /// Directory with a fake earlier build.
    struct Scratch(TempDir);

    impl Scratch {
        fn new() -> Scratch {
            Scratch(TempDir::new().unwrap())
        }

        fn path(&self) -> PathBuf {
            self.0.path().canonicalize().unwrap()
        }

        /// Writes an executable file through another process. If this process wrote it, children of
        /// other tests might have the file open for writing for a moment, and it could not be
        /// executed.
        fn program(&self, name: &str, text: &str) {
            let script = r#"mkdir -p "$(dirname "$1")" && printf %s "$2" >"$1" && chmod +x "$1""#;
            let mut shell = Command::new("sh");
            let shell = shell.args(["-c", script, "sh"]).arg(self.path().join(name)).arg(text);
            assert!(shell.status().unwrap().success());
        }

        fn refusal(&self, path: &Path) -> String {
            EarlierBuild::find_beside(Path::new("/nonexistent"), path).unwrap_err().to_string()
        }
    }

    #[test]
    fn a_build_is_found_by_its_directory_and_by_its_launcher() {
        let scratch = Scratch::new();
        scratch.program("rlaunch", "#!/bin/sh\n");
        scratch.program(dist::agent_beside().unwrap().to_str().unwrap(), "");
        let rlaunch = scratch.path().join("rlaunch");
        for path in [&scratch.path(), &rlaunch] {
            let earlier = EarlierBuild::find_beside(Path::new("/nonexistent"), path).unwrap();
            assert_eq!(earlier.rlaunch(), rlaunch);
            let error = earlier.program("measure").unwrap_err().to_string();
            assert!(error.contains("cargo lab build --profile release"), "{error}");
        }
        scratch.program("measure", "");
        let earlier = EarlierBuild::find_beside(Path::new("/nonexistent"), &rlaunch).unwrap();
        assert_eq!(earlier.program("measure").unwrap(), scratch.path().join("measure"));
        let error = EarlierBuild::find_beside(&scratch.path(), &rlaunch).unwrap_err().to_string();
        assert!(error.contains("would overwrite"), "{error}");
    }

    #[test]
    fn what_is_not_a_build_that_runs_is_refused() {
        let scratch = Scratch::new();
        assert!(scratch.refusal(&scratch.path()).contains("no rlaunch there"));
        assert!(scratch.refusal(&scratch.path().join("absent")).contains("no rlaunch there"));
        scratch.program("rlaunch", "#!/bin/sh\nexit 3\n");
        assert!(scratch.refusal(&scratch.path()).contains("ended with exit status: 3"));
        scratch.program("rlaunch", "#!/bin/sh\n");
        let error = scratch.refusal(&scratch.path());
        assert!(error.contains("rlaunch-worker beside rlaunch"), "{error}");
    }
}
