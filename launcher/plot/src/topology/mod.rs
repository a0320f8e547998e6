//! Hosts with their NUMA nodes, GPUs and network ports, and the networks between them.
//!
//! The layout is made of numbers alone, so that tests can check that nothing overlaps; drawing adds no
//! places of its own. Networks differ in their numbers and line styles, not in colour alone.
//!
//! | file | subject |
//! |---|---|
//! | `shapes` | rectangles, texts and lines with their places, and their drawing |
//! | `layout` | columns of hosts, the networks' lines beside them, the legend below, and the picture as a whole |
//! | `host_box` | rows of one host |

mod host_box;
mod layout;
mod shapes;

use crate::{Canvas, DrawError, Picture, Tip};

/// Picture of hosts, their devices, and networks between them.
#[derive(Clone, Debug, Default)]
pub struct Topology {
    /// Title above the hosts.
    pub title: String,
    /// Hosts in the order in which they are drawn.
    pub hosts: Vec<HostBox>,
    /// Networks, to which ports refer by index.
    pub networks: Vec<Network>,
    /// Sentences below the picture.
    pub notes: Vec<String>,
}

/// Host, or several hosts that are drawn as one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostBox {
    /// Name of the host.
    pub name: String,
    /// Description beside the name.
    pub summary: String,
    /// NUMA nodes, and devices that belong to none.
    pub sections: Vec<Section>,
}

/// NUMA node of a host with the devices and ranks that belong to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Section {
    /// Description of the NUMA node.
    pub label: String,
    /// Devices, those near each other in one group.
    pub groups: Vec<DeviceGroup>,
}

/// Devices near each other, with the ranks that use them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceGroup {
    /// Whether the devices are below one PCIe switch.
    pub is_switch: bool,
    /// Ranks with their CPUs.
    pub ranks: Vec<String>,
    /// GPUs.
    pub gpus: Vec<GpuBox>,
    /// Network ports.
    pub ports: Vec<PortRow>,
}

/// GPU of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuBox {
    /// PCI address and model.
    pub name: String,
    /// Ranks that use the GPU, if any.
    pub used_by: Option<String>,
}

/// Network port of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortRow {
    /// Names of device and interface.
    pub name: String,
    /// Rate, and what limits it.
    pub rate: String,
    /// Address of the port.
    pub address: String,
    /// Whether the port has no carrier.
    pub is_down: bool,
    /// Index of the port's network in [`Topology::networks`]; `None` if no other port is in it.
    pub network: Option<usize>,
    /// Ranks that use the port, if any.
    pub used_by: Option<String>,
}

/// Network between hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// Name, protocol and rate.
    pub text: String,
    /// Style of the lines.
    pub style: LineStyle,
}

/// Style of a network's lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineStyle {
    /// Wide line, for InfiniBand.
    Wide,
    /// Line, for RDMA over Ethernet.
    Plain,
    /// Dashes, for networks without RDMA.
    Dashed,
}

impl DeviceGroup {
    /// Returns the number of rows that the group needs.
    fn rows(&self) -> usize {
        self.ranks.len().max(self.gpus.len()).max(self.ports.len())
    }
}

impl HostBox {
    fn groups(&self) -> impl Iterator<Item = &DeviceGroup> {
        self.sections.iter().flat_map(|section| &section.groups)
    }

    fn ports(&self) -> impl Iterator<Item = &PortRow> {
        self.groups().flat_map(|group| &group.ports)
    }
}

impl Topology {
    /// Tells whether the picture shows ranks.
    fn has_ranks(&self) -> bool {
        self.hosts.iter().flat_map(HostBox::groups).any(|group| !group.ranks.is_empty())
    }
}

impl Picture for Topology {
    fn width(&self) -> u32 {
        u32::try_from(layout::Layout::new(self).width).unwrap_or_default()
    }

    fn height(&self) -> u32 {
        u32::try_from(layout::Layout::new(self).height).unwrap_or_default()
    }

    fn draw(&self, canvas: &Canvas<'_>) -> Result<Vec<Tip>, DrawError> {
        if self.hosts.is_empty() {
            return Err(DrawError("there are no hosts".to_owned()));
        }
        shapes::draw(self, &layout::Layout::new(self).shapes, canvas)?;
        Ok(Vec::new())
    }
}

#[cfg(test)]
mod tests;
