//! Upload of a helper program to nodes: of the prover, which proves RDMA paths, of the reader of stacks, and of the
//! copier of files. A node is sent the SHA-256 digest of the program's file, and the file itself if it asks for it.

use super::{Agents, Node};
use crate::connect::agent::host_file::HostFile;
use crate::connect::agent::store;
use bytes::Bytes;
use rlaunch_bootstrap::protocol::control::{self, Helper, HelperFile, ToAgent};
use rlaunch_console::messages;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::text;
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::path::Path;

/// Helper program by architecture, and the number of nodes to which it was sent.
pub(crate) struct HelperUpload {
    helper: Helper,
    offered: BTreeMap<String, OfferedHelper>,
    /// Number of nodes to which the file was sent, and the size of the file in bytes.
    sent: (usize, u64),
}

/// Helper program for one architecture.
struct OfferedHelper {
    file: HostFile,
    /// Frame with the digest.
    digest: Bytes,
    /// Frames with the parts of the file, once a node has asked for them.
    parts: OnceCell<Vec<Bytes>>,
}

impl HelperUpload {
    pub(crate) fn new(helper: Helper) -> HelperUpload {
        HelperUpload { helper, offered: BTreeMap::new(), sent: (0, 0) }
    }

    /// Sends the digest of the program to a node. `given` is the path from `--agent`, in whose directory the program is
    /// looked for. Fails if there is none for the node's architecture.
    pub(crate) fn offer(
        &mut self,
        agents: &Agents,
        node: &Node,
        given: Option<&Path>,
    ) -> Result<(), Failed> {
        let (agent, arch) = (agents.outbox(node.id), node.facts.arch.clone());
        if let Some(offered) = self.offered.get(&arch) {
            agent.send_frame(offered.digest.clone());
            return Ok(());
        }
        let program = match self.helper {
            Helper::Prover => store::PROVER,
            Helper::Stack => store::STACK_READER,
            Helper::Copier => store::COPIER,
        };
        let file = store::beside_agent(program, given, &arch)
            .map_err(|error| Failed::from_error(Exit::AGENT, &error).hint(error.hint()))?;
        let named = HelperFile { sha256: file.digest(), size: file.size };
        let name = self.helper.name();
        let digest = control::encode(&ToAgent::Helper(self.helper, named))
            .map_err(|error| Failed::new(Exit::BUG, format!("cannot send {name}: {error}")))?;
        let offered = OfferedHelper { file, digest: digest.into(), parts: OnceCell::new() };
        agent.send_frame(offered.digest.clone());
        self.offered.insert(arch, offered);
        Ok(())
    }

    /// Sends the file to a node that has asked for it.
    pub(crate) fn send(&mut self, agents: &Agents, node: &Node) {
        let Some(offered) = self.offered.get(&node.facts.arch) else { return };
        let parts = offered.parts(self.helper);
        let agent = agents.outbox(node.id);
        parts.iter().for_each(|part| agent.send_frame(part.clone()));
        self.sent = (self.sent.0 + 1, offered.file.size);
    }

    /// Logs to how many nodes the file was sent, which explains a slow start. `what` names the program.
    pub(crate) fn log_sent(&self, what: &str) {
        let (hosts, bytes) = self.sent;
        if hosts > 0 {
            let hosts = text::count(hosts, "host");
            tracing::info!("{what} sent to {hosts} ({} each)", text::mib(bytes));
        }
    }
}

impl OfferedHelper {
    /// Returns the frames with the file. If it cannot be read, they are only the part that marks the end, so that the
    /// node reports a file that is too short.
    fn parts(&self, helper: Helper) -> &[Bytes] {
        self.parts.get_or_init(|| {
            let content = self.file.content().unwrap_or_else(|error| {
                messages::warn(&format!("cannot read {}: {error}", self.file));
                Vec::new()
            });
            let parts = control::file_parts(&content).map(|part| {
                let frame = control::encode(&ToAgent::HelperPart(helper, part.to_vec()));
                frame.map(Bytes::from)
            });
            parts.collect::<Result<_, _>>().unwrap_or_default()
        })
    }
}
