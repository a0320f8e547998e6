//! The life of a job, from agents that know nothing to how it ended.

pub(crate) mod conclusion;
pub(crate) mod container_check;
pub(crate) mod crew;
pub(crate) mod dry_run;
pub(crate) mod events;
pub(crate) mod first_failure;
pub(crate) mod mesh;
pub(crate) mod output;
pub(crate) mod preflight_report;
pub(crate) mod record;
pub(crate) mod rendezvous;
pub(crate) mod restart;
pub(crate) mod session;
pub(crate) mod show;
pub(crate) mod signals;
pub(crate) mod stdin;
pub(crate) mod watch;
