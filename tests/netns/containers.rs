//! Jobs in containers of a real podman. What containers lack for RDMA is found on guests
//! (`tests/vm/containers.rs`), which have devices.

use crate::engines::{BARE, Engine};
use crate::support::{Field, State, Undo, launch_directory};
use crate::tree;
use nix::sys::signal::Signal;
use rlaunch_lab::Account;
use std::fs;
use std::path::Path;

/// Shell line that configures podman for a host of the lab: its storage is in memory, and it does
/// without control groups. The machine may not let limits be raised, as `--ulimit` asks, so
/// containers have those of the host.
const PODMAN: &str = r#"set -e
    mkdir -p /tmp/podman/etc /tmp/podman/storage /tmp/podman/inside
    mount -t tmpfs none /tmp/podman/storage
    cp -r /etc/containers/. /tmp/podman/etc
    printf '[storage]\ndriver = "vfs"\ngraphroot = "/tmp/podman/storage"\nrunroot = "/run/podman"\n' \
        >/tmp/podman/etc/storage.conf
    printf '[containers]\ncgroups = "disabled"\nutsns = "host"\n[engine]\ncgroup_manager = "cgroupfs"\n' \
        >/tmp/podman/etc/containers.conf
    printf '[engine.runtimes]\ncrun = ["/tmp/podman/crun"]\n' >>/tmp/podman/etc/containers.conf
    cat >/tmp/podman/crun <<'CRUN'
#!/usr/bin/python3
import json, os, sys
if "--bundle" in sys.argv:
    path = os.path.join(sys.argv[sys.argv.index("--bundle") + 1], "config.json")
    with open(path) as file:
        config = json.load(file)
    config["process"].pop("rlimits", None)
    with open(path, "w") as file:
        json.dump(config, file)
os.execvp("crun", ["crun", *sys.argv[1:]])
CRUN
    chmod +x /tmp/podman/crun
    mount --bind /tmp/podman/etc /etc/containers"#;

/// Shell line that starts the container `mpi`. Its root consists of the host's own programs, so no
/// image is needed.
const START: &str = "set -e
    mount -t tmpfs none /tmp/podman/inside
    cd /tmp/podman/inside && mkdir usr etc proc sys dev tmp run root
    for name in bin sbin lib lib64; do ln -s usr/$name $name; done
    for name in usr etc; do mount --bind /$name $name; done
    podman run -d --name mpi --network=host --rootfs /tmp/podman/inside sleep infinity";

/// Shell line that makes an image with a shell and the programs that install an agent.
const IMAGE: &str = r#"set -e
    mkdir -p /tmp/podman/image && cd /tmp/podman/image && mkdir usr dev etc opt proc root run sys tmp
    for name in bin sbin lib lib64; do mkdir -p usr/$name && ln -s usr/$name $name; done
    for name in sh cp mkdir mv uname hostname id sleep; do
        cp -L /usr/bin/$name usr/bin/
        for file in $(ldd /usr/bin/$name | grep -o '/[^ ]*'); do
            mkdir -p .${file%/*} && cp -L $file .$file
        done
    done
    echo root:x:0:0::/root:/bin/sh >etc/passwd
    tar -c . | podman import -q - lab/inside:1"#;

/// Configures podman on `hosts`. When the guard is dropped, nothing of it is left there.
fn podman<'a>(field: &'a Field, hosts: &'a [&'a str]) -> impl Drop + 'a {
    let guard = Undo(move || {
        for host in hosts {
            field.on(
                host,
                "podman rm -f -t 0 -a >/dev/null
                umount -R -l /etc/containers /tmp/podman/inside /tmp/podman/storage 2>/dev/null
                rm -rf /root/.cache/rlaunch/.ran-* /tmp/podman /run/podman /run/libpod",
            );
        }
        Ok::<(), std::io::Error>(())
    });
    for host in hosts {
        field.on(host, PODMAN);
    }
    guard
}

/// Waits until neither ranks nor agents of a job are left; containers are.
fn no_job_is_left(field: &Field) {
    field.wait_for("ranks and agents to be gone", || {
        let started = field.started();
        let mut words = started.iter().flat_map(|process| &process.args);
        !words.any(|word| word == "4242" || word.ends_with("rlaunch-worker"))
    });
}

#[test]
fn a_job_runs_in_a_container_that_runs_already() {
    let field = Field::new();
    let hosts = ["a", "b"];
    let _podman = podman(&field, &hosts);
    hosts.iter().for_each(|host| drop(field.on(host, START)));
    let job = "-H a,b --container podman:mpi -np 2";
    let ran =
        field.rlaunch(job).sh("test -e /run/.containerenv && hostname").spawn().finish_first();
    assert_eq!(ran.succeeded().sorted(), ["a", "b"], "{ran}");
    ran.keeps_quiet_about(&["podman run needs", "install in the image"]);
    let none = field.rlaunch("-H a --container podman:nobody hostname").spawn().finish_first();
    none.refused(201, &["there is no container nobody"]).hints("podman ps -a");
    // The rank is a child of podman's monitor and not of the login.
    let mut running = field.rlaunch(job).sh("echo up; exec sleep 4242").spawn();
    running.wait_for_lines(2);
    running.signal(Signal::SIGKILL);
    running.finish_first();
    no_job_is_left(&field);
}

/// The same of the real Docker, whose daemon and not the login has started the rank.
#[test]
fn a_job_runs_in_a_container_of_docker_that_runs_already() {
    let field = Field::new();
    let hosts = ["a", "b"];
    let _docker = Engine::Docker.on(&field, &hosts);
    let programs = "-v /usr:/usr:ro -v /bin:/bin:ro -v /lib:/lib:ro -v /lib64:/lib64:ro";
    let start = format!(
        "docker run -d --name mpi --network host {programs} {BARE} sleep infinity >/dev/null"
    );
    hosts.iter().for_each(|host| drop(field.on(host, &start)));
    let job = "-H a,b --container docker:mpi -np 2";
    let ran = field.rlaunch(job).sh("test -e /.dockerenv && hostname").spawn().finish_first();
    assert_eq!(ran.succeeded().sorted(), ["a", "b"], "{ran}");
    let none = field.rlaunch("-H a --container docker:nobody hostname").spawn().finish_first();
    none.refused(201, &["there is no container nobody"]).hints("docker ps -a");
    let mut running = field.rlaunch(job).sh("echo up; exec sleep 4242").spawn();
    running.wait_for_lines(2);
    running.signal(Signal::SIGKILL);
    running.finish_first();
    // Processes of containers are seen from their host alone.
    let is_gone = |host: &&str| {
        field.on(host, "pgrep -f '^sleep 4242|^[^ ]*rlaunch-worker agent' || true").is_empty()
    };
    field.wait_for("ranks and agents to be gone", || hosts.iter().all(is_gone));
    field.on("b", "docker kill mpi >/dev/null");
    let stopped = field.rlaunch("-H b --container docker:mpi hostname").spawn().finish_first();
    stopped.refused(201, &["the container mpi is not running"]).hints("docker start mpi");
}

#[test]
fn a_job_runs_in_a_container_that_is_started_for_it() {
    let field = Field::new();
    let _podman = podman(&field, &["a"]);
    field.on("a", IMAGE);
    let job = "-H a --container podman:localhost/lab/inside:1 sh -c";
    let ran =
        field.rlaunch(job).args(["test -e /run/.containerenv && hostname"]).spawn().finish_first();
    assert_eq!(ran.succeeded().out(), "a\n", "{ran}");
    let removed = || field.on("a", "podman ps -aq").is_empty();
    field.wait_for("the container to be removed", removed);
    let none = field.rlaunch("-H a --container podman:localhost/lab/none:1 true").spawn();
    let none = none.finish_first();
    none.refused(201, &["there is no image localhost/lab/none:1"]);
    none.hints("podman pull localhost/lab/none:1");
    // If the launcher is killed, the rank ends, and the container with it.
    let mut running = field.rlaunch(job).args(["echo up; exec sleep 4343"]).spawn();
    running.wait_for_lines(1);
    running.signal(Signal::SIGKILL);
    running.finish_first();
    field.wait_for("the container to be gone", || removed() && field.ranks().is_empty());
}

/// Recorded machines, whose /sys containers get in place of the host's: hosts of the lab have neither RDMA nor GPUs.
const WITH_RDMA: &str = include_str!("../../worker/fixtures/bond.tree");
const WITH_GPUS: &str = include_str!("../../worker/fixtures/dgx.tree");

/// Puts a recorded machine's /sys into a directory of host a, where it has these network interfaces or none.
fn lay_out(field: &Field, name: &str, text: &str, has_interfaces: bool) -> String {
    let place = format!("/tmp/machines/{name}");
    let outside = field.lab.path("a", Path::new(&place)).unwrap();
    tree::lay_out_below(&outside, text).unwrap();
    // The engine mounts control groups there.
    fs::create_dir_all(outside.join("sys/fs/cgroup")).unwrap();
    if !has_interfaces {
        fs::remove_dir_all(outside.join("sys/class/net")).unwrap();
        fs::create_dir(outside.join("sys/class/net")).unwrap();
    }
    format!("{place}/sys:/sys:ro")
}

/// Flags of a container, the findings with what they advise, and ids of findings that are not made.
type Lack = (String, Vec<(&'static str, &'static str)>, Vec<&'static str>);

/// Lists what containers may lack. The volumes are recorded machines.
fn lacks(rdma: &str, apart: &str, gpus: &str) -> Vec<Lack> {
    let uverbs = "--device /dev/null:/dev/infiniband/uverbs0";
    vec![
        (
            format!("--network host {uverbs} --ulimit memlock=65536:65536 -v {rdma}"),
            vec![
                ("lim.memlock a this docker container may lock only 64 KiB", "--ulimit memlock=-1"),
                (
                    "ct.shm a /dev/shm of this docker container has only 64 MiB",
                    "--ipc=host or --shm-size=1g",
                ),
            ],
            vec!["ct.net", "ct.gpu", "dev.uverbs"],
        ),
        (
            format!("--network host --ipc host -v {rdma}"),
            vec![(
                "dev.uverbs a mlx5_bond_0 mlx5_bond_0 is in sysfs without a file",
                "--device=/dev/infiniband",
            )],
            vec!["ct.shm", "ct.net", "ct.gpu"],
        ),
        (
            format!("--network none --ipc host {uverbs} -v {apart}"),
            vec![("ct.net a this docker container has its own network namespace", "--net=host")],
            vec!["ct.shm", "dev.uverbs"],
        ),
        (
            format!("--network host --ipc host -v {gpus}"),
            vec![(
                "ct.gpu a this docker container was started without the 8 NVIDIA GPUs",
                "--gpus all",
            )],
            vec!["ct.shm", "ct.net"],
        ),
        (
            format!("--network host --ipc host --device /dev/null:/dev/nvidiactl -v {gpus}"),
            vec![],
            vec!["ct.gpu", "ct.shm", "ct.net"],
        ),
    ]
}

#[test]
fn doctor_finds_what_a_container_of_docker_was_started_without() {
    let field = Field::new();
    let _docker = Engine::Docker.on(&field, &["a"]);
    let _machines = field.scratch(&["a"], "/tmp/machines");
    let rdma = lay_out(&field, "rdma", WITH_RDMA, true);
    let apart = lay_out(&field, "apart", WITH_RDMA, false);
    let gpus = lay_out(&field, "gpus", WITH_GPUS, true);
    let programs = "-v /usr:/usr:ro -v /bin:/bin:ro -v /lib:/lib:ro -v /lib64:/lib64:ro";
    for (flags, expected, absent) in lacks(&rdma, &apart, &gpus) {
        field
            .on("a", &format!("docker run -d --name box {flags} {programs} {BARE} sleep infinity"));
        let ran = field.rlaunch("doctor -H a --container docker:box").spawn().finish_first();
        let lines: Vec<String> = ran.out().lines().map(squeezed).collect();
        for (finding, advice) in expected {
            let at = lines.iter().position(|line| line.contains(finding));
            let at = at.unwrap_or_else(|| panic!("{flags}: no {finding}: {ran}"));
            assert!(
                lines[at + 2].ends_with(&format!("docker run {advice}"))
                    || lines[at + 2].ends_with(&format!("needs {advice}")),
                "{flags}: {ran}"
            );
        }
        let other = absent.iter().find(|id| lines.iter().any(|line| line.contains(*id)));
        assert_eq!(other, None, "{flags}: {ran}");
        field.on("a", "docker rm -f box");
    }
    // The same of an image, whose containers get what the engine may give.
    let volumes = programs.replace("-v ", "--volume ");
    let words = format!("doctor -H a --image {BARE} {volumes} --volume {gpus} --shm-size 64m");
    let ran = field.rlaunch(&words).spawn().finish_first();
    let out = squeezed(&ran.out());
    for finding in
        ["ct.gpu a this docker", "ct.shm a /dev/shm of this docker", "dev.uverbs a mlx5_0"]
    {
        assert!(out.contains(finding), "no {finding}: {ran}");
    }
    Engine::Docker.wait_until_empty(&field, "a");
}

/// Writes a line with one space in place of several.
fn squeezed(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Engine that refuses what its first lines say, and otherwise runs the agent on the host itself.
const ENGINE: &str = r#"#!/bin/sh
[ "$1" = run ] || exit 0
case "$*" in REFUSED)
    echo "FATA[0000] OCI runtime create failed: runc create failed: unable to start container process: CAUSE" >&2
    exit 1
esac
while [ "$1" != lab/inside:1 ]; do
    case $1 in *:/opt/rlaunch:ro) agents=${1%%:*};; esac
    shift
done
shift
exec "$agents/rlaunch-worker" "$@"
"#;

#[test]
fn an_engine_may_refuse_limits_and_is_quoted_otherwise() {
    let field = Field::new();
    field.warm("a", Account::Root);
    let bashrc = Account::Root.home().join(".bashrc");
    let _path =
        field.files(&["a"], bashrc.to_str().unwrap(), "PATH=/tmp/engine/bin:$PATH\n", 0o644);
    let _scratch = field.scratch(&["a"], "/tmp/engine");
    let run = |refused: &str, cause: &str| {
        let engine = ENGINE.replace("REFUSED", refused).replace("CAUSE", cause);
        let path = Path::new("/tmp/engine/bin/nerdctl");
        field.lab.write_file("a", path, engine.as_bytes(), 0o755).unwrap();
        let state = State::new();
        state.rlaunch(&field, "-H a --container nerdctl:lab/inside:1 hostname").run()
    };
    let ran = run("*--ulimit*", "error setting rlimit type 8: operation not permitted");
    assert_eq!(ran.succeeded().out(), "a\n", "{ran}");
    ran.says(&["a: nerdctl may not raise limits there"]);
    let cgroup = "unable to apply cgroup configuration: mkdir /x: no such file or directory";
    let ran = run("*", cgroup);
    ran.refused(201, &["nerdctl fails: ", cgroup]).hints("the command on a was");
}

#[test]
fn ranks_in_a_container_show_their_stacks() {
    let field = Field::new();
    let hosts = ["a", "b"];
    let _podman = podman(&field, &hosts);
    hosts.iter().for_each(|host| drop(field.on(host, START)));
    let state = launch_directory();
    let state = state.path().to_str().unwrap();
    let program = "import time\ndef waits_here():\n    print('up', flush=True)\n    time.sleep(1000)\nwaits_here()";
    let job = field.rlaunch("-H a,b --container podman:mpi -np 2 /usr/bin/python3 -c");
    let mut running = job.args([program]).env("XDG_STATE_HOME", state).spawn();
    running.wait_for_lines(2);
    field.wait_for("the stacks of both ranks", || {
        let shown = field.rlaunch("stack").env("XDG_STATE_HOME", state).spawn().finish_first();
        shown.out().contains("ranks 0-1: ") && shown.out().contains("waits_here <string>:4")
    });
    running.signal(Signal::SIGTERM);
    running.finish_first().ended_with(143);
    no_job_is_left(&field);
}
