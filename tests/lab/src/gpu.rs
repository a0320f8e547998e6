//! `cargo lab gpu`: a folder with all that a machine with a GPU needs to prove the claims about GPUs. The proofs are
//! `tests/gpu/`; this packs them with a launcher.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::LabError;
use crate::command::printed;
use crate::dist::{self, Profile};
use crate::files::remove_dir;

/// Maximum size of the folder in bytes: what travels to such a machine.
const MAX_SIZE: u64 = 48 << 20;
/// Example that proofs run, from the workspace.
const EXAMPLE: &str = "examples/resnet";
/// Proofs, from the workspace.
const PROOFS: &str = "tests/gpu";

/// Packs the launcher in `from`, else one as it ships, which is built, with the proofs. Returns the folder.
pub fn pack(from: Option<&Path>) -> Result<PathBuf, LabError> {
    let built = match from {
        Some(from) => from.to_path_buf(),
        None => {
            dist::build(Profile::Release)?;
            dist::directory(Profile::Release)?
        }
    };
    let folder = dist::target_directory()?.join("gpu");
    pack_into(&folder, &built, &dist::host_triple()?)?;
    Ok(folder)
}

/// Packs the launcher in `built` and its files for ranks of this architecture into an empty folder.
fn pack_into(folder: &Path, built: &Path, triple: &str) -> Result<(), LabError> {
    let launcher = built.join("rlaunch");
    if !launcher.is_file() {
        return Err(LabError::Usage(format!("{} has no rlaunch", built.display())));
    }
    remove_dir(folder)?;
    let workspace = dist::workspace();
    dist::place_sources(&workspace.join(PROOFS), folder)?;
    dist::place_sources(&workspace.join(EXAMPLE), &folder.join(EXAMPLE))?;
    let files = Path::new("lib/rlaunch").join(triple);
    dist::place_sources(&built.join(&files), &folder.join(&files))?;
    dist::place(&launcher, &folder.join("rlaunch"))?;
    check_size(folder)
}

fn check_size(folder: &Path) -> Result<(), LabError> {
    let measured = printed("measure the folder", Command::new("du").arg("-sb").arg(folder))?;
    let size = measured.split_whitespace().next().and_then(|bytes| bytes.parse::<u64>().ok());
    match size.filter(|size| *size <= MAX_SIZE) {
        Some(_) => Ok(()),
        None => Err(LabError::Unexpected(format!(
            "{} takes {} MiB, more than {}: `du -ab` shows its largest files",
            folder.display(),
            size.unwrap_or_default() >> 20,
            MAX_SIZE >> 20
        ))),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn proofs(words: &[&str]) -> String {
        let run = dist::workspace().join(PROOFS).join("run");
        let output = Command::new("python3").arg(run).args(words).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{printed}{errors}");
        printed
    }

    #[test]
    fn a_folder_has_proofs_a_launcher_and_files_of_this_architecture() {
        let (built, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (built, folder) = (built.path(), folder.path().join("gpu"));
        for triple in ["here", "elsewhere"] {
            let files = built.join("lib/rlaunch").join(triple);
            fs::create_dir_all(&files).unwrap();
            fs::write(files.join("rlaunch-worker"), "agent").unwrap();
        }
        assert!(pack_into(&folder, built, "here").is_err());
        let launcher = fs::File::create(built.join("rlaunch")).unwrap();
        pack_into(&folder, built, "here").unwrap();
        let parts = ["run", "claims/nccl.py", "stand_in/nvidia-smi", "examples/resnet/resnet.py"];
        for part in parts.iter().chain(&["rlaunch", "lib/rlaunch/here/rlaunch-worker"]) {
            assert!(folder.join(part).is_file(), "{part}");
        }
        assert!(!folder.join("lib/rlaunch/elsewhere").exists());
        launcher.set_len(MAX_SIZE).unwrap();
        let refused = pack_into(&folder, built, "here").unwrap_err().to_string();
        assert!(refused.contains(" takes 48 MiB, more than 48:"), "{refused}");
    }

    /// Without a launcher, as in `cargo test` before any build of the lab, there is nothing to run.
    #[test]
    fn rows_are_red_beside_tools_that_lie() {
        let launcher = dist::launcher(Profile::Lab).unwrap();
        if launcher.exists() {
            let launcher = launcher.display().to_string();
            let rows = ["--prove-rows", "--rlaunch", &launcher, "--only", "listed,topo,variables"];
            let printed = proofs(&rows);
            assert!(printed.ends_with("3 rows, 10 lies: none wrong\n"), "{printed}");
        }
    }
}
