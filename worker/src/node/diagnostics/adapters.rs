//! Network cards and InfiniBand controllers on the PCI bus, with or without a driver.

use crate::node::inventory::Root;
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::inventory::diagnostics::PciAdapter;

const DEVICES: &str = "/sys/bus/pci/devices";
/// PCI base class of network controllers.
const NETWORK: u32 = 0x02;
/// PCI class and subclass of old InfiniBand controllers.
const INFINIBAND: u32 = 0x0c06;

pub(super) fn read(root: &Root, inventory: &Inventory) -> Vec<PciAdapter> {
    root.names(DEVICES).into_iter().filter_map(|name| adapter(root, inventory, name)).collect()
}

fn adapter(root: &Root, inventory: &Inventory, address: String) -> Option<PciAdapter> {
    let file = |name: &str| format!("{DEVICES}/{address}/{name}");
    let class = u32::try_from(root.hex(&file("class"))?).ok()?;
    if class >> 16 != NETWORK && class >> 8 != INFINIBAND {
        return None;
    }
    let id = |name: &str| root.hex(&file(name)).and_then(|id| u16::try_from(id).ok());
    let mut devices = inventory.rdma.iter().filter_map(|device| device.pci.as_ref());
    let mut netdevs = inventory.netdevs.iter();
    let netdev = netdevs.find(|netdev| netdev.pci.as_ref() == Some(&address));
    Some(PciAdapter {
        vendor: id("vendor").unwrap_or_default(),
        device: id("device").unwrap_or_default(),
        class,
        driver: root.link_name(&file("driver")),
        // In a container, the device may belong to another network namespace.
        has_rdma: devices.any(|pci| pci.address == address)
            || !root.names(&file("infiniband")).is_empty(),
        netdev: netdev.map(|netdev| netdev.name.clone()),
        address,
    })
}
