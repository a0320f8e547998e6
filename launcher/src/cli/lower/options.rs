//! Conversion of the options of ranks, of the network between them, and of connections to hosts.

use super::JobError;
use crate::cli::args::{ConnectArgs, NetworkArgs, PlacementArgs};
use crate::cli::config::LoadedConfig;
use rlaunch_bootstrap::job::EnvVar;
use rlaunch_engine::connect::connector::{Container, Reach, Rsh};
use rlaunch_plan::env::forwarded::{self, EnvOptions};
use rlaunch_plan::env::horovod;
use rlaunch_plan::map::MapBy;
use rlaunch_plan::options::{Options, Transport};
use rlaunch_plan::placement::Bind;
use rlaunch_plan::selection::PortOptions;
use std::ffi::OsString;

/// Converts the options that say how to reach hosts.
pub(crate) fn connect_options(args: ConnectArgs, config: &LoadedConfig) -> Result<Reach, JobError> {
    let ConnectArgs { port, ssh_config, rsh, new_hosts, container, container_exec, .. } = args;
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
        new_hosts,
        container: Container::from_args(container, container_exec)?,
        here: false,
        retry_until_up: false,
        node_timeout: None,
        agent: args.agent,
        agent_dir: args.agent_dir,
        fanout: args.ssh_fanout,
    })
}

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
        mesh: network.mesh.options(),
    })
}
