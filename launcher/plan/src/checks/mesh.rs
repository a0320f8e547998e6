//! RDMA paths between hosts: which ports should reach each other, and which do.
//!
//! | file | subject |
//! |---|---|
//! | `networks` | pairs of hosts without a common network; two ports on one |
//! | `cables` | cables in wrong ports |
//! | `probed` | paths on which probes found something |

mod cables;
mod networks;
mod probed;
#[cfg(test)]
mod tests;

pub(super) use probed::failures;

use super::{Check, Needs};
use crate::findings::id;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: id::MESH_CABLING,
        about: "cables are in the ports that have their addresses",
        needs: Needs::Inventories,
        examine: cables::misplaced,
        causes: &[
            id::LINK_DOWN,
            id::MESH_SUBNET,
            id::MESH_ROUTE,
            id::MESH_SILENT,
            id::MTU_PATH,
            id::ROCE_LINK_LOCAL,
            id::ROCE_GID_EMPTY,
            id::NCCL_NET,
            id::NCCL_EDGE,
            id::NET_ARP,
        ],
        explanation: "\
Symptoms: two hosts are cabled and do not reach each other; `ping` says \
`Destination Host Unreachable` on a link with both ends up; NCCL fails with \
`ibv_modify_qp failed with 110 Connection timed out`.

With one subnet for each cable, the addresses say which port belongs to which peer. A cable in the other port joins two \
interfaces of different subnets. Either a port with an address has no carrier while a port beside it has a carrier and no \
address, or none of the host's addressed ports gets an answer although all have a carrier, the login network works, and no \
packet filter drops anything.

Swap the two cables at this host, or the addresses of the two interfaces. `ethtool -p INTERFACE` \
makes the port's LED blink.",
    },
    Check {
        id: id::MESH_SUBNET,
        about: "every two hosts have RDMA ports on a common network",
        needs: Needs::Inventories,
        examine: networks::unconnected,
        causes: &[id::NCCL_NET, id::NCCL_EDGE],
        explanation: "\
Symptoms: `ibv_modify_qp failed with 110 Connection timed out … local GID ::ffff:192.168.100.1, remote GID ::ffff:192.168.101.3`; the mesh \
plugin for NCCL says `No local NIC found`; rlaunch says that TCP is used between two hosts.

Ports connect if they are in one IP subnet, or if routes lead from each interface to the other's address; on InfiniBand, if \
the subnet prefix is equal. Both hosts have usable ports, and no two of them match. Addresses, prefix lengths and routes \
of every port were read from the kernel. With a cable for each pair of hosts, one more host needs one more port and subnet on \
each.

Give the two ends of each cable addresses of one subnet, a different one for each cable. If these hosts are not meant to have a \
cable, their ranks use TCP, and NCCL uses TCP for all.",
    },
    Check {
        id: id::MESH_DUPLICATE,
        about: "RDMA ports of one host are on different subnets, or each answers ARP for itself only",
        needs: Needs::Diagnostics,
        examine: networks::duplicate,
        causes: &[id::MESH_SILENT, id::MESH_ROUTE, id::MESH_CABLING, id::NET_ARP, id::MTU_PATH],
        explanation: "\
Symptoms: the first of two adapters works and the second times out; traffic of both goes through one port; \
`Connection timed out` on some paths only, different ones after each start.

Linux answers ARP for any of its addresses on any interface. With two RDMA interfaces on one subnet, peers learn the \
hardware address of the wrong one and send RoCE packets there, which that adapter drops. Two interfaces of this host are on \
one subnet, and their settings arp_ignore and arp_announce do not prevent this.

Use a subnet for each interface, or set arp_ignore=1 and arp_announce=2, so that each interface answers for itself; \
rp_filter=2 accepts packets that come in on either.",
    },
    Check {
        id: id::MESH_ROUTE,
        about: "the kernel finds a way to each RDMA address",
        needs: Needs::Probes,
        examine: probed::unreachable,
        causes: &[id::MESH_SILENT],
        explanation: "\
Symptoms: `ibv_modify_qp failed with 101 Network is unreachable` or `113 No route to host`; `Failed to modify QP to RTR`.

The kernel resolves a peer's address before a queue pair connects: it needs a route through the \
interface of the port, and an answer to ARP or neighbour discovery. A probe between two RDMA \
interfaces failed at this step. `No route to host` means that no port on that cable or switch \
answers for the address; `Network is unreachable` that there is no route.

The commands of the fix show the route and what the kernel knows of the neighbour. Check the address at the peer, the \
prefix length at both ends, and VLANs of the switch.",
    },
    Check {
        id: id::MESH_SILENT,
        about: "packets between RDMA ports arrive",
        needs: Needs::Probes,
        examine: probed::silent,
        // Paths without an answer use up the time for the others.
        causes: &[id::MESH_PROOF],
        explanation: "\
Symptoms: `Got completion from peer … status=12 … vendor err 129`, `retry exceeded`, a job that hangs in its first collective.

Two RDMA ports should reach each other by their addresses, but no answer came back: to a queue pair that wrote a token, or to \
datagrams between the two interfaces. Typical causes are a packet filter that drops UDP port 4791, a switch that \
isolates its ports, a wrong VLAN, or a peer whose answer takes another way.

Start with the ping of the cure: if it fails too, look at cables, VLANs and addresses; if it works, look for a packet filter \
on both hosts and compare the GID types of both ports. On InfiniBand, ping takes another way: use ibping, and compare the \
partition keys.",
    },
    Check {
        id: id::MESH_PROOF,
        about: "the proof of RDMA paths fails for no other reason",
        needs: Needs::Probes,
        examine: probed::failed,
        causes: &[],
        explanation: "\
Symptoms: a job says `no RDMA between …` and names a step: `prepare`, `exchange`, `connect` or `token`.

Before a job, and in rlaunch doctor, each path between RDMA ports is proved: queue pairs are prepared, connected, and carry \
a token and a block in each direction. A step failed, and not for lack of an answer or a route. If the cause is one that \
another check knows, as too little locked memory, the finding has the id of that check; otherwise it is the \
kernel's or the library's own error, or the time did not suffice for all paths (`not tried`).

Cure what the cause names. If paths were not tried, the silent ones among the others have used up the time; a job can have more \
by --mesh-timeout.",
    },
    Check {
        id: id::MESH_BANDWIDTH,
        about: "RDMA writes over each cable are as fast as its ports (--probe)",
        needs: Needs::Probes,
        examine: probed::slow,
        causes: &[],
        explanation: "\
Symptoms: one host holds the others up; all-reduce is as slow as the slowest path; perftest between two hosts is below what \
other pairs reach.

With --probe, one path over the cable of each port carries RDMA writes for a second, in one direction. The bandwidth was \
compared with the slower of port and PCIe link, each without its headers, and with the median of the other paths. This one is \
below nine tenths of the limit or of the median. Other jobs on the network, a PCIe link with fewer lanes, a processor far \
from the NIC, or a cable with errors are usual causes. Virtual functions have only the median, and emulated devices are not \
measured.

Look for findings on pcie, mtu, link and numa of the two hosts, repeat when the network is idle, and then exchange cable \
and switch port to see whether the fault moves with them.",
    },
];
