//! Commands and files inside the lab, from outside of it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::accounts::{self, Account};
use super::{Lab, cgroup, copy_tree, names};
use crate::LabError;

/// Moves into a cgroup, then enters the namespaces. Arguments: cgroup.procs or nothing, nsenter's.
const ENTER: &str = r#"[ -z "$1" ] || echo $$ >"$1" || exit 125; shift; exec nsenter "$@""#;

/// Entering a mount namespace leaves one at its root. Arguments: directory, command...
const CHANGE_DIRECTORY: &str = r#"cd "$1" 2>/dev/null || cd /; shift; exec "$@""#;

/// What must not follow a command into the lab: it leads back to the caller's own session.
const LEAVE_BEHIND: [&str; 3] = ["SSH_AUTH_SOCK", "SSH_AGENT_PID", "XDG_RUNTIME_DIR"];

impl Lab {
    /// A command for the launch node; append the program and its arguments. It runs in the
    /// present directory if that exists there, and its number is the program's own, so that it
    /// can be signalled.
    pub fn exec(&self, account: Account) -> Command {
        self.exec_in(account, &std::env::current_dir().unwrap_or_else(|_| "/".into()))
    }

    /// [`Lab::exec`] in `directory`.
    pub fn exec_in(&self, account: Account, directory: &Path) -> Command {
        let mut command =
            self.enter(names::LAUNCH, self.launch.pid, &["--net", "--uts", "--mount"]);
        become_account(&mut command, account, directory);
        command
    }

    /// A command for `host`, entered without ssh; append the program and its arguments.
    pub fn on(&self, host: &str, account: Account) -> Result<Command, LabError> {
        let init = self.init(host)?;
        let namespaces = ["--net", "--uts", "--ipc", "--mount", "--pid"];
        let mut command = self.enter(host, init.pid, &namespaces);
        become_account(&mut command, account, &account.home());
        Ok(command)
    }

    /// The home directory of `account` on `host`, seen from outside.
    pub fn home(&self, host: &str, account: Account) -> Result<PathBuf, LabError> {
        self.number(host)?;
        let homes = accounts::home_root(&self.paths, &self.record, host);
        Ok(homes.join(match account {
            Account::Root => "root",
            Account::User => "home/user",
        }))
    }

    /// What `host` sees as `path`, seen from outside; the host must be up.
    pub fn path(&self, host: &str, path: &Path) -> Result<PathBuf, LabError> {
        let root = PathBuf::from(format!("/proc/{}/root", self.init(host)?.pid));
        Ok(root.join(path.strip_prefix("/").unwrap_or(path)))
    }

    /// Writes what `host` sees as `path`, and makes the directories above it. Below the user's
    /// home all of it belongs to the user, elsewhere to root.
    pub fn write_file(
        &self,
        host: &str,
        path: &Path,
        bytes: &[u8],
        mode: u32,
    ) -> Result<(), LabError> {
        let operation = format!("write {} on {host}", path.display());
        let outside = self.path(host, path)?;
        let home = self.path(host, &Account::User.home())?;
        for directory in outside.ancestors().skip(1).collect::<Vec<_>>().into_iter().rev() {
            if !directory.exists() {
                fs::create_dir(directory).map_err(LabError::io(operation.clone()))?;
                own_below(directory, &home)?;
            }
        }
        fs::write(&outside, bytes)
            .and_then(|()| fs::set_permissions(&outside, fs::Permissions::from_mode(mode)))
            .map_err(LabError::io(operation))?;
        own_below(&outside, &home)
    }

    /// Copies a built distribution to where both accounts of the launch node can read it: the
    /// build directory may be closed to all but its owner. Gives the directory of the copy.
    pub fn install(&self, dist: &Path) -> Result<PathBuf, LabError> {
        let to = self.paths.dir.join("dist");
        let operation = || LabError::io(format!("copy {} into the lab", dist.display()));
        let replace_error = operation();
        if to.exists() {
            fs::remove_dir_all(&to).map_err(operation())?;
        }
        copy_tree(dist, &to).map_err(replace_error)?;
        Ok(to)
    }

    fn enter(&self, node: &str, pid: i32, namespaces: &[&str]) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", ENTER, "sh"]);
        match &self.record.cgroup {
            // Without its cgroup the command would not be found again, so the shell gives up.
            Some(lab) => {
                let path = cgroup::node(lab, node).unwrap_or_else(|_| lab.clone());
                command.arg(path.join("cgroup.procs")).arg("--cgroup")
            }
            None => command.arg(""),
        };
        command.args(["--target", &pid.to_string()]).args(namespaces).arg("--");
        command
    }
}

fn become_account(command: &mut Command, account: Account, directory: &Path) {
    command.args(["sh", "-c", CHANGE_DIRECTORY, "sh"]).arg(directory);
    if account != Account::Root {
        let id = account.id();
        command.args(["setpriv", "--reuid", &id.to_string(), "--regid", &id.to_string()]);
        command.args(["--clear-groups", "--"]);
    }
    command.env("HOME", account.home()).env("USER", account.name()).env("LOGNAME", account.name());
    for name in LEAVE_BEHIND {
        command.env_remove(name);
    }
}

fn own_below(path: &Path, home: &Path) -> Result<(), LabError> {
    if path.starts_with(home) { accounts::own(path, Account::User) } else { Ok(()) }
}
