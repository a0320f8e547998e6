//! Which hosts and which pairs of hosts are slow, by comparison with the others.

/// Part of the reference below which a pair is slow. Figures of healthy pairs differ by less, even if software
/// emulates the devices.
const SLOW: f64 = 0.75;

/// Slow part of a cluster. Hosts are numbered as in the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Most links of this host are slow.
    Host(usize),
    /// The link between these hosts is slow in both directions.
    Link(usize, usize),
    /// The link is slow from the first to the second host only.
    OneWay(usize, usize),
}

/// Finds what is slow. `speed` is the speed from one host to another, as a part of the limit where that is known, else
/// in any unit that is the same for all pairs. Returns nothing for two hosts, of which neither has another link to
/// compare with.
///
/// The reference is the upper quartile of all pairs, so that a few hosts with slow links do not lower it. A host is slow
/// if the median of its pairs is; a slow pair of two hosts that are not is a slow link.
pub(super) fn faults(hosts: usize, speed: impl Fn(usize, usize) -> f64) -> Vec<Fault> {
    if hosts < 3 {
        return Vec::new();
    }
    let both = |a: usize, b: usize| speed(a, b).min(speed(b, a));
    let pairs: Vec<(usize, usize)> =
        (0..hosts).flat_map(|a| (a + 1..hosts).map(move |b| (a, b))).collect();
    let reference = quantile(pairs.iter().map(|(a, b)| both(*a, *b)).collect(), 3, 4);
    let is_slow = |speed: f64| speed < SLOW * reference;
    let median = |host: usize| {
        let others = (0..hosts).filter(|other| *other != host);
        quantile(others.map(|other| both(host, other)).collect(), 1, 2)
    };
    let slow_hosts: Vec<usize> = (0..hosts).filter(|host| is_slow(median(*host))).collect();
    let of_links = pairs.iter().filter_map(|&(a, b)| {
        if slow_hosts.contains(&a) || slow_hosts.contains(&b) {
            return None;
        }
        match (is_slow(speed(a, b)), is_slow(speed(b, a))) {
            (true, true) => Some(Fault::Link(a, b)),
            (true, false) => Some(Fault::OneWay(a, b)),
            (false, true) => Some(Fault::OneWay(b, a)),
            (false, false) => None,
        }
    });
    let of_links: Vec<Fault> = of_links.collect();
    slow_hosts.iter().map(|host| Fault::Host(*host)).chain(of_links).collect()
}

/// Returns the number at the part `numerator / denominator` of the sorted numbers, the higher one of two that are
/// equally near; 0 if there are none.
pub(super) fn quantile(mut numbers: Vec<f64>, numerator: usize, denominator: usize) -> f64 {
    numbers.sort_by(f64::total_cmp);
    let last = numbers.len().saturating_sub(1);
    numbers.get((numbers.len() * numerator / denominator).min(last)).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Finds the faults of a cluster whose links have speed 100, but for those that `slow` lists.
    fn found(hosts: usize, slow: &[(usize, usize)]) -> Vec<Fault> {
        faults(hosts, |a, b| if slow.contains(&(a, b)) { 40.0 } else { 100.0 })
    }

    #[test]
    fn a_slow_cable_is_told_from_a_slow_host() {
        assert_eq!(found(3, &[(0, 1), (1, 0)]), [Fault::Link(0, 1)]);
        assert_eq!(found(3, &[(2, 1)]), [Fault::OneWay(2, 1)]);
        assert_eq!(found(3, &[(0, 1), (1, 0), (0, 2), (2, 0)]), [Fault::Host(0)]);
        assert_eq!(found(3, &[]), []);
        assert_eq!(found(2, &[(0, 1), (1, 0)]), [], "nothing to compare with");
        let of_two: Vec<(usize, usize)> = (0..16).flat_map(|a| [(3, a), (a, 9)]).collect();
        assert_eq!(found(16, &of_two), [Fault::Host(3), Fault::Host(9)]);
    }

    proptest! {
        #[test]
        fn noise_hides_no_fault(
            hosts in 3_usize..12,
            host in 0_usize..12,
            peer in 1_usize..12,
            is_host: bool,
            noise in proptest::collection::vec(0.9_f64..1.0, 144),
        ) {
            let host = host % hosts;
            let peer = (host + 1 + peer % (hosts - 1)) % hosts;
            let speed = |a: usize, b: usize| {
                let is_slow = if is_host {
                    a == host || b == host
                } else {
                    (a, b) == (host, peer) || (b, a) == (host, peer)
                };
                noise[a * 12 + b] * if is_slow { 50.0 } else { 100.0 }
            };
            let (low, high) = (host.min(peer), host.max(peer));
            let expected = if is_host { Fault::Host(host) } else { Fault::Link(low, high) };
            prop_assert_eq!(faults(hosts, speed), [expected]);
        }
    }
}
