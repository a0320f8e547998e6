//! Names of hosts and users, which may become part of a command.
//!
//! Configurations of SSH put them into commands (`%h` and `%r` of `ProxyCommand` and `Match exec`),
//! and people put them into `--rsh`; whoever wrote the command thought of names. So a name that a
//! shell would read as more than that is refused wherever one is read, as ssh does since OpenSSH 9.6
//! (CVE-2023-51385).

/// Characters that a shell takes for more than a part of a word.
const SHELL_CHARACTERS: &str = "'`\"$\\;&<>|(){}";
/// Accounts of a Windows domain, `DOMAIN\me` and `machine$`, have these and run nothing by them.
const ALLOWED_IN_USERS: &str = "$\\";

/// Whether this can be the name of a host: an address or whatever SSH's configuration calls it.
pub fn is_host_name(name: &str) -> bool {
    is_word(name) && !name.contains(|c| SHELL_CHARACTERS.contains(c))
}

/// Whether this can be the name of a user.
pub fn is_user_name(name: &str) -> bool {
    let is_bad = |c| SHELL_CHARACTERS.contains(c) && !ALLOWED_IN_USERS.contains(c);
    is_word(name) && !name.contains(is_bad) && !name.ends_with('\\')
}

/// Whether this is one word, and no option.
fn is_word(name: &str) -> bool {
    let is_odd = |c: char| c.is_whitespace() || is_invisible(c);
    !name.is_empty() && !name.starts_with('-') && !name.contains(is_odd)
}

/// Whether a character has no shape of its own, so that a reader does not see that it is there: control
/// characters, those that change the direction of others, that join or part them, and tags.
pub fn is_invisible(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}'
                | '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_as_they_are_called() {
        let good = ["a", "node-01.cluster", "10.0.0.1", "fe80::1%eth0", "my_container", "n+1", "é"];
        for name in good.into_iter().chain(["i-0a1b", "web[1]", "a,b", "x=y", "pod/web", "~"]) {
            assert!(is_host_name(name), "{name}");
        }
        for name in
            ["", "-oProxyCommand=x", "a b", "a\tb", "a\n", "a\u{7}", "a\u{85}b", "a\u{202e}b"]
        {
            assert!(!is_host_name(name) && !is_user_name(name), "{name:?}");
        }
        for bad in "'`\"$\\;&<>|(){}".chars() {
            for name in [format!("a{bad}"), format!("{bad}a"), format!("a{bad}b")] {
                assert!(!is_host_name(&name), "{name}");
            }
        }
    }

    #[test]
    fn users_of_a_windows_domain() {
        for name in ["root", r"DOMAIN\me", "machine$", "me.you+it@realm", "a-b_c"] {
            assert!(is_user_name(name), "{name}");
        }
        for name in
            ["`id`", "$(id)", "a;b", "a|b", "a&", "x{a,b}", "me\\", "a'b", "a\"b", "-l", "a>b"]
        {
            assert!(!is_user_name(name), "{name}");
        }
    }
}
