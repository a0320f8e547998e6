//! Tests that the first call of a process into rdma-core is `ibv_fork_init`, no matter which of its
//! libraries the process uses first. Stub libraries take rdma-core's place and record the calls.

#![expect(
    clippy::unwrap_used,
    reason = "where a helper cannot go on, its test has failed; clippy knows #[test] functions only"
)]

use rlaunch_verbs::{ForkSafety, Listener, devices, fork_safety};
use std::path::Path;
use std::process::Command;

/// Environment variable with the name of the library that the child process uses first. The child
/// runs this test executable again.
const FIRST_LIBRARY: &str = "RLAUNCH_TEST_BEGINS";
const CALLS: &str = "RLAUNCH_TEST_CALLS";

const NOTE: &str = r#"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
static void note(const char *name)
{
    FILE *file = fopen(getenv("RLAUNCH_TEST_CALLS"), "a");
    fprintf(file, "%s\n", name);
    fclose(file);
}
"#;
const IBVERBS: &str = r#"
int ibv_fork_init(void) { note("ibv_fork_init"); return 0; }
void *ibv_get_device_list(int *count) { note("ibv_get_device_list"); errno = ENOSYS; return 0; }
void *ibv_open_device(void *device) { note("ibv_open_device"); return 0; }
void *ibv_reg_mr(void *domain, void *first, size_t length, int access) { note("ibv_reg_mr"); return 0; }
"#;
/// Function that rdma-core has had since version 35.
const NEWER: &str = r#"
int ibv_is_fork_initialized(void) { note("ibv_is_fork_initialized"); return 2; }
"#;
const RDMACM: &str = r#"
void *rdma_create_event_channel(void) { note("rdma_create_event_channel"); errno = ENODEV; return 0; }
"#;

fn compile(directory: &Path, name: &str, parts: &[&str]) {
    let source = directory.join("library.c");
    std::fs::write(&source, parts.concat()).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-o"]).arg(directory.join(name)).arg(&source);
    assert!(cc.status().unwrap().success());
}

/// Runs a process that uses `first_library` first. Returns the process's calls in order, and
/// its [`ForkSafety`].
fn recorded_calls(first_library: &str, ibverbs: &[&str]) -> (Vec<String>, String) {
    let name = format!("rlaunch-fork-{}-{first_library}-{}", std::process::id(), ibverbs.len());
    let directory = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&directory).unwrap();
    compile(&directory, "libibverbs.so.1", ibverbs);
    compile(&directory, "librdmacm.so.1", &[NOTE, RDMACM]);
    let written = directory.join("calls");
    let mut this = Command::new(std::env::current_exe().unwrap());
    this.args(["--exact", "the_process_that_is_watched", "--nocapture"]);
    this.env(FIRST_LIBRARY, first_library).env(CALLS, &written).env("LD_LIBRARY_PATH", &directory);
    let ran = this.output().unwrap();
    let output = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(ran.status.success(), "{output}");
    let calls = std::fs::read_to_string(&written).unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
    let safety = output.lines().find_map(|line| line.strip_prefix("safety ")).unwrap();
    (calls.lines().map(str::to_owned).collect(), safety.to_owned())
}

#[test]
fn the_process_that_is_watched() {
    match std::env::var(FIRST_LIBRARY).as_deref() {
        Ok("devices") => drop(devices().unwrap_err()),
        Ok("manager") => drop(Listener::bind(([127, 0, 0, 1], 0).into(), 1).unwrap_err()),
        _ => return,
    }
    let safety = fork_safety();
    assert_ne!(safety, ForkSafety::Disabled);
    println!("\nsafety {safety:?}");
}

#[test]
fn forks_are_prepared_before_any_device_is_looked_for() {
    for (first_library, first) in
        [("devices", "ibv_get_device_list"), ("manager", "rdma_create_event_channel")]
    {
        let (called, safety) = recorded_calls(first_library, &[NOTE, IBVERBS, NEWER]);
        assert_eq!(called, ["ibv_fork_init", "ibv_is_fork_initialized", first]);
        assert_eq!(safety, "Unneeded");
        // Before version 35, the result of ibv_fork_init is the only information.
        let (called, safety) = recorded_calls(first_library, &[NOTE, IBVERBS]);
        assert_eq!(called, ["ibv_fork_init", first]);
        assert_eq!(safety, "Enabled");
    }
}
