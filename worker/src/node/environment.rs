//! Environments on this node: a rank's, and a login's.
//!
//! A rank's environment is made by [`for_application`] and [`for_rank`]: variables of the node, then those
//! forwarded from the launcher, then those of the rank.
//!
//! [`of_login`] returns the environment of a login on this host, as the user's login shell sets it
//! up. The shell is started with a command that executes this program again, and the new process
//! prints its environment between two markers ([`print_login`]). So other output of the shell's
//! start-up files does not matter, and no other program is needed on the host.

use nix::sys::signal::{Signal, killpg};
use nix::unistd::{Pid, Uid, User};
use rlaunch_bootstrap::env::{
    TORCH_FR_BUFFER_SIZE, TORCH_NCCL_DEBUG_INFO_PIPE_FILE, is_foreign_launch, is_of_slurm_node,
    join_search_path,
};
use rlaunch_bootstrap::job::{EnvRule, EnvVar, Problem};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

/// Environment variables, sorted by name.
pub(crate) type Environment = BTreeMap<OsString, OsString>;

/// Returns the variables that all ranks of an application have in common: the node's own, without
/// those of other launchers, and the variables in `forwarded`. The [`EnvRule`] of each forwarded
/// variable says how it is combined with the node's value.
pub(crate) fn for_application(
    node: impl Iterator<Item = (OsString, OsString)>,
    forwarded: &[EnvVar],
) -> Environment {
    let mut env: Environment = node.filter(|(name, _)| !is_foreign(name)).collect();
    for var in forwarded {
        let own = env.get(&var.name).map_or(OsStr::new(""), OsString::as_os_str);
        let value = match var.rule {
            EnvRule::Default if env.contains_key(&var.name) => continue,
            EnvRule::Set | EnvRule::Default => var.value.clone(),
            EnvRule::PathBefore => join_search_path(&var.value, own),
            EnvRule::PathAfter => join_search_path(own, &var.value),
        };
        env.insert(var.name.clone(), value);
    }
    // A bash of the outermost level takes sshd for what has started it and reads ~/.bashrc, which would replace variables and
    // the working directory of a rank.
    let level = env.entry("SHLVL".into()).or_default();
    if level.is_empty() || level == "0" {
        *level = "1".into();
    }
    env
}

/// Returns the environment of one rank. The rank's variables `own` replace those of `common`;
/// `defaults` are added where neither has the variable.
pub(crate) fn for_rank<'a>(
    common: &Environment,
    own: impl Iterator<Item = &'a (String, String)>,
    defaults: &[(String, String)],
) -> Environment {
    let mut env = common.clone();
    env.extend(own.map(|(name, value)| (name.into(), value.into())));
    for (name, value) in defaults {
        env.entry(name.into()).or_insert_with(|| value.into());
    }
    env
}

/// Names the pipe by which a process of torch is asked for what its flight recorder keeps, where it keeps anything. The
/// launcher turns the recorder on by a default of the rank, so this comes after [`for_rank`].
pub(crate) fn add_recorder_pipe(env: &mut Environment, workspace: &Path) {
    if env.contains_key(OsStr::new(TORCH_FR_BUFFER_SIZE)) {
        let pipes = workspace.join("torch-").into_os_string();
        env.entry(TORCH_NCCL_DEBUG_INFO_PIPE_FILE.into()).or_insert(pipes);
    }
}

fn is_foreign(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| is_foreign_launch(name) && !is_of_slurm_node(name))
}

// The environment of a login.

/// Time limit for a login, which takes seconds if home directories or modules are on slow file
/// systems.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum output of a login shell, in bytes.
const MAX_OUTPUT: usize = 1 << 20;
/// Maximum length of the output that an error message quotes, in characters.
const MAX_QUOTED: usize = 200;

/// Variables by name and value, in the order in which they were printed.
pub(crate) type Variables = Vec<(OsString, OsString)>;

/// Runs the login shell and returns its environment.
pub(crate) async fn of_login() -> Result<Variables, Problem> {
    let shell = login_shell();
    let problem = |cause: String| Problem::System {
        operation: format!("read the environment of a login by {}", shell.display()),
        cause,
    };
    let asking = async {
        let mark = uuid::Uuid::new_v4().simple().to_string();
        let mut login = Login::start(&shell, &mark)?;
        login.read(&mark).await
    };
    match tokio::time::timeout(LOGIN_TIMEOUT, asking).await {
        Ok(Ok(variables)) => Ok(variables),
        Ok(Err(error)) => Err(problem(error.to_string())),
        Err(_) => Err(problem(format!("it took more than {} s", LOGIN_TIMEOUT.as_secs()))),
    }
}

/// Returns the user's login shell, from the user database or SHELL.
fn login_shell() -> PathBuf {
    let of_user = User::from_uid(Uid::effective()).ok().flatten().map(|user| user.shell);
    let of_user = of_user.filter(|shell| !shell.as_os_str().is_empty());
    let shell = of_user.or_else(|| std::env::var_os("SHELL").map(PathBuf::from));
    shell.unwrap_or_else(|| PathBuf::from("/bin/sh"))
}

/// Running login shell. Dropping this value kills the shell unless it has answered.
struct Login {
    /// Process id, which is also the id of its process group.
    pid: Pid,
    stdout: pipe::Receiver,
    done: bool,
}

impl Login {
    fn start(shell: &Path, mark: &str) -> io::Result<Login> {
        // The agent's path in the cache may be gone by now; /proc/PID/exe is not. Every shell
        // understands this line.
        let line = format!("exec /proc/{}/exe __environment {mark}", std::process::id());
        let name = shell.file_name().unwrap_or(shell.as_os_str());
        let mut command = Command::new(shell);
        if name.as_bytes().ends_with(b"csh") {
            // csh and tcsh accept -l only alone; a name that begins with `-` makes a login shell,
            // too.
            let mut login_name = OsString::from("-");
            login_name.push(name);
            command.arg0(login_name).arg("-c");
        } else {
            command.args(["-l", "-c"]);
        }
        command.arg(line).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = rlaunch_sys::spawn(command.process_group(0))?;
        let stdout = child.stdout.take().ok_or_else(|| io::Error::other("it has no stdout"))?;
        let stdout = pipe::Receiver::from_owned_fd(OwnedFd::from(stdout))?;
        // The agent collects the exit status with those of all children.
        Ok(Login { pid: Pid::from_raw(child.id().cast_signed()), stdout, done: false })
    }

    /// Reads the shell's output until the environment is complete.
    async fn read(&mut self, mark: &str) -> io::Result<Variables> {
        let mut printed = Vec::new();
        loop {
            if self.stdout.read_buf(&mut printed).await? == 0 {
                return Err(io::Error::other(format!("it ended{}", last_line(&printed))));
            }
            if let Some(variables) = parse_printed(&printed, mark) {
                self.done = true;
                return Ok(variables);
            }
            if printed.len() > MAX_OUTPUT {
                return Err(io::Error::other(format!("it printed {} MiB", MAX_OUTPUT >> 20)));
            }
        }
    }
}

impl Drop for Login {
    fn drop(&mut self) {
        if !self.done {
            // Fails if the shell has ended.
            let _ = killpg(self.pid, Signal::SIGKILL);
        }
    }
}

/// Returns the variables that were printed between the two markers, or `None` if a marker is
/// missing so far. Leaves out variables that a shell sets for itself.
fn parse_printed(printed: &[u8], mark: &str) -> Option<Variables> {
    const OF_SHELL: &[&str] = &["_", "SHLVL", "OLDPWD"];
    let mark = [mark.as_bytes(), b"\0"].concat();
    let at = printed.windows(mark.len()).position(|window| window == mark)?;
    let inside = &printed[at + mark.len()..];
    let inside = inside.strip_suffix(mark.as_slice())?;
    let split = |entry: &[u8]| {
        let at = entry.iter().position(|byte| *byte == b'=').filter(|&at| at > 0)?;
        let text = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
        Some((text(&entry[..at]), text(&entry[at + 1..])))
    };
    let variables = inside.split(|byte| *byte == 0).filter_map(split);
    Some(variables.filter(|(name, _)| !OF_SHELL.iter().any(|own| name == own)).collect())
}

/// Returns the last line of the output as the end of an error message; empty without output.
fn last_line(printed: &[u8]) -> String {
    let text = String::from_utf8_lossy(printed);
    let last = text.lines().map(str::trim).rfind(|line| !line.is_empty());
    let last: Option<String> = last.map(|line| line.chars().take(MAX_QUOTED).collect());
    last.map_or_else(String::new, |line| format!(" and printed: {line}"))
}

/// Implements `rlaunch-worker __environment MARK`: prints this process's environment between two
/// markers.
pub(crate) fn print_login(mark: Option<OsString>) -> ExitCode {
    let mark = mark.unwrap_or_default();
    let mut all = Vec::new();
    let mut entry = |parts: &[&OsStr]| {
        all.extend(parts.iter().flat_map(|part| part.as_bytes()));
        all.push(0);
    };
    entry(&[&mark]);
    for (name, value) in std::env::vars_os() {
        entry(&[&name, OsStr::new("="), &value]);
    }
    entry(&[&mark]);
    let mut stdout = io::stdout().lock();
    match stdout.write_all(&all).and_then(|()| stdout.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(list: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
        list.iter().map(|(name, value)| (name.into(), value.into())).collect()
    }

    fn var(name: &str, value: &str, rule: EnvRule) -> EnvVar {
        EnvVar { name: name.into(), value: value.into(), rule }
    }

    #[test]
    fn layers_meet_as_documented() {
        let node = pairs(&[
            ("HOME", "/home/u"),
            ("LANG", "C"),
            ("PATH", "/usr/bin:/opt/node"),
            ("PYTHONPATH", "/node/py"),
            ("PMI_RANK", "4"),
            ("SLURM_PROCID", "1"),
        ]);
        let forwarded = [
            var("PATH", "/usr/bin:/my/bin", EnvRule::PathBefore),
            var("PYTHONPATH", "/my/py", EnvRule::PathAfter),
            var("NCCL_DEBUG", "INFO", EnvRule::Set),
            var("LANG", "de", EnvRule::Default),
            var("LC_ALL", "de", EnvRule::Default),
        ];
        let common = for_application(node.into_iter(), &forwarded);
        let own = [("RANK".to_owned(), "1".to_owned())];
        let defaults = [("NCCL_DEBUG", "WARN"), ("OMP_NUM_THREADS", "2")];
        let defaults = defaults.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let env = for_rank(&common, own.iter(), &defaults);
        let expected = pairs(&[
            ("HOME", "/home/u"),
            ("LANG", "C"),
            ("LC_ALL", "de"),
            ("NCCL_DEBUG", "INFO"),
            ("OMP_NUM_THREADS", "2"),
            ("PATH", "/usr/bin:/my/bin:/opt/node"),
            ("PYTHONPATH", "/node/py:/my/py"),
            ("RANK", "1"),
            ("SHLVL", "1"),
        ]);
        assert_eq!(env.into_iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn what_a_login_prints_beside_its_environment_does_not_matter() {
        let text = b"Welcome!\nm\nm\0HOME=/h\0A=b=c\nd\0SHLVL=1\0_=x\0=odd\0m\0";
        let expected = [("HOME", "/h"), ("A", "b=c\nd")];
        let expected = expected.map(|(name, value)| (name.into(), value.into()));
        assert_eq!(parse_printed(text, "m"), Some(expected.to_vec()));
        // Nothing is returned before both markers have arrived.
        for length in 0..text.len() {
            assert_eq!(parse_printed(&text[..length], "m"), None, "{length}");
        }
    }

    #[test]
    fn what_it_said_instead_is_shown() {
        assert_eq!(last_line(b"Welcome!\n  no entry \n\n"), " and printed: no entry");
        assert_eq!(last_line(b""), "");
    }
}
