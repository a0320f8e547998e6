//! Places of the networks' lines: each network has a vertical line beside the hosts, and networks of
//! different hosts share a track.

use std::collections::BTreeMap;

/// Maximum number of tracks. Networks without one are shown by their numbers only.
const MAX_TRACKS: usize = 24;
/// Minimum distance between two lines on one track, in pixels.
const GAP: i32 = 14;

/// Tracks of networks.
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
            let free = ends.iter().position(|end| end + GAP <= first);
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
}
