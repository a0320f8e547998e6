//! Hosts and the way to them.

use super::ConfigArgs;
use crate::connect::connector::Container;
use crate::connect::options::NewHostsRule;
use std::path::PathBuf;

/// Hosts and the way to them.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct ReachArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,

    /// The SSH port of hosts for which ~/.ssh/config names none
    #[arg(long, value_name = "PORT", help_heading = "Reaching hosts")]
    pub(crate) port: Option<u16>,

    /// Reach hosts by this command and not by SSH of rlaunch's own, as mpirun's remote shell agents
    /// are called: `CMD HOST LINE`, where LINE is for a shell on HOST; a {host} in CMD takes the
    /// host's place: 'ssh -p 2222', 'kubectl exec -i {host} -- sh -c'
    #[arg(
        long, value_name = "CMD", conflicts_with_all = ["port", "ssh_config"],
        help_heading = "Reaching hosts"
    )]
    pub(crate) rsh: Option<String>,

    /// Run in the container of this name on every host: docker:NAME, podman:NAME, nerdctl:NAME or
    /// toolbox:NAME, which runs already; forced:NAME when the login itself leads into it; other:NAME.
    /// What has a / or : or @ in it is an IMAGE, from which docker, podman or nerdctl start a
    /// container for this job, with the host's network and /dev/infiniband: docker:ubuntu:24.04. The
    /// hosts have the image already
    #[arg(long, value_name = "KIND:NAME|IMAGE", help_heading = "Reaching hosts")]
    pub(crate) container: Option<Container>,

    /// The command on the hosts that enters the container, with {name} for its name:
    /// 'sudo docker exec -i {name}'; for an IMAGE the one that starts it:
    /// 'docker run --rm -i --network host --ipc host --gpus all {name}'
    #[arg(long, value_name = "CMD", help_heading = "Reaching hosts")]
    pub(crate) container_exec: Option<String>,

    /// Read this instead of ~/.ssh/config and /etc/ssh/ssh_config
    #[arg(long, value_name = "FILE", help_heading = "Reaching hosts")]
    pub(crate) ssh_config: Option<PathBuf>,

    /// Accept hosts whose keys ~/.ssh/known_hosts does not have and say so, ask at the terminal, or refuse
    /// them, so that nothing of yours is sent there. Without it StrictHostKeyChecking decides
    /// (accept-new or no, ask, yes), and where that is not set they are accepted. A host whose key has
    /// changed is refused
    #[arg(
        long,
        value_name = "RULE",
        value_enum,
        conflicts_with = "rsh",
        help_heading = "Reaching hosts"
    )]
    pub(crate) new_hosts: Option<NewHostsRule>,

    /// The agent to send, in place of the one that came with rlaunch
    #[arg(long, value_name = "FILE", help_heading = "Reaching hosts")]
    pub(crate) agent: Option<PathBuf>,

    /// Where hosts keep the agent, in place of ~/.cache/rlaunch; accounts may share it, each has
    /// .rlaunch-UID there
    #[arg(long, value_name = "DIR", help_heading = "Reaching hosts")]
    pub(crate) agent_dir: Option<String>,

    /// How many hosts are logged in to at one time, in place of 128; fewer where an sshd turns
    /// logins away (MaxStartups). Through one jump host it is 8 at most
    #[arg(
        long, value_name = "N", help_heading = "Reaching hosts",
        value_parser = clap::value_parser!(u16).range(1..=4096)
    )]
    pub(crate) ssh_fanout: Option<u16>,
}
