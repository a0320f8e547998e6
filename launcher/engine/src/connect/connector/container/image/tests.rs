use super::super::Container;
use super::*;
use crate::connect::connector::command::RemoteCommand;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Engine that logs its arguments, lists no containers, and runs the agent on this machine.
const ENGINE: &str = r#"#!/bin/sh
[ "$1 $2" = "ps -aq" ] && exit
[ $1 = run ] || { echo "$*" >>$CALLS; exit 0; }
while [ $1 != some/image:1 ]; do
    case $1 in *:/opt/rlaunch:ro) agents=${1%%:*};; esac
    echo "$1"
    shift
done >>$CALLS
shift
exec env -i PATH=/usr/bin:/bin HOME=$INSIDE "$agents/rlaunch-worker" "$@"
"#;

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
        let mut sh = Command::new("sh");
        sh.args(["-c", line]).env("PATH", path).env("HOME", self.0.path());
        sh.env("CALLS", self.at("calls")).env("INSIDE", self.at("inside"));
        let output = sh.output().unwrap();
        (output, fs::read_to_string(self.at("calls")).unwrap_or_default())
    }

    /// Starts a line in a process group of its own, as a login does. Returns the login, and the id of the group.
    fn log_in(&self, line: &str) -> (Child, String) {
        let mut login = Command::new("sh");
        login.args(["-c", "setsid sh -c \"$0\" & echo $!; wait", line]);
        login.env("PATH", format!("{}:/usr/bin:/bin", self.0.path().display()));
        let mut login = login.env("HOME", self.0.path()).stdout(Stdio::piped()).spawn().unwrap();
        let mut client = String::new();
        BufReader::new(login.stdout.take().unwrap()).read_line(&mut client).unwrap();
        (login, client.trim().to_owned())
    }
}

/// Lists the names of a group's processes, without zombies: where nothing reaps orphans, they stay.
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
    let container: Container = "docker:mpi".parse().unwrap();
    let enter = container.client("docker exec -i mpi".to_owned());
    let entering = RemoteCommand::Script("true", &[]).line_inside(&enter);
    for line in [entering, image("docker", None).line(N, &agent(), "agent")] {
        assert!(!line.contains(['\\', '!', '\n']), "{line}");
        let (mut login, client) = host.log_in(&line);
        sleep(Duration::from_secs(3));
        assert!(Path::new("/proc").join(&client).exists(), "it ended before its login: {line}");
        login.kill().unwrap();
        login.wait().unwrap();
        wait_for_end(&client, Duration::from_secs(30));
    }
}

/// This sudo changes no account; what it is asked counts.
#[test]
fn a_client_that_sudo_has_started_is_ended_by_sudo() {
    let host = Host::new();
    write(&host.at("docker"), "#!/bin/sh\ntrap : TERM\nwhile sleep 0.1; do :; done\n");
    let sudo =
        "#!/bin/sh\nprintf '%s\\n' \"$*\" >>$HOME/asked\n[ $1 != -n ] || shift\nexec \"$@\"\n";
    write(&host.at("sudo"), sudo);
    let container: Container = "docker:mpi".parse().unwrap();
    let enter = container.client("sudo docker exec -i mpi".to_owned());
    let line = RemoteCommand::Script("true", &[]).line_inside(&enter);
    let (mut login, client) = host.log_in(&line);
    // The client is there, so the watch knows the login.
    while !host.at("asked").exists() {
        sleep(Duration::from_millis(20));
    }
    login.kill().unwrap();
    login.wait().unwrap();
    wait_for_end(&client, Duration::from_secs(30));
    let asked = fs::read_to_string(host.0.path().join("asked")).unwrap();
    let killed = format!("-n kill -9 -- -{client}\n");
    assert!(asked.starts_with("docker exec -i mpi ") && asked.ends_with(&killed), "{asked}");
}

#[test]
fn a_client_ends_with_its_own_status_and_leaves_nothing() {
    let host = Host::new();
    write(&host.at("docker"), "#!/bin/sh\ncat\nexit 3\n");
    let container: Container = "docker:mpi".parse().unwrap();
    let enter = container.client("docker exec -i mpi".to_owned());
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

/// Names of a container in tests.
const N: Names<'static> = Names { container: "n", job: "0199f3a2", title: "calm-otter" };

/// Options without GPUs, which this machine may have.
static PLAIN: RunOptions = RunOptions {
    gpus: Some(Gpus::None),
    volumes: Vec::new(),
    devices: Vec::new(),
    shm_size: None,
    user: None,
    pull: None,
    directory: None,
};

fn image<'a>(tool: &'a str, run: Option<&'a str>) -> Image<'a> {
    Image { tool, name: "some/image:1", run, options: &PLAIN, keeps_limits: false }
}

fn agent() -> AgentLocation {
    AgentLocation::InCache { cache: "~/.cache/rlaunch".into(), build: "0f".into() }
}

#[test]
fn an_agent_that_is_not_there_starts_no_container() {
    let host = Host::new();
    let (output, calls) = host.run(&image("docker", None).line(N, &agent(), "agent"));
    assert_eq!((output.status.code(), calls.as_str()), (Some(127), ""));
}

/// Checks that a line passes through all kinds of login shells.
fn check_line(line: &str) {
    assert!(!line.contains(['\\', '!', '\n']) && line.len() < 8 << 10, "{line}");
    assert_eq!(line.matches('\'').count(), 2, "{line}");
}

#[test]
fn a_container_has_the_hosts_agent_and_what_rdma_takes() {
    let host = Host::new();
    write(&host.at(".cache/rlaunch/0f/rlaunch-worker"), "#!/bin/sh\necho \"$0|$1|$2|$#\"\n");
    let names = Names { container: "rlaunch-1-b", ..N };
    let line = image("podman", None).line(names, &agent(), "agent --callback 10.0.0.1:2");
    check_line(&line);
    let (output, calls) = host.run(&line);
    let said = String::from_utf8(output.stdout).unwrap();
    let agents = host.at(".cache/rlaunch/0f");
    assert_eq!(said, format!("{}/rlaunch-worker|agent|--callback|3\n", agents.display()));
    let mount = format!("-v\n{}:{MOUNT}:ro\n", agents.display());
    let name = "--name\nrlaunch-1-b\n--label\nrlaunch.job=0199f3a2\n";
    let entry = "--entrypoint\n/opt/rlaunch/rlaunch-worker\n";
    for part in ["run\n--rm\n-i\n", "--network\nhost\n", "--ipc\nhost\n", name, &mount, entry] {
        assert!(calls.contains(part), "no {part:?} in {calls}");
    }
    let has_devices = Path::new("/dev/infiniband").exists();
    assert_eq!(calls.contains("--device\n/dev/infiniband\n"), has_devices, "{calls}");
    // `rlaunch reap` asks this engine and no other.
    assert!(host.at(".cache/rlaunch/.ran-podman").exists());
    assert!(!host.at(".cache/rlaunch/.ran-docker").exists());
    // The command is told as it is.
    let said = String::from_utf8(output.stderr).unwrap();
    let told = said.lines().find_map(|line| line.strip_prefix(SAYS)?.strip_prefix("run "));
    let words = calls.lines().collect::<Vec<_>>().join(" ");
    assert_eq!(told.unwrap(), format!("podman {words} some/image:1 agent --callback 10.0.0.1:2"));
}

#[test]
fn labels_of_selinux_keep_nothing_from_a_container() {
    let host = Host::new();
    write(&host.at(".cache/rlaunch/0f/rlaunch-worker"), "#!/bin/sh\n");
    let enforce = host.at("enforce").display().to_string();
    for (tool, is_enforced, is_disabled) in
        [("docker", false, false), ("docker", true, true), ("podman", true, true)]
    {
        if is_enforced {
            fs::write(&enforce, "1").unwrap();
        }
        let _ = fs::remove_file(host.at("calls"));
        let line = image(tool, None).line(N, &agent(), "agent");
        assert!(line.contains("/sys/fs/selinux/enforce"), "{line}");
        let (output, calls) = host.run(&line.replace("/sys/fs/selinux/enforce", &enforce));
        assert!(output.status.success(), "{output:?}");
        let has_option = calls.contains("--security-opt\nlabel=disable\n");
        assert_eq!(has_option, is_disabled, "{tool}, {is_enforced}: {calls}");
    }
}

/// Returns the words of the engine's command, without those that stand for every job.
fn own_words(tool: &str, options: &RunOptions) -> String {
    let host = Host::new();
    write(&host.at(".cache/rlaunch/0f/rlaunch-worker"), "#!/bin/sh\n");
    let image = Image { options, ..image(tool, None) }.keep_limits(true);
    let line = image.line(N, &agent(), "agent");
    check_line(&line);
    let (output, calls) = host.run(&line);
    assert!(output.status.success(), "{output:?}");
    let words = calls.lines().collect::<Vec<_>>().join(" ");
    let (_, words) = words.split_once("--security-opt no-new-privileges ").unwrap();
    let words = words.trim_start_matches("--security-opt label=disable ");
    let words =
        words.trim_start_matches("--ulimit host ").trim_start_matches("--device /dev/infiniband ");
    let (words, _) =
        words.split_once(&format!("-v {}/.cache/rlaunch", host.0.path().display())).unwrap();
    words.trim_end().replace(host.0.path().to_str().unwrap(), "HOME")
}

#[test]
fn options_have_the_words_of_docker_run() {
    let volume = |text: &str| text.parse::<Volume>().unwrap();
    let word = |text: &str| text.parse::<PlainWord>().unwrap();
    let options = RunOptions {
        volumes: vec![volume("~/.cache/hf:/root/.cache/hf"), volume("/data:/data:ro")],
        devices: vec![word("/dev/fuse")],
        shm_size: Some(word("16g")),
        user: Some(word("1000:1000")),
        directory: Volume::of_directory("/no/such", "/no/such"),
        ..PLAIN.clone()
    };
    assert_eq!(
        own_words("docker", &options),
        "-v HOME/.cache/hf:/root/.cache/hf -v /data:/data:ro --device /dev/fuse --shm-size 16g --user 1000:1000"
    );
    let directory = Volume::of_directory("/usr", "/srv");
    let options = RunOptions { directory, ..PLAIN.clone() };
    assert_eq!(own_words("docker", &options), "-v /usr:/srv -w /srv");
    // The user may mount something there himself.
    let options = RunOptions { volumes: vec![volume("/data:/srv/:ro")], ..options };
    assert_eq!(own_words("docker", &options), "-w /srv -v /data:/srv/:ro");
    for (gpus, docker, podman) in [
        ("2", "--gpus 2", "--device nvidia.com/gpu=0 --device nvidia.com/gpu=1"),
        ("none", "", ""),
        ("0", "", ""),
        ("device=3", "--gpus device=3", "--device nvidia.com/gpu=3"),
        (
            "\"device=0,2\"",
            "--gpus \"device=0,2\"",
            "--device nvidia.com/gpu=0 --device nvidia.com/gpu=2",
        ),
    ] {
        let options = RunOptions { gpus: gpus.parse().ok(), ..PLAIN.clone() };
        assert_eq!(own_words("docker", &options), docker);
        assert_eq!(own_words("podman", &options), podman);
    }
}

#[test]
fn nothing_gets_into_a_shell_by_an_option() {
    for bad in ["", "-x", "a b", "a;b", "$(id)", "a'b", "`id`", "a\\b", "a!b"] {
        assert!(bad.parse::<PlainWord>().is_err(), "{bad}");
        assert!(format!("/a:/{bad};").parse::<Volume>().is_err(), "{bad}");
        assert!(format!("device={bad};").parse::<Gpus>().is_err(), "{bad}");
    }
    for bad in ["/a", "/a:b", ":/b", "-a:/b", "~root/x:/b", "/a b:/b", "/a:", "~:/b"] {
        assert!(bad.parse::<Volume>().is_err(), "{bad}");
    }
    let mut relative: Volume = "./data:/data".parse().unwrap();
    relative.below(|path| Some(format!("/home/me/{path}"))).unwrap();
    assert_eq!(relative.source(), "/home/me/./data");
    let mut odd: Volume = ".:/data".parse().unwrap();
    assert!(odd.below(|_| Some("/home/my data".to_owned())).is_err());
    let mut named: Volume = "cache:/data".parse().unwrap();
    named.below(|_| None).unwrap();
    assert_eq!(named.source(), "cache");
}

/// An engine that kept a container whose client is gone, and one whose client runs.
#[test]
fn a_start_removes_what_dead_clients_have_left() {
    let host = Host::new();
    write(&host.at(".cache/rlaunch/0f/rlaunch-worker"), "#!/bin/sh\nsleep 2\n");
    let alive =
        "born() { p=$1; read -r s </proc/$p/stat; set -- ${s##*) }; echo $p.${20}; }; born $$";
    let mut client = Command::new("sh");
    client.args(["-c", &format!("{alive}; exec sleep 60")]).stdout(Stdio::piped());
    let mut client = client.spawn().unwrap();
    let mut born = String::new();
    BufReader::new(client.stdout.take().unwrap()).read_line(&mut born).unwrap();
    let engine = format!(
        "#!/bin/sh\ncase $1 in\nps) echo dead alive;;\n\
         inspect) case $4 in dead) echo map[rlaunch.client:1.1 rlaunch.job:7];; \
         *) echo map[a:b rlaunch.client:{}];; esac;;\n\
         rm) echo $* >>$CALLS;;\nrun) sleep 2;; esac\n",
        born.trim()
    );
    write(&host.at("docker"), &engine);
    let (_, calls) = host.run(&image("docker", None).line(N, &agent(), "agent"));
    client.kill().unwrap();
    client.wait().unwrap();
    assert_eq!(calls, "rm -f dead\n");
}

#[test]
fn limits_that_the_engine_may_not_raise_stay() {
    let host = Host::new();
    write(&host.at(".cache/rlaunch/0f/rlaunch-worker"), "#!/bin/sh\necho here\n");
    for (keeps, raised) in [(false, true), (true, false)] {
        let _ = fs::remove_file(host.at("calls"));
        let image = image("docker", None).keep_limits(keeps);
        let (output, calls) = host.run(&image.line(N, &agent(), "agent"));
        assert_eq!(output.stdout, b"here\n");
        // A daemon of this machine may be one that may not raise limits, which the script finds out.
        let said = String::from_utf8(output.stderr).unwrap();
        let raises = raised && !said.contains(&format!("{SAYS}{KEEPS_LIMITS}"));
        assert_eq!(calls.contains("--ulimit\nmemlock=-1\n--ulimit\nstack="), raises, "{calls}");
    }
}

#[test]
fn a_command_of_the_users_starts_it_and_its_engine_removes_it() {
    let host = Host::new();
    write(&host.at(".cache/rlaunch/0f/rlaunch-worker"), "#!/bin/sh\necho here\n");
    let image = image("docker", Some("sudo docker run --rm -i --gpus all {name}"));
    let (output, calls) = host.run(&image.line(N, &agent(), "agent"));
    assert_eq!(output.stdout, b"here\n");
    assert!(calls.starts_with("run\n--rm\n-i\n--gpus\nall\n--name\nn\n--label\n"), "{calls}");
    fs::remove_file(host.at("calls")).unwrap();
    let script = image.removal_script();
    assert!(!script.contains(['\'', '\\', '!', '\n']), "{script}");
    let (output, calls) = host.run(&format!("exec sh -c '{script}' sh n n-2"));
    assert_eq!(output.stdout, b"its container is gone\n");
    let each = |name| format!("kill {name}\nrm -f {name}\n");
    let look = |name| format!("ps -a --filter name={name} --format {{{{.Names}}}}\n");
    assert_eq!(calls, [each("n"), each("n-2"), look("n"), look("n-2")].concat());
}

/// So that `rlaunch reap` without `--agent-dir` asks the engine, too.
#[test]
fn the_engine_of_an_agent_elsewhere_is_noted_in_the_home_directory() {
    let host = Host::new();
    let cache = host.at("elsewhere").display().to_string();
    write(&host.at("elsewhere/0f/rlaunch-worker"), "#!/bin/sh\n");
    let elsewhere = AgentLocation::InCache { cache, build: "0f".into() };
    let line = image("docker", None).line(N, &elsewhere, "agent");
    check_line(&line);
    host.run(&line);
    assert!(host.at(".cache/rlaunch/.ran-docker").exists());
    assert!(!host.at("elsewhere/.ran-docker").exists());
    fs::remove_dir_all(host.at(".cache")).unwrap();
    write(&host.at(".cache"), "no directory");
    host.run(&line);
    assert!(host.at("elsewhere/.ran-docker").exists());
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
    for (state, expected) in
        [("true", "n still runs\n"), ("", "n still runs\n"), ("false", "its container is gone\n")]
    {
        write(&host.at("docker"), &engine.replace("$STATE", state));
        let (output, _) = host.run(&format!("exec sh -c '{script}' sh n"));
        assert_eq!(String::from_utf8(output.stdout).unwrap(), expected, "{state}");
    }
    // It may go between the two questions.
    let goes = engine
        .replace("echo n;", "[ -e $HOME/gone ] || echo n;")
        .replace("echo $STATE", ": >$HOME/gone; exit 1");
    write(&host.at("docker"), &goes);
    let (output, _) = host.run(&format!("exec sh -c '{script}' sh n"));
    assert_eq!(output.stdout, b"its container is gone\n");
    // The engine's list may have another container, with a name that begins with this container's name.
    write(&host.at("docker"), &engine.replace("echo n;", "echo n-2;"));
    let (output, _) = host.run(&format!("exec sh -c '{script}' sh n"));
    assert_eq!(output.stdout, b"its container is gone\n");
}

#[test]
fn names_are_as_engines_have_them() {
    assert_eq!(container_name("rlaunch-1-me@fe80::1"), "rlaunch-1-me-fe80--1");
}

#[test]
fn secrets_in_a_command_are_not_printed() {
    let said = ["run docker run -e HF_TOKEN=abcd --rm image:1".to_owned()];
    let started = StartedContainer::read("docker", &said).unwrap();
    assert_eq!(started.command, "docker run -e HF_TOKEN=(set, 4 chars) --rm image:1");
}
