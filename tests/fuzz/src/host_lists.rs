//! The hosts that people and schedulers write down: lists and files.

use crate::hosts::hostfile;
use crate::hosts::ranges::MOST_HOSTS;
use crate::hosts::{self as hosts, Host};

/// Whoever is named can be looked up, and is no option of a command.
fn check(hosts: &[Host]) {
    assert!(hosts.len() <= MOST_HOSTS);
    for host in hosts {
        assert!(host.slots > 0 && !host.name.is_empty() && !host.name.starts_with('-'));
        assert!(!host.name.contains(char::is_whitespace) && host.user.as_deref() != Some(""));
    }
}

/// What is refused names a line that is there; what is taken reads the same when it is written.
pub(crate) fn file(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    match hostfile::parse(&text) {
        Err((line, _)) => assert!((1..=text.lines().count()).contains(&line)),
        Ok(hosts) => {
            check(&hosts);
            assert_eq!(hostfile::parse(&hostfile::write(&hosts)), Ok(hosts));
        }
    }
}

/// A list of `-H`: in two parts it is the same as in one.
pub(crate) fn list(data: &[u8]) {
    let list = String::from_utf8_lossy(data).into_owned();
    let Ok(hosts) = hosts::parse(std::slice::from_ref(&list)) else { return };
    check(&hosts);
    let parts: Vec<String> = hosts::ranges::entries(&list).map(str::to_owned).collect();
    assert_eq!(hosts::parse(&parts), Ok(hosts));
}

pub(crate) fn file_seeds() -> Vec<Vec<u8>> {
    let texts = [
        "# two\r\na slots = 4 max_slots=8\n\tme@b\na\n[fd00::2]:3\nc user=you count=2\n",
        "n[01-03,7]:2\nr[1-2]n[08-11] slots=8 # racks\nfe80::1 slots=2\n[fe80::1%eth0]\n",
    ];
    texts.map(|text| text.as_bytes().to_vec()).to_vec()
}

pub(crate) fn list_seeds() -> Vec<Vec<u8>> {
    let texts = ["a,b:2, me@c,a:3", "n[01-16,20]:8,r[1-2]n[1-3],[fd00::2]:4,10.0.0.1"];
    texts.map(|text| text.as_bytes().to_vec()).to_vec()
}
