//! Fuzzing targets: every decoder of outside input, and the state machines behind them.
//!
//! A target takes any bytes and panics only if the code under test is wrong. Its seeds are valid
//! messages; `corpus/TARGET/` has inputs that once found new code paths or bugs.

mod callback;
mod client;
mod comm;
mod copy;
mod frames;
mod horovod;
mod launcher;
mod library;
mod mesh;
mod pmi;
mod pmi1;
mod pmix;
mod secure;
mod ssh;
mod stream;
mod table;
mod tree;

/// Fuzzing target.
#[derive(Clone, Copy)]
pub struct Target {
    /// Name on the command line.
    pub name: &'static str,
    /// Runs the code under test on an input; panics if it is wrong.
    pub run: fn(&[u8]),
    /// Returns valid inputs, which the fuzzer varies.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target { name: "to-agent", run: frames::to_agent, seeds: frames::to_agent_seeds },
    Target { name: "from-agent", run: frames::from_agent, seeds: frames::from_agent_seeds },
    Target { name: "to-prover", run: mesh::to_prover, seeds: mesh::to_prover_seeds },
    Target { name: "endpoints", run: mesh::endpoints, seeds: mesh::endpoints_seeds },
    Target { name: "ssh-config", run: ssh::config, seeds: ssh::config_seeds },
    Target { name: "known-hosts", run: ssh::known_hosts, seeds: ssh::known_hosts_seeds },
    Target { name: "key-file", run: ssh::key_file, seeds: ssh::key_file_seeds },
    Target { name: "certificate", run: ssh::certificate, seeds: ssh::certificate_seeds },
    Target { name: "hostfile", run: launcher::hostfile, seeds: launcher::hostfile_seeds },
    Target { name: "host-list", run: launcher::host_list, seeds: launcher::host_list_seeds },
    Target {
        name: "live-messages",
        run: launcher::live_messages,
        seeds: launcher::live_messages_seeds,
    },
    Target { name: "stack-order", run: frames::stack_order, seeds: frames::stack_order_seeds },
    Target { name: "changes", run: frames::changes, seeds: frames::changes_seeds },
    Target { name: "hello", run: frames::hello, seeds: frames::hello_seeds },
    Target { name: "edge", run: tree::edge, seeds: tree::edge_seeds },
    Target { name: "node", run: tree::node, seeds: tree::node_seeds },
    Target { name: "server", run: tree::server, seeds: tree::server_seeds },
    Target { name: "gathered", run: tree::gathered, seeds: tree::gathered_seeds },
    Target { name: "from-rank", run: client::from_rank, seeds: client::from_rank_seeds },
    Target { name: "to-rank", run: client::to_rank, seeds: client::to_rank_seeds },
    Target { name: "library", run: library::archive, seeds: library::archive_seeds },
    Target { name: "handshake", run: secure::handshake, seeds: secure::handshake_seeds },
    Target { name: "sealed", run: secure::sealed, seeds: secure::sealed_seeds },
    Target { name: "callback", run: callback::opening, seeds: callback::opening_seeds },
    Target {
        name: "announcement",
        run: callback::announcement,
        seeds: callback::announcement_seeds,
    },
    Target { name: "packets", run: comm::packets, seeds: comm::packets_seeds },
    Target { name: "wire-up", run: comm::contact_and_hello, seeds: comm::contact_and_hello_seeds },
    Target { name: "copy-frames", run: copy::frames, seeds: copy::frames_seeds },
    Target { name: "copy-manifest", run: copy::manifest, seeds: copy::manifest_seeds },
    Target { name: "copy-control", run: copy::control, seeds: copy::control_seeds },
    Target { name: "copy-hop", run: copy::hop, seeds: copy::hop_seeds },
    Target { name: "horovod", run: horovod::requests, seeds: horovod::requests_seeds },
    Target { name: "cluster", run: launcher::cluster, seeds: launcher::cluster_seeds },
    Target { name: "variables", run: launcher::variables, seeds: launcher::variables_seeds },
    Target { name: "tag-pattern", run: launcher::tag_pattern, seeds: launcher::tag_pattern_seeds },
    Target {
        name: "test-program",
        run: launcher::test_program,
        seeds: launcher::test_program_seeds,
    },
    Target { name: "table", run: table::table, seeds: table::table_seeds },
    Target { name: "table-message", run: table::message, seeds: table::message_seeds },
    Target { name: "pmi1", run: pmi1::dialogue, seeds: pmi1::dialogue_seeds },
    Target { name: "pmix", run: pmix::dialogue, seeds: pmix::dialogue_seeds },
];

/// Returns the target of this name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
