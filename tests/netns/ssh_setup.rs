//! `rlaunch ssh-setup` on newly installed hosts, and the files that it leaves on them.

use crate::guide;
use crate::running::{Outcome, Running};
use crate::support::{BOUND, Field, Run, State, Undo};
use crate::terminal::Terminal;
use crate::up::{dump, own_files};
use rlaunch_lab::{Account, Sshd};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const HOSTS: [&str; 3] = ["a", "b", "c"];
const PASSWORD: &str = "open sesame";
/// Hash of [`PASSWORD`] for `/etc/shadow`.
const HASHED: &str = "$6$rlaunchlab$4moi636pCHCxai2XPa0YZRlkvwEXPt9szX/L6bDzk8L0HsMoxYSmRG.HYeLX9w2e7FJkZckB3pL1L/U8lVqjZ.";
const SEARCHED: &str =
    "SetEnv PATH=/tmp/stand-in:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Stand-in for `docker exec -i NAME PROGRAM…`: inside, mounts and host name differ. If the file
/// `refused` exists, the user may not use docker.
const DOCKER: &str = r#"#!/bin/sh
if [ -e /tmp/stand-in/refused ]; then
    echo "permission denied while trying to connect to the docker API at unix:///var/run/docker.sock" >&2
    exit 1
fi
[ "$1 $2 $3" = "exec -i mpicont" ] || { echo "No such container: $3" >&2; exit 1; }
shift 3
exec unshare --mount --uts sh -c 'hostname in-$(hostname) && exec "$@"' sh "$@"
"#;

/// Settings of sshds in addition to the lab's. With them, the lab's own key is not accepted.
const AS_DELIVERED: [&str; 3] =
    ["AuthorizedKeysFile .ssh/authorized_keys", "StrictModes yes", SEARCHED];

/// Restarts the sshd of each host with additional settings, and without them when the guard is
/// dropped.
fn reconfigure<'a>(field: &'a Field, lines: [Vec<&'static str>; 3]) -> impl Drop + use<'a> {
    let sshds: Vec<Sshd<'a>> = HOSTS.iter().map(|host| field.lab.sshd(host).unwrap()).collect();
    for (sshd, lines) in sshds.iter().zip(lines) {
        sshd.restart(&lines).unwrap();
    }
    Undo(move || sshds.iter().try_for_each(|sshd| sshd.restart(&[])))
}

/// Removes root's `.ssh` on the hosts and restores the mode of root's home, now and when the guard is
/// dropped: other tests put files there too.
fn homes(field: &Field) -> impl Drop + use<> {
    let homes: Vec<PathBuf> =
        HOSTS.iter().map(|host| field.lab.home(host, Account::Root).unwrap()).collect();
    let restore = move || {
        homes.iter().try_for_each(|home| {
            fs::set_permissions(home, fs::Permissions::from_mode(0o700))?;
            let ssh = home.join(".ssh");
            if ssh.exists() { fs::remove_dir_all(ssh) } else { Ok(()) }
        })
    };
    restore().unwrap();
    Undo(restore)
}

/// Moves the files in the launching account's `~/.ssh` elsewhere until the guard is dropped.
fn without_keys(field: &Field) -> impl Drop + use<> {
    let ssh = field.lab.ssh_dir(Account::Root);
    let aside = ssh.with_file_name("aside");
    let move_all = |from: &Path, to: &Path| -> std::io::Result<()> {
        fs::create_dir_all(to)?;
        fs::read_dir(from)?.try_for_each(|entry| {
            let entry = entry?;
            fs::rename(entry.path(), to.join(entry.file_name()))
        })
    };
    move_all(&ssh, &aside).unwrap();
    Undo(move || {
        for entry in fs::read_dir(&ssh)? {
            fs::remove_file(entry?.path())?;
        }
        move_all(&aside, &ssh)?;
        fs::remove_dir(&aside)
    })
}

/// Removes the launching account's files for the container when the guard is dropped.
fn without_files_of_container(field: &Field) -> impl Drop + use<> {
    let ssh = field.lab.ssh_dir(Account::Root);
    Undo(move || {
        let files = ["id_ed25519_mpicont", "id_ed25519_mpicont.pub", "rlaunch-mpicont"];
        let mut left = files.iter().map(|name| ssh.join(name)).filter(|path| path.exists());
        left.try_for_each(fs::remove_file)
    })
}

/// Gives root a password on all hosts until the guard is dropped.
fn with_password(field: &Field) -> impl Drop + use<> {
    // One file that is mounted on every host.
    let shadow = field.lab.path("a", Path::new("/etc/shadow")).unwrap();
    let before = fs::read_to_string(&shadow).unwrap();
    let line = |line: &str| match line.strip_prefix("root:*:") {
        Some(rest) => format!("root:{HASHED}:{rest}\n"),
        None => format!("{line}\n"),
    };
    let text: String = before.lines().map(line).collect();
    assert_ne!(text, before);
    fs::write(&shadow, text).unwrap();
    Undo(move || fs::write(&shadow, &before))
}

/// User at a terminal, with the rlaunch that is controlled by the terminal.
pub(crate) struct Typist<'a> {
    terminal: Terminal,
    running: Running<'a>,
}

impl<'a> Typist<'a> {
    pub(crate) fn start(field: &'a Field, run: Run<'a>) -> Typist<'a> {
        let (terminal, slave) = Terminal::open();
        let mut command = run.at_terminal().command();
        command.stdin(slave).stdout(Stdio::piped()).stderr(Stdio::piped());
        Typist { terminal, running: Running::start(field, &mut command, BOUND) }
    }

    /// Types `line` once `question` has been printed `times` times on stderr.
    fn answer(&mut self, question: &str, times: usize, line: &str) {
        self.running.wait_for_stderr(question, times);
        self.terminal.write(&format!("{line}\n"));
    }

    /// Types `line` once `question` has been shown `times` times on the terminal itself.
    pub(crate) fn answer_hidden(&mut self, question: &str, times: usize, line: &str) {
        self.terminal.wait_until(BOUND, question, |shown| shown.matches(question).count() >= times);
        self.terminal.write(&format!("{line}\n"));
    }

    /// Returns the outcome of rlaunch, and the text that the terminal showed.
    pub(crate) fn finish(self) -> (Outcome, String) {
        let outcome = self.running.finish();
        (outcome, self.terminal.finish())
    }
}

/// Shell line that lists every file with its mode and time of change, and a checksum of each file
/// in `.ssh`.
const TREE: &str = "find . -path ./.cache -prune -o -print0 | sort -z | xargs -0 stat -c '%a %y %n'; \
                    find .ssh -type f -print0 2>/dev/null | sort -z | xargs -0r sha256sum";

/// Returns the output of [`TREE`] for root's home on each host, and for the launching account's
/// `~/.ssh`.
fn trees(field: &Field) -> Vec<String> {
    let tree = |host: &&str| field.on(host, &format!("cd; {TREE}"));
    let mut trees: Vec<String> = HOSTS.iter().map(tree).collect();
    let sh = ["sh", "-c", &TREE.replace("find .ssh", "find .")];
    let mut here = Command::new(sh[0]);
    let here = here.args(&sh[1..]).current_dir(field.lab.ssh_dir(Account::Root)).output();
    trees.push(String::from_utf8(here.unwrap().stdout).unwrap());
    trees
}

fn modes(field: &Field, host: &str) -> String {
    let text = field.on(host, "cd; stat -c '%a %n' . .ssh .ssh/*");
    text.replace('\n', " ").trim_end().to_owned()
}

#[test]
fn fresh_hosts_open_to_a_key_and_their_containers_to_another() {
    let field = Field::new();
    let _hosts = homes(&field);
    let _here = without_keys(&field);
    let _password = with_password(&field);
    let _docker = field.files(&HOSTS, "/tmp/stand-in/docker", DOCKER, 0o755);
    let by_password = [&AS_DELIVERED[..], &["PasswordAuthentication yes"]].concat();
    // This sshd asks for the password through PAM.
    let by_pam = ["UsePAM yes", "KbdInteractiveAuthentication yes"];
    let by_pam = [&AS_DELIVERED[..], &by_pam].concat();
    let _sshds = reconfigure(&field, [by_password.clone(), by_password, by_pam]);
    field.on("a", "cd; chmod 775 .");
    let before = trees(&field);
    let setup = "ssh-setup -H a,b,c --container mpicont";

    let ran = field.rlaunch(&format!("{setup} --dry-run")).run();
    let plan = ran.succeeded().out();
    for host in HOSTS {
        let shown = field.on(host, "ssh-keygen -lf /run/rlaunch-lab/host_key.pub");
        let shown = shown.split(' ').nth(1).unwrap();
        let wanted = format!("on {host}:\n  accept its host key {shown}\n");
        assert!(plan.contains(&wanted), "{wanted}{ran}");
    }
    assert!(plan.contains("here:\n  make the key ~/.ssh/id_ed25519 "), "{ran}");
    field
        .rlaunch(setup)
        .run()
        .refused(200, &["nothing was changed", "not a terminal"])
        .hints("--yes");
    assert_eq!(trees(&field), before);

    let mut typist = Typist::start(&field, field.rlaunch(setup));
    typist.answer("go on? [y/N] ", 1, "y");
    let question = "password of root@a (also tried on b, c): ";
    typist.answer_hidden(question, 1, "open barley");
    typist.answer_hidden(question, 2, PASSWORD);
    let (ran, shown) = typist.finish();
    ran.succeeded().says(&["a does not accept it", "a, b, c accept your key"]);
    assert!(!shown.contains("open") && shown.contains('y'), "{shown}");
    assert_eq!(shown.matches("password of root@").count(), 2, "{shown}");

    let of_files = ".ssh/authorized_keys 700 .ssh/rlaunch-mpicont.sh";
    assert_eq!(modes(&field, "a"), format!("755 . 700 .ssh 600 {of_files}"));
    assert_eq!(modes(&field, "c"), format!("700 . 700 .ssh 600 {of_files}"));
    let here = Command::new("sh")
        .args(["-c", "export LC_ALL=C; stat -c '%a %n' *"])
        .current_dir(field.lab.ssh_dir(Account::Root))
        .output();
    assert_eq!(
        String::from_utf8(here.unwrap().stdout).unwrap(),
        "600 id_ed25519\n644 id_ed25519.pub\n600 id_ed25519_mpicont\n644 id_ed25519_mpicont.pub\n\
         600 known_hosts\n600 rlaunch-mpicont\n"
    );
    let ran = field.rlaunch("-H a,b,c hostname").run();
    assert_eq!(ran.succeeded().sorted(), HOSTS, "{ran}");
    let config = Account::Root.home().join(".ssh/rlaunch-mpicont");
    let ran = field.rlaunch("--ssh-config").args([config]).args(["-H", "a,b,c", "hostname"]).run();
    assert_eq!(ran.succeeded().sorted(), ["in-a", "in-b", "in-c"], "{ran}");

    let before = trees(&field);
    let ran = field.rlaunch(setup).run();
    assert!(ran.succeeded().out().is_empty(), "{ran}");
    ran.says(&["there is nothing to do"]);
    assert_eq!(trees(&field), before);
}

#[test]
fn a_host_that_cannot_be_set_up_says_why_and_hides_no_other() {
    let field = Field::new();
    let _hosts = homes(&field);
    let _docker = field.files(&HOSTS, "/tmp/stand-in/docker", DOCKER, 0o755);
    let _here = without_files_of_container(&field);
    let known = field.lab.ssh_dir(Account::Root);
    // The lab's key is accepted by a and c. It is not accepted by b, which accepts no passwords
    // either.
    let a = "AuthorizedKeysFile /run/rlaunch-lab/authorized_keys .ssh/authorized_keys";
    let c = "AuthorizedKeysFile /run/rlaunch-lab/authorized_keys .ssh/other .ssh/authorized_keys";
    let lines = [vec![a, SEARCHED], AS_DELIVERED.to_vec(), vec![c, SEARCHED]];
    let _sshds = reconfigure(&field, lines);
    let before = trees(&field);
    let ran = field.rlaunch("ssh-setup -H a,b,nowhere --yes").run();
    ran.refused(
        201,
        &["2 of 3 hosts are not set up", "  b: it accepts none of your keys for root"],
    );
    ran.refused(201, &["accepts no passwords", "  nowhere: cannot look up"])
        .hints("ssh-ed25519 AAAA");
    ran.says(&["a accepts your key"]);
    assert_eq!(trees(&field), before);

    let _refused = field.files(&["a"], "/tmp/stand-in/refused", "", 0o644);
    let run = || field.rlaunch("ssh-setup -H a,c --container mpicont --yes").run();
    let ran = run();
    ran.refused(201, &["a: container mpicont of docker runs no commands: permission denied"]);
    ran.hints("usermod -aG docker root").says(&["c accepts your key"]);
    let key = fs::read_to_string(known.join("id_ed25519_mpicont.pub")).unwrap();
    let other = field.lab.home("c", Account::Root).unwrap().join(".ssh/other");
    fs::write(other, key).unwrap();
    let ran = run();
    ran.refused(201, &["  c: the key logs in to the host, not to container mpicont"]);
    ran.hints("command=\"sh ~/.ssh/rlaunch-mpicont.sh\"");
}

#[test]
fn the_guide_on_containers() {
    let field = Field::new();
    // The agents are on the hosts already, so rlaunch prints nothing about sending them.
    field.warm("a,b,c", Account::Root);
    let _files = own_files(&field, &HOSTS);
    let _hosts = homes(&field);
    let _here = without_files_of_container(&field);
    let docker = DOCKER.replace(" --uts", "").replace("hostname in-$(hostname) && ", "");
    let _docker = field.files(&HOSTS, "/tmp/stand-in/docker", &docker, 0o755);
    let lab_and_home = "AuthorizedKeysFile /run/rlaunch-lab/authorized_keys .ssh/authorized_keys";
    let lines = vec![lab_and_home, SEARCHED];
    let _sshds = reconfigure(&field, [lines.clone(), lines.clone(), lines]);
    let state = State::new();
    let before = HOSTS.map(|host| dump(&field, host));
    guide::follow("container-login", field.rlaunch.to_str().unwrap(), |line| {
        // What `up` leaves here is not for the jobs of other tests.
        let place = if line.contains("rlaunch up ") { state.path() } else { "/" };
        field.shell(&format!("export XDG_STATE_HOME={}\n{line}", state.path()), Path::new(place))
    });
    assert_eq!(HOSTS.map(|host| dump(&field, host)), before, "the guide ends with `rlaunch down`");
}
