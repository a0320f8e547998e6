//! Start of a command of the user in the place of a running rank: with the environment, directory and
//! binding of its process, and with pipes or a pseudoterminal whose master the agent keeps.

use crate::cleanup::cgroup::Cgroup;
use crate::node::environment::Environment;
use crate::ranks::child::{Stub, StubWords};
use crate::ranks::pseudoterminal::Pseudoterminal;
use crate::ranks::stream_ends::{InputEnd, OutputEnd};
use nix::unistd::Pid;
use rlaunch_bootstrap::env::{PWD, RLAUNCH_EXEC};
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::job::RankSetup;
use rlaunch_bootstrap::protocol::control::Stream;
use rlaunch_bootstrap::protocol::session::{SessionError, Terminal};
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Shell of ranks without the variable SHELL, or whose shell is not on this host.
const SHELL: &str = "/bin/sh";

/// Command that was started, with the agent's ends of its streams.
pub(super) struct StartedCommand {
    pub(super) pid: Pid,
    pub(super) stdin: InputEnd,
    pub(super) outputs: Vec<(Stream, OutputEnd)>,
    /// Agent's end of the terminal; `None` if the streams are pipes.
    pub(super) terminal: Option<OwnedFd>,
}

/// Agent's ends of a command's streams, and then the command's.
struct CommandStreams {
    stdin: InputEnd,
    outputs: Vec<(Stream, OutputEnd)>,
    terminal: Option<OwnedFd>,
    of_command: [OwnedFd; 3],
}

/// Starts the command, or the rank's shell if `argv` is empty. `mark` is in the environment of all its processes.
pub(super) fn start(
    place: &RankPlace<'_>,
    mark: &str,
    argv: Vec<OsString>,
    terminal: Option<Terminal>,
    cgroup: Option<&mut Cgroup>,
) -> Result<StartedCommand, SessionError> {
    let mut env = place.environment()?;
    env.insert(RLAUNCH_EXEC.into(), mark.into());
    let argv = if argv.is_empty() { vec![shell(&env)] } else { argv };
    let streams = match &terminal {
        Some(terminal) => CommandStreams::terminal(terminal)
            .map_err(|error| SessionError::cannot("open a terminal", &error))?,
        None => {
            CommandStreams::pipes().map_err(|error| SessionError::cannot("make pipes", &error))?
        }
    };
    if let Some(Terminal { term, .. }) = terminal {
        env.insert("TERM".into(), term.unwrap_or_else(|| "dumb".into()));
    }
    let (words, directory) = (StubWords::new("__exec-beside", place.setup), place.directory());
    correct_pwd(&mut env, &directory);
    let mut args = words.before(&directory);
    // The program, and its name.
    args.push(&argv[0]);
    args.extend(argv.iter().map(OsString::as_os_str));
    let CommandStreams { stdin, outputs, terminal, of_command } = streams;
    let stub = Stub { args, env: &env, streams: of_command };
    let pid = stub
        .launch(cgroup)
        .map_err(|error| SessionError::cannot(format!("start {}", argv[0].display()), &error))?;
    Ok(StartedCommand { pid, stdin, outputs, terminal })
}

/// Corrects PWD if the rank has gone elsewhere since it was started. `directory` is a link to where it is.
fn correct_pwd(env: &mut Environment, directory: &Path) {
    let id = |path: &Path| fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
    let here = id(directory);
    let leads_here = |path: &Path| here.is_some() && id(path) == here;
    if env.get(OsStr::new(PWD)).is_some_and(|pwd| leads_here(Path::new(pwd))) {
        return;
    }
    // A directory that was removed has no path.
    match fs::read_link(directory).ok().filter(|real| leads_here(real)) {
        Some(real) => env.insert(PWD.into(), real.into()),
        None => env.remove(OsStr::new(PWD)),
    };
}

/// Returns the rank's shell.
fn shell(env: &Environment) -> OsString {
    let own = env.get(OsStr::new("SHELL")).filter(|shell| Path::new(shell).exists());
    own.cloned().unwrap_or_else(|| SHELL.into())
}

impl CommandStreams {
    fn pipes() -> io::Result<CommandStreams> {
        let (read, stdin) = io::pipe()?;
        let (stdout, out) = io::pipe()?;
        let (stderr, err) = io::pipe()?;
        let outputs = vec![
            (Stream::Stdout, OutputEnd::new(stdout)?),
            (Stream::Stderr, OutputEnd::new(stderr)?),
        ];
        let stdin = InputEnd::new(stdin)?;
        let of_command = [read.into(), out.into(), err.into()];
        Ok(CommandStreams { stdin, outputs, terminal: None, of_command })
    }

    fn terminal(terminal: &Terminal) -> io::Result<CommandStreams> {
        let Pseudoterminal { master, slave } = Pseudoterminal::open(terminal.size)?;
        let stdout = OutputEnd::new(master.try_clone()?)?;
        let stdin = InputEnd::new(master.try_clone()?)?;
        let of_command = [slave.try_clone()?, slave.try_clone()?, slave];
        let outputs = vec![(Stream::Stdout, stdout)];
        Ok(CommandStreams { stdin, outputs, terminal: Some(master), of_command })
    }
}

/// Running rank, with what its process was given.
pub(super) struct RankPlace<'a> {
    pub(super) rank: Rank,
    pub(super) pid: Pid,
    /// Binding of the rank to CPUs and memory.
    pub(super) setup: &'a RankSetup,
}

impl RankPlace<'_> {
    /// Reads the environment with which the rank's process was started.
    pub(super) fn environment(&self) -> Result<Environment, SessionError> {
        let path = format!("/proc/{}/environ", self.pid);
        let bytes = fs::read(&path)
            .map_err(|error| SessionError::cannot(format!("read {path}"), &error))?;
        // The memory of a process that has ended is gone.
        if bytes.is_empty() { Err(SessionError::RankEnded) } else { Ok(parse_environment(&bytes)) }
    }

    /// Returns a path that leads to the working directory of the rank's process.
    pub(super) fn directory(&self) -> PathBuf {
        format!("/proc/{}/cwd", self.pid).into()
    }
}

/// Parses `/proc/PID/environ`.
fn parse_environment(bytes: &[u8]) -> Environment {
    let own = |bytes: &[u8]| -> OsString { OsStr::from_bytes(bytes).to_owned() };
    let mut env = Environment::new();
    for entry in bytes.split(|&byte| byte == 0) {
        if let Some(at) = entry.iter().position(|&byte| byte == b'=') {
            env.insert(own(&entry[..at]), own(&entry[at + 1..]));
        }
    }
    env
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_without_a_value_are_left_out() {
        let env = parse_environment(b"A=1\0B=x=y\0C\0\0D=\0");
        let pairs: Vec<_> = env.iter().map(|(n, v)| (n.to_str(), v.to_str())).collect();
        let expected = [("A", "1"), ("B", "x=y"), ("D", "")];
        assert_eq!(pairs, expected.map(|(name, value)| (Some(name), Some(value))));
    }

    #[test]
    fn the_place_of_this_process_is_read() {
        let setup = RankSetup::default();
        let place = RankPlace { rank: Rank(0), pid: Pid::this(), setup: &setup };
        assert!(place.environment().unwrap().contains_key(OsStr::new("PATH")));
        let here = fs::read_link(place.directory()).unwrap();
        assert_eq!(here, std::env::current_dir().unwrap());
    }

    #[test]
    fn pwd_leads_to_where_the_rank_is_by_the_path_it_knows() {
        let scratch = tempfile::tempdir().unwrap();
        let real = scratch.path().canonicalize().unwrap();
        let (there, link, cwd) = (real.join("there"), real.join("link"), real.join("cwd"));
        fs::create_dir(&there).unwrap();
        for link in [&link, &cwd] {
            std::os::unix::fs::symlink(&there, link).unwrap();
        }
        let corrected = |pwd: &Path| {
            let mut env = Environment::from([(PWD.into(), pwd.into())]);
            correct_pwd(&mut env, &cwd);
            env.remove(OsStr::new(PWD)).map(PathBuf::from)
        };
        assert_eq!(corrected(&link).as_ref(), Some(&link));
        assert_eq!(corrected(&real).as_ref(), Some(&there));
        fs::remove_dir(&there).unwrap();
        assert_eq!(corrected(&real), None);
    }
}
