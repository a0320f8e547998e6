//! Commands and files inside a lab, from outside.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::accounts::{self, Account};
use super::{Lab, cgroup, names};
use crate::LabError;
use crate::command::run;
use crate::files::remove_dir;

/// Script that moves into a cgroup, then enters namespaces. Arguments: path of cgroup.procs or
/// nothing, arguments of nsenter.
const ENTER: &str = r#"[ -z "$1" ] || echo $$ >"$1" || exit 125; shift; exec nsenter "$@""#;

/// Script that changes to a directory and executes a command, since nsenter starts commands in the
/// root directory. Arguments: directory, command.
const CHANGE_DIRECTORY: &str = r#"cd "$1" 2>/dev/null || cd /; shift; exec "$@""#;

/// Environment variables that a command in the lab must not have, since they lead to the caller's
/// session.
const SESSION_VARIABLES: [&str; 3] = ["SSH_AUTH_SOCK", "SSH_AGENT_PID", "XDG_RUNTIME_DIR"];

impl Lab {
    /// Makes a command for the launch node; the caller appends the program and its arguments. It
    /// runs in the current directory if the launch node has it. The command executes the program
    /// without forking, so that signals to its pid reach the program.
    pub fn exec(&self, account: Account) -> Command {
        self.exec_in(account, &std::env::current_dir().unwrap_or_else(|_| "/".into()))
    }

    /// Makes a command as [`Lab::exec`] does, in `directory`.
    pub fn exec_in(&self, account: Account, directory: &Path) -> Command {
        let mut command =
            self.enter(names::LAUNCH, self.launch.pid, &["--net", "--uts", "--mount"]);
        become_account(&mut command, account, directory);
        command
    }

    /// Makes a command that runs inside `host`, without ssh; the caller appends the program and its
    /// arguments.
    pub fn on(&self, host: &str, account: Account) -> Result<Command, LabError> {
        let init = self.init(host)?;
        let namespaces = ["--net", "--uts", "--ipc", "--mount", "--pid"];
        let mut command = self.enter(host, init.pid, &namespaces);
        become_account(&mut command, account, &account.home());
        Ok(command)
    }

    /// Returns the home directory of `account` on `host`, as a path on this machine.
    pub fn home(&self, host: &str, account: Account) -> Result<PathBuf, LabError> {
        self.number(host)?;
        let homes = accounts::home_root(&self.paths, &self.record, host);
        Ok(homes.join(match account {
            Account::Root => "root",
            Account::User => "home/user",
        }))
    }

    /// Converts `path` on `host` to a path on this machine. The host must be up.
    pub fn path(&self, host: &str, path: &Path) -> Result<PathBuf, LabError> {
        let root = PathBuf::from(format!("/proc/{}/root", self.init(host)?.pid));
        Ok(root.join(path.strip_prefix("/").unwrap_or(path)))
    }

    /// Writes the file that `host` sees as `path`, and makes the directories above it. In the
    /// user's home, file and directories belong to the user, elsewhere to root.
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
                chown_in_home(directory, &home)?;
            }
        }
        // A rank that waits for the file may remove it as soon as it is there. One that is there may be a mount.
        let there = outside.exists();
        let written = if there { outside.clone() } else { beside(&outside) };
        let permissions = fs::Permissions::from_mode(mode);
        let io = || LabError::io(operation.clone());
        fs::write(&written, bytes).map_err(io())?;
        fs::set_permissions(&written, permissions).map_err(io())?;
        if outside.starts_with(&home) {
            accounts::chown_to(&written, Account::User)?;
        }
        if there { Ok(()) } else { fs::rename(&written, &outside).map_err(io()) }
    }

    /// Copies a built distribution to where both accounts of the launch node can read it, since
    /// only its owner may be able to read the build directory. Returns the directory of the copy.
    pub fn install(&self, dist: &Path) -> Result<PathBuf, LabError> {
        let to = self.installed();
        remove_dir(&to)?;
        let mut copy = Command::new("cp");
        run("copy a build into the lab", copy.args(["-rT", "--preserve=mode"]).args([dist, &to]))?;
        Ok(to)
    }

    /// Returns the directory to which [`Lab::install`] copies.
    pub fn installed(&self) -> PathBuf {
        self.paths.dir.join("dist")
    }

    fn enter(&self, node: &str, pid: i32, namespaces: &[&str]) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", ENTER, "sh"]);
        match &self.record.cgroup {
            // If the cgroup cannot be entered the script exits: teardown would not find the
            // command.
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
    // The caller may itself run under nohup(1), or in the background of a script.
    command.args(["env", "--default-signal=HUP,INT,QUIT"]);
    if account != Account::Root {
        let id = account.id();
        command.args(["setpriv", "--reuid", &id.to_string(), "--regid", &id.to_string()]);
        command.args(["--clear-groups", "--"]);
    }
    command.env("HOME", account.home()).env("USER", account.name()).env("LOGNAME", account.name());
    for name in SESSION_VARIABLES {
        command.env_remove(name);
    }
}

/// Returns a name beside a file.
fn beside(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".unfinished");
    name.into()
}

fn chown_in_home(path: &Path, home: &Path) -> Result<(), LabError> {
    if path.starts_with(home) { accounts::chown_to(path, Account::User) } else { Ok(()) }
}
