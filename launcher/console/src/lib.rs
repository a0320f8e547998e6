//! Foundations of the launcher's crates: messages, time limits, exit codes and text helpers.
//!
//! | files | subject |
//! |---|---|
//! | `exit`, `messages`, `progress`, `stdout`, `log` | exit codes; errors, warnings and progress on stderr; results on stdout; `-v` |
//! | `text`, `columns`, `printable`, `redact` | counts, lists and ranges; tables; text of other programs made safe to print; command lines without secrets |
//! | `shell`, `glob` | quoting for shells; patterns |
//! | `deadline`, `prompt` | time limits that restart after a suspension; whether a question to the user is open |
//! | `open_files`, `process_env` | limit of open files; environment variables and directories of this process |
//! | `panics` | what happens at a bug |

pub mod columns;
pub mod deadline;
pub mod exit;
pub mod glob;
pub mod log;
pub mod messages;
pub mod open_files;
pub mod panics;
pub mod printable;
pub mod process_env;
pub mod progress;
pub mod prompt;
pub mod redact;
pub mod shell;
pub mod stdout;
pub mod text;
