//! Ids of findings. The part before the point is the subject; each subject is in one file of [`crate::checks`].

use serde::Serialize;
use std::fmt;

/// Id of a check and of its findings, such as `mtu.path`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct CheckId(&'static str);

impl CheckId {
    pub fn as_str(self) -> &'static str {
        self.0
    }

    /// Returns the part before the point, such as `mtu`.
    pub fn subject(self) -> &'static str {
        self.0.split('.').next().unwrap_or(self.0)
    }
}

impl fmt::Display for CheckId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.0)
    }
}

macro_rules! ids {
    ($($name:ident = $text:literal;)*) => {
        $(pub const $name: CheckId = CheckId($text);)*

        /// All ids, in the order of the catalogue.
        #[cfg(any(test, feature = "testing"))]
        pub const ALL: &[CheckId] = &[$($name),*];
    };
}

ids! {
    SSH_REACH = "ssh.reach";
    SSH_AUTH = "ssh.auth";
    SSH_HOSTKEY = "ssh.hostkey";
    SSH_PERMS = "ssh.perms";
    SSH_LANDING = "ssh.landing";
    SSH_NOISE = "ssh.noise";
    AGENT_ARCH = "agent.arch";
    AGENT_RUN = "agent.run";
    NET_PAIR = "net.pair";
    NET_CALLBACK = "net.callback";
    NET_NAME = "net.name";
    NET_PROXY = "net.proxy";
    NET_ARP = "net.arp";
    NET_ERRORS = "net.errors";
    NET_UDP_DROPS = "net.udp-drops";
    NET_RESERVED = "net.reserved";
    FW_PORTS = "fw.ports";
    FW_ROCE = "fw.roce";
    FW_EPHEMERAL = "fw.ephemeral";
    DEV_ABSENT = "dev.absent";
    DEV_MODULE = "dev.module";
    DEV_DROPPED = "dev.dropped";
    DEV_UVERBS = "dev.uverbs";
    DEV_RDMA_CM = "dev.rdma-cm";
    DEV_PERM = "dev.perm";
    DEV_LIBRARY = "dev.library";
    DEV_PROVIDER = "dev.provider";
    DEV_CAPS = "dev.caps";
    DEV_QP = "dev.qp";
    DEV_CQ = "dev.cq";
    LINK_DOWN = "link.down";
    LINK_ERRORS = "link.errors";
    LINK_FLAPS = "link.flaps";
    IB_NO_SM = "ib.no-sm";
    IB_SM_MANY = "ib.sm-many";
    IB_VF = "ib.vf";
    ROCE_GID_EMPTY = "roce.gid-empty";
    ROCE_NO_V2 = "roce.no-v2";
    ROCE_VERSIONS = "roce.versions";
    ROCE_LINK_LOCAL = "roce.link-local";
    ROCE_FAMILY = "roce.family";
    ROCE_NETDEV = "roce.netdev";
    ROCE_CM_MODE = "roce.cm-mode";
    ROCE_ECN = "roce.ecn";
    ROCE_LOSS = "roce.loss";
    ROCE_BOND = "roce.bond";
    MTU_RDMA = "mtu.rdma";
    MTU_MISMATCH = "mtu.mismatch";
    MTU_PATH = "mtu.path";
    MESH_SUBNET = "mesh.subnet";
    MESH_DUPLICATE = "mesh.duplicate";
    MESH_CABLING = "mesh.cabling";
    MESH_ROUTE = "mesh.route";
    MESH_SILENT = "mesh.silent";
    MESH_PROOF = "mesh.proof";
    MESH_BANDWIDTH = "mesh.bandwidth";
    IWARP_BACKLOG = "iwarp.backlog";
    IWARP_CM = "iwarp.cm";
    RC_RECEIVE = "rc.receive";
    ERDMA_DRIVER = "erdma.driver";
    ERDMA_STANDARD = "erdma.standard";
    ERDMA_MIXED = "erdma.mixed";
    ERDMA_PORTS = "erdma.ports";
    ERDMA_MTU = "erdma.mtu";
    PCIE_DEGRADED = "pcie.degraded";
    PCIE_BOTTLENECK = "pcie.bottleneck";
    PCIE_POWER = "pcie.power";
    NUMA_FAR = "numa.far";
    GPU_PEERMEM = "gpu.peermem";
    GPU_ATS = "gpu.ats";
    GPU_ACS = "gpu.acs";
    GPU_IOMMU = "gpu.iommu";
    GPU_DRIVER = "gpu.driver";
    LIM_MEMLOCK = "lim.memlock";
    LIM_SHM = "lim.shm";
    LIM_MAPS = "lim.maps";
    LIM_FILES = "lim.files";
    LIM_MEMORY = "lim.memory";
    LIM_FORK = "lim.fork";
    CT_NET = "ct.net";
    CT_SHM = "ct.shm";
    CT_GPU = "ct.gpu";
    NCCL_OLD = "nccl.old";
    NCCL_EDGE = "nccl.edge";
    NCCL_NET = "nccl.net";
    NCCL_PREFIX = "nccl.prefix";
    NCCL_PORTS = "nccl.ports";
    MPI_SINGLETON = "mpi.singleton";
    MPI_HOROVOD = "mpi.horovod";
    FILES_MISSING = "files.missing";
    FILES_DIFFER = "files.differ";
    FILES_SPACE = "files.space";
    ODD_KERNEL = "odd.kernel";
    ODD_DRIVER = "odd.driver";
    ODD_FIRMWARE = "odd.firmware";
    ODD_LIBRARY = "odd.library";
    ODD_PYTHON = "odd.python";
    ODD_PCIE = "odd.pcie";
    ODD_RATE = "odd.rate";
    ODD_MEMORY = "odd.memory";
    ODD_HARDWARE = "odd.hardware";
    CLOCK_OFFSET = "clock.offset";
    LOG_XID = "log.xid";
    LOG_AER = "log.aer";
    LOG_NIC = "log.nic";
    LOG_LINK = "log.link";
    LOG_OOM = "log.oom";
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn ids_are_different_words_of_two_parts() {
        let distinct: BTreeSet<_> = ALL.iter().collect();
        assert_eq!(distinct.len(), ALL.len());
        for id in ALL {
            let parts: Vec<&str> = id.as_str().split('.').collect();
            let is_letter = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
            assert!(
                parts.len() == 2 && parts.into_iter().all(|p| p.bytes().all(is_letter)),
                "{id}"
            );
        }
    }
}
