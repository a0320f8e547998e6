//! `--container`: a running container of the same name on every host, or an image from which containers
//! are started.

use super::image::Image;
use rlaunch_bootstrap::env::redacted;
use rlaunch_bootstrap::job::ExitStatus;
use std::str::FromStr;

/// Placeholder in `--container-exec`. It stands for the name of a running container or, with an image, for
/// the arguments that name the new container and the image.
pub(super) const PLACEHOLDER: &str = "{name}";
/// Characters that names of images may have, but not names of containers. They precede a repository, a tag
/// or a digest.
const IMAGE_CHARACTERS: [char; 3] = ['/', ':', '@'];

/// Texts, in lower case, by which container engines report that the host lacks the image.
const NO_IMAGE: &[&str] = &[
    "no such image",
    "image not known",
    "did not resolve to an alias",
    "unable to find image",
    "is not available",
];

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

const ENGINES: &[(&str, ContainerEngine)] = &[
    ("docker", ContainerEngine::Docker),
    ("podman", ContainerEngine::Podman),
    ("nerdctl", ContainerEngine::Nerdctl),
    ("toolbox", ContainerEngine::Toolbox),
    ("forced", ContainerEngine::Forced),
    ("other", ContainerEngine::Other),
];

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
    /// Finds an engine by the KIND in `--container KIND:NAME`.
    pub fn from_kind(kind: &str) -> Option<ContainerEngine> {
        ENGINES.iter().find(|(known, _)| *known == kind).map(|(_, engine)| *engine)
    }

    /// Tells whether the engine has the commands `exec` and `run` with the options of docker.
    pub fn is_like_docker(self) -> bool {
        matches!(self, ContainerEngine::Docker | ContainerEngine::Podman | ContainerEngine::Nerdctl)
    }

    /// Returns the name of the engine's program; `docker` if the engine is unknown.
    pub fn command(self) -> &'static str {
        match self {
            ContainerEngine::Podman => "podman",
            ContainerEngine::Nerdctl => "nerdctl",
            ContainerEngine::Toolbox => "toolbox",
            ContainerEngine::Docker | ContainerEngine::Forced | ContainerEngine::Other => "docker",
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
        let engine = ContainerEngine::from_kind(kind).ok_or_else(|| {
            let kinds: Vec<&str> = ENGINES.iter().map(|(kind, _)| *kind).collect();
            format!("a KIND among {}", kinds.join(", "))
        })?;
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
            }),
            (Some(command), _) => ContainerEntry::Exec(command.replace(PLACEHOLDER, name)),
            (None, ContainerEngine::Toolbox) => {
                ContainerEntry::Exec(format!("toolbox run -c {name}"))
            }
            (None, ContainerEngine::Forced | ContainerEngine::Other) => ContainerEntry::Login,
            (None, _) => ContainerEntry::Exec(format!("{} exec -i {name}", self.engine.command())),
        }
    }

    /// Recognises an error of the container engine in `output`, the output of a command that ended without an
    /// agent; `None` if there is none. `ended` is the command's exit status, if known.
    pub fn explain(&self, ended: Option<ExitStatus>, output: &str) -> Option<ContainerError> {
        let command = match self.entry() {
            ContainerEntry::Login => return None,
            ContainerEntry::Exec(enter) => enter,
            ContainerEntry::Run(image) => image.run.unwrap_or(image.tool).to_owned(),
        };
        let (tool, name) = (self.engine.command(), self.name.clone());
        let output = output.to_lowercase();
        let has = |words: &[&str]| words.iter().any(|word| output.contains(word));
        // The program that may be missing is the first word of the command, which may be sudo.
        let first = command.split(' ').next().unwrap_or_default().to_owned();
        let missing = has(&[": not found", "command not found", "unknown command"]);
        let inside = has(&["oci runtime", "executable file not found", "exec failed"]);
        if has(&["permission denied"]) && has(&[".sock", "daemon socket"]) {
            Some(ContainerError::Socket { tool })
        } else if has(&["cannot connect to the docker daemon", "is the docker daemon running"]) {
            Some(ContainerError::Daemon { tool })
        } else if self.is_image() && has(NO_IMAGE) {
            Some(ContainerError::NoImage { tool, name })
        } else if has(&["no such container", "no container with name", "no such object"])
            || output.contains(&format!("container {} not found", name.to_lowercase()))
        {
            Some(ContainerError::Unknown { tool, name })
        } else if has(&["is not running", "container state improper", "is paused", "is stopped"]) {
            Some(ContainerError::Stopped { tool, name })
        } else if inside && has(&["\"sh\"", "`sh`", "not found", "no such file"]) {
            let what = if self.is_image() { "image" } else { "container" };
            Some(ContainerError::NoShell { place: format!("the {what} {name}") })
        } else if missing && output.contains(&first) && ended != Some(ExitStatus::Code(0)) {
            Some(ContainerError::NoTool { tool: first })
        } else {
            None
        }
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

#[cfg(test)]
mod tests {
    use super::*;

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
        let image = Image { tool: "docker", name: "a/b", run: Some("sudo docker run -i {name}") };
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
            "bash: line 1: exec: docker: not found",
            "zsh:1: command not found: docker",
            "docker: Command not found.",
            "fish: Unknown command: docker",
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
