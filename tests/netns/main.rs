//! The real rlaunch on hosts that are network namespaces, each with a real sshd: `cargo lab test
//! --stage netns` runs these tests, one at a time.

mod running;
mod support;

mod failing;
mod hello;
mod missing;
mod unreachable;
