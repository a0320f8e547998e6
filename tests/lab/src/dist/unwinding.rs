//! Programs without tables for unwinding the stack, a tenth of each. Programs that ship end at a panic, so nothing reads
//! the tables. The compiler cannot leave them out: the standard library was compiled with them, and code that is optimised
//! together with it gets them too. The linker can.

use std::path::Path;

use crate::{LabError, files};

/// Linker script that drops the tables, and is otherwise the linker's own.
const SCRIPT: &str = "\
SECTIONS { /DISCARD/ : { *(.eh_frame) *(.eh_frame.*) *(.gcc_except_table .gcc_except_table.*) } }
INSERT AFTER .text;
";

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
