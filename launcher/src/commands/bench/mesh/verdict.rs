//! Which hosts and which pairs of hosts are slow, by comparison with the others.

/// Part of the reference below which a pair is slow. Figures of healthy pairs differ by less, even if software
/// emulates the devices.
const SLOW_PART: f64 = 0.75;

/// Slow part of a cluster. Hosts are numbered as in the matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Most links of this host are slow.
    Host(usize),
    /// Links between these hosts and the others are slow, and those among these hosts are not, as behind a slow uplink
    /// of their switch.
    Group(Vec<usize>),
    /// The link between these hosts is slow in both directions.
    Link(usize, usize),
    /// The link is slow from the first to the second host only.
    OneWay(usize, usize),
}

/// Finds what is slow. `speed` is the speed from one host to another, as a part of the limit where that is known, else
/// in any unit that is the same for all pairs. Returns nothing for two hosts, of which neither has another link to
/// compare with.
///
/// The reference is the ninth decile of all pairs, so that many slow links do not lower it. As long as the links of some
/// host are slow in the median, the slowest host is named and set aside. Slow links between the remaining hosts are
/// named by themselves.
pub(super) fn faults(hosts: usize, speed: impl Fn(usize, usize) -> f64) -> Vec<Fault> {
    if hosts < 3 {
        return Vec::new();
    }
    let both = |a: usize, b: usize| speed(a, b).min(speed(b, a));
    let all: Vec<usize> = (0..hosts).collect();
    let reference = quantile(pairs_of(&all).map(|(a, b)| both(a, b)).collect(), 9, 10);
    let is_slow = |speed: f64| speed < SLOW_PART * reference;
    let (mut rest, mut slow_hosts) = (all, Vec::new());
    while rest.len() > 2 {
        let of_host = |host: usize| -> Vec<f64> {
            rest.iter().filter(|other| **other != host).map(|other| both(host, *other)).collect()
        };
        let rank = |host: usize| {
            let speeds = of_host(host);
            let sum: f64 = speeds.iter().sum();
            (quantile(speeds, 1, 2), sum)
        };
        let ranked = rest.iter().map(|host| (rank(*host), *host));
        let slowest = ranked.min_by(|(one, _), (other, _)| {
            one.0.total_cmp(&other.0).then(one.1.total_cmp(&other.1))
        });
        let Some((_, host)) = slowest.filter(|((median, _), _)| is_slow(*median)) else { break };
        rest.retain(|other| *other != host);
        slow_hosts.push(host);
    }
    slow_hosts.sort_unstable();
    let among = quantile(pairs_of(&slow_hosts).map(|(a, b)| both(a, b)).collect(), 1, 2);
    let mut found = match slow_hosts.len() > 1 && !is_slow(among) {
        true => vec![Fault::Group(slow_hosts)],
        false => slow_hosts.into_iter().map(Fault::Host).collect(),
    };
    found.extend(pairs_of(&rest).filter_map(|(a, b)| {
        match (is_slow(speed(a, b)), is_slow(speed(b, a))) {
            (true, true) => Some(Fault::Link(a, b)),
            (true, false) => Some(Fault::OneWay(a, b)),
            (false, true) => Some(Fault::OneWay(b, a)),
            (false, false) => None,
        }
    }));
    found
}

/// Lists the pairs of some hosts.
fn pairs_of(hosts: &[usize]) -> impl Iterator<Item = (usize, usize)> + '_ {
    hosts.iter().enumerate().flat_map(|(index, a)| hosts[index + 1..].iter().map(|b| (*a, *b)))
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

    /// Finds the faults of a cluster whose links have speed 100, but for those of which `is_slow` says so.
    fn found(hosts: usize, is_slow: impl Fn(usize, usize) -> bool) -> Vec<Fault> {
        faults(hosts, |a, b| if is_slow(a, b) { 40.0 } else { 100.0 })
    }

    #[test]
    fn a_slow_cable_is_told_from_a_slow_host() {
        assert_eq!(found(3, |a, b| a + b == 1), [Fault::Link(0, 1)]);
        assert_eq!(found(3, |a, b| (a, b) == (2, 1)), [Fault::OneWay(2, 1)]);
        assert_eq!(found(3, |a, b| a == 0 || b == 0), [Fault::Host(0)]);
        assert_eq!(found(3, |_, _| false), []);
        assert_eq!(found(2, |_, _| true), [], "nothing to compare with");
    }

    #[test]
    fn several_faults_do_not_hide_each_other() {
        let slow =
            |one: usize, other: usize| move |a, b| a == one || b == one || a == other || b == other;
        assert_eq!(found(16, slow(3, 9)), [Fault::Host(3), Fault::Host(9)]);
        assert_eq!(found(4, slow(0, 2)), [Fault::Host(0), Fault::Host(2)]);
        let host_and_cable = |a, b| a == 0 || b == 0 || (a, b) == (1, 2) || (a, b) == (2, 1);
        assert_eq!(found(4, host_and_cable), [Fault::Host(0), Fault::Link(1, 2)]);
    }

    #[test]
    fn a_slow_uplink_is_one_fault() {
        let found = found(8, |a, b| (a < 3) != (b < 3));
        assert_eq!(found, [Fault::Group(vec![0, 1, 2])]);
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
