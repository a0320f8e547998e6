//! Messages of the launcher, by the part of the agent that handles them.

use super::Input;
use super::mesh::Mesh;
use rlaunch_bootstrap::protocol::control::{Helper, ToAgent};

/// Passes a message about the mesh to [`Mesh`]. Ignores all other messages.
pub(super) fn mesh_message(mesh: &mut Mesh, message: ToAgent) {
    match message {
        ToAgent::Helper(Helper::Prover, file) => mesh.on_file(file),
        ToAgent::HelperPart(Helper::Prover, part) => mesh.on_part(&part),
        ToAgent::Prove(round) => mesh.prove(round),
        ToAgent::PeerEndpoints(blobs) => mesh.on_peer_ready(blobs),
        ToAgent::WatchPaths { ids, beat_ms } => mesh.watch(ids, beat_ms),
        _ => {}
    }
}

/// Tells whether a message is about the library for ranks, or about the mesh.
pub(super) fn is_startup_message(message: &ToAgent) -> bool {
    matches!(
        message,
        ToAgent::LibraryPart(_)
            | ToAgent::Helper(Helper::Prover, _)
            | ToAgent::HelperPart(Helper::Prover, _)
    ) || is_mesh_message(message)
}

pub(super) fn is_mesh_message(message: &ToAgent) -> bool {
    matches!(message, ToAgent::Prove(_) | ToAgent::PeerEndpoints(_) | ToAgent::WatchPaths { .. })
}

/// Returns the reason why this node's ranks are being ended, to be told to the ranks. Returns
/// `None` if the launcher has ordered the end, because the launcher then sends the reason itself.
pub(super) fn end_reason(input: &Input) -> Option<String> {
    match input {
        Input::Interrupted => Some("the agent was told to end".to_owned()),
        Input::LauncherGone(reason) => Some(format!("the launcher is gone: {reason}")),
        Input::LauncherSilent(node_timeout) => {
            Some(format!("nothing from the launcher for {} s", node_timeout.as_secs()))
        }
        Input::Message(_) | Input::Children => None,
    }
}
