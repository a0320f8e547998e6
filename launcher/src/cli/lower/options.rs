//! Conversion of the options of ranks, of the network between them, and of connections to hosts.

use super::JobError;
use super::directory;
use crate::cli::args::{ConnectArgs, ImageArgs, NetworkArgs, PlacementArgs};
use crate::cli::config::LoadedConfig;
use rlaunch_bootstrap::job::EnvVar;
use rlaunch_console::messages;
use rlaunch_engine::connect::connector::{Container, ContainerWords, Logins, Reach, Rsh, Volume};
use rlaunch_plan::env::forwarded::{self, EnvOptions};
use rlaunch_plan::env::horovod;
use rlaunch_plan::job::JobSpec;
use rlaunch_plan::map::MapBy;
use rlaunch_plan::options::{Options, Transport};
use rlaunch_plan::placement::Bind;
use rlaunch_plan::selection::PortOptions;
use std::collections::BTreeMap;
use std::ffi::OsString;

/// Converts the options that say how to reach hosts.
pub(crate) fn connect_options(args: ConnectArgs, config: &LoadedConfig) -> Result<Reach, JobError> {
    let ConnectArgs { port, ssh_config, rsh, new_hosts, .. } = args;
    if let Some(directory) = &args.agent_dir {
        rlaunch_engine::connect::agent::check_directory(directory).map_err(JobError::AgentDir)?;
    }
    Ok(Reach {
        host_table: config.hosts.clone(),
        port,
        ssh_config,
        check_ssh_config_permissions: config.check_ssh_config_permissions,
        rsh: rsh.map(|text| Rsh::parse("--rsh", &text)).transpose()?,
        launcher: args.launcher.unwrap_or_default(),
        slurm: None,
        tether: None,
        new_hosts,
        container: Container::from_words(container_words(
            args.container, args.container_exec, args.image,
        )?)?,
        of_hosts: BTreeMap::new(),
        here: false,
        retry_until_up: false,
        node_timeout: None,
        agent: args.agent,
        agent_dir: args.agent_dir,
        fanout: args.ssh_fanout,
        logins: Logins::default(),
        is_ahead: false,
    })
}

/// Collects the options for containers. Relative sources of volumes are below this directory.
fn container_words(
    container: Option<Container>,
    enter: Option<String>,
    image: ImageArgs,
) -> Result<ContainerWords, JobError> {
    let mut words = ContainerWords { container, enter, ..image.into_words() };
    settle_volumes(&mut words)?;
    Ok(words)
}

fn settle_volumes(words: &mut ContainerWords) -> Result<(), JobError> {
    let below_here = |path: &str| {
        let path = directory::here().ok()?.physical.join(path).canonicalize().ok()?;
        path.to_str().map(str::to_owned)
    };
    let volumes = &mut words.run.volumes;
    volumes.iter_mut().try_for_each(|volume| volume.below(below_here)).map_err(JobError::Volume)
}

/// Returns the container of each program. `others` are the options of the programs behind a `:`, which add to those of all.
pub(super) fn containers<'a>(
    reach: &Reach,
    others: impl Iterator<Item = &'a ImageArgs>,
) -> Result<Vec<Option<Container>>, JobError> {
    let all = reach.container.as_ref();
    let own = |image: &ImageArgs| {
        let mut words = image.clone().into_words();
        if words.image.is_none() && words.engine.is_none() && words.run.is_empty() {
            return Ok(all.cloned());
        }
        settle_volumes(&mut words)?;
        Ok(Container::for_program(all, words)?)
    };
    std::iter::once(Ok(all.cloned())).chain(others.map(own)).collect()
}

/// Puts programs into their containers, by program: one container on each host, which has the job's directory. Returns an
/// error if two programs on one host want different ones.
pub(super) fn enter_containers(
    reach: &mut Reach,
    containers: &[Option<Container>],
    spec: &mut JobSpec,
) -> Result<(), JobError> {
    if containers.iter().any(|own| *own != reach.container) {
        part_containers(reach, containers, spec)?;
    }
    mount_directory(reach);
    Ok(())
}

fn part_containers(
    reach: &mut Reach,
    containers: &[Option<Container>],
    spec: &mut JobSpec,
) -> Result<(), JobError> {
    // An error of the map is reported when hosts are about to be reached.
    let Ok(map) = spec.map_ranks() else { return Ok(()) };
    for node in &map.nodes {
        let mut wanted: Vec<&Option<Container>> = Vec::new();
        for rank in &node.ranks {
            let container = &containers[map.application_of(*rank)];
            if !wanted.contains(&container) {
                wanted.push(container);
            }
        }
        match wanted[..] {
            [only] => drop(reach.of_hosts.insert(node.host.to_string(), only.clone())),
            [] => {}
            _ => return Err(JobError::TwoContainers(node.host.to_string())),
        }
    }
    if spec.is_local {
        (spec.is_local, reach.here) = (false, true);
    }
    Ok(())
}

/// Mounts the job's directory in its containers, on hosts that have it.
pub(super) fn mount_directory(reach: &mut Reach) {
    let Some(here) =
        directory::here().ok().and_then(|here| here.path.into_os_string().into_string().ok())
    else {
        return;
    };
    // Of a system's own directories, the image has others.
    let first = here.split('/').nth(1).unwrap_or_default();
    if SYSTEM.contains(&first) {
        return;
    }
    let directory = Volume::of_directory(&here, &here);
    if directory.is_none() && reach.starts_containers() {
        messages::info(&format!(
            "{here} is not in the containers: its name has other characters than letters, digits and /._-+@=,%"
        ));
    }
    reach.mount(directory.as_ref());
}

/// First parts of paths that belong to an image.
const SYSTEM: [&str; 11] =
    ["", "bin", "boot", "dev", "etc", "lib", "lib64", "proc", "sbin", "sys", "usr"];

/// Returns the variables that ranks get from this shell and from the user's options, and the names of those
/// that the options set.
pub(super) fn variables(
    options: EnvOptions,
    network: &NetworkArgs,
) -> Result<(Vec<EnvVar>, Vec<String>), JobError> {
    let options = EnvOptions { named: named_variables(network, &options.named), ..options };
    let (mut env, user_set_vars) = forwarded::forwarded(std::env::vars_os(), &options)?;
    let name = rlaunch_bootstrap::env::RLAUNCH_INIT_TIMEOUT;
    if network.init_timeout.is_some() && !user_set_vars.iter().any(|asked| asked == name) {
        // --init-timeout overrides the shell's variable.
        env.retain(|var| var.name != name);
    }
    for var in &env {
        let (name, value) = (var.name.to_string_lossy(), var.value.to_string_lossy());
        tracing::debug!(
            "forwards {name}={}",
            rlaunch_bootstrap::env::redacted_value(&name, &value)
        );
    }
    Ok((env, user_set_vars))
}

/// Lists the variables of `-x`, and NCCL_NET_PLUGIN, by which NCCL loads the plugin of `--nccl-net-plugin`.
fn named_variables(network: &NetworkArgs, env: &[OsString]) -> Vec<OsString> {
    let plugin = network.nccl_net_plugin.iter().map(|path| {
        let mut variable = OsString::from("NCCL_NET_PLUGIN=");
        variable.push(path);
        variable
    });
    plugin.chain(env.iter().cloned()).collect()
}

/// Converts the options for ranks' CPUs, GPUs and network.
pub(super) fn rank_options(
    placement: PlacementArgs,
    network: NetworkArgs,
    env: &[EnvVar],
) -> Result<Options, JobError> {
    let bind = match (placement.bind, placement.cpus_per_rank) {
        (bind, None) => bind,
        (None | Some(Bind::Core(_)), each) => Some(Bind::Core(each)),
        (Some(_), Some(_)) => return Err(JobError::CpusPerRank),
    };
    let require_rdma = network.require_rdma;
    let transport = match (network.transport, require_rdma) {
        (Transport::Tcp, true) => return Err(JobError::RdmaByTcp),
        (_, true) => Transport::Rdma,
        (transport, false) => transport,
    };
    Ok(Options {
        map_by: MapBy::default(),
        bind,
        rank_list: None,
        gpu_mask: placement.gpu_mask,
        transport,
        preflight: network.preflight,
        require_rdma,
        ports: PortOptions {
            hca: network.hca,
            gid_index: network.gid_index,
            connect: network.connect,
        },
        nccl_net_plugin: network.nccl_net_plugin,
        nccl_verify: network.nccl_verify,
        nccl_share_gpu: network.nccl_share_gpu,
        env_styles: network.env_style,
        horovod: !network.no_horovod && horovod::may_set_variables(env),
        traffic_class: network.mesh.traffic_class,
        service_level: network.mesh.service_level,
        init_timeout: network.init_timeout,
        watches_hangs: false,
        named_ports: Vec::new(),
        starters: Vec::new(),
        mesh: network.mesh.options(),
    })
}
