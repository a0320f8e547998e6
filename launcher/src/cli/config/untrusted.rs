//! Keys that an rlaunch.toml of the working directory may set before the user trusts it. Such a file may have come
//! with a cloned repository or an unpacked archive.
//!
//! Every key is in one of two lists, [`HARMLESS`] or [`NEEDS_TRUST`]. A key that is in neither needs trust,
//! and fails a test until it is added to one of them.

use super::error::{SettingOrigin, display_path};
use super::merge::OptionSetting;
use rlaunch_text::shell::quoted;
use std::path::{Path, PathBuf};

/// Keys that take effect without trust. None of them chooses a program, a host or a network, runs a command, reads
/// or writes a file, sends variables or code anywhere, ends or repeats work, hides a failure or a message, puts
/// text into output, or weakens authentication.
const HARMLESS: &str = "\
    allow-run-as-root bind connect cpus-per-rank env-style fold get-stack-traces gpu-mask \
    init-timeout job-name log-json map-by master-port merge-stderr mesh-timeout mpi name \
    nccl-share-gpu nnodes no-horovod no-pty no-tag np npernode oversubscribe port-range pty radix \
    rank-by rdma-retries rdma-timeout report-state-on-timeout service-level show ssh-fanout \
    straggler-report traffic-class transport verbose";

/// Keys of [`NEEDS_TRUST`] that take effect without trust if they have no value.
const HARMLESS_WITHOUT_TEXT: &[&str] = &["tag-output"];

/// Keys that take effect only if the file is trusted, and the effect of each.
const NEEDS_TRUST: &[(&str, &str)] = &[
    ("abort-on-link-down", "ends jobs"),
    ("after", "lets hosts connect to an address"),
    ("agent", "chooses the program that is sent to hosts"),
    ("agent-dir", "chooses where hosts keep a program"),
    ("container", "chooses where programs run"),
    ("container-exec", "runs a command on hosts"),
    ("continue-on-error", "lets jobs go on after a failure"),
    ("copy", "sends a file to hosts"),
    ("detach", "lets jobs outlive their terminal"),
    ("device", "gives programs a device of hosts"),
    ("dry-run", "starts no ranks"),
    ("engine", "chooses where programs run"),
    ("env", "sets variables of ranks"),
    ("env-file", "sends a file's variables to hosts"),
    ("events", "writes a file"),
    ("exclude", "chooses hosts"),
    ("gpus", "gives programs the GPUs of hosts"),
    ("gid-index", "chooses a network"),
    ("hang-report", "lets jobs go on that hang"),
    ("hang-timeout", "ends jobs"),
    ("hca", "chooses a network"),
    ("host", "chooses hosts"),
    ("hostfile", "chooses hosts"),
    ("image", "chooses where programs run"),
    ("interfaces", "chooses a network"),
    ("kill-after", "decides how long ranks may take to end"),
    ("launcher", "decides by what hosts are reached"),
    ("log-level", "can hide warnings"),
    ("login", "runs a login shell on hosts"),
    ("max-restarts", "runs jobs again after a failure"),
    ("mesh", "can leave RDMA unproved"),
    ("module", "chooses programs"),
    ("nccl-net-plugin", "loads code into ranks"),
    ("nccl-verify", "decides whether NCCL's network is checked"),
    ("new-hosts", "decides whether hosts without a known key are accepted"),
    ("no-local", "chooses hosts"),
    ("no-env", "decides which variables ranks have"),
    ("no-python", "chooses programs"),
    ("no-record", "leaves no record of jobs"),
    ("no-watch", "hides links that go down"),
    ("node-timeout", "decides when a silent host is given up"),
    ("notify", "runs a command on this machine"),
    ("oob-if", "chooses a network"),
    ("oob-net", "chooses a network"),
    ("output-dir", "writes files"),
    ("port", "chooses an SSH server"),
    ("preflight", "can hide warnings"),
    ("pull", "gets images from the network"),
    ("quiet", "hides warnings"),
    ("rankfile", "reads a file, and chooses hosts"),
    ("require-rdma", "decides whether jobs may do without RDMA"),
    ("rsh", "runs a command on this machine"),
    ("serve", "ends jobs when a rank has ended"),
    ("shm-size", "gives programs memory of hosts"),
    ("singleton", "can hide that each rank is a job of its own"),
    ("ssh-config", "can run commands on this machine"),
    ("stdin", "sends a file to a rank"),
    ("sync", "sends a directory to hosts"),
    ("sync-limit", "sends large directories to hosts"),
    ("tag-output", "puts text into output"),
    ("template", "sends a file to hosts"),
    ("timeout", "ends jobs"),
    ("user", "chooses who runs programs in containers"),
    ("volume", "gives programs directories of hosts"),
    ("wdir", "chooses programs and files by their directory"),
];

/// Tells whether a setting takes effect without trust. A value with a control character needs trust, since it
/// could contain an escape sequence for the terminal.
pub(super) fn is_harmless(setting: &OptionSetting) -> bool {
    let is_plain = |word: &std::ffi::OsString| !word.to_string_lossy().contains(char::is_control);
    let has_text = |word: &std::ffi::OsString| word.to_string_lossy().contains('=');
    let key = setting.option.as_str();
    let is_bare = || HARMLESS_WITHOUT_TEXT.contains(&key) && !setting.words.iter().any(has_text);
    (is_listed(key) || is_bare()) && setting.words.iter().all(is_plain)
}

fn is_listed(key: &str) -> bool {
    HARMLESS.split(' ').any(|known| known == key)
}

/// Tells whether a setting comes from the file `path`.
pub(super) fn is_from(setting: &OptionSetting, path: &Path) -> bool {
    matches!(&setting.origin, SettingOrigin::Line(file, _) if file == path)
}

/// Describes the effect of a key that needs trust. A harmless key needs trust only if its value has a control
/// character.
pub(super) fn effect(key: &str) -> &'static str {
    let known = NEEDS_TRUST.iter().find(|(known, _)| *known == key);
    known.map_or("has a control character", |(_, effect)| effect)
}

/// Keys of an untrusted file that would take effect if it were trusted.
#[derive(Clone, Debug)]
pub(crate) struct IgnoredKeys {
    path: PathBuf,
    /// File whose change ended the user's trust: the configuration file, or a file that it names. `None` if no change
    /// ended the trust.
    changed: Option<PathBuf>,
    /// Keys, each with the number of its line.
    keys: Vec<(String, usize)>,
    /// Whether the job's hosts would come from this file, because no source of higher precedence names hosts.
    names_the_hosts: bool,
}

impl IgnoredKeys {
    /// Collects the ignored keys of the file `path`: its `tables` of hosts and groups, and its settings that need trust.
    /// `effective_if_trusted` are the settings that would take effect if the file were trusted. Returns
    /// `None` if no key is ignored.
    pub(super) fn collect(
        path: &Path,
        changed: Option<&Path>,
        effective_if_trusted: &[OptionSetting],
        tables: Vec<(String, usize)>,
    ) -> Option<IgnoredKeys> {
        let line_here = |setting: &OptionSetting| match &setting.origin {
            SettingOrigin::Line(file, line) if file == path => Some(*line),
            _ => None,
        };
        let mut keys = tables;
        let mut names_the_hosts = false;
        for setting in effective_if_trusted.iter().filter(|setting| !is_harmless(setting)) {
            let Some(line) = line_here(setting) else { continue };
            let key = match setting.option.as_str() {
                "host" => "hosts",
                key => key,
            };
            names_the_hosts |= matches!(key, "hosts" | "hostfile");
            if !keys.iter().any(|(known, _)| known == key) {
                keys.push((key.to_owned(), line));
            }
        }
        keys.sort_by_key(|(_, line)| *line);
        let changed = changed.map(Path::to_owned);
        (!keys.is_empty()).then(|| IgnoredKeys {
            path: path.to_owned(),
            changed,
            keys,
            names_the_hosts,
        })
    }

    /// Returns the file's path; `None` if the job's hosts would not come from this file.
    pub(super) fn path_if_hosts(&self) -> Option<&Path> {
        self.names_the_hosts.then_some(&*self.path)
    }

    /// Describes in one line which keys are ignored, and how to trust the file.
    pub(super) fn warning(&self) -> String {
        let are = match &self.keys[..] {
            [(key, _)] if !matches!(key.as_str(), "hosts" | "groups") => "is",
            _ => "are",
        };
        let path = display_path(&self.path);
        let reason = match &self.changed {
            None => format!("{path} is not trusted"),
            Some(own) if *own == self.path => format!("{path} has changed since it was trusted"),
            Some(other) => format!(
                "{}, which {path} names, has changed since that was trusted",
                quoted(other.as_os_str())
            ),
        };
        format!(
            "{reason}, so {} {are} ignored; `rlaunch trust` shows the file's effects and trusts it",
            self.listed()
        )
    }

    /// Returns a hint for an error that may be due to ignored keys.
    pub(super) fn hint(&self) -> String {
        let path = display_path(&self.path);
        format!("{} of {path} would take effect after `rlaunch trust`", self.listed())
    }

    fn listed(&self) -> String {
        let listed: Vec<String> =
            self.keys.iter().map(|(key, line)| format!("{key} (line {line})")).collect();
        match listed.split_last() {
            Some((last, first)) if !first.is_empty() => format!("{} and {last}", first.join(", ")),
            _ => listed.concat(),
        }
    }
}

/// Lists the keys that need trust whatever their value is.
#[cfg(test)]
pub(super) fn needing_trust() -> impl Iterator<Item = &'static str> {
    let keys = NEEDS_TRUST.iter().map(|(key, _)| *key);
    keys.filter(|key| !HARMLESS_WITHOUT_TEXT.contains(key))
}

#[cfg(test)]
mod tests {
    use super::super::merge;
    use super::*;
    use crate::cli::args::JobArgs;
    use clap::CommandFactory;

    #[test]
    fn every_key_is_either_harmless_or_needs_trust() {
        let command = JobArgs::command();
        let keys: Vec<&str> = command
            .get_arguments()
            .filter(|arg| merge::is_setting(arg))
            .filter_map(clap::Arg::get_long)
            .collect();
        for key in &keys {
            let lists = usize::from(is_listed(key))
                + NEEDS_TRUST.iter().filter(|(known, _)| known == key).count();
            assert_eq!(lists, 1, "`{key}` has to be in one list: may an untrusted file set it?");
        }
        let known = HARMLESS.split(' ').chain(NEEDS_TRUST.iter().map(|(key, _)| *key));
        for key in known {
            assert!(keys.contains(&key), "{key} is not a key");
        }
    }
}
