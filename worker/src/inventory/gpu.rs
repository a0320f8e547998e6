//! GPUs, known by their PCI class: the vendor's own library would take longer to load than
//! everything else here together.

use super::{Root, pci};
use rlaunch_bootstrap::inventory::{Gpu, GpuVendor};

const DEVICES: &str = "/sys/bus/pci/devices";
/// Display controllers, and processing accelerators, which is what AMD's Instinct are.
const CLASSES: [u64; 2] = [0x03, 0x12];

pub(super) fn read(root: &Root) -> Vec<Gpu> {
    let gpu = |name: String| {
        let directory = format!("{DEVICES}/{name}");
        let vendor = match root.hex(&format!("{directory}/vendor"))? {
            0x10de => GpuVendor::Nvidia,
            0x1002 => GpuVendor::Amd,
            _ => return None,
        };
        let class = root.hex(&format!("{directory}/class"))? >> 16;
        let pci = CLASSES.contains(&class).then(|| pci::read(root, &directory)).flatten()?;
        Some(Gpu { vendor, model: model(root, vendor, &name, &directory), pci })
    };
    root.names(DEVICES).into_iter().filter_map(gpu).collect()
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
