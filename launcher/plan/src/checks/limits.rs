//! Limits of a rank's process, and memory of the host.

use super::containers::{SHARED_MEMORY, Scope, has_accelerators, small_shared_memory};
use super::{Check, Cluster, ClusterHost, Needs, version};
use crate::findings::{Finding, Fix, id};
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::inventory::diagnostics::{Diagnostics, SharedMemoryDefect};
use rlaunch_bootstrap::inventory::rdma::{RdmaDevice, Uverbs};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: id::LIM_MEMLOCK,
        about: "processes may lock the memory that RDMA needs",
        needs: Needs::Inventories,
        examine: locked_memory,
        causes: &[id::MESH_SILENT],
        explanation: "\
Symptoms: `ibv_reg_mr failed: Cannot allocate memory`, `ibv_create_cq: ENOMEM`; a program works for root and \
fails for users, or works in a terminal and fails when it is started over SSH.

A NIC reads and writes memory that must not move, so RDMA programs lock their buffers. The limit on locked \
memory (RLIMIT_MEMLOCK) is 64 KiB in older container engines and 8 MiB under systemd, which is less than one \
buffer of NCCL. rlaunch reads the limit of the agent's process, which ranks inherit; `ulimit -l` in your own \
terminal may say something else.

On a host, raise the limit in /etc/security/limits.d and log in anew; services need LimitMEMLOCK=infinity. For a \
container, start it with --ulimit memlock=-1.",
    },
    Check {
        id: id::LIM_SHM,
        about: "/dev/shm takes files, and has room for the ranks of a host",
        needs: Needs::Inventories,
        examine: shared_memory,
        causes: &[],
        explanation: "\
Symptoms: `Bus error`, `NCCL WARN Call to posix_fallocate failed`, `No space left on device`, `Read-only file system` \
or `Permission denied` for a file below /dev/shm, DataLoader workers that are killed.

Ranks of one host exchange data in shared memory below /dev/shm, which is a file system with a limited size, usually \
half of the memory. rlaunch read its size and what is free; 64 MiB are small with GPUs or RDMA, less is small anywhere. \
It is small where a container engine or /etc/fstab says \
so, and full where programs that were killed left files behind. rlaunch also tried to make a file: /dev/shm may be \
missing, mounted read-only, closed to users (its mode should be 1777), or have as many files as it may (nr_inodes), \
which `df -i /dev/shm` shows.

`ls -lS /dev/shm` shows the files; those that no running program uses may be deleted. \
`sudo mount -o remount,size=50% /dev/shm` makes it larger until the next boot. For containers see \
ct.shm.",
    },
    Check {
        id: id::LIM_MAPS,
        about: "processes may have as many memory mappings as the kernel's default",
        needs: Needs::Diagnostics,
        examine: memory_maps,
        causes: &[],
        explanation: "\
Symptoms: `Cannot allocate memory` with plenty of free memory; mmap and ibv_reg_mr fail in long runs; CUDA reports \
out of memory of the host.

The kernel limits how many separate mappings a process may have (vm.max_map_count, 65530 by default). CUDA, NCCL and \
allocators make many. Where RDMA memory is protected against fork (see lim.fork), each registered buffer splits the \
mapping around it. The finding says that the host's limit is below the default.

Raise it: `sudo sysctl -w vm.max_map_count=262144`, and write the same into a file of /etc/sysctl.d.",
    },
    Check {
        id: id::LIM_FILES,
        about: "ranks may open enough files for their connections",
        needs: Needs::Inventories,
        examine: open_files,
        causes: &[],
        explanation: "\
Symptoms: `Too many open files` (EMFILE), `NCCL WARN Call to socket failed : Too many open files`, DataLoader errors \
that mention ancdata.

Every connection is an open file, and so is every tensor that a DataLoader worker passes on. NCCL and Gloo connect \
each rank with many or all others, so large jobs need more than the usual 1024. rlaunch read the limit that ranks \
inherit (RLIMIT_NOFILE); it raises its own agent's, but not that of ranks, as programs with select() break above \
1024.

Raise it in /etc/security/limits.d and log in anew, or for one job: rlaunch … sh -c 'ulimit -n 65536; exec \
python train.py'.",
    },
    Check {
        id: id::LIM_MEMORY,
        about: "hosts have memory left, and control groups grant enough of it",
        needs: Needs::Inventories,
        examine: memory,
        causes: &[],
        explanation: "\
Symptoms: ranks that end by signal 9 (Killed) without a message; `oom-kill` in the kernel's log; a host that swaps \
and slows all others down.

Two things are looked at. A control group, as of a container, a pod or a systemd service, may grant only a small \
part of the machine's memory although the machine has GPUs; pinned buffers of CUDA and NCCL count as well. And the \
memory that is still free (MemAvailable) may be nearly used up, often by ranks of an earlier job that still run.

For a container raise --memory, for a pod resources.limits.memory. `ps aux --sort=-rss | head` \
shows which processes use the memory.",
    },
    Check {
        id: id::LIM_FORK,
        about: "programs that use RDMA may fork",
        needs: Needs::Inventories,
        examine: fork,
        causes: &[],
        explanation: "\
Symptoms: segmentation faults or wrong data after subprocess.run, os.fork or a DataLoader with workers in a program \
that uses RDMA.

fork() shares memory until it is written. The NIC keeps writing to the pages that were registered, \
and after a fork these may be the child's. Since kernel 5.12 the pages that a NIC uses are copied \
at once, and rdma-core 35 or later knows that. The finding says that the kernel or rdma-core is \
older; distributions add the copying to older kernels, which `rdma system show` tells.

Set RDMAV_FORK_SAFE=1 (and RDMAV_HUGEPAGES_SAFE=1 if huge pages are used) for such programs: -x RDMAV_FORK_SAFE=1. \
Programs that start their helpers before they use RDMA are safe.",
    },
];

/// Limit on locked memory, in bytes, below which RDMA programs usually fail.
const LOCKED_MEMORY: u64 = 64 << 20;

/// Default of `vm.max_map_count`.
const MAPS: u64 = 65530;
/// Usual limit of open files.
const OPEN_FILES: u64 = 1024;
/// Limit of open files that suffices.
const ENOUGH_FILES: u64 = 65536;
/// Limit up to which programs may raise their own, which is systemd's for services.
const MOST_FILES: u64 = 524_288;
/// Number of hosts from which connections may exceed the usual limit of open files.
const MANY_HOSTS: usize = 32;
/// Memory that a rank with a GPU needs at least, in bytes.
const MEMORY_OF_GPU: u64 = 4 << 30;
/// First kernel (major and minor version) that copies the pages of registered memory at a fork.
const FORK_SAFE_KERNEL: (u32, u32) = (5, 12);
/// First rdma-core that asks the kernel whether memory is safe after a fork.
const FORK_SAFE_RDMA_CORE: u32 = 35;

fn locked_memory(cluster: &Cluster<'_>) -> Vec<Finding> {
    let finding = |host: &ClusterHost<'_>| {
        let limit = host.inventory.limits.locked_memory.filter(|limit| *limit < LOCKED_MEMORY)?;
        let scope = Scope::new(host, cluster);
        // Root may lock any amount on a host, but usually not in a container.
        let is_limited = has_usable_rdma(host.inventory) && (scope != Scope::Host || host.uid != 0);
        let seen = match scope {
            Scope::Host => {
                format!("a process of this login may lock only {} of memory", super::size(limit))
            }
            Scope::Container(_) => {
                format!("{scope} may lock only {} of memory", super::size(limit))
            }
        };
        let matters = "registering buffers fails";
        let found = Finding::error(id::LIM_MEMLOCK, host.name, seen, matters);
        is_limited.then(|| match scope {
            Scope::Container(_) => found.advise(
                scope.needs("--ulimit memlock=-1", "securityContext.capabilities.add: [IPC_LOCK]"),
            ),
            Scope::Host => found
                .fixed_by(Fix::limit(
                    "memlock",
                    &["* - memlock unlimited"],
                    "LimitMEMLOCK=infinity",
                ))
                .advise("log in anew; under systemd LimitMEMLOCK=infinity"),
        })
    };
    cluster.hosts.iter().filter_map(finding).collect()
}

fn has_usable_rdma(inventory: &Inventory) -> bool {
    inventory.rdma.iter().any(is_usable)
}

fn is_usable(device: &RdmaDevice) -> bool {
    matches!(device.uverbs, Uverbs::Usable(_))
}

fn shared_memory(cluster: &Cluster<'_>) -> Vec<Finding> {
    let finding = |host: &ClusterHost<'_>| {
        if let Some(defect) = host.diagnostics.and_then(|state| state.shared_memory_defect) {
            return Some(closed_shared_memory(host, Scope::new(host, cluster), defect));
        }
        let size = host.inventory.limits.shared_memory?;
        let matters = "ranks may run out of it";
        let warning = |seen| Finding::warning(id::LIM_SHM, host.name, seen, matters);
        // A container that is given little is reported by ct.shm.
        if small_shared_memory(host.inventory).is_some() {
            let is_host = Scope::new(host, cluster) == Scope::Host;
            let seen = format!("/dev/shm of this host has only {}", super::size(size));
            return is_host.then(|| warning(seen).fixed_by(enlarged("size", "50%", "50%")));
        }
        let left = host.diagnostics?.shared_memory_available?;
        let is_full = left < SHARED_MEMORY && left < size / 10;
        let seen = format!("/dev/shm has {} of {} left", super::size(left), super::size(size));
        let list = "ls -lS /dev/shm | head  # files of programs that have ended may be deleted";
        is_full.then(|| warning(seen).run(list))
    };
    cluster.hosts.iter().filter_map(finding).collect()
}

/// Makes the fix that sets an option of /dev/shm. `usual` is the value that the kernel does not print.
fn enlarged(option: &str, value: &str, usual: &str) -> Fix {
    Fix::shared_memory(
        &format!("mount -o remount,{option}={value} /dev/shm"),
        &format!("findmnt -no OPTIONS /dev/shm | tail -n 1 | tr , '\\n' | grep ^{option}= || true"),
        &format!("mount -o remount,\"${{SAVED:-{option}={usual}}}\" /dev/shm"),
    )
}

/// Reports a /dev/shm in which no file can be made.
fn closed_shared_memory(
    host: &ClusterHost<'_>,
    scope: Scope,
    defect: SharedMemoryDefect,
) -> Finding {
    let (seen, fix) = match defect {
        SharedMemoryDefect::Missing => (
            "/dev/shm does not exist",
            Fix::shared_memory(
                "sh -c 'mkdir -p /dev/shm && mount -t tmpfs -o mode=1777 tmpfs /dev/shm'",
                "if mountpoint -q /dev/shm; then echo mounted; fi",
                "[ \"$SAVED\" = mounted ] || ! mountpoint -q /dev/shm || umount /dev/shm",
            ),
        ),
        SharedMemoryDefect::ReadOnly => (
            "/dev/shm is mounted read-only",
            Fix::shared_memory(
                "mount -o remount,rw /dev/shm",
                "findmnt -no OPTIONS /dev/shm | tail -n 1 | cut -d, -f1",
                "mount -o remount,\"$SAVED\" /dev/shm",
            ),
        ),
        SharedMemoryDefect::Denied => {
            ("this user may not make files in /dev/shm", Fix::mode("1777", "/dev/shm"))
        }
        SharedMemoryDefect::NoInodes => {
            ("/dev/shm has no inode left for another file", enlarged("nr_inodes", "1m", "0"))
        }
    };
    let matters = "ranks on one host cannot share memory";
    let found = Finding::error(id::LIM_SHM, host.name, seen, matters);
    match scope {
        Scope::Host => found.fixed_by(fix),
        Scope::Container(_) => {
            let volume = "a volume emptyDir: {medium: Memory} mounted at /dev/shm";
            found.advise(scope.needs("--ipc=host or --shm-size=1g", volume))
        }
    }
}

fn memory_maps(cluster: &Cluster<'_>) -> Vec<Finding> {
    let finding = |(host, state): (&ClusterHost<'_>, &Diagnostics)| {
        let limit = state.kernel.max_map_count.filter(|count| *count < MAPS)?;
        let seen = format!("vm.max_map_count is {limit}, below the default of {MAPS}");
        let matters = "CUDA, NCCL and registered buffers need many mappings";
        let found = Finding::warning(id::LIM_MAPS, host.name, seen, matters);
        has_accelerators(host.inventory)
            .then(|| found.fixed_by(Fix::sysctl("maps", &[("vm.max_map_count", "262144")])))
    };
    cluster.diagnosed().filter_map(finding).collect()
}

fn open_files(cluster: &Cluster<'_>) -> Vec<Finding> {
    let is_large = cluster.hosts.len() >= MANY_HOSTS;
    let finding = |host: &ClusterHost<'_>| {
        let limit = host.inventory.limits.open_files?;
        let (seen, matters) =
            (format!("a rank may open {limit} files"), "its connections are files");
        let found = match limit {
            0..OPEN_FILES => Finding::warning(id::LIM_FILES, host.name, seen, matters),
            OPEN_FILES if is_large => Finding::note(id::LIM_FILES, host.name, seen, matters),
            _ => return None,
        };
        let fix = more_files(host.inventory.limits.open_files_hard.unwrap_or(MOST_FILES));
        let advice = "log in anew; a container needs --ulimit nofile=65536";
        Some(found.fixed_by(fix).advise(advice))
    };
    cluster.hosts.iter().filter_map(finding).collect()
}

/// Makes the fix that lets ranks open more files. The hard limit `hard` stays where it suffices, and is lowered nowhere.
fn more_files(hard: u64) -> Fix {
    let is_too_low = hard < ENOUGH_FILES;
    let kinds = [Some(("soft", ENOUGH_FILES)), is_too_low.then_some(("hard", MOST_FILES))];
    // The wildcard of pam_limits does not include root.
    let line = |(kind, limit)| ["*", "root"].map(|user| format!("{user} {kind} nofile {limit}"));
    let lines: Vec<String> = kinds.into_iter().flatten().flat_map(line).collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let of_sshd = format!("LimitNOFILE={ENOUGH_FILES}:{}", hard.max(MOST_FILES));
    Fix::limit("nofile", &lines, &of_sshd)
}

fn memory(cluster: &Cluster<'_>) -> Vec<Finding> {
    let finding = |host: &ClusterHost<'_>| {
        let mut nodes = host.inventory.numa_nodes.iter().map(|node| node.memory);
        let total = nodes.try_fold(0_u64, |sum, memory| sum.checked_add(memory?));
        let total = total.filter(|bytes| *bytes > 0)?;
        let gpus = host.inventory.gpus.len() as u64;
        let granted = host.inventory.limits.memory.filter(|granted| {
            *granted < total / 4 && *granted < gpus.saturating_mul(MEMORY_OF_GPU)
        });
        if let Some(granted) = granted {
            let (granted, total) = (super::size(granted), super::size(total));
            let seen = format!("the control group grants {granted} of {total} for {gpus} GPUs");
            let found =
                Finding::warning(id::LIM_MEMORY, host.name, seen, "ranks that use more are killed");
            let more = "a container needs a larger --memory, a pod resources.limits.memory";
            return Some(found.advise(more));
        }
        let left = host.diagnostics?.memory_available.filter(|left| *left < total / 20)?;
        let seen = format!("{} of {} of memory are left", super::size(left), super::size(total));
        let found = Finding::warning(id::LIM_MEMORY, host.name, seen, "ranks may be killed");
        Some(found.run("ps aux --sort=-rss | head"))
    };
    cluster.hosts.iter().filter_map(finding).collect()
}

fn fork(cluster: &Cluster<'_>) -> Vec<Finding> {
    let finding = |host: &ClusterHost<'_>| {
        let system = &host.inventory.system;
        let kernel = system
            .kernel
            .as_deref()
            .filter(|kernel| version(kernel).is_some_and(|version| version < FORK_SAFE_KERNEL));
        let mut libraries = system.libraries.iter();
        let library = libraries.find(|(name, _)| name == "libibverbs").map(|(_, version)| version);
        let library = library.and_then(|version| rdma_core(version));
        let library = library.filter(|version| *version < FORK_SAFE_RDMA_CORE);
        let seen = match (kernel, library) {
            (Some(kernel), _) => format!("kernel {kernel} is older than 5.12"),
            (None, Some(version)) => format!("rdma-core {version} is older than 35"),
            (None, None) => return None,
        };
        let matters = match kernel {
            Some(_) => {
                "a program that forks while it uses RDMA may read wrong data, unless the distribution has added \
                 copy-on-fork"
            }
            None => "a program that forks while it uses RDMA may read wrong data",
        };
        let found = Finding::note(id::LIM_FORK, host.name, seen, matters);
        has_usable_rdma(host.inventory).then(|| {
            found
                .run("rdma system show  # `copy-on-fork on`: the distribution has added it")
                .advise("else -x RDMAV_FORK_SAFE=1")
        })
    };
    cluster.hosts.iter().filter_map(finding).collect()
}

/// Returns the version of rdma-core from that of its libibverbs: 39 for `1.14.39.0`.
fn rdma_core(library: &str) -> Option<u32> {
    let numbers: Vec<&str> = library.split('.').collect();
    match numbers[..] {
        ["1", _, release, _] => release.parse().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Machine, all_lines, lines, with_cluster};
    use super::*;
    use crate::findings::{Action, Step};
    use rlaunch_bootstrap::inventory::ContainerKind;
    use rlaunch_bootstrap::protocol::changes::Change;

    /// Returns the machine recorded under this name.
    fn machine(name: &str) -> Machine {
        Machine::recorded(name)
    }

    fn own_lines(machines: &[Machine]) -> Vec<String> {
        let own = all_lines(machines);
        own.into_iter().filter(|line| line.contains(" lim.")).collect()
    }

    #[test]
    fn users_need_more_locked_memory_than_systemd_gives() {
        let machine = |limit: Option<u64>, uid: u32| {
            machine("siw").uid(uid).change(|inventory| inventory.limits.locked_memory = limit)
        };
        let found = |machine: Machine| lines(locked_memory, &[machine]);
        let expected = "error lim.memlock a: a process of this login may lock only 8 MiB of memory — registering \
                        buffers fails";
        assert_eq!(found(machine(Some(8 << 20), 1000)), [expected]);
        assert!(found(machine(Some(8 << 20), 0)).is_empty());
        assert!(found(machine(None, 1000)).is_empty());
        assert!(found(machine(Some(8 << 20), 1000).change(|i| i.rdma.clear())).is_empty());
        let docker = machine(Some(65536), 0)
            .change(|inventory| inventory.system.container = Some(ContainerKind::Docker));
        let found = with_cluster(&[docker], |cluster| locked_memory(&cluster));
        assert_eq!(found[0].seen, "this docker container may lock only 64 KiB of memory");
        assert_eq!(found[0].fix, [Step::Do("docker run needs --ulimit memlock=-1".into())]);
    }

    #[test]
    fn shared_memory_that_is_small_or_full() {
        let with = |size: u64, left: u64| {
            machine("siw")
                .change(|inventory| inventory.limits.shared_memory = Some(size))
                .diagnosed(|state| state.shared_memory_available = Some(left))
        };
        assert_eq!(
            own_lines(&[with(32 << 20, 32 << 20)]),
            ["warn lim.shm a: /dev/shm of this host has only 32 MiB — ranks may run out of it"]
        );
        assert_eq!(
            own_lines(&[with(1 << 30, 3 << 20)]),
            ["warn lim.shm a: /dev/shm has 3 MiB of 1.0 GiB left — ranks may run out of it"]
        );
        assert!(own_lines(&[with(1 << 30, 1 << 30), with(128 << 20, 60 << 20)]).is_empty());
        let plain = |size| with(size, size).change(|inventory| inventory.rdma.clear());
        assert!(own_lines(&[plain(64 << 20)]).is_empty());
        assert_eq!(
            own_lines(&[plain(1 << 20)]),
            ["warn lim.shm a: /dev/shm of this host has only 1 MiB — ranks may run out of it"]
        );
        let container = with(32 << 20, 0)
            .change(|inventory| inventory.system.container = Some(ContainerKind::Docker));
        assert!(own_lines(&[container]).is_empty());
    }

    #[test]
    fn shared_memory_that_takes_no_files() {
        let with = |defect| {
            machine("no-rdma").diagnosed(|state| state.shared_memory_defect = Some(defect))
        };
        for (defect, seen, fix) in [
            (SharedMemoryDefect::Missing, "/dev/shm does not exist", "mkdir -p /dev/shm"),
            (SharedMemoryDefect::ReadOnly, "/dev/shm is mounted read-only", "remount,rw /dev/shm"),
            (SharedMemoryDefect::Denied, "this user may not make files in /dev/shm", "chmod 1777"),
            (
                SharedMemoryDefect::NoInodes,
                "/dev/shm has no inode left for another file",
                "nr_inodes=1m",
            ),
        ] {
            // A /dev/shm that is missing has no size either.
            let machine = with(defect).change(|inventory| inventory.limits.shared_memory = None);
            let found = with_cluster(&[machine], |cluster| shared_memory(&cluster));
            assert_eq!(found.len(), 1, "{found:?}");
            assert_eq!(found[0].seen, seen);
            let [Step::Run(line)] = &found[0].fix[..] else { panic!("{found:?}") };
            assert!(line.contains(fix), "{line}");
        }
        let container = with(SharedMemoryDefect::ReadOnly)
            .change(|inventory| inventory.system.container = Some(ContainerKind::Docker));
        let found = with_cluster(&[container], |cluster| shared_memory(&cluster));
        let needs = "docker run needs --ipc=host or --shm-size=1g";
        assert_eq!(found[0].fix, [Step::Do(needs.into())]);
    }

    #[test]
    fn few_memory_maps() {
        let with = |name: &str, count| {
            machine(name).diagnosed(|state| state.kernel.max_map_count = Some(count))
        };
        assert_eq!(
            own_lines(&[with("siw", 4096)]),
            [
                "warn lim.maps a: vm.max_map_count is 4096, below the default of 65530 — CUDA, NCCL and \
              registered buffers need many mappings"
            ]
        );
        assert!(own_lines(&[with("siw", 65530), with("no-rdma", 4096)]).is_empty());
    }

    #[test]
    fn few_open_files() {
        let with =
            |limit| machine("siw").change(|inventory| inventory.limits.open_files = Some(limit));
        assert_eq!(
            own_lines(&[with(256), with(1024)]),
            ["warn lim.files a: a rank may open 256 files — its connections are files"]
        );
        let (one, many) = (with(1024), with(4096));
        let hosts = |machine: &Machine| {
            let host = ClusterHost::new("a", &machine.inventory, None);
            open_files(&Cluster { hosts: vec![host; 40], ..Cluster::default() }).len()
        };
        assert_eq!((hosts(&one), hosts(&many)), (40, 0));
    }

    #[test]
    fn a_hard_limit_of_open_files_is_raised_where_it_is_too_low_and_lowered_nowhere() {
        for (hard, is_raised, of_sshd) in [
            (Some(256), true, "65536:524288"),
            (Some(524_288), false, "65536:524288"),
            (Some(1 << 20), false, "65536:1048576"),
            (None, false, "65536:524288"),
        ] {
            let machine = machine("siw").change(|inventory| {
                inventory.limits.open_files = Some(256);
                inventory.limits.open_files_hard = hard;
            });
            let found = with_cluster(&[machine], |cluster| open_files(&cluster));
            let [Fix { lines, action: Action::Change(changes), .. }] = &found[0].fixes[..] else {
                panic!("{found:?}")
            };
            assert_eq!(lines[0].contains("'* hard nofile 524288'"), is_raised, "{lines:?}");
            let is_of_sshd = |change: &Change| {
                change.to_string().contains(&format!("\nLimitNOFILE={of_sshd}\n"))
            };
            assert_eq!(
                changes.iter().filter(|change| is_of_sshd(change)).count(),
                2,
                "{changes:?}"
            );
        }
    }

    #[test]
    fn little_memory() {
        let granted =
            |bytes| machine("dgx").change(|inventory| inventory.limits.memory = Some(bytes));
        assert_eq!(
            own_lines(&[granted(16 << 30)]),
            [
                "warn lim.memory a: the control group grants 16.0 GiB of 2016.0 GiB for 8 GPUs — ranks \
              that use more are killed"
            ]
        );
        let left = |bytes| machine("dgx").diagnosed(|state| state.memory_available = Some(bytes));
        assert_eq!(
            own_lines(&[left(40 << 30)]),
            ["warn lim.memory a: 40.0 GiB of 2016.0 GiB of memory are left — ranks may be killed"]
        );
        assert!(own_lines(&[granted(900 << 30), left(900 << 30)]).is_empty());
    }

    #[test]
    fn old_software_and_fork() {
        let with = |kernel: &str, library: &str| {
            machine("siw").change(|inventory| {
                inventory.system.kernel = Some(kernel.into());
                inventory.system.libraries = vec![("libibverbs".into(), library.into())];
            })
        };
        let note = "a program that forks while it uses RDMA may read wrong data";
        assert_eq!(
            own_lines(&[with("5.10.0-30-amd64", "1.14.39.0")]),
            [format!(
                "note lim.fork a: kernel 5.10.0-30-amd64 is older than 5.12 — {note}, unless the distribution has added \
                 copy-on-fork"
            )]
        );
        assert_eq!(
            own_lines(&[with("6.1.0-25-amd64", "1.8.28.0")]),
            [format!("note lim.fork a: rdma-core 28 is older than 35 — {note}")]
        );
        assert!(own_lines(&[with("6.1.0-25-amd64", "1.14.39.0")]).is_empty());
        assert!(own_lines(&[with("4.19.0", "").change(|i| i.rdma.clear())]).is_empty());
    }

    #[test]
    fn recorded_machines_have_usual_limits() {
        for name in ["bond", "dgx", "dual-port", "spark", "sriov", "siw", "rxe", "no-rdma"] {
            let own = own_lines(&[machine(name), machine(name)]);
            assert!(own.is_empty(), "{name}: {own:?}");
        }
    }
}
