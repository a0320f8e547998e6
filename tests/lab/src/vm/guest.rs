//! One guest: a QEMU process.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::accelerator::Accelerator;
use super::image::Image;
use super::state::{self, VmPaths, VmRecord};
use super::topology::{FABRIC_MTU, guest_name, hardware_address, management_address, tap};
use super::{VmLab, network};
use crate::LabError;
use crate::command::{last_lines, run, wait_until};
use crate::files::{make_dir, read};
use crate::netns::sshd::with_detail;

/// Memory in MiB.
const MEMORY: usize = 1024;

/// RDMA drivers that guests load, in order.
const DRIVERS: &str = "rxe,siw";
/// Time limit for the start of a guest on a busy machine.
const START: Duration = Duration::from_secs(180);

/// Number of lines of its console that are printed if it does not start.
const CONSOLE_LINES: usize = 20;

/// Guest to be started.
#[derive(Debug)]
pub(super) struct Guest<'a> {
    pub(super) number: usize,
    pub(super) record: &'a VmRecord,
    pub(super) accelerator: Accelerator,
    /// Directory of its files.
    pub(super) dir: PathBuf,
}

impl Guest<'_> {
    fn name(&self) -> String {
        guest_name(self.number)
    }

    /// Returns the directory that the guest sees as `/share`. Only the first guest has it: to the
    /// others the launcher sends what they need, as to any host.
    fn share(&self) -> Option<&Path> {
        self.record.share.as_deref().filter(|_| self.number == 1)
    }

    /// Returns the arguments of QEMU.
    fn arguments(&self, image: &Image) -> Vec<String> {
        let mut arguments = words(self.accelerator.arguments());
        arguments.extend(words("-machine q35 -nodefaults"));
        arguments.extend(words("-no-user-config -no-reboot -display none -daemonize"));
        arguments.extend(words(&format!("-smp 1 -m {MEMORY}")));
        arguments.extend(["-pidfile".into(), path(&self.dir.join("pid"))]);
        arguments.extend(["-serial".into(), format!("file:{}", path(&console(&self.dir)))]);
        let monitor = escape(&monitor(&self.dir));
        arguments.extend(["-qmp".into(), format!("unix:{monitor},server=on,wait=off")]);
        arguments.extend(["-kernel".into(), path(&image.kernel())]);
        arguments.extend(["-initrd".into(), path(&image.ramdisk())]);
        arguments.extend(["-append".into(), self.command_line()]);
        directory(&mut arguments, "root", &image.root());
        if let Some(share) = self.share() {
            directory(&mut arguments, "share", share);
        }
        for interface in 0..self.record.topology.cables(self.number).len() {
            self.interface(&mut arguments, interface);
        }
        // Last, so that it takes the place of no other device. It need not outlive this machine.
        let disk = escape(&self.disk());
        let drive = format!("file={disk},format=raw,if=none,id=disk,cache=unsafe");
        arguments.extend(["-drive".into(), drive]);
        arguments.extend(["-device".into(), "virtio-blk-pci,drive=disk".into()]);
        arguments
    }

    /// Returns the file of the guest's disk, which is there after a reboot.
    fn disk(&self) -> PathBuf {
        self.dir.join("disk")
    }

    /// Adds a network card. Each one of the fabric is behind a PCI Express port of its own, as real
    /// ones are.
    fn interface(&self, arguments: &mut Vec<String>, interface: usize) {
        let (number, i) = (self.number, interface);
        let backend =
            format!("tap,id=net{i},ifname={},script=no,downscript=no", tap(number, interface));
        let mut card = format!(
            "virtio-net-pci,netdev=net{i},romfile=,mac={}",
            hardware_address(number, interface)
        );
        if interface > 0 {
            let port = format!("pcie-root-port,id=port{i},chassis={i},x-speed=8,x-width=4");
            arguments.extend(["-device".into(), port]);
            card += &format!(",bus=port{i},host_mtu={FABRIC_MTU}");
        }
        arguments.extend(["-netdev".into(), backend, "-device".into(), card]);
    }

    /// Returns the kernel's command line, which also has the parameters of the guest's init.
    fn command_line(&self) -> String {
        let hosts: Vec<String> = (1..=self.record.guests)
            .map(|number| format!("{}={}", management_address(number), guest_name(number)))
            .collect();
        let cables = self.record.topology.cables(self.number).into_iter();
        let addresses: Vec<String> = cables.map(|cable| format!("{}/24", cable.address)).collect();
        // `no_timer_check`: on a busy machine an emulated timer fails the kernel's test, which
        // would be fatal. Pages are cleared once, and as few as possible, since that takes a
        // tenth of an emulated processor's time.
        format!(
            "console=ttyS0 quiet panic=-1 net.ifnames=0 mitigations=off no_timer_check \
             init_on_alloc=0 transparent_hugepage=never no5lvl apparmor=0 kfence.sample_interval=0 \
             lab.name={} lab.hosts={} lab.addresses={} lab.mtu={FABRIC_MTU} lab.rdma={DRIVERS}{}",
            self.name(),
            hosts.join(","),
            addresses.join(","),
            match self.share() {
                Some(_) if self.record.is_share_fixed => " lab.share=fixed",
                Some(_) => " lab.share",
                None => "",
            }
        )
    }

    /// Starts the guest. [`wait`] waits until it is up.
    pub(super) fn start(&self, paths: &VmPaths) -> Result<(), LabError> {
        let name = self.name();
        let image = self.record.image();
        make_dir(&self.dir)?;
        if !self.disk().exists() {
            let mut copy = Command::new("cp");
            copy.arg("--sparse=always").arg(image.disk()).arg(self.disk());
            run(&format!("make the disk of guest {name}"), &mut copy)?;
        }
        let mut command = network::enter(paths);
        command.arg("qemu-system-x86_64").args(self.arguments(&image));
        // With -daemonize QEMU returns when the machine exists, or prints an error.
        run(&format!("start guest {name}"), &mut command)?;
        let text = read(&self.dir.join("pid"))?;
        let pid = text.trim().parse().map_err(|_| {
            LabError::Unexpected(format!("guest {name}: `{}` is not a pid", text.trim()))
        })?;
        state::store_process(&self.dir, pid)
    }
}

/// Waits until `guest` answers by ssh.
pub(super) fn wait(lab: &VmLab, guest: &str) -> Result<(), LabError> {
    let dir = lab.paths.guest(guest);
    let (what, ready) = (format!("guest {guest} to start"), format!("lab: {guest} is up"));
    let console = || fs::read(console(&dir)).unwrap_or_default();
    let console = || String::from_utf8_lossy(&console()).into_owned();
    let shown = |error| with_detail(error, &console_end(&console()));
    wait_until(START, &what, || {
        if state::process(&dir).is_none() {
            let end = console_end(&console());
            return Err(LabError::Unexpected(format!("guest {guest} died while starting:\n{end}")));
        }
        Ok(console().contains(&ready))
    })
    .map_err(shown)?;
    // Its sshd starts after that line. Earlier connections are refused at once, so they are
    // retried.
    let mut ssh = lab.ssh(guest)?;
    ssh.arg("true");
    wait_until(START, &what, || Ok(run("try ssh", &mut ssh).is_ok())).map_err(shown)?;
    keep_connection(lab, guest)
}

/// Ends the connection that commands share, before the guest is gone: they would wait for it.
pub(super) fn end_connection(lab: &VmLab, guest: &str) -> Result<(), LabError> {
    let mut ssh = lab.ssh(guest)?;
    ssh.args(["-O", "exit"]).stderr(Stdio::null());
    // There may be none.
    ssh.status().map_err(LabError::io(format!("end the connection to {guest}"))).map(drop)
}

/// Opens the connection that later commands share: on an emulated processor a key exchange takes
/// longer than most commands. If it ends, commands connect by themselves.
fn keep_connection(lab: &VmLab, guest: &str) -> Result<(), LabError> {
    let mut ssh = lab.ssh(guest)?;
    ssh.args(["-f", "-N", "-o", "ControlMaster=yes"]);
    // It runs on in the background and would hold pipes open.
    ssh.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let operation = format!("keep a connection to {guest}");
    ssh.status().map_err(LabError::io(operation)).map(drop)
}

fn console_end(text: &str) -> String {
    last_lines(&text.replace('\r', ""), CONSOLE_LINES)
}

/// Returns the file with the output of the guest's kernel and init.
pub(super) fn console(dir: &Path) -> PathBuf {
    dir.join("console.log")
}

/// Returns the socket of QEMU's monitor.
pub(super) fn monitor(dir: &Path) -> PathBuf {
    dir.join("monitor")
}

/// Appends a command line to an ssh command, quoted for the guest's shell.
pub(super) fn remote(ssh: &mut Command, words: &[&str]) {
    ssh.arg("--").args(words.iter().map(|word| crate::command::quote(word)));
}

/// Adds a directory of this machine that the guest can mount by a tag, read-only.
fn directory(arguments: &mut Vec<String>, tag: &str, directory: &Path) {
    let directory = escape(directory);
    arguments.extend([
        "-fsdev".into(),
        format!("local,id={tag},path={directory},security_model=none,readonly=on"),
        "-device".into(),
        format!("virtio-9p-pci,fsdev={tag},mount_tag={tag}"),
    ]);
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn path(path: &Path) -> String {
    path.display().to_string()
}

/// Escapes a path for QEMU's options, which commas separate.
fn escape(path: &Path) -> String {
    self::path(path).replace(',', ",,")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::Topology;

    fn arguments(number: usize) -> String {
        let image = Image::at("/cache/vm-0");
        let (guests, topology) = (3, Topology::Triangle);
        let (share, is_share_fixed) = (Some("/a,b/dist".into()), false);
        let directory = image.dir().to_path_buf();
        let record = VmRecord { guests, topology, image: directory, share, is_share_fixed };
        let (accelerator, dir) = (Accelerator::Tcg, "/run/lab/n".into());
        Guest { number, record: &record, accelerator, dir }.arguments(&image).join(" ")
    }

    #[test]
    fn the_first_guest_alone_is_given_the_share() {
        let first = arguments(1);
        assert!(first.contains("local,id=share,path=/a,,b/dist,"), "{first}");
        assert!(first.contains(" lab.rdma=rxe,siw lab.share "), "{first}");
        assert!(!arguments(2).contains("share"));
    }

    #[test]
    fn everybody_is_named_and_each_interface_has_its_cable() {
        let third = arguments(3);
        for part in [
            " lab.name=n3 lab.hosts=10.77.0.1=n1,10.77.0.2=n2,10.77.0.3=n3 ",
            " lab.addresses=10.77.0.3/24,192.168.100.3/24,192.168.102.3/24 ",
            "-netdev tap,id=net0,ifname=tap3-0,script=no,downscript=no",
            "netdev=net2,romfile=,mac=52:54:00:03:02:01,bus=port2,host_mtu=4200",
        ] {
            assert!(third.contains(part), "{part}: {third}");
        }
        assert!(third.ends_with(" -device virtio-blk-pci,drive=disk"), "{third}");
        // The kernel truncates longer command lines.
        assert!(!third.contains("net3") && third.len() < 2048, "{third}");
    }
}
