//! Container engines on hosts of the lab: the real Docker and podman, each with images of its own.
//!
//! Hosts have no right to raise limits, as hosts of rootless engines have none, and Docker's daemon makes no networks there.

use crate::support::{Field, Undo};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    Docker,
    Podman,
}

/// Image with a shell and a few programs.
pub(crate) const INSIDE: &str = "lab/inside:1";
/// Image without any program.
pub(crate) const BARE: &str = "lab/bare:1";

/// Shell line that starts Docker's daemon on a host and waits until it answers.
const DAEMON: &str = r#"mkdir -p /tmp/engine/root /tmp/engine/bin
    # Docker passes GPUs on if its daemon finds this program, which NVIDIA's toolkit has.
    printf '#!/bin/sh\ncat >/dev/null\necho "$@" >>/tmp/engine/hooks\n' >/tmp/engine/bin/nvidia-container-runtime-hook
    chmod +x /tmp/engine/bin/nvidia-container-runtime-hook
    # At its first run, Docker makes a key in /etc/docker, and hosts may not write there.
    if [ -d /etc/docker ] && ! mountpoint -q /etc/docker; then mount -t tmpfs none /etc/docker; fi
    PATH=/tmp/engine/bin:$PATH dockerd --data-root /tmp/engine/root --exec-root /run/dockerd --pidfile /run/docker.pid \
        -H unix:///var/run/docker.sock --iptables=false --ip6tables=false --bridge=none --storage-driver=vfs \
        </dev/null >>/run/dockerd.log 2>&1 &
    daemon=$! n=0; until docker info >/dev/null 2>&1; do
        kill -0 $daemon 2>/dev/null && [ $((n+=1)) -lt 300 ] || { cat /run/dockerd.log >&2; exit 1; }
        sleep 0.2
    done"#;

/// Shell line that kills Docker's daemon, and the daemon below it.
const KILL: &str = r#"daemon=$(cat /run/docker.pid) && {
        kill -9 $(pgrep -P $daemon) $daemon
        while [ -e /proc/$daemon ]; do sleep 0.1; done
    }
    rm -f /run/docker.pid /run/dockerd/containerd/containerd.pid"#;

/// Shell line that configures podman for a host: it does without control groups.
const PODMAN: &str = r#"mkdir -p /tmp/engine/etc
    cp -r /etc/containers/. /tmp/engine/etc
    printf '[storage]\ndriver = "vfs"\ngraphroot = "/tmp/engine/storage"\nrunroot = "/run/podman"\n' \
        >/tmp/engine/etc/storage.conf
    printf '[containers]\ncgroups = "disabled"\n[engine]\ncgroup_manager = "cgroupfs"\n' \
        >/tmp/engine/etc/containers.conf
    mount --bind /tmp/engine/etc /etc/containers
    # Podman looks up short names with a lock in /var/cache/containers, which it makes.
    mount -t tmpfs none /var/cache
    mkdir -p /run/cdi
    # As nvidia-ctk describes GPUs, but of devices that every host has.
    gpu() { echo '{"name":"'$1'","containerEdits":{"env":["LAB_GPUS='$1'"],"deviceNodes":[{"path":"/dev/nvidia'$2'","hostPath":"/dev/null"}]}}'; }
    echo '{"cdiVersion":"0.3.0","kind":"nvidia.com/gpu","containerEdits":{},"devices":['$(gpu 0 0),$(gpu 1 1),$(gpu all 0)']}' \
        >/run/cdi/nvidia.json"#;

/// Shell line that makes both images.
const IMAGES: &str = r#"mkdir -p /tmp/engine/image && cd /tmp/engine/image && mkdir bin dev etc opt proc root run sys tmp
    echo root:x:0:0::/root:/bin/sh >etc/passwd
    tar -c . | ENGINE import - lab/bare:1
    for name in sh cat env grep hostname id sleep; do
        cp -L /usr/bin/$name bin/
        for file in $(ldd /usr/bin/$name | grep -o '/[^ ]*'); do
            mkdir -p .${file%/*} && cp -L $file .$file
        done
    done
    tar -c . | ENGINE import - lab/inside:1
    cd / && rm -rf /tmp/engine/image"#;

impl Engine {
    pub(crate) const ALL: [Engine; 2] = [Engine::Docker, Engine::Podman];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Engine::Docker => "docker",
            Engine::Podman => "podman",
        }
    }

    /// Starts the engine on hosts. When the guard is dropped, nothing of it is left there.
    pub(crate) fn on<'a>(self, field: &'a Field, hosts: &'a [&'a str]) -> impl Drop + 'a {
        let guard = Undo(move || {
            for host in hosts {
                field.on(host, &self.end());
            }
            Ok::<(), std::io::Error>(())
        });
        for host in hosts {
            let begin = if self == Engine::Docker { DAEMON } else { PODMAN };
            let store = "set -e\nmkdir -p /tmp/engine && mount -t tmpfs none /tmp/engine";
            let images = IMAGES.replace("ENGINE", self.name());
            field.on(host, &format!("{store}\n{begin}\n{images}"));
        }
        guard
    }

    fn end(self) -> String {
        let name = self.name();
        let stop = match self {
            Engine::Docker => &format!("{KILL}\numount -l /etc/docker"),
            Engine::Podman => "umount -l /etc/containers /var/cache",
        };
        format!(
            "set +e
            containers=$({name} ps -aq) && [ -z \"$containers\" ] || {name} rm -f $containers >/dev/null 2>&1
            {stop}
            umount -R -l /run/dockerd /tmp/engine 2>/dev/null
            rm -rf /root/.cache/rlaunch/.ran-* /tmp/engine /run/cdi /run/dockerd /run/docker.sock /run/dockerd.log /run/podman /run/libpod /run/crun
            true"
        )
    }

    /// Lists the containers on a host, each with its state.
    pub(crate) fn containers(self, field: &Field, host: &str) -> String {
        field.on(host, &format!("{} ps -a --format '{{{{.Names}}}} {{{{.Status}}}}'", self.name()))
    }

    /// Waits until a host has no container.
    pub(crate) fn wait_until_empty(self, field: &Field, host: &str) {
        let mut left = String::new();
        field.wait_for("no container to be left", || {
            left = self.containers(field, host);
            left.is_empty()
        });
    }

    /// Kills the daemon of the engine, if it has one.
    pub(crate) fn kill_daemon(self, field: &Field, host: &str) {
        if self == Engine::Docker {
            field.on(host, KILL);
        }
    }

    /// Starts the daemon of the engine again, if it has one.
    pub(crate) fn start_daemon(self, field: &Field, host: &str) {
        if self == Engine::Docker {
            field.on(host, DAEMON);
        }
    }
}
