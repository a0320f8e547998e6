//! Files of this machine that are copied to hosts, or that hosts must have.

use super::JobError;
use rlaunch_bootstrap::job::{PreloadFile, ScriptCheck};
use rlaunch_plan::job::Preload;
use sha2::{Digest, Sha256};
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Maximum size of a script that is compared with the hosts' copies, in bytes.
const MAX_COMPARED: u64 = 1 << 20;

/// Checks that the files of `--preload` are regular files with different names, and returns them.
pub(super) fn preloads(paths: &[PathBuf]) -> Result<Vec<Preload>, JobError> {
    let mut preloads: Vec<Preload> = Vec::new();
    for path in paths {
        let failed = |source| JobError::Preload { path: path.clone(), source };
        let metadata = fs::metadata(path).map_err(failed)?;
        let name = path.file_name().filter(|_| metadata.is_file());
        let name = name.ok_or_else(|| failed(io::Error::other("it is not a file")))?.to_owned();
        if preloads.iter().any(|other| other.file.name == name) {
            return Err(JobError::PreloadTwice { name });
        }
        let mode = metadata.permissions().mode() & 0o777;
        let file = PreloadFile { typed_path: path.clone(), name, size: metadata.len(), mode };
        preloads.push(Preload { file, source: path.clone() });
    }
    Ok(preloads)
}

/// Finds the script that a program runs. If this machine has the script, hosts must have it, too. Logs the
/// other arguments that are files on this machine, since hosts may lack them.
pub(super) fn script_check(argv: &[OsString], here: &Path) -> Option<ScriptCheck> {
    let script = script_of(argv).and_then(|path| check(path, here));
    let is_script = |arg: &OsStr| script.as_ref().is_some_and(|script| script.path == arg);
    for argument in argv.iter().skip(1).filter(|arg| !is_script(arg)) {
        if here.join(argument).is_file() {
            tracing::info!("{} is a file here: do the hosts have it?", argument.display());
        }
    }
    script
}

/// Returns the requirement that each host must meet before the script `path` runs: a file exists at the path and,
/// unless the script is large, has this SHA-256. `None` if this machine does not have the script.
fn check(path: &OsStr, here: &Path) -> Option<ScriptCheck> {
    let metadata = fs::metadata(here.join(path)).ok().filter(fs::Metadata::is_file)?;
    let is_compared = metadata.len() <= MAX_COMPARED;
    let content = is_compared.then(|| fs::read(here.join(path)).ok()).flatten();
    let sha256 = content.map(|bytes| Sha256::digest(bytes).into());
    Some(ScriptCheck { path: path.into(), sha256 })
}

/// Returns the script that Python or a shell runs: the first argument that is not an option. `None` for other
/// programs.
fn script_of(argv: &[OsString]) -> Option<&OsStr> {
    let program = Path::new(argv.first()?).file_name()?.to_str()?;
    let version = program.strip_prefix("python").map(|v| v.trim_start_matches(['.', '-']));
    let is_python = version.is_some_and(|v| v.chars().all(|c| c.is_ascii_digit() || c == '.'));
    // Options whose value is the next word, and options in place of a script.
    let (takes_word, no_script): (&[&str], &[&str]) = match program {
        _ if is_python => (&["-W", "-X", "--check-hash-based-pycs"], &["-c", "-m", "-V"]),
        "bash" | "sh" => (&["-o", "+o", "-O", "+O", "--rcfile", "--init-file"], &["-c", "-s"]),
        _ => return None,
    };
    let mut words = argv[1..].iter();
    while let Some(word) = words.next() {
        let text = word.to_string_lossy();
        if no_script.contains(&&*text) || text == "-" {
            return None;
        }
        if takes_word.contains(&&*text) {
            words.next();
        } else if text == "--" {
            return words.next().map(OsString::as_os_str);
        } else if !text.starts_with(['-', '+']) {
            return Some(word);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(line: &str) -> Option<String> {
        let argv: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        script_of(&argv).map(|s| s.to_string_lossy().into_owned())
    }

    #[test]
    fn the_script_is_the_first_argument_that_is_no_option() {
        let some = |path: &str| Some(path.to_owned());
        assert_eq!(script("python train.py --epochs 3"), some("train.py"));
        assert_eq!(script("/usr/bin/python3.11 -u -W ignore ./train.py"), some("./train.py"));
        assert_eq!(script("bash -x -o pipefail run.sh a"), some("run.sh"));
        assert_eq!(script("sh -- -odd"), some("-odd"));
        for none in
            ["python -m torch", "python -c pass", "sh -c true", "./train.py", "python", "perl x"]
        {
            assert_eq!(script(none), None, "{none}");
        }
    }

    #[test]
    fn preloads_are_files_with_names_of_their_own() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x.py");
        fs::write(&file, "pass").unwrap();
        assert_eq!(preloads(std::slice::from_ref(&file)).unwrap()[0].file.size, 4);
        assert!(matches!(preloads(&[file.clone(), file]), Err(JobError::PreloadTwice { .. })));
        let directory = preloads(&[dir.path().to_owned()]);
        assert!(matches!(directory, Err(JobError::Preload { .. })));
    }
}
