//! Parts of `rlaunch-copier`, the program that copies files along a chain of hosts.
//!
//! | module | contents |
//! |---|---|
//! | `meter` | what a host spends its time on |
//! | [`files`] | what is in a directory, and what is written to one |
//! | [`images`] | images of container engines, as files |
//! | [`link`] | connections between two neighbours of the chain |
//! | [`role`] | what the program does: receive and pass on, send, fetch, carry bytes |

pub mod files;
pub mod images;
pub mod link;
mod meter;
pub mod role;
