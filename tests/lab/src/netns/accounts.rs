//! Accounts and keys of a lab, and the files that replace those in `/etc`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::unistd::{Gid, Uid, User, chown};

use super::names::{host_address, host_name, launch_address};
use super::state::{LabPaths, LabRecord};
use crate::LabError;
use crate::command::run;
use crate::files::{read, write};

/// Home directory of `user` on every node.
pub(super) const USER_HOME: &str = "/home/user";
/// User id of `user`: below the range for people, above the range for services.
const USER_ID: u32 = 4242;

/// Account on the hosts and on the launch node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Account {
    /// Superuser.
    Root,
    /// Ordinary account, which may not write to cgroups.
    User,
}

impl Account {
    /// Both accounts.
    pub const ALL: [Account; 2] = [Account::Root, Account::User];

    /// Returns the login name.
    pub fn name(self) -> &'static str {
        match self {
            Account::Root => "root",
            Account::User => "user",
        }
    }

    /// Returns the user id, which is also the group id.
    pub fn id(self) -> u32 {
        match self {
            Account::Root => 0,
            Account::User => USER_ID,
        }
    }

    /// Returns the home directory on the nodes.
    pub fn home(self) -> PathBuf {
        let root = || User::from_uid(Uid::from_raw(0)).ok().flatten().map(|user| user.dir);
        match self {
            Account::Root => root().unwrap_or_else(|| PathBuf::from("/root")),
            Account::User => PathBuf::from(USER_HOME),
        }
    }
}

/// Writes the files that all nodes share: accounts and name service. [`write_names`] writes
/// `hosts`.
pub(super) fn write_common(paths: &LabPaths) -> Result<(), LabError> {
    let etc = paths.etc();
    make_dir(&etc, 0o755)?;
    let home = USER_HOME;
    let passwd = format!("user:x:{USER_ID}:{USER_ID}:lab user:{home}:/bin/bash");
    write(&etc.join("passwd"), &with_line("/etc/passwd", &passwd)?, 0o644)?;
    let group = format!("user:x:{USER_ID}:");
    write(&etc.join("group"), &with_line("/etc/group", &group)?, 0o644)?;
    // `*` matches no password; `!` would also lock the account for sshd.
    let shadow = with_line("/etc/shadow", "user:*:19000:0:99999:7:::")?;
    write(&etc.join("shadow"), unlock_root(&shadow), 0o640)?;
    write(&etc.join("resolv.conf"), "", 0o644)?;
    let files = "passwd: files\ngroup: files\nshadow: files\nhosts: files\n";
    write(&etc.join("nsswitch.conf"), files, 0o644)
}

/// Writes `/etc/hosts` in place, since it is mounted on every node.
pub(super) fn write_names(paths: &LabPaths, net: [u8; 2], hosts: usize) -> Result<(), LabError> {
    let mut text = format!("127.0.0.1 localhost\n{} launch\n", launch_address(net));
    for number in 1..=hosts {
        text += &format!("{} {}\n", host_address(net, number), host_name(number));
    }
    write(&paths.etc().join("hosts"), &text, 0o644)
}

/// Makes the key that is authorised on every host, and the `.ssh` directories of the launch node.
pub(super) fn create_launch(paths: &LabPaths) -> Result<(), LabError> {
    make_key(&paths.key(), "lab")?;
    make_dir(&paths.launch(), 0o755)?;
    for account in Account::ALL {
        let home = paths.launch().join(account.name());
        let ssh = home.join(".ssh");
        make_dir(&home, 0o700)?;
        make_dir(&ssh, 0o700)?;
        let key = read(&paths.key())?;
        write(&ssh.join("id_ed25519"), &key, 0o600)?;
        let config =
            "Host *\n  IdentityFile ~/.ssh/id_ed25519\n  StrictHostKeyChecking accept-new\n";
        write(&ssh.join("config"), config, 0o600)?;
        write(&ssh.join("known_hosts"), "", 0o600)?;
        let owner = format!("{0}:{0}", account.id());
        run("give a home away", Command::new("chown").args(["-R", &owner]).arg(&home))?;
    }
    Ok(())
}

/// Makes the directories of one host: homes, and the files of its sshd.
pub(super) fn create_host(
    paths: &LabPaths,
    record: &LabRecord,
    host: &str,
) -> Result<(), LabError> {
    let dir = paths.host(host);
    make_dir(&dir, 0o755)?;
    make_dir(&dir.join("sshd"), 0o755)?;
    make_homes(&home_root(paths, record, host))?;
    make_key(&dir.join("sshd/host_key"), host)?;
    let public = read(&paths.key().with_extension("pub"))?;
    write(&dir.join("sshd/authorized_keys"), &public, 0o644)?;
    write(&dir.join("hostname"), format!("{host}\n"), 0o644)
}

/// Returns the directory that contains a host's `root` and `home`.
pub(super) fn home_root(paths: &LabPaths, record: &LabRecord, host: &str) -> PathBuf {
    if record.shared_home { paths.shared() } else { paths.host(host) }
}

/// Returns the line of known_hosts for a host's current key.
pub(super) fn known_hosts_line(
    paths: &LabPaths,
    net: [u8; 2],
    number: usize,
) -> Result<String, LabError> {
    let host = host_name(number);
    let public = read(&paths.host(&host).join("sshd/host_key.pub"))?;
    let key = public.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
    Ok(format!("{host},{} {key}\n", host_address(net, number)))
}

/// Makes an ed25519 key pair without a passphrase, unless the file exists.
pub(super) fn make_key(path: &Path, comment: &str) -> Result<(), LabError> {
    if path.exists() {
        return Ok(());
    }
    let mut keygen = Command::new("ssh-keygen");
    keygen.args(["-q", "-t", "ed25519", "-N", "", "-C", comment, "-f"]).arg(path);
    run(&format!("make the key {}", path.display()), &mut keygen).map(drop)
}

/// Makes `account` the owner of `path`.
pub(super) fn chown_to(path: &Path, account: Account) -> Result<(), LabError> {
    let (uid, gid) = (Uid::from_raw(account.id()), Gid::from_raw(account.id()));
    chown(path, Some(uid), Some(gid)).map_err(LabError::errno(format!(
        "give {} to {}",
        path.display(),
        account.name()
    )))
}

pub(super) fn make_dir(path: &Path, mode: u32) -> Result<(), LabError> {
    let mode = fs::Permissions::from_mode(mode);
    fs::create_dir_all(path)
        .and_then(|()| fs::set_permissions(path, mode))
        .map_err(LabError::io(format!("make {}", path.display())))
}

fn make_homes(dir: &Path) -> Result<(), LabError> {
    make_dir(dir, 0o755)?;
    make_dir(&dir.join("root"), 0o700)?;
    make_dir(&dir.join("home"), 0o755)?;
    make_dir(&dir.join("home/user"), 0o700)?;
    chown_to(&dir.join("home/user"), Account::User)
}

/// Returns a colon-separated file of the machine with `line` in place of the entry of the same
/// name.
fn with_line(path: &str, line: &str) -> Result<String, LabError> {
    let name = line.split_inclusive(':').next().unwrap_or(line);
    let text = read(Path::new(path))?;
    let others = text.lines().filter(|other| !other.starts_with(name));
    Ok(others.chain([line]).map(|line| format!("{line}\n")).collect())
}

/// Unlocks root in the text of `/etc/shadow`: sshd would respect a lock (`!`).
fn unlock_root(shadow: &str) -> String {
    let line = |line: &str| match line.strip_prefix("root:").and_then(|rest| rest.split_once(':')) {
        Some((_, rest)) => format!("root:*:{rest}\n"),
        None => format!("{line}\n"),
    };
    shadow.lines().map(line).collect()
}
