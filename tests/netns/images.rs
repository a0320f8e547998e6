//! `--image`: containers that are started for a job, by the real Docker and podman, and what is left of them.

use crate::engines::{BARE, Engine, INSIDE};
use crate::support::{Field, State};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

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
        let ran = field.rlaunch(&words).sh("sleep 2").spawn().finish_first();
        ran.succeeded();
        field.wait_for("what was left to be removed", || {
            engine.containers(&field, "a").lines().count() == 1
        });
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

/// Sessions beside ranks and the questions about a job reach into its containers.
#[test]
fn a_job_in_containers_is_asked_like_others() {
    let field = Field::new();
    let state = State::new();
    for engine in Engine::ALL {
        let _engine = engine.on(&field, &["a"]);
        let name = engine.name();
        let words = format!("-H a --engine {name} --image {INSIDE} --job-name by-{name}");
        let mut running = state.rlaunch(&field, &words).sh("echo up; exec sleep 4242").spawn();
        running.wait_for_lines(1);
        let ran = state
            .rlaunch(&field, &format!("exec by-{name} 0 --"))
            .sh("echo in $RANK of /opt/rlaunch/*")
            .spawn()
            .finish_first();
        assert!(ran.succeeded().out().starts_with("in 0 of /opt/rlaunch/"), "{ran}");
        assert!(state.ask(&field, &format!("logs by-{name}")).out().contains("up"));
        running.signal(Signal::SIGTERM);
        running.finish_first().ended_with(143);
        engine.wait_until_empty(&field, "a");
    }
}
