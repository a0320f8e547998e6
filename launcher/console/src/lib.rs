//! Terminal of the launcher: messages, progress, logs, time limits.
//!
//! | files | subject |
//! |---|---|
//! | `messages`, `progress`, `stdout` | errors, warnings, log lines and progress on stderr; results on stdout |
//! | `terminal` | size of the terminal, and whether it shows keys |
//! | `line_writer` | lines to a reader that may not read |
//! | `held` | standard streams that another process holds |
//! | `footer` | rows at the bottom of the terminal |
//! | `deadline` | time limits that restart after a suspension |
//! | `limits` | limits of open files, of the size of files, and of processes |
//! | `process_env` | environment variables and directories of this process |
//! | `panics` | what happens at a bug, or where no thread can be started |
//! | `signals` | signals that tell this process to end |

pub mod deadline;
pub mod footer;
pub mod held;
pub mod limits;
pub mod line_writer;
pub mod messages;
pub mod panics;
pub mod process_env;
pub mod progress;
pub mod signals;
pub mod stdout;
pub mod terminal;
