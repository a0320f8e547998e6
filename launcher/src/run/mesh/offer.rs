//! The prover's file: named to every node with RDMA, and sent to those that lack it, while all of
//! them join the tree.

use crate::connect::agent::store;
use crate::plan::mesh::{MeshOptions, Mode};
use crate::plan::selection::Plan;
use crate::run::crew::{Crew, Node};
use bytes::Bytes;
use rlaunch_bootstrap::id::NodeId;
use rlaunch_bootstrap::protocol::control::{self, MAX_FILE_CHUNK, ToAgent};
use rlaunch_bootstrap::protocol::mesh::ProverFile;
use rlaunch_console::exit::Exit;
use rlaunch_console::messages::{self, Failed};
use rlaunch_console::text;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::Path;

/// What was offered to whom.
#[derive(Default)]
pub(crate) struct Offer {
    /// By architecture, as frames.
    files: BTreeMap<String, Vec<Bytes>>,
    /// How many nodes have asked for it, and its size in bytes.
    sent: (usize, u64),
}

impl Offer {
    /// Names the file to every node that has a usable port. Without a file nothing is proved, which
    /// is said.
    pub(crate) fn make(
        crew: &Crew,
        given: Option<&Path>,
        plan: &Plan,
        options: &MeshOptions,
    ) -> Result<Option<Offer>, Failed> {
        let mut offer = Offer::default();
        let with_ports = crew.nodes.iter().zip(&plan.ports).filter(|(_, ports)| !ports.is_empty());
        for (node, _) in with_ports {
            if let Err(failed) = offer.name_to(node, given) {
                if options.mode == Mode::Full {
                    return Err(failed);
                }
                messages::warn(&format!("the mesh is not proved: {}", failed.message));
                failed.hints.iter().for_each(|hint| messages::hint(hint));
                return Ok(None);
            }
        }
        Ok(Some(offer))
    }

    fn name_to(&mut self, node: &Node, given: Option<&Path>) -> Result<(), Failed> {
        let arch = node.facts.arch.clone();
        if let Some(frames) = self.files.get(&arch) {
            node.commands.send_frame(frames[0].clone());
            return Ok(());
        }
        let path = store::prover(given, &arch)
            .map_err(|error| Failed::from_error(Exit::AGENT, &error).hint(error.hint()))?;
        let content = std::fs::read(&path).map_err(|error| {
            Failed::new(Exit::AGENT, format!("cannot read {}: {error}", path.display()))
        })?;
        let frames = frames(&content)
            .map_err(|error| Failed::new(Exit::BUG, format!("cannot send the prover: {error}")))?;
        node.commands.send_frame(frames[0].clone());
        self.sent.1 = content.len() as u64;
        self.files.insert(arch, frames);
        Ok(())
    }

    /// A node lacks it.
    pub(crate) fn send(&mut self, crew: &Crew, node: NodeId) {
        let Some(node) = crew.nodes.get(node.index()) else { return };
        let parts = self.files.get(&node.facts.arch).map_or(&[][..], |frames| &frames[1..]);
        parts.iter().for_each(|part| node.commands.send_frame(part.clone()));
        self.sent.0 += 1;
    }

    /// Says to how many it had to be sent, so that a slow start has its reason.
    pub(crate) fn say(&self) {
        let (hosts, bytes) = self.sent;
        if hosts > 0 {
            let hosts = text::count(hosts, "host");
            messages::info(&format!("RDMA prover sent to {hosts} ({} each)", text::mib(bytes)));
        }
    }
}

/// What names the file, then its parts.
fn frames(content: &[u8]) -> Result<Vec<Bytes>, control::FrameError> {
    let sha256 = Sha256::digest(content).into();
    let named = ToAgent::Prover(ProverFile { sha256, size: content.len() as u64 });
    let parts = content.chunks(MAX_FILE_CHUNK).chain(std::iter::once(&[][..]));
    let parts = parts.map(|part| ToAgent::ProverPart(part.to_vec()));
    let messages = std::iter::once(named).chain(parts);
    messages.map(|message| control::encode(&message).map(Bytes::from)).collect()
}
