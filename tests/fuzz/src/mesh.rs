//! Messages from agents to provers, and endpoints that provers exchange.

use crate::frames::{read, stream};
use rlaunch_bootstrap::id::NodeId;
use rlaunch_bootstrap::protocol::mesh::{
    LocalPort, MeshPath, NodeEndpoints, PathAdvert, PortAdvert, ProofRound, QpSettings,
    RoundTimeouts, ToProver,
};
use std::time::Duration;

pub(crate) fn to_prover(data: &[u8]) {
    read::<ToProver>(data);
}

/// Decodes endpoints, which survive being encoded and decoded again.
pub(crate) fn endpoints(data: &[u8]) {
    let Ok(told) = NodeEndpoints::decode(data) else { return };
    let again = told.encode().ok().and_then(|bytes| NodeEndpoints::decode(&bytes).ok());
    assert_eq!(again, Some(told));
}

fn told() -> NodeEndpoints {
    let gid = "::ffff:10.0.0.1".parse().ok();
    let end = PortAdvert {
        port_index: 0,
        lid: 1,
        gid,
        mtu: 4096,
        address: 1 << 40,
        key: 7,
        block: 4096,
        listener: Some(21_000),
    };
    let path = PathAdvert { id: 3, port_index: 0, qpn: 17, psn: 99, control: 64 };
    NodeEndpoints { node: NodeId(1), ports: vec![end], paths: vec![path] }
}

pub(crate) fn to_prover_seeds() -> Vec<Vec<u8>> {
    let end = LocalPort {
        device: "mlx5_0".into(),
        port: 1,
        gid_index: Some(3),
        cm_address: "10.0.0.1".parse().ok(),
    };
    let path = MeshPath { id: 3, port_index: 0, peer: NodeId(1), dials: true, mtu: Some(1024) };
    let five = Duration::from_secs(5);
    let round = ProofRound {
        number: 0,
        ports: vec![end],
        paths: vec![path],
        settings: QpSettings::default(),
        limits: RoundTimeouts::within(five, five),
        through_launcher: false,
    };
    let connect = ToProver::Connect(told().encode().into_iter().collect());
    let watch = ToProver::Watch { ids: vec![3], beat_ms: 2000 };
    vec![stream(&[ToProver::Prove(round), connect, ToProver::Go, watch])]
}

pub(crate) fn endpoints_seeds() -> Vec<Vec<u8>> {
    told().encode().into_iter().collect()
}
