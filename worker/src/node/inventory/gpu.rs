//! GPUs, known by their PCI class: the vendor's own library would take longer to load than
//! everything else here together.

use super::{Root, pci};
use rlaunch_bootstrap::inventory::{Gpu, GpuVendor};

const DEVICES: &str = "/sys/bus/pci/devices";
const DRIVEN: &str = "/sys/bus/pci/drivers";
const DRIVERS: [&str; 2] = ["amdgpu", "nvidia"];
/// Display controllers, and processing accelerators, which is what AMD's Instinct are.
const CLASSES: [u64; 2] = [0x03, 0x12];

/// Every GPU, whoever drives it.
pub(super) fn read(root: &Root) -> Vec<Gpu> {
    root.names(DEVICES).iter().filter_map(|name| gpu(root, name)).collect()
}

/// GPUs that programs can use now: their drivers list them, so that no other device is looked at.
pub(super) fn driven(root: &Root) -> Vec<Gpu> {
    driven_names(root).iter().filter_map(|name| gpu(root, name)).collect()
}

/// How many there are, without a look at what each of them is like.
pub(super) fn count(root: &Root) -> usize {
    driven_names(root).iter().filter(|name| vendor(root, name).is_some()).count()
}

/// In order.
fn driven_names(root: &Root) -> Vec<String> {
    let names = DRIVERS.iter().flat_map(|driver| root.names(&format!("{DRIVEN}/{driver}")));
    let mut names: Vec<String> = names.filter(|name| pci::is_address(name)).collect();
    names.sort();
    names
}

/// Whether there is any such.
pub(super) fn is_there(root: &Root) -> bool {
    let is_driven = |name: &String| pci::is_address(name);
    DRIVERS.iter().any(|driver| root.names(&format!("{DRIVEN}/{driver}")).iter().any(is_driven))
}

/// Whose it is; `None` when it is no GPU.
fn vendor(root: &Root, name: &str) -> Option<GpuVendor> {
    let vendor = match root.hex(&format!("{DEVICES}/{name}/vendor"))? {
        0x10de => GpuVendor::Nvidia,
        0x1002 => GpuVendor::Amd,
        _ => return None,
    };
    let class = root.hex(&format!("{DEVICES}/{name}/class"))? >> 16;
    CLASSES.contains(&class).then_some(vendor)
}

fn gpu(root: &Root, name: &str) -> Option<Gpu> {
    let directory = format!("{DEVICES}/{name}");
    let vendor = vendor(root, name)?;
    let pci = pci::read(root, &directory)?;
    Some(Gpu { vendor, model: model(root, vendor, name, &directory), pci })
}

fn model(root: &Root, vendor: GpuVendor, address: &str, directory: &str) -> Option<String> {
    match vendor {
        GpuVendor::Nvidia => {
            let path = format!("/proc/driver/nvidia/gpus/{address}/information");
            let text = root.text(&path)?;
            let line = text.lines().find_map(|line| line.strip_prefix("Model:"))?;
            Some(line.trim().to_owned())
        }
        GpuVendor::Amd => {
            root.text(&format!("{directory}/product_name")).filter(|name| !name.is_empty())
        }
    }
}
