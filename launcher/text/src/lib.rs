//! Text of the launcher, without a terminal: what its crates say, as values and pure functions.
//!
//! | file | subject |
//! |---|---|
//! | `message`, `exit` | errors, warnings and hints before they are printed; exit codes |
//! | `text`, `columns` | counts, lists, ranges, similar names, texts of files that are not in UTF-8; tables |
//! | `style` | colours, which a stream that is no terminal gets without |
//! | `shell`, `glob` | command lines quoted for shells, and without secrets; patterns |
//! | `typed` | the command line of a job, as it should have been typed |
//! | `firewall` | lines that open ports |
//! | `printable` | text of other programs made safe to print; escape sequences, which print nothing |

pub mod columns;
pub mod exit;
pub mod firewall;
pub mod glob;
pub mod message;
pub mod printable;
pub mod shell;
pub mod style;
pub mod text;
pub mod typed;
