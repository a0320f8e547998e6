//! Hosts with real verbs and no RDMA hardware: QEMU guests on Debian's own kernel, with soft RoCE
//! (`rxe`) and Soft-iWARP (`siw`) on every fabric interface. KVM is used where it works, but not
//! needed.
//!
//! | file | what |
//! |---|---|
//! | `image` | what the guests' image is made of; building it |
//! | `topology`, `network` | addresses and cables; bridges and taps on this machine |
//! | `guest`, `accelerator` | one QEMU process; KVM or emulation |
//! | `faults` | cutting and disturbing links, some of it by commands to a running QEMU |
//! | `state` | paths and record of a lab |

mod accelerator;
mod faults;
mod guest;
mod image;
mod network;
mod state;
mod topology;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use crate::command::background::Background;
use crate::command::wait_until;
use crate::files::{self, make_dir, remove_dir};
use crate::netns::state::{read_json, write_json};
use crate::netns::{names, network as namespaces, processes, teardown};
use crate::setup::{self, PackageSet};
use crate::{LabError, netns};
use accelerator::Accelerator;
use guest::Guest;
use image::Image;
use state::{VmPaths, VmRecord};
use topology::{guest_name, guest_number, management_address};

pub(crate) use image::{build_beside, obstacle};
pub use topology::{MAX_GUESTS, Topology};

/// Default time limit of a command in a guest.
const COMMAND: Duration = Duration::from_secs(240);

/// Directories in which the head looks for programs.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Options of a lab of guests.
#[derive(Debug, Clone)]
pub struct VmOptions {
    /// Name of the lab.
    pub name: String,
    /// Number of guests.
    pub guests: usize,
    /// Network topology.
    pub topology: Topology,
    /// Directory of this machine that the first guest sees as `/share`, read-only.
    pub share: Option<PathBuf>,
    /// Whether the share stays unchanged while guests run. Then the first guest caches it, and jobs
    /// start in a third of the time.
    pub is_share_fixed: bool,
}

impl VmOptions {
    /// Describes guests that all have the same devices, and no share.
    pub fn new(name: &str, guests: usize, topology: Topology) -> VmOptions {
        VmOptions { name: name.into(), guests, topology, share: None, is_share_fixed: false }
    }
}

/// Lab of guests that is up.
#[derive(Debug)]
pub struct VmLab {
    paths: VmPaths,
    record: VmRecord,
}

/// Summary of a guest.
#[derive(Debug, Clone)]
pub struct GuestStatus {
    /// Name.
    pub name: String,
    /// Whether its QEMU process runs.
    pub up: bool,
    /// Addresses of eth0, eth1 and so on.
    pub addresses: Vec<String>,
}

/// Builds the image that guests boot from, unless it exists, and finds out whether KVM works here.
/// Returns the directory of the image.
pub fn build() -> Result<PathBuf, LabError> {
    let image = Image::build()?;
    setup::install(PackageSet::Guests)?;
    Accelerator::detect(&image);
    Ok(image.dir().to_path_buf())
}

impl VmLab {
    /// Makes a lab and waits until every guest answers by ssh. If one does not, removes everything
    /// that was started.
    pub fn up(options: &VmOptions) -> Result<VmLab, LabError> {
        setup::require_root()?;
        names::check_lab_name(&options.name).map_err(LabError::Usage)?;
        options.topology.check(options.guests).map_err(LabError::Usage)?;
        let image = Image::build()?;
        setup::install(PackageSet::Guests)?;
        let paths = VmPaths::new(&options.name);
        let _lock = paths.lock()?;
        if VmLab::find(&options.name).is_ok() {
            return Err(LabError::Usage(format!(
                "the guests of lab `{}` are up already: take them down first",
                options.name
            )));
        }
        remove(&paths)?;
        let VmOptions { guests, topology, is_share_fixed, .. } = *options;
        let share = options.share.as_deref().map(absolute).transpose()?;
        let image = image.dir().to_path_buf();
        let record = VmRecord { guests, topology, image, share, is_share_fixed };
        let lab = VmLab { paths, record };
        lab.start().inspect_err(|_| {
            // The reason for the failure is reported; what is left goes with the next start.
            let _ = remove(&lab.paths);
        })?;
        Ok(lab)
    }

    /// Makes a lab, calls `act` with it, and removes it. Guests of that name that an interrupted run
    /// left behind are removed first.
    pub fn with_fresh<T>(
        options: &VmOptions,
        act: impl FnOnce(&VmLab) -> Result<T, LabError>,
    ) -> Result<T, LabError> {
        VmLab::down(&options.name)?;
        let result = VmLab::up(options).and_then(|lab| act(&lab));
        VmLab::down(&options.name)?;
        result
    }

    fn start(&self) -> Result<(), LabError> {
        let dir = &self.paths.dir;
        make_dir(dir)?;
        // Recorded first, so that `down` finds what a crash leaves.
        write_json(&self.paths.record(), &self.record)?;
        self.write_ssh_config()?;
        network::create(&self.paths, &self.record)?;
        self.boot()
    }

    /// Boots all guests again, as after a loss of power: what they have written to their disks stays, and nothing else.
    /// Waits until every guest answers by ssh.
    pub fn reboot(&self) -> Result<(), LabError> {
        let _lock = self.paths.lock()?;
        for guest in self.guests() {
            self.checked(&guest, &["sync"])?;
            guest::end_connection(self, &guest)?;
        }
        end_guests(&self.paths)?;
        self.boot()
    }

    fn boot(&self) -> Result<(), LabError> {
        let accelerator = Accelerator::detect(&self.record.image());
        for number in 1..=self.record.guests {
            let dir = self.paths.guest(&guest_name(number));
            Guest { number, record: &self.record, accelerator, dir }.start(&self.paths)?;
        }
        self.guests().iter().try_for_each(|name| guest::wait(self, name))
    }

    /// Finds the lab called `name`. Fails if it is not up.
    pub fn find(name: &str) -> Result<VmLab, LabError> {
        let paths = VmPaths::new(name);
        match read_json::<VmRecord>(&paths.record())? {
            Some(record) if paths.netns_file().exists() => Ok(VmLab { paths, record }),
            _ => Err(LabError::NoGuests { lab: name.into() }),
        }
    }

    /// Kills all guests of the lab called `name` and removes everything but the image, in whatever
    /// state it is. Returns whether there was anything to remove.
    pub fn down(name: &str) -> Result<bool, LabError> {
        setup::require_root()?;
        let paths = VmPaths::new(name);
        let lock = paths.lock()?;
        let found = remove(&paths)?;
        let _ = fs::remove_file(paths.lock_file());
        drop(lock);
        let _ = fs::remove_dir(netns::state::LabPaths::root());
        Ok(found)
    }

    /// Lists the names of the lab's guests.
    pub fn guests(&self) -> Vec<String> {
        (1..=self.record.guests).map(guest_name).collect()
    }

    /// Returns a summary of each guest.
    pub fn status(&self) -> Vec<GuestStatus> {
        let guest = |number| {
            let name = guest_name(number);
            let cables = self.record.topology.cables(number).into_iter();
            GuestStatus {
                up: state::process(&self.paths.guest(&name)).is_some(),
                addresses: cables.map(|cable| cable.address.to_string()).collect(),
                name,
            }
        };
        (1..=self.record.guests).map(guest).collect()
    }

    /// Runs a program on a guest and returns its output. The words reach the program unchanged.
    /// Fails after a minute.
    pub fn run(&self, guest: &str, words: &[&str]) -> Result<Output, LabError> {
        self.run_within(guest, words, COMMAND)
    }

    /// Runs a program as [`VmLab::run`] does, with another time limit.
    pub fn run_within(
        &self,
        guest: &str,
        words: &[&str],
        limit: Duration,
    ) -> Result<Output, LabError> {
        let mut ssh = self.ssh(guest)?;
        guest::remote(&mut ssh, words);
        finish(ssh, limit, || format!("`{}` on {guest}", words.join(" ")))
    }

    /// Runs a program as [`VmLab::run_within`] does, on the head.
    pub fn run_on_head(&self, words: &[&str], limit: Duration) -> Result<Output, LabError> {
        let mut command = self.head();
        command.args(words);
        finish(command, limit, || format!("`{}` on the head", words.join(" ")))
    }

    /// Runs a program on a guest and returns its stdout. Fails if the program fails.
    pub fn checked(&self, guest: &str, words: &[&str]) -> Result<String, LabError> {
        let output = self.run(guest, words)?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        // Some programs explain their failures on stdout.
        let printed = [output.stdout, output.stderr].concat();
        Err(LabError::Tool {
            operation: format!("run `{}` on {guest}", words.join(" ")),
            program: words.first().copied().unwrap_or_default().into(),
            status: output.status.to_string(),
            stderr: String::from_utf8_lossy(&printed).into_owned(),
        })
    }

    /// Makes an ssh command to a guest; the caller appends a command line, or nothing for a shell.
    pub fn ssh(&self, guest: &str) -> Result<Command, LabError> {
        self.check(guest)?;
        if state::process(&self.paths.guest(guest)).is_none() {
            return Err(LabError::GuestDown { guest: guest.into() });
        }
        let mut command = self.exec();
        command.arg("ssh").arg("-F").arg(self.paths.ssh_config()).arg(guest);
        Ok(command)
    }

    /// Makes a command for the head: it runs on this machine, in the network of the guests. The
    /// caller appends the program and its arguments.
    pub fn exec(&self) -> Command {
        network::enter(&self.paths)
    }

    /// Makes a command for the head as [`VmLab::exec`] does, with an environment and a home of its own,
    /// by which ssh and rlaunch reach all guests.
    pub fn head(&self) -> Command {
        let mut command = self.exec();
        command.env_clear().env("PATH", PATH).env("HOME", &self.paths.dir).current_dir("/root");
        command
    }

    /// Returns the directory of this machine that the first guest sees as `/share`.
    pub fn share(&self) -> Option<&Path> {
        self.record.share.as_deref()
    }

    /// Returns what a guest's kernel and sshd have printed.
    pub fn console(&self, guest: &str) -> Result<String, LabError> {
        self.check(guest)?;
        let file = guest::console(&self.paths.guest(guest));
        let bytes = fs::read(&file).map_err(LabError::io(format!("read {}", file.display())))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Fails if the lab does not have this guest.
    fn check(&self, guest: &str) -> Result<(), LabError> {
        match guest_number(guest).filter(|number| *number <= self.record.guests) {
            Some(_) => Ok(()),
            None => Err(LabError::NoGuest { lab: self.paths.name.clone(), guest: guest.into() }),
        }
    }

    /// Writes the ssh configuration of the head. ssh uses the first value of a setting, so settings
    /// of one guest come before those of all.
    fn write_ssh_config(&self) -> Result<(), LabError> {
        let image = self.record.image();
        let mut text = String::new();
        for number in 1..=self.record.guests {
            let (name, address) = (guest_name(number), management_address(number));
            text += &format!("Host {name}\n  HostName {address}\n");
        }
        text += "Host *\n  User root\n  BatchMode yes\n  ConnectTimeout 60\n  LogLevel ERROR\n";
        // The shared connection must not outlive its guest.
        text += "  ServerAliveInterval 10\n  ServerAliveCountMax 3\n";
        text += &format!("  ControlPath \"{}/%n.ssh\"\n", self.paths.dir.display());
        text += "  StrictHostKeyChecking yes\n  GlobalKnownHostsFile /dev/null\n";
        text += &format!("  UserKnownHostsFile \"{}\"\n", image.known_hosts().display());
        text += &format!("  IdentitiesOnly yes\n  IdentityFile \"{}\"\n", image.key().display());
        let file = self.paths.ssh_config();
        let dir = file.parent().unwrap_or(&self.paths.dir);
        make_dir(dir)?;
        files::write(&file, text, 0o600)
    }
}

/// Waits until a program ends, and returns its output.
fn finish(
    command: Command,
    limit: Duration,
    what: impl Fn() -> String,
) -> Result<Output, LabError> {
    let mut program = Background::start(command)?;
    match program.wait(limit)? {
        Some(status) => {
            let (stdout, stderr) = (program.stdout().into(), program.stderr().into());
            Ok(Output { status, stdout, stderr })
        }
        None => Err(LabError::Deadline {
            what: what(),
            seconds: limit.as_secs(),
            detail: program.stderr(),
        }),
    }
}

/// Returns an absolute path, since QEMU changes its working directory.
fn absolute(share: &Path) -> Result<PathBuf, LabError> {
    fs::canonicalize(share).map_err(LabError::io(format!("find {} to share", share.display())))
}

/// Kills and removes everything of the lab; returns whether there was anything. The caller holds
/// the lab's lock.
fn remove(paths: &VmPaths) -> Result<bool, LabError> {
    let found = paths.dir.exists() || paths.netns_file().exists();
    end_guests(paths)?;
    if paths.netns_file().exists() {
        // Guests that were not recorded yet, and other programs in their network.
        let netns = [paths.netns()];
        teardown::kill_members(&netns)?;
        namespaces::delete(&netns)?;
    }
    remove_dir(&paths.dir)?;
    Ok(found)
}

/// Kills the guests, and waits until they are gone.
fn end_guests(paths: &VmPaths) -> Result<(), LabError> {
    let dirs = fs::read_dir(&paths.dir).into_iter().flatten().flatten();
    let guests: Vec<_> = dirs.filter_map(|entry| state::process(&entry.path())).collect();
    guests.iter().for_each(|guest| processes::kill(guest.pid));
    wait_until(Duration::from_secs(60), "the guests to end", || {
        Ok(!guests.iter().any(|guest| guest.is_alive()))
    })
}
