//! `--container` and `--image`: a running container of the same name on every host, or an image from which containers are
//! started ([`super::image`]), one per agent, which end with their agent.

use super::image::{self, Image, Pull, RunOptions, SAYS};
use super::rsh::quoted_output;
use rlaunch_bootstrap::env::redacted;
use rlaunch_bootstrap::job::ExitStatus;
use rlaunch_console::deadline::Late;
use rlaunch_text::printable;
use std::str::FromStr;
use strum::VariantNames;

/// Placeholder in `--container-exec`. It stands for the name of a running container or, with an image, for
/// the arguments that name the new container and the image.
pub(super) const PLACEHOLDER: &str = "{name}";
/// Characters that names of images may have, but not names of containers. They precede a repository, a tag
/// or a digest.
const IMAGE_CHARACTERS: [char; 3] = ['/', ':', '@'];

/// Texts, in lower case, by which container engines report that the host lacks the image.
const NO_IMAGE: &[&str] =
    &["no such image", "image not known", "did not resolve to an alias", "unable to find image"];

/// Texts, in lower case, of lines by which engines report that they cannot start or enter a container.
const ENGINE_ERRORS: &[&str] =
    &["error response from daemon", "oci runtime", "crun: ", "runc: ", "level=fatal", "fata["];

/// Container or image named by `--container` or `--image`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    engine: ContainerEngine,
    name: String,
    /// Command of `--container-exec`, which enters or starts the container.
    enter: Option<String>,
    /// How a container is started, if the name is that of an image.
    image: Option<RunOptions>,
}

/// Options that say in which container agents run.
#[derive(Clone, Debug, Default)]
pub struct ContainerWords {
    /// `--container`.
    pub container: Option<Container>,
    /// `--container-exec`.
    pub enter: Option<String>,
    /// `--image`.
    pub image: Option<ImageName>,
    /// `--engine`.
    pub engine: Option<ContainerEngine>,
    pub run: RunOptions,
}

/// Name of an image, with or without a registry, a tag or a digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageName(String);

impl FromStr for ImageName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<ImageName, &'static str> {
        let is_name = has_only(text, &[&['_', '.', '-'], &IMAGE_CHARACTERS[..]].concat());
        is_name.then(|| ImageName(text.to_owned())).ok_or("an image, as in ubuntu:24.04")
    }
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
    #[error("--container-exec `{0}` starts no image: it needs `run`, and {PLACEHOLDER} at its end")]
    NoRun(String),
    #[error("--image and --container exclude each other")]
    Both,
    #[error("--engine, --gpus, --volume, --device, --shm-size, --user and --pull are for --image")]
    NoImage,
    #[error("--engine {0} starts no image; docker, podman and nerdctl do")]
    Engine(&'static str),
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
    /// `command` is the whole command, if the script for an image has told it.
    #[error("{tool} fails: {said}")]
    Engine { tool: &'static str, said: String, command: Option<String> },
    #[error("{tool} has started no agent within {} s{}", late.limit.as_secs(), quoted_output(said))]
    Silent { tool: String, by_sudo: bool, late: Late, said: String },
    #[error("there is no image {name}")]
    NoImage { tool: &'static str, name: String },
    #[error("{tool} cannot pull {name}: {said}")]
    Pull { tool: &'static str, name: String, said: String },
    #[error("{tool} has not pulled {name}: {late}")]
    SlowPull { tool: &'static str, name: String, late: Late },
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
                "`ssh {host} command -v {tool}` should print its path; --engine names another engine for \
                 --image, --container-exec the path of this one"
            )),
            ContainerError::NoShell { .. } => Some("its image needs a shell".into()),
            ContainerError::Engine { command: Some(command), .. } => Some(format!(
                "this is the engine's own error; the command on {host} was:\n  {command}"
            )),
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
            ContainerError::SlowPull { tool, name, .. }
            | ContainerError::Pull { tool, name, .. } => {
                Some(format!("on {host}: {tool} pull {name}"))
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
        // Hosts have such an image already, as ever.
        let image = RunOptions { pull: Some(Pull::Never), ..RunOptions::default() };
        let image = name.contains(IMAGE_CHARACTERS).then_some(image);
        if image.is_some() && !engine.is_like_docker() {
            return Err(format!("{kind} enters a container; docker, podman and nerdctl start one"));
        }
        Ok(Container { engine, name: name.to_owned(), enter: None, image })
    }
}

impl Container {
    /// Combines the options for containers. Returns an error if one does not fit another.
    pub fn from_words(words: ContainerWords) -> Result<Option<Container>, ContainerOptionError> {
        let ContainerWords { container, enter, image, engine, run } = words;
        let container = match (container, image) {
            (Some(_), Some(_)) => return Err(ContainerOptionError::Both),
            (named, None) if engine.is_some() || !run.is_empty() => {
                let named = named.filter(|named| engine.is_none() && named.is_image());
                let named = named.ok_or(ContainerOptionError::NoImage)?;
                let image = named.image.map(|options| options.extended(run));
                Container { image, ..named }
            }
            (Some(named), None) => named,
            (None, Some(ImageName(name))) => Container::of_image(name, engine, run)?,
            (None, None) if enter.is_some() => return Err(ContainerOptionError::NoContainer),
            (None, None) => return Ok(None),
        };
        let name = container.name.clone();
        match (container.engine, &enter) {
            (ContainerEngine::Other, None) => return Err(ContainerOptionError::NoCommand(name)),
            (ContainerEngine::Forced, Some(_)) => return Err(ContainerOptionError::Forced(name)),
            (_, Some(command)) => check_command(command)?,
            (_, None) => {}
        }
        let starts = |command: &String| {
            command.contains(" run ") && command.trim_end().ends_with(PLACEHOLDER)
        };
        if container.is_image()
            && let Some(command) = enter.as_ref().filter(|command| !starts(command))
        {
            return Err(ContainerOptionError::NoRun(redacted(command)));
        }
        let enter = enter.map(|command| command.trim_end().to_owned());
        Ok(Some(Container { enter, ..container }))
    }

    /// Returns the container of a program with options of its own, which inherits those that stand before all programs.
    pub fn for_program(
        all: Option<&Container>,
        own: ContainerWords,
    ) -> Result<Option<Container>, ContainerOptionError> {
        let Some(all) = all.filter(|all| all.is_image()) else { return Container::from_words(own) };
        let engine = own.engine.unwrap_or(all.engine);
        check_engine(engine)?;
        let inherited = all.image.clone().unwrap_or_default();
        let name = own.image.map_or_else(|| all.name.clone(), |ImageName(name)| name);
        let (enter, image) = (all.enter.clone(), Some(inherited.extended(own.run)));
        Ok(Some(Container { engine, name, enter, image }))
    }

    fn of_image(
        name: String,
        engine: Option<ContainerEngine>,
        run: RunOptions,
    ) -> Result<Container, ContainerOptionError> {
        let engine = engine.unwrap_or(ContainerEngine::Docker);
        check_engine(engine)?;
        Ok(Container { engine, name, enter: None, image: Some(run) })
    }

    /// Tells whether containers are started from an image.
    pub fn is_image(&self) -> bool {
        self.image.is_some()
    }

    /// Returns how containers are started, if they are.
    pub fn run_options(&mut self) -> Option<&mut RunOptions> {
        self.image.as_mut()
    }

    /// Returns what to do about an image that a host lacks; `None` if no container is started.
    pub(super) fn pull(&self) -> Option<Pull> {
        self.image.as_ref().map(|options| options.pull.unwrap_or(Pull::Missing))
    }

    /// Returns the engine's program and the image, for messages.
    /// Returns the engine's command and the name of an image that hosts get from the launcher's machine.
    pub fn pushed_image(&self) -> Option<(&'static str, &str)> {
        (self.pull() == Some(Pull::Push)).then(|| self.tool_and_name())
    }

    pub(super) fn tool_and_name(&self) -> (&'static str, &str) {
        (self.engine.command(), &self.name)
    }

    /// Returns the method by which an agent is started in the container.
    pub(super) fn entry(&self) -> ContainerEntry<'_> {
        let name = &self.name;
        if let Some(options) = &self.image {
            let (tool, run) = (self.engine.command(), self.enter.as_deref());
            return ContainerEntry::Run(Image { tool, name, run, options, keeps_limits: false });
        }
        match (&self.enter, self.engine) {
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
        let (output, started_by) = split_command(output);
        let output = output.as_str();
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
            Some(ContainerError::Engine { tool, said, command: started_by })
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
                // Docker's client begins its own errors so; a shell says so, too, that there is no docker.
                || line.starts_with("docker: ") && !lower.contains("not found")
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

/// Separates the command that a script for an image has told from the rest of an output.
fn split_command(output: &str) -> (String, Option<String>) {
    let (told, rest): (Vec<&str>, Vec<&str>) =
        output.lines().partition(|line| line.trim_start().starts_with(SAYS));
    let command =
        told.iter().find_map(|line| line.trim_start().strip_prefix(SAYS)?.strip_prefix("run "));
    (rest.join("\n"), command.map(image::without_secrets))
}

/// Checks that an engine starts containers from images.
fn check_engine(engine: ContainerEngine) -> Result<(), ContainerOptionError> {
    if engine.is_like_docker() { Ok(()) } else { Err(ContainerOptionError::Engine(engine.into())) }
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
pub(super) const WATCH: &str = "(n=0; while [ $((n+=1)) -le 75 ] && sleep 2; do p=; while read -r k p x; do case $k in PPid:) \
    break; esac; done </proc/$$/status; case $p in $PPID) ;; \"\") exit;; *) case $1 in sudo) \
    sudo -n kill -9 -- -$$;; esac; kill -9 -$$; exit;; esac; done) \
    </dev/null >/dev/null 2>&1 &";
/// Shell code for the host, after the client: ends [`WATCH`], and with the client's exit status.
pub(super) const WATCHED: &str =
    "s=$?; exec 2>/dev/null; trap \"\" TERM; kill -15 -$$ && wait; exit $s";

#[cfg(test)]
mod tests {
    use super::super::image::Gpus;
    use super::*;
    use std::time::Duration;

    fn container(text: &str, enter: Option<&str>) -> Container {
        let words = ContainerWords {
            container: Some(text.parse().unwrap()),
            enter: enter.map(str::to_owned),
            ..ContainerWords::default()
        };
        Container::from_words(words).unwrap().unwrap()
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
        let options = &RunOptions { pull: Some(Pull::Never), ..RunOptions::default() };
        let image = Image { tool: "docker", name: "a/b", run, options, keeps_limits: false };
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
            let (container, enter) = (text.parse().ok(), enter.map(str::to_owned));
            Container::from_words(ContainerWords { container, enter, ..ContainerWords::default() })
        };
        assert_eq!(from("other:x", None), Err(ContainerOptionError::NoCommand("x".into())));
        assert_eq!(from("", Some("x")), Err(ContainerOptionError::NoContainer));
        assert!(matches!(from("forced:x", Some("x")), Err(ContainerOptionError::Forced(_))));
        for bad in ["docker exec -i {name}", "docker run -i a/b", "docker run {name} sh"] {
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
        let usage = "docker: invalid publish opts format";
        assert_eq!(said("docker:a/b", usage), format!("docker fails: {usage}"));
        let output = format!("{SAYS}run docker run -i a/b agent\n{}", docker(cgroup));
        let error = container("docker:a/b", None).explain(Some(ExitStatus::Code(125)), &output);
        let hint = error.unwrap().hint("b").unwrap();
        assert!(hint.ends_with("the command on b was:\n  docker run -i a/b agent"), "{hint}");
    }

    fn words(image: &str) -> ContainerWords {
        ContainerWords { image: Some(image.parse().unwrap()), ..ContainerWords::default() }
    }

    #[test]
    fn an_image_is_started_by_docker_unless_another_engine_is_named() {
        let of = |words: ContainerWords| Container::from_words(words).map(Option::unwrap);
        let ubuntu = of(words("ubuntu")).unwrap();
        assert!(ubuntu.is_image() && ubuntu.pull() == Some(Pull::Missing));
        assert_eq!(ubuntu.tool_and_name(), ("docker", "ubuntu"));
        let podman = ContainerWords { engine: Some(ContainerEngine::Podman), ..words("ubuntu") };
        assert_eq!(of(podman).unwrap().tool_and_name(), ("podman", "ubuntu"));
        let toolbox = ContainerWords { engine: Some(ContainerEngine::Toolbox), ..words("ubuntu") };
        assert_eq!(of(toolbox), Err(ContainerOptionError::Engine("toolbox")));
        let both = ContainerWords { container: "docker:mpi".parse().ok(), ..words("ubuntu") };
        assert_eq!(of(both), Err(ContainerOptionError::Both));
    }

    #[test]
    fn options_of_containers_need_an_image() {
        let run = || RunOptions { gpus: Some(Gpus::All), ..RunOptions::default() };
        for container in [None, "docker:mpi".parse().ok()] {
            let words = ContainerWords { container, run: run(), ..ContainerWords::default() };
            assert_eq!(Container::from_words(words), Err(ContainerOptionError::NoImage));
        }
        let container = "docker:a/b".parse().ok();
        let words = ContainerWords { container, run: run(), ..ContainerWords::default() };
        let found = Container::from_words(words).unwrap().unwrap();
        let expected = RunOptions { pull: Some(Pull::Never), ..run() };
        assert_eq!(found.image, Some(expected));
    }

    #[test]
    fn a_program_adds_to_the_container_of_all() {
        let volume = |text: &str| text.parse().unwrap();
        let run = RunOptions { volumes: vec![volume("/a:/a")], ..RunOptions::default() };
        let all = Container::from_words(ContainerWords { run, ..words("one") }).unwrap();
        let own = RunOptions { volumes: vec![volume("/b:/b")], ..RunOptions::default() };
        let own = ContainerWords { run: own, ..ContainerWords::default() };
        let found = Container::for_program(all.as_ref(), own.clone()).unwrap().unwrap();
        let both = [volume("/a:/a"), volume("/b:/b")].to_vec();
        assert_eq!((&*found.name, found.image.unwrap().volumes), ("one", both));
        let other = Container::for_program(all.as_ref(), words("two")).unwrap().unwrap();
        assert_eq!(other.name, "two");
        assert_eq!(Container::for_program(None, own), Err(ContainerOptionError::NoImage));
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
}
