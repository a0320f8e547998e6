//! Kernel modules on RDMA, networks and GPUs, their parameters and device files.

use crate::node::inventory::Root;
use rlaunch_bootstrap::inventory::diagnostics::DeviceFile;

/// Modules that are reported.
const MODULES: &str = "\
    8021q amdgpu bnxt_en bnxt_re bonding bridge cxgb4 efa erdma gdrdrv hns_roce_hw_v2 i40e ib_cm \
    ib_core ib_ipoib ib_iser ib_mad ib_umad ib_uverbs ice ionic_rdma ip_set ip_tables irdma iw_cm \
    iw_cxgb4 mana_ib mlx4_core mlx4_en mlx4_ib mlx5_core mlx5_ib nf_conntrack nf_tables nft_compat \
    nouveau nv_peer_mem nvidia nvidia_fs nvidia_modeset nvidia_peermem nvidia_uvm ocrdma qedr \
    rdma_cm rdma_rxe rdma_ucm rpcrdma siw thunderbolt_net usnic_verbs vmw_pvrdma x_tables";
/// Modules whose parameters are reported.
const WITH_PARAMETERS: &str = "\
    erdma ib_core ib_ipoib irdma mlx4_core mlx4_en mlx4_ib mlx5_core mlx5_ib nvidia_peermem \
    rdma_rxe siw";
/// Maximum length of a parameter's value, in characters.
const MAX_VALUE: usize = 100;

/// Returns the wanted modules that are loaded or built into the kernel, sorted; empty if the kernel's
/// lists cannot be read.
pub(super) fn list_loaded(root: &Root) -> Vec<String> {
    let (loaded, built_in) = (root.text("/proc/modules"), list_built_in(root));
    if loaded.is_none() && built_in.is_none() {
        return Vec::new();
    }
    let (loaded, built_in) = (loaded.unwrap_or_default(), built_in.unwrap_or_default());
    let loaded = loaded.lines().filter_map(|line| line.split(' ').next());
    let names: Vec<String> =
        loaded.chain(built_in.iter().map(String::as_str)).map(kernel_name).collect();
    let is_there = |name: &&str| {
        // Modules built into the kernel are listed here if they have parameters.
        names.iter().any(|own| own == *name) || root.exists(&format!("/sys/module/{name}"))
    };
    MODULES.split(' ').filter(is_there).map(str::to_owned).collect()
}

/// Returns the wanted modules in the kernel's list of those that are built in, which has lines like
/// `kernel/net/bridge/bridge.ko`.
fn list_built_in(root: &Root) -> Option<Vec<String>> {
    let release = root.text("/proc/sys/kernel/osrelease")?;
    let list = root.asked_text("/built-in-modules", || {
        let path = format!("/lib/modules/{release}/modules.builtin");
        let text = std::fs::read_to_string(path).ok()?;
        let files = text.lines().filter_map(|line| line.rsplit('/').next()?.strip_suffix(".ko"));
        let wanted =
            files.map(kernel_name).filter(|name| MODULES.split(' ').any(|known| known == name));
        Some(wanted.collect::<Vec<String>>().join("\n"))
    })?;
    Some(list.lines().map(str::to_owned).collect())
}

/// Tells whether a module is in the kernel. Returns `None` if that cannot be known, as in a container
/// without the kernel's lists.
pub(super) fn is_loaded(root: &Root, module: &str) -> Option<bool> {
    if !root.exists("/proc/modules") {
        // This kernel loads no modules, so that asking for one loads none.
        return Some(true);
    }
    if list_loaded(root).iter().any(|name| name == module) {
        Some(true)
    } else {
        list_built_in(root).map(|_| false)
    }
}

/// Writes a module's name as the kernel does.
fn kernel_name(name: &str) -> String {
    name.replace('-', "_")
}

/// Returns the parameters of RDMA modules, such as `erdma.compat_mode`, with their values.
pub(super) fn read_parameters(root: &Root) -> Vec<(String, String)> {
    let of_module = |module: &str| {
        let directory = format!("/sys/module/{module}/parameters");
        let names = if root.exists(&directory) { root.names(&directory) } else { Vec::new() };
        let read = move |name: String| {
            // Some may be written only.
            let value = root.text(&format!("{directory}/{name}"))?;
            Some((name, value.chars().take(MAX_VALUE).collect::<String>()))
        };
        let read: Vec<(String, String)> = names.into_iter().filter_map(read).collect();
        read.into_iter()
            .map(|(name, value)| (format!("{module}.{name}"), value))
            .collect::<Vec<_>>()
    };
    let mut parameters: Vec<_> = WITH_PARAMETERS.split(' ').flat_map(of_module).collect();
    parameters.sort_unstable();
    parameters
}

/// Tells whether NVIDIA's driver consists of its open kernel modules. Only these are not proprietary,
/// which the kernel notes as the taint `P`.
pub(super) fn is_nvidia_open(root: &Root) -> Option<bool> {
    match root.text("/proc/driver/nvidia/version") {
        Some(version) => Some(version.contains("Open Kernel Module")),
        None => root.text("/sys/module/nvidia/taint").map(|taint| !taint.contains('P')),
    }
}

/// Looks for the files by which programs reach GPUs. A recorded host has none, whatever it had.
pub(super) fn find_gpu_files(root: &Root) -> Option<bool> {
    let is_there = |path: &str| root.may_open(path).is_some();
    root.is_live().then(|| ["/dev/nvidiactl", "/dev/kfd"].into_iter().any(is_there))
}

/// Looks for the device file of the RDMA connection manager.
pub(super) fn find_connection_manager(root: &Root) -> DeviceFile {
    match root.may_open("/dev/infiniband/rdma_cm") {
        Some(true) => DeviceFile::Usable,
        Some(false) => DeviceFile::Denied,
        None => DeviceFile::Missing,
    }
}
