//! Taking the agent to a host that lacks it: through the shell's stdin, or, where that brings
//! nothing, by having the host get it.

use super::deliver::{DeliverError, MAX_ANSWER, check_directory};
use super::store::{AgentFile, Store};
use crate::connect::callback::Callbacks;
use crate::connect::channel::{AgentChannel, Incoming, Reader};
use crate::connect::route::{Program, RemoteCommand, Route};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// What both scripts begin with.
const PLACE: &str = include_str!("place.sh");
const INSTALL: &str = include_str!("install.sh");
const FETCH: &str = include_str!("fetch.sh");
/// How long the agent may take to travel.
const INSTALL_TIMEOUT: Duration = Duration::from_secs(120);
/// How long the installer may take to say whether it wants the agent. One that has no stdin may wait
/// for it for ever.
const FIRST_ANSWER: Duration = Duration::from_secs(8);
/// How long a shell that is sent nothing may take to end.
const FAREWELL: Duration = Duration::from_secs(1);

/// The agent on a host.
pub(super) struct Placed {
    pub(super) program: Program,
    /// Bytes that travelled.
    pub(super) sent: Option<usize>,
}

/// What takes it there.
pub(super) struct Installer<'a> {
    pub(super) store: &'a Store,
    /// The cache on the hosts, as a shell there reads it.
    pub(super) directory: &'a str,
    /// Another will do where nothing can be kept in that one.
    pub(super) or_another: bool,
    pub(super) callbacks: &'a Callbacks,
}

/// What became of the way through stdin.
enum ByStdin {
    Placed(Placed),
    /// It brings nothing.
    Silent(Arc<AgentFile>),
}

impl Installer<'_> {
    /// Takes the right agent to the host, unless it is there by now.
    pub(super) async fn install(&self, route: &Route) -> Result<Placed, DeliverError> {
        let installing = async {
            match self.by_stdin(route).await? {
                ByStdin::Placed(placed) => Ok(placed),
                ByStdin::Silent(file) => self.by_fetching(route, &file).await,
            }
        };
        let late = |_| DeliverError::Install {
            cause: format!("not done within {} s", INSTALL_TIMEOUT.as_secs()),
        };
        timeout(INSTALL_TIMEOUT, installing).await.map_err(late)?
    }

    async fn by_stdin(&self, route: &Route) -> Result<ByStdin, DeliverError> {
        let (script, words) = (script(INSTALL), [self.directory, self.scope()]);
        let channel = route.exec(&RemoteCommand::Script(&script, &words)).await?;
        let AgentChannel { reader, mut writer } = channel;
        let mut answers = Answers::of(reader);
        let file = match self.file_for(answers.next().await?) {
            Ok(file) => file,
            Err(error) => {
                // Its shell ends with its input, and is gone before rlaunch is.
                let ends =
                    async { while writer.end().await.is_ok() && answers.next().await.is_ok() {} };
                let _ = timeout(FAREWELL, ends).await;
                return Err(error);
            }
        };
        let size = file.size;
        let asked = writer.send(format!("{} {size}\n", file.hash).into()).await;
        let answer = match asked {
            Ok(()) => timeout(FIRST_ANSWER, answers.next()).await.ok(),
            Err(_) => None,
        };
        let mut answer = match answer {
            Some(Ok(answer)) => answer,
            // It has introduced itself, and read nothing.
            Some(Err(DeliverError::Shell(_))) | None => {
                let _ = writer.end().await;
                return Ok(ByStdin::Silent(file));
            }
            Some(Err(error)) => return Err(error),
        };
        let mut sent = None;
        loop {
            match answer.split_once(' ').unwrap_or((&answer, "")) {
                ("present" | "installed", place) => {
                    let program = self.program(&file, place);
                    return Ok(ByStdin::Placed(Placed { program, sent }));
                }
                ("want", how) => {
                    let payload = file.payload(how == "gzip")?;
                    sent = Some(payload.len());
                    let sending = async {
                        writer.send(payload).await?;
                        writer.end().await
                    };
                    // A host that gives up, its disk being full, takes no more of it.
                    answer = tokio::select! {
                        early = answers.next() => early?,
                        _ = sending => answers.next().await?,
                    };
                }
                ("failed", cause) => {
                    return Err(DeliverError::Install { cause: cause.to_owned() });
                }
                _ => return Err(DeliverError::Shell(answer)),
            }
        }
    }

    /// Has the host get the agent, or use what lies there.
    async fn by_fetching(
        &self,
        route: &Route,
        file: &Arc<AgentFile>,
    ) -> Result<Placed, DeliverError> {
        let addresses = route.addresses();
        let at = self.callbacks.lend(file, addresses.map(|(local, _)| local)).join(" ");
        let script = script(FETCH);
        let (size, given) = (file.size.to_string(), self.on_host());
        let words = [self.directory, self.scope(), &file.hash, &file.sha256, &size, given, &at];
        let channel = route.exec(&RemoteCommand::Script(&script, &words)).await?;
        let mut answers = Answers::of(channel.reader);
        let answer = answers.next().await?;
        let at = |place| self.program(file, place);
        match answer.split_once(' ').unwrap_or((&answer, "")) {
            ("present", place) => Ok(Placed { program: at(place), sent: None }),
            ("installed", place) => {
                Ok(Placed { program: at(place), sent: usize::try_from(file.size).ok() })
            }
            ("failed", cause) => Err(self.no_fetch(cause, addresses.map(|(_, host)| host))),
            _ => Err(DeliverError::Shell(answer)),
        }
    }

    fn no_fetch(&self, cause: &str, from: Option<IpAddr>) -> DeliverError {
        DeliverError::NoFetch { cause: cause.to_owned(), from, ports: self.callbacks.ports() }
    }

    /// The agent for a host that introduced itself as `host SYSTEM MACHINE`.
    fn file_for(&self, answer: String) -> Result<Arc<AgentFile>, DeliverError> {
        match answer.split_ascii_whitespace().collect::<Vec<_>>()[..] {
            ["host", "Linux", arch] => Ok(self.store.for_arch(arch)?),
            ["host", system, ..] => Err(DeliverError::System { system: system.to_owned() }),
            _ => Err(DeliverError::Shell(answer)),
        }
    }

    /// Whether another directory may be used.
    fn scope(&self) -> &'static str {
        if self.or_another { "any" } else { "only" }
    }

    /// What `--agent` names, which the host may have as well.
    fn on_host(&self) -> &str {
        let given = self.store.given().and_then(Path::to_str);
        given.filter(|path| check_directory(path).is_ok()).unwrap_or("-")
    }

    /// Where the agent is by the host's own words: `in DIRECTORY`, `in .rlaunch-UID` below the named one,
    /// `at PATH`, or nothing where it is where it should be. In a cache its owner is looked at when it is
    /// started, as at any other start: the host's words are from before that.
    fn program(&self, file: &AgentFile, place: &str) -> Program {
        let is_plain = |path: &&str| check_directory(path).is_ok();
        let is_own = |name: &&str| {
            let number = name.strip_prefix(".rlaunch-");
            number.is_some_and(|uid| uid.parse::<u32>().is_ok_and(|n| n.to_string() == uid))
        };
        match place.split_once(' ') {
            Some(("in", own)) if is_own(&own) => {
                Program::InShared { directory: self.directory.to_owned(), build: file.hash.clone() }
            }
            Some(("in", directory)) if is_plain(&directory) => cached(directory, file),
            Some(("at", path)) if is_plain(&path) => Program::At(path.to_owned()),
            _ => cached(self.directory, file),
        }
    }
}

fn cached(cache: &str, file: &AgentFile) -> Program {
    Program::InCache { cache: cache.to_owned(), build: file.hash.clone() }
}

/// The installer's lines, without whatever else the shell prints.
struct Answers {
    reader: Reader,
    text: String,
    /// Lines that were none of the installer's: they say why, when it does not answer.
    noise: String,
}

impl Answers {
    fn of(reader: Reader) -> Answers {
        Answers { reader, text: String::new(), noise: String::new() }
    }

    /// The next answer. Safe to cancel.
    async fn next(&mut self) -> Result<String, DeliverError> {
        const MARK: &str = "rlaunch-install ";
        loop {
            while let Some((line, rest)) = self.text.split_once('\n') {
                let answer = line.trim_end().split_once(MARK).map(|(_, answer)| answer.to_owned());
                let line_was_noise = answer.is_none();
                let rest = rest.to_owned();
                if line_was_noise {
                    tracing::debug!("before the installer: {line}");
                    self.noise.push_str(line);
                    self.noise.push('\n');
                    if self.noise.len() > 2 * MAX_ANSWER {
                        self.noise.drain(..self.noise.ceil_char_boundary(MAX_ANSWER));
                    }
                }
                self.text = rest;
                if let Some(answer) = answer {
                    return Ok(answer);
                }
            }
            match self.reader.next().await {
                Some(Incoming::Data(bytes) | Incoming::Diagnostics(bytes))
                    if self.text.len() < MAX_ANSWER =>
                {
                    self.text.push_str(&String::from_utf8_lossy(&bytes));
                }
                _ => {
                    let words = std::mem::take(&mut self.noise) + &std::mem::take(&mut self.text);
                    return Err(DeliverError::Shell(words));
                }
            }
        }
    }
}

/// A script behind what both begin with, without comments and as one line.
fn script(script: &str) -> String {
    let lines = PLACE.lines().chain(script.lines());
    let commands = lines.filter(|line| !line.starts_with('#'));
    commands.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Write as _;
    use std::os::unix::fs::PermissionsExt as _;
    use std::process::{Command, Stdio};

    /// The most that some containers' engines and shells are known to pass on, in bytes.
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
            let words = [long, "only", &digits[..32], &digits, "12345678", long, &addresses];
            let line = RemoteCommand::Script(&script, &words).line();
            assert!(line.len() <= LONGEST_COMMAND, "{}", line.len());
        }
    }

    /// Answers of the installer on this machine where the account is called `user` and its group `group`.
    fn answers(tools: &Path, directory: &Path, group: &str) -> String {
        let id = format!(
            "#!/bin/sh\ncase $1 in -un) echo user;; -gn) echo {group};; *) exec /usr/bin/id $1;; esac\n"
        );
        fs::write(tools.join("id"), id).unwrap();
        set_mode(&tools.join("id"), 0o755);
        let (script, directory) = (script(INSTALL), directory.to_str().unwrap());
        let mut shell = Command::new("sh");
        shell.args(["-c", &script, "sh", directory, "only"]);
        shell.env("PATH", format!("{}:/usr/bin:/bin", tools.display()));
        shell.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = shell.spawn().unwrap();
        let asked = format!("{} 5\n", "0".repeat(32));
        shell.stdin.take().unwrap().write_all(asked.as_bytes()).unwrap();
        String::from_utf8(shell.wait_with_output().unwrap().stdout).unwrap()
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

    /// Many sites give all their users one primary group.
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

    #[test]
    fn a_host_says_where_its_agent_is() {
        let exe = std::env::current_exe().unwrap();
        let store = Store::new(Some(exe));
        let file = store.native().unwrap();
        let callbacks = Callbacks::new(
            crate::hosts::addresses::Choice::default(),
            rlaunch_bootstrap::job::PortRange { first: 21000, last: 21511 },
        );
        let installer =
            Installer { store: &store, directory: "~/x", or_another: true, callbacks: &callbacks };
        let build = || file.hash.clone();
        let in_cache = |cache: &str| Program::InCache { cache: cache.to_owned(), build: build() };
        let usual = in_cache("~/x");
        for (place, expected) in [
            ("", usual.clone()),
            ("in .rlaunch-7", Program::InShared { directory: "~/x".into(), build: build() }),
            ("in .rlaunch-7;reboot", usual.clone()),
            ("in .rlaunch-+7", usual.clone()),
            ("in /tmp/.rlaunch-0", in_cache("/tmp/.rlaunch-0")),
            ("at /usr/bin/rlaunch-worker", Program::At("/usr/bin/rlaunch-worker".into())),
            // Nothing that a host says gets into a command.
            ("at /bin/x;reboot", usual.clone()),
            ("in $(reboot)", usual),
        ] {
            assert_eq!(installer.program(&file, place), expected);
        }
    }
}
