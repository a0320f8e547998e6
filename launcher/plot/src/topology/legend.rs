//! Legend below the hosts: networks with their numbers, the meaning of frames, notes.

use super::layout::Tracks;
use super::shapes::{Area, Look, Shape, TextSize, letters_in, text_width};
use super::{HostBox, PortRow, Topology};

/// Distance between two lines of text.
const LINE: i32 = 20;
/// Space for a sample of what a text explains.
const SAMPLE: i32 = 66;
/// Distance between two columns of networks.
const COLUMN_GAP: i32 = 24;

/// Adds the legend with its upper left corner at `start`, and returns its lower edge.
pub(super) fn add(
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
        shapes.push(Shape::text(left, y + LINE / 2, &line, TextSize::Plain, width));
        y += LINE;
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
        let y = top + place(index % rows) * LINE + LINE / 2;
        let pin = Area::at(x, y, 20, 15);
        if tracks.track_of(index).is_some() {
            let (from, to) = ((pin.right, y), (x + SAMPLE - 8, y));
            shapes.push(Shape::Line { from, to, network: index });
        }
        shapes.push(Shape::Pin { area: pin, network: index });
        let room = column - SAMPLE;
        shapes.push(Shape::text(x + SAMPLE, y, &network.text, TextSize::Plain, room));
    }
    top + i32::try_from(rows).unwrap_or(0) * LINE + 4
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
        let area = Area::at(left, y + LINE / 2, SAMPLE - 8, 14);
        shapes.push(Shape::Frame { area, look });
        let room = width - SAMPLE;
        shapes.push(Shape::text(left + SAMPLE, y + LINE / 2, text, TextSize::Plain, room));
        y += LINE;
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

    #[test]
    fn long_notes_have_several_lines() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("unbreakable", 4), ["unbreakable"]);
        assert_eq!(wrapped("", 4), [""; 0]);
    }
}
