//! Upload of the prover, the program that proves RDMA paths on a node. Every node with a usable RDMA port is
//! sent the SHA-256 digest of the prover's file, and the file itself if the node asks for it. Meanwhile, all
//! nodes join the tree.

use crate::connect::agent::host_file::HostFile;
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
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::path::Path;

/// Provers by architecture, and the number of nodes to which one was sent.
#[derive(Default)]
pub(crate) struct ProverUpload {
    offered: BTreeMap<String, OfferedProver>,
    /// Number of nodes to which the file was sent, and the size of the file in bytes.
    sent: (usize, u64),
}

/// Prover for one architecture.
struct OfferedProver {
    file: HostFile,
    /// Frame with the digest.
    digest: Bytes,
    /// Frames with the parts of the file, once a node has asked for them.
    parts: OnceCell<Vec<Bytes>>,
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
        if let Some(offered) = self.offered.get(&arch) {
            node.commands.send_frame(offered.digest.clone());
            return Ok(());
        }
        let file = store::prover(given, &arch)
            .map_err(|error| Failed::from_error(Exit::AGENT, &error).hint(error.hint()))?;
        let named = ProverFile { sha256: file.digest(), size: file.size };
        let digest = control::encode(&ToAgent::Prover(named))
            .map_err(|error| Failed::new(Exit::BUG, format!("cannot send the prover: {error}")))?;
        let offered = OfferedProver { file, digest: digest.into(), parts: OnceCell::new() };
        node.commands.send_frame(offered.digest.clone());
        self.offered.insert(arch, offered);
        Ok(())
    }

    /// Sends the file to a node that has asked for it.
    pub(crate) fn send(&mut self, nodes: &Nodes, node: NodeId) {
        let Some(node) = nodes.reached.get(node.index()) else { return };
        let Some(offered) = self.offered.get(&node.facts.arch) else { return };
        offered.parts().iter().for_each(|part| node.commands.send_frame(part.clone()));
        self.sent = (self.sent.0 + 1, offered.file.size);
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

impl OfferedProver {
    /// Returns the frames with the file. If it cannot be read, they are only the part that marks the end, so that the
    /// node reports a file that is too short.
    fn parts(&self) -> &[Bytes] {
        self.parts.get_or_init(|| {
            let content = self.file.content().unwrap_or_else(|error| {
                messages::warn(&format!("cannot read {}: {error}", self.file));
                Vec::new()
            });
            let parts = control::file_parts(&content).map(|part| {
                let frame = control::encode(&ToAgent::ProverPart(part.to_vec()));
                frame.map(Bytes::from)
            });
            parts.collect::<Result<_, _>>().unwrap_or_default()
        })
    }
}
