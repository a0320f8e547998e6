//! Hosts on which no agent runs.

use super::cluster::ReachStage;
use super::ssh::{UnreachedReason, unreached};
use super::{Check, Needs};
use crate::findings::{Step, id};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: id::AGENT_ARCH,
        about: "rlaunch has an agent for the architecture and system of every host",
        needs: Needs::Connections,
        examine: |cluster| unreached(cluster, ReachStage::Architecture, &ARCH),
        causes: &[],
        explanation: "\
Symptoms: `cannot execute binary file: Exec format error`, `no agent for aarch64`.

rlaunch copies a small program, the agent, to each host before a job. It is built for one \
architecture; a cluster of x86_64 and aarch64 machines needs both. The host reported its \
architecture (`uname -m`), and there is no file for it beside rlaunch. The agent needs Linux.

Put the agent of the same build beside rlaunch as `rlaunch-worker-aarch64` (or `-x86_64`), or name it with --agent. \
`cargo agent` builds one that needs no C library on the host.",
    },
    Check {
        id: id::AGENT_RUN,
        about: "the agent can be installed on every host and starts there",
        needs: Needs::Connections,
        examine: |cluster| unreached(cluster, ReachStage::Agent, &RUN),
        causes: &[],
        explanation: "\
Symptoms: `no hello from the agent`, `the agent is installed but does not start`, `version GLIBC_2.34 not found`.

The login worked; then the agent was written to ~/.cache/rlaunch on the host and started. The directory may not be \
writable, may be mounted noexec, or the disk may be full; the shell may be `nologin`, or a start-up file of it may \
start another shell or wait for something. The finding quotes what came back.

`ssh HOST echo hello` has to print just that, and to end. --agent-dir names another directory on the hosts, one from \
which programs can be started.",
    },
];

const ARCH: UnreachedReason = UnreachedReason {
    id: id::AGENT_ARCH,
    matters: "no job can use this host",
    usual: |_| Step::Do("name an agent for its architecture with --agent FILE".to_owned()),
};
const RUN: UnreachedReason = UnreachedReason {
    id: id::AGENT_RUN,
    matters: "no job can use this host",
    usual: |host| Step::RunHere(format!("ssh {} echo hello", super::quoted(host))),
};
