//! `cargo lab gpu`: a folder with all that a machine with a GPU needs to prove the claims about GPUs. The proofs are
//! `tests/gpu/`; this packs them with a launcher.

use std::fs;
use std::path::{Path, PathBuf};

use crate::LabError;
use crate::dist::{self, Profile};

/// Maximum size of the folder in bytes: what travels to such a machine.
const MAX_SIZE: u64 = 48 << 20;
/// Examples that proofs run, from the workspace.
const EXAMPLES: &[&str] = &["examples/resnet"];
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
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(LabError::io(format!("remove {}", folder.display())))?;
    }
    let workspace = dist::workspace();
    dist::place_sources(&workspace.join(PROOFS), folder)?;
    for example in EXAMPLES {
        dist::place_sources(&workspace.join(example), &folder.join(example))?;
    }
    let files = Path::new("lib/rlaunch").join(triple);
    dist::place_sources(&built.join(&files), &folder.join(&files))?;
    dist::place(&launcher, &folder.join("rlaunch"))?;
    check_size(folder)
}

fn check_size(folder: &Path) -> Result<(), LabError> {
    let mut files = Vec::new();
    list(folder, &mut files).map_err(LabError::io(format!("read {}", folder.display())))?;
    let size: u64 = files.iter().map(|(size, _)| size).sum();
    let largest = files.into_iter().max();
    match largest.filter(|_| size > MAX_SIZE) {
        None => Ok(()),
        Some((_, largest)) => Err(LabError::Unexpected(format!(
            "{} takes {} MiB, more than {}; its largest file is {}",
            folder.display(),
            size >> 20,
            MAX_SIZE >> 20,
            largest.display()
        ))),
    }
}

/// Lists the files below a folder with their sizes.
fn list(folder: &Path, files: &mut Vec<(u64, PathBuf)>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        match entry.metadata()? {
            metadata if metadata.is_dir() => list(&entry.path(), files)?,
            metadata => files.push((metadata.len(), entry.path())),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Makes a directory as `cargo lab build` does, with a launcher of this size.
    fn built(size: u64) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let files = directory.path().join("lib/rlaunch/here");
        fs::create_dir_all(&files).unwrap();
        fs::write(files.join("rlaunch-worker"), "agent").unwrap();
        fs::create_dir_all(directory.path().join("lib/rlaunch/elsewhere")).unwrap();
        fs::File::create(directory.path().join("rlaunch")).unwrap().set_len(size).unwrap();
        directory
    }

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
        let (built, folder) = (built(10), tempfile::tempdir().unwrap());
        let folder = folder.path().join("gpu");
        // What an earlier call has left is gone.
        for _ in 0..2 {
            pack_into(&folder, built.path(), "here").unwrap();
            fs::write(folder.join("old"), "").unwrap();
        }
        let parts = ["run", "claims/nccl.py", "stand_in/nvidia-smi", "examples/resnet/resnet.py"];
        for part in parts.iter().chain(&["rlaunch", "lib/rlaunch/here/rlaunch-worker"]) {
            assert!(folder.join(part).is_file(), "{part}");
        }
        assert!(!folder.join("lib/rlaunch/elsewhere").exists());
        assert!(pack_into(&folder, &folder.join("claims"), "here").is_err());
    }

    #[test]
    fn a_folder_that_is_too_large_is_refused() {
        let (built, folder) = (built(MAX_SIZE), tempfile::tempdir().unwrap());
        let error = pack_into(&folder.path().join("gpu"), built.path(), "here").unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains(" takes 48 MiB, more than 48;") && text.ends_with("/rlaunch"),
            "{text}"
        );
    }

    #[test]
    fn every_claim_has_a_row() {
        let printed = proofs(&["--list"]);
        for row in ["topo", "shared-2", "skipped", "restarted", "resnet"] {
            assert!(printed.lines().any(|line| line.starts_with(&format!("{row} "))), "{printed}");
        }
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
