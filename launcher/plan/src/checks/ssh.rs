//! Hosts that cannot be reached or logged in to, files of the SSH client that are refused, and hosts on which no agent runs.

use super::cluster::{ReachStage, Unreached};
use super::{Check, Cluster, ClusterHost, Needs, quoted};
use crate::findings::{CheckId, Finding, Fix, Severity, Step, id};
use rlaunch_text::shell;
use std::path::Path;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: id::SSH_REACH,
        about: "every host can be reached by SSH",
        needs: Needs::Connections,
        examine: |cluster| unreached(cluster, ReachStage::Connect, &REACH),
        causes: &[],
        explanation: "\
Symptoms: `ssh: connect to host c port 22: Connection refused`, `No route to host`, `Connection timed out`, \
`Could not resolve hostname c`.

rlaunch resolved the name as ssh does, with the Host block of ~/.ssh/config, and opened a TCP \
connection to it; the finding quotes the step that failed. Refused means that the machine answers \
and no sshd listens on that port. Silence means that a firewall drops the packets, that the \
machine is off, or that the address belongs to another machine.

`ssh -v HOST true` shows the address, the port and the jump hosts that are used. Correct HostName, \
Port or ProxyJump in ~/.ssh/config, start sshd (`sudo systemctl enable --now ssh`, or sshd on \
Fedora, RHEL and SUSE), or let its port through the firewall of the host.",
    },
    Check {
        id: id::SSH_AUTH,
        about: "every host accepts a key of this user",
        needs: Needs::Connections,
        examine: |cluster| unreached(cluster, ReachStage::Login, &AUTH),
        causes: &[],
        explanation: "\
Symptoms: `Permission denied (publickey)`, `Too many authentication failures`; mpirun and torchrun wait for a \
password that nobody types.

The host was reached, and refused every key that was offered; the finding lists them. The key may not be in \
~/.ssh/authorized_keys there, the login name may be another one, or sshd ignores authorized_keys because others may \
write to it, to ~/.ssh or to the home directory.

Install the key with ssh-copy-id, or all of them with `rlaunch ssh-setup -H a,b,c`. If it is there already, run \
`chmod go-w ~ ~/.ssh ~/.ssh/authorized_keys` on the host. With many keys in the agent, name the right one by \
IdentityFile and IdentitiesOnly in ~/.ssh/config.",
    },
    Check {
        id: id::SSH_HOSTKEY,
        about: "every host shows the host key that is recorded for it",
        needs: Needs::Connections,
        examine: |cluster| unreached(cluster, ReachStage::HostKey, &HOSTKEY),
        causes: &[],
        explanation: "\
Symptoms: `REMOTE HOST IDENTIFICATION HAS CHANGED!`, `Host key verification failed`.

Each sshd proves by its host key that it is the machine that you logged in to before. The recorded keys are in \
~/.ssh/known_hosts. A reinstalled machine, or an address that went to another machine, shows a new one; so does a \
machine that poses as yours. A key that is not known at all is refused where StrictHostKeyChecking is yes.

Find out why it changed, for example by comparing `ssh-keygen -l -f /etc/ssh/ssh_host_ed25519_key.pub` on the host's \
console. Then remove the old key with ssh-keygen -R. rlaunch never does this by itself.",
    },
    Check {
        id: id::SSH_PERMS,
        about: "ssh accepts the owners and modes of its configuration and keys",
        needs: Needs::Connections,
        examine: refused_files,
        causes: &[id::SSH_AUTH],
        explanation: "\
Symptoms: `Bad owner or permissions on /root/.ssh/config`, `WARNING: UNPROTECTED PRIVATE KEY FILE!`, after which \
ssh asks for a password.

The configuration may contain commands, so ssh and rlaunch refuse one that another user owns or may change. A \
private key that others may read counts as stolen and is not used. Both happen when ~/.ssh is mounted into a \
container, where the files belong to the user of the host, or when it was unpacked from an archive.

rlaunch looked at the configuration and at the key files that it names for these hosts. The lines of the finding \
correct owner and mode.",
    },
    Check {
        id: id::SSH_LANDING,
        about: "agents start in the container that was named",
        needs: Needs::Connections,
        examine: |cluster| unreached(cluster, ReachStage::Landing, &LANDING),
        causes: &[
            id::FILES_MISSING, id::MPI_SINGLETON, id::MPI_HOROVOD, id::ODD_LIBRARY, id::ODD_PYTHON,
            id::LIM_MEMLOCK, id::LIM_SHM, id::CT_NET, id::CT_SHM,
        ],
        explanation: "\
Symptoms: `No module named torch` although the image has it; `docker: permission denied while trying to connect to \
the Docker daemon socket`; a job sees the files of the host and not those of the container.

With --container KIND:NAME agents and ranks run in a container. The finding quotes what stood in the way: the \
container does not exist or is stopped, its engine is not installed or refuses this user, or a login that should \
enter it by a forced command ends on the host. rlaunch recognises a container by /.dockerenv or \
/run/.containerenv.

For a forced command, the key in authorized_keys of the host needs command=\"docker exec …\" before it, and \
no-port-forwarding, so that the key cannot reach around the container.",
    },
    Check {
        id: id::SSH_NOISE,
        about: "login shells print nothing before the output of a command",
        needs: Needs::Connections,
        examine: noise,
        causes: &[],
        explanation: "\
Symptoms: `protocol error: unexpected ...` of scp, `is your shell clean?` of rsync, launchers that parse a greeting \
as their own protocol.

A start-up file of the shell, or the script of a forced command, prints text even if no user is there to read it. \
rlaunch looks for its own marker in the output and skips what comes before, so jobs run; other programs over the \
same login are less patient.

In ~/.bashrc, put `[[ $- == *i* ]] || return` before the lines that print. Scripts of forced commands should print to \
stderr.",
    },
    Check {
        id: id::AGENT_ARCH,
        about: "rlaunch has an agent for the architecture and system of every host",
        needs: Needs::Connections,
        examine: |cluster| unreached(cluster, ReachStage::Architecture, &ARCH),
        causes: &[],
        explanation: "\
Symptoms: `cannot execute binary file: Exec format error`, `no agent for aarch64`.

rlaunch copies a small program, the agent, to each host before a job. It is built for one \
architecture; a cluster of x86_64 and aarch64 machines needs both. The host reported its \
architecture (`uname -m`), and there is no file for it beside rlaunch. The agent needs Linux.

Put the agent of the same build beside rlaunch as `rlaunch-worker-aarch64` (or `-x86_64`), or name it with --agent. \
`cargo agent` builds one that needs no C library on the host.",
    },
    Check {
        id: id::AGENT_RUN,
        about: "the agent can be installed on every host and starts there",
        needs: Needs::Connections,
        examine: |cluster| unreached(cluster, ReachStage::Agent, &RUN),
        causes: &[],
        explanation: "\
Symptoms: `no hello from the agent`, `the agent is installed but does not start`, `version GLIBC_2.34 not found`.

The login worked; then the agent was written to ~/.cache/rlaunch on the host and started. The directory may not be \
writable, may be mounted noexec, or the disk may be full; the shell may be `nologin`, or a start-up file of it may \
start another shell or wait for something. The finding quotes what came back.

`ssh HOST echo hello` has to print just that, and to end. --agent-dir names another directory on the hosts, one from \
which programs can be started.",
    },
];

/// Words of the findings on hosts that were not reached.
pub(super) struct UnreachedReason {
    pub(super) id: CheckId,
    /// Why it matters.
    pub(super) matters: &'static str,
    /// Step to add if the error has no advice. Gets the host as the user names it.
    pub(super) usual: fn(&str) -> Step,
}

const REACH: UnreachedReason = UnreachedReason {
    id: id::SSH_REACH,
    matters: "no job can use this host",
    usual: |host| Step::RunHere(format!("ssh -v {} true", quoted(host))),
};
const AUTH: UnreachedReason = UnreachedReason {
    id: id::SSH_AUTH,
    matters: "no job can use this host",
    usual: |host| Step::RunHere(format!("ssh-copy-id {}", quoted(host))),
};
const HOSTKEY: UnreachedReason = UnreachedReason {
    id: id::SSH_HOSTKEY,
    matters: "the host may be another machine than before",
    usual: |host| Step::RunHere(format!("ssh-keygen -R {}", quoted(without_user(host)))),
};
const LANDING: UnreachedReason = UnreachedReason {
    id: id::SSH_LANDING,
    matters: "ranks would not find the container's programs and libraries",
    usual: |_| Step::Do("check the name after --container".to_owned()),
};

/// Makes a finding for each host that was not reached because of a failure at `stage`.
pub(super) fn unreached(
    cluster: &Cluster<'_>,
    stage: ReachStage,
    reason: &UnreachedReason,
) -> Vec<Finding> {
    let finding = |host: &Unreached| {
        let found = Finding::error(reason.id, &*host.host, &*host.cause, reason.matters);
        let advised = host.hints.iter().fold(found, Finding::advise);
        let advised =
            if host.hints.is_empty() { advised.step((reason.usual)(&host.host)) } else { advised };
        let fix = (reason.id == id::SSH_AUTH).then(Fix::install_key);
        fix.into_iter().fold(advised, Finding::fixed_by)
    };
    let all = cluster.unreached.iter().chain(&cluster.outside);
    all.filter(|host| host.stage == stage).map(finding).collect()
}

fn without_user(host: &str) -> &str {
    host.rsplit_once('@').map_or(host, |(_, name)| name)
}

fn refused_files(cluster: &Cluster<'_>) -> Vec<Finding> {
    let finding = |(path, reason): &(std::path::PathBuf, String)| {
        let is_key = reason.contains("read it");
        let (severity, matters) = if is_key {
            (Severity::Warning, "this key is not used")
        } else {
            (Severity::Error, "no host can be reached")
        };
        let seen = format!("ssh refuses {}: {reason}", path.display());
        let found = Finding::new(id::SSH_PERMS, severity, String::new(), seen, matters);
        let found = Finding { hosts: Vec::new(), ..found };
        found.fixed_by(Fix::here(correction(path, reason)))
    };
    cluster.ssh_files.iter().map(finding).collect()
}

/// Returns the command that corrects a file's owner or mode, by the reasons that crate rlaunch_ssh states as text.
fn correction(path: &Path, reason: &str) -> String {
    let path = shell::quoted(path.as_os_str());
    if reason.contains("belongs to") {
        return format!("sudo chown $(id -u) {path}");
    }
    let mode = if reason.contains("read it") { "600" } else { "go-w" };
    format!("chmod {mode} {path}")
}

fn noise(cluster: &Cluster<'_>) -> Vec<Finding> {
    let finding = |host: &ClusterHost<'_>| {
        let text = host.shell_noise?.trim();
        let line = text.lines().find(|line| !line.trim().is_empty())?;
        let seen = format!("its login shell prints `{}` first", shortened(line));
        let matters = "rlaunch skips it, but scp, rsync and mpirun may fail";
        let found = Finding::note(id::SSH_NOISE, host.name, seen, matters);
        Some(found.advise(
            "in ~/.bashrc there, put `[[ $- == *i* ]] || return` before the lines that print",
        ))
    };
    cluster.hosts.iter().filter_map(finding).collect()
}

/// Returns the first 60 characters of a line.
fn shortened(line: &str) -> String {
    const MOST: usize = 60;
    match line.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}

const ARCH: UnreachedReason = UnreachedReason {
    id: id::AGENT_ARCH,
    matters: "no job can use this host",
    usual: |_| Step::Do("name an agent for its architecture with --agent FILE".to_owned()),
};
const RUN: UnreachedReason = UnreachedReason {
    id: id::AGENT_RUN,
    matters: "no job can use this host",
    usual: |host| Step::RunHere(format!("ssh {} echo hello", quoted(host))),
};

#[cfg(test)]
mod tests {
    use super::super::testing::{Machine, all_lines, line, with_cluster};
    use super::*;

    fn found_for(unreached: Unreached) -> Vec<Finding> {
        // An agent outside of its container has answered.
        let (outside, unreached) =
            [unreached].into_iter().partition(|host| host.stage == ReachStage::Landing);
        let cluster = Cluster { outside, unreached, ..Cluster::default() };
        let checks = super::super::catalogue();
        checks.flat_map(|check| (check.examine)(&cluster)).collect()
    }

    fn host(stage: ReachStage, hints: &[&str]) -> Unreached {
        let hints = hints.iter().map(|hint| (*hint).to_owned()).collect();
        Unreached { host: "me@c".into(), stage, cause: "this failed".into(), hints }
    }

    #[test]
    fn each_stage_has_one_finding() {
        let id = |stage| {
            let found = found_for(host(stage, &[]));
            assert_eq!(found.len(), 1, "{found:?}");
            assert_eq!((found[0].severity, &*found[0].seen), (Severity::Error, "this failed"));
            found[0].id.as_str()
        };
        let stages = [
            ReachStage::Connect,
            ReachStage::HostKey,
            ReachStage::Login,
            ReachStage::Landing,
            ReachStage::Architecture,
            ReachStage::Callback,
            ReachStage::Agent,
        ];
        assert_eq!(
            stages.map(id),
            [
                "ssh.reach", "ssh.hostkey", "ssh.auth", "ssh.landing", "agent.arch",
                "net.callback", "agent.run"
            ]
        );
    }

    #[test]
    fn advice_of_the_error_replaces_the_usual_line() {
        let usual = found_for(host(ReachStage::HostKey, &[])).remove(0).fix;
        assert_eq!(usual, [Step::RunHere("ssh-keygen -R c".into())]);
        let advised = found_for(host(ReachStage::Login, &["do:\n  this"])).remove(0).fix;
        assert_eq!(advised, [Step::Do("do:\n  this".into())]);
    }

    #[test]
    fn refused_files_are_corrected_here() {
        let file = |path: &str, reason: &str| (path.into(), reason.to_owned());
        let ssh_files = vec![
            file("/h/.ssh/config", "it belongs to uid 1000, and this is uid 0"),
            file("/h/.ssh/part", "others may write to it (mode 664)"),
            file("/h/.ssh/id_rsa", "others may read it (mode 640)"),
        ];
        let cluster = Cluster { ssh_files, ..Cluster::default() };
        let found = refused_files(&cluster);
        let shown = |finding: &Finding| format!("{} | {:?}", line(finding), finding.fix);
        assert_eq!(
            found.iter().map(shown).collect::<Vec<_>>(),
            [
                "error ssh.perms : ssh refuses /h/.ssh/config: it belongs to uid 1000, and this is uid \
                 0 — no host can be reached | [RunHere(\"sudo chown $(id -u) /h/.ssh/config\")]",
                "error ssh.perms : ssh refuses /h/.ssh/part: others may write to it (mode 664) — no \
                 host can be reached | [RunHere(\"chmod go-w /h/.ssh/part\")]",
                "warn ssh.perms : ssh refuses /h/.ssh/id_rsa: others may read it (mode 640) — this key \
                 is not used | [RunHere(\"chmod 600 /h/.ssh/id_rsa\")]"
            ]
        );
    }

    #[test]
    fn a_greeting_is_a_note() {
        let machines = [Machine::recorded("no-rdma")];
        assert!(all_lines(&machines).is_empty());
        let found = with_cluster(&machines, |cluster| {
            let mut cluster = cluster;
            cluster.hosts[0].shell_noise = Some("\nentering container\nok\n");
            noise(&cluster).iter().map(line).collect::<Vec<_>>()
        });
        assert_eq!(
            found,
            [
                "note ssh.noise a: its login shell prints `entering container` first — rlaunch skips \
              it, but scp, rsync and mpirun may fail"
            ]
        );
        assert_eq!(shortened(&"ä".repeat(70)).chars().count(), 61);
    }
}
