//! Messages, exit codes and deadlines of every part of the launcher.
//!
//! | files | subject |
//! |---|---|
//! | `exit`, `report`, `log`, `columns` | exit codes, errors and warnings, `-v`, tables |
//! | `printable`, `redact` | text of other programs made safe to print; command lines without secrets |
//! | `deadline`, `waiting`, `prompt` | time limits by the launcher's clock; a sentence on what a job waits for; open questions |
//! | `open_files`, `surroundings` | the limit of open files; environment and directories of this process |
//! | `glob`, `shell_words` | patterns, and quoting for shells |

pub(crate) mod columns;
pub(crate) mod deadline;
pub(crate) mod exit;
pub(crate) mod glob;
pub(crate) mod log;
pub(crate) mod open_files;
pub(crate) mod printable;
pub(crate) mod prompt;
pub(crate) mod redact;
pub(crate) mod report;
pub(crate) mod shell_words;
pub(crate) mod surroundings;
pub(crate) mod waiting;
