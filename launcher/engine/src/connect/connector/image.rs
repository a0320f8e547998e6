//! Containers that are started from an image, one per agent, and end with their agent.
//!
//! The agent's executable is cached on the host and mounted read-only into the container. A script in the
//! container first copies it to a writable directory, because the library for ranks is stored in the same
//! directory.

use super::command::{AgentLocation, HOME};

/// Directory in the container at which the host's directory with the agent is mounted.
const MOUNT: &str = "/opt/rlaunch";

/// Last line that the script of [`Image::removal`] prints on success.
pub(crate) const GONE: &str = "its container is gone";

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
    pub(super) tool: &'a str,
    pub(super) name: &'a str,
    /// Command of `--container-exec`, with the placeholder [`super::container::PLACEHOLDER`]; `None` for
    /// the default command.
    pub(super) run: Option<&'a str>,
}

impl Image<'_> {
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
            Some(run) => format!("exec {}", run.replace(super::container::PLACEHOLDER, &placed)),
            None => self.usual(&placed),
        };
        let inside = format!("{HOME} {INSIDE}");
        format!(
            "exec sh -c 'a=$1; i=$2; shift 2; {own} {LOOK} {start} sh -c \"$i\" sh \"${{a##*/}}\" \"$@\"' sh {path} \
             '{inside}' {words}"
        )
    }

    /// Returns shell code that starts a container by the default command, with the options that RDMA and
    /// shared memory need. Images are never pulled, since that would stall the job.
    fn usual(&self, placed: &str) -> String {
        let tool = self.tool;
        // Docker's daemon sets the limit of locked memory; rootless engines cannot exceed the user's.
        let locked = match tool {
            "docker" => "m=\"--ulimit memlock=-1\";",
            _ => "m=; [ $(id -u) -ne 0 ] || m=\"--ulimit memlock=-1\";",
        };
        // SELinux labels would deny access to devices and mounts.
        let labels = if tool == "nerdctl" { "" } else { "--security-opt label=disable " };
        format!(
            "{locked} d=; [ -e /dev/infiniband ] && d=\"--device /dev/infiniband\"; exec {tool} run \
             --rm -i --pull never --network host --ipc host $m $d {labels}{placed}"
        )
    }

    /// Returns a script for the host. It removes the containers in its arguments, and prints [`GONE`] once
    /// none of them runs. The engine's list of names confirms the removal, because a failing `inspect`
    /// could also mean that the engine does not answer.
    pub(super) fn removal(&self) -> String {
        let engine = self.run.and_then(|run| run.split_once(" run ")).map(|(engine, _)| engine);
        let engine = engine.unwrap_or(self.tool);
        format!(
            "set -f; for c do {engine} kill $c; {engine} rm -f $c; done >/dev/null 2>&1; for c do \
             l=$({engine} ps -a --filter name=$c --format {{{{.Names}}}} 2>&1) || \
             {{ echo {engine} does not say whether $c is gone: $l; exit 1; }}; \
             for n in $l; do [ $n = $c ] || continue; \
             case $({engine} inspect -f {{{{.State.Running}}}} $c 2>/dev/null) in \
             false) ;; *) echo $c still runs; exit 1;; esac; done; done; echo {GONE}"
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
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::process::{Command, Output};

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

    fn image<'a>(tool: &'a str, run: Option<&'a str>) -> Image<'a> {
        Image { tool, name: "some/image:1", run }
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
    fn a_command_of_the_users_starts_it_and_its_engine_removes_it() {
        let host = Host::new();
        write(&host.at(".cache/rlaunch/0f/rlaunch-worker"), "#!/bin/sh\necho here\n");
        let image = image("docker", Some("sudo docker run --rm -i --gpus all {name}"));
        let (output, calls) = host.run(&image.line("n", &agent(), "agent"));
        assert_eq!(output.stdout, b"here\n");
        assert!(calls.starts_with("run\n--rm\n-i\n--gpus\nall\n--name\nn\n-v\n"), "{calls}");
        fs::remove_file(host.at("calls")).unwrap();
        let script = image.removal();
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
        let script = image("docker", None).removal();
        let (output, _) = host.run(&format!("exec sh -c '{script}' sh n"));
        let said = String::from_utf8(output.stdout).unwrap();
        assert_eq!(said, "docker does not say whether n is gone: permission denied\n");
    }

    #[test]
    fn a_container_that_runs_on_is_not_gone() {
        let host = Host::new();
        let engine = "#!/bin/sh\ncase $1 in ps) echo n;; inspect) echo $STATE;; esac\n";
        let script = image("docker", None).removal();
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
