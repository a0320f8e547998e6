//! How programs that ship are built: the same sources give the same bytes in any checkout and any home, without tables for
//! unwinding the stack, a tenth of each program.
//!
//! Programs that ship end at a panic, so nothing reads the tables. The compiler cannot leave them out: the standard library
//! was compiled with them, and code that is optimised together with it gets them too. The linker can.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{cargo, rustc, workspace};
use crate::{LabError, files};

/// Linker script that drops the tables, and is otherwise the linker's own.
const SCRIPT: &str = "\
SECTIONS { /DISCARD/ : { *(.eh_frame) *(.eh_frame.*) *(.gcc_except_table .gcc_except_table.*) } }
INSERT AFTER .text;
";

/// Makes a cargo command that builds what ships; the caller appends what to build.
///
/// Panic messages name source files. Those of this workspace are relative to it, those of other crates lie in cargo's
/// home, those of the standard library in the toolchain if its sources are installed.
pub(super) fn release_cargo() -> Result<Command, LabError> {
    let mut command = cargo();
    command.arg("--config").arg(rustflags(&cargo_home(), &workspace(), &standard_library()?));
    Ok(command)
}

/// Formats cargo's setting that replaces paths of this machine in what is built.
fn rustflags(home: &Path, workspace: &Path, (sources, name): &(PathBuf, String)) -> String {
    let remap = |from: &Path, to: &str| format!("--remap-path-prefix={}={to}", from.display());
    let flags = [remap(workspace, "/rlaunch"), remap(home, "/cargo"), remap(sources, name)];
    // An array of strings is the same in JSON and TOML.
    format!("build.rustflags={}", serde_json::json!(flags))
}

/// Returns cargo's home, in which it unpacks crates.
fn cargo_home() -> PathBuf {
    let home = || PathBuf::from(env::var_os("HOME").unwrap_or_default()).join(".cargo");
    env::var_os("CARGO_HOME").map_or_else(home, PathBuf::from)
}

/// Returns where rustup puts the sources of the standard library, and their name without them.
fn standard_library() -> Result<(PathBuf, String), LabError> {
    let (sysroot, version) = (rustc(&["--print", "sysroot"])?, rustc(&["-vV"])?);
    let commit = version.lines().find_map(|line| line.strip_prefix("commit-hash: "));
    let sources = Path::new(sysroot.trim()).join("lib/rustlib/src/rust");
    Ok((sources, format!("/rustc/{}", commit.unwrap_or("unknown"))))
}

/// Way in which rustc calls a linker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LinkerCall {
    /// Call through a C compiler.
    Compiler,
    /// Call of the linker itself.
    Linker,
}

/// Returns arguments of rustc that link a program without the tables. The script is written to `target`, the directory
/// of cargo.
pub(super) fn without_tables(target: &Path, call: LinkerCall) -> Result<Vec<String>, LabError> {
    let script = target.join("no-unwinding.ld");
    files::make_dir(target)?;
    files::write(&script, SCRIPT, 0o644)?;
    let script = script.display();
    let words = match call {
        LinkerCall::Compiler => format!("-Wl,--no-eh-frame-hdr,-T,{script}"),
        LinkerCall::Linker => format!("-T{script}"),
    };
    Ok(vec!["-C".to_owned(), format!("link-arg={words}")])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_replace_the_paths_of_this_machine() {
        let library = (PathBuf::from("/toolchain/src"), "/rustc/1".to_owned());
        let flags = rustflags(Path::new("/home/a b/.cargo"), Path::new("/home/src"), &library);
        let expected = r#"build.rustflags=["--remap-path-prefix=/home/src=/rlaunch","#;
        assert!(flags.starts_with(expected), "{flags}");
        assert!(flags.contains(r#""--remap-path-prefix=/home/a b/.cargo=/cargo""#), "{flags}");
        assert!(flags.ends_with(r#""--remap-path-prefix=/toolchain/src=/rustc/1"]"#), "{flags}");
    }
}
