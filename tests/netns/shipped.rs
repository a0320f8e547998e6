//! Files that are sent to hosts: they load on hosts with old C libraries, and for a host that none
//! of them fits, the error says what to add.

use crate::support::Field;
use rlaunch_lab::Account;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The oldest version of glibc that hosts may have.
const OLDEST: (u32, u32) = (2, 28);
/// Libraries of glibc, and others that every host has.
const OF_HOSTS: [&str; 6] =
    ["libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "libgcc_s.so.1", "ld-linux"];

/// Programs that need no C library of the host.
const STATIC: [&str; 3] = ["rlaunch-worker", "rlaunch-stack", "rlaunch-copier"];

/// Lists the executables and libraries below a directory. `bin` is left out: there, agents that run
/// from this directory leave themselves under another name.
fn binaries(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.ends_with("bin") {
            continue;
        }
        if path.is_dir() {
            found.extend(binaries(&path));
        } else if !path.is_symlink() && fs::read(&path).unwrap().starts_with(b"\x7fELF") {
            found.push(path);
        }
    }
    found
}

/// Returns the output of `readelf` about a file.
fn readelf(what: &str, file: &Path) -> String {
    let mut readelf = Command::new("readelf");
    let output = readelf.args(["--wide", what]).arg(file).env("LC_ALL", "C").output().unwrap();
    assert!(output.status.success(), "{}: {output:?}", file.display());
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns the names of the libraries that a file needs.
fn needed(file: &Path) -> Vec<String> {
    let text = readelf("--dynamic", file);
    let lines = text.lines().filter(|line| line.contains("(NEEDED)"));
    lines.map(|line| line.split(['[', ']']).nth(1).unwrap().to_owned()).collect()
}

/// Returns the newest version of glibc whose symbols a file needs, `None` if the file needs none.
fn glibc(file: &Path) -> Option<(u32, u32)> {
    let text = readelf("--version-info", file);
    let needs = text.split("Version needs section").nth(1)?;
    let words = needs.split_whitespace().filter_map(|word| word.strip_prefix("GLIBC_"));
    let numbers = words.map(|version| {
        let mut numbers = version.split('.').map(|number| number.parse().unwrap());
        (numbers.next().unwrap(), numbers.next().unwrap())
    });
    numbers.max()
}

#[test]
fn what_is_shipped_loads_with_glibc_2_28() {
    let field = Field::new();
    let mut files: BTreeMap<String, PathBuf> = BTreeMap::new();
    for arch in ["x86_64", "aarch64"] {
        let directory = field.shipped(arch);
        let found = if directory.exists() { binaries(&directory) } else { Vec::new() };
        for file in found {
            let name = file.file_name().unwrap().to_string_lossy().into_owned();
            files.insert(format!("{name} {arch}"), file);
        }
    }
    let own = std::env::consts::ARCH;
    let others = ["rlaunch-bench", "librlaunch.so", "_rlaunch.abi3.so"];
    for name in STATIC.into_iter().chain(others) {
        let known = files.contains_key(&format!("{name} {own}"));
        assert!(known, "no {name}: {files:#?}");
    }
    files.insert("rlaunch".into(), field.rlaunch.clone());
    for (name, file) in files {
        let (needed, newest) = (needed(&file), glibc(&file));
        if STATIC.iter().any(|program| name.starts_with(program)) {
            assert!(needed.is_empty() && newest.is_none(), "{name}: {needed:?} {newest:?}");
            continue;
        }
        let foreign = |library: &&String| !OF_HOSTS.iter().any(|known| library.starts_with(known));
        assert_eq!(needed.iter().find(foreign), None, "{name}: {needed:?}");
        // A file that needs no symbol of glibc was not parsed correctly.
        assert!(newest.is_some_and(|newest| newest <= OLDEST), "{name}: {newest:?}");
    }
}

#[test]
fn a_host_that_no_agent_fits() {
    let field = Field::new();
    field.forget_agents(&["b"], Account::Root);
    let _machine = field.machine("b", "riscv64");
    let ran = field.rlaunch("-H a,b hostname").run();
    ran.refused(202, &["b: no agent for riscv64 at "]);
    ran.hints("lib/rlaunch/riscv64-unknown-linux-gnu/rlaunch-worker");
}
