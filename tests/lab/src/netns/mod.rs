//! Labs of hosts made of namespaces: making them, using them, breaking them.
//!
//! | file | what |
//! |---|---|
//! | `names` | names and addresses of hosts |
//! | `state` | paths and records of a lab, recognisable processes |
//! | `network` | namespaces, bridge, links, and cutting them |
//! | `accounts` | accounts, keys, files that replace those in `/etc` |
//! | `host` | starting and killing nodes |
//! | `sshd` | the sshd of a host |
//! | `slurm` | Slurm on the hosts |
//! | `enter` | commands and files inside a node |
//! | `processes`, `cgroup` | what runs on hosts, and what it uses |
//! | `machine` | changes to the machine that all labs share |
//! | `teardown` | removing a lab, even after a crash |

mod accounts;
pub(crate) mod cgroup;
mod host;
mod machine;
pub mod names;
pub(crate) mod network;
pub(crate) mod processes;
mod slurm;
pub(crate) mod sshd;
pub(crate) mod state;
pub(crate) mod teardown;

mod enter;

use std::fs;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

pub use accounts::Account;
pub use network::Cut;
pub use processes::Process;
pub use slurm::Slurm;
pub use sshd::Sshd;

use crate::command::wait_until;
use crate::setup::venv::Venv;
use crate::setup::{self, venvs};
use crate::{LabError, dist, files};
use state::{LabPaths, LabRecord, ProcessId, read_json, write_json};

/// Default of the first two octets of a lab's addresses.
pub const DEFAULT_NET: [u8; 2] = [10, 91];

/// Options of a lab.
#[derive(Debug, Clone)]
pub struct Options {
    /// Name of the lab. Several labs can exist at once if their names and networks differ.
    pub name: String,
    /// Number of hosts.
    pub hosts: usize,
    /// First two octets of its /16 network.
    pub net: [u8; 2],
    /// Whether all hosts share their home directories, as over NFS.
    pub shared_home: bool,
}

impl Options {
    /// Describes a lab whose hosts have private homes.
    pub fn new(name: &str, hosts: usize) -> Options {
        Options { name: name.into(), hosts, net: DEFAULT_NET, shared_home: false }
    }
}

/// Lab that is up.
#[derive(Debug)]
pub struct Lab {
    paths: LabPaths,
    record: LabRecord,
    launch: ProcessId,
}

/// Name and state of a host.
#[derive(Debug, Clone)]
pub struct Host {
    /// Name.
    pub name: String,
    /// Whether the host runs. False after a crash.
    pub up: bool,
}

/// Summary of a lab.
#[derive(Debug, Clone)]
pub struct Status {
    /// Name.
    pub lab: String,
    /// Hosts of the lab.
    pub hosts: Vec<Host>,
    /// Whether the hosts share their home directories.
    pub shared_home: bool,
    /// Directory of the lab's files.
    pub state: PathBuf,
    /// Cgroup of the lab, on machines with a writable cgroup v2.
    pub cgroup: Option<PathBuf>,
}

impl Lab {
    /// Makes a lab, or grows the lab of that name. A lab never shrinks.
    pub fn up(options: &Options) -> Result<Lab, LabError> {
        setup::require_root()?;
        check(options)?;
        let paths = LabPaths::new(&options.name);
        let _lock = paths.lock()?;
        let record = match Lab::attach(&options.name) {
            Ok(lab) if options.shared_home && !lab.record.shared_home => {
                return Err(LabError::Usage(format!(
                    "lab `{}` is up with private homes: take it down first",
                    options.name
                )));
            }
            Ok(lab) => lab.record,
            Err(_) => {
                teardown::remove(&paths)?;
                create(&paths, options)?
            }
        };
        grow(&paths, record, options)?;
        let lab = Lab::attach(&options.name)?;
        lab.refresh_known_hosts()?;
        Ok(lab)
    }

    /// Makes a lab, calls `act` with it, and removes it. A lab of that name that an interrupted run
    /// left behind, in any state, is removed first.
    pub fn with_fresh<T>(
        options: &Options,
        act: impl FnOnce(Lab) -> Result<T, LabError>,
    ) -> Result<T, LabError> {
        Lab::down(&options.name)?;
        let result = Lab::up(options).and_then(act);
        Lab::down(&options.name)?;
        result
    }

    /// Attaches to the lab called `name`. Fails if it is not up.
    pub fn attach(name: &str) -> Result<Lab, LabError> {
        let paths = LabPaths::new(name);
        let launch = ProcessId::load(&paths.launch().join("init"));
        match (read_json(&paths.record())?, launch) {
            (Some(record), Some(launch)) => Ok(Lab { paths, record, launch }),
            _ => Err(LabError::NotUp { name: name.into() }),
        }
    }

    /// Removes the lab called `name` and everything that runs in it, in whatever state it is.
    /// Returns whether there was anything to remove.
    pub fn down(name: &str) -> Result<bool, LabError> {
        setup::require_root()?;
        let paths = LabPaths::new(name);
        let lock = paths.lock()?;
        let found = teardown::remove(&paths)?;
        let _ = fs::remove_file(LabPaths::root().join(format!("{name}.lock")));
        drop(lock);
        let _ = fs::remove_dir(LabPaths::root());
        Ok(found)
    }

    /// Returns the name of the lab.
    pub fn name(&self) -> &str {
        &self.paths.name
    }

    /// Lists the names of the lab's hosts.
    pub fn hosts(&self) -> Vec<String> {
        (1..=self.record.hosts).map(names::host_name).collect()
    }

    /// Returns the address of `host`.
    pub fn address(&self, host: &str) -> Result<Ipv4Addr, LabError> {
        Ok(names::host_address(self.record.net, self.number(host)?))
    }

    /// Returns a summary of the lab.
    pub fn status(&self) -> Status {
        let host = |name: String| Host { up: self.init(&name).is_ok(), name };
        Status {
            lab: self.paths.name.clone(),
            hosts: self.hosts().into_iter().map(host).collect(),
            shared_home: self.record.shared_home,
            state: self.paths.dir.clone(),
            cgroup: self.record.cgroup.clone(),
        }
    }

    /// Lists the processes of `host` except init and the listening sshd. The list is empty if the
    /// host is down.
    pub fn processes(&self, host: &str) -> Result<Vec<Process>, LabError> {
        match self.init(host) {
            Ok(init) => Ok(processes::visible(&[(host, init.pid)])),
            Err(LabError::HostDown { .. }) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Lists the processes of all hosts as [`Lab::processes`] does.
    pub fn all_processes(&self) -> Vec<Process> {
        let hosts = self.hosts();
        let init = |host| Some((String::as_str(host), self.init(host).ok()?.pid));
        processes::visible(&hosts.iter().filter_map(init).collect::<Vec<_>>())
    }

    /// Waits until nothing runs on any host. Fails after `limit` with a list of what still runs. An
    /// sshd takes a moment to end after its client has.
    pub fn wait_until_idle(&self, limit: Duration) -> Result<(), LabError> {
        let mut left = Vec::new();
        let result = wait_until(limit, "the hosts to be idle", || {
            left = self.all_processes();
            Ok(left.is_empty())
        });
        let line = |process: &Process| format!("{}: {}\n", process.host, process.command_line());
        result.map_err(|error| sshd::with_detail(error, &left.iter().map(line).collect::<String>()))
    }

    /// Kills everything that runs on the hosts and on the launch node.
    pub fn clear(&self) -> Result<(), LabError> {
        let launch = self.paths.netns(names::LAUNCH);
        processes::kill_all("everything in the lab to end", || {
            let on_hosts = self.all_processes().into_iter().map(|process| process.pid);
            let all = on_hosts.chain(network::processes(&launch));
            all.filter(|pid| *pid != self.launch.pid).collect()
        })
    }

    /// Cuts the link of `host`.
    pub fn cut(&self, host: &str, kind: Cut) -> Result<(), LabError> {
        self.number(host)?;
        network::cut(&self.paths, host, kind)
    }

    /// Restores the link of `host`, however it was cut, and waits until it carries frames.
    pub fn heal(&self, host: &str) -> Result<(), LabError> {
        self.number(host)?;
        network::heal(&self.paths, host)?;
        let mut ends = vec![network::end(self.launch.pid, &network::link(host))];
        ends.extend(self.init(host).map(|init| network::end(init.pid, "eth0")));
        wait_until(Duration::from_secs(10), &format!("the link of {host} to heal"), || {
            Ok(ends.iter().all(|end| network::is_operational(end)))
        })?;
        network::forget_neighbours(&self.paths, host, self.address(host)?)
    }

    /// Plugs a cable between two hosts, beside the network that all have: the interface `cable-OTHER`
    /// of each, set up and without addresses.
    pub fn plug(&self, one: &str, other: &str) -> Result<(), LabError> {
        self.number(one)?;
        self.number(other)?;
        network::plug(&self.paths, one, other)?;
        let ends = [
            network::end(self.init(one)?.pid, &network::cable(other)),
            network::end(self.init(other)?.pid, &network::cable(one)),
        ];
        wait_until(Duration::from_secs(10), &format!("a cable from {one} to {other}"), || {
            Ok(ends.iter().all(|end| network::is_operational(end)))
        })
    }

    /// Removes the cable between two hosts.
    pub fn unplug(&self, one: &str, other: &str) -> Result<(), LabError> {
        network::unplug(&self.paths, one, other)
    }

    /// Limits what the launch node and each host send to `rate`, in the words of tc(8), such as
    /// `200mbit`; without a rate, to nothing. The launch node sends to all hosts by one link.
    pub fn shape(&self, rate: Option<&str>) -> Result<(), LabError> {
        let hosts = self.hosts();
        let mut nodes = hosts.iter().map(String::as_str).chain([names::LAUNCH]);
        nodes.try_for_each(|node| network::shape(&self.paths, node, rate))
    }

    /// Returns the number of bytes that the link of `host` has carried so far, in both directions and
    /// with all headers.
    pub fn bytes_on_link(&self, host: &str) -> Result<u64, LabError> {
        self.number(host)?;
        network::bytes_carried(&network::end(self.launch.pid, &network::link(host)))
    }

    /// Crashes `host` as a power loss would. The link is cut first, so that no peer receives a FIN
    /// or RST.
    pub fn crash(&self, host: &str) -> Result<(), LabError> {
        self.cut(host, Cut::Carrier)?;
        host::kill_host(&self.paths, &self.record, host)
    }

    /// Starts a crashed host again and restores its link. Its home directories are unchanged.
    pub fn boot(&self, host: &str) -> Result<(), LabError> {
        if self.init(host).is_err() {
            self.number(host)?;
            host::start_host(&self.paths, &self.record, host)?;
            host::wait_for_host(&self.paths, host)?;
        }
        self.heal(host)
    }

    /// Returns a handle to the sshd of `host`.
    pub fn sshd<'a>(&'a self, host: &'a str) -> Result<Sshd<'a>, LabError> {
        self.init(host)?;
        Ok(Sshd::new(self, host))
    }

    /// Returns the launch node's `.ssh` directory of `account`, as a path on this machine.
    pub fn ssh_dir(&self, account: Account) -> PathBuf {
        self.paths.launch().join(account.name()).join(".ssh")
    }

    /// Rewrites the launch node's known_hosts with the hosts' current keys.
    pub fn refresh_known_hosts(&self) -> Result<(), LabError> {
        let mut text = String::new();
        for number in 1..=self.record.hosts {
            text += &accounts::known_hosts_line(&self.paths, self.record.net, number)?;
        }
        self.set_known_hosts(&text)
    }

    /// Replaces the launch node's known_hosts of both accounts by `text`.
    pub fn set_known_hosts(&self, text: &str) -> Result<(), LabError> {
        for account in Account::ALL {
            let path = self.ssh_dir(account).join("known_hosts");
            files::write(&path, text, 0o600)?;
            accounts::chown_to(&path, account)?;
        }
        Ok(())
    }

    /// Returns the CPU time used so far by the hosts and by whatever ran on the launch node, or
    /// nothing on a machine without cgroup v2.
    pub fn cpu_usage(&self) -> Option<Duration> {
        cgroup::cpu_usage(self.record.cgroup.as_deref()?)
    }

    /// Returns the parts of [`Lab::cpu_usage`]: that of the launch node, and that of all hosts.
    pub fn cpu_usage_of_ends(&self) -> Option<[Duration; 2]> {
        let [launch, hosts] = cgroup::ends(self.record.cgroup.as_deref()?);
        Some([cgroup::cpu_usage(&launch)?, cgroup::cpu_usage(&hosts)?])
    }

    /// Returns the memory in bytes of the processes on the launch node, shared pages counted once,
    /// or nothing on a machine without cgroup v2.
    pub fn launch_memory(&self) -> Option<u64> {
        let path = self.record.cgroup.as_deref()?.join(names::LAUNCH);
        let others = cgroup::members(&path).into_iter().filter(|&pid| pid != self.launch.pid);
        Some(others.filter_map(processes::memory).sum())
    }

    /// Returns the number of `host`. Fails if the lab does not have it.
    fn number(&self, host: &str) -> Result<usize, LabError> {
        names::host_number(host)
            .filter(|&number| number <= self.record.hosts)
            .ok_or_else(|| LabError::NoHost { lab: self.paths.name.clone(), host: host.into() })
    }

    /// Returns the host's pid 1. Fails if the host is down.
    fn init(&self, host: &str) -> Result<ProcessId, LabError> {
        self.number(host)?;
        ProcessId::load(&self.paths.host(host).join("init"))
            .ok_or_else(|| LabError::HostDown { host: host.into() })
    }
}

fn check(options: &Options) -> Result<(), LabError> {
    names::check_lab_name(&options.name).map_err(LabError::Usage)?;
    if (1..=names::MAX_HOSTS).contains(&options.hosts) {
        return Ok(());
    }
    Err(LabError::Usage(format!("a lab has 1 to {} hosts", names::MAX_HOSTS)))
}

/// Makes a lab without hosts.
fn create(paths: &LabPaths, options: &Options) -> Result<LabRecord, LabError> {
    accounts::make_dir(&paths.dir, 0o755)?;
    let mount_points = [Account::Root.home().join(".ssh"), Account::User.home()];
    machine::prepare(&paths.name, &mount_points)?;
    let built = |venv: Venv| Some((venv.on_hosts.to_owned(), venv.find()?));
    let record = LabRecord {
        net: options.net,
        hosts: 0,
        shared_home: options.shared_home,
        cgroup: cgroup::create(&paths.name),
        hidden: dist::build_directories(),
        venvs: venvs().filter_map(built).collect(),
    };
    accounts::write_common(paths)?;
    accounts::write_names(paths, record.net, options.hosts)?;
    accounts::create_launch(paths)?;
    network::create_launch(paths, record.net)?;
    host::start_launch(paths, &record)?;
    write_json(&paths.record(), &record)?;
    Ok(record)
}

/// Adds the missing hosts.
fn grow(paths: &LabPaths, mut record: LabRecord, options: &Options) -> Result<(), LabError> {
    if options.hosts <= record.hosts {
        return Ok(());
    }
    let new: Vec<(usize, String)> =
        (record.hosts + 1..=options.hosts).map(|n| (n, names::host_name(n))).collect();
    clear(paths, &record, &new)?;
    accounts::write_names(paths, record.net, options.hosts)?;
    network::create_hosts(paths, record.net, &new)?;
    for (_, host) in &new {
        accounts::create_host(paths, &record, host)?;
        host::start_host(paths, &record, host)?;
    }
    for (_, host) in &new {
        host::wait_for_host(paths, host)?;
    }
    record.hosts = options.hosts;
    write_json(&paths.record(), &record)
}

/// Removes what an interrupted `up` left of hosts that are about to be made.
fn clear(paths: &LabPaths, record: &LabRecord, new: &[(usize, String)]) -> Result<(), LabError> {
    let existing = network::namespaces(paths);
    let left: Vec<&str> = new.iter().map(|(_, host)| host.as_str()).collect();
    for host in left.into_iter().filter(|host| existing.contains(&paths.netns(host))) {
        host::kill_host(paths, record, host)?;
        network::delete_host(paths, host)?;
    }
    Ok(())
}
