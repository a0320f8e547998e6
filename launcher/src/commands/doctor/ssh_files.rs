//! Files of the SSH client that ssh refuses because of their owner or mode.

use super::Examination;
use rlaunch_engine::connect::connector::Reach;
use rlaunch_plan::checks::cluster::{ReachStage, Unreached};
use rlaunch_plan::hosts::Host;
use rlaunch_ssh::config::{ConfigError, HostConfig, SshConfig};
use rlaunch_ssh::keys::{KeyError, KeyFile};
use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Beginning of the reason for refusing a key file.
const EXPOSED: &str = "others may read it";

/// Lists the configuration and the key files for these hosts that ssh refuses, with the reason.
pub(super) fn refused(options: &Reach, hosts: &[Host]) -> Vec<(PathBuf, String)> {
    let home = std::env::home_dir().filter(|_| !options.here && options.rsh.is_none());
    home.map_or_else(Vec::new, |home| refused_in(&home, options, hosts))
}

/// Makes the examination of hosts that cannot be reached because the SSH configuration is refused. Returns
/// `None` if it is not: key files that are refused leave others.
pub(super) fn examination(files: &[(PathBuf, String)], hosts: &[Host]) -> Option<Examination> {
    let (path, _) = files.iter().find(|(_, reason)| !is_about_key(reason))?;
    let cause = format!("ssh refuses its configuration {}", path.display());
    let unreached = hosts.iter().map(|host| Unreached {
        host: host.to_string(),
        stage: ReachStage::Login,
        cause: cause.clone(),
        hints: Vec::new(),
    });
    let (unreached, ssh_files) = (unreached.collect(), files.to_vec());
    Some(Examination { unreached, ssh_files, ..Examination::default() })
}

fn is_about_key(reason: &str) -> bool {
    reason.starts_with(EXPOSED)
}

fn refused_in(home: &Path, options: &Reach, hosts: &[Host]) -> Vec<(PathBuf, String)> {
    let config = match &options.ssh_config {
        Some(path) if options.check_ssh_config_permissions => SshConfig::load_checked(path),
        named => SshConfig::load_for_user(named.as_deref(), home),
    };
    let (config, mut refused) = match config {
        Ok(config) => (Some(config), Vec::new()),
        Err(ConfigError::Unsafe { path, reason, .. }) => (None, vec![(path, reason)]),
        // The connector reports all other errors.
        Err(_) => return Vec::new(),
    };
    let mut keys: BTreeSet<PathBuf> = BTreeSet::new();
    // Commands of `Match exec` may block, so keys that depend on them are left out.
    let config = config.filter(|config| !config.runs_commands());
    for host in hosts {
        let (dialled, port) = options.host_table.target_of(host);
        let port = port.or(options.port);
        let resolved = config.as_ref().and_then(|config| {
            config.resolve_as(&dialled.name, dialled.user.as_deref(), port).ok()
        });
        keys.extend(resolved.unwrap_or_default().identity_files_or_default(home));
    }
    if hosts.is_empty() {
        keys.extend(HostConfig::default().identity_files_or_default(home));
    }
    refused.extend(keys.into_iter().filter_map(|key| exposed(&key)));
    refused
}

/// Returns the path and the reason if ssh refuses a key file because others may read it.
fn exposed(path: &Path) -> Option<(PathBuf, String)> {
    let Err(KeyError::Exposed(path)) = KeyFile::read(path) else { return None };
    let mode = path.metadata().ok()?.permissions().mode() & 0o777;
    Some((path, format!("{EXPOSED} (mode {mode:o})")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn write(path: &Path, text: &str, mode: u32) {
        fs::write(path, text).unwrap();
        fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    }

    /// Makes a home directory with a configuration that names `mine` for host `b`, and three keys.
    fn home(config_mode: u32, key_mode: u32) -> tempfile::TempDir {
        let home = tempfile::tempdir().unwrap();
        let ssh = home.path().join(".ssh");
        fs::create_dir(&ssh).unwrap();
        let mine = ssh.join("mine");
        let config = format!("Host b\n  IdentityFile {}\n", mine.display());
        write(&ssh.join("config"), &config, config_mode);
        for key in ["mine", "id_ed25519", "unused"] {
            write(&ssh.join(key), KEY, key_mode);
        }
        home
    }

    /// Text that is taken for an encrypted key, which is not decrypted to judge its file.
    const KEY: &str =
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";

    fn found(home: &Path, hosts: &[&str]) -> Vec<String> {
        let host = |name: &&str| Host { name: (*name).into(), ..Host::this_machine() };
        let hosts: Vec<Host> = hosts.iter().map(host).collect();
        let refused = refused_in(home, &Reach::default(), &hosts);
        let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
        refused.iter().map(|(path, reason)| format!("{}: {reason}", name(path))).collect()
    }

    #[test]
    fn keys_of_the_hosts_are_looked_at() {
        let private = home(0o600, 0o600);
        assert!(found(private.path(), &["b", "c"]).is_empty());
        let exposed = home(0o600, 0o640);
        let mine = "mine: others may read it (mode 640)";
        assert_eq!(found(exposed.path(), &["b"]), [mine]);
        let usual = "id_ed25519: others may read it (mode 640)";
        assert_eq!(found(exposed.path(), &["c"]), [usual]);
    }

    #[test]
    fn a_configuration_that_others_may_change_hides_all_hosts() {
        let open = home(0o664, 0o600);
        let refused = refused_in(open.path(), &Reach::default(), &[]);
        assert_eq!(found(open.path(), &["b"]), ["config: others may write to it (mode 664)"]);
        let hosts = [Host { name: "b".into(), ..Host::this_machine() }];
        let examination = examination(&refused, &hosts).unwrap();
        assert_eq!(examination.unreached.len(), 1);
        assert!(examination.unreached[0].cause.starts_with("ssh refuses its configuration /"));
        let key = [(PathBuf::from("/k"), format!("{EXPOSED} (mode 644)"))];
        assert!(super::examination(&key, &hosts).is_none());
    }
}
