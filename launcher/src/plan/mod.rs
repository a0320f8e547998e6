//! What a job becomes on its hosts, as pure functions of what the hosts have: places of ranks, devices, variables.

pub(crate) mod env_style;
pub(crate) mod held_ports;
pub(crate) mod horovod;
pub(crate) mod map;
pub(crate) mod mesh;
pub(crate) mod nccl;
pub(crate) mod placement;
pub(crate) mod placement_line;
pub(crate) mod rank_env;
pub(crate) mod rdma_check;
pub(crate) mod selection;
pub(crate) mod setup;
pub(crate) mod table;
