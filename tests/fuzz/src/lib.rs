//! What is fuzzed: every decoder of what comes from outside, and the machines behind them.
//!
//! A target takes any bytes and panics only when the code under test is wrong. Its seeds are real
//! messages; `corpus/TARGET/` holds inputs that once found something new or something wrong.

mod callback;
mod client;
mod comm;
mod frames;
mod horovod;
mod library;
mod mesh;
mod secure;
mod table;
mod tree;

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

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    #[test]
    fn every_seed_and_every_find_is_handled() {
        for target in TARGETS {
            let seeds = (target.seeds)();
            assert!(!seeds.is_empty(), "{} has no seed", target.name);
            for seed in seeds {
                (target.run)(&seed);
                // Half a message, and one with a bit turned at every place.
                (target.run)(&seed[..seed.len() / 2]);
                for at in 0..seed.len().min(200) {
                    let mut changed = seed.clone();
                    changed[at] ^= 1 << (at % 8);
                    (target.run)(&changed);
                }
            }
            let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
            for file in fs::read_dir(corpus).into_iter().flatten() {
                (target.run)(&fs::read(file.unwrap().path()).unwrap());
            }
        }
    }
}
