//! What is fuzzed: every decoder of what comes from outside, and the machines behind them.
//!
//! A target takes any bytes and panics only when the code under test is wrong. Its seeds are real
//! messages; `corpus/TARGET/` holds inputs that once found something new or something wrong.

// The launcher's own tests of these modules run in the launcher.
#![cfg(not(test))]

mod callback;
mod client;
mod comm;
mod config;
mod frames;
mod horovod;
mod host_lists;
mod library;
mod mesh;
mod pattern;
mod secure;
mod ssh;
mod table;
mod tree;

/// The launcher is a program and no library, so what it reads is taken by its path.
#[path = "../../../launcher/src/ssh"]
#[expect(dead_code, reason = "of these modules only what reads files is run")]
mod files {
    pub(crate) mod certificate;
    pub(crate) mod config;
    pub(crate) mod keys;
    pub(crate) mod known_hosts;
}

/// The same of what people write for a launcher.
#[path = "../../../launcher/src/cli/config"]
#[expect(dead_code, reason = "of these modules only what reads files is run")]
mod settings {
    pub(crate) mod error;
    pub(crate) mod file;
}

#[path = "../../../launcher/src/plan/rank_env"]
#[expect(dead_code, reason = "the file's content is run, not the file")]
mod variables {
    pub(crate) mod env_file;
}

#[path = "../../../launcher/src/console/glob.rs"]
mod glob;

/// Commands of `Match exec` are never run here, so they need no limit of their own.
mod console {
    pub(crate) use super::glob;

    pub(crate) mod open_files {
        pub(crate) fn give_back(_: &mut std::process::Command) {}
    }
}

/// And the tags of lines, which a user types.
#[path = "../../../launcher/src/job"]
mod tags {
    pub(crate) mod tag_pattern;
}

/// The same for those who name hosts.
#[path = "../../../launcher/src/hosts"]
#[expect(dead_code, reason = "of these modules only what reads lists and files is run")]
mod hosts {
    pub(crate) mod host_table;
    mod list;

    pub(crate) use list::{Host, hostfile, parse, ranges};
}

/// Something that takes any bytes.
#[derive(Clone, Copy)]
pub struct Target {
    /// As the command line has it.
    pub name: &'static str,
    /// Panics when something is wrong.
    pub run: fn(&[u8]),
    /// Inputs that mean something.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All of them.
pub const TARGETS: &[Target] = &[
    Target { name: "to-agent", run: frames::to_agent, seeds: frames::to_agent_seeds },
    Target { name: "from-agent", run: frames::from_agent, seeds: frames::from_agent_seeds },
    Target { name: "to-prover", run: mesh::to_prover, seeds: mesh::to_prover_seeds },
    Target { name: "endpoints", run: mesh::endpoints, seeds: mesh::endpoints_seeds },
    Target { name: "ssh-config", run: ssh::config, seeds: ssh::config_seeds },
    Target { name: "known-hosts", run: ssh::known_hosts, seeds: ssh::known_hosts_seeds },
    Target { name: "key-file", run: ssh::key_file, seeds: ssh::key_file_seeds },
    Target { name: "certificate", run: ssh::certificate, seeds: ssh::certificate_seeds },
    Target { name: "hostfile", run: host_lists::file, seeds: host_lists::file_seeds },
    Target { name: "host-list", run: host_lists::list, seeds: host_lists::list_seeds },
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
    Target { name: "wire-up", run: comm::wire_up, seeds: comm::wire_up_seeds },
    Target { name: "horovod", run: horovod::requests, seeds: horovod::requests_seeds },
    Target { name: "cluster", run: config::cluster, seeds: config::cluster_seeds },
    Target { name: "variables", run: config::variables, seeds: config::variables_seeds },
    Target { name: "tag-pattern", run: pattern::pattern, seeds: pattern::pattern_seeds },
    Target { name: "table", run: table::table, seeds: table::table_seeds },
];

/// The target of this name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

/// Cuts `data` as its first byte says: streams arrive in any parts.
fn parts(data: &[u8]) -> impl Iterator<Item = &[u8]> {
    let (cut, rest) = data.split_first().map_or((1, data), |(cut, rest)| (usize::from(*cut), rest));
    rest.chunks(if cut == 0 { usize::MAX } else { cut })
}

/// A stream in one part, as [`parts`] reads it.
fn whole(bytes: impl IntoIterator<Item = u8>) -> Vec<u8> {
    std::iter::once(0).chain(bytes).collect()
}
