//! Parts of `rlaunch-copier`, the program that copies files along a chain of hosts.
//!
//! | module | contents |
//! |---|---|
//! | [`files`] | what is in a directory, and what is written to one |

pub mod files;
