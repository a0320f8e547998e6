//! Tests of the real rlaunch on hosts made of network namespaces, each with a real sshd. `cargo lab
//! test --stage netns` runs them, each alone on its hosts.

#![expect(
    clippy::unwrap_used,
    reason = "where a helper cannot go on, its test has failed; clippy knows #[test] functions only"
)]

mod engines;
#[path = "../guide.rs"]
mod guide;
mod running;
mod support;
mod terminal;
#[path = "../../worker/fixtures/tree.rs"]
mod tree;

mod aarch64;
mod abuse;
mod apps;
mod bench;
mod callback;
mod communicator;
mod config;
mod containers;
mod copy;
mod copy_images;
mod delivery;
mod detached;
mod doctor;
mod doctor_fix;
mod dry_run;
mod ending;
mod environment;
mod example;
mod failing;
mod field;
mod first_contact;
mod frameworks;
mod gpu;
mod guides;
mod hang;
mod hello;
mod horovod;
mod hosts;
mod images;
mod jobs;
mod jump;
mod keys;
mod library;
mod live;
mod local;
mod lost;
mod missing;
mod monitor;
mod mpi;
mod network;
mod network_plan;
mod oob;
mod output;
mod packages;
mod peers;
mod placement;
mod printing;
mod rank_table;
mod rekey;
mod report;
mod restarts;
mod rsh;
mod services;
mod sessions;
mod shells;
mod shipped;
mod singleton;
mod slurm;
mod ssh_setup;
mod standstill;
mod starters;
mod stdin;
mod stragglers;
mod sync;
mod systemd;
mod teardown;
mod topo;
mod training;
mod unreachable;
mod up;
mod up_faults;
mod up_systemd;
mod words;
