//! `--container`: a running container of the same name on every host, or an image from which containers are started, one
//! per agent, which end with their agent.
//!
//! The executable of an agent in a new container is cached on the host and mounted read-only. A script in the container first
//! copies it to a writable directory, because the library for ranks is stored in the same directory.

use super::command::{AgentLocation, HOME};
use super::rsh::quoted_output;
use rlaunch_bootstrap::env::redacted;
use rlaunch_bootstrap::job::ExitStatus;
use rlaunch_console::deadline::Late;
use rlaunch_text::printable;
use std::str::FromStr;
use strum::VariantNames;

/// Placeholder in `--container-exec`. It stands for the name of a running container or, with an image, for
/// the arguments that name the new container and the image.
const PLACEHOLDER: &str = "{name}";
/// Characters that names of images may have, but not names of containers. They precede a repository, a tag
/// or a digest.
const IMAGE_CHARACTERS: [char; 3] = ['/', ':', '@'];

/// Texts, in lower case, by which container engines report that the host lacks the image.
const NO_IMAGE: &[&str] =
    &["no such image", "image not known", "did not resolve to an alias", "unable to find image"];

/// Texts, in lower case, of lines by which engines report that they cannot start or enter a container.
const ENGINE_ERRORS: &[&str] =
    &["error response from daemon", "oci runtime", "crun: ", "runc: ", "level=fatal", "fata["];

/// Container or image named by `--container`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    engine: ContainerEngine,
    name: String,
    /// Command of `--container-exec`, which enters or starts the container.
    enter: Option<String>,
}

/// Method by which an agent is started in a container.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ContainerEntry<'a> {
    /// The login itself leads into the container, without a further command.
    Login,
    /// A shell on the host executes this command, followed by the command for the agent.
    Exec(String),
    /// A new container is started for the agent.
    Run(Image<'a>),
}

/// Container engine, the KIND in `--container KIND:NAME`.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, strum::EnumString, strum::IntoStaticStr, strum::VariantNames,
)]
#[strum(serialize_all = "lowercase")]
pub enum ContainerEngine {
    Docker,
    Podman,
    Nerdctl,
    Toolbox,
    /// No engine: a forced command of the host's sshd enters the container.
    Forced,
    /// Any other engine, used through `--container-exec`.
    Other,
}

/// Error in `--container` or `--container-exec`.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContainerOptionError {
    #[error("--container other:{0} needs --container-exec, the command that enters it")]
    NoCommand(String),
    #[error("--container forced:{0} is entered by the login: --container-exec has no use")]
    Forced(String),
    #[error("--container-exec is for --container")]
    NoContainer,
    #[error(
        "--container-exec `{0}`: words of letters, digits and /._-+@=,:% for any shell, and {PLACEHOLDER}"
    )]
    Command(String),
    #[error("--container-exec `{0}` starts no image: it needs `run` and {PLACEHOLDER}")]
    NoRun(String),
}

/// Reason why no agent was started in a container.
#[derive(Debug, thiserror::Error)]
pub enum ContainerError {
    #[error("{tool} refuses: permission denied on its socket")]
    Socket { tool: &'static str },
    #[error("{tool} cannot reach its daemon there")]
    Daemon { tool: &'static str },
    #[error("there is no container {name}")]
    Unknown { tool: &'static str, name: String },
    #[error("the container {name} is not running")]
    Stopped { tool: &'static str, name: String },
    #[error("{tool} is not installed there, or not on the PATH of a login without a terminal")]
    NoTool { tool: String },
    #[error("{place} has no `sh`")]
    NoShell { place: String },
    #[error("{tool} fails: {said}")]
    Engine { tool: &'static str, said: String },
    #[error("{tool} has started no agent within {} s{}", late.limit.as_secs(), quoted_output(said))]
    Silent { tool: String, by_sudo: bool, late: Late, said: String },
    #[error("there is no image {name}")]
    NoImage { tool: &'static str, name: String },
    #[error(
        "the login ends on the host and not in the container {name}: there is neither /.dockerenv \
         nor /run/.containerenv"
    )]
    NotInside { name: String, forced: bool },
}

impl ContainerError {
    /// Returns advice for the user; `host` is the host's name in it.
    pub fn hint(&self, host: &str) -> Option<String> {
        match self {
            ContainerError::Socket { tool } => Some(format!(
                "on {host}: sudo usermod -aG {tool} $USER; or --container-exec 'sudo {tool} exec \
                 -i {PLACEHOLDER}'"
            )),
            ContainerError::Daemon { tool } => {
                Some(format!("on {host}: sudo systemctl start {tool}"))
            }
            ContainerError::Unknown { tool, .. } => Some(format!(
                "`{tool} ps -a` on {host} lists them; root's own are seen by `sudo {tool} ps -a` \
                 and entered by --container-exec 'sudo {tool} exec -i {PLACEHOLDER}'"
            )),
            ContainerError::Stopped { tool, name } => {
                Some(format!("on {host}: {tool} start {name}"))
            }
            ContainerError::NoTool { tool } => Some(format!(
                "`ssh {host} command -v {tool}` should print its path; --container-exec can name \
                 the path"
            )),
            ContainerError::NoShell { .. } => Some("its image needs a shell".into()),
            ContainerError::Engine { tool, .. } => Some(format!(
                "this is {tool}'s own error: on {host}, `{tool} run` and `{tool} exec` of any command probably \
                 end with it too; --container-exec starts or enters the container with other options"
            )),
            ContainerError::Silent { tool, by_sudo, .. } => {
                let left = if *by_sudo {
                    format!(
                        "; where sudo permits no `kill`, `sudo pkill -KILL {tool}` ends clients that are left"
                    )
                } else {
                    String::new()
                };
                Some(format!(
                    "`{tool} info` on {host} shows whether its engine answers; an entrypoint of the image \
                     that waits for something keeps the agent from its start too{left}"
                ))
            }
            ContainerError::NoImage { tool, name } => Some(format!(
                "on {host}: {tool} pull {name}; root's own images are used by --container-exec \
                 'sudo {tool} run --rm -i --network host --ipc host {PLACEHOLDER}'"
            )),
            ContainerError::NotInside { name, forced: true } => Some(format!(
                "before the key in ~/.ssh/authorized_keys of {host}: command=\"docker exec {name} \
                 /bin/sh -c \\\"$SSH_ORIGINAL_COMMAND\\\"\",no-port-forwarding,no-agent-forwarding,\
                 no-X11-forwarding"
            )),
            ContainerError::NotInside { .. } => None,
        }
    }
}

impl ContainerEngine {
    /// Tells whether the engine has the commands `exec` and `run` with the options of docker.
    pub fn is_like_docker(self) -> bool {
        matches!(self, ContainerEngine::Docker | ContainerEngine::Podman | ContainerEngine::Nerdctl)
    }

    /// Returns the name of the engine's program; `docker` if the engine is unknown.
    pub fn command(self) -> &'static str {
        match self {
            ContainerEngine::Forced | ContainerEngine::Other => "docker",
            known => known.into(),
        }
    }
}

/// Tells whether a text has only characters that engines allow in the name of a container.
pub fn is_container_name(text: &str) -> bool {
    has_only(text, &['_', '.', '-'])
}

/// Tells whether a text begins with an ASCII letter or digit, and contains only ASCII letters, digits and
/// the characters in `allowed`.
fn has_only(text: &str, allowed: &[char]) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || allowed.contains(&c))
}

impl FromStr for Container {
    type Err = String;

    /// Parses `KIND:NAME` or `KIND:IMAGE`. Only characters that engines allow are accepted, since the name
    /// becomes part of shell commands.
    fn from_str(text: &str) -> Result<Container, String> {
        let (kind, name) = text.split_once(':').ok_or("KIND:NAME, as in docker:mpi")?;
        let engine: ContainerEngine = kind
            .parse()
            .map_err(|_| format!("a KIND among {}", ContainerEngine::VARIANTS.join(", ")))?;
        if !has_only(name, &[&['_', '.', '-'], &IMAGE_CHARACTERS[..]].concat()) {
            return Err(
                "a NAME of letters, digits and _.-, or an IMAGE with / or : or @".to_owned()
            );
        }
        let container = Container { engine, name: name.to_owned(), enter: None };
        if container.is_image() && !engine.is_like_docker() {
            return Err(format!("{kind} enters a container; docker, podman and nerdctl start one"));
        }
        Ok(container)
    }
}

impl Container {
    /// Combines `--container` and `--container-exec`. Returns an error if one does not fit the other.
    pub fn from_args(
        container: Option<Container>,
        enter: Option<String>,
    ) -> Result<Option<Container>, ContainerOptionError> {
        let Some(container) = container else {
            return if enter.is_none() { Ok(None) } else { Err(ContainerOptionError::NoContainer) };
        };
        let name = container.name.clone();
        match (container.engine, &enter) {
            (ContainerEngine::Other, None) => return Err(ContainerOptionError::NoCommand(name)),
            (ContainerEngine::Forced, Some(_)) => return Err(ContainerOptionError::Forced(name)),
            (_, Some(command)) => check_command(command)?,
            (_, None) => {}
        }
        let starts = |command: &String| command.contains(" run ") && command.contains(PLACEHOLDER);
        if container.is_image()
            && let Some(command) = enter.as_ref().filter(|command| !starts(command))
        {
            return Err(ContainerOptionError::NoRun(redacted(command)));
        }
        Ok(Some(Container { enter, ..container }))
    }

    /// Tells whether `--container` names an image, from which new containers are started.
    pub fn is_image(&self) -> bool {
        self.name.contains(IMAGE_CHARACTERS)
    }

    /// Returns the method by which an agent is started in the container.
    pub(super) fn entry(&self) -> ContainerEntry<'_> {
        let name = &self.name;
        match (&self.enter, self.engine) {
            (run, _) if self.is_image() => ContainerEntry::Run(Image {
                tool: self.engine.command(),
                name,
                run: run.as_deref(),
                keeps_limits: false,
            }),
            (Some(command), _) => ContainerEntry::Exec(command.replace(PLACEHOLDER, name)),
            (None, ContainerEngine::Toolbox) => {
                ContainerEntry::Exec(format!("toolbox run -c {name}"))
            }
            (None, ContainerEngine::Forced | ContainerEngine::Other) => ContainerEntry::Login,
            (None, _) => ContainerEntry::Exec(format!("{} exec -i {name}", self.engine.command())),
        }
    }

    /// Returns the command that runs `enter`, which enters the container. A command of an unknown engine may become the
    /// agent itself, so it is run as it is; other engines have clients, which end with the connection.
    pub(super) fn client(&self, enter: String) -> String {
        if self.engine == ContainerEngine::Other {
            return enter;
        }
        format!("sh -c '{WATCH} \"$@\"; {WATCHED}' sh {enter}")
    }

    /// Returns the command that starts or enters the container; `None` if the login leads into it.
    fn engine_command(&self) -> Option<String> {
        match self.entry() {
            ContainerEntry::Login => None,
            ContainerEntry::Exec(enter) => Some(enter),
            ContainerEntry::Run(image) => Some(image.run.unwrap_or(image.tool).to_owned()),
        }
    }

    /// Recognises an error of the container engine in `output`, the output of a command that ended without an
    /// agent; `None` if there is none. `ended` is the command's exit status, if known.
    pub fn explain(&self, ended: Option<ExitStatus>, output: &str) -> Option<ContainerError> {
        let command = self.engine_command()?;
        let (tool, name) = (self.engine.command(), self.name.clone());
        let said = self.engine_error(output).filter(|_| ended != Some(ExitStatus::Code(0)));
        let is_image = self.is_image();
        let output = output.to_lowercase();
        let has = |words: &[&str]| words.iter().any(|word| output.contains(word));
        // The program that may be missing is the first word of the command, which may be sudo.
        let first = command.split(' ').next().unwrap_or_default().to_owned();
        let missing = has(&[": not found", "command not found", "unknown command"]);
        let inside = has(&["oci runtime", "executable file not found", "exec failed"]);
        let no_image = has(NO_IMAGE) || has(&["image \""]) && has(&["is not available"]);
        // From the precise to the general: the lines of most of these errors are errors of the engine as well, and a
        // missing program is told by words that occur in others.
        if has(&["permission denied"]) && has(&[".sock", "daemon socket"]) {
            Some(ContainerError::Socket { tool })
        } else if has(&["cannot connect to the docker daemon", "is the docker daemon running"]) {
            Some(ContainerError::Daemon { tool })
        } else if is_image && no_image {
            Some(ContainerError::NoImage { tool, name })
        } else if !is_image
            && (has(&["no such container", "no container with name", "no such object"])
                || output.contains(&format!("container {} not found", name.to_lowercase())))
        {
            Some(ContainerError::Unknown { tool, name })
        } else if !is_image
            && has(&["is not running", "container state improper", "is paused", "is stopped"])
        {
            Some(ContainerError::Stopped { tool, name })
        } else if inside && has(&["\"sh\"", "`sh`"]) && has(&["not found", "no such file"]) {
            let what = if is_image { "image" } else { "container" };
            Some(ContainerError::NoShell { place: format!("the {what} {name}") })
        } else if let Some(said) = said {
            Some(ContainerError::Engine { tool, said })
        } else if missing && output.contains(&first) && ended != Some(ExitStatus::Code(0)) {
            Some(ContainerError::NoTool { tool: first })
        } else {
            None
        }
    }

    /// Returns the error of an engine by which no agent has come in time, with what it has `said`; `None` if the login leads
    /// into the container.
    pub(super) fn silence(&self, late: Late, said: &str) -> Option<ContainerError> {
        let command = self.engine_command()?;
        let mut words = command.split(' ').filter(|word| *word != "sudo");
        let tool = words.next().unwrap_or_default().to_owned();
        let by_sudo = command.starts_with("sudo ");
        Some(ContainerError::Silent { tool, by_sudo, late, said: said.to_owned() })
    }

    /// Finds the engine's own error in an output, without the parts of the engine through which it came.
    fn engine_error(&self, output: &str) -> Option<String> {
        let is_podmans = matches!(self.engine, ContainerEngine::Podman | ContainerEngine::Toolbox);
        let is_error = |line: &&str| {
            let lower = line.to_lowercase();
            ENGINE_ERRORS.iter().any(|known| lower.contains(known))
                || is_podmans && line.starts_with("Error: ")
        };
        let line = output.lines().map(str::trim).find(is_error)?;
        let inner = line.rsplit_once("create failed: ").map_or(line, |(_, inner)| inner);
        Some(printable::first_line(inner))
    }

    /// Tells whether the container is known to have a marker file of its engine, by which an agent
    /// recognises that it runs in a container.
    fn has_marker(&self) -> bool {
        let own = self.enter.is_none();
        own && matches!(
            self.engine,
            ContainerEngine::Docker
                | ContainerEngine::Podman
                | ContainerEngine::Toolbox
                | ContainerEngine::Forced
        )
    }

    /// Checks that the agent runs in the container. `is_in_container` is what the agent reported.
    ///
    /// # Errors
    ///
    /// Returns an error if the agent runs on the host itself.
    pub fn check_inside(&self, is_in_container: bool) -> Result<(), ContainerError> {
        if is_in_container || !self.has_marker() {
            return Ok(());
        }
        let forced = self.engine == ContainerEngine::Forced;
        Err(ContainerError::NotInside { name: self.name.clone(), forced })
    }
}

/// Checks that `--container-exec` has only characters that no shell interprets.
fn check_command(command: &str) -> Result<(), ContainerOptionError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || " /._-+@=,:%".contains(c);
    let bare = command.replace(PLACEHOLDER, "");
    let usable = !command.trim().is_empty() && bare.chars().all(plain);
    if usable { Ok(()) } else { Err(ContainerOptionError::Command(redacted(command))) }
}

/// Tells whether an engine says that it may not raise a limit, as `--ulimit` asks. The engine needs `CAP_SYS_RESOURCE` for
/// that, which rootless engines and those in containers lack.
pub(super) fn is_limit_refused(output: &str) -> bool {
    let output = output.to_lowercase();
    let has = |words: &str| output.contains(words);
    has("rlimit") && (has("not permitted") || has("permission denied"))
}

/// Shell code for the host, before the client of a container engine. A client whose engine hangs does not notice that the
/// launcher has gone. The code kills its process group, in which sshd has put nothing else, if the process that started
/// the shell ends within 150 s, in which every agent was sent and has started, or was given up. What sudo has started, only
/// sudo can kill.
const WATCH: &str = "(n=0; while [ $((n+=1)) -le 75 ] && sleep 2; do p=; while read -r k p x; do case $k in PPid:) \
    break; esac; done </proc/$$/status; case $p in $PPID) ;; \"\") exit;; *) case $1 in sudo) \
    sudo -n kill -9 -- -$$;; esac; kill -9 -$$; exit;; esac; done) \
    </dev/null >/dev/null 2>&1 &";
/// Shell code for the host, after the client: ends [`WATCH`], and with the client's exit status.
const WATCHED: &str = "s=$?; exec 2>/dev/null; trap \"\" TERM; kill -15 -$$ && wait; exit $s";

/// Directory in the container at which the host's directory with the agent is mounted.
const MOUNT: &str = "/opt/rlaunch";

/// Last line that the script of [`Image::removal_script`] prints on success.
pub(crate) const CONTAINER_GONE: &str = "its container is gone";

/// Shell code for the host. If the agent at the path `$a` is missing, the code fails, so that the launcher
/// installs the agent; otherwise it sets `$a` to the agent's directory.
const LOOK: &str = "[ -x \"$a\" ] || { echo there is no $a >&2; exit 127; }; a=${a%/*};";
/// Shell code for the host. It fails unless the account owns the agent at the path `$a` and the two
/// directories above it.
const OWN: &str = "[ -O \"${a%/*/*}\" -a -O \"${a%/*}\" -a -O \"$a\" ] || exit 127;";
/// Shell code for the host. It inserts the account's cache, `.rlaunch-UID`, into the path `$a` of an agent
/// in a directory that accounts share.
const SHARED: &str = "case $a in \"~/\"*) a=\"$HOME/${a#??}\";; esac; f=${a##*/}; a=${a%/*}; \
    a=${a%/*}/.rlaunch-$(id -u)/${a##*/}/$f;";

/// Shell code for the container that copies the agent and executes the copy. `$1` is the name of the build,
/// further arguments are passed to the agent.
const INSIDE: &str = "d=\"$h/.cache/rlaunch/$1\"; t=\"$d/.new.$(uname -n).$$\"; shift; \
    [ -x \"$d/rlaunch-worker\" -a -O \"$d\" -a -O \"$d/rlaunch-worker\" ] || { mkdir -p \"$d\" && \
    cp /opt/rlaunch/rlaunch-worker \"$t\" && mv -f \"$t\" \"$d/rlaunch-worker\"; } && \
    exec \"$d/rlaunch-worker\" \"$@\"";

/// Image, and the command that starts containers from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Image<'a> {
    /// Program of an engine that understands docker's command line.
    tool: &'a str,
    name: &'a str,
    /// Command of `--container-exec`, with the placeholder [`PLACEHOLDER`]; `None` for
    /// the default command.
    run: Option<&'a str>,
    /// Whether the container has the limits of its engine, which may not raise them.
    keeps_limits: bool,
}

impl<'a> Image<'a> {
    /// Returns the program of the engine if containers start by the default command, which may raise limits.
    pub(super) fn usual_tool(&self) -> Option<&'a str> {
        self.run.is_none().then_some(self.tool)
    }

    pub(super) fn keep_limits(self, keeps_limits: bool) -> Image<'a> {
        Image { keeps_limits, ..self }
    }

    /// Returns the line for a host's login shell that starts the container `container` and executes the
    /// agent in it with the arguments `words`.
    pub(super) fn line(&self, container: &str, agent: &AgentLocation, words: &str) -> String {
        let (path, own) = match agent {
            AgentLocation::At(path) => (path.clone(), String::new()),
            AgentLocation::InCache { cache, build } => {
                (format!("{cache}/{build}/rlaunch-worker"), OWN.to_owned())
            }
            AgentLocation::InShared { directory, build } => {
                (format!("{directory}/{build}/rlaunch-worker"), format!("{SHARED} {OWN}"))
            }
        };
        let image = self.name;
        let placed = format!("--name {container} -v \"$a:{MOUNT}:ro\" {image}");
        let start = match self.run {
            Some(run) => run.replace(PLACEHOLDER, &placed),
            None => self.default_run(&placed),
        };
        let inside = format!("{HOME} {INSIDE}");
        format!(
            "exec sh -c 'a=$1; i=$2; shift 2; {own} {LOOK} {WATCH} {start} sh -c \"$i\" sh \"${{a##*/}}\" \"$@\"; \
             {WATCHED}' sh {path} '{inside}' {words}"
        )
    }

    /// Returns shell code that starts a container by the default command, with the options that RDMA and
    /// shared memory need. Images are never pulled, since that would stall the job.
    fn default_run(&self, placed: &str) -> String {
        let tool = self.tool;
        // Docker's daemon sets the limit of locked memory; rootless engines cannot exceed the user's.
        let locked = match tool {
            _ if self.keeps_limits => "m=;",
            "docker" => "m=\"--ulimit memlock=-1\";",
            _ => "m=; [ $(id -u) -ne 0 ] || m=\"--ulimit memlock=-1\";",
        };
        // SELinux labels would deny access to devices and mounts.
        let labels = if tool == "nerdctl" { "" } else { "--security-opt label=disable " };
        format!(
            "{locked} d=; [ -e /dev/infiniband ] && d=\"--device /dev/infiniband\"; {tool} run \
             --rm -i --pull never --network host --ipc host $m $d {labels}{placed}"
        )
    }

    /// Returns a script for the host. It removes the containers in its arguments, and prints [`CONTAINER_GONE`] once
    /// none of them runs. The engine's list of names confirms the removal, because a failing `inspect`
    /// could also mean that the engine does not answer.
    pub(super) fn removal_script(&self) -> String {
        let engine = self.run.and_then(|run| run.split_once(" run ")).map(|(engine, _)| engine);
        let engine = engine.unwrap_or(self.tool);
        format!(
            "set -f; for c do {engine} kill $c; {engine} rm -f $c; done >/dev/null 2>&1; for c do \
             l=$({engine} ps -a --filter name=$c --format {{{{.Names}}}} 2>&1) || \
             {{ echo {engine} does not say whether $c is gone: $l; exit 1; }}; \
             for n in $l; do [ $n = $c ] || continue; \
             case $({engine} inspect -f {{{{.State.Running}}}} $c 2>/dev/null) in \
             false) ;; *) echo $c still runs; exit 1;; esac; done; done; echo {CONTAINER_GONE}"
        )
    }
}

/// Converts a text to a name for a container: characters that engines do not allow become dashes.
pub(super) fn container_name(text: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "_.-".contains(c) { c } else { '-' };
    text.chars().map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::super::command::RemoteCommand;
    use super::*;
    use std::fs;
    use std::io::{BufRead, BufReader};
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::process::{Command, Output, Stdio};
    use std::thread::sleep;
    use std::time::{Duration, Instant};

    fn container(text: &str, enter: Option<&str>) -> Container {
        let enter = enter.map(str::to_owned);
        Container::from_args(Some(text.parse().unwrap()), enter).unwrap().unwrap()
    }

    /// Returns the command that enters a container, or describes what is started.
    fn enters(text: &str, own: Option<&str>) -> String {
        match container(text, own).entry() {
            ContainerEntry::Exec(command) => command,
            ContainerEntry::Login => String::new(),
            ContainerEntry::Run(image) => format!("{} starts {}", image.tool, image.name),
        }
    }

    #[test]
    fn an_engine_that_starts_nothing_in_time_is_named() {
        let late = Late { awaited: "hello from the agent", limit: Duration::from_secs(30) };
        let of = |text: &str, enter: Option<&str>, said: &str| {
            let error = container(text, enter).silence(late, said)?;
            Some((error.to_string(), error.hint("a").unwrap_or_default()))
        };
        let (error, hint) = of("docker:img:1", None, " ").unwrap();
        assert_eq!(error, "docker has started no agent within 30 s");
        assert!(hint.starts_with("`docker info` on a shows") && !hint.contains("bashrc"), "{hint}");
        let sudo = Some("sudo podman exec -i {name}");
        let (error, hint) = of("other:x", sudo, "waiting\n").unwrap();
        assert_eq!(error, "podman has started no agent within 30 s; what came back: waiting");
        assert!(hint.starts_with("`podman info` on a") && hint.contains("sudo pkill"), "{hint}");
        assert_eq!(of("forced:x", None, ""), None);
    }

    #[test]
    fn each_engine_is_entered_by_its_own_command() {
        assert_eq!(enters("docker:mpi", None), "docker exec -i mpi");
        assert_eq!(enters("podman:mpi-1", None), "podman exec -i mpi-1");
        assert_eq!(enters("nerdctl:a.b", None), "nerdctl exec -i a.b");
        assert_eq!(enters("toolbox:dev_1", None), "toolbox run -c dev_1");
        assert_eq!(enters("forced:mpi", None), "");
        let sudo = "sudo docker exec -i {name}";
        assert_eq!(enters("docker:mpi", Some(sudo)), "sudo docker exec -i mpi");
        assert_eq!(enters("other:x", Some("enroot exec {name}")), "enroot exec x");
        // A name with a registry, a tag or a digest is an image.
        for image in ["ubuntu:24.04", "lab/mpi", "nvcr.io/nvidia/pytorch:25.01-py3", "a@sha256:0f"]
        {
            assert_eq!(enters(&format!("podman:{image}"), None), format!("podman starts {image}"));
        }
        let own = container("docker:a/b", Some("sudo docker run -i {name}"));
        let run = Some("sudo docker run -i {name}");
        let image = Image { tool: "docker", name: "a/b", run, keeps_limits: false };
        assert_eq!(own.entry(), ContainerEntry::Run(image));
    }

    #[test]
    fn nothing_gets_into_a_shell_by_a_name() {
        for bad in ["docker", "lxc:a", "docker:", "docker:a;b", "docker:$(id)", "docker:-a"] {
            assert!(bad.parse::<Container>().is_err(), "{bad}");
        }
        for bad in ["docker:/a", "docker:a b/c", "toolbox:a/b", "forced:a:b", "other:a@b"] {
            assert!(bad.parse::<Container>().is_err(), "{bad}");
        }
        let from = |text: &str, enter: Option<&str>| {
            Container::from_args(text.parse().ok(), enter.map(str::to_owned))
        };
        assert_eq!(from("other:x", None), Err(ContainerOptionError::NoCommand("x".into())));
        assert_eq!(from("", Some("x")), Err(ContainerOptionError::NoContainer));
        assert!(matches!(from("forced:x", Some("x")), Err(ContainerOptionError::Forced(_))));
        for bad in ["docker exec -i {name}", "docker run -i a/b"] {
            assert!(
                matches!(from("docker:a/b", Some(bad)), Err(ContainerOptionError::NoRun(_))),
                "{bad}"
            );
        }
        for bad in ["", "a; b", "a `b`", "a 'b'", "a $b", "a {other}", "a\nb"] {
            assert!(
                matches!(from("docker:x", Some(bad)), Err(ContainerOptionError::Command(_))),
                "{bad}"
            );
        }
    }

    #[test]
    fn what_engines_say_becomes_a_sentence() {
        let error = |text, code, output| {
            let found: Option<ContainerError> =
                container(text, None).explain(Some(ExitStatus::Code(code)), output);
            found.map(|error| format!("{error} | {}", error.hint("b").unwrap_or_default()))
        };
        let expect = |text, code, output, words: &[&str]| {
            let found = error(text, code, output).unwrap_or_default();
            assert!(words.iter().all(|word| found.contains(word)), "{output}: {found}");
        };
        let socket = "Got permission denied while trying to connect to the Docker daemon socket at \
                      unix:///var/run/docker.sock: Get \"http://…/json\": dial unix \
                      /var/run/docker.sock: connect: permission denied";
        let group = "on b: sudo usermod -aG docker $USER";
        expect("docker:mpi", 1, socket, &["docker refuses", group]);
        let daemon = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the \
                      docker daemon running?";
        expect("docker:mpi", 1, daemon, &["systemctl start docker"]);
        let unknown = ["docker ps -a", "no container mpi"];
        expect("docker:mpi", 1, "Error response from daemon: No such container: mpi", &unknown);
        let podman = "Error: no container with name or ID \"mpi\" found: no such container";
        expect("podman:mpi", 125, podman, &["`podman ps -a` on b"]);
        let toolbox = "Error: container mpi not found";
        expect("toolbox:mpi", 1, toolbox, &["there is no container mpi"]);
        let stopped = "Error response from daemon: container 3f2a is not running";
        expect("docker:mpi", 1, stopped, &["the container mpi is not running", "docker start mpi"]);
        let improper = "Error: can only create exec sessions on running containers: container \
                        state improper";
        expect("podman:mpi", 255, improper, &["on b: podman start mpi"]);
        let no_shell = "OCI runtime exec failed: exec failed: unable to start container process: \
                        exec: \"sh\": executable file not found in $PATH: unknown";
        expect("docker:mpi", 127, no_shell, &["the container mpi has no `sh`"]);
        for output in [
            "bash: line 1: exec: docker: not found", "zsh:1: command not found: docker",
            "docker: Command not found.", "fish: Unknown command: docker",
        ] {
            expect("docker:mpi", 127, output, &["docker is not installed there"]);
        }
        let images = [
            ("docker:a/b:1", "docker: Error response from daemon: No such image: a/b:1", "docker"),
            ("podman:a/b:1", "Error: a/b:1: image not known", "podman"),
            ("nerdctl:a/b:1", "image \"docker.io/a/b:1\" is not available", "nerdctl"),
        ];
        for (text, output, tool) in images {
            expect(
                text,
                125,
                output,
                &["there is no image a/b:1", &format!("on b: {tool} pull a/b:1")],
            );
        }
        expect("podman:a/b", 127, no_shell, &["the image a/b has no `sh`"]);
        assert_eq!(error("docker:mpi", 1, "Welcome to b"), None);
        assert_eq!(error("forced:mpi", 127, "docker: not found"), None);
    }

    /// The outputs are those of dockerd in a container without rights, runc, crun and nerdctl.
    #[test]
    fn an_error_of_the_engine_is_shown_as_it_is() {
        let said = |text: &str, output: &str| {
            let error = container(text, None).explain(Some(ExitStatus::Code(125)), output);
            error.map(|error| error.to_string()).unwrap_or_default()
        };
        let docker = |inner: &str| {
            format!(
                "docker: Error response from daemon: failed to create task for container: failed to create shim \
                 task: OCI runtime create failed: runc create failed: {inner}\n\nRun 'docker run --help' for more \
                 information"
            )
        };
        let cgroup = "unable to start container process: unable to apply cgroup configuration: mkdir \
                      /sys/fs/cgroup/cpuset/docker: no such file or directory";
        assert_eq!(said("docker:a/b", &docker(cgroup)), format!("docker fails: {cgroup}"));
        let limit = "unable to start container process: error during container init: error setting rlimit type 8: \
                     operation not permitted";
        assert_eq!(said("docker:a/b", &docker(limit)), format!("docker fails: {limit}"));
        assert!(is_limit_refused(&docker(limit)) && !is_limit_refused(&docker(cgroup)));
        let crun =
            "Error: OCI runtime error: crun: setrlimit `RLIMIT_MEMLOCK`: Operation not permitted";
        assert_eq!(said("podman:a/b", crun), format!("podman fails: {crun}"));
        assert!(is_limit_refused(crun));
        let systemd = "Error: the systemd session of the user is not running";
        assert_eq!(said("podman:a/b", systemd), format!("podman fails: {systemd}"));
        let nerdctl = "time=\"2026-01-01T00:00:00Z\" level=fatal msg=\"cgroup controller cpu is not available\"";
        assert!(said("nerdctl:a/b", nerdctl).starts_with("nerdctl fails: time="));
        assert_eq!(said("docker:a/b", "Error: this is a program's own"), "");
    }

    #[test]
    fn whoever_lands_on_the_host_is_told_what_leads_further() {
        let error = container("forced:mpi", None).check_inside(false).unwrap_err();
        assert!(error.to_string().contains("not in the container mpi"), "{error}");
        let hint = error.hint("c").unwrap();
        assert!(hint.contains("authorized_keys of c: command=\"docker exec mpi"), "{hint}");
        assert!(hint.contains("no-port-forwarding"), "{hint}");
        for (text, lands) in [("docker:mpi", false), ("docker:a/b", false), ("nerdctl:mpi", true)] {
            assert_eq!(container(text, None).check_inside(false).is_ok(), lands, "{text}");
            assert!(container(text, None).check_inside(true).is_ok(), "{text}");
        }
    }

    /// Engine that logs its arguments and runs the container's command on this machine.
    const ENGINE: &str = "#!/bin/sh\n\
        [ $1 = run ] || { echo \"$*\" >>$CALLS; exit 0; }\n\
        while [ $1 != some/image:1 ]; do echo \"$1\"; shift; done >>$CALLS\nshift\n\
        exec env -i PATH=/usr/bin:/bin HOME=$INSIDE \"$@\"\n";

    fn write(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    struct Host(tempfile::TempDir);

    impl Host {
        fn new() -> Host {
            let host = Host(tempfile::tempdir().unwrap());
            fs::create_dir(host.at("inside")).unwrap();
            ["docker", "podman", "sudo"].iter().for_each(|name| write(&host.at(name), ENGINE));
            write(&host.at("sudo"), "#!/bin/sh\nexec \"$@\"\n");
            host
        }

        fn at(&self, name: &str) -> std::path::PathBuf {
            self.0.path().join(name)
        }

        fn run(&self, line: &str) -> (Output, String) {
            let path = format!("{}:/usr/bin:/bin", self.0.path().display());
            // Without a container, the agent is at its path on the host and not at the mount point.
            let agents = self.at(".cache/rlaunch/0f");
            let line = line.replace(&format!("cp {MOUNT}"), &format!("cp {}", agents.display()));
            let mut sh = Command::new("sh");
            sh.args(["-c", &line]).env("PATH", path).env("HOME", self.0.path());
            sh.env("CALLS", self.at("calls")).env("INSIDE", self.at("inside"));
            let output = sh.output().unwrap();
            (output, fs::read_to_string(self.at("calls")).unwrap_or_default())
        }
    }

    /// Lists the names of a group's processes. Zombies may stay, where nobody waits for orphans.
    fn names(group: &str) -> Vec<String> {
        let name = |entry: fs::DirEntry| {
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            let (begin, fields) = stat.rsplit_once(") ")?;
            let runs = !fields.starts_with('Z') && fields.split(' ').nth(2) == Some(group);
            let (_, name) = begin.split_once('(')?;
            runs.then(|| name.to_owned())
        };
        fs::read_dir("/proc").unwrap().flatten().filter_map(name).collect()
    }

    /// Waits until no process of a group runs.
    fn wait_for_end(group: &str, limit: Duration) {
        let began = Instant::now();
        while !names(group).is_empty() {
            assert!(began.elapsed() < limit, "left after {limit:?}: {:?}", names(group));
            sleep(Duration::from_millis(50));
        }
    }

    #[test]
    fn a_client_whose_engine_hangs_ends_with_the_login() {
        let host = Host::new();
        write(&host.at(".cache/rlaunch/0f/rlaunch-worker"), "");
        write(&host.at("docker"), "#!/bin/sh\ntrap : TERM\nwhile sleep 0.1; do :; done\n");
        let enter = container("docker:mpi", None).client("docker exec -i mpi".to_owned());
        let entering = RemoteCommand::Script("true", &[]).line_inside(&enter);
        for line in [entering, image("docker", None).line("n", &agent(), "agent")] {
            assert!(!line.contains(['\\', '!', '\n']), "{line}");
            let mut login = Command::new("sh");
            login.args(["-c", "setsid sh -c \"$0\" & echo $!; wait", &line]);
            login.env("PATH", format!("{}:/usr/bin:/bin", host.0.path().display()));
            let mut login =
                login.env("HOME", host.0.path()).stdout(Stdio::piped()).spawn().unwrap();
            let mut client = String::new();
            BufReader::new(login.stdout.take().unwrap()).read_line(&mut client).unwrap();
            let client = client.trim();
            sleep(Duration::from_secs(3));
            assert!(Path::new("/proc").join(client).exists(), "it ended before its login: {line}");
            login.kill().unwrap();
            login.wait().unwrap();
            wait_for_end(client, Duration::from_secs(30));
        }
    }

    /// This sudo changes no account; what it is asked counts.
    #[test]
    fn a_client_that_sudo_has_started_is_ended_by_sudo() {
        let host = Host::new();
        write(&host.at("docker"), "#!/bin/sh\ntrap : TERM\nwhile sleep 0.1; do :; done\n");
        let sudo = "#!/bin/sh\necho $* >>$HOME/asked\n[ $1 != -n ] || shift\nexec \"$@\"\n";
        write(&host.at("sudo"), sudo);
        let enter = container("docker:mpi", Some("sudo docker exec -i {name}"));
        let enter = enter.client("sudo docker exec -i mpi".to_owned());
        let line = RemoteCommand::Script("true", &[]).line_inside(&enter);
        let mut login = Command::new("sh");
        login.args(["-c", "setsid sh -c \"$0\" & echo $!; wait", &line]);
        login.env("PATH", format!("{}:/usr/bin:/bin", host.0.path().display()));
        let mut login = login.env("HOME", host.0.path()).stdout(Stdio::piped()).spawn().unwrap();
        let mut client = String::new();
        BufReader::new(login.stdout.take().unwrap()).read_line(&mut client).unwrap();
        login.kill().unwrap();
        login.wait().unwrap();
        wait_for_end(client.trim(), Duration::from_secs(30));
        let asked = fs::read_to_string(host.0.path().join("asked")).unwrap();
        let killed = format!("-n kill -9 -- -{}\n", client.trim());
        assert!(asked.starts_with("docker exec -i mpi ") && asked.ends_with(&killed), "{asked}");
    }

    #[test]
    fn a_client_ends_with_its_own_status_and_leaves_nothing() {
        let host = Host::new();
        write(&host.at("docker"), "#!/bin/sh\ncat\nexit 3\n");
        let enter = container("docker:mpi", None).client("docker exec -i mpi".to_owned());
        let line = RemoteCommand::Script("true", &[]).line_inside(&enter);
        let started = "echo in | setsid sh -c 'echo $$; eval \"$0\"' \"$0\"; echo $?";
        let mut sh = Command::new("sh");
        sh.args(["-c", started, &line]).env("HOME", host.0.path());
        sh.env("PATH", format!("{}:/usr/bin:/bin", host.0.path().display()));
        let output = sh.output().unwrap();
        let printed = String::from_utf8(output.stdout).unwrap();
        let (group, rest) = printed.split_once('\n').unwrap();
        assert_eq!((rest, output.stderr.as_slice()), ("in\n3\n", &b""[..]));
        // The watch itself has been waited for; its sleep is being killed.
        assert!(!names(group).contains(&"sh".to_owned()), "{:?}", names(group));
        wait_for_end(group, Duration::from_secs(30));
    }

    fn image<'a>(tool: &'a str, run: Option<&'a str>) -> Image<'a> {
        Image { tool, name: "some/image:1", run, keeps_limits: false }
    }

    fn agent() -> AgentLocation {
        AgentLocation::InCache { cache: "~/.cache/rlaunch".into(), build: "0f".into() }
    }

    #[test]
    fn an_agent_that_is_not_there_starts_no_container() {
        let host = Host::new();
        let (output, calls) = host.run(&image("docker", None).line("n", &agent(), "agent"));
        assert_eq!((output.status.code(), calls.as_str()), (Some(127), ""));
    }

    #[test]
    fn a_container_has_the_hosts_agent_and_what_rdma_takes() {
        let host = Host::new();
        write(&host.at(".cache/rlaunch/0f/rlaunch-worker"), "#!/bin/sh\necho \"$0|$1|$2|$#\"\n");
        let line =
            image("podman", None).line("rlaunch-1-b", &agent(), "agent --callback 10.0.0.1:2");
        assert!(!line.contains(['\\', '!', '\n']) && line.len() < 2 << 10, "{line}");
        assert_eq!(line.matches('\'').count(), 4, "{line}");
        let (output, calls) = host.run(&line);
        let said = String::from_utf8(output.stdout).unwrap();
        let inside = host.at("inside/.cache/rlaunch/0f/rlaunch-worker");
        assert_eq!(said, format!("{}|agent|--callback|3\n", inside.display()));
        let agents = host.at(".cache/rlaunch/0f");
        let mount = format!("-v\n{}:{MOUNT}:ro\n", agents.display());
        let name = "--name\nrlaunch-1-b\n";
        for part in ["run\n--rm\n-i\n", "--network\nhost\n", "--ipc\nhost\n", name, &mount] {
            assert!(calls.contains(part), "no {part:?} in {calls}");
        }
        let has_devices = Path::new("/dev/infiniband").exists();
        assert_eq!(calls.contains("--device\n/dev/infiniband\n"), has_devices, "{calls}");
        let is_root = nix::unistd::Uid::effective().is_root();
        assert_eq!(calls.contains("--ulimit\nmemlock=-1\n"), is_root, "{calls}");
    }

    #[test]
    fn limits_that_the_engine_may_not_raise_stay() {
        let host = Host::new();
        write(&host.at(".cache/rlaunch/0f/rlaunch-worker"), "#!/bin/sh\necho here\n");
        for (keeps, raised) in [(false, true), (true, false)] {
            let _ = fs::remove_file(host.at("calls"));
            let image = image("docker", None).keep_limits(keeps);
            let (output, calls) = host.run(&image.line("n", &agent(), "agent"));
            assert_eq!(output.stdout, b"here\n");
            assert_eq!(calls.contains("--ulimit\n"), raised, "{calls}");
        }
    }

    #[test]
    fn a_command_of_the_users_starts_it_and_its_engine_removes_it() {
        let host = Host::new();
        write(&host.at(".cache/rlaunch/0f/rlaunch-worker"), "#!/bin/sh\necho here\n");
        let image = image("docker", Some("sudo docker run --rm -i --gpus all {name}"));
        let (output, calls) = host.run(&image.line("n", &agent(), "agent"));
        assert_eq!(output.stdout, b"here\n");
        assert!(calls.starts_with("run\n--rm\n-i\n--gpus\nall\n--name\nn\n-v\n"), "{calls}");
        fs::remove_file(host.at("calls")).unwrap();
        let script = image.removal_script();
        assert!(!script.contains(['\'', '\\', '!', '\n']), "{script}");
        let (output, calls) = host.run(&format!("exec sh -c '{script}' sh n n-2"));
        assert_eq!(output.stdout, b"its container is gone\n");
        let each = |name| format!("kill {name}\nrm -f {name}\n");
        let look = |name| format!("ps -a --filter name={name} --format {{{{.Names}}}}\n");
        assert_eq!(calls, [each("n"), each("n-2"), look("n"), look("n-2")].concat());
    }

    /// An engine does not answer if its daemon is down, if the account lacks permission, or if sudo asks
    /// for a password.
    #[test]
    fn an_engine_that_does_not_answer_has_removed_nothing() {
        let host = Host::new();
        write(&host.at("docker"), "#!/bin/sh\necho permission denied >&2\nexit 1\n");
        let script = image("docker", None).removal_script();
        let (output, _) = host.run(&format!("exec sh -c '{script}' sh n"));
        let said = String::from_utf8(output.stdout).unwrap();
        assert_eq!(said, "docker does not say whether n is gone: permission denied\n");
    }

    #[test]
    fn a_container_that_runs_on_is_not_gone() {
        let host = Host::new();
        let engine = "#!/bin/sh\ncase $1 in ps) echo n;; inspect) echo $STATE;; esac\n";
        let script = image("docker", None).removal_script();
        for (state, expected) in [
            ("true", "n still runs\n"),
            ("", "n still runs\n"),
            ("false", "its container is gone\n"),
        ] {
            write(&host.at("docker"), &engine.replace("$STATE", state));
            let (output, _) = host.run(&format!("exec sh -c '{script}' sh n"));
            assert_eq!(String::from_utf8(output.stdout).unwrap(), expected, "{state}");
        }
        // The engine's list may have another container, with a name that begins with this container's name.
        write(&host.at("docker"), &engine.replace("echo n;", "echo n-2;"));
        let (output, _) = host.run(&format!("exec sh -c '{script}' sh n"));
        assert_eq!(output.stdout, b"its container is gone\n");
    }

    #[test]
    fn names_are_as_engines_have_them() {
        assert_eq!(container_name("rlaunch-1-me@fe80::1"), "rlaunch-1-me-fe80--1");
    }
}
