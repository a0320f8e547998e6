//! GPUs, recognised by their PCI class. Loading the vendor's library would take longer than reading
//! all the rest of the inventory.

use super::{Root, pci};
use rlaunch_bootstrap::inventory::{Gpu, GpuVendor};

const DEVICES: &str = "/sys/bus/pci/devices";
const DRIVEN: &str = "/sys/bus/pci/drivers";
const DRIVERS: [&str; 2] = ["amdgpu", "nvidia"];
/// PCI classes of GPUs: display controllers, and processing accelerators (AMD Instinct).
const CLASSES: [u64; 2] = [0x03, 0x12];

/// Reads all GPUs, with or without a driver.
pub(super) fn read(root: &Root) -> Vec<Gpu> {
    root.names(DEVICES).iter().filter_map(|name| gpu(root, name)).collect()
}

/// Reads the GPUs that programs can use, that is, those with a driver. Uses the drivers' lists of
/// devices, so that no other PCI device is read.
pub(super) fn driven(root: &Root) -> Vec<Gpu> {
    driven_names(root).iter().filter_map(|name| gpu(root, name)).collect()
}

/// Counts the GPUs that programs can use, without reading the details of each.
pub(super) fn count(root: &Root) -> usize {
    driven_names(root).iter().filter(|name| vendor(root, name).is_some()).count()
}

/// Returns the PCI addresses of all devices with a GPU driver, sorted.
fn driven_names(root: &Root) -> Vec<String> {
    let names = DRIVERS.iter().flat_map(|driver| root.names(&format!("{DRIVEN}/{driver}")));
    let mut names: Vec<String> = names.filter(|name| pci::is_address(name)).collect();
    names.sort();
    names
}

/// Tells whether this machine has a GPU that programs can use.
pub(super) fn is_there(root: &Root) -> bool {
    let is_driven = |name: &String| pci::is_address(name);
    DRIVERS.iter().any(|driver| root.names(&format!("{DRIVEN}/{driver}")).iter().any(is_driven))
}

/// Returns the vendor, or `None` if the device is not a GPU.
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
