//! Why no agent was started in a container, by what the engine says.

use super::image::{self, SAYS};
use super::{Container, ContainerEngine, PLACEHOLDER};
use crate::connect::connector::rsh::quoted_output;
use rlaunch_bootstrap::job::ExitStatus;
use rlaunch_console::deadline::Late;
use rlaunch_text::printable;

/// Texts, in lower case, by which container engines report that the host lacks the image.
const NO_IMAGE: &[&str] =
    &["no such image", "image not known", "did not resolve to an alias", "unable to find image"];

/// Texts, in lower case, of lines by which engines report that they cannot start or enter a container.
const ENGINE_ERRORS: &[&str] =
    &["error response from daemon", "oci runtime", "crun: ", "runc: ", "level=fatal", "fata["];

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

impl Container {
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
    pub(crate) fn silence(&self, late: Late, said: &str) -> Option<ContainerError> {
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
}

/// Separates the command that a script for an image has told from the rest of an output.
fn split_command(output: &str) -> (String, Option<String>) {
    let (told, rest): (Vec<&str>, Vec<&str>) =
        output.lines().partition(|line| line.trim_start().starts_with(SAYS));
    let command =
        told.iter().find_map(|line| line.trim_start().strip_prefix(SAYS)?.strip_prefix("run "));
    (rest.join("\n"), command.map(image::without_secrets))
}

/// Tells whether an engine says that it may not raise a limit, as `--ulimit` asks. The engine needs `CAP_SYS_RESOURCE` for
/// that, which rootless engines and those in containers lack.
pub(crate) fn is_limit_refused(output: &str) -> bool {
    let output = output.to_lowercase();
    let has = |words: &str| output.contains(words);
    has("rlimit") && (has("not permitted") || has("permission denied"))
}

#[cfg(test)]
mod tests {
    use super::super::tests::container;
    use super::*;
    use std::time::Duration;

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
}
