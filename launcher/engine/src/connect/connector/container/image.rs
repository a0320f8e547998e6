//! Containers that are started for a job, one on each host, by the words of `docker run`.
//!
//! A script on the host collects the words and runs the engine's client. The agent's directory of the host is mounted, and
//! the agent is the entry point, so that images need no shell. The container lives as long as its client: with `-i` the
//! client's end is the end of the agent's stdin. What an engine has kept all the same is removed by the next start.

use super::{PLACEHOLDER, WATCH, WATCHED};
use crate::connect::connector::command::AgentLocation;
use rlaunch_bootstrap::env::redacted;
use rlaunch_bootstrap::protocol::housekeeping::ENGINE_MARK;
use std::fmt::Write as _;
use std::str::FromStr;

/// Directory in the container at which the host's directory with the agent is mounted.
const MOUNT: &str = "/opt/rlaunch";

/// Begin of lines on stderr by which the script tells the launcher how it starts the container.
pub(crate) const SAYS: &str = "rlaunch-container ";
/// Line that says that the engine may not raise limits.
const KEEPS_LIMITS: &str = "limits";
/// Line that says that the host has GPUs that the engine cannot pass on.
const NO_GPUS: &str = "gpus";

/// Last line that the script of [`Image::removal_script`] prints on success.
pub(crate) const CONTAINER_GONE: &str = "its container is gone";

/// Container that was started for an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StartedContainer {
    /// Program of its engine.
    pub(crate) tool: String,
    /// Whole command, as a person could type it.
    pub(crate) command: String,
    /// Whether the engine may not raise limits.
    pub(crate) keeps_limits: bool,
    /// Whether the host has GPUs that the engine cannot pass on.
    pub(crate) lacks_gpus: bool,
}

impl StartedContainer {
    /// Reads the lines of the script, without their begin [`SAYS`].
    pub(crate) fn read(tool: &str, said: &[String]) -> Option<StartedContainer> {
        let has = |words: &str| said.iter().any(|line| line == words);
        let command = without_secrets(said.iter().find_map(|line| line.strip_prefix("run "))?);
        let (keeps_limits, lacks_gpus) = (has(KEEPS_LIMITS), has(NO_GPUS));
        Some(StartedContainer { tool: tool.to_owned(), command, keeps_limits, lacks_gpus })
    }
}

/// Returns an engine's command for printing: a command of the user's own may have secrets in it.
pub(super) fn without_secrets(command: &str) -> String {
    command.split(' ').map(redacted).collect::<Vec<_>>().join(" ")
}

/// Policy for an image that a host may lack.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, strum::EnumString, strum::IntoStaticStr, strum::VariantArray,
)]
#[strum(serialize_all = "lowercase")]
pub enum Pull {
    /// The host gets it from its registry if it lacks it.
    Missing,
    /// The host asks its registry for a newer one.
    Always,
    Never,
    /// The host gets it from the launcher's machine if it lacks it, before the job.
    Push,
}

/// GPUs that containers have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gpus {
    All,
    None,
    /// The first so many.
    Count(u32),
    /// Indexes or UUIDs, with commas between them.
    Devices(String),
}

/// Argument of an option of `docker run`. It has only characters that no shell interprets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlainWord(String);

/// Directory or volume of the host, and where containers have it: `SRC:DST[:OPTIONS]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    source: String,
    /// Path in the container, and options of the engine.
    target: String,
}

/// Options of containers, by the names that `docker run` has for them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunOptions {
    /// `None` for all, where the engine can pass them on.
    pub gpus: Option<Gpus>,
    pub volumes: Vec<Volume>,
    pub devices: Vec<PlainWord>,
    pub shm_size: Option<PlainWord>,
    pub user: Option<PlainWord>,
    pub pull: Option<Pull>,
    /// The job's directory, which is mounted on hosts that have it.
    pub directory: Option<Volume>,
}

const CHARACTERS: &str = "letters, digits and /._-+@=,:%";

/// Tells whether a text has only characters that no shell interprets.
fn is_plain(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+@=,:%".contains(c);
    !text.is_empty() && text.chars().all(plain)
}

impl FromStr for PlainWord {
    type Err = String;

    fn from_str(text: &str) -> Result<PlainWord, String> {
        let is_word = is_plain(text) && !text.starts_with('-');
        if is_word {
            Ok(PlainWord(text.to_owned()))
        } else {
            Err(format!("a word of {CHARACTERS}"))
        }
    }
}

impl FromStr for Gpus {
    type Err = String;

    fn from_str(text: &str) -> Result<Gpus, String> {
        let listed = text.strip_prefix("device=").or_else(|| text.strip_prefix("\"device="));
        match (text, listed) {
            ("all", _) => Ok(Gpus::All),
            ("none", _) => Ok(Gpus::None),
            // As docker has it: '"device=0,1"'.
            (_, Some(list)) if is_plain(list.trim_end_matches('"')) => {
                Ok(Gpus::Devices(list.trim_end_matches('"').to_owned()))
            }
            _ => match text.parse() {
                Ok(0) => Ok(Gpus::None),
                Ok(count @ 1..=1024) => Ok(Gpus::Count(count)),
                _ => Err("all, none, a number, or device=0,1".to_owned()),
            },
        }
    }
}

impl FromStr for Volume {
    type Err = String;

    /// Parses `SRC:DST[:OPTIONS]`. SRC is a path, `~/` is the home directory of the host, and a name is a volume of the
    /// engine's.
    fn from_str(text: &str) -> Result<Volume, String> {
        let what = || format!("SRC:DST or SRC:DST:ro, of {CHARACTERS}, where DST begins with /");
        let (source, target) = text.split_once(':').ok_or_else(what)?;
        let bare = source.strip_prefix("~/").unwrap_or(source);
        let is_whole = is_plain(bare) && !bare.starts_with('-') && target.starts_with('/');
        if !is_whole || !is_plain(target) {
            return Err(what());
        }
        Ok(Volume { source: source.to_owned(), target: target.to_owned() })
    }
}

impl Volume {
    /// Returns the mount of a directory at a path of the container; `None` if a shell would interpret either.
    pub fn of_directory(source: &str, target: &str) -> Option<Volume> {
        format!("{source}:{target}").parse().ok().filter(|_| !target.contains(':'))
    }

    /// Replaces a relative source by its path below `here`.
    pub fn below(&mut self, here: impl FnOnce(&str) -> Option<String>) -> Result<(), String> {
        if self.source == "."
            || self.source == ".."
            || self.source.starts_with("./")
            || self.source.starts_with("../")
        {
            let path = here(&self.source).filter(|path| is_plain(path));
            self.source = path
                .ok_or_else(|| format!("{} is no path of {CHARACTERS} from here", self.source))?;
        }
        Ok(())
    }

    /// Returns the path in the container.
    fn path(&self) -> &str {
        let path = self.target.split_once(':').map_or(&*self.target, |(path, _)| path);
        path.trim_end_matches('/')
    }

    /// Writes the source as a word of a shell on the host.
    fn source(&self) -> String {
        match self.source.strip_prefix("~/") {
            Some(below) => format!("\"$HOME/{below}\""),
            None => self.source.clone(),
        }
    }
}

impl RunOptions {
    /// Tells whether the user has named any of them.
    pub fn is_empty(&self) -> bool {
        *self == RunOptions { directory: self.directory.clone(), ..RunOptions::default() }
    }

    /// Adds those of a program to those of all programs.
    #[must_use]
    pub fn extended(mut self, own: RunOptions) -> RunOptions {
        self.volumes.extend(own.volumes);
        self.devices.extend(own.devices);
        RunOptions {
            gpus: own.gpus.or(self.gpus),
            shm_size: own.shm_size.or(self.shm_size),
            user: own.user.or(self.user),
            pull: own.pull.or(self.pull),
            ..self
        }
    }

    /// Writes what the user has named, but for GPUs, as words of a shell on the host.
    fn words(&self) -> String {
        let mut words = String::new();
        for volume in &self.volumes {
            let _ = write!(words, "-v {}:{} ", volume.source(), volume.target);
        }
        for PlainWord(device) in &self.devices {
            let _ = write!(words, "--device {device} ");
        }
        for (option, word) in [("--shm-size", &self.shm_size), ("--user", &self.user)] {
            if let Some(PlainWord(word)) = word {
                let _ = write!(words, "{option} {word} ");
            }
        }
        words
    }
}

/// Names of a container that is about to start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Names<'a> {
    pub(crate) container: &'a str,
    /// Id of the job, or of the launch of a verb.
    pub(crate) job: &'a str,
    /// Name of the job; empty for a verb.
    pub(crate) title: &'a str,
}

/// Image, and the command that starts containers from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Image<'a> {
    /// Program of an engine that understands docker's command line.
    pub(crate) tool: &'a str,
    pub(crate) name: &'a str,
    /// Command of `--container-exec`, which ends with the placeholder [`PLACEHOLDER`]; `None` for the usual command.
    pub(crate) run: Option<&'a str>,
    pub(crate) options: &'a RunOptions,
    /// Whether the container has the limits of its engine, which may not raise them.
    pub(crate) keeps_limits: bool,
}

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

/// Shell code for the host: a function that prints what a process is known by, `PID.START`, and nothing if there is no such
/// process.
const BORN: &str = "born() { p=$1; { read -r s </proc/$p/stat; } 2>/dev/null || return 0; set -- ${s##*) }; echo $p.${20}; };";

/// Adds words in front of those that the script has collected for the engine.
fn with(words: &str) -> String {
    format!("set -- {words} \"$@\";")
}

impl<'a> Image<'a> {
    /// Tells whether containers start by the usual command, which may raise limits.
    pub(crate) fn is_usual(&self) -> bool {
        self.run.is_none()
    }

    pub(crate) fn keep_limits(self, keeps_limits: bool) -> Image<'a> {
        Image { keeps_limits, ..self }
    }

    /// Returns the line for a host's login shell that starts a container and executes the agent in it with the arguments
    /// `words`.
    pub(crate) fn line(&self, names: Names<'_>, agent: &AgentLocation, words: &str) -> String {
        let (path, own) = match agent {
            AgentLocation::At(path) => (path.clone(), String::new()),
            AgentLocation::InCache { cache, build } => {
                (format!("{cache}/{build}/rlaunch-worker"), OWN.to_owned())
            }
            AgentLocation::InShared { directory, build } => {
                (format!("{directory}/{build}/rlaunch-worker"), format!("{SHARED} {OWN}"))
            }
        };
        // Another user must be able to read it; the directory above keeps other accounts out.
        let open = match self.options.user {
            Some(_) => "chmod go+rx \"$a\" \"$a/rlaunch-worker\" 2>/dev/null;",
            None => "",
        };
        let mark = mark(self.tool);
        let collect = self.collect(names);
        let sweep = self.sweep();
        format!(
            "exec sh -c 'a=$1; shift; {own} {LOOK} {mark} {open} {BORN} u=$(id -u); {collect} echo {SAYS}run \"$@\" >&2; {sweep} \
             {WATCH} \"$@\"; {WATCHED}' sh {path} {words}"
        )
    }

    /// Returns shell code that collects the words of the engine's command, from the last to the first: `$@` has the agent's
    /// arguments, and in the end the whole command.
    fn collect(&self, names: Names<'_>) -> String {
        let Image { tool, name, options, .. } = *self;
        let mut code = with(&format!(
            "{}-v \"$a:{MOUNT}:ro\" --entrypoint {MOUNT}/rlaunch-worker {name}",
            options.words()
        ));
        if let Some(directory) = &options.directory {
            let (source, target) = (directory.source(), &directory.target);
            // Engines refuse two mounts at one path; that of the user is there on every host.
            if options.volumes.iter().any(|volume| volume.path() == directory.path()) {
                let _ = write!(code, " {}", with(&format!("-w {target}")));
            } else {
                let mounted = with(&format!("-v {source}:{target} -w {target}"));
                let _ = write!(code, " if [ -d {source} ]; then {mounted} fi;");
            }
        }
        let Names { container, job, title } = names;
        let title =
            if title.is_empty() { String::new() } else { format!(" --label rlaunch.name={title}") };
        let labels = format!(
            "--name {container} --label rlaunch.job={job}{title} --label rlaunch.uid=$u --label \
             rlaunch.client=$(born $$)"
        );
        code.push_str(&self.gpus());
        match self.run {
            Some(run) => {
                let begin = run.strip_suffix(PLACEHOLDER).unwrap_or(run);
                let _ = write!(code, " {}", with(&format!("{begin}{labels}")));
            }
            None => {
                code.push_str(" [ -e /dev/infiniband ] && ");
                code.push_str(&with("--device /dev/infiniband"));
                code.push_str(&self.limits());
                if tool != "nerdctl" {
                    // Labels of SELinux would deny access to devices and mounts.
                    code.push_str(" [ -e /sys/fs/selinux/enforce ] && ");
                    code.push_str(&with("--security-opt label=disable"));
                }
                // Memory of the host's own size cannot have another one.
                let ipc = if options.shm_size.is_some() { "" } else { " --ipc host" };
                let usual = format!(
                    "{tool} run --rm -i --pull never {labels} --network host{ipc} --security-opt no-new-privileges"
                );
                let _ = write!(code, " {}", with(&usual));
            }
        }
        code
    }

    /// Returns shell code that adds the engine's own option for GPUs. Without `--gpus` all are passed on, if the host has some
    /// and the engine is set up for that.
    fn gpus(&self) -> String {
        let podman = self.tool == "podman";
        let amd = with("--device /dev/kfd --device /dev/dri");
        let all = with(if podman { "--device nvidia.com/gpu=all" } else { "--gpus all" });
        match &self.options.gpus {
            None => {
                // Podman needs NVIDIA's description of devices, docker the program that makes it of no use.
                let has = if podman {
                    "for f in /etc/cdi/*nvidia* /var/run/cdi/*nvidia*; do [ -e $f ] && g=1; done;"
                } else {
                    "command -v nvidia-container-runtime-hook >/dev/null && g=1; command -v nvidia-container-runtime \
                     >/dev/null && g=1;"
                };
                format!(
                    " g=; if [ -e /dev/nvidiactl ]; then {has} if [ $g ]; then {all} else echo {SAYS}{NO_GPUS} >&2; fi; \
                     elif [ -e /dev/kfd ]; then {amd} fi;"
                )
            }
            Some(Gpus::None) => String::new(),
            Some(Gpus::All) => format!(
                " if [ -e /dev/nvidiactl ]; then {all} elif [ -e /dev/kfd ]; then {amd} else {all} fi;"
            ),
            Some(Gpus::Count(count)) if podman => {
                let each: Vec<String> =
                    (0..*count).map(|index| format!("--device nvidia.com/gpu={index}")).collect();
                format!(" {}", with(&each.join(" ")))
            }
            Some(Gpus::Count(count)) => format!(" {}", with(&format!("--gpus {count}"))),
            Some(Gpus::Devices(list)) if podman => {
                let each = list.split(',').map(|index| format!("--device nvidia.com/gpu={index}"));
                format!(" {}", with(&each.collect::<Vec<_>>().join(" ")))
            }
            Some(Gpus::Devices(list)) if list.contains(',') => {
                // Docker wants a list in double quotes, which cannot stand in this script.
                let quote = "q=$(awk -v f=%c \"BEGIN{printf(f,34)}\");";
                format!(" {quote} {}", with(&format!("--gpus ${{q}}device={list}$q")))
            }
            Some(Gpus::Devices(one)) => format!(" {}", with(&format!("--gpus device={one}"))),
        }
    }

    /// Returns shell code that raises limits, where the engine has the right to: Docker's daemon, if it has
    /// `CAP_SYS_RESOURCE` (bit 24 of its capabilities), and other engines, if this account may itself.
    fn limits(&self) -> String {
        let raised = with("--ulimit memlock=-1 --ulimit stack=67108864");
        let own = match self.tool {
            // Podman's own limits are those of the host, if it may not have more.
            "podman" => with("--ulimit host"),
            _ => String::new(),
        };
        let kept = format!("echo {SAYS}{KEEPS_LIMITS} >&2;");
        if self.keeps_limits {
            return format!(" {own} {kept}");
        }
        match self.tool {
            "docker" => format!(
                " p= v=; {{ read -r p </run/docker.pid; while read -r k v; do case $k in CapEff:) break; esac; v=; done \
                 </proc/$p/status; }} 2>/dev/null; case $v in \"\"|*[13579bdf]??????) {raised}; *) {kept}; esac;"
            ),
            _ => format!(
                " if (ulimit -l unlimited) 2>/dev/null; then {raised} else {own} {kept} fi;"
            ),
        }
    }

    /// Returns shell code that removes, beside the start, what clients that are gone have left: containers that do not run.
    /// One that runs ends by itself, since its agent has lost its stdin or its launcher.
    fn sweep(&self) -> String {
        let engine = self.engine();
        format!(
            "(for c in $({engine} ps -aq --filter label=rlaunch.uid=$u --filter status=exited --filter status=created); do \
             l=$({engine} inspect -f {{{{.Config.Labels}}}} $c) || continue; l=${{l##*rlaunch.client:}}; l=${{l%%[] ]*}}; \
             [ \"$l\" = \"$(born ${{l%.*}})\" ] || {engine} rm -f $c; done) </dev/null >/dev/null 2>&1 &"
        )
    }

    /// Returns the command before `run`: the engine's program, perhaps with `sudo`.
    fn engine(&self) -> &'a str {
        let engine = self.run.and_then(|run| run.split_once(" run ")).map(|(engine, _)| engine);
        engine.unwrap_or(self.tool)
    }

    /// Returns a script for the host by which it gets the image from its registry.
    pub(crate) fn pull_script(&self) -> String {
        format!("exec {} pull {};", self.engine(), self.name)
    }

    /// Returns a script for the host. It removes the containers in its arguments, and prints [`CONTAINER_GONE`] once
    /// none of them runs. The engine's list of names confirms the removal, because a failing `inspect`
    /// could also mean that the engine does not answer; and it is asked again after that, because a container may go
    /// between the two questions.
    pub(crate) fn removal_script(&self) -> String {
        let engine = self.engine();
        format!(
            "set -f; for c do {engine} kill $c; {engine} rm -f $c; done >/dev/null 2>&1; \
             listed() {{ l=$({engine} ps -a --filter name=$1 --format {{{{.Names}}}} 2>&1) || \
             {{ echo {engine} does not say whether $1 is gone: $l; exit 1; }}; \
             for n in $l; do [ $n = $1 ] && return; done; return 1; }}; \
             for c do listed $c || continue; \
             case $({engine} inspect -f {{{{.State.Running}}}} $c 2>/dev/null) in false) continue; esac; \
             listed $c || continue; echo $c still runs; exit 1; done; echo {CONTAINER_GONE}"
        )
    }
}

/// Returns shell code for the host that notes that an engine has started containers for this account: in its home directory,
/// where every agent looks, or beside the agent `$a` if nothing can be written there.
fn mark(engine: &str) -> String {
    format!(
        "for d in \"$HOME/.cache/rlaunch\" \"${{a%/*}}\"; do (mkdir -p -m 700 \"$d\" && : >\"$d/{ENGINE_MARK}{engine}\") \
         2>/dev/null && break; done;"
    )
}

/// Converts a text to a name for a container: characters that engines do not allow become dashes.
pub(crate) fn container_name(text: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "_.-".contains(c) { c } else { '-' };
    text.chars().map(plain).collect()
}

#[cfg(test)]
mod tests;
