//! What every part of the launcher says and waits with: exit codes, messages, the log, deadlines.

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
