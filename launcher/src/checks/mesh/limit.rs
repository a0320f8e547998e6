//! Rate at which a port can carry data.

use crate::plan::selection::UsablePort;
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::rank_table::Transport;

/// Bytes of a RoCE packet besides its data: Ethernet with preamble and gap, IPv4, UDP, transport header, checksums.
const ROCE_OVERHEAD: u64 = 82;
/// Bytes of an InfiniBand packet besides its data: local and transport header, checksums.
const INFINIBAND_OVERHEAD: u64 = 30;
/// Part of a PCIe link's rate that is data, in percent: packets of 256 bytes leave 91, of which the card's own reads and
/// interrupts take some.
const PCIE_DATA: u64 = 80;
/// Rate of InfiniBand up to which 8 of 10 bits are data: four lanes of QDR, in megabits per second.
const QDR: u64 = 40_000;

/// Returns the rate of data that a port can write, in megabits per second: that of the port or of its PCIe links,
/// whichever is less. `None` for virtual functions, whose share is not known, and for unknown rates.
pub(crate) fn data_rate(inventory: &Inventory, port: &UsablePort) -> Option<u32> {
    let device = inventory.rdma.iter().find(|device| device.name == port.nic.device)?;
    let pci = device.pci.as_ref()?;
    if pci.physical_function.is_some() {
        return None;
    }
    let rate = u64::from(port.nic.rate_mbps?);
    let mtu = u64::from(port.nic.mtu?);
    let of_port = match port.nic.transport {
        Transport::Infiniband => {
            let coded = if rate <= QDR { rate * 8 / 10 } else { rate };
            coded * mtu / (mtu + INFINIBAND_OVERHEAD)
        }
        Transport::Roce | Transport::Iwarp => rate * mtu / (mtu + ROCE_OVERHEAD),
    };
    let slowest = pci.bottleneck().map(|link| u64::from(link.rate.megabits()) * PCIE_DATA / 100);
    u32::try_from(slowest.into_iter().fold(of_port, u64::min)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::selection::{PortOptions, usable};
    use crate::recorded::inventory;

    fn rate_of(inventory: &Inventory) -> Option<u32> {
        let ports = usable(inventory, &PortOptions::default());
        data_rate(inventory, ports.first()?)
    }

    #[test]
    fn the_slower_of_port_and_pcie_counts() {
        let mut machine = inventory("dgx");
        let whole = rate_of(&machine).unwrap();
        let named = usable(&machine, &PortOptions::default())[0].nic.clone();
        let port = named.rate_mbps.unwrap();
        assert!(whole < port && whole > port * 9 / 10, "{whole} of {port}");
        let devices = machine.rdma.iter_mut();
        let own = devices.filter(|device| device.name == named.device);
        let links = own.filter_map(|device| device.pci.as_mut()).flat_map(|pci| &mut pci.links);
        links.take(2).for_each(|link| link.current.as_mut().unwrap().width = 4);
        let narrow = rate_of(&machine).unwrap();
        assert!(narrow < whole / 2, "{narrow} of {whole}");
    }

    #[test]
    fn rates_of_software_are_not_known() {
        for name in ["rxe", "siw", "erdma-compat"] {
            assert_eq!(rate_of(&inventory(name)), None, "{name}");
        }
    }
}
