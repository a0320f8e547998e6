//! `--container` and `--image`: a running container of the same name on every host, or an image from which containers are
//! started ([`image`]), one per agent, which end with their agent.

mod failure;
pub(super) mod image;

pub(crate) use failure::ContainerError;
pub(super) use failure::is_limit_refused;

use image::{Image, Pull, RunOptions};
use rlaunch_bootstrap::env::redacted;
use std::str::FromStr;
use strum::VariantNames;

/// Placeholder in `--container-exec`. It stands for the name of a running container or, with an image, for
/// the arguments that name the new container and the image.
const PLACEHOLDER: &str = "{name}";
/// Characters that names of images may have, but not names of containers. They precede a repository, a tag
/// or a digest.
const IMAGE_CHARACTERS: [char; 3] = ['/', ':', '@'];

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

    /// Returns the engine's command and the name of an image that hosts get from the launcher's machine.
    pub fn pushed_image(&self) -> Option<(&'static str, &str)> {
        (self.pull() == Some(Pull::Push)).then(|| self.tool_and_name())
    }

    /// Returns the engine's program and the image, for messages.
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

#[cfg(test)]
mod tests {
    use super::image::Gpus;
    use super::*;

    pub(super) fn container(text: &str, enter: Option<&str>) -> Container {
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

    /// The outputs are those of dockerd in a container without rights, runc, crun and nerdctl.
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
