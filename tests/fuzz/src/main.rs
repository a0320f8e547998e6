//! `rlaunch-fuzz TARGET FILE...` replays files, such as those that `cargo lab fuzz` finds.

use std::process::ExitCode;

fn main() -> ExitCode {
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
