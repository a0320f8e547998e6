//! Terminal of the launcher: messages, progress, logs, time limits.
//!
//! | files | subject |
//! |---|---|
//! | `messages`, `progress`, `stdout` | errors, warnings, log lines and progress on stderr; results on stdout |
//! | `line_writer` | lines to a reader that may not read |
//! | `deadline` | time limits that restart after a suspension |
//! | `open_files`, `file_size` | limits of open files, and of the size of files |
//! | `process_env` | environment variables and directories of this process |
//! | `panics` | what happens at a bug |

pub mod deadline;
pub mod file_size;
pub mod line_writer;
pub mod messages;
pub mod open_files;
pub mod panics;
pub mod process_env;
pub mod progress;
pub mod stdout;
