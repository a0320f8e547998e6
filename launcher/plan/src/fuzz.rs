//! Fuzzing targets for `tests/fuzz`. Each accepts any bytes and panics only if the parser has a bug.

use crate::env::forwarded;
use crate::hosts::{self, Host, MAX_HOSTS, SlotsBy, hostfile};
use crate::job::tag_pattern::{LineOrigin, TagPattern};

/// Asserts that each host has a slot, and a name that is not empty and cannot be taken for an option of a
/// command.
fn check_hosts(hosts: &[Host]) {
    assert!(hosts.len() <= MAX_HOSTS);
    for host in hosts {
        assert!(host.slots > 0 && !host.name.is_empty() && !host.name.starts_with('-'));
        assert!(!host.name.contains(char::is_whitespace) && host.user.as_deref() != Some(""));
    }
}

/// Parses a hostfile. Asserts that an error names an existing line, and that parsed hosts are the same after
/// they are written and parsed again.
pub fn hostfile(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    match hostfile::parse(&text) {
        Err((line, _)) => assert!((1..=text.lines().count()).contains(&line)),
        Ok(mut hosts) => {
            check_hosts(&hosts);
            let written = hostfile::write(&hosts);
            for host in hosts.iter_mut().filter(|host| host.has_given_slots()) {
                host.slots_by = SlotsBy::Given;
            }
            assert_eq!(hostfile::parse(&written), Ok(hosts));
        }
    }
}

/// Returns the inputs of [`hostfile`] with which the fuzzer starts.
pub fn hostfile_seeds() -> Vec<Vec<u8>> {
    let texts = [
        "# two\r\na slots = 4 max_slots=8\n\tme@b\na\n[fd00::2]:3\nc user=you count=2\n",
        "n[01-03,7]:2\nr[1-2]n[08-11] slots=8 # racks\nfe80::1 slots=2\n[fe80::1%eth0]\n",
    ];
    texts.map(|text| text.as_bytes().to_vec()).to_vec()
}

/// Parses the value of a `-H` option. Asserts that the entries of the list, each in a `-H` of its own, give
/// the same hosts.
pub fn host_list(data: &[u8]) {
    let list = String::from_utf8_lossy(data).into_owned();
    let Ok(hosts) = hosts::parse(std::slice::from_ref(&list)) else { return };
    check_hosts(&hosts);
    let parts: Vec<String> = hosts::entries(&list).map(str::to_owned).collect();
    assert_eq!(hosts::parse(&parts), Ok(hosts));
}

/// Returns the inputs of [`host_list`] with which the fuzzer starts.
pub fn host_list_seeds() -> Vec<Vec<u8>> {
    let texts = ["a,b:2, me@c,a:3", "n[01-16,20]:8,r[1-2]n[1-3],[fd00::2]:4,10.0.0.1"];
    texts.map(|text| text.as_bytes().to_vec()).to_vec()
}

/// Parses the file of `--env-file`. Asserts that an error names an existing line, and that names and values
/// of variables are valid in an environment.
pub fn variables(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let lines = text.lines().count();
    match forwarded::parse_env_file(text) {
        Err((line, reason)) => assert!((1..=lines).contains(&line), "{line}: {reason}"),
        Ok(variables) => {
            for variable in variables {
                assert!((1..=lines).contains(&variable.number));
                assert!(!variable.name.is_empty() && !variable.name.contains(['=', '\0']));
                assert!(!variable.value.unwrap_or_default().contains('\0'));
            }
        }
    }
}

/// Returns the inputs of [`variables`] with which the fuzzer starts.
pub fn variables_seeds() -> Vec<Vec<u8>> {
    let text = "\u{feff}# c\nA=1 # x\r\nexport B = 'two\nlines' # y\nC=\"\\n\\\"\\$d\"\nHERE\nD=\n";
    vec![text.as_bytes().to_vec()]
}

/// Parses a tag pattern. Asserts that a valid pattern is printed as it was typed, and that a tag made from it
/// is not empty and has no line break.
pub fn tag_pattern(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(pattern) = text.parse::<TagPattern>() else { return };
    assert_eq!(pattern.to_string(), text);
    assert_eq!(pattern.to_string().parse(), Ok(pattern.clone()));
    let origin = LineOrigin { rank: u32::MAX, host: "b".into(), local_rank: 0, pid: Some(7) };
    let tag = pattern.format(&origin, "12:00");
    assert!(!tag.is_empty() && !tag.contains('\n'));
    // Only `%t` makes a tag depend on the time.
    assert!(pattern.has_time() || tag == pattern.format(&origin, "13:00"));
}

/// Returns the inputs of [`tag_pattern`] with which the fuzzer starts.
pub fn tag_pattern_seeds() -> Vec<Vec<u8>> {
    let all = ["[%r,%h] ", "%t %h.%l (%p): ", "100%% of rank %r|", "%"];
    all.iter()
        .chain(&[TagPattern::default().to_string().as_str()])
        .map(|s| s.as_bytes().to_vec())
        .collect()
}
