//! Common code of the tests: the lab, starting rlaunch in it, and undoing what a test has changed
//! there.

use crate::running::{Outcome, Running};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rlaunch_lab::command::wait_until;
use rlaunch_lab::{Account, Lab, Process, UnderTest};
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::fmt::Debug;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// Time limit for rlaunch, on a machine that is shared and slow; only a hang lasts longer. Tests in which promptness
/// matters measure it.
pub(crate) const BOUND: Duration = Duration::from_secs(60);
/// Time limit for an sshd to end after its client has.
const IDLE: Duration = Duration::from_secs(30);
/// PATH of rlaunch, instead of the variable of the machine that runs the tests.
pub(crate) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Lab with its hosts, and the rlaunch under test. When this is dropped, no process may be left on
/// any host.
pub(crate) struct Field {
    pub(crate) lab: Lab,
    pub(crate) rlaunch: PathBuf,
}

impl Field {
    /// Returns the lab with hosts a to h, all reachable. Each account has its own home.
    pub(crate) fn new() -> Field {
        let UnderTest { lab, rlaunch } = UnderTest::from_env().unwrap();
        Field { lab, rlaunch }
    }

    /// Prepares rlaunch with `words`, which are split at blanks, without quotes.
    pub(crate) fn rlaunch(&self, words: &str) -> Run<'_> {
        Run {
            field: self,
            account: Account::Root,
            from: From::LaunchNode(PathBuf::from("/")),
            args: words.split_whitespace().map(OsString::from).collect(),
            env: Vec::new(),
            bound: BOUND,
            at_terminal: false,
            ignores_hangups: false,
            file_size: None,
        }
    }

    /// Returns the path of the agent that comes with the launcher.
    pub(crate) fn agent(&self) -> PathBuf {
        self.shipped(std::env::consts::ARCH).join("rlaunch-worker")
    }

    /// Returns the launcher's directory of files for hosts of an architecture.
    pub(crate) fn shipped(&self, arch: &str) -> PathBuf {
        let all = self.rlaunch.with_file_name("lib").join("rlaunch");
        all.join(format!("{arch}-unknown-linux-gnu"))
    }

    /// Returns the directory where `account` keeps agents on `host`, as a path on this machine.
    pub(crate) fn cache(&self, host: &str, account: Account) -> PathBuf {
        self.lab.home(host, account).unwrap().join(".cache/rlaunch")
    }

    /// Removes every agent from `hosts`, so that the next job sends it again.
    pub(crate) fn forget_agents(&self, hosts: &[&str], account: Account) {
        for host in hosts {
            let cache = self.cache(host, account);
            if cache.exists() {
                std::fs::remove_dir_all(cache).unwrap();
            }
        }
    }

    /// Sends the agent to `hosts`, so that later jobs find it there.
    pub(crate) fn warm(&self, hosts: &str, account: Account) {
        let run = self.rlaunch("-H").args([hosts, "true"]).account(account);
        run.run().succeeded();
    }

    /// Runs a shell line on a host, as root and without SSH, and returns its stdout.
    pub(crate) fn on(&self, host: &str, line: &str) -> String {
        let mut command = self.lab.on(host, Account::Root).unwrap();
        let output = command.args(["sh", "-c", line]).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{line} on {host}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// Runs a shell line on the launch node, in `directory` and with the environment of a test's
    /// rlaunch, and returns its stdout, whatever its exit code.
    pub(crate) fn shell(&self, line: &str, directory: &Path) -> String {
        let mut command = self.lab.exec_in(Account::Root, directory);
        command.args(["sh", "-c", line]).env_clear().env("PATH", PATH).env("LANG", "C.UTF-8");
        command.env("HOME", Account::Root.home()).env("USER", "root").env("LOGNAME", "root");
        let output = command.stdin(Stdio::null()).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Writes a file on each of `hosts`. When the guard is dropped, the files are removed, and
    /// their directory too if it is below `/tmp` and empty.
    pub(crate) fn files(
        &self,
        hosts: &[&str],
        path: &str,
        text: &str,
        mode: u32,
    ) -> impl Drop + use<> {
        for host in hosts {
            self.lab.write_file(host, Path::new(path), text.as_bytes(), mode).unwrap();
        }
        let outside = hosts.iter().map(|host| self.lab.path(host, Path::new(path)).unwrap());
        let outside: Vec<PathBuf> = outside.collect();
        let in_tmp = path.starts_with("/tmp/");
        Undo(move || {
            outside.iter().try_for_each(|path| {
                std::fs::remove_file(path)?;
                if in_tmp {
                    let _ = std::fs::remove_dir(path.parent().unwrap_or(path));
                }
                Ok::<(), std::io::Error>(())
            })
        })
    }

    /// Removes the directory `path` of `hosts`, if it exists, when the guard is dropped.
    pub(crate) fn scratch(&self, hosts: &[&str], path: &str) -> impl Drop + use<> {
        let outside = hosts.iter().map(|host| self.lab.path(host, Path::new(path)).unwrap());
        let outside: Vec<PathBuf> = outside.collect();
        Undo(move || {
            let mut left = outside.iter().filter(|path| path.exists());
            left.try_for_each(std::fs::remove_dir_all)
        })
    }

    /// Makes `uname -m` print `name` in root's login shell on a host, until the guards are dropped.
    pub(crate) fn machine(&self, host: &str, name: &str) -> (impl Drop + use<>, impl Drop + use<>) {
        let script =
            format!("#!/bin/sh\n[ \"$1\" != -m ] || exec echo {name}\nexec /bin/uname \"$@\"\n");
        let bashrc = Account::Root.home().join(".bashrc");
        let first = "PATH=/tmp/machine:$PATH\n";
        (
            self.files(&[host], "/tmp/machine/uname", &script, 0o755),
            self.files(&[host], bashrc.to_str().unwrap(), first, 0o644),
        )
    }

    /// Lists the directories of jobs in the hosts' `/tmp`.
    pub(crate) fn job_directories(&self) -> Vec<PathBuf> {
        let hosts = self.lab.hosts();
        let tmps = hosts.iter().filter_map(|host| self.lab.path(host, Path::new("/tmp")).ok());
        let entries = tmps.filter_map(|tmp| std::fs::read_dir(tmp).ok()).flatten().flatten();
        let paths = entries.map(|entry| entry.path());
        let is_ours = |path: &PathBuf| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("rlaunch-"))
        };
        paths.filter(is_ours).collect()
    }

    /// Removes the directories of jobs in the hosts' `/tmp`.
    pub(crate) fn clear_job_directories(&self) {
        for directory in self.job_directories() {
            let _ = std::fs::remove_dir_all(directory);
        }
    }

    /// Lists the processes on the hosts except sshd: agents, ranks and processes that ranks have
    /// started. Processes that are exiting, which have no arguments any more, are left out.
    pub(crate) fn started(&self) -> Vec<Process> {
        let mut processes = self.lab.all_processes();
        processes.retain(|process| {
            let program = process.args.first().map_or("", String::as_str);
            process.state != 'Z' && !program.starts_with(['[', '(']) && !program.starts_with("sshd")
        });
        processes
    }

    /// Lists the processes of [`started`](Field::started) without agents.
    pub(crate) fn ranks(&self) -> Vec<Process> {
        let mut processes = self.started();
        processes.retain(|process| !process.args[0].ends_with("rlaunch-worker"));
        processes
    }

    /// Waits until `condition` holds, at most [`BOUND`].
    pub(crate) fn wait_for(&self, what: &str, mut condition: impl FnMut() -> bool) {
        wait_until(BOUND, what, || Ok(condition())).unwrap();
    }

    /// Asserts that soon no process of a job is left on any host.
    pub(crate) fn assert_idle(&self) {
        self.lab.wait_until_idle(IDLE).unwrap();
    }
}

impl Drop for Field {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return self.assert_idle();
        }
        // After a failure, the hosts are cleaned for the next test.
        for process in self.lab.all_processes() {
            let _ = kill(Pid::from_raw(process.pid), Signal::SIGKILL);
        }
        self.clear_job_directories();
    }
}

/// Guard that undoes a change when it is dropped, also when the test fails.
pub(crate) struct Undo<E: Debug, F: FnMut() -> Result<(), E>>(pub(crate) F);

impl<E: Debug, F: FnMut() -> Result<(), E>> Drop for Undo<E, F> {
    fn drop(&mut self) {
        let undone = (self.0)();
        // A second panic would end the whole test program.
        assert!(std::thread::panicking() || undone.is_ok(), "{undone:?}");
    }
}

/// Makes a directory on the launching machine only, readable by both accounts.
pub(crate) fn launch_directory() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
    directory
}

/// Directory in which the launching machine keeps records and sockets of jobs.
pub(crate) struct State(TempDir);

impl State {
    pub(crate) fn new() -> State {
        State(launch_directory())
    }

    pub(crate) fn path(&self) -> &str {
        self.0.path().to_str().unwrap()
    }

    /// Returns the directory with the files of jobs.
    pub(crate) fn jobs(&self) -> PathBuf {
        self.0.path().join("rlaunch/jobs")
    }

    pub(crate) fn rlaunch<'a>(&self, field: &'a Field, words: &str) -> Run<'a> {
        field.rlaunch(words).env("XDG_STATE_HOME", self.path())
    }

    /// Asks about jobs, which may run meanwhile.
    pub(crate) fn ask(&self, field: &Field, words: &str) -> Outcome {
        let outcome = self.rlaunch(field, words).spawn().finish_first();
        outcome.ended_with(0);
        outcome
    }

    /// Lists jobs by `jobs` or `history`.
    pub(crate) fn list(&self, field: &Field, verb: &str) -> Vec<Value> {
        let listed = self.ask(field, &format!("{verb} --json"));
        serde_json::from_slice(&listed.stdout).unwrap_or_else(|_| panic!("{listed}"))
    }
}

/// Machine on which rlaunch is started.
enum From {
    LaunchNode(PathBuf),
    Host(String),
}

/// An rlaunch to start, with its options.
pub(crate) struct Run<'a> {
    field: &'a Field,
    account: Account,
    from: From,
    args: Vec<OsString>,
    env: Vec<(String, String)>,
    bound: Duration,
    at_terminal: bool,
    ignores_hangups: bool,
    /// Limit of the size of files, in bytes.
    file_size: Option<u32>,
}

impl<'a> Run<'a> {
    pub(crate) fn account(mut self, account: Account) -> Run<'a> {
        self.account = account;
        self
    }

    pub(crate) fn in_directory(mut self, directory: &Path) -> Run<'a> {
        self.from = From::LaunchNode(directory.into());
        self
    }

    /// Starts rlaunch on a host, which has a copy in `/tmp/dist`, rather than on the launch node.
    pub(crate) fn started_on(mut self, host: &str) -> Run<'a> {
        self.from = From::Host(host.into());
        self
    }

    pub(crate) fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Run<'a> {
        self.args.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Makes `script` the program of the ranks.
    pub(crate) fn sh(self, script: &str) -> Run<'a> {
        self.args(["sh", "-c", script])
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Run<'a> {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Makes rlaunch log what it sends to which hosts, among other steps.
    pub(crate) fn logging(self) -> Run<'a> {
        self.env("RLAUNCH_LOG", "rlaunch=info")
    }

    /// Makes rlaunch's stdin its controlling terminal.
    pub(crate) fn at_terminal(mut self) -> Run<'a> {
        self.at_terminal = true;
        self
    }

    /// Starts rlaunch as nohup(1) does, with SIGHUP ignored.
    pub(crate) fn ignoring_hangups(mut self) -> Run<'a> {
        self.ignores_hangups = true;
        self
    }

    /// Limits the size of files that rlaunch writes, in bytes.
    pub(crate) fn with_file_size(mut self, limit: u32) -> Run<'a> {
        self.file_size = Some(limit);
        self
    }

    /// Sets the time limit.
    pub(crate) fn within(mut self, bound: Duration) -> Run<'a> {
        self.bound = bound;
        self
    }

    /// Starts rlaunch and waits for its end.
    pub(crate) fn run(self) -> Outcome {
        self.spawn().finish()
    }

    /// Starts rlaunch and collects its output.
    pub(crate) fn spawn(self) -> Running<'a> {
        let mut command = self.command();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Running::start(self.field, &mut command, self.bound)
    }

    /// Returns the command. Its process becomes rlaunch's own.
    pub(crate) fn command(&self) -> Command {
        let lab = &self.field.lab;
        let mut command = match &self.from {
            From::LaunchNode(directory) => lab.exec_in(self.account, directory),
            From::Host(host) => lab.on(host, self.account).unwrap(),
        };
        if self.at_terminal {
            command.args(["setsid", "--ctty"]);
        }
        let hangups = if self.ignores_hangups { "--ignore-signal" } else { "--default-signal" };
        if let Some(limit) = self.file_size {
            command.args(["prlimit", &format!("--fsize={limit}")]);
        }
        command.args(["env", &format!("{hangups}=HUP"), "--default-signal=XFSZ"]);
        match self.from {
            From::LaunchNode(_) => command.arg(&self.field.rlaunch),
            From::Host(_) => command.arg("/tmp/dist/rlaunch"),
        };
        let account = self.account.name();
        command.args(&self.args).env_clear().env("PATH", PATH).env("LANG", "C.UTF-8");
        command.env("HOME", self.account.home()).env("USER", account).env("LOGNAME", account);
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }
}

/// Kills processes after stopping all of them, so that none notices the end of another.
pub(crate) fn kill_at_once(processes: &[Pid]) {
    for signal in [Signal::SIGSTOP, Signal::SIGKILL] {
        for &process in processes {
            kill(process, signal).unwrap();
        }
    }
}

/// Returns the state letter of a process in `/proc`; T means stopped.
pub(crate) fn state(pid: Pid) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(") ").unwrap().1.chars().next().unwrap()
}

/// Returns the children of a process.
pub(crate) fn children(pid: Pid) -> Vec<Pid> {
    // A child belongs to the thread that has started it.
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let lists = threads.filter_map(|thread| {
        // A thread may end meanwhile.
        std::fs::read_to_string(thread.path().join("children")).ok()
    });
    let pid = |word: &str| Pid::from_raw(word.parse().unwrap());
    lists.flat_map(|list| list.split_whitespace().map(pid).collect::<Vec<_>>()).collect()
}
