//! Validation of host and user names, which may become part of a shell command, and quoting.
//!
//! SSH configurations insert these names into commands (`%h` and `%r` in `ProxyCommand` and `Match
//! exec`), and users insert them into `--rsh`. A name that contains shell syntax would run as a
//! command (CVE-2023-51385). So such names are rejected wherever a name is read, as in OpenSSH
//! since 9.6.

use std::borrow::Cow;

/// Characters that have a special meaning in a shell.
const SHELL_CHARACTERS: &str = "'`\"$\\;&<>|(){}";
/// Shell characters that are allowed in user names, because Windows accounts are written
/// `DOMAIN\me` and `machine$`. Without the other shell characters, these two cannot start a
/// command.
const ALLOWED_IN_USERS: &str = "$\\";

/// Tells whether a text is acceptable as a host: an address, a DNS name, or an alias in the SSH
/// configuration.
pub fn is_host_name(name: &str) -> bool {
    is_word(name) && !name.contains(|c| SHELL_CHARACTERS.contains(c))
}

/// Tells whether a text is acceptable as a user name.
pub fn is_user_name(name: &str) -> bool {
    let is_bad = |c| SHELL_CHARACTERS.contains(c) && !ALLOWED_IN_USERS.contains(c);
    is_word(name) && !name.contains(is_bad) && !name.ends_with('\\')
}

/// Tells whether a name is one visible word that is not mistaken for an option.
fn is_word(name: &str) -> bool {
    let is_odd = |c: char| c.is_whitespace() || is_invisible(c);
    !name.is_empty() && !name.starts_with('-') && !name.contains(is_odd)
}

/// Tells whether a character is invisible in a terminal: a control character, a joiner, a tag, or a
/// character that changes the direction of text.
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

/// Quotes a word for a POSIX shell if it needs that.
pub(crate) fn word(text: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./,:=+@%^".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(format!("'{}'", text.replace('\'', r"'\''")))
    }
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
