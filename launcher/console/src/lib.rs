//! Messages, exit codes and deadlines of every part of the launcher.
//!
//! | files | subject |
//! |---|---|
//! | `exit`, `report`, `log`, `columns` | exit codes, errors and warnings, `-v`, tables |
//! | `printable`, `redact` | text of other programs made safe to print; command lines without secrets |
//! | `deadline`, `waiting`, `prompt` | time limits by the launcher's clock; a sentence on what a job waits for; open questions |
//! | `open_files`, `surroundings` | the limit of open files; environment and directories of this process |
//! | `glob`, `shell_words` | patterns, and quoting for shells |

pub mod columns;
pub mod deadline;
pub mod exit;
pub mod glob;
pub mod log;
pub mod open_files;
pub mod printable;
pub mod prompt;
pub mod redact;
pub mod report;
pub mod shell_words;
pub mod surroundings;
pub mod waiting;
