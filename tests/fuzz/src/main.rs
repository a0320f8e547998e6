//! `rlaunch-fuzz TARGET [PATH...]` replays the seeds of a target and files, such as those that `cargo lab fuzz` finds; of
//! a folder, all its files. `rlaunch-fuzz list` lists the targets.

use std::path::PathBuf;
use std::process::ExitCode;
use std::{fs, io};

use rlaunch_fuzz::{TARGETS, Target};

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let name = words.next().unwrap_or_default();
    if name == "list" {
        TARGETS.iter().for_each(|target| println!("{}", target.name));
        return ExitCode::SUCCESS;
    }
    let Some(target) = rlaunch_fuzz::target(&name) else {
        eprintln!("usage: rlaunch-fuzz TARGET [PATH...], or rlaunch-fuzz list");
        return ExitCode::from(2);
    };
    (target.seeds)().iter().for_each(|seed| (target.run)(seed));
    match words.try_fold(0, |count, path| Ok(count + replay(target, path.into())?)) {
        Ok(files) => {
            println!("seeds and {files} files handled");
            ExitCode::SUCCESS
        }
        Err(Unreadable { path, error }) => {
            eprintln!("cannot read {}: {error}", path.display());
            ExitCode::FAILURE
        }
    }
}

/// File or folder that cannot be read.
struct Unreadable {
    path: PathBuf,
    error: io::Error,
}

/// Runs a target on a file, or on all files of a folder; returns how many there were.
fn replay(target: &Target, path: PathBuf) -> Result<usize, Unreadable> {
    let unreadable = |path: PathBuf| move |error| Unreadable { path, error };
    if !path.is_dir() {
        let input = fs::read(&path).map_err(unreadable(path.clone()))?;
        // The last name is that of the input at which a run ends.
        eprintln!("{}", path.display());
        (target.run)(&input);
        return Ok(1);
    }
    let files: Vec<_> =
        fs::read_dir(&path).and_then(Iterator::collect).map_err(unreadable(path))?;
    files.into_iter().try_fold(0, |count, file| Ok(count + replay(target, file.path())?))
}
