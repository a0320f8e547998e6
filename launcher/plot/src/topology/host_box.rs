//! Rows of one host: its NUMA nodes, in them groups of devices, in these a row for each rank, GPU and port.

use super::shapes::{Area, Look, Shape, TextSize, text_width};
use super::{DeviceGroup, HostBox, PortRow, Section, Topology};

/// Distance between two rows.
pub(super) const ROW: i32 = 18;
/// Rows begin at multiples of this number, which divides the distance between two of them.
const STEP: i32 = ROW / 2;
/// Height of the frame of a rank, GPU or port.
const CELL: i32 = 16;
/// Distance between the frames of ranks, GPUs and ports.
const CELL_GAP: i32 = 10;
/// Distance between a frame and the text in it.
const TEXT_PAD: i32 = 5;
/// Distance between two texts of a port.
const TEXT_GAP: i32 = 10;
/// Distance from the edge of a host to that of its devices: a part for each frame around them.
const INDENT: i32 = 16;
/// Maximum width of the texts of ranks, of GPUs, and of names, rates, addresses and users of ports.
const MAX_WIDTHS: [i32; 6] = [250, 220, 240, 230, 180, 130];
/// Width of a host without devices.
const MIN_WIDTH: i32 = 300;
/// Width of the number of a network, in which two digits have room.
const PIN: i32 = 20;

/// Column of hosts to which a host belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// Lines of networks are at the right of the host. Whether there is no other column.
    Left { is_only: bool },
    /// Lines of networks are at the left of the host.
    Right,
}

/// Widths of columns within a host, the same for all hosts; 0 if a column is empty.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Columns {
    rank: i32,
    gpu: i32,
    /// Ranks that use a GPU.
    gpu_used: i32,
    name: i32,
    rate: i32,
    address: i32,
    port_used: i32,
}

/// Outer end of the number of a port's network.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tap {
    pub(super) network: usize,
    pub(super) at: (i32, i32),
}

/// Left edges and widths of the cells in a row.
struct Cells {
    rank: (i32, i32),
    gpu: (i32, i32),
    port: (i32, i32),
}

/// Adds up parts with a gap between those that are not empty.
fn joined(parts: &[i32], gap: i32) -> i32 {
    let parts = parts.iter().filter(|part| **part > 0);
    parts.map(|part| part + gap).sum::<i32>().saturating_sub(gap).max(0)
}

impl Columns {
    pub(super) fn new(topology: &Topology) -> Columns {
        let groups = || topology.hosts.iter().flat_map(HostBox::groups);
        let ports = || groups().flat_map(|group| &group.ports);
        let gpus = || groups().flat_map(|group| &group.gpus);
        let widest = |texts: &mut dyn Iterator<Item = &str>, most: i32| {
            texts.map(|text| text_width(text, TextSize::Plain)).max().unwrap_or(0).min(most)
        };
        let [rank, gpu, name, rate, address, used] = MAX_WIDTHS;
        Columns {
            rank: widest(&mut groups().flat_map(|group| &group.ranks).map(String::as_str), rank),
            gpu: widest(&mut gpus().map(|gpu| gpu.name.as_str()), gpu),
            gpu_used: widest(&mut gpus().filter_map(|gpu| gpu.used_by.as_deref()), used),
            name: widest(&mut ports().map(|port| port.name.as_str()), name),
            rate: widest(&mut ports().map(|port| port.rate.as_str()), rate),
            address: widest(&mut ports().map(|port| port.address.as_str()), address),
            port_used: widest(&mut ports().filter_map(|port| port.used_by.as_deref()), used),
        }
    }

    /// Returns the widths of cells for ranks, GPUs and ports.
    fn cells(&self) -> [i32; 3] {
        let label = |width: i32| if width > 0 { width + 2 * TEXT_PAD } else { 0 };
        let cell = |parts: &[i32]| match joined(parts, TEXT_GAP) {
            0 => 0,
            width => width + 2 * TEXT_PAD,
        };
        [
            cell(&[self.rank]),
            cell(&[self.gpu, label(self.gpu_used)]),
            cell(&[self.name, self.rate, self.address, label(self.port_used)]),
        ]
    }

    /// Returns the width of a host.
    pub(super) fn host_width(&self) -> i32 {
        (joined(&self.cells(), CELL_GAP) + 2 * INDENT).max(MIN_WIDTH)
    }

    /// Returns the places of cells. Ports are nearest to the networks.
    fn places(&self, area: Area, side: Side) -> Cells {
        let [rank, gpu, port] = self.cells();
        let after = |x: i32, width: i32| if width > 0 { x + width + CELL_GAP } else { x };
        let start = area.left + INDENT;
        match side {
            Side::Left { .. } => {
                let gpus = after(start, rank);
                let end = area.right - INDENT;
                Cells { rank: (start, rank), gpu: (gpus, gpu), port: (end - port, port) }
            }
            Side::Right => {
                let gpus = after(start, port);
                let ranks = after(gpus, gpu);
                Cells { rank: (ranks, rank), gpu: (gpus, gpu), port: (start, port) }
            }
        }
    }
}

/// Layout of a host as far as it has got, from top to bottom.
pub(super) struct HostLayout<'a> {
    columns: &'a Columns,
    side: Side,
    shapes: &'a mut Vec<Shape>,
    taps: &'a mut Vec<Tap>,
    cells: Cells,
    /// Edges of the host; the lower one moves down with each row.
    area: Area,
}

impl<'a> HostLayout<'a> {
    /// Adds a host with its upper left corner at `(left, top)`, and returns its lower edge.
    pub(super) fn add(
        host: &HostBox,
        (left, top): (i32, i32),
        side: Side,
        columns: &'a Columns,
        shapes: &'a mut Vec<Shape>,
        taps: &'a mut Vec<Tap>,
    ) -> i32 {
        let area = Area { left, top, right: left + columns.host_width(), bottom: top };
        let cells = columns.places(area, side);
        let mut layout = HostLayout { columns, side, shapes, taps, cells, area };
        layout.host(host);
        layout.area.bottom
    }

    fn host(&mut self, host: &HostBox) {
        let frame = self.open(self.area, Look::Host);
        let (left, middle) = (self.area.left + 10, self.area.top + 15);
        let room = self.area.right - 8 - left;
        let name = Shape::text(left, middle, &host.name, TextSize::Heading, room);
        let Shape::Text { area, .. } = &name else { return };
        let summary = area.right + 14;
        self.shapes.push(name);
        let room = self.area.right - 8 - summary;
        if room > 60 && !host.summary.is_empty() {
            let text = Shape::text(summary, middle + 1, &host.summary, TextSize::Plain, room);
            self.shapes.push(text);
        }
        self.area.bottom = self.area.top + 28;
        host.sections.iter().for_each(|section| self.section(section));
        self.area.bottom += 1;
        self.close(frame);
    }

    fn section(&mut self, section: &Section) {
        if section.label.is_empty() {
            self.area.bottom -= 6;
            section.groups.iter().for_each(|group| self.group(group));
            self.area.bottom += 5;
            return;
        }
        let Area { left, right, bottom: top, .. } = self.area;
        let frame =
            self.open(Area { left: left + 6, right: right - 6, top, bottom: top }, Look::Section);
        let (x, width) = (left + INDENT, right - left - 2 * INDENT);
        let label = Shape::text(x, top + 11, &section.label, TextSize::Plain, width);
        self.shapes.push(label);
        self.area.bottom = top + 19;
        section.groups.iter().for_each(|group| self.group(group));
        self.area.bottom += 2;
        self.close(frame);
        self.area.bottom += 5;
    }

    fn group(&mut self, group: &DeviceGroup) {
        let rows = i32::try_from(group.rows()).unwrap_or(0);
        if rows == 0 {
            return;
        }
        let first = self.first_row();
        let end = first + (rows - 1) * ROW + CELL / 2 + 3;
        if group.is_switch {
            let top = first - CELL / 2 - 3;
            let (left, right) = self.switch_edges(group);
            let area = Area { left: left - 5, right: right + 5, top, bottom: end };
            self.shapes.push(Shape::Frame { area, look: Look::Switch });
        }
        let height = |row: usize| first + i32::try_from(row).unwrap_or(0) * ROW;
        for (row, rank) in group.ranks.iter().enumerate() {
            let (x, width) = self.cells.rank;
            self.cell((x, height(row)), width, Look::Rank);
            self.text(x + TEXT_PAD, height(row), rank, self.columns.rank);
        }
        for (row, gpu) in group.gpus.iter().enumerate() {
            let (x, width) = self.cells.gpu;
            let look = if gpu.used_by.is_some() { Look::Used } else { Look::Device };
            self.cell((x, height(row)), width, look);
            self.text(x + TEXT_PAD, height(row), &gpu.name, self.columns.gpu);
            self.label(x + width, height(row), gpu.used_by.as_deref(), self.columns.gpu_used);
        }
        for (row, port) in group.ports.iter().enumerate() {
            self.port(port, height(row));
        }
        self.area.bottom = end + 2;
    }

    /// Returns the height of the next row's middle. Rows of the two columns of hosts have different remainders, so
    /// that the lines of one do not lie on those of the other.
    fn first_row(&self) -> i32 {
        let least = self.area.bottom + CELL / 2 + 4;
        let remainder = match self.side {
            Side::Left { is_only: true } => return least,
            Side::Left { .. } => 0,
            Side::Right => STEP / 2,
        };
        least + (remainder - least).rem_euclid(STEP)
    }

    /// Returns the outer edges of the cells for a group's devices.
    fn switch_edges(&self, group: &DeviceGroup) -> (i32, i32) {
        let Cells { gpu, port, .. } = self.cells;
        let used = [(gpu, group.gpus.is_empty()), (port, group.ports.is_empty())];
        let used = used.into_iter().filter(|(_, is_empty)| !is_empty).map(|(cell, _)| cell);
        used.fold((i32::MAX, i32::MIN), |(left, right), (x, width)| {
            (left.min(x), right.max(x + width))
        })
    }

    fn port(&mut self, port: &PortRow, y: i32) {
        let (x, width) = self.cells.port;
        let look = match port {
            PortRow { is_down: true, .. } => Look::Down,
            PortRow { used_by: Some(_), .. } => Look::Used,
            _ => Look::Device,
        };
        self.cell((x, y), width, look);
        let Columns { name, rate, address, port_used, .. } = *self.columns;
        let mut left = x + TEXT_PAD;
        for (text, width) in [(&port.name, name), (&port.rate, rate), (&port.address, address)] {
            self.text(left, y, text, width);
            left += if width > 0 { width + TEXT_GAP } else { 0 };
        }
        self.label(x + width, y, port.used_by.as_deref(), port_used);
        let Some(network) = port.network else { return };
        let (edge, pin) = match self.side {
            Side::Left { .. } => (x + width, self.area.right + 4),
            Side::Right => (x, self.area.left - 4 - PIN),
        };
        let area = Area::at(pin, y, PIN, CELL - 1);
        let (inner, outer) = match self.side {
            Side::Left { .. } => (area.left, area.right),
            Side::Right => (area.right, area.left),
        };
        self.shapes.push(Shape::Line { from: (edge, y), to: (inner, y), network });
        self.shapes.push(Shape::Pin { area, network });
        self.taps.push(Tap { network, at: (outer, y) });
    }

    fn cell(&mut self, (x, y): (i32, i32), width: i32, look: Look) {
        self.shapes.push(Shape::Frame { area: Area::at(x, y, width, CELL), look });
    }

    fn text(&mut self, x: i32, y: i32, text: &str, width: i32) {
        if !text.is_empty() {
            self.shapes.push(Shape::text(x, y, text, TextSize::Plain, width));
        }
    }

    /// Adds the ranks that use a device, at the right end of its frame.
    fn label(&mut self, end: i32, y: i32, ranks: Option<&str>, width: i32) {
        let Some(ranks) = ranks else { return };
        let Shape::Text { area, text, .. } =
            Shape::text(end - TEXT_PAD - width, y, ranks, TextSize::Plain, width)
        else {
            return;
        };
        let left = end - 2 * TEXT_PAD - (area.right - area.left) - 1;
        let area = Area { left, right: end - 1, top: area.top, bottom: area.bottom };
        self.shapes.push(Shape::Label { area, text });
    }

    /// Adds a frame whose lower edge is not known yet. Returns its index.
    fn open(&mut self, area: Area, look: Look) -> usize {
        self.shapes.push(Shape::Frame { area, look });
        self.shapes.len() - 1
    }

    /// Gives a frame its lower edge.
    fn close(&mut self, frame: usize) {
        if let Some(Shape::Frame { area, .. }) = self.shapes.get_mut(frame) {
            area.bottom = self.area.bottom;
        }
    }
}
