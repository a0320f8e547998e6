//! Layout of the whole picture: one or two columns of hosts, the networks' lines beside them, the legend
//! below.

use super::host_box::{Columns, HostLayout, Side, Tap};
use super::shapes::{Area, Look, Shape, TextSize, letters_in, text_width};
use super::{HostBox, PortRow, Topology};
use std::collections::BTreeMap;

/// Space around the picture.
const MARGIN: i32 = 16;
/// Height of the title.
const TITLE: i32 = 36;
/// Distance between two hosts below each other.
const HOST_GAP: i32 = 14;
/// Distance from a host to the first of the networks' lines.
const PINS: i32 = 42;
/// Distance between two tracks.
const TRACK: i32 = 14;
/// Maximum number of tracks. Networks without one are shown by their numbers only.
const MAX_TRACKS: usize = 24;
/// Minimum distance between two lines on one track, in pixels.
const LINE_GAP: i32 = 14;
/// Width of the smallest picture.
const MIN_WIDTH: i32 = 560;

/// Shapes of a picture, and its size in pixels.
#[derive(Clone, Debug, Default)]
pub(super) struct Layout {
    pub(super) width: i32,
    pub(super) height: i32,
    pub(super) shapes: Vec<Shape>,
}

impl Layout {
    pub(super) fn new(topology: &Topology) -> Layout {
        let one = Layout::with_columns(topology, 1);
        if topology.hosts.len() < 2 {
            return one;
        }
        let two = Layout::with_columns(topology, 2);
        if two.page() < one.page() { two } else { one }
    }

    /// Returns a measure of the page that the picture needs, of the proportions of A4: the smaller, the larger are
    /// its letters in print.
    fn page(&self) -> i32 {
        (self.width * 297).max(self.height * 210)
    }

    fn with_columns(topology: &Topology, count: usize) -> Layout {
        let columns = Columns::new(topology);
        let hosts = HostsLayout::new(topology, &columns, count, 0);
        let tracks = Tracks::new(&spans(&hosts.taps));
        let lines = if tracks.count > 0 { width_of(tracks.count) } else { HOST_GAP };
        let right = MARGIN + columns.host_width() + lines;
        // The second column begins where the lines end, which depends on their number.
        let HostsLayout { mut shapes, taps, bottom } =
            HostsLayout::new(topology, &columns, count, right);
        draw_lines(&taps, &tracks, MARGIN + columns.host_width() + PINS, &mut shapes);
        let end = if count > 1 { right + columns.host_width() } else { right };
        let title = text_width(&topology.title, TextSize::Title) + 2 * MARGIN;
        let width = (end + MARGIN).max(MIN_WIDTH).max(title);
        let room = width - 2 * MARGIN;
        shapes.push(Shape::text(MARGIN, 22, &topology.title, TextSize::Title, room));
        let legend = add_legend(topology, &tracks, (MARGIN, bottom + 12), room, &mut shapes);
        Layout { width, height: legend + MARGIN, shapes }
    }
}

/// Returns the width of the space between a host and what is behind the lines of networks.
fn width_of(tracks: usize) -> i32 {
    2 * PINS + (i32::try_from(tracks).unwrap_or(1) - 1) * TRACK
}

/// Shapes of all hosts.
struct HostsLayout {
    shapes: Vec<Shape>,
    taps: Vec<Tap>,
    bottom: i32,
}

impl HostsLayout {
    /// Places hosts in one or two columns, of which the second begins at `right`.
    fn new(topology: &Topology, columns: &Columns, count: usize, right: i32) -> HostsLayout {
        let (mut shapes, mut taps) = (Vec::new(), Vec::new());
        let first = first_column(topology, columns, count);
        let mut bottom = TITLE;
        let has_two = first < topology.hosts.len();
        for (hosts, left, side) in [
            (&topology.hosts[..first], MARGIN, Side::Left { is_only: !has_two }),
            (&topology.hosts[first..], right, Side::Right),
        ] {
            let mut top = TITLE;
            for host in hosts {
                let end = HostLayout::add(host, (left, top), side, columns, &mut shapes, &mut taps);
                bottom = bottom.max(end);
                top = end + HOST_GAP;
            }
        }
        HostsLayout { shapes, taps, bottom }
    }
}

/// Returns the number of hosts in the first of `count` columns, by which both get about the same height.
fn first_column(topology: &Topology, columns: &Columns, count: usize) -> usize {
    let height = |host| {
        let (mut shapes, mut taps) = (Vec::new(), Vec::new());
        HostLayout::add(host, (0, 0), Side::Right, columns, &mut shapes, &mut taps) + HOST_GAP
    };
    if count < 2 {
        return topology.hosts.len();
    }
    let heights: Vec<i32> = topology.hosts.iter().map(height).collect();
    let half = heights.iter().sum::<i32>() / 2;
    let ends = heights.iter().scan(0, |end, height| {
        *end += height;
        Some(*end)
    });
    // A host that lies across the middle is in the column where more of it is.
    let ends: Vec<i32> = ends.collect();
    let starts = std::iter::once(&0).chain(&ends);
    let before = starts.zip(&ends).filter(|(start, end)| i32::midpoint(**start, **end) <= half);
    before.count().clamp(1, topology.hosts.len().max(2) - 1)
}

/// Places of the networks' lines: each network has a vertical line beside the hosts, and networks of different hosts
/// share a track.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tracks {
    /// Track by network; networks without a line are missing.
    by_network: BTreeMap<usize, usize>,
    /// Number of tracks.
    pub(super) count: usize,
    /// Number of networks for which there is no track.
    pub(super) left_out: usize,
}

impl Tracks {
    /// Assigns tracks from the first and last row of each network, as heights in pixels.
    pub(super) fn new(spans: &BTreeMap<usize, (i32, i32)>) -> Tracks {
        let mut order: Vec<(usize, (i32, i32))> = spans.iter().map(|(&n, &s)| (n, s)).collect();
        order.sort_by_key(|(network, (first, _))| (*first, *network));
        let mut ends: Vec<i32> = Vec::new();
        let mut tracks = Tracks::default();
        for (network, (first, last)) in order {
            let free = ends.iter().position(|end| end + LINE_GAP <= first);
            match free {
                Some(track) => ends[track] = last,
                None if ends.len() < MAX_TRACKS => ends.push(last),
                None => {
                    tracks.left_out += 1;
                    continue;
                }
            }
            tracks.by_network.insert(network, free.unwrap_or(ends.len() - 1));
        }
        tracks.count = ends.len();
        tracks
    }

    /// Returns the track of a network, if it has one.
    pub(super) fn track_of(&self, network: usize) -> Option<usize> {
        self.by_network.get(&network).copied()
    }
}

/// Returns the first and the last row of each network.
fn spans(taps: &[Tap]) -> BTreeMap<usize, (i32, i32)> {
    let mut spans = BTreeMap::new();
    for Tap { network, at: (_, y) } in taps {
        let (first, last) = spans.entry(*network).or_insert((*y, *y));
        (*first, *last) = ((*first).min(*y), (*last).max(*y));
    }
    spans
}

/// Draws lines from ports to the networks' tracks, of which the first is at `left`.
fn draw_lines(taps: &[Tap], tracks: &Tracks, left: i32, shapes: &mut Vec<Shape>) {
    let place = |network: usize| {
        let track = tracks.track_of(network)?;
        Some(left + i32::try_from(track).unwrap_or(0) * TRACK)
    };
    for (network, (first, last)) in spans(taps) {
        if let Some(x) = place(network).filter(|_| first < last) {
            shapes.push(Shape::Line { from: (x, first), to: (x, last), network });
        }
    }
    for Tap { network, at } in taps {
        if let Some(x) = place(*network) {
            let at_track = (x, at.1);
            shapes.push(Shape::Line { from: *at, to: at_track, network: *network });
            shapes.push(Shape::Dot { at: at_track, network: *network });
        }
    }
}

/// Distance between two lines of text.
const LEGEND_LINE: i32 = 20;
/// Space for a sample of what a text explains.
const SAMPLE: i32 = 66;
/// Distance between two columns of networks.
const COLUMN_GAP: i32 = 24;

/// Adds the legend with its upper left corner at `start`, and returns its lower edge.
fn add_legend(
    topology: &Topology,
    tracks: &Tracks,
    start: (i32, i32),
    width: i32,
    shapes: &mut Vec<Shape>,
) -> i32 {
    let (left, top) = start;
    let top = add_networks(topology, tracks, (left, top), width, shapes);
    let top = add_frames(topology, (left, top), width, shapes);
    let mut notes = topology.notes.clone();
    if tracks.left_out > 0 {
        let without = tracks.left_out;
        notes.push(format!(
            "{without} of the networks have numbers only, since there is no room for lines"
        ));
    }
    let letters = letters_in(width, TextSize::Plain);
    let mut y = top;
    for line in notes.iter().flat_map(|note| wrapped(note, letters)) {
        shapes.push(Shape::text(left, y + LEGEND_LINE / 2, &line, TextSize::Plain, width));
        y += LEGEND_LINE;
    }
    y
}

/// Adds a line for each network, in as many columns as there is room for.
fn add_networks(
    topology: &Topology,
    tracks: &Tracks,
    (left, top): (i32, i32),
    width: i32,
    shapes: &mut Vec<Shape>,
) -> i32 {
    let texts = topology.networks.iter().map(|network| text_width(&network.text, TextSize::Plain));
    let Some(widest) = texts.max() else { return top };
    let column = (SAMPLE + widest + COLUMN_GAP).min(width);
    let columns = usize::try_from(width / column).unwrap_or(1).max(1);
    let rows = topology.networks.len().div_ceil(columns);
    for (index, network) in topology.networks.iter().enumerate() {
        let place = |number: usize| i32::try_from(number).unwrap_or(0);
        let x = left + place(index / rows) * column;
        let y = top + place(index % rows) * LEGEND_LINE + LEGEND_LINE / 2;
        let pin = Area::at(x, y, 20, 15);
        if tracks.track_of(index).is_some() {
            let (from, to) = ((pin.right, y), (x + SAMPLE - 8, y));
            shapes.push(Shape::Line { from, to, network: index });
        }
        shapes.push(Shape::Pin { area: pin, network: index });
        let room = column - SAMPLE;
        shapes.push(Shape::text(x + SAMPLE, y, &network.text, TextSize::Plain, room));
    }
    top + i32::try_from(rows).unwrap_or(0) * LEGEND_LINE + 4
}

/// Adds a line for each kind of frame whose meaning is not written in it.
fn add_frames(
    topology: &Topology,
    (left, top): (i32, i32),
    width: i32,
    shapes: &mut Vec<Shape>,
) -> i32 {
    let groups = || topology.hosts.iter().flat_map(HostBox::groups);
    let is_down = |port: &PortRow| port.is_down;
    let samples = [
        (groups().any(|group| group.is_switch), Look::Switch, "devices below one PCIe switch"),
        (
            topology.hosts.iter().flat_map(HostBox::ports).any(is_down),
            Look::Down,
            "port without a link",
        ),
        (
            topology.has_ranks(),
            Look::Used,
            "device that ranks use: their numbers are white on black",
        ),
        (topology.has_ranks(), Look::Device, "device that no rank uses"),
    ];
    let mut y = top;
    for (_, look, text) in samples.into_iter().filter(|(is_shown, ..)| *is_shown) {
        let area = Area::at(left, y + LEGEND_LINE / 2, SAMPLE - 8, 14);
        shapes.push(Shape::Frame { area, look });
        let room = width - SAMPLE;
        shapes.push(Shape::text(left + SAMPLE, y + LEGEND_LINE / 2, text, TextSize::Plain, room));
        y += LEGEND_LINE;
    }
    y
}

/// Splits a text into lines of at most `letters` letters, between words.
fn wrapped(text: &str, letters: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= letters => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tracks(spans: &[(i32, i32)]) -> Tracks {
        Tracks::new(&spans.iter().copied().enumerate().collect())
    }

    #[test]
    fn networks_of_different_hosts_share_a_track() {
        let ring = tracks(&[(0, 40), (60, 100), (20, 80)]);
        assert_eq!([0, 1, 2].map(|network| ring.track_of(network)), [Some(0), Some(0), Some(1)]);
        assert_eq!(ring.count, 2);
    }

    #[test]
    fn too_many_networks_have_no_line() {
        let many = tracks(&[(0, 500); 30]);
        assert_eq!((many.count, many.left_out), (24, 6));
        assert_eq!((many.track_of(23), many.track_of(24)), (Some(23), None));
    }

    #[test]
    fn long_notes_have_several_lines() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("unbreakable", 4), ["unbreakable"]);
        assert_eq!(wrapped("", 4), [""; 0]);
    }
}
