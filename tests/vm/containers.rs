//! Jobs in containers, with a real podman on the guests.

use crate::background::Background;
use crate::support::{Field, Undo};
use rlaunch_lab::command::wait_until;
use std::time::Duration;

/// Shell line that starts a container. Its root consists of the guest's own programs, so no image
/// is needed. Podman's storage is in memory, since it cannot be on the guest's root.
const START: &str = "mountpoint -q /var/lib/containers || mount -t tmpfs none /var/lib/containers
    mkdir -p /inside && mountpoint -q /inside || mount -t tmpfs none /inside
    cd /inside && mkdir -p usr etc proc sys dev tmp run root
    for name in bin sbin lib lib64; do ln -sfn usr/$name $name; done
    for name in usr etc; do mountpoint -q $name || mount --bind /$name $name; done
    podman run -d --name $NAME --cgroups=disabled --uts=host $FLAGS \\
        --rootfs /inside sleep infinity";

// Options of podman that containers need for RDMA.
const NETWORK: &str = "--network=host";
const MEMORY: &str = "--ulimit memlock=-1:-1";
const SHARED: &str = "--shm-size=256m";
const DEVICE: &str = "--device=/dev/infiniband";

/// Starts a container on a guest.
fn start(field: &Field, guest: &str, name: &str, flags: &str) {
    field.on(guest, &format!("NAME={name}; FLAGS='{flags}'; {START}"));
}

/// Starts a container that has what jobs with RDMA need.
pub(crate) fn start_whole(field: &Field, guest: &str, name: &str) {
    start(field, guest, name, &format!("{NETWORK} {MEMORY} {SHARED} {DEVICE}"));
}

/// Builds an image with the guest's shell and the programs that install an agent in a container.
/// When the guard is dropped, the image is removed. Until then podman works without control groups,
/// which are not available on these guests.
fn image<'a>(field: &'a Field, guest: &'a str) -> impl Drop + 'a {
    let build = r#"mountpoint -q /var/lib/containers || mount -t tmpfs none /var/lib/containers
        cp /etc/containers/containers.conf /etc/containers/before
        printf '[containers]\ncgroups = "disabled"\n' >>/etc/containers/containers.conf
        mkdir -p /image && cd /image && mkdir -p usr dev etc opt proc root run sys tmp
        for name in bin sbin lib lib64; do mkdir -p usr/$name && ln -sfn usr/$name $name; done
        for name in sh cp mkdir mv uname hostname id sleep; do
            cp -L /usr/bin/$name usr/bin/
            for file in $(ldd /usr/bin/$name | grep -o '/[^ ]*'); do
                mkdir -p .${file%/*} && cp -L $file .$file
            done
        done
        echo root:x:0:0::/root:/bin/sh >etc/passwd
        tar -c . | podman import -q - lab/inside:1"#;
    field.on(guest, build);
    Undo(move || {
        let line = "podman rm -f -t 0 -a >/dev/null; podman rmi -f lab/inside:1 >/dev/null
            rm -rf /image; mv /etc/containers/before /etc/containers/containers.conf";
        field.restore(guest, line)
    })
}

/// Removes all containers on `guests` when the guard is dropped.
pub(crate) fn clear<'a>(field: &'a Field, guests: &'a [&'a str]) -> impl Drop + 'a {
    Undo(move || {
        guests.iter().try_for_each(|guest| {
            let line = "podman rm -f -t 0 -a >/dev/null; umount -R -l /inside /var/lib/containers";
            field.restore(guest, line)
        })
    })
}

#[test]
fn each_lack_is_said_with_the_flag_that_gives_it() {
    let field = Field::new();
    let guests = ["n1", "n2"];
    let _gone = clear(&field, &guests);
    let little = "--ulimit memlock=65536:65536";
    let without_provider = "--tmpfs /usr/lib/x86_64-linux-gnu/libibverbs:notmpcopyup";
    let all = format!("{NETWORK} {MEMORY} {SHARED} {DEVICE}");
    start(&field, "n1", "few", &format!("{NETWORK} {little} {SHARED} {DEVICE}"));
    start(&field, "n2", "few", &format!("{NETWORK} {MEMORY} --shm-size=64m {DEVICE}"));
    let job = "-H n1,n2 --container podman:few --transport tcp -np 2 true";
    let ran = field.rlaunch(job, &[]);
    ran.succeeded();
    ran.says("n1: this podman container may lock only 64 KiB of memory");
    ran.says("hint: podman run needs --ulimit memlock=-1");
    ran.says("n2: /dev/shm of this podman container has only 64 MiB");
    ran.says("hint: podman run needs --ipc=host or --shm-size=1g");
    start(&field, "n2", "apart", &format!("--network=none {MEMORY} {SHARED} {DEVICE}"));
    let ran = field.rlaunch("-H n2 --container podman:apart --transport tcp true", &[]);
    ran.succeeded();
    ran.says("n2: this podman container has its own network namespace");
    ran.says("hint: podman run needs --net=host");
    start(&field, "n1", "image", &format!("{all} {without_provider}"));
    let ran = field.rlaunch("-H n1 --container podman:image --transport tcp true", &[]);
    ran.succeeded();
    ran.says("libibverbs of this podman container has no");
    ran.says("hint: install in the image: apt-get install libibverbs1 ibverbs-providers");
}

#[test]
fn a_job_in_podmans_containers_is_told_what_they_lack() {
    let field = Field::new();
    let guests = ["n1", "n2"];
    let _gone = clear(&field, &guests);
    for guest in guests {
        start_whole(&field, guest, "whole");
    }
    start(&field, "n1", "bare", &format!("{NETWORK} {MEMORY} {SHARED}"));
    let inside = "test -e /run/.containerenv && hostname";
    let job = "-H n1,n2 --container podman:whole --transport tcp -np 2 sh -c";
    let whole = field.rlaunch(job, &[inside]);
    assert_eq!(whole.succeeded().sorted(), ["n1", "n2"], "{whole}");
    whole.does_not_say("podman run needs").does_not_say("install in the image");
    let bare = field.rlaunch("-H n1 --container podman:bare sh -c", &[inside]);
    assert_eq!(bare.succeeded().out, "n1\n", "{bare}");
    bare.says("its file in /dev/infiniband is missing in this podman container");
    bare.says("hint: podman run needs --device=/dev/infiniband");
    let stopped = field.rlaunch("-H n1 --container podman:nobody hostname", &[]);
    assert_eq!(stopped.code, Some(201), "{stopped}");
    stopped.says("there is no container nobody").says("podman ps -a");
    // If rlaunch is killed, nothing is left inside the container, although the rank is a child of
    // podman's monitor and not of the login.
    let job = Background::start(&field, "-H n1 --container podman:whole sleep 4242");
    let count = |pattern: &str| {
        let found = field.tries("n1", &format!("pgrep -c -f '^{pattern}'"));
        found.out.trim() != "0"
    };
    let patience = Duration::from_secs(240);
    wait_until(patience, "the rank to run", || Ok(count("sleep 4242"))).unwrap();
    job.kill();
    let gone = || Ok(!count("sleep 4242") && !count("[^ ]*rlaunch-worker"));
    wait_until(patience, "the rank and its agent to be gone", gone).unwrap();
}

#[test]
fn a_job_runs_in_a_container_that_is_started_for_it() {
    let field = Field::new();
    let _image = image(&field, "n1");
    let inside = "test -e /run/.containerenv && test -d /dev/infiniband && hostname";
    let job = "-H n1 --container podman:localhost/lab/inside:1 --transport tcp";
    let ran = field.rlaunch(&format!("{job} sh -c"), &[inside]);
    assert_eq!(ran.succeeded().out, "n1\n", "{ran}");
    ran.does_not_say("podman run needs");
    let patience = Duration::from_secs(240);
    let removed = || field.on("n1", "podman ps -aq").is_empty();
    wait_until(patience, "the container to be removed", || Ok(removed())).unwrap();
    let none = field.rlaunch("-H n1 --container podman:localhost/lab/none:1 true", &[]);
    assert_eq!(none.code, Some(201), "{none}");
    none.says("there is no image localhost/lab/none:1").says("podman pull localhost/lab/none:1");
    // If the launcher is killed, the rank ends, and the container with it.
    let job = Background::start(&field, &format!("{job} sleep 4343"));
    let runs = || field.tries("n1", "pgrep -c -f '^sleep 4343'").out.trim() != "0";
    wait_until(patience, "the rank to run", || Ok(runs())).unwrap();
    job.kill();
    let gone = || Ok(!runs() && removed());
    wait_until(patience, "the container to be gone", gone).unwrap();
}
