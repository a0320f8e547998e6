//! Options that people know from ssh, docker, pdsh, clush, make and the like. They are none of rlaunch's, and mean different
//! things in different tools, so they are not translated: the error has the command line to type.

use rlaunch_text::shell::quoted;
use rlaunch_text::typed::command_line;
use std::ffi::{OsStr, OsString};
use std::num::NonZeroU16;
use std::path::Path;

/// Options that name a job's hosts.
const HOSTS: [&str; 5] = ["-H", "--host", "--hosts", "-host", "-hosts"];

/// Returns the command line that does what the unknown option `word` was meant for. `before` and `after` are the words
/// around it.
pub(super) fn command(before: &[OsString], word: &OsStr, after: &[OsString]) -> Option<String> {
    let word = word.to_str()?;
    if let Some(tip) = of_ssh(before, word, after) {
        return Some(tip);
    }
    let (option, attached) = split(word);
    let line = |option: &[&str], after: &[OsString]| with_option(before, option, after);
    if matches!(option, "-it" | "-ti" | "-i" | "-t") {
        // What follows would be the program, and the hosts its words: the option is none of docker's.
        let is_value = after.first().is_some_and(|word| !word.as_encoded_bytes().starts_with(b"-"));
        if is_value && after.iter().any(names_hosts) {
            return None;
        }
        let command = line(&["--stdin", "0"], after);
        return Some(format!("rank 0 reads this terminal: {command}"));
    }
    if matches!(option, "--background" | "--bg" | "--daemon") {
        return Some(format!("in the background: {}", line(&["-d"], after)));
    }
    let is_for_hosts =
        matches!(option, "--node" | "--on" | "--server") && !before.iter().any(names_hosts);
    if !is_for_hosts && !matches!(option, "-u" | "-w" | "-e" | "-g" | "-C") {
        return None;
    }
    let (value, after) = match attached {
        Some(value) => (value, after),
        None => {
            let (value, after) = after.split_first()?;
            (value.to_str()?, after)
        }
    };
    if value.is_empty() || value.starts_with('-') {
        return None;
    }
    let is_path = value.contains('/') || value.starts_with('.');
    Some(match option {
        "-u" => format!("log in as {value}: {}", as_user(value, before, after)),
        "-e" => format!("a variable of the ranks: {}", line(&["-x", value], after)),
        "-C" => format!("the directory of the ranks: {}", line(&["--wdir", value], after)),
        "-w" if is_path => {
            format!("the directory of the ranks: {}", line(&["--wdir", value], after))
        }
        _ if is_for_hosts || option == "-w" => format!("hosts: {}", line(&["-H", value], after)),
        _ if value.parse::<u32>().is_ok() => {
            let command = line(&["--npernode", value, "--gpu-mask"], after);
            format!("{value} ranks on each host, each with a GPU of its own: {command}")
        }
        _ => format!("hosts of a file, a line for each: {}", line(&["--hostfile", value], after)),
    })
}

/// Tells whether a word is an option that names hosts.
fn names_hosts(word: &OsString) -> bool {
    word.to_str().is_some_and(|word| HOSTS.contains(&word))
}

/// Returns the command line for an option of ssh. Most of them are set for good in its configuration.
fn of_ssh(before: &[OsString], word: &str, after: &[OsString]) -> Option<String> {
    let (option, attached) = word.split_at_checked(2)?;
    let (value, after) = if attached.is_empty() {
        let (value, after) = after.split_first()?;
        (value.to_str()?, after)
    } else {
        (attached, after)
    };
    let keyword = match option {
        "-p" if value.parse::<NonZeroU16>().is_ok() => {
            let command = with_option(before, &["--port", value], after);
            return Some(format!("the port of the hosts' sshd: {command}"));
        }
        "-i" if is_key(Path::new(value)) => "IdentityFile",
        "-J" if attached.is_empty() && !value.starts_with('-') => "ProxyJump",
        "-o" => keyword(value)?,
        _ => return None,
    };
    let ssh = format!("ssh {option} {}", quoted(OsStr::new(value)));
    let command = with_option(before, &["--rsh", &ssh], after);
    Some(format!("an option of ssh, which {keyword} in ~/.ssh/config sets as well: {command}"))
}

/// Tells whether a path looks like that of a private key, and not like a program behind docker's `-i`.
fn is_key(path: &Path) -> bool {
    let is_named = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("id_"));
    is_named
        || path.extension().is_some_and(|extension| extension == "pem")
        || path.components().any(|part| part.as_os_str() == ".ssh")
}

/// Returns the keyword of a setting such as `ForwardAgent=yes`.
fn keyword(setting: &str) -> Option<&str> {
    let (keyword, _) = setting.split_once(['=', ' '])?;
    let is_word = keyword.chars().all(|letter| letter.is_ascii_alphanumeric());
    // Of others than ssh, `-o` names a file, or begins a longer word.
    (is_word && keyword.starts_with(|letter: char| letter.is_ascii_uppercase())).then_some(keyword)
}

/// Returns the command line with `option` in place of the word that was typed.
fn with_option(before: &[OsString], option: &[&str], after: &[OsString]) -> String {
    let option: Vec<OsString> = option.iter().map(OsString::from).collect();
    command_line(&[before, &option, after].concat())
}

/// Splits an option and its value behind `=`. Of variables, `-eNAME=VALUE` is split as well.
fn split(word: &str) -> (&str, Option<&str>) {
    if let Some(variable) = word.strip_prefix("-e").filter(|rest| rest.contains('=')) {
        return ("-e", Some(variable.strip_prefix('=').unwrap_or(variable)));
    }
    word.split_once('=').map_or((word, None), |(option, value)| (option, Some(value)))
}

/// Returns the command line with this user on each host.
fn as_user(user: &str, before: &[OsString], after: &[OsString]) -> String {
    let mut words = [before, after].concat();
    let at = words.iter().position(names_hosts).map(|at| at + 1);
    match at.and_then(|at| words.get_mut(at)) {
        Some(hosts) => *hosts = with_user(user, &hosts.to_string_lossy()).into(),
        None => {
            let hosts = ["-H".into(), OsString::from(format!("{user}@HOST"))];
            words.splice(before.len()..before.len(), hosts);
        }
    }
    command_line(&words)
}

/// Puts the user before each host of a list that has none. Commas in brackets separate numbers.
fn with_user(user: &str, hosts: &str) -> String {
    let mut depth = 0_usize;
    let separates = |c: char| {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    };
    let host = |host: &str| {
        let is_whole = host.is_empty() || host.contains('@');
        if is_whole { host.to_owned() } else { format!("{user}@{host}") }
    };
    hosts.split(separates).map(host).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use crate::cli::command_line::parse_job;
    use std::ffi::OsString;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    /// Returns the command of the tip.
    fn tip(line: &str) -> String {
        let error = parse_job(words(&format!("rlaunch {line}"))).unwrap_err().to_string();
        let tip = error.lines().find_map(|line| line.trim_start().strip_prefix("tip: "));
        let (_, command) = tip.and_then(|tip| tip.split_once(": ")).unwrap_or_default();
        command.to_owned()
    }

    #[test]
    fn options_of_other_tools_are_answered_with_the_command() {
        for (typed, command) in [
            ("-u root -H a,n[1,2],me@b id", "-H root@a,root@n[1,2],me@b id"),
            ("-H a -u root id", "-H root@a id"),
            ("-u root id", "-H root@HOST id"),
            ("-w a,b uptime", "-H a,b uptime"),
            ("--node a uptime", "-H a uptime"),
            ("--background -H a id", "-d -H a id"),
            ("-H a -w /data ls", "-H a --wdir /data ls"),
            ("-H a -C /data make", "-H a --wdir /data make"),
            ("-H a -e LEVEL=3 sh x", "-H a -x LEVEL=3 sh x"),
            ("-H a -eLEVEL=3 sh x", "-H a -x LEVEL=3 sh x"),
            ("-H a,b -g 8 python3 t.py", "-H a,b --npernode 8 --gpu-mask python3 t.py"),
            ("-g nodes uptime", "--hostfile nodes uptime"),
            ("-H a -it bash", "-H a --stdin 0 bash"),
            ("-H a -i /bin/bash", "-H a --stdin 0 /bin/bash"),
            ("-p 2222 -H a id", "--port 2222 -H a id"),
            ("-H a -p22 id", "-H a --port 22 id"),
        ] {
            let expected = format!("rlaunch {command}");
            assert_eq!(tip(typed).replace('\'', ""), expected, "{typed}");
            assert!(parse_job(words(&expected)).is_ok(), "{expected}");
        }
        assert!(!tip("-H a -e API_KEY=abc sh x").contains("abc"));
    }

    #[test]
    fn options_of_ssh_are_given_to_ssh() {
        for (typed, keyword, ssh, rest) in [
            ("-i /root/.ssh/k -H a id", "IdentityFile", "-i /root/.ssh/k", "-H a id"),
            ("-i cloud.pem -H a id", "IdentityFile", "-i cloud.pem", "-H a id"),
            ("-i id_ed25519 -H a id", "IdentityFile", "-i id_ed25519", "-H a id"),
            ("-J me@b -H a id", "ProxyJump", "-J me@b", "-H a id"),
            ("-oUser=me -H a id", "User", "-o User=me", "-H a id"),
            ("-o BatchMode=yes -H a id", "BatchMode", "-o BatchMode=yes", "-H a id"),
        ] {
            let error = parse_job(words(&format!("rlaunch {typed}"))).unwrap_err().to_string();
            assert!(error.contains(&format!("which {keyword} in ~/.ssh/config sets")), "{error}");
            assert_eq!(tip(typed), format!("rlaunch --rsh 'ssh {ssh}' {rest}"));
        }
        let ssh = ["rlaunch", "--rsh", "ssh -J me@b", "-H", "a", "id"].map(OsString::from);
        assert!(parse_job(ssh.to_vec()).is_ok());
    }

    #[test]
    fn other_options_are_just_unknown() {
        for line in [
            "-u -H a id", "-wrong x", "-update x", "-e", "-Q x", "-p gpu x", "-p 0 x", "-J -H a x",
            "-i key -H a id", "-t 5 -H a id", "-o out.log x", "-other=1 x", "-A x",
        ] {
            assert_eq!(tip(line), "", "{line}");
            let error = parse_job(words(&format!("rlaunch {line}"))).unwrap_err().to_string();
            assert!(!error.contains("did you mean --np?"), "{error}");
        }
        // The second program's options.
        let error = parse_job(words("rlaunch a : -w b c")).unwrap_err().to_string();
        assert!(!error.contains("tip: hosts"), "{error}");
    }
}
