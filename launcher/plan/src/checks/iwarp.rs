//! iWARP, and rules of reliable connections that rlaunch keeps.

use super::devices::{indexed, is_used, prevented, uses_nccl};
use super::{Check, Cluster, Needs};
use crate::findings::{Finding, id};
use crate::selection::{self, ConnectBy};
use rlaunch_bootstrap::inventory::rdma::{NodeType, PortState};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: id::IWARP_CM,
        about: "iWARP devices connect by the RDMA connection manager",
        needs: Needs::Inventories,
        examine: manager,
        causes: &[id::NCCL_NET, id::MESH_SUBNET, id::MESH_PROOF],
        explanation: "\
Symptoms: `Failed to modify QP to RTS` and `Unable to Connect the HCA's through the link` from perftest without -R; \
NCCL fails with `ibv_modify_qp failed with 22 Invalid argument`.

iWARP runs over TCP, whose connections the RDMA connection manager makes. A program that exchanges the addresses of queue \
pairs by itself, as NCCL does, can move them to RTR but not to RTS. The kind of device (node type RNIC) was read from sysfs.

rlaunch connects these devices by the connection manager without being asked, and lets NCCL use TCP. Do not give --connect \
oob here; in perftest use -R.",
    },
    Check {
        id: id::IWARP_BACKLOG,
        about: "listeners of iWARP accept as many requests as there are paths",
        needs: Needs::Nothing,
        examine: prevented,
        causes: &[],
        explanation: "\
Symptom elsewhere: connections over iWARP are reset when many queue pairs connect at once.

An iWARP device refuses connect requests beyond the backlog of the listener, where a TCP socket would let them wait. \
rlaunch prevents it: listeners of the proof and of the communicator have a backlog as large as the number of their paths. For \
your own programs, pass at least the number of expected queue pairs to rdma_listen.",
    },
    Check {
        id: id::RC_RECEIVE,
        about: "receive requests are there before messages arrive",
        needs: Needs::Nothing,
        examine: prevented,
        causes: &[],
        explanation: "\
Symptoms elsewhere: `status 13`, `IBV_WC_RNR_RETRY_EXC_ERR`, a rising counter `out_of_buffer`.

A reliable queue pair that gets a message without a receive request asks the sender to wait and try again, and after some \
tries the connection breaks. rlaunch prevents it: senders have credits, one for each request that the receiver has posted, \
and no queue pair sends before its peer is ready. In other programs, post more receive requests, or raise rnr_retry: 7 \
retries without limit.",
    },
];

fn manager(cluster: &Cluster<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (index, host) in indexed(cluster) {
        for device in &host.inventory.rdma {
            let is_active = device.ports.iter().any(|port| port.state == PortState::Active);
            let is_erdma = device.driver.as_deref() == Some("erdma");
            if device.node_type != NodeType::Rnic || !is_active || is_erdma {
                continue;
            }
            let seen = "connects queue pairs only through the RDMA connection manager";
            if cluster.ports.connect == ConnectBy::Oob {
                let matters = "it is not used with --connect oob";
                let finding = Finding::error(id::IWARP_CM, host.name, seen, matters);
                found.push(finding.device(&*device.name).advise("leave --connect oob out"));
            } else if uses_nccl(cluster)
                && is_used(cluster, index, device)
                && !selection::is_software(device)
            {
                let finding = Finding::note(
                    id::IWARP_CM,
                    host.name,
                    seen,
                    "NCCL cannot use it and takes TCP",
                );
                found.push(finding.device(&*device.name));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Machine, line, lines, with_cluster};
    use super::*;
    use crate::selection::PortOptions;

    #[test]
    fn out_of_band_connections_are_refused() {
        let machines = vec![Machine::recorded("siw"); 2];
        assert!(lines(manager, &machines).is_empty());
        let found = with_cluster(&machines, |mut cluster| {
            cluster.ports = PortOptions { connect: ConnectBy::Oob, ..PortOptions::default() };
            manager(&cluster).iter().map(line).collect::<Vec<_>>()
        });
        let expected = "error iwarp.cm a siw0: connects queue pairs only through the RDMA connection manager — it is not \
                        used with --connect oob";
        assert_eq!((found.len(), found[0].as_str()), (2, expected));
        assert!(lines(manager, &vec![Machine::recorded("esxi-vm"); 2]).is_empty());
    }

    #[test]
    fn nccl_does_not_use_iwarp_hardware() {
        let machine = || {
            Machine::recorded("siw").change(|inventory| {
                inventory.rdma[0].driver = Some("iw_cxgb4".into());
                inventory.gpus = crate::testing::inventory("dgx").gpus;
            })
        };
        let found = lines(manager, &[machine(), machine()]);
        assert!(found[0].starts_with("note iwarp.cm a siw0: "), "{found:?}");
    }
}
