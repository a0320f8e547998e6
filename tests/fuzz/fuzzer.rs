//! libFuzzer on the target that `RLAUNCH_FUZZ` names. It writes the seeds into the directory that
//! `RLAUNCH_FUZZ_SEEDS` names. With `RLAUNCH_FUZZ=list` it lists all targets.
#![no_main]

use rlaunch_fuzz::{TARGETS, Target, target};
use std::path::PathBuf;
use std::sync::LazyLock;
use std::{env, fs, process};

static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    let name = env::var("RLAUNCH_FUZZ").unwrap_or_default();
    target(&name).unwrap_or_else(|| panic!("RLAUNCH_FUZZ={name:?} names no target"))
});

fn prepare() {
    if env::var("RLAUNCH_FUZZ").as_deref() == Ok("list") {
        TARGETS.iter().for_each(|target| println!("{}", target.name));
        process::exit(0);
    }
    let Some(directory) = env::var_os("RLAUNCH_FUZZ_SEEDS").map(PathBuf::from) else { return };
    for (number, seed) in (TARGET.seeds)().iter().enumerate() {
        let path = directory.join(format!("seed-{number}"));
        fs::write(&path, seed).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

libfuzzer_sys::fuzz_target!(init: prepare(), |data: &[u8]| (TARGET.run)(data));
