//! Installing the agent on a host. The agent is sent through the stdin of the host's shell; if nothing
//! arrives there, the host downloads the agent from the launcher.
//!
//! `install.sh` prints lines that begin with `rlaunch-install`: first `host SYSTEM MACHINE`; then, once it
//! has read the agent's hash and size, `present`, `want gzip`, `want raw` or `failed CAUSE`; after the
//! transfer `installed` or `failed CAUSE`. `fetch.sh` prints only `present`, `installed`, `failed CAUSE` or `full CAUSE`,
//! and so does `boot.sh`, in a task of a Slurm step, after the line `task NUMBER ARCH NODE`. If
//! a home takes a small file and not the agent, the script runs once more with `other`, which leaves the home out.

mod replies;

use super::callback::Callbacks;
use super::host_file::HostFile;
use super::pack::ARCHITECTURES;
use super::store::AgentStore;
use super::{DeployError, check_directory};
use crate::connect::channel::{AgentChannel, AgentWriter, abandon, finish};
use crate::connect::connector::{AgentLocation, HostConnection, RemoteCommand};
use replies::InstallerReplies;
use rlaunch_bootstrap::id::NodeId;
use rlaunch_console::deadline::{self, Deadline};
use rlaunch_console::progress;
use rlaunch_text::text;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Beginning of both scripts, `install.sh` and `fetch.sh`.
const PLACE: &str = include_str!("place.sh");
const INSTALL: &str = include_str!("install.sh");
const FETCH: &str = include_str!("fetch.sh");
const BOOT: &str = include_str!("boot.sh");
/// Time limit for a step of Slurm to start its first process on a node. A controller may be busy, and prologs take time.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit for installing the agent on a host.
const INSTALL_TIMEOUT: Duration = Duration::from_secs(120);
/// Time limit for the first line of the host's shell, whose start-up files may take their time. A shell whose stdout
/// leads elsewhere never prints it.
const FIRST_LINE_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit for the installer's reply to the agent's hash. If the shell passes on no stdin, the installer
/// never receives the hash.
const REPLY_TIMEOUT: Duration = Duration::from_secs(8);
/// Name in errors of the thing that an installation waits for.
const FIRST_LINE: &str = "answer from the host's shell";
const TRANSFER: &str = "word that the agent has arrived";
const TASK: &str = "word from its task of Slurm's step";

/// Agent installed on a host.
#[derive(Clone)]
pub(super) struct InstalledAgent {
    pub(super) program: AgentLocation,
    /// Number of bytes transferred; `None` if the host had the agent already.
    pub(super) sent: Option<usize>,
}

/// Parameters for installing the agent on hosts.
pub(super) struct Installer<'a> {
    pub(super) store: &'a AgentStore,
    /// Cache directory on the hosts, in shell syntax: may begin with `~/`.
    pub(super) directory: &'a str,
    /// Whether another directory may be used if the agent cannot be written to `directory` or executed
    /// there.
    pub(super) allow_other: bool,
    pub(super) callbacks: &'a Callbacks,
    /// Number of hosts that are prepared, for a line at a terminal; `None` if nothing says it.
    pub(super) shown_hosts: Option<usize>,
}

/// Result of an installation through stdin.
enum StdinInstall {
    Installed(InstalledAgent),
    /// Nothing arrives on the stdin of the host's shell; contains the file to install.
    Silent(Arc<HostFile>),
}

/// Shows at a terminal, until the next message, why the start takes longer: each of the hosts gets `size` bytes.
fn show_preparing(hosts: usize, size: usize) {
    let (hosts, size) = (text::count(hosts, "host"), text::mib(size as u64));
    progress::show_step(&format!("preparing {hosts}… {size} each"));
}

impl Installer<'_> {
    /// Installs the agent for the host's architecture, unless the host has it.
    pub(super) async fn install(
        &self,
        connection: &HostConnection,
    ) -> Result<InstalledAgent, DeployError> {
        let scope = if self.allow_other { "any" } else { "only" };
        let mut to_fetch = None;
        let first = self.install_once(connection, scope, &mut to_fetch).await;
        if !self.allow_other || !matches!(first, Err(DeployError::Full { .. })) {
            return first;
        }
        match self.install_once(connection, "other", &mut to_fetch).await {
            // The error of the home is returned: the user can do something about that one.
            Err(
                DeployError::Full { .. }
                | DeployError::Install { .. }
                | DeployError::NoFetch { .. },
            ) => first,
            second => second,
        }
    }

    /// Installs the agent in one of the directories that `scope` stands for (see place.sh). `to_fetch` is the file to
    /// install once it is known that nothing arrives on stdin.
    async fn install_once(
        &self,
        connection: &HostConnection,
        scope: &str,
        to_fetch: &mut Option<Arc<HostFile>>,
    ) -> Result<InstalledAgent, DeployError> {
        let mut deadline = Deadline::after(INSTALL_TIMEOUT);
        let file = match to_fetch {
            Some(file) => file,
            None => {
                let script = script(INSTALL);
                let words = [self.directory, scope];
                let channel = connection.exec(&RemoteCommand::Script(&script, &words)).await?;
                match self.by_stdin(channel, &mut deadline).await? {
                    StdinInstall::Installed(agent) => return Ok(agent),
                    StdinInstall::Silent(file) => to_fetch.insert(file),
                }
            }
        };
        let addresses = connection.addresses();
        let at = self.callbacks.serve(file, addresses.map(|(local, _)| local)).join(" ");
        let script = script(FETCH);
        let (size, given) = (file.size.to_string(), self.on_host());
        let words = [self.directory, scope, &file.hash, &file.sha256, &size, given, &at];
        let channel = connection.exec(&RemoteCommand::Script(&script, &words)).await?;
        let host = addresses.map(|(_, host)| host);
        self.by_fetching(channel, file, host, &mut deadline).await
    }

    /// Installs through stdin, and ends its shell otherwise. An error of time says whether that may run on.
    async fn by_stdin(
        &self,
        channel: AgentChannel,
        deadline: &mut Deadline,
    ) -> Result<StdinInstall, DeployError> {
        let AgentChannel { reader, mut writer } = channel;
        let mut replies = InstallerReplies::new(reader);
        let installed = self.follow_installer(&mut writer, &mut replies, deadline).await;
        if let Ok(StdinInstall::Installed(_)) = installed {
            finish(&mut replies.reader, &mut writer).await;
            return installed;
        }
        let shell = abandon(&mut replies.reader, &mut writer).await;
        installed.map_err(|error| error.with_shell(shell))
    }

    /// Answers the installer's lines until the agent is installed, as this file's head describes. May leave the shell
    /// running.
    async fn follow_installer(
        &self,
        writer: &mut AgentWriter,
        replies: &mut InstallerReplies,
        deadline: &mut Deadline,
    ) -> Result<StdinInstall, DeployError> {
        let first = &mut Deadline::after(FIRST_LINE_TIMEOUT);
        let answer = replies.next_reply_within(first, FIRST_LINE).await;
        let file = self.file_for(answer.map_err(|error| replies.with_noise(error))?)?;
        let Some(mut reply) = ask_for(&file, writer, replies).await? else {
            return Ok(StdinInstall::Silent(file));
        };
        let mut sent = None;
        loop {
            match reply.split_once(' ').unwrap_or((&reply, "")) {
                ("present" | "installed", place) => {
                    let program = self.program(&file, place);
                    return Ok(StdinInstall::Installed(InstalledAgent { program, sent }));
                }
                ("want", how) => {
                    let payload = file.payload(how == "gzip")?;
                    sent = Some(payload.len());
                    if let Some(hosts) = self.shown_hosts {
                        show_preparing(hosts, payload.len());
                    }
                    let sending = async {
                        writer.send(payload).await?;
                        writer.end().await
                    };
                    // A host with a full disk stops reading and reports the failure.
                    let sent_or_refused = async {
                        tokio::select! {
                            early = replies.next_reply() => early,
                            _ = sending => replies.next_reply().await,
                        }
                    };
                    reply = deadline.wait(TRANSFER, sent_or_refused).await??;
                }
                ("failed", cause) => {
                    let cause = cause.to_owned();
                    // Whether programs may be executed was found out before the transfer.
                    let is_full = sent.is_some() && !cause.starts_with("cannot execute");
                    return Err(if is_full {
                        DeployError::Full { cause }
                    } else {
                        DeployError::Install { cause }
                    });
                }
                _ => return Err(DeployError::Shell(reply)),
            }
        }
    }

    /// Waits until the host, on which [`FETCH`] runs, has downloaded the agent, unless it has the agent already in a
    /// cache, on PATH or at the path from `--agent`. `host` is the host's address.
    async fn by_fetching(
        &self,
        channel: AgentChannel,
        file: &HostFile,
        host: Option<IpAddr>,
        deadline: &mut Deadline,
    ) -> Result<InstalledAgent, DeployError> {
        let AgentChannel { reader, mut writer } = channel;
        let mut replies = InstallerReplies::new(reader);
        let reply = replies.next_reply_within(deadline, TRANSFER).await;
        let reply = match reply {
            Ok(reply) => {
                finish(&mut replies.reader, &mut writer).await;
                reply
            }
            Err(error) => {
                let shell = abandon(&mut replies.reader, &mut writer).await;
                return Err(error.with_shell(shell));
            }
        };
        self.fetched(file, reply, host)
    }

    /// Understands the reply of [`FETCH`].
    fn fetched(
        &self,
        file: &HostFile,
        reply: String,
        host: Option<IpAddr>,
    ) -> Result<InstalledAgent, DeployError> {
        let at = |place| self.program(file, place);
        match reply.split_once(' ').unwrap_or((&reply, "")) {
            ("present", place) => Ok(InstalledAgent { program: at(place), sent: None }),
            ("installed", place) => {
                Ok(InstalledAgent { program: at(place), sent: usize::try_from(file.size).ok() })
            }
            ("full", cause) => Err(DeployError::Full { cause: cause.to_owned() }),
            ("failed", cause) => {
                let (cause, ports) = (cause.to_owned(), self.callbacks.ports());
                Err(DeployError::NoFetch { cause, from: host, ports })
            }
            _ => Err(DeployError::Shell(reply)),
        }
    }

    /// Returns the words that a task of a Slurm step executes to start the agent, which calls the launcher by `addresses`
    /// and `key`.
    pub(super) fn boot_words(&self, addresses: &str, key: &str) -> Vec<String> {
        let scope = if self.allow_other { "any" } else { "only" };
        let files =
            ARCHITECTURES.iter().filter_map(|arch| Some((*arch, self.store.for_arch(arch).ok()?)));
        let files: Vec<(&str, Arc<HostFile>)> = files.collect();
        for (_, file) in &files {
            self.callbacks.serve(file, None);
        }
        let at = addresses.replace(',', " ");
        let (boot, fetch) = (without_comments(BOOT, "\n"), script(FETCH));
        let words = [
            "sh",
            "-c",
            &boot,
            "sh",
            &fetch,
            addresses,
            key,
            self.directory,
            scope,
            self.on_host(),
            &at,
        ];
        let of_file = |(arch, file): &(&str, Arc<HostFile>)| {
            [(*arch).to_owned(), file.hash.clone(), file.sha256.clone(), file.size.to_string()]
        };
        words.into_iter().map(str::to_owned).chain(files.iter().flat_map(of_file)).collect()
    }

    /// Reads the first lines of a task that executes [`Installer::boot_words`], up to the start of the agent. Returns the
    /// task's number, the agent, and the rest of the task's output.
    pub(super) async fn booted(
        &self,
        channel: AgentChannel,
    ) -> Result<(NodeId, InstalledAgent, AgentChannel), DeployError> {
        let AgentChannel { reader, writer } = channel;
        let mut replies = InstallerReplies::new(reader);
        let task = replies.next_reply_within(&mut Deadline::after(STEP_TIMEOUT), TASK).await;
        let task = task.map_err(|error| replies.with_noise(error))?;
        let ["task", number, arch, _] = task.split_ascii_whitespace().collect::<Vec<_>>()[..]
        else {
            return Err(DeployError::Shell(task));
        };
        let Ok(number) = number.parse() else { return Err(DeployError::Shell(task)) };
        let file = self.store.for_arch(arch)?;
        let reply =
            replies.next_reply_within(&mut Deadline::after(INSTALL_TIMEOUT), TRANSFER).await?;
        let agent = self.fetched(&file, reply, None)?;
        Ok((NodeId(number), agent, AgentChannel { reader: replies.reader, writer }))
    }

    /// Returns the agent for a host. `answer` is the installer's first line, `host SYSTEM MACHINE`.
    fn file_for(&self, answer: String) -> Result<Arc<HostFile>, DeployError> {
        match answer.split_ascii_whitespace().collect::<Vec<_>>()[..] {
            ["host", "Linux", arch] => Ok(self.store.for_arch(arch)?),
            ["host", system, ..] => Err(DeployError::System { system: system.to_owned() }),
            _ => Err(DeployError::Shell(answer)),
        }
    }

    /// Returns the path from `--agent`, where the host may have the agent as well; `-` if there is no such
    /// path or if shells would interpret it.
    fn on_host(&self) -> &str {
        let given = self.store.agent_option().and_then(Path::to_str);
        given.filter(|path| check_directory(path).is_ok()).unwrap_or("-")
    }

    /// Parses the location that the host printed: `in DIRECTORY`, `in .rlaunch-UID` for the account's cache
    /// in the configured directory, `at PATH`, or nothing for the expected location. The owner of a cached
    /// agent is checked again when the agent starts, since the owner may have changed by then.
    fn program(&self, file: &HostFile, place: &str) -> AgentLocation {
        let is_plain = |path: &&str| check_directory(path).is_ok();
        let is_own = |name: &&str| {
            let number = name.strip_prefix(".rlaunch-");
            number.is_some_and(|uid| uid.parse::<u32>().is_ok_and(|n| n.to_string() == uid))
        };
        match place.split_once(' ') {
            Some(("in", own)) if is_own(&own) => AgentLocation::InShared {
                directory: self.directory.to_owned(),
                build: file.hash.clone(),
            },
            Some(("in", directory)) if is_plain(&directory) => cached(directory, file),
            Some(("at", path)) if is_plain(&path) => AgentLocation::At(path.to_owned()),
            _ => cached(self.directory, file),
        }
    }
}

fn cached(cache: &str, file: &HostFile) -> AgentLocation {
    AgentLocation::InCache { cache: cache.to_owned(), build: file.hash.clone() }
}

/// Tells the installer the agent's hash and size. Returns its reply, or `None` if nothing arrives on its stdin.
async fn ask_for(
    file: &HostFile,
    writer: &mut AgentWriter,
    replies: &mut InstallerReplies,
) -> Result<Option<String>, DeployError> {
    let asking = async {
        let asked = writer.send(format!("{} {}\n", file.hash, file.size).into()).await;
        asked.ok()?;
        Some(replies.next_reply().await)
    };
    match deadline::within(REPLY_TIMEOUT, asking).await.flatten() {
        Some(Ok(reply)) => Ok(Some(reply)),
        // The installer has printed its first line, so it runs, but it reads nothing.
        Some(Err(DeployError::Cut(_))) | None => Ok(None),
        Some(Err(error)) => Err(error),
    }
}

/// Joins [`PLACE`] and a script into one line without comments.
fn script(script: &str) -> String {
    without_comments(&format!("{PLACE}{script}"), " ")
}

fn without_comments(script: &str, separator: &str) -> String {
    let commands = script.lines().filter(|line| !line.starts_with('#'));
    commands.collect::<Vec<_>>().join(separator)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connect::fault_peer::{Fault, Step, channel_to_peer, length};
    use std::fs;
    use std::io::Write as _;
    use std::os::unix::fs::PermissionsExt as _;
    use std::process::{Command, Stdio};

    /// Maximum length of a command, in bytes, that all container engines and shells pass on.
    const LONGEST_COMMAND: usize = 4 << 10;

    #[test]
    fn the_scripts_pass_through_any_shell() {
        for text in [INSTALL, FETCH] {
            let script = script(text);
            assert!(!script.contains(['\'', '\\', '!', '\n']), "{script}");
            for line in PLACE.lines().chain(text.lines()).filter(|line| !line.starts_with('#')) {
                assert!(line.ends_with(';'), "{line}");
            }
            let digits = "0".repeat(64);
            let addresses = ["2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff:21003"; 4].join(" ");
            let long = "/a/directory/of/a/length/that/people/have/below/their/homes";
            let words = [long, "other", &digits[..32], &digits, "12345678", long, &addresses];
            let line = RemoteCommand::Script(&script, &words).line();
            assert!(line.len() <= LONGEST_COMMAND, "{}", line.len());
        }
    }

    /// Runs the installer on this machine as account `user` with the primary group `group`.
    fn answers(tools: &Path, directory: &Path, group: &str) -> String {
        let id = format!(
            "#!/bin/sh\ncase $1 in -un) echo user;; -gn) echo {group};; *) exec /usr/bin/id $1;; esac\n"
        );
        fs::write(tools.join("id"), id).unwrap();
        set_mode(&tools.join("id"), 0o755);
        let mut shell = shell(INSTALL, &[directory.to_str().unwrap(), "only"], tools);
        let mut shell = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let asked = format!("{} 5\n", "0".repeat(32));
        shell.stdin.take().unwrap().write_all(asked.as_bytes()).unwrap();
        String::from_utf8(shell.wait_with_output().unwrap().stdout).unwrap()
    }

    /// Runs a task of a step on this machine, in which `fetch` stands for [`FETCH`], and returns its lines.
    fn booted(cache: &Path, scope: &str, fetch: &str, arch: &str) -> Vec<String> {
        let (boot, cache) = (without_comments(BOOT, "\n"), cache.to_str().unwrap());
        let words =
            ["-c", &boot, "sh", fetch, "192.0.2.1:7", "KEY", cache, scope, "-", "192.0.2.1:7"];
        let mut task = Command::new("sh");
        task.args(words).args([arch, "0f", "sum", "5"]).env("SLURM_PROCID", "3");
        let output = task.env("SLURMD_NODENAME", "n1").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_task_of_a_step_becomes_the_agent() {
        let root = tempfile::tempdir().unwrap();
        let (cache, own) =
            (root.path().join("cache"), format!(".rlaunch-{}", nix::unistd::Uid::effective()));
        for place in [cache.clone(), cache.join(&own)] {
            let build = place.join("0f");
            fs::create_dir_all(&build).unwrap();
            let agent = build.join("rlaunch-worker");
            fs::write(&agent, "#!/bin/sh\necho agent $*\n").unwrap();
            set_mode(&agent, 0o755);
        }
        let arch = Command::new("uname").arg("-m").output().unwrap().stdout;
        let arch = String::from_utf8(arch).unwrap().trim().to_owned();
        let first = format!("rlaunch-install task 3 {arch} n1");
        let started = |place: &str| {
            let place = format!("rlaunch-install {place}");
            vec![first.clone(), place, "agent agent --callback 192.0.2.1:7 KEY 3".to_owned()]
        };
        let nowhere = root.path().join("nowhere");
        for scope in ["any", "only"] {
            assert_eq!(booted(&cache, scope, "exit 1", &arch), started("present"));
        }
        let inside = format!("installed in {}", cache.display());
        let fetch = format!("echo noise; echo rlaunch-install {inside}");
        assert_eq!(booted(&nowhere, "any", &fetch, &arch), started(&inside));
        let at = format!("present at {}/0f/rlaunch-worker", cache.display());
        assert_eq!(
            booted(&nowhere, "only", &format!("echo rlaunch-install {at}"), &arch),
            started(&at)
        );
        // A home without room.
        let full = format!("case $2 in other) {fetch};; *) echo rlaunch-install full home; esac");
        assert_eq!(booted(&nowhere, "any", &full, &arch), started(&inside));
        let failed = booted(&nowhere, "any", "echo rlaunch-install failed why", &arch);
        assert_eq!(failed, [first.clone(), "rlaunch-install failed why".to_owned()]);
        assert_eq!(booted(&cache, "any", &fetch, "other-arch"), [first]);
    }

    /// Returns a shell that runs the script on this machine; programs in `tools` come before others of the same name.
    fn shell(text: &str, words: &[&str], tools: &Path) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", &script(text), "sh"]).args(words);
        shell.env("PATH", format!("{}:/usr/bin:/bin", tools.display()));
        shell
    }

    /// On a full disk the copy of a file comes to an end too early.
    #[test]
    fn a_copy_that_is_not_whole_is_told_from_one_that_never_began() {
        let scratch = tempfile::tempdir().unwrap();
        let (tools, cache) = (scratch.path(), scratch.path().join("cache"));
        let digits = "0".repeat(64);
        let home = cache.to_str().unwrap();
        // Nothing listens on the port.
        let at = "127.0.0.1:1";
        let words = [home, "only", &digits[..32], &digits, "12345678", "-", at];
        let fetched = || {
            let output = shell(FETCH, &words, tools).stdin(Stdio::null()).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        let said = fetched();
        assert!(
            said.starts_with("rlaunch-install failed no rlaunch-worker of this build"),
            "{said}"
        );
        let curl = tools.join("curl");
        fs::write(&curl, "#!/bin/sh\necho half; echo no space >&2; exit 23\n").unwrap();
        set_mode(&curl, 0o755);
        let said = fetched();
        assert!(said.starts_with(&format!("rlaunch-install full {home}/.rlaunch-")), "{said}");
        assert!(said.contains(": no rlaunch-worker of this build"), "{said}");
        assert!(said.contains(", curl 127.0.0.1:1: no space"), "{said}");
        // The words of gzip name no directory.
        let said = answers(tools, &cache, "staff");
        assert!(said.contains(&format!("rlaunch-install failed {home}/.rlaunch-")), "{said}");
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_directory_below_one_that_others_may_change_takes_no_agent() {
        let scratch = tempfile::tempdir().unwrap();
        let scratch = scratch.path();
        let (upper, project) = (scratch.join("upper"), scratch.join("upper/project"));
        let (agents, link) = (project.join("agents"), scratch.join("link"));
        fs::create_dir_all(&agents).unwrap();
        std::os::unix::fs::symlink(&project, &link).unwrap();
        for changed in [&upper, &project] {
            for directory in [&agents, &project.join("new/agents"), &link.join("agents")] {
                for (mode, group, is_taken) in [
                    (0o755, "staff", true),
                    (0o1777, "staff", true),
                    (0o775, "user", true),
                    (0o2775, "staff", false),
                    (0o777, "user", false),
                ] {
                    set_mode(changed, mode);
                    let said = answers(scratch, directory, group);
                    let refused = format!("failed others may change {}: owner", changed.display());
                    let case = format!("{directory:?} below {changed:?} {mode:o} {group}: {said}");
                    assert_eq!(said.contains("rlaunch-install want"), is_taken, "{case}");
                    assert_eq!(said.contains(&refused), !is_taken, "{case}");
                }
                set_mode(changed, 0o755);
            }
        }
    }

    /// Many sites give all users the same primary group, so a directory that this group may write to is not
    /// safe.
    #[test]
    fn a_group_of_several_accounts_is_not_the_accounts_own() {
        let scratch = tempfile::tempdir().unwrap();
        let agents = scratch.path().join("agents");
        fs::create_dir(&agents).unwrap();
        set_mode(&agents, 0o2775);
        let refused = format!("failed others may change {}: owner", agents.display());
        let said = answers(scratch.path(), &agents, "staff");
        assert!(said.contains(&refused) && !said.contains("want"), "{said}");
        let said = answers(scratch.path(), &agents, "user");
        assert!(said.contains("rlaunch-install want"), "{said}");
    }

    /// Runs an installation over a channel whose peer has a fault after some bytes of the exchange. Returns the
    /// result, and the seconds that it took.
    async fn install_by(
        store: &AgentStore,
        bytes: usize,
        fault: Fault,
    ) -> (Result<StdinInstall, DeployError>, u64) {
        let callbacks = callbacks();
        let installer = installer(store, &callbacks);
        let channel = channel_to_peer(&exchange(store), bytes, fault);
        let began = tokio::time::Instant::now();
        let mut deadline = Deadline::after(INSTALL_TIMEOUT);
        let installing = installer.by_stdin(channel, &mut deadline);
        let done = tokio::time::timeout(Duration::from_secs(3600), installing).await;
        let done = done.unwrap_or_else(|_| panic!("{fault:?} after {bytes} bytes: no end"));
        (done, began.elapsed().as_secs())
    }

    fn exchange(store: &AgentStore) -> [Step; 5] {
        let file = store.native().unwrap();
        let says = |line: &str| Step::Says(format!("rlaunch-install {line}\n").into_bytes());
        [
            says(&format!("host Linux {}", std::env::consts::ARCH)),
            Step::Hears(format!("{} {}\n", file.hash, file.size).len()),
            says("want raw"),
            Step::Hears(usize::try_from(file.size).unwrap()),
            says("installed"),
        ]
    }

    #[tokio::test(start_paused = true)]
    async fn an_installation_with_a_fault_at_any_byte_ends_in_time_and_says_what_happened() {
        let agent = tempfile::NamedTempFile::new().unwrap();
        // The store reads no more of the file than the head of its format.
        let own = fs::read(std::env::current_exe().unwrap()).unwrap();
        fs::write(agent.path(), &own[..300]).unwrap();
        let store = AgentStore::new(Some(agent.path().to_owned()));
        let steps = exchange(&store);
        let end = |steps: &[Step]| length(steps);
        let (begun, asked, wanted) = (end(&steps[..1]), end(&steps[..3]), end(&steps));
        for fault in [Fault::Stalls, Fault::Closes] {
            for bytes in 0..wanted {
                let (done, took) = install_by(&store, bytes, fault).await;
                let case = format!("{fault:?} after {bytes} bytes: {:?}", done.as_ref().err());
                let stalls = fault == Fault::Stalls;
                let late = |what: &str, seconds: u64, error: &DeployError| {
                    error.to_string().contains(&format!("no {what} within {seconds} s"))
                };
                match done {
                    Err(error @ DeployError::Silent { .. }) if stalls && bytes < begun => {
                        assert!(late(FIRST_LINE, 30, &error), "{case}");
                        assert!(error.hint("b").unwrap().contains("stdout elsewhere"), "{case}");
                    }
                    Err(error) if stalls && bytes >= asked => {
                        assert!(late(TRANSFER, 120, &error), "{case}");
                    }
                    Err(DeployError::Shell(_)) => assert!(bytes < begun, "{case}"),
                    Err(DeployError::Cut(_)) => assert!(bytes >= asked, "{case}"),
                    // It is not known how much of the hash the host has read, so its stdin counts as silent.
                    Ok(StdinInstall::Silent(_)) => {
                        assert!((begun..asked).contains(&bytes), "{case}");
                    }
                    Ok(StdinInstall::Installed(_)) | Err(_) => panic!("{case}"),
                }
                let limit = match bytes {
                    _ if !stalls => 0,
                    _ if bytes < begun => FIRST_LINE_TIMEOUT.as_secs(),
                    _ if bytes < asked => REPLY_TIMEOUT.as_secs(),
                    _ => INSTALL_TIMEOUT.as_secs(),
                };
                assert_eq!(took, limit, "{case}");
            }
        }
        // The shell is waited for, but it does not hold the job up.
        for (fault, expected) in [(Fault::Closes, 0), (Fault::Stalls, 1)] {
            let (done, took) = install_by(&store, wanted, fault).await;
            assert!(matches!(done, Ok(StdinInstall::Installed(_))));
            assert_eq!(took, expected, "{fault:?}");
        }
    }

    #[tokio::test]
    async fn a_host_without_room_is_told_from_one_that_cannot_call() {
        let store = AgentStore::new(Some(std::env::current_exe().unwrap()));
        let (file, callbacks) = (store.native().unwrap(), callbacks());
        let installer = installer(&store, &callbacks);
        for is_full in [true, false] {
            let word = if is_full { "full" } else { "failed" };
            let steps = [Step::Says(format!("rlaunch-install {word} curl: (23)\n").into_bytes())];
            let channel = channel_to_peer(&steps, length(&steps), Fault::Closes);
            let mut deadline = Deadline::after(INSTALL_TIMEOUT);
            match installer.by_fetching(channel, &file, None, &mut deadline).await {
                Err(DeployError::Full { cause }) if is_full => assert_eq!(cause, "curl: (23)"),
                Err(DeployError::NoFetch { cause, .. }) if !is_full => {
                    assert_eq!(cause, "curl: (23)");
                }
                other => panic!("{word}: {:?}", other.err()),
            }
        }
    }

    fn installer<'a>(store: &'a AgentStore, callbacks: &'a Callbacks) -> Installer<'a> {
        Installer { store, directory: "~/x", allow_other: true, callbacks, shown_hosts: None }
    }

    fn callbacks() -> Callbacks {
        Callbacks::new(
            rlaunch_plan::hosts::addresses::AddressConstraints::default(),
            rlaunch_bootstrap::job::PortRange { first: 21000, last: 21511 },
        )
    }

    #[test]
    fn a_host_says_where_its_agent_is() {
        let exe = std::env::current_exe().unwrap();
        let store = AgentStore::new(Some(exe));
        let file = store.native().unwrap();
        let callbacks = callbacks();
        let installer = installer(&store, &callbacks);
        let build = || file.hash.clone();
        let in_cache =
            |cache: &str| AgentLocation::InCache { cache: cache.to_owned(), build: build() };
        let usual = in_cache("~/x");
        for (place, expected) in [
            ("", usual.clone()),
            ("in .rlaunch-7", AgentLocation::InShared { directory: "~/x".into(), build: build() }),
            ("in .rlaunch-7;reboot", usual.clone()),
            ("in .rlaunch-+7", usual.clone()),
            ("in /tmp/.rlaunch-0", in_cache("/tmp/.rlaunch-0")),
            ("at /usr/bin/rlaunch-worker", AgentLocation::At("/usr/bin/rlaunch-worker".into())),
            // A host cannot inject text into a command.
            ("at /bin/x;reboot", usual.clone()),
            ("in $(reboot)", usual),
        ] {
            assert_eq!(installer.program(&file, place), expected);
        }
    }
}
