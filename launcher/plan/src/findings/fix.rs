//! What rlaunch itself can do about a fault: the lines that findings print, and the same as changes that can be undone.
//!
//! A finding gets its lines from here, so that what a person would paste and what `rlaunch doctor --fix` does are one
//! thing. Changes leave a host as it was when they are undone, but for packages, which stay installed, and modules that another
//! one needed, which stay loaded; opensm's package alone starts something, and goes.

use rlaunch_bootstrap::protocol::changes::Change;
use rlaunch_bootstrap::protocol::network::NetworkChange;
use rlaunch_text::shell;
use std::net::IpAddr;

/// Line that installs opensm by the package manager that is there.
const INSTALL_OPENSM: &str =
    "{ apt-get install -qy opensm || dnf install -qy opensm || zypper -n install opensm; }";
/// Line that removes opensm alone: these programs refuse where another package needs it.
const REMOVE_OPENSM: &str = "{ if dpkg -s opensm >/dev/null 2>&1; then dpkg -r opensm; else rpm -e opensm; fi || \
    { echo 'opensm stays installed' >&2; exit 1; }; }";
/// Line that gives the log of opensm its label, without which SELinux does not let opensm start.
const RELABEL: &str = "{ selinuxenabled && restorecon /var/log/opensm.log; } 2>/dev/null";
/// Line that waits until no InfiniBand port waits for a subnet manager, for half a minute at most: its first sweep takes
/// seconds, and who looks before that sees the fault still.
const AWAIT_SWEEP: &str = "i=0; while grep -qs INIT /sys/class/infiniband/*/ports/*/state; do [ $i -lt 30 ] || \
    { echo 'ports are still INIT after 30 s: journalctl -u opensm' >&2; exit 1; }; i=$((i + 1)); sleep 1; done";
/// Line that prints what opensm is like on a host. The unit of MLNX_OFED has another name than those of distributions.
const SAVE_OPENSM: &str = "! command -v opensm >/dev/null || echo there; for u in opensm opensmd; do \
    ! systemctl -q is-active $u 2>/dev/null || echo $u:active; \
    ! systemctl -q is-enabled $u 2>/dev/null || echo $u:enabled; done";
/// Line that ends and disables the units that were not active or enabled, and fails if one still is.
const STOP_OPENSM: &str = "for u in opensm opensmd; do \
    case $SAVED in *$u:active*) ;; *) ! systemctl -q is-active $u || systemctl stop $u || exit 1; \
    ! systemctl -q is-active $u || { echo \"$u still runs\" >&2; exit 1; } ;; esac; \
    case $SAVED in *$u:enabled*) ;; *) ! systemctl -q is-enabled $u 2>/dev/null || systemctl disable $u || exit 1; \
    ! systemctl -q is-enabled $u 2>/dev/null || { echo \"$u is still enabled\" >&2; exit 1; } ;; esac; done";
/// Mode of files that rlaunch writes below `/etc`.
const FILE_MODE: u32 = 0o644;

/// Way to make a fault go away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fix {
    /// Lines to paste into a shell.
    pub lines: Vec<String>,
    pub action: Action,
    /// What has to happen before a new examination can see the effect, if anything, as in `a reboot`.
    pub waits_for: Option<&'static str>,
}

/// What rlaunch does in place of the lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Changes on each host of the finding.
    Change(Vec<Change>),
    /// Changes on this host, which may be another one than the finding's.
    ChangeOn(String, Vec<Change>),
    /// The lines are run on the machine where rlaunch runs, as its user.
    RunHere,
    /// The user's key is installed on each host of the finding, as by `rlaunch ssh-setup`.
    InstallKey,
}

impl Fix {
    fn new(lines: impl IntoIterator<Item = String>, changes: Vec<Change>) -> Fix {
        Fix { lines: lines.into_iter().collect(), action: Action::Change(changes), waits_for: None }
    }

    /// Returns what is done on hosts.
    pub(crate) fn changes(&self) -> &[Change] {
        match &self.action {
            Action::Change(changes) | Action::ChangeOn(_, changes) => changes,
            Action::RunHere | Action::InstallKey => &[],
        }
    }

    /// Tells whether it lasts beyond the next boot.
    pub fn is_kept(&self) -> bool {
        let changes = self.changes();
        let goes =
            |change: &Change| matches!(change, Change::RunUntilBoot { .. } | Change::Network(_));
        changes.is_empty() || !changes.iter().all(goes)
    }

    pub(crate) fn waits_for(self, what: &'static str) -> Fix {
        Fix { waits_for: Some(what), ..self }
    }

    /// Makes the fix one of a certain host.
    pub(crate) fn on(self, host: &str) -> Fix {
        let action = match self.action {
            Action::Change(changes) => Action::ChangeOn(host.to_owned(), changes),
            other => other,
        };
        Fix { action, ..self }
    }

    /// Sets kernel settings now and at each boot. `name` is that of the file below /etc/sysctl.d. It is read behind
    /// 99-sysctl.conf, which leads to /etc/sysctl.conf: what is wrong may stand there.
    pub(crate) fn sysctl(name: &str, settings: &[(&str, &str)]) -> Fix {
        let words: Vec<String> =
            settings.iter().map(|(key, value)| format!("{key}={}", shell_word(value))).collect();
        let words = words.join(" ");
        let path = format!("/etc/sysctl.d/99-zz-rlaunch-{name}.conf");
        let content = settings.iter().map(|(key, value)| format!("{key} = {value}\n")).collect();
        let set = settings.iter().map(|(key, value)| {
            let file = format!("/proc/sys/{}", key.replace('.', "/"));
            Change::Run {
                line: format!("sysctl -w {key}={}", shell_word(value)),
                save: Some(format!("cat {file}")),
                undo: Some(format!("printf '%s\\n' \"$SAVED\" > {file}")),
            }
        });
        let changes = set.chain([written(&path, content)]).collect();
        let keep = format!("printf '%s\\n' {words} | sudo tee {path}");
        Fix::new([format!("sudo sysctl -w {words}"), keep], changes)
    }

    /// Loads a module now and at each boot.
    pub(crate) fn module(module: &str) -> Fix {
        let file = format!("/etc/modules-load.d/rlaunch-{module}.conf");
        let loaded = format!("grep -q '^{} ' /proc/modules", module.replace('-', "_"));
        let load = Change::Run {
            line: format!("modprobe {module}"),
            save: Some(format!("if {loaded}; then echo loaded; fi")),
            // Modules that it needs stay: `modprobe -r` would remove the driver of a network interface with it, even if the
            // interface is up. One that is built in cannot be removed, and was not added.
            undo: Some(format!("[ \"$SAVED\" = loaded ] || ! {loaded} || rmmod {module}")),
        };
        let lines = [format!("sudo modprobe {module}"), format!("echo {module} | sudo tee {file}")];
        Fix::new(lines, vec![load, written(&file, format!("{module}\n"))])
    }

    pub(crate) fn interface_up(interface: &str) -> Fix {
        Fix::network(NetworkChange::SetUp { interface: interface.to_owned(), up: true })
    }

    pub(crate) fn mtu(interface: &str, mtu: u32) -> Fix {
        Fix::network(NetworkChange::SetMtu { interface: interface.to_owned(), mtu })
    }

    fn network(change: NetworkChange) -> Fix {
        let words: Vec<String> =
            change.arguments().iter().map(|word| shell::quoted(word.as_ref())).collect();
        let line = format!("sudo ip {}", words.join(" "));
        Fix::new([line], vec![Change::Network(change)])
    }

    /// Writes the same value to files of the kernel.
    pub(crate) fn write(value: &str, files: &[String]) -> Fix {
        let value = shell_word(value);
        let write = |file: &String| {
            let file = shell::quoted_posix(file);
            Change::RunUntilBoot {
                line: format!("printf '%s\\n' {value} > {file}"),
                save: Some(format!("cat {file}")),
                undo: Some(format!("printf '%s\\n' \"$SAVED\" > {file}")),
            }
        };
        let names: Vec<String> = files.iter().map(|file| shell::quoted(file.as_ref())).collect();
        let line = format!("echo {value} | sudo tee {}", names.join(" "));
        Fix::new([line], files.iter().map(write).collect())
    }

    /// Sets the mode of a file that the kernel makes at each boot.
    pub(crate) fn mode(mode: &str, file: &str) -> Fix {
        let change = Change::RunUntilBoot {
            line: format!("chmod {mode} {file}"),
            save: Some(format!("stat -c %a {file}")),
            undo: Some(format!("chmod \"$SAVED\" {file}")),
        };
        Fix::new([format!("sudo chmod {mode} {file}")], vec![change])
    }

    /// Makes the files of devices in /dev/infiniband that are not there. The kernel makes them together with the devices, and
    /// not again if something removes them. `devices` is a pattern of directories in sysfs that have the names of the files.
    pub(crate) fn device_files(devices: &str) -> Fix {
        let each = format!("for d in {devices}; do f=/dev/infiniband/${{d##*/}}");
        let make = "mknod -m 666 $f c $(tr : ' ' < $d/dev)";
        let change = Change::RunUntilBoot {
            line: format!(
                "mkdir -p /dev/infiniband && {each}; [ -e $f ] || {make} || exit 1; done"
            ),
            save: Some("echo $(ls /dev/infiniband 2>/dev/null)".to_owned()),
            undo: Some(format!(
                "{each}; [ -e $d/dev ] || continue; \
                 case \" $SAVED \" in *\" ${{f##*/}} \"*) ;; *) rm -f $f ;; esac; done; \
                 [ -n \"$SAVED\" ] || rmdir /dev/infiniband 2>/dev/null || true"
            )),
        };
        let lines = [
            "sudo mkdir -p /dev/infiniband".to_owned(),
            format!("{each}; [ -e $f ] || sudo {make}; done"),
        ];
        Fix::new(lines, vec![change])
    }

    /// Raises a limit of logins, and of the sshd from which logins have it where PAM does not set it. `item` is pam_limits'
    /// name of it, `of_sshd` systemd's setting.
    pub(crate) fn limit(item: &str, lines: &[&str], of_sshd: &str) -> Fix {
        let file = format!("/etc/security/limits.d/90-rlaunch-{item}.conf");
        let content = lines.iter().map(|line| format!("{line}\n")).collect();
        // The service is called ssh on Debian and Ubuntu, and sshd elsewhere. A file for a service that is not there does
        // nothing.
        let of_service = |service: &str| {
            let file = format!("/etc/systemd/system/{service}.service.d/90-rlaunch-{item}.conf");
            written(&file, format!("[Service]\n{of_sshd}\n"))
        };
        let changes = vec![written(&file, content), of_service("ssh"), of_service("sshd")];
        let words: Vec<String> = lines.iter().map(|line| format!("'{line}'")).collect();
        let line = format!("printf '%s\\n' {} | sudo tee {file}", words.join(" "));
        Fix::new([line], changes).waits_for(
            "a reboot, or `sudo systemctl daemon-reload && sudo systemctl restart ssh` (sshd outside of Debian), if this \
             sshd does not set limits by PAM; otherwise the account has a limit of its own (limits.conf, ulimit in \
             ~/.bashrc), which has to go",
        )
    }

    /// Mounts /dev/shm anew with an option. `undo` gives it back what it had.
    pub(crate) fn shared_memory(line: &str, save: &str, undo: &str) -> Fix {
        let change = Change::RunUntilBoot {
            line: line.to_owned(),
            save: Some(save.to_owned()),
            undo: Some(undo.to_owned()),
        };
        Fix::new([format!("sudo {line}")], vec![change])
    }

    /// Installs a package by the line that [`crate::checks`] knows for the distribution. It stays when the change is
    /// undone: others may have come to need it.
    pub(crate) fn package(line: &str) -> Fix {
        let plain = line.strip_prefix("sudo ").unwrap_or(line);
        let install = match plain.starts_with("apt-get ") {
            // Lists of packages may be old, or never have been fetched.
            true => format!(
                "export DEBIAN_FRONTEND=noninteractive; {plain} || {{ apt-get update && {plain}; }}"
            ),
            false => plain.to_owned(),
        };
        let change = Change::Run { line: install, save: None, undo: None };
        Fix::new([line.to_owned()], vec![change])
    }

    /// Starts opensm, now and at each boot, and installs it first if it is not there. `install` is the line that a person
    /// would type for that.
    ///
    /// A package that was not there is removed again, unless others have come to need it: that of Debian starts opensm by
    /// itself.
    pub(crate) fn subnet_manager(install: Option<&str>) -> Fix {
        let enable = "sudo systemctl enable --now opensm";
        let line = format!(
            "{{ command -v opensm >/dev/null || {INSTALL_OPENSM}; }} && {{ {RELABEL}; \
             systemctl enable --now opensm || systemctl enable --now opensmd; }} && {{ {AWAIT_SWEEP}; }}"
        );
        let change = Change::Run {
            line,
            save: Some(SAVE_OPENSM.to_owned()),
            undo: Some(format!(
                "{STOP_OPENSM}; \
                 case $SAVED in *there*) ;; *) ! command -v opensm >/dev/null || {REMOVE_OPENSM} ;; esac"
            )),
        };
        let lines = install.into_iter().chain([enable]);
        Fix::new(lines.map(str::to_owned), vec![change])
    }

    /// Restarts opensm, which configures all ports of its fabric anew.
    pub(crate) fn restart_subnet_manager() -> Fix {
        let line = "sudo systemctl restart opensm || sudo systemctl restart opensmd";
        let change = Change::Run {
            line: format!("{{ {}; }} && {{ {AWAIT_SWEEP}; }}", without_sudo(line)),
            save: None,
            undo: None,
        };
        Fix::new([line.to_owned()], vec![change])
    }

    /// Lets timedatectl keep the clock right.
    pub(crate) fn time_service() -> Fix {
        let change = Change::Run {
            line: "timedatectl set-ntp true".to_owned(),
            save: Some("timedatectl show -p NTP --value".to_owned()),
            undo: Some("timedatectl set-ntp \"$SAVED\"".to_owned()),
        };
        Fix::new(["sudo timedatectl set-ntp true".to_owned()], vec![change])
            .waits_for("the time service, which may take some minutes")
    }

    /// Switches the driver of eRDMA to compat mode.
    pub(crate) fn erdma_compat() -> Fix {
        const FILE: &str = "/etc/modprobe.d/rlaunch-erdma.conf";
        const OPTION: &str = "options erdma compat_mode=Y";
        let reload = Change::Run {
            line: "rmmod erdma && modprobe erdma compat_mode=Y".to_owned(),
            save: Some("cat /sys/module/erdma/parameters/compat_mode 2>/dev/null || true".into()),
            // The line may have removed the module and failed to load it again.
            undo: Some(
                "{ ! grep -q '^erdma ' /proc/modules || rmmod erdma; } && modprobe erdma compat_mode=\"${SAVED:-N}\""
                    .to_owned(),
            ),
        };
        let lines = [
            format!("echo '{OPTION}' | sudo tee {FILE}"),
            "sudo rmmod erdma".to_owned(),
            "sudo modprobe erdma compat_mode=Y".to_owned(),
        ];
        Fix::new(lines, vec![reload, written(FILE, format!("{OPTION}\n"))])
    }

    /// Lets a host's own name lead to one of its addresses, by /etc/hosts. The first line with the name becomes this one and
    /// hands over the full name beside it, which stays what `hostname -f` says. Other lines lose the name.
    pub(crate) fn own_name(name: &str, address: IpAddr) -> Fix {
        let name = shell::quoted_posix(name);
        // Comments end the names of a line.
        let program = "\
            /^[[:space:]]*#/ { print; next } \
            { has = 0; for (i = 2; i <= NF && $i !~ /^#/; i++) if ($i == n) has = 1 } \
            !has { print; next } \
            { own = a; rest = $1; is_name = 1; left = 0; \
            for (i = 2; i <= NF; i++) { if ($i ~ /^#/) is_name = 0; \
            if (is_name && ($i == n || !done && (index($i, n \".\") == 1 || index(n, $i \".\") == 1))) own = own \" \" $i; \
            else { rest = rest \" \" $i; left += is_name } } \
            if (!done) print own; done = 1; if (left) print rest } \
            END { if (!done) print a, n }";
        let line = format!("awk -v n={name} -v a={address} '{program}'");
        Fix::new([], vec![Change::Edit { path: "/etc/hosts".to_owned(), line }])
    }

    /// Runs a line of the finding on the machine where rlaunch runs.
    pub(crate) fn here(line: String) -> Fix {
        Fix { action: Action::RunHere, ..Fix::new([line], Vec::new()) }
    }

    pub(crate) fn install_key() -> Fix {
        Fix { action: Action::InstallKey, ..Fix::new([], Vec::new()) }
    }

    /// Accepts packets, by a line of the program that manages the filter.
    pub(crate) fn accept(line: &str, save: String, undo: String, is_kept: bool) -> Fix {
        let plain = line.replace("sudo ", "");
        let lines: Vec<String> = line.split(" && ").map(str::to_owned).collect();
        let (line, save, undo) = (plain, Some(save), Some(undo));
        let change = if is_kept {
            Change::Run { line, save, undo }
        } else {
            Change::RunUntilBoot { line, save, undo }
        };
        Fix::new(lines, vec![change])
    }
}

fn written(path: &str, content: String) -> Change {
    Change::File { path: path.to_owned(), mode: FILE_MODE, content: Some(content), expected: None }
}

/// Makes a line for root of one for a person.
fn without_sudo(line: &str) -> String {
    let plain = line.strip_prefix("sudo ").unwrap_or(line).replace("; sudo ", "; ");
    plain.replace("|| sudo ", "|| ")
}

/// Quotes a value of a setting only where a shell needs it.
fn shell_word(value: &str) -> String {
    shell::quoted(value.as_ref())
}
