//! Tests that run the Rust examples with one rank. The C and Python libraries have tests for their
//! own examples.

use std::process::Command;
use std::{env, io};

/// Runs an example, which Cargo has built beside this test. Returns whether it succeeded, and its
/// standard output.
fn run_example(example: &str) -> io::Result<(bool, String)> {
    let deps = env::current_exe()?;
    let built = deps.ancestors().nth(2).ok_or(io::ErrorKind::NotFound)?;
    let mut command = Command::new(built.join("examples").join(example));
    command.env_remove("RLAUNCH_SOCKET").env_remove("RLAUNCH_HOST").env_remove("WORLD_SIZE");
    let ran = command.output()?;
    Ok((ran.status.success(), String::from_utf8_lossy(&ran.stdout).into_owned()))
}

#[test]
fn hello_says_who_is_there() {
    let expected = (true, "rank 0 of 1, 0 of 1 on this host\n".to_owned());
    assert_eq!(run_example("hello").unwrap(), expected);
}

#[test]
fn all_reduce_adds_up() {
    let expected = (true, "1 ranks: 1048576 elements, sum 1 everywhere\n".to_owned());
    assert_eq!(run_example("all_reduce").unwrap(), expected);
}
