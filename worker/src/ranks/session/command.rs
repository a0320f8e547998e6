//! Start of a command in a rank's place.

use super::place::RankPlace;
use super::terminal::Pseudoterminal;
use crate::cleanup::cgroup::Cgroup;
use crate::node::environment::Environment;
use crate::ranks::child::{Stub, StubWords};
use nix::unistd::Pid;
use rlaunch_bootstrap::protocol::control::Stream;
use rlaunch_bootstrap::protocol::session::{SessionError, Terminal};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use tokio::net::unix::pipe;

/// Words of a command and its terminal.
pub(super) type Wanted = (Vec<OsString>, Option<Terminal>);

/// Shell of ranks without the variable SHELL, or whose shell is not on this host.
const SHELL: &str = "/bin/sh";

/// Command that was started, with the agent's ends of its streams.
pub(super) struct StartedCommand {
    pub(super) pid: Pid,
    pub(super) stdin: pipe::Sender,
    pub(super) outputs: Vec<(Stream, pipe::Receiver)>,
    /// Agent's end of the terminal; `None` if the streams are pipes.
    pub(super) terminal: Option<OwnedFd>,
}

/// Agent's ends of a command's streams, and then the command's.
struct CommandStreams {
    stdin: pipe::Sender,
    outputs: Vec<(Stream, pipe::Receiver)>,
    terminal: Option<OwnedFd>,
    of_command: [OwnedFd; 3],
}

/// Starts the command, or the rank's shell if `argv` is empty.
pub(super) fn start(
    place: &RankPlace<'_>,
    argv: Vec<OsString>,
    terminal: Option<Terminal>,
    cgroup: Option<&mut Cgroup>,
) -> Result<StartedCommand, SessionError> {
    let mut env = place.environment()?;
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
            (Stream::Stdout, pipe::Receiver::from_owned_fd(stdout.into())?),
            (Stream::Stderr, pipe::Receiver::from_owned_fd(stderr.into())?),
        ];
        let stdin = pipe::Sender::from_owned_fd(stdin.into())?;
        let of_command = [read.into(), out.into(), err.into()];
        Ok(CommandStreams { stdin, outputs, terminal: None, of_command })
    }

    fn terminal(terminal: &Terminal) -> io::Result<CommandStreams> {
        let Pseudoterminal { master, slave } = Pseudoterminal::open(terminal.size)?;
        // Unchecked, because these are no pipes.
        let stdout = pipe::Receiver::from_owned_fd_unchecked(master.try_clone()?)?;
        let stdin = pipe::Sender::from_owned_fd_unchecked(master.try_clone()?)?;
        let of_command = [slave.try_clone()?, slave.try_clone()?, slave];
        let outputs = vec![(Stream::Stdout, stdout)];
        Ok(CommandStreams { stdin, outputs, terminal: Some(master), of_command })
    }
}
