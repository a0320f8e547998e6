//! Names and addresses of hosts, computed from their numbers, which start at 1.

use std::net::Ipv4Addr;

/// Maximum number of hosts of a lab. The third octet of a host's address is the host's number /
/// 250.
pub const MAX_HOSTS: usize = 4000;

/// Name of the launch node.
pub const LAUNCH: &str = "launch";

/// Returns the name of host `number`: a … z, then h27, h28, …
pub fn host_name(number: usize) -> String {
    match u8::try_from(number) {
        Ok(letter @ 1..=26) => char::from(b'a' + letter - 1).to_string(),
        _ => format!("h{number}"),
    }
}

/// Returns the number of the host called `name`, or nothing if no host has that name.
pub fn host_number(name: &str) -> Option<usize> {
    let number = match (name.as_bytes(), name.strip_prefix('h')) {
        ([letter @ b'a'..=b'z'], _) => usize::from(letter - b'a') + 1,
        (_, Some(digits)) => digits.parse().ok()?,
        _ => return None,
    };
    // Rejects h3 and h030, which are not the names of any host.
    ((1..=MAX_HOSTS).contains(&number) && host_name(number) == name).then_some(number)
}

/// Returns the first `count` names, separated by commas.
pub fn host_list(count: usize) -> String {
    (1..=count).map(host_name).collect::<Vec<_>>().join(",")
}

/// Returns the address of host `number`; `net` is the first two octets of the lab's /16.
pub fn host_address(net: [u8; 2], number: usize) -> Ipv4Addr {
    let row = u8::try_from(number / 250).unwrap_or(u8::MAX);
    let column = u8::try_from(number % 250 + 1).unwrap_or(u8::MAX);
    Ipv4Addr::new(net[0], net[1], row, column)
}

/// Returns the launch node's address.
pub fn launch_address(net: [u8; 2]) -> Ipv4Addr {
    Ipv4Addr::new(net[0], net[1], 255, 254)
}

/// Parses the first two octets of a network, such as `10.91`.
pub fn parse_net(text: &str) -> Result<[u8; 2], String> {
    let wrong = || format!("`{text}` is not two octets like 10.91");
    let (first, second) = text.split_once('.').ok_or_else(wrong)?;
    Ok([first.parse().map_err(|_| wrong())?, second.parse().map_err(|_| wrong())?])
}

/// Checks that `name` can name a lab: it becomes part of file and namespace names.
pub fn check_lab_name(name: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    if (1..=12).contains(&name.len()) && name.chars().all(fits) {
        Ok(name.into())
    } else {
        Err("a lab's name is 1 to 12 lower-case letters and digits".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_have_names_and_addresses_of_their_own() {
        let net = [10, 91];
        let mut seen: Vec<_> = (1..=MAX_HOSTS).map(|n| host_address(net, n)).collect();
        seen.push(launch_address(net));
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), MAX_HOSTS + 1);
        for number in 1..=MAX_HOSTS {
            assert_eq!(host_number(&host_name(number)), Some(number));
        }
        for unknown in ["", "A", "h3", "h030", "ab", "launch", "h99999", "h0"] {
            assert_eq!(host_number(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn words_for_labs_are_checked() {
        assert_eq!(parse_net("10.91"), Ok([10, 91]));
        assert!(["10", "10.300", "10.9.1", ""].iter().all(|wrong| parse_net(wrong).is_err()));
        assert!(check_lab_name("lab2").is_ok());
        assert!(["", "a-b", "../x", "Lab"].iter().all(|wrong| check_lab_name(wrong).is_err()));
    }
}
