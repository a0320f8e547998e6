//! Options that say how to reach hosts, and from which file settings are read.

use super::values;
use rlaunch_engine::connect::connector::{
    Container, ContainerEngine, ContainerWords, Gpus, ImageName, Launcher, NewHostsRule, PlainWord,
    Pull, RunOptions, Volume,
};
use std::path::PathBuf;

/// Connections to hosts: SSH or another command, containers, the agent.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct ConnectArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,

    /// SSH port of hosts for which ~/.ssh/config sets none
    #[arg(long, value_name = "PORT", help_heading = "Reaching hosts")]
    pub(crate) port: Option<u16>,

    /// Reach hosts by this command in place of rlaunch's own SSH: 'ssh -p 2222',
    /// 'kubectl exec -i {host} -- sh -c'
    ///
    /// It is called as mpirun calls its remote shell, `CMD HOST LINE`, and runs LINE in a shell on HOST. In a
    /// CMD with {host} the host's name goes there.
    #[arg(long, value_name = "CMD", conflicts_with_all = ["port", "ssh_config"])]
    #[arg(help_heading = "Reaching hosts")]
    pub(crate) rsh: Option<String>,

    /// Start agents by srun or by SSH: by default by a step of srun where all hosts are nodes of the Slurm job in which
    /// rlaunch runs
    ///
    /// Ranks are then within the job's CPUs, memory and accounting, and end with it.
    #[arg(long, value_name = "auto|srun|ssh", value_parser = values::named::<Launcher>())]
    #[arg(hide_possible_values = true, help_heading = "Reaching hosts")]
    pub(crate) launcher: Option<Launcher>,

    /// Run in the container of this name on every host, or in one started from this image
    ///
    /// Running containers: docker:NAME, podman:NAME, nerdctl:NAME, toolbox:NAME; forced:NAME if the login
    /// itself enters the container; other:NAME with --container-exec. Text with a / : or @ names an IMAGE:
    /// docker, podman or nerdctl start a container from it for this job, with the host's network and
    /// /dev/infiniband, as in docker:ubuntu:24.04. The hosts must have the image already.
    #[arg(long, value_name = "KIND:NAME|IMAGE", help_heading = "Reaching hosts")]
    pub(crate) container: Option<Container>,

    /// Command on the hosts that enters the container, or starts one from an IMAGE; {name} stands for its
    /// name
    ///
    /// 'sudo docker exec -i {name}', or 'docker run --rm -i --network host --ipc host --gpus all {name}'.
    #[arg(long, value_name = "CMD", help_heading = "Reaching hosts")]
    pub(crate) container_exec: Option<String>,

    #[command(flatten)]
    pub(crate) image: ImageArgs,

    /// Read this file in place of ~/.ssh/config and /etc/ssh/ssh_config
    #[arg(long, value_name = "FILE", value_parser = values::path())]
    #[arg(help_heading = "Reaching hosts")]
    pub(crate) ssh_config: Option<PathBuf>,

    /// Accept, ask about, or refuse hosts whose keys are not in ~/.ssh/known_hosts
    ///
    /// Accepted keys are reported. Nothing of yours is sent to a refused host. Without this option
    /// StrictHostKeyChecking decides (accept-new or no, ask, yes); if it is not set, new hosts are accepted. A
    /// host whose key has changed is always refused.
    #[arg(long, value_name = "RULE", value_parser = values::named::<NewHostsRule>())]
    #[arg(conflicts_with = "rsh", help_heading = "Reaching hosts")]
    pub(crate) new_hosts: Option<NewHostsRule>,

    /// Agent to install on hosts, in place of the one that came with rlaunch
    #[arg(long, value_name = "FILE", value_parser = values::path())]
    #[arg(help_heading = "Reaching hosts")]
    pub(crate) agent: Option<PathBuf>,

    /// Directory in which hosts keep the agent, in place of ~/.cache/rlaunch. Accounts may share it: each has
    /// its own .rlaunch-UID there
    #[arg(long, value_name = "DIR", help_heading = "Reaching hosts")]
    pub(crate) agent_dir: Option<String>,

    /// Limit of simultaneous logins, 128 by default; fewer if an sshd drops connections (MaxStartups), and 8
    /// at most through one jump host
    #[arg(long, value_name = "N", help_heading = "Reaching hosts")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) ssh_fanout: Option<u16>,
}

/// Containers that are started from an image, by the words of `docker run`.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct ImageArgs {
    /// Start a container from this image on every host, and run in it
    ///
    /// It has the host's network, IPC, /dev/infiniband and GPUs, its own limits of locked memory where the
    /// engine may raise them, and this directory, if the host has it; it ends with the job. Ranks have the
    /// variables of the image: -x passes on yours. `rlaunch help containers` explains more.
    #[arg(long, value_name = "NAME", help_heading = CONTAINERS)]
    pub(crate) image: Option<ImageName>,

    /// Container engine of the hosts: docker (the default), podman or nerdctl
    #[arg(long, value_name = "NAME", value_parser = values::one_of(ENGINES), help_heading = CONTAINERS)]
    #[arg(hide_possible_values = true)]
    pub(crate) engine: Option<ContainerEngine>,

    /// GPUs of the container; by default all that the engine can pass on
    #[arg(long, value_name = "all|N|none|device=0,1", help_heading = CONTAINERS)]
    pub(crate) gpus: Option<Gpus>,

    /// Mount this directory or volume of the hosts in the container; ~/ is their home directory
    #[arg(long, value_name = "SRC:DST[:ro]", help_heading = CONTAINERS)]
    pub(crate) volume: Vec<Volume>,

    /// Pass this device of the hosts to the container
    #[arg(long, value_name = "PATH[:PATH]", help_heading = CONTAINERS)]
    pub(crate) device: Vec<PlainWord>,

    /// Size of the container's own /dev/shm, in place of the host's
    #[arg(long, value_name = "SIZE", help_heading = CONTAINERS)]
    pub(crate) shm_size: Option<PlainWord>,

    /// User in the container; by default that of the image
    #[arg(long, value_name = "USER[:GROUP]", help_heading = CONTAINERS)]
    pub(crate) user: Option<PlainWord>,

    /// When hosts get the image from its registry: missing (the default), always or never; push: those that lack
    /// it get it from this machine
    #[arg(long, value_name = "WHEN", value_parser = values::named::<Pull>(), help_heading = CONTAINERS)]
    #[arg(hide_possible_values = true)]
    pub(crate) pull: Option<Pull>,
}

/// Heading of the options for containers.
const CONTAINERS: &str = "Containers";

/// Values of `--engine`.
const ENGINES: &[(&str, ContainerEngine)] = &[
    ("docker", ContainerEngine::Docker),
    ("podman", ContainerEngine::Podman),
    ("nerdctl", ContainerEngine::Nerdctl),
];

impl ImageArgs {
    /// Returns the options, without those for a container that runs already.
    pub(crate) fn into_words(self) -> ContainerWords {
        let ImageArgs { image, engine, gpus, volume, device, shm_size, user, pull } = self;
        let run = RunOptions {
            gpus,
            volumes: volume,
            devices: device,
            shm_size,
            user,
            pull,
            directory: None,
        };
        ContainerWords { image, engine, run, ..ContainerWords::default() }
    }
}

/// Options of verbs that use SSH without an agent.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct SshArgs {
    /// SSH port of hosts for which the configuration sets none
    #[arg(long, value_name = "PORT")]
    pub(crate) port: Option<u16>,

    /// Read this file in place of ~/.ssh/config and /etc/ssh/ssh_config
    #[arg(long, value_name = "FILE", value_parser = values::path())]
    pub(crate) ssh_config: Option<PathBuf>,
}

/// Sources of settings that are not on the command line.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct ConfigArgs {
    /// Read defaults and hosts from this file, or from no file
    ///
    /// Without this option rlaunch reads ./rlaunch.toml (only its harmless keys before `rlaunch trust`), or
    /// else ~/.config/rlaunch/rlaunch.toml ($XDG_CONFIG_HOME/rlaunch). Keys are the long names of options. An
    /// option on the command line overrides its variable RLAUNCH_NAME, which overrides the file.
    #[arg(long, value_name = "FILE|none", value_parser = values::path())]
    #[arg(help_heading = "Configuration")]
    pub(crate) cluster: Option<PathBuf>,

    /// Take [profile.NAME] of that file as well; it overrides [defaults]
    #[arg(long, value_name = "NAME", help_heading = "Configuration")]
    pub(crate) profile: Option<String>,
}
