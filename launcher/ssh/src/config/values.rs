//! Parsing of the values of ssh_config keywords. Errors describe the form that is expected.

use std::time::Duration;

use rlaunch_bootstrap::shell_safe;

use super::{AddressFamily, JumpHop, Proxy, RekeyLimit, StrictHostKeyChecking};

pub(super) fn parse_port(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(format!("`{text}` is not a port; a number from 1 to 65535 is expected")),
    }
}

pub(super) fn parse_count(text: &str, least: u32) -> Result<u32, String> {
    match text.parse() {
        Ok(count) if count >= least => Ok(count),
        _ => Err(format!("`{text}` is not a number from {least} up")),
    }
}

pub(super) fn parse_flag(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "yes" | "true" => Ok(true),
        "no" | "false" => Ok(false),
        _ => Err(format!("`{text}` is neither yes nor no")),
    }
}

pub(super) fn parse_strict(text: &str) -> Result<StrictHostKeyChecking, String> {
    match text.to_ascii_lowercase().as_str() {
        "yes" | "true" => Ok(StrictHostKeyChecking::Yes),
        "accept-new" => Ok(StrictHostKeyChecking::AcceptNew),
        "ask" => Ok(StrictHostKeyChecking::Ask),
        "no" | "false" | "off" => Ok(StrictHostKeyChecking::No),
        _ => Err(format!("`{text}` is none of yes, accept-new, ask, no and off")),
    }
}

pub(super) fn parse_family(text: &str) -> Result<AddressFamily, String> {
    match text.to_ascii_lowercase().as_str() {
        "any" => Ok(AddressFamily::Any),
        "inet" => Ok(AddressFamily::Inet),
        "inet6" => Ok(AddressFamily::Inet6),
        _ => Err(format!("`{text}` is none of any, inet and inet6")),
    }
}

/// Parses a time such as `90` (seconds), `1m30` or `1h30m10s`; `none` means zero.
pub(super) fn parse_time(text: &str) -> Result<Duration, String> {
    if text.eq_ignore_ascii_case("none") {
        return Ok(Duration::ZERO);
    }
    let seconds = if text.is_empty() { None } else { seconds(text) };
    seconds
        .map(Duration::from_secs)
        .ok_or_else(|| format!("`{text}` is not a time; seconds or a form like 1m30s are expected"))
}

fn seconds(text: &str) -> Option<u64> {
    let (mut total, mut rest) = (0_u64, text);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let number: u32 = rest[..digits].parse().ok()?;
        let mut unit = rest[digits..].chars();
        let factor = match unit.next().map(|c| c.to_ascii_lowercase()) {
            None | Some('s') => 1,
            Some('m') => 60,
            Some('h') => 3600,
            Some('d') => 86_400,
            Some('w') => 604_800,
            Some(_) => return None,
        };
        total = total.checked_add(u64::from(number) * factor)?;
        rest = unit.as_str();
    }
    // OpenSSH allows no more.
    (total <= i32::MAX as u64).then_some(total)
}

/// Parses a value of `RekeyLimit`: `SIZE|default [TIME|none]`.
pub(super) fn parse_rekey(args: &[String]) -> Result<RekeyLimit, String> {
    let (size, time) = match args {
        [size] => (size, None),
        [size, time] => (size, Some(time)),
        _ => return Err("a size and at most one time are expected".into()),
    };
    let bytes = match size.as_str() {
        word if word.eq_ignore_ascii_case("default") => None,
        // Zero means the default, as in OpenSSH.
        text => match parse_size(text) {
            Some(0) => None,
            Some(bytes) if bytes >= 16 => Some(bytes),
            Some(_) => return Err(format!("{text} bytes are too few; the least is 16")),
            None => return Err(format!("`{text}` is not a size; a form like 1G is expected")),
        },
    };
    let after = time.map(|time| parse_time(time)).transpose()?.filter(|time| !time.is_zero());
    Ok(RekeyLimit { bytes, after })
}

fn parse_size(text: &str) -> Option<u64> {
    let (number, shift) = match text.char_indices().last()? {
        (at, 'k' | 'K') => (&text[..at], 10),
        (at, 'm' | 'M') => (&text[..at], 20),
        (at, 'g' | 'G') => (&text[..at], 30),
        (at, 't' | 'T') => (&text[..at], 40),
        _ => (text, 0),
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// Parses a value of `ProxyJump`: `none`, or a comma-separated list of `[user@]host[:port]` and `ssh://…`.
pub(super) fn parse_jumps(text: &str) -> Result<Proxy, String> {
    if text.eq_ignore_ascii_case("none") {
        return Ok(Proxy::Direct);
    }
    text.split(',').map(|hop| parse_hop(hop.trim())).collect::<Result<_, _>>().map(Proxy::Jump)
}

fn parse_hop(text: &str) -> Result<JumpHop, String> {
    let bare = text.strip_prefix("ssh://").unwrap_or(text);
    let bare = bare.strip_suffix('/').unwrap_or(bare);
    let (user, place) = match bare.rsplit_once('@') {
        Some((user, place)) => (Some(user.to_owned()), place),
        None => (None, bare),
    };
    let (host, port) = match place.strip_prefix('[').and_then(|inner| inner.split_once(']')) {
        Some((host, "")) => (host, None),
        Some((host, after)) => (host, Some(after.strip_prefix(':').unwrap_or(after))),
        None => match place.split_once(':') {
            // Text with a second colon is an IPv6 address without a port.
            Some((host, port)) if !port.contains(':') => (host, Some(port)),
            _ => (place, None),
        },
    };
    if host.is_empty() || user.as_ref().is_some_and(String::is_empty) {
        return Err(format!("`{text}` is not a host; user@host:port is expected"));
    }
    if !shell_safe::is_host_name(host)
        || user.as_deref().is_some_and(|user| !shell_safe::is_user_name(user))
    {
        return Err(format!("`{text}` has a character that means something to a shell"));
    }
    let port = port.map(parse_port).transpose()?;
    Ok(JumpHop { user, host: host.to_owned(), port })
}
