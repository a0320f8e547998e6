//! `--image`: containers that are started for a job, by the real Docker and podman, and what is left of them.

use crate::engines::{BARE, Engine, INSIDE};
use crate::guide;
use crate::running::Running;
use crate::support::{BOUND, Field, Run, State, launch_directory};
use crate::up::{dump, own_files};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rlaunch_lab::Account;
use rlaunch_lab::setup::roots;
use std::io::{Seek, Write};
use std::path::Path;
use std::process::Stdio;

/// Volumes that give an image without programs those of its host.
pub(crate) const PROGRAMS: &str =
    "--volume /usr:/usr:ro --volume /bin:/bin:ro --volume /lib:/lib:ro --volume /lib64:/lib64:ro";

#[test]
fn a_job_runs_in_its_image() {
    let field = Field::new();
    let hosts = ["a", "b"];
    for engine in Engine::ALL {
        let _engine = engine.on(&field, &hosts);
        // What is said once a day is said here.
        let state = State::new();
        let run = |image: &str| {
            state
                .rlaunch(&field, "-H a,b --engine")
                .args([engine.name(), "--image", image])
                .env("SECRET", "1")
        };
        let script = "[ $0 = sh ] && hostname && [ -z \"$SECRET\" ]";
        let ran = run(INSIDE).args(["-x", "GIVEN=1"]).sh(script).spawn().finish_first();
        assert_eq!(ran.succeeded().sorted(), ["a", "b"], "{ran}");
        ran.says(&["may not raise limits there: ranks may lock only"]);
        // Without a shell, the agent is all there is.
        let agent = ["/opt/rlaunch/rlaunch-worker", "--version"];
        let ran = run(BARE).args(agent).spawn().finish_first();
        let out = ran.succeeded().out();
        assert_eq!(out.matches("rlaunch-worker ").count(), 2, "{ran}");
        for host in hosts {
            engine.wait_until_empty(&field, host);
        }
    }
}

#[test]
fn a_container_is_what_a_person_would_type() {
    let field = Field::new();
    let state = State::new();
    for engine in Engine::ALL {
        let _engine = engine.on(&field, &["a"]);
        let _data = field.files(&["a"], "/tmp/field/data", "from the host\n", 0o644);
        let words = format!(
            "-H a --engine {} --image {INSIDE} --gpus none --volume /tmp/field:/data:ro --shm-size 128m --user 7:8 \
             --job-name calm --show container",
            engine.name()
        );
        let run = state.rlaunch(&field, &words).sh("cat /data/data; id -u; id -g");
        let ran = run.spawn().finish_first();
        let out = ran.succeeded().out();
        let (shown, printed) = out.split_once('\n').unwrap();
        assert_eq!(printed, "from the host\n7\n8\n", "{ran}");
        // Names and the agent are rlaunch's own; the rest is what people type.
        let mut words = shown.strip_prefix("a: ").unwrap().split(' ').peekable();
        let mut typed = Vec::new();
        let mut own = Vec::new();
        while let Some(word) = words.next() {
            match word {
                "--name" | "--label" | "--entrypoint" => own.push(words.next().unwrap()),
                "-v" if words.peek().unwrap().ends_with(":/opt/rlaunch:ro") => drop(words.next()),
                word => typed.push(word),
            }
        }
        let limits = if engine == Engine::Podman { " --ulimit host" } else { "" };
        let expected = format!(
            "{} run --rm -i --pull never --network host --security-opt no-new-privileges{limits} \
             -v /tmp/field:/data:ro --shm-size 128m --user 7:8 {INSIDE} agent",
            engine.name()
        );
        let typed = typed.join(" ");
        assert!(typed.starts_with(&expected), "{typed}\n{expected}");
        assert!(own.contains(&"rlaunch.name=calm"), "{own:?}");
        engine.wait_until_empty(&field, "a");
    }
}

/// Kills the newest process of host a whose command line begins so. The lab lists no processes of containers, since they
/// have a namespace of their own for these.
fn kill_newest(field: &Field, begin: &str) {
    let line = format!("until p=$(pgrep -n -f '^{begin}'); do sleep 0.1; done; kill -9 $p");
    field.on("a", &line);
}

/// Way to end a job, and its exit code.
type End = (&'static str, i32, fn(&Field, Engine, Pid));

/// Kills the engine's client, which the login shell has started.
fn kill_client(field: &Field, engine: Engine, _: Pid) {
    kill_newest(field, &format!("{} run ", engine.name()));
}

/// Kills the agent, whose parent, the guardian, is the container's first process.
fn kill_agent(field: &Field, _: Engine, _: Pid) {
    kill_newest(field, "/opt/rlaunch/rlaunch-worker agent");
}

fn kill_engine(field: &Field, engine: Engine, _: Pid) {
    engine.kill_daemon(field, "a");
    engine.start_daemon(field, "a");
}

const ENDS: &[End] = &[
    ("the launcher gets TERM", 143, |_, _, launcher| kill(launcher, Signal::SIGTERM).unwrap()),
    ("the launcher gets INT", 130, |_, _, launcher| kill(launcher, Signal::SIGINT).unwrap()),
    ("the launcher is killed", -9, |_, _, launcher| kill(launcher, Signal::SIGKILL).unwrap()),
    ("the rank is killed", 137, |field, _, _| kill_newest(field, "sleep 4242")),
    ("the agent is killed", 206, kill_agent),
    ("the client is killed", 206, kill_client),
];

/// Ends a job in each way, and looks for what is left.
fn end_in_each_way(engine: Engine, ends: &[End]) {
    let field = Field::new();
    let _engine = engine.on(&field, &["a"]);
    let words = format!("-H a --engine {} --image {INSIDE}", engine.name());
    let ran = field.rlaunch(&words).sh("exit 3").spawn().finish_first();
    ran.ended_with(3);
    engine.wait_until_empty(&field, "a");
    for (way, code, end) in ends {
        let mut running = field.rlaunch(&words).sh("echo up; exec sleep 4242").spawn();
        running.wait_for_lines(1);
        end(&field, engine, running.pid());
        let ran = running.finish_first();
        assert_eq!(ran.code, *code, "{way}: {ran}");
        engine.wait_until_empty(&field, "a");
        let is_gone = || field.on("a", "pgrep -f '^sleep 4242' || true").is_empty();
        field.wait_for(way, is_gone);
    }
}

#[test]
fn docker_keeps_no_container_however_a_job_ends() {
    end_in_each_way(Engine::Docker, ENDS);
}

#[test]
fn podman_keeps_no_container_however_a_job_ends() {
    end_in_each_way(Engine::Podman, ENDS);
}

#[test]
fn docker_keeps_no_container_when_it_is_restarted() {
    end_in_each_way(Engine::Docker, &[("the engine is killed", 206, kill_engine)]);
}

/// A host that was switched off: of engine and containers only files are left.
#[test]
fn what_a_reboot_has_left_is_removed_by_the_next_job() {
    let field = Field::new();
    for engine in Engine::ALL {
        let _engine = engine.on(&field, &["a"]);
        let name = engine.name();
        // A container whose client is gone, and which has not started: --rm removes it never.
        let limits = if engine == Engine::Podman { "--ulimit host" } else { "" };
        let labels = "--label rlaunch.uid=0 --label rlaunch.client=1.1 --label rlaunch.job=7";
        let create =
            format!("{name} create --rm -i --network host {limits} {labels} {INSIDE} sleep 4242");
        field.on("a", &format!("{create} >/dev/null"));
        engine.kill_daemon(&field, "a");
        engine.start_daemon(&field, "a");
        let other = format!(
            "{name} create --network host {limits} --name other {INSIDE} sleep 4242 >/dev/null"
        );
        field.on("a", &other);
        let words = format!("-H a --engine {name} --image {INSIDE}");
        let mut running = field.rlaunch(&words).sh("echo up; exec sleep 4242").spawn();
        running.wait_for_text("up\n", 1);
        let count = || engine.containers(&field, "a").lines().count();
        // The job has one of its own.
        field.wait_for("what was left to be removed", || count() == 2);
        running.signal(Signal::SIGTERM);
        running.finish_first().ended_with(143);
        field.wait_for("the job's own to be removed", || count() == 1);
        assert!(engine.containers(&field, "a").starts_with("other "));
        // Nor does one outlive `rlaunch reap`.
        field.on("a", &format!("{create} >/dev/null"));
        let ran = field.rlaunch("reap --all -H a").spawn().finish_first();
        assert!(ran.succeeded().out().contains(", 1 containers removed"), "{ran}");
        assert!(engine.containers(&field, "a").starts_with("other "));
    }
}

#[test]
fn an_engine_is_quoted_and_so_is_the_command() {
    let field = Field::new();
    let _engine = Engine::Docker.on(&field, &["a"]);
    let run = |words: &str| {
        field.rlaunch("-H a --image").args(words.split(' ')).sh("true").spawn().finish_first()
    };
    let ran = run(&format!("{INSIDE} --device /dev/no-such"));
    ran.refused(201, &["docker fails: ", "no-such"])
        .hints("the command on a was:")
        .hints("  docker run --rm -i ");
    let ran = run("lab/none:1 --pull never");
    ran.refused(201, &["there is no image lab/none:1"]).hints("docker pull lab/none:1");
    // Hosts of the lab reach no registry.
    run("lab/none:1").refused(201, &["docker cannot pull lab/none:1: "]);
}

/// Docker calls the program that NVIDIA's toolkit brings, and podman reads its description of devices; both are stand-ins.
#[test]
fn gpus_are_passed_on_by_the_engines_own_option() {
    let field = Field::new();
    for engine in Engine::ALL {
        let _engine = engine.on(&field, &["a"]);
        let run = |gpus: &str, script: &str| {
            let run = field.rlaunch("-H a --engine").args([
                engine.name(),
                "--image",
                INSIDE,
                "--gpus",
                gpus,
            ]);
            let ran = run.sh(script).spawn().finish_first();
            ran.succeeded().out().trim_end().to_owned()
        };
        match engine {
            Engine::Docker => {
                let visible = "echo $NVIDIA_VISIBLE_DEVICES";
                for (gpus, seen) in [
                    ("all", "all"),
                    ("2", "0,1"),
                    ("device=3", "3"),
                    ("\"device=0,2\"", "0,2"),
                    ("none", ""),
                ] {
                    assert_eq!(run(gpus, visible), seen, "--gpus {gpus}");
                }
                assert_eq!(field.on("a", "cat /tmp/engine/hooks"), "prestart\n".repeat(4));
            }
            Engine::Podman => {
                let devices = "echo /dev/nvidia[01]";
                assert_eq!(run("2", devices), "/dev/nvidia0 /dev/nvidia1");
                assert_eq!(run("device=1", devices), "/dev/nvidia1");
                assert_eq!(run("all", "echo $LAB_GPUS"), "all");
                assert_eq!(run("none", devices), "/dev/nvidia[01]");
            }
        }
    }
}

#[test]
fn the_guide_on_images() {
    let field = Field::new();
    let hosts = ["a", "b"];
    let _files = own_files(&field, &hosts);
    let _docker = Engine::Docker.on(&field, &hosts);
    // Podman makes its storage and a lock when it is asked for images for the first time.
    let of_podman = ["/var/lib/containers", "/etc/cni/net.d/cni.lock"];
    let dumped = |host| {
        let lines = dump(&field, host);
        let lines = lines.lines().filter(|line| !of_podman.iter().any(|path| line.contains(path)));
        lines.map(|line| format!("{line}\n")).collect::<String>()
    };
    let before = hosts.map(dumped);
    field.on("a", &format!("docker tag {INSIDE} train:1"));
    let _data = field.files(&hosts, "/tmp/data/words", "of this host\n", 0o644);
    let directory = launch_directory();
    std::fs::write(directory.path().join("script"), "print\n").unwrap();
    let state = State::new();
    // What is said once a day is said before, and agents and copiers are there.
    for words in [
        format!("-H a,b --image {INSIDE} hostname"),
        format!("-H a --image {INSIDE} hostname"),
        "push -H a,b --from a /tmp/data/words".to_owned(),
    ] {
        let run = state.rlaunch(&field, &words).in_directory(directory.path());
        run.spawn().finish_first().succeeded();
    }
    // Only one of them is to have what is in the image.
    field.on("b", &format!("docker rmi {INSIDE} {BARE} >/dev/null"));
    guide::follow("docker", field.rlaunch.to_str().unwrap(), |line| {
        let state = format!("export XDG_STATE_HOME={}", state.path());
        field.shell(&format!("{state}\n{line}"), directory.path())
    });
    assert_eq!(hosts.map(dumped), before, "the guide ends with `rlaunch down`");
    hosts.iter().for_each(|host| Engine::Docker.wait_until_empty(&field, host));
}

/// Script for a host: makes an image with a Python and what stdin has as this file. Arguments: image, path in it.
const PYTHON_IMAGE: &str = r#"set -e
    mkdir -p /tmp/engine/image && cd /tmp/engine/image && mkdir -p bin dev etc opt proc root run sys tmp usr/bin ".${2%/*}"
    echo root:x:0:0::/root:/bin/sh >etc/passwd
    ln -s ../../bin/python3 usr/bin/python3
    for name in sh env python3; do
        cp -L /usr/bin/$name bin/
        for file in $(ldd /usr/bin/$name | grep -o '/[^ ]*'); do
            mkdir -p .${file%/*} && cp -L $file .$file
        done
    done
    library=$(python3 -c 'import os; print(os.path.dirname(os.__file__))')
    mkdir -p .${library%/*} && cp -r $library .$library
    cat >".$2" && chmod +x ".$2"
    tar -c . | docker import - "$1" >/dev/null
    cd / && rm -rf /tmp/engine/image"#;

fn python_image(field: &Field, host: &str, image: &str, path: &str, program: &str) {
    let mut make = field.lab.on(host, Account::Root).unwrap();
    make.args(["sh", "-c", PYTHON_IMAGE, "sh", image, path]);
    rlaunch_lab::command::feed("make an image", &mut make, program).unwrap();
}

#[test]
fn the_guide_on_servers() {
    let field = Field::new();
    let hosts = ["a", "b"];
    let _docker = Engine::Docker.on(&field, &hosts);
    let _models = field.scratch(&hosts, "/tmp/models");
    let vllm = include_str!("frameworks/vllm_stand_in.py");
    python_image(&field, "a", "vllm:0.11", "/usr/local/bin/vllm", vllm);
    let sglang = include_str!("frameworks/sglang_stand_in.py");
    let module = field.on("a", "python3 -c 'import site; print(site.getsitepackages()[0])'");
    let module = format!("{}/sglang/launch_server.py", module.trim_end());
    hosts.iter().for_each(|host| python_image(&field, host, "sglang:1", &module, sglang));
    field.lab.write_file("a", Path::new("/tmp/models/small"), b"weights", 0o644).unwrap();
    let state = State::new();
    // Agents and copiers are there, and what is said once a day is said before.
    for words in [
        format!("-H a,b --image {INSIDE} hostname"),
        "push -H a,b --from a /etc/hosts:/tmp/x".into(),
    ] {
        let run = state.rlaunch(&field, &words).in_directory(Path::new("/"));
        run.spawn().finish_first().succeeded();
    }
    guide::follow("serve", field.rlaunch.to_str().unwrap(), |line| {
        field.shell(&format!("export XDG_STATE_HOME={}\n{line}", state.path()), Path::new("/"))
    });
    hosts.iter().for_each(|host| Engine::Docker.wait_until_empty(&field, host));
}

/// A directory that the user mounts there himself is not mounted once more, which engines refuse.
#[test]
fn the_working_directory_may_be_a_volume() {
    let field = Field::new();
    for engine in Engine::ALL {
        let _engine = engine.on(&field, &["a"]);
        let here = launch_directory();
        let place = here.path().to_str().unwrap();
        let _data = field.files(&["a"], "/tmp/field/data", "from the host\n", 0o644);
        let words = format!("-H a --engine {} --image {INSIDE}", engine.name());
        let run = field.rlaunch(&words).in_directory(here.path());
        let run = run.args(["--volume", &format!("/tmp/field:{place}:ro")]);
        let ran = run.sh("cat data; pwd").spawn().finish_first();
        assert_eq!(ran.succeeded().out(), format!("from the host\n{place}\n"), "{ran}");
    }
}

/// What `rlaunch reap` needs to know is not where the agent is, and an engine that is away is said.
#[test]
fn what_an_agent_elsewhere_has_left_is_found_by_reap() {
    let field = Field::new();
    let _engine = Engine::Docker.on(&field, &["a"]);
    let _elsewhere = field.scratch(&["a"], "/tmp/agents");
    let job = format!("-H a --agent-dir /tmp/agents --image {INSIDE} hostname");
    field.on("a", "rm -f /root/.cache/rlaunch/.ran-*");
    field.rlaunch(&job).spawn().finish_first().succeeded();
    let labels = "--label rlaunch.uid=0 --label rlaunch.client=1.1 --label rlaunch.job=7";
    field.on("a", &format!("docker create --network host {labels} {INSIDE} sleep 4242 >/dev/null"));
    let reap = || field.rlaunch("reap --all -H a").spawn().finish_first();
    Engine::Docker.kill_daemon(&field, "a");
    let away = reap();
    away.ended_with(201).says(&["a: 0 ended, ", "docker: may have some left: "]);
    away.hints("the same command removes them once the engine answers");
    Engine::Docker.start_daemon(&field, "a");
    let ran = reap();
    assert!(ran.succeeded().out().contains(", 1 containers removed"), "{ran}");
    Engine::Docker.wait_until_empty(&field, "a");
}

const WAITS: &str = "\
import time
def step(loss):
    breakpoint()
    print('loss', loss, flush=True)
def waits_here():
    time.sleep(1000)
print('up', flush=True)
step(3)
waits_here()
";

/// Starts a verb with this text as its stdin.
fn ask<'a>(field: &'a Field, run: &Run<'a>, stdin: &str) -> Running<'a> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(stdin.as_bytes()).unwrap();
    file.rewind().unwrap();
    let mut command = run.command();
    command.stdin(file).stdout(Stdio::piped()).stderr(Stdio::piped());
    Running::start(field, &mut command, BOUND)
}

/// Sessions beside ranks and the questions about a job reach into its containers.
#[test]
fn a_job_in_containers_is_asked_like_others() {
    let field = Field::new();
    let state = State::new();
    for engine in Engine::ALL {
        let hosts = ["a", "b"];
        let _engine = engine.on(&field, &hosts);
        let _script = field.files(&hosts, "/tmp/field/train.py", WAITS, 0o644);
        let name = engine.name();
        let job = format!("by-{name}");
        let words = format!(
            "-H a,b --engine {name} --image {BARE} {PROGRAMS} --volume /tmp/field:/srv:ro --job-name {job}"
        );
        let run = state.rlaunch(&field, &words).args(["python3", "/srv/train.py"]);
        let mut running = run.spawn();
        running.wait_for_stderr(" stops at train.py:3 in step: rlaunch attach ", 2);
        let verb = |words: &str| state.rlaunch(&field, words);
        let inside = verb(&format!("exec {job} 1 --"));
        let inside = inside.sh("echo in $RANK of /opt/rlaunch/*").spawn().finish_first();
        assert!(inside.succeeded().out().starts_with("in 1 of /opt/rlaunch/"), "{inside}");
        assert!(state.ask(&field, &format!("logs {job}")).out().contains("up"));
        let looked = ask(&field, &verb(&format!("attach {job} 1")), "p 'seen', loss\n");
        let looked = looked.finish_first();
        assert!(looked.succeeded().out().contains("('seen', 3)"), "{looked}");
        for rank in 0..2 {
            let attach = verb(&format!("attach {job} {rank}"));
            ask(&field, &attach, "loss = 9\nc\n").finish_first().succeeded();
        }
        running.wait_for_text("loss 9\n", 2);
        field.wait_for("the stacks of both ranks", || {
            state.ask(&field, &format!("stack {job}")).out().contains("ranks 0-1: waits_here ")
        });
        let seen = state.ask(&field, &format!("monitor {job} --once"));
        let out = seen.out();
        let rows: Vec<Vec<&str>> =
            out.lines().map(|line| line.split_whitespace().collect()).collect();
        for (rank, host) in [("0", "a"), ("1", "b")] {
            let is_row =
                |row: &Vec<&str>| row.starts_with(&[rank, host]) && row.ends_with(&["sleeps"]);
            assert!(rows.iter().any(is_row), "{seen}");
        }
        running.signal(Signal::SIGTERM);
        running.finish_first().ended_with(143);
        hosts.iter().for_each(|host| engine.wait_until_empty(&field, host));
    }
}

/// Image with Debian's Open MPI and mpi4py.
const MPI: &str = "lab/mpi:1";
const MPI_PROGRAM: &str = include_str!("mpi/program.py");
/// Sums by rlaunch's own communicator.
const SUMS: &str = "\
import array, rlaunch
comm = rlaunch.init()
for length in 1, 1 << 20:
    sums = array.array('q', [comm.rank + 1]) * length
    comm.all_reduce(sums)
    assert sums[0] == sums[-1] == 10, sums[-1]
print(comm.size)
";

/// Docker's filter of system calls keeps ranks from reading each other's memory, which Open MPI does not notice by itself.
#[test]
fn mpi_ranks_and_the_communicator_of_two_hosts_meet_in_containers() {
    let field = Field::new();
    let hosts = ["a", "b"];
    let _engine = Engine::Docker.on(&field, &hosts);
    let root = roots::MPI_IMAGE.make().unwrap();
    for host in hosts {
        let mut tar = std::process::Command::new("tar");
        let mut tar =
            tar.arg("-C").arg(&root).args(["-c", "."]).stdout(Stdio::piped()).spawn().unwrap();
        let mut import = field.lab.on(host, Account::Root).unwrap();
        import.args(["docker", "import", "-", MPI]).stdin(tar.stdout.take().unwrap());
        assert!(import.stdout(Stdio::null()).status().unwrap().success());
        assert!(tar.wait().unwrap().success());
    }
    let _program = field.files(&hosts, "/tmp/field/program.py", MPI_PROGRAM, 0o644);
    let words = format!("-H a:2,b:2 --image {MPI} --volume /tmp/field:/srv:ro");
    let run = field.rlaunch(&words).within(crate::mpi::PATIENCE);
    let ran = run.args(["python3", "/srv/program.py", "all", "65536"]).spawn().finish_first();
    assert!(ran.succeeded().out().starts_with("right on 4 ranks"), "{ran}");
    ran.keeps_quiet_about(&["expected 65536"]);
    let ran = field.rlaunch(&words).args(["python3", "-c", SUMS]).spawn().finish_first();
    assert_eq!(ran.succeeded().out(), "4\n".repeat(4), "{ran}");
    hosts.iter().for_each(|host| Engine::Docker.wait_until_empty(&field, host));
}
