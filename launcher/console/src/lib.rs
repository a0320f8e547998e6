//! Terminal of the launcher: messages, progress, logs, time limits.
//!
//! | files | subject |
//! |---|---|
//! | `messages`, `progress`, `stdout`, `log` | errors, warnings and progress on stderr; results on stdout; `-v` |
//! | `line_writer` | lines to a reader that may not read |
//! | `deadline`, `prompt` | time limits that restart after a suspension; whether a question to the user is open |
//! | `open_files`, `process_env` | limit of open files; environment variables and directories of this process |
//! | `panics` | what happens at a bug |

pub mod deadline;
pub mod line_writer;
pub mod log;
pub mod messages;
pub mod open_files;
pub mod panics;
pub mod process_env;
pub mod progress;
pub mod prompt;
pub mod stdout;
