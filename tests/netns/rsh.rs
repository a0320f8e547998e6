//! Hosts that rlaunch reaches by a command of the launch node instead of its own SSH client, as
//! mpirun calls remote shell agents; and containers on hosts, which stand-ins for container engines
//! provide.

use crate::engines::{Engine, INSIDE};
use crate::guide;
use crate::support::{Field, State, Undo, launch_directory};
use nix::sys::signal::Signal;
use rlaunch_lab::Account;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Script like the one that v1alpha1 of Kubernetes' mpi-operator puts into a launcher pod, with ssh
/// in place of `kubectl exec`.
const KUBEXEC: &str = "#!/bin/sh\nset -x\nPOD_NAME=$1\nshift\nssh ${POD_NAME} \"$*\"\n";
/// [`KUBEXEC`] without stdin, like `kubectl exec` without `-i`.
const KUBEXEC_DEAF: &str = "#!/bin/sh\nset -x\nPOD_NAME=$1\nshift\nssh -n ${POD_NAME} \"$*\"\n";
/// [`KUBEXEC`] for a pod that does not exist.
const KUBEXEC_REFUSED: &str = "#!/bin/sh\nset -x\nPOD_NAME=$1\nshift\n\
    echo 'Error from server (NotFound): pods \"a\" not found' >&2\nexit 1\n";

/// Writes a script on the launch node, and returns its path.
fn script(directory: &Path, name: &str, text: &str) -> String {
    let path = directory.join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path.display().to_string()
}

/// Waits until no ssh process of `--rsh` is left on the launch node, which sees those of other labs.
fn assert_nothing_leads_there(field: &Field) {
    let own = "for p in $(pgrep -f '^ssh .*rlaunch-worker agent'); do \
               [ \"$(readlink /proc/$p/ns/net)\" != \"$(readlink /proc/self/ns/net)\" ] || echo $p; done";
    field.wait_for("the commands that lead to hosts to end", || {
        field.shell(own, Path::new("/")).is_empty()
    });
}

#[test]
fn a_command_leads_to_hosts_cold_and_warm() {
    let field = Field::new();
    field.forget_agents(&["a", "b"], Account::Root);
    let cold = field.rlaunch("-H a,root@b --rsh").args(["ssh -o BatchMode=yes", "hostname"]);
    let cold = cold.logging().run();
    assert_eq!(cold.succeeded().sorted(), ["a", "b"], "{cold}");
    cold.says(&["agent sent to a, root@b "]);
    // `{host}` is in the middle, and words are split as by a shell.
    let words = "ssh -o 'LogLevel QUIET' {host}";
    let run = field.rlaunch("-H a,b --rsh").args([words]).sh("echo up; exec sleep 1000");
    let mut running = run.spawn();
    running.wait_for_lines(2);
    running.signal(Signal::SIGINT);
    running.finish().ended_with(130);
    assert_nothing_leads_there(&field);
}

#[test]
fn an_agent_that_is_killed_is_cleared_up_behind_by_the_same_command() {
    let field = Field::new();
    let helper = "setsid sh -c 'trap \"\" TERM HUP; while :; do sleep 1; done' >/dev/null 2>&1 &
        echo up; exec sleep 1000";
    let mut running = field.rlaunch("-H a,b --rsh ssh --kill-after 1").sh(helper).spawn();
    running.wait_for_lines(2);
    let mut agents = field.lab.processes("b").unwrap();
    agents.retain(|process| process.args[0].ends_with("rlaunch-worker"));
    for agent in &agents {
        let pid = nix::unistd::Pid::from_raw(agent.pid);
        nix::sys::signal::kill(pid, Signal::SIGSTOP).unwrap();
    }
    for agent in &agents {
        let pid = nix::unistd::Pid::from_raw(agent.pid);
        nix::sys::signal::kill(pid, Signal::SIGKILL).unwrap();
    }
    let ran = running.finish_first();
    ran.ended_with(206).says(&["error: node b is lost"]);
    let left = field.ranks();
    assert!(left.is_empty(), "left when rlaunch returned: {left:#?}\n{ran}");
    field.clear_job_directories();
    assert_nothing_leads_there(&field);
}

#[test]
fn a_command_that_leads_nowhere_is_said_with_its_last_words() {
    let field = Field::new();
    let directory = launch_directory();
    let refused = script(directory.path(), "kubexec.sh", KUBEXEC_REFUSED);
    let ran = field.rlaunch("-H a,b --rsh").args([&refused, "hostname"]).run();
    let words = ["2 of 2 hosts", "kubexec.sh a` exited with code 1", "pods \"a\" not found"];
    ran.refused(201, &words).hints("kubexec.sh a 'echo hello'` should print just that");
    ran.keeps_quiet_about(&["POD_NAME"]);
    let ran = field.rlaunch("-H a --rsh /no/such/program hostname").run();
    ran.refused(201, &["a: cannot run `/no/such/program` of --rsh", "No such file"]);
    let ran = field.rlaunch("-H a --rsh").args(["ssh 'x", "hostname"]).run();
    ran.refused(200, &["--rsh has a quote that does not end"]).hints("kubectl exec -i {host}");
}

/// Runs the first job on its hosts, whose environment names a hostfile and a remote shell, as
/// mpi-operator sets it.
fn mpi_job(field: &Field, directory: &Path, kubexec: &str) -> crate::running::Outcome {
    field.forget_agents(&["a", "b"], Account::Root);
    let hostfile = directory.join("hostfile");
    fs::write(&hostfile, "# by the operator\na slots=2\nb slots=2 max_slots=4\n").unwrap();
    let kubexec = script(directory, "kubexec.sh", kubexec);
    let run = field.rlaunch("--allow-run-as-root -np 2 --map-by node hostname");
    let run = run.env("OMPI_MCA_orte_default_hostfile", hostfile.to_str().unwrap());
    run.env("OMPI_MCA_plm_rsh_agent", &kubexec).run()
}

#[test]
fn an_mpijob_of_v1alpha1_runs_as_it_is() {
    let field = Field::new();
    let directory = launch_directory();
    let ran = mpi_job(&field, directory.path(), KUBEXEC);
    assert_eq!(ran.succeeded().sorted(), ["a", "b"], "{ran}");
    ran.says(&["hostfile (OMPI_MCA_orte_default_hostfile): a, b; by ", "kubexec.sh"]);
    ran.keeps_quiet_about(&["POD_NAME"]);
    // Options take precedence over the environment.
    let hostfile = directory.path().join("hostfile");
    let typed = field.rlaunch("-H c hostname");
    let typed = typed.env("OMPI_MCA_orte_default_hostfile", hostfile.to_str().unwrap()).run();
    assert_eq!(typed.succeeded().out(), "c\n", "{typed}");
    typed.keeps_quiet_about(&["hostfile"]);
    fs::write(&hostfile, "a slots=2\n\nb sluts=2\n").unwrap();
    let wrong = field.rlaunch("hostname");
    let wrong = wrong.env("OMPI_MCA_orte_default_hostfile", hostfile.to_str().unwrap()).run();
    wrong.refused(200, &["hostfile:3: `sluts=` is not known"]).hints("-H names hosts");
}

#[test]
fn an_mpijob_of_v1alpha1_runs_without_stdin() {
    let field = Field::new();
    let directory = launch_directory();
    let ran = mpi_job(&field, directory.path(), KUBEXEC_DEAF);
    assert_eq!(ran.succeeded().sorted(), ["a", "b"], "{ran}");
    ran.keeps_quiet_about(&["POD_NAME"]);
}

/// Configures hosts as v2beta1 of mpi-operator does: sshd on port 2222, and one P-521 key in SEC1
/// format. Returns the path of an ssh configuration like the one in the operator's image.
fn v2beta1<'a>(field: &'a Field, directory: &Path) -> (String, impl Drop + 'a) {
    let key = directory.join("id_rsa");
    let mut keygen = Command::new("ssh-keygen");
    keygen.args(["-q", "-t", "ecdsa", "-b", "521", "-m", "PEM", "-N", "", "-f"]).arg(&key);
    assert!(keygen.status().unwrap().success());
    assert!(fs::read_to_string(&key).unwrap().contains("BEGIN EC PRIVATE KEY"));
    let public = fs::read_to_string(key.with_extension("pub")).unwrap();
    for host in ["a", "b"] {
        let path = Path::new("/tmp/v2beta1/authorized_keys");
        field.lab.write_file(host, path, public.as_bytes(), 0o600).unwrap();
        let lines = ["Port 2222", "AuthorizedKeysFile /tmp/v2beta1/authorized_keys"];
        field.lab.sshd(host).unwrap().restart(&lines).unwrap();
    }
    let undo = Undo(move || {
        ["a", "b"].iter().try_for_each(|host| {
            fs::remove_dir_all(field.lab.path(host, Path::new("/tmp/v2beta1"))?).unwrap();
            field.lab.sshd(host)?.restart(&[])
        })
    });
    let text = format!(
        "Host *\n    StrictHostKeyChecking no\n    UserKnownHostsFile /dev/null\n    Port 2222\n    \
         IdentityFile {}\n",
        key.display()
    );
    let config = directory.join("ssh_config");
    fs::write(&config, text).unwrap();
    (config.display().to_string(), undo)
}

#[test]
fn an_mpijob_of_v2beta1_runs_as_it_is() {
    let field = Field::new();
    let directory = launch_directory();
    let (config, _undo) = v2beta1(&field, directory.path());
    let hostfile = directory.path().join("hostfile");
    fs::write(&hostfile, "a:2\nb:2\n").unwrap();
    let run = field.rlaunch("-np 2 --map-by node --ssh-config").args([&config, "hostname"]);
    let run = run.env("OMPI_MCA_orte_default_hostfile", hostfile.to_str().unwrap());
    let ran = run.env("OMPI_MCA_plm_rsh_args", "-o ConnectionAttempts=10").run();
    assert_eq!(ran.succeeded().sorted(), ["a", "b"], "{ran}");
    ran.says(&["hostfile (OMPI_MCA_orte_default_hostfile): a, b"]);
}

#[test]
fn pods_whose_names_come_late_are_waited_for() {
    let field = Field::new();
    let directory = launch_directory();
    let (config, _undo) = v2beta1(&field, directory.path());
    let names = field.shell("cat /etc/hosts", Path::new("/"));
    let restore = format!("cat >/etc/hosts <<'END'\n{names}END");
    let _names = Undo(|| {
        field.shell(&restore, Path::new("/"));
        Ok::<(), std::io::Error>(())
    });
    let hostfile = directory.path().join("hostfile");
    fs::write(&hostfile, "rl-worker-0 slots=1\nrl-worker-1 slots=1\n").unwrap();
    let run = field.rlaunch("-np 2 --ssh-config").args([&config, "hostname"]);
    let run = run.env("OMPI_MCA_orte_default_hostfile", hostfile.to_str().unwrap());
    let mut running = run.spawn();
    running.wait_for_stderr("rl-worker-1 (its name is not in DNS yet)", 1);
    for (host, pod) in [("a", "rl-worker-0"), ("b", "rl-worker-1")] {
        let line = format!("echo {} {pod} >>/etc/hosts", field.lab.address(host).unwrap());
        field.shell(&line, Path::new("/"));
    }
    let ran = running.finish();
    assert_eq!(ran.succeeded().sorted(), ["a", "b"], "{ran}");
}

/// Script in place of `kubectl exec`: pods are hosts of the lab, and stdin is not passed on.
const KUBECTL: &str = "#!/bin/sh
set -x
pod=$1
shift
case $pod in rl-worker-0) host=a ;; *) host=b ;; esac
exec ssh -n $host \"hostname $pod; $*\"
";

#[test]
fn the_guide_on_mpijobs() {
    let field = Field::new();
    let directory = launch_directory();
    // The agents are on the hosts already, so rlaunch prints nothing about sending them.
    field.warm("a,b", Account::Root);
    let _names = Undo(|| {
        ["a", "b"].iter().for_each(|host| drop(field.on(host, &format!("hostname {host}"))));
        Ok::<(), std::io::Error>(())
    });
    let kubexec = script(directory.path(), "kubexec.sh", KUBECTL);
    let hostfile = directory.path().join("hostfile");
    fs::write(&hostfile, "rl-worker-0 slots=8\nrl-worker-1 slots=8\n").unwrap();
    let hosts = ["a", "b"];
    let _docker = Engine::Docker.on(&field, &hosts);
    for host in hosts {
        field.on(host, &format!("docker tag {INSIDE} train:1"));
    }
    // What is said once a day is said before.
    let state = State::new();
    let first = state.rlaunch(&field, &format!("-H a:8,b:8 --image {INSIDE} hostname"));
    first.in_directory(Path::new("/")).spawn().finish_first().succeeded();
    let environment = format!(
        "export OMPI_MCA_plm_rsh_agent={kubexec} OMPI_MCA_orte_default_hostfile={} XDG_STATE_HOME={}",
        hostfile.display(),
        state.path()
    );
    guide::follow("mpijob", field.rlaunch.to_str().unwrap(), |line| {
        field.shell(&format!("{environment}\n{line}"), Path::new("/"))
    });
}

/// Stand-in for Docker. It has a running container `mpi` and an image `lab/inside:1`, whose mounts
/// and host name differ from the host's; for other names it prints Docker's errors. The processes
/// of a container that it has started are found by their mount namespace.
const ENGINE: &str = r#"#!/bin/sh
echo "$*" >>/tmp/engines/calls
begins='mount -t tmpfs none /run && touch /run/.containerenv && hostname $(hostname)-inside'
becomes='exec env -i PATH=/usr/bin:/bin HOME=/tmp/inside "$@"'
mkdir -p /tmp/inside
case $1 in
    run)
        while [ $# -gt 0 ]; do
            case $1 in
                --name) name=$2 ;;
                --entrypoint) entry=$2 ;;
                -v) agent=${2%%:*} ;;
                lab/inside:1) break ;;
                lab/*) echo "Error response from daemon: No such image: $1" >&2; exit 125 ;;
            esac
            shift
        done
        shift
        begins="$begins && mount -t tmpfs none /opt && mkdir /opt/rlaunch"
        begins="$begins && mount -o bind,ro $agent /opt/rlaunch"
        begins="$begins && readlink /proc/self/ns/mnt >/tmp/engines/$name"
        exec unshare --mount --uts sh -c "$begins && $becomes" sh "$entry" "$@" ;;
    kill)
        [ -s /tmp/engines/$2 ] || exit 1
        for process in /proc/[0-9]*; do
            [ "$(readlink $process/ns/mnt)" != "$(cat /tmp/engines/$2)" ] ||
                kill -9 ${process#/proc/}
        done
        exit 0 ;;
    rm) exec rm /tmp/engines/$3 ;;
    ps) [ ! -e /tmp/engines/${4#name=} ] || echo ${4#name=}; exit 0 ;;
    inspect) [ ! -e /tmp/engines/$4 ] || echo true; exit 0 ;;
esac
[ "$1 $2" = "exec -i" ] || { echo "not understood: $*" >&2; exit 64; }
case $3 in
    mpi) ;;
    hung) trap : TERM; while sleep 0.1; do :; done ;;
    stopped) echo "Error response from daemon: container 3f2a is not running" >&2; exit 1 ;;
    locked)
        echo "permission denied while trying to connect to the Docker daemon socket at" \
            "unix:///var/run/docker.sock: connect: permission denied" >&2
        exit 1 ;;
    *) echo "Error response from daemon: No such container: $3" >&2; exit 1 ;;
esac
shift 3
exec unshare --mount --uts sh -c "$begins; $becomes" sh "$@"
"#;

/// Stand-in for Apptainer, which runs a program in an image that is a file: what is there has another host name here, and the
/// home directory and the processes are the host's.
const APPTAINER: &str = r#"#!/bin/sh
[ "$1 $2 $3" = "exec --nv train.sif" ] || { echo "FATAL:   not understood: $*" >&2; exit 255; }
shift 3
exec unshare --mount --uts sh -c 'hostname $(hostname)-inside && exec "$@"' sh "$@"
"#;

/// Puts the stand-ins for Docker and Apptainer on the PATH of logins.
fn engine<'a>(field: &'a Field, hosts: &'a [&'a str]) -> impl Drop + 'a {
    let bashrc = Account::Root.home().join(".bashrc");
    for host in hosts {
        for (name, text) in [("docker", ENGINE), ("apptainer", APPTAINER)] {
            let program = Path::new("/tmp/engines").join(name);
            field.lab.write_file(host, &program, text.as_bytes(), 0o755).unwrap();
        }
        field.lab.write_file(host, &bashrc, b"PATH=/tmp/engines:$PATH\n", 0o644).unwrap();
    }
    Undo(move || {
        hosts.iter().try_for_each(|host| {
            fs::remove_file(field.lab.path(host, &bashrc).unwrap())?;
            for directory in ["/tmp/engines", "/tmp/inside"] {
                let outside = field.lab.path(host, Path::new(directory)).unwrap();
                if outside.exists() {
                    fs::remove_dir_all(outside)?;
                }
            }
            Ok::<(), std::io::Error>(())
        })
    })
}

#[test]
fn a_job_runs_in_containers() {
    let field = Field::new();
    field.forget_agents(&["a", "b"], Account::Root);
    let _engine = engine(&field, &["a", "b"]);
    let run = || field.rlaunch("-H a,b --container docker:mpi -np 2 hostname");
    let cold = run().logging().run();
    assert_eq!(cold.succeeded().sorted(), ["a-inside", "b-inside"], "{cold}");
    cold.says(&["agent sent to a, b "]);
    assert!(!field.cache("a", Account::Root).exists(), "the host has got an agent");
    let warm = run().run();
    assert_eq!(warm.succeeded().sorted(), ["a-inside", "b-inside"], "{warm}");
    warm.says_nothing();
    // Ranks inside a container end with their job, also if the user gives the command that enters
    // the container.
    let run = field.rlaunch("-H a,b --container other:mpi --container-exec");
    let run = run.args(["/tmp/engines/docker exec -i {name}"]).sh("echo up; exec sleep 1000");
    let mut running = run.spawn();
    running.wait_for_lines(2);
    running.signal(Signal::SIGTERM);
    running.finish().ended_with(143);
}

#[test]
fn an_image_that_is_a_file_is_run_by_apptainer() {
    let field = Field::new();
    let _engine = engine(&field, &["a", "b"]);
    let run = field.rlaunch("-H a,b --container other:train.sif --container-exec");
    let ran = run.args(["apptainer exec --nv {name}", "hostname"]).run();
    assert_eq!(ran.succeeded().sorted(), ["a-inside", "b-inside"], "{ran}");
    // What the command says is shown.
    let run = field.rlaunch("-H a --container other:other.sif --container-exec");
    let ran = run.args(["apptainer exec --nv {name}", "hostname"]).run();
    ran.says(&["not understood: exec --nv other.sif"]);
}

#[test]
fn a_container_that_is_not_entered_is_said_with_what_helps() {
    let field = Field::new();
    let _engine = engine(&field, &["a"]);
    let run = |container: &str| {
        let words = format!("-H a --container {container} hostname");
        field.rlaunch(&words).run()
    };
    let locked = run("docker:locked");
    locked.refused(201, &["a: docker refuses: permission denied on its socket"]);
    locked.hints("on a: sudo usermod -aG docker $USER");
    run("docker:stopped").refused(201, &["stopped is not running"]).hints("docker start stopped");
    run("docker:gone").refused(201, &["there is no container gone"]).hints("docker ps -a");
    run("nerdctl:mpi")
        .refused(201, &["nerdctl is not installed there"])
        .hints("command -v nerdctl");
}

/// The client of an engine that hangs neither reads its stdin nor ends on SIGTERM.
#[test]
fn a_client_of_a_hung_engine_ends_soon_after_its_job() {
    let field = Field::new();
    let _engine = engine(&field, &["a"]);
    let running = field.rlaunch("-H a --container docker:hung hostname").spawn();
    let calls = || field.on("a", "cat /tmp/engines/calls 2>/dev/null || true");
    field.wait_for("the client", || calls().contains("exec -i hung"));
    running.signal(Signal::SIGTERM);
    running.finish_first().ended_with(143);
    field.wait_for("the client to be gone", || field.started().is_empty());
}

#[test]
fn a_job_runs_in_containers_of_its_own() {
    let field = Field::new();
    let hosts = ["a", "b"];
    field.forget_agents(&hosts, Account::Root);
    let _engine = engine(&field, &hosts);
    let run = |program: &str| {
        let words = format!("-H a,b --container docker:lab/inside:1 -np 2 {program}");
        field.rlaunch(&words)
    };
    let cold = run("hostname").logging().run();
    assert_eq!(cold.succeeded().sorted(), ["a-inside", "b-inside"], "{cold}");
    cold.says(&["agent sent to a, b "]);
    assert!(field.cache("a", Account::Root).exists(), "the host has not got an agent");
    let calls = || field.on("b", "cat /tmp/engines/calls");
    let asked = "run --rm -i --pull never --name rlaunch-";
    assert_eq!(calls().matches(asked).count(), 1, "{}", calls());
    // If the agent is lost, the engine removes the container and the rest of the job in it.
    let mut running = run("sh -c").args(["echo up; exec sleep 1000"]).logging().spawn();
    running.wait_for_lines(2);
    let mut agents = field.lab.processes("b").unwrap();
    agents.retain(|process| process.args[0].ends_with("rlaunch-worker"));
    assert_eq!(agents.len(), 2, "the guardian and the agent: {agents:?}");
    for signal in [Signal::SIGSTOP, Signal::SIGKILL] {
        for agent in &agents {
            // If one of the two is killed, the other may end with it, so that its kill fails.
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(agent.pid), signal);
        }
    }
    let ran = running.finish_first();
    ran.ended_with(206)
        .says(&["node b is lost", "agent lost, nothing more found (its container is gone)"]);
    ran.keeps_quiet_about(&["agent sent"]);
    let name =
        calls().lines().rfind(|call| call.starts_with("rm ")).unwrap()["rm -f ".len()..].to_owned();
    assert!(name.starts_with("rlaunch-") && name.ends_with("-b"), "{}", calls());
    assert!(calls().contains(&format!("kill {name}\nrm -f {name}\n")), "{}", calls());
    assert!(field.ranks().is_empty(), "{:#?}", field.ranks());
    field.clear_job_directories();
    let none = field.rlaunch("-H a --container docker:lab/other:1 hostname").run();
    none.refused(201, &["a: there is no image lab/other:1"]).hints("on a: docker pull lab/other:1");
    let wrong = field.rlaunch("reap --all -H a --container docker:lab/inside:1").run();
    wrong.refused(200, &["ends with its job"]).hints("without --image and --container");
}

#[test]
fn a_login_that_leads_into_a_container_is_checked() {
    let field = Field::new();
    let _engine = engine(&field, &["a"]);
    let sshd = field.lab.sshd("a").unwrap();
    let _restore = Undo(|| sshd.restart(&[]));
    let forced = "ForceCommand /tmp/engines/docker exec -i mpi sh -c \"$SSH_ORIGINAL_COMMAND\"";
    sshd.restart(&[forced]).unwrap();
    let ran = field.rlaunch("-H a --container forced:mpi hostname").run();
    assert_eq!(ran.succeeded().out(), "a-inside\n", "{ran}");
}
