//! Upload of the prover, the program that proves RDMA paths on a node. Every node with a usable RDMA port is
//! sent the SHA-256 digest of the prover's file, and the file itself if the node asks for it. Meanwhile, all
//! nodes join the tree.

use crate::connect::agent::store;
use crate::plan::mesh::{MeshOptions, Mode};
use crate::plan::selection::Plan;
use crate::run::nodes::{Nodes, ReachedNode};
use bytes::Bytes;
use rlaunch_bootstrap::id::NodeId;
use rlaunch_bootstrap::protocol::control::{self, ToAgent};
use rlaunch_bootstrap::protocol::mesh::ProverFile;
use rlaunch_console::exit::Exit;
use rlaunch_console::messages::{self, Failed};
use rlaunch_console::text;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::Path;

/// Files of the prover, and the number of nodes to which a file was sent.
#[derive(Default)]
pub(crate) struct ProverUpload {
    /// Frames by architecture: first the digest, then the parts of the file.
    frames: BTreeMap<String, Vec<Bytes>>,
    /// Number of nodes to which the file was sent, and the size of the file in bytes.
    sent: (usize, u64),
}

impl ProverUpload {
    /// Sends the digest to every node that has a usable RDMA port. If the prover is missing for some node,
    /// returns an error with `--mesh full`, and otherwise prints a warning and returns `None`.
    pub(crate) fn offer(
        nodes: &Nodes,
        given: Option<&Path>,
        plan: &Plan,
        options: &MeshOptions,
    ) -> Result<Option<ProverUpload>, Failed> {
        let mut upload = ProverUpload::default();
        let with_ports =
            nodes.reached.iter().zip(&plan.ports).filter(|(_, ports)| !ports.is_empty());
        for (node, _) in with_ports {
            if let Err(failed) = upload.send_digest(node, given) {
                if options.mode == Mode::Full {
                    return Err(failed);
                }
                messages::warn(&format!("the mesh is not proved: {}", failed.message));
                failed.hints.iter().for_each(|hint| messages::hint(hint));
                return Ok(None);
            }
        }
        Ok(Some(upload))
    }

    fn send_digest(&mut self, node: &ReachedNode, given: Option<&Path>) -> Result<(), Failed> {
        let arch = node.facts.arch.clone();
        if let Some(frames) = self.frames.get(&arch) {
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
        self.frames.insert(arch, frames);
        Ok(())
    }

    /// Sends the file to a node that has asked for it.
    pub(crate) fn send(&mut self, nodes: &Nodes, node: NodeId) {
        let Some(node) = nodes.reached.get(node.index()) else { return };
        let parts = self.frames.get(&node.facts.arch).map_or(&[][..], |frames| &frames[1..]);
        parts.iter().for_each(|part| node.commands.send_frame(part.clone()));
        self.sent.0 += 1;
    }

    /// Prints to how many nodes the file was sent, which explains a slow start.
    pub(crate) fn print_sent(&self) {
        let (hosts, bytes) = self.sent;
        if hosts > 0 {
            let hosts = text::count(hosts, "host");
            messages::info(&format!("RDMA prover sent to {hosts} ({} each)", text::mib(bytes)));
        }
    }
}

/// Encodes the digest of the file, then its parts.
fn frames(content: &[u8]) -> Result<Vec<Bytes>, control::FrameError> {
    let sha256 = Sha256::digest(content).into();
    let named = ToAgent::Prover(ProverFile { sha256, size: content.len() as u64 });
    let parts = control::file_parts(content).map(|part| ToAgent::ProverPart(part.to_vec()));
    let messages = std::iter::once(named).chain(parts);
    messages.map(|message| control::encode(&message).map(Bytes::from)).collect()
}
