//! Options that people know from docker, pdsh, clush, make and the like. They are none of rlaunch's, and mean different
//! things in different tools, so they are not translated: the error has the command line to type.

use rlaunch_text::typed::command_line;
use std::ffi::{OsStr, OsString};

/// Options that name a job's hosts.
const HOSTS: [&str; 5] = ["-H", "--host", "--hosts", "-host", "-hosts"];

/// Returns the command line that does what the unknown option `word` was meant for. `before` and `after` are the words
/// around it.
pub(super) fn command(before: &[OsString], word: &OsStr, after: &[OsString]) -> Option<String> {
    let (option, attached) = split(word.to_str()?);
    let line = |option: &[&str], after: &[OsString]| {
        let option: Vec<OsString> = option.iter().map(OsString::from).collect();
        command_line(&[before, &option, after].concat())
    };
    if matches!(option, "-it" | "-ti" | "-i" | "-t") {
        let command = line(&["--stdin", "0"], after);
        return Some(format!("rank 0 reads this terminal: {command}"));
    }
    if !matches!(option, "-u" | "-w" | "-e" | "-g" | "-C") {
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
        "-w" => format!("hosts: {}", line(&["-H", value], after)),
        _ if value.parse::<u32>().is_ok() => {
            let command = line(&["--npernode", value, "--gpu-mask"], after);
            format!("{value} ranks on each host, each with a GPU of its own: {command}")
        }
        _ => format!("hosts of a file, a line for each: {}", line(&["--hostfile", value], after)),
    })
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
    let names_hosts = |word: &OsString| word.to_str().is_some_and(|word| HOSTS.contains(&word));
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
            ("-H a -w /data ls", "-H a --wdir /data ls"),
            ("-H a -C /data make", "-H a --wdir /data make"),
            ("-H a -e LEVEL=3 sh x", "-H a -x LEVEL=3 sh x"),
            ("-H a -eLEVEL=3 sh x", "-H a -x LEVEL=3 sh x"),
            ("-H a,b -g 8 python3 t.py", "-H a,b --npernode 8 --gpu-mask python3 t.py"),
            ("-g nodes uptime", "--hostfile nodes uptime"),
            ("-H a -it bash", "-H a --stdin 0 bash"),
        ] {
            let expected = format!("rlaunch {command}");
            assert_eq!(tip(typed).replace('\'', ""), expected, "{typed}");
            assert!(parse_job(words(&expected)).is_ok(), "{expected}");
        }
        assert!(!tip("-H a -e API_KEY=abc sh x").contains("abc"));
    }

    #[test]
    fn other_options_are_just_unknown() {
        for line in ["-u -H a id", "-wrong x", "-update x", "-e", "-Q x"] {
            assert_eq!(tip(line), "", "{line}");
        }
        // The second program's options.
        let error = parse_job(words("rlaunch a : -w b c")).unwrap_err().to_string();
        assert!(!error.contains("tip: hosts"), "{error}");
    }
}
