//! `rlaunch-fuzz TARGET FILE...` hands files to a target. Built by `cargo lab fuzz` it is a fuzzer
//! for the target that `RLAUNCH_FUZZ` names; it puts the seeds into the directory that
//! `RLAUNCH_FUZZ_SEEDS` names, and for the name `list` it lists all targets.
#![cfg_attr(feature = "libfuzzer", no_main)]

#[cfg(feature = "libfuzzer")]
mod fuzzer {
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
}

#[cfg(not(feature = "libfuzzer"))]
fn main() -> std::process::ExitCode {
    use std::process::ExitCode;

    let mut words = std::env::args().skip(1);
    let known = || rlaunch_fuzz::TARGETS.iter().map(|target| target.name);
    let Some(target) = words.next().and_then(|name| rlaunch_fuzz::target(&name)) else {
        eprintln!("usage: rlaunch-fuzz TARGET FILE...");
        eprintln!("targets: {}", known().collect::<Vec<_>>().join(" "));
        return ExitCode::from(2);
    };
    for file in words {
        match std::fs::read(&file) {
            Ok(input) => (target.run)(&input),
            Err(error) => {
                eprintln!("cannot read {file}: {error}");
                return ExitCode::FAILURE;
            }
        }
        println!("{file}: handled");
    }
    ExitCode::SUCCESS
}
