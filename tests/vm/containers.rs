//! RDMA between containers, and what they lack for it, with a real podman on the guests. Other tests of containers need no
//! devices (`tests/netns/containers.rs`).

use crate::support::{Field, ORDINARY, PATIENT, Ran, Undo};

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

/// Removes all containers on `guests` when the guard is dropped.
fn clear<'a>(field: &'a Field, guests: &'a [&'a str]) -> impl Drop + 'a {
    Undo(move || {
        guests.iter().try_for_each(|guest| {
            let line = "podman rm -f -t 0 -a >/dev/null; umount -R -l /inside /var/lib/containers";
            field.restore(guest, line)
        })
    })
}

/// What containers lack on any host is tried with Docker there (`tests/netns/containers.rs`).
#[test]
fn each_lack_of_rdma_is_said_with_what_gives_it() {
    let field = Field::new();
    let guests = ["n1", "n2"];
    let _gone = clear(&field, &guests);
    let without_provider = "--tmpfs /usr/lib/x86_64-linux-gnu/libibverbs:notmpcopyup";
    let all = format!("{NETWORK} {MEMORY} {SHARED} {DEVICE}");
    start(&field, "n1", "image", &format!("{all} {without_provider}"));
    let ran = inside(&field, "n1", "image --transport tcp");
    ran.says("libibverbs of this podman container has no");
    ran.says("hint: install in the image: apt-get install libibverbs1 ibverbs-providers");
    start(&field, "n2", "bare", &format!("{NETWORK} {MEMORY} {SHARED}"));
    let bare = inside(&field, "n2", "bare");
    bare.says("its file in /dev/infiniband is missing in this podman container");
    bare.says("hint: podman run needs --device=/dev/infiniband");
}

/// Started with all of it, containers have the queue pairs of their hosts: for the proof, and for ranks.
#[test]
fn rdma_works_between_containers() {
    let field = Field::new();
    let guests = ["n1", "n2"];
    let _gone = clear(&field, &guests);
    for guest in guests {
        start(&field, guest, "pair", &format!("{NETWORK} {MEMORY} {SHARED} {DEVICE}"));
    }
    let words = format!(
        "-H n1,n2 -np 2 {PATIENT} {ORDINARY} --container podman:pair --hca rxe --transport rdma --show mesh --preload {} \
         sh -c",
        field.shared("comm-suite")
    );
    let line = "test -e /run/.containerenv && exec \"$RLAUNCH_PRELOAD_DIR\"/comm-suite traffic 3";
    let ran = field.rlaunch(&words, &[line]);
    ran.succeeded().says(" paths up, RoCE v2");
    assert!(ran.out.contains("rounds of messages among 2 ranks\n"), "{ran}");
    ran.does_not_say("may lock only");
}

/// Runs a job in containers, whose name comes first in `options`, and asserts that it ran there.
fn inside(field: &Field, hosts: &str, options: &str) -> Ran {
    let words = format!("-H {hosts} --container podman:{options} sh -c");
    let ran = field.rlaunch(&words, &["test -e /run/.containerenv && hostname"]);
    assert_eq!(ran.succeeded().sorted(), hosts.split(',').collect::<Vec<_>>(), "{ran}");
    ran
}
