//! What rlaunch may do about each fault.

use crate::findings::{CheckId, id};

/// What rlaunch may do about a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// It fixes the fault without a question: nothing that runs is disturbed.
    Safe,
    /// It fixes the fault after a question, which says this of it.
    Asked(&'static str),
    /// `rlaunch network mesh` fixes it, as it knows the cables.
    ByMesh,
    /// It never fixes the fault, for this reason.
    Never(&'static str),
    /// It prints what is to be done.
    Printed,
}

const SAFE: &[CheckId] = &[
    id::SSH_PERMS,
    id::NET_ARP,
    id::NET_RESERVED,
    id::NET_UDP_DROPS,
    id::DEV_MODULE,
    id::DEV_UVERBS,
    id::DEV_RDMA_CM,
    id::LINK_DOWN,
    id::MESH_DUPLICATE,
    id::ROCE_CM_MODE,
    id::MTU_MISMATCH,
    id::ERDMA_MTU,
    id::GPU_DRIVER,
    id::GPU_PEERMEM,
    id::LIM_MEMLOCK,
    id::LIM_SHM,
    id::LIM_MAPS,
    id::LIM_FILES,
    id::CLOCK_OFFSET,
];

const ASKED: &[(CheckId, &str)] = &[
    (id::SSH_AUTH, "installs your public key, with the password that you type"),
    (id::NET_NAME, "changes /etc/hosts"),
    (id::FW_PORTS, "opens ports in the packet filter"),
    (id::FW_ROCE, "opens a port in the packet filter"),
    (id::IB_NO_SM, "installs and starts a subnet manager, of which a fabric needs one"),
    (id::DEV_LIBRARY, "installs packages"),
    (id::DEV_PROVIDER, "installs packages"),
    (id::MTU_PATH, "changes the size of packets for everything that uses the interface"),
    (id::MTU_RDMA, "changes the size of packets, which switches and other hosts have to carry"),
    (id::ROCE_ECN, "turns on congestion control, for which switches have to mark packets"),
    (id::ERDMA_STANDARD, "loads the driver anew, which drops all eRDMA connections of the host"),
    (id::ERDMA_MIXED, "loads the driver anew, which drops all eRDMA connections of the host"),
];

const BY_MESH: &[CheckId] =
    &[id::MESH_SUBNET, id::ROCE_GID_EMPTY, id::ROCE_NO_V2, id::ROCE_LINK_LOCAL];

const NEVER: &[(CheckId, &str)] = &[
    (id::SSH_HOSTKEY, "whether the host is still the same machine is for you to find out"),
    (id::GPU_ACS, "a host of virtual machines needs ACS, and a wrong register stops a machine"),
    (id::FW_EPHEMERAL, "it would open most ports of the host"),
];

/// Returns what rlaunch may do about a fault.
pub fn class(id: CheckId) -> Class {
    let of = |list: &[(CheckId, &'static str)]| {
        list.iter().find(|(known, _)| *known == id).map(|(_, why)| *why)
    };
    if SAFE.contains(&id) {
        Class::Safe
    } else if let Some(does) = of(ASKED) {
        Class::Asked(does)
    } else if BY_MESH.contains(&id) {
        Class::ByMesh
    } else if let Some(why) = of(NEVER) {
        Class::Never(why)
    } else {
        Class::Printed
    }
}

/// Tells whether rlaunch fixes this fault, asked or not.
pub fn is_fixable(id: CheckId) -> bool {
    matches!(class(id), Class::Safe | Class::Asked(_))
}
