//! What ends with the user's login, for a job that is to go on after it.
//!
//! Where logind is set to (`KillUserProcesses=yes`), it ends the processes of a session together with it. And the user's own
//! systemd, of which the terminals of a desktop are units, ends with the user's last session, unless the user lingers. So the
//! launcher moves out of the session to a unit there, and asks for lingering. Whatever it starts later is in the unit too.
//! `busctl`, a part of systemd, asks both of them. Elsewhere, this costs the reading of `/proc/self/cgroup`.

use nix::unistd::{Uid, User};
use rlaunch_console::messages;
use rlaunch_plan::job::JobSpec;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

/// Destination, object and interface of what manages logins.
const LOGIND: [&str; 3] =
    ["org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager"];
/// Destination, object and interface of what manages units.
const SYSTEMD: [&str; 3] =
    ["org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"];
/// Time limit for an answer, as an option of busctl.
const ANSWER: &str = "--timeout=5";
/// Time limit for busctl itself, which waits longer for a bus that lets nobody in.
const BUSCTL: Duration = Duration::from_secs(6);
/// Time within which a user's systemd has started and a process is in its unit. systemd answers before it is.
const MOVE: Duration = Duration::from_secs(10);
/// Time between two looks at what is waited for.
const CHECK: Duration = Duration::from_millis(10);

/// Place of a process that a logout may end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// A session of this user.
    Session(u32),
    /// A service of the user's own systemd. It may end with its first process.
    UserService,
    /// A group of processes there, which stays until the last of them has ended.
    UserScope,
}

impl Place {
    /// Finds the place in the text of `/proc/self/cgroup`; `None` where no logout ends anything.
    fn find(cgroups: &str) -> Option<Place> {
        let mut paths = cgroups.lines().filter_map(|line| line.splitn(3, ':').nth(2));
        paths.find_map(Place::of_path)
    }

    fn of_path(path: &str) -> Option<Place> {
        let within = |begin: &str, end: &str| {
            let mut units = path.split('/');
            units.find_map(|unit| unit.strip_prefix(begin)?.strip_suffix(end))
        };
        if within("user@", ".service").is_some() {
            let is_scope = path.ends_with(".scope");
            return Some(if is_scope { Place::UserScope } else { Place::UserService });
        }
        within("session-", ".scope")?;
        within("user-", ".slice")?.parse().ok().map(Place::Session)
    }

    /// Tells whether a logout ends what is here. `rules` of logind are asked for where they matter.
    fn is_ended(self, rules: impl FnOnce() -> Option<KillRules>) -> bool {
        let Place::Session(user) = self else { return true };
        let account = User::from_uid(Uid::from_raw(user)).ok().flatten();
        let name = account.map_or_else(|| user.to_string(), |account| account.name);
        rules().is_some_and(|rules| rules.hit(&name))
    }
}

/// logind's rules about what users leave behind.
#[derive(Debug, PartialEq, Eq)]
struct KillRules {
    kills: bool,
    /// The only users that are concerned; none for all.
    only: Vec<String>,
    /// Users that are not concerned; none for root.
    excluded: Vec<String>,
}

impl KillRules {
    const NAMES: [&str; 3] = ["KillUserProcesses", "KillOnlyUsers", "KillExcludeUsers"];

    /// Reads what busctl prints of [`KillRules::NAMES`]: `b true`, and twice `as 2 "alice" "bob"`.
    fn parse(answer: &str) -> Option<KillRules> {
        let mut lines = answer.lines();
        let kills = match lines.next()? {
            "b true" => true,
            "b false" => false,
            _ => return None,
        };
        let mut users = || -> Vec<String> {
            let names = lines.next().unwrap_or_default().split(' ').skip(2);
            names.map(|name| name.trim_matches('"').to_owned()).collect()
        };
        Some(KillRules { kills, only: users(), excluded: users() })
    }

    fn hit(&self, user: &str) -> bool {
        let has = |users: &[String]| users.iter().any(|listed| listed == user);
        if has(&self.excluded) || (self.excluded.is_empty() && user == "root") {
            return false;
        }
        if self.only.is_empty() { self.kills } else { has(&self.only) }
    }
}

/// Sees to it that this process outlives the logout of its user, and says what cannot be had then. Returns `false` if the job
/// ends with the login.
pub(super) fn outlive(job: &JobSpec) -> bool {
    if job.restarts.is_some() && agent_is_forwarded() {
        messages::info(
            "the SSH agent here is forwarded and ends with this login: a restart after that has the keys of this machine alone",
        );
    }
    let cgroups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let Some(place) = Place::find(&cgroups).filter(|place| place.is_ended(kill_rules)) else {
        return true;
    };
    match stay(place, &format!("rlaunch-{}-{}.scope", job.name, std::process::id())) {
        Ok(()) => true,
        Err(why) => {
            messages::warn(&format!(
                "the job ends when you log out, as systemd here ends what users leave behind: {why}"
            ));
            false
        }
    }
}

/// Asks logind for its rules; `None` if it does not answer.
fn kill_rules() -> Option<KillRules> {
    let [name, object, interface] = LOGIND;
    let words = ["get-property", name, object, interface];
    let answer = busctl("--system", words.iter().chain(&KillRules::NAMES).copied());
    answer.inspect_err(|why| tracing::info!("{why}")).ok().as_deref().and_then(KillRules::parse)
}

/// Lets this process stay at the logout. `unit` is the name of the one to which it moves.
fn stay(place: Place, unit: &str) -> Result<(), String> {
    let user = Uid::effective();
    if user.is_root() {
        // Units of the machine's systemd have nothing to do with logins.
        return enter_unit("--system", unit);
    }
    linger(user)?;
    if place == Place::UserScope { Ok(()) } else { enter_unit("--user", unit) }
}

/// Makes the systemd of a user stay when the user logs out.
fn linger(user: Uid) -> Result<(), String> {
    let [name, object, interface] = LOGIND;
    let of_user = format!("{object}/user/_{user}");
    let words = ["get-property", name, &of_user, "org.freedesktop.login1.User", "Linger"];
    if busctl("--system", words).is_ok_and(|answer| answer.trim() == "b true") {
        return Ok(());
    }
    let user = user.to_string();
    // The last word: nobody is asked for a password.
    let words = ["call", name, object, interface, "SetUserLinger", "ubb", &user, "true", "false"];
    busctl("--system", words).map_err(|why| format!("lingering is refused: {why}"))?;
    messages::info(
        "lingering is enabled for you, since systemd here ends what users leave behind (`loginctl disable-linger` undoes it)",
    );
    Ok(())
}

/// Moves this process to a new unit of the systemd on a bus.
fn enter_unit(bus: &str, unit: &str) -> Result<(), String> {
    let [name, object, interface] = SYSTEMD;
    let process = std::process::id().to_string();
    let method = ["call", name, object, interface, "StartTransientUnit", "ssa(sv)a(sa(sv))"];
    let properties = ["3", "Description", "s", "rlaunch -d", "CollectMode", "s"];
    let properties = properties.into_iter().chain(["inactive-or-failed", "PIDs", "au", "1"]);
    let words = method.into_iter().chain([unit, "fail"]).chain(properties);
    let words: Vec<&str> = words.chain([process.as_str(), "0"]).collect();
    let due = Instant::now() + MOVE;
    // The systemd of a user who lingers only now is just starting.
    while let Err(why) = busctl(bus, words.iter().copied()) {
        if Instant::now() > due || !why.contains("Failed to connect") {
            return Err(why);
        }
        thread::sleep(CHECK * 10);
    }
    let due = Instant::now() + MOVE;
    while !fs::read_to_string("/proc/self/cgroup").is_ok_and(|cgroups| cgroups.contains(unit)) {
        if Instant::now() > due {
            return Err(format!("it has not moved the job to {unit}"));
        }
        thread::sleep(CHECK);
    }
    Ok(())
}

/// Runs busctl on a bus, and returns what it prints.
fn busctl<'a>(bus: &str, words: impl IntoIterator<Item = &'a str>) -> Result<String, String> {
    let mut command = Command::new("busctl");
    command.args([bus, ANSWER]).args(words).stdin(Stdio::null());
    // After su(1), the variables are those of another user.
    command.env_remove("DBUS_SESSION_BUS_ADDRESS");
    command.env("XDG_RUNTIME_DIR", format!("/run/user/{}", Uid::effective()));
    said_within(&mut command, BUSCTL).map_err(|why| format!("busctl {why}"))
}

/// Returns what a command prints on stdout. An error, which follows the command's name, has the last line of its stderr. The
/// command prints less than a pipe holds.
fn said_within(command: &mut Command, limit: Duration) -> Result<String, String> {
    let spawned = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = spawned.map_err(|error| format!("cannot be run: {error}"))?;
    if !has_ended_within(&mut child, limit) {
        // An error means that it has just ended.
        let _ = child.kill();
        let _ = child.wait();
        return Err(format!("has no answer within {} s", limit.as_secs()));
    }
    let output = child.wait_with_output().map_err(|error| format!("cannot be read: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(said.lines().next_back().map_or_else(
        || format!("has failed: {}", output.status),
        |line| format!("says: {}", line.trim()),
    ))
}

fn has_ended_within(child: &mut Child, limit: Duration) -> bool {
    let due = Instant::now() + limit;
    while child.try_wait().is_ok_and(|status| status.is_none()) {
        if Instant::now() > due {
            return false;
        }
        thread::sleep(CHECK);
    }
    true
}

/// Tells whether the SSH agent of the environment is one that sshd has forwarded.
fn agent_is_forwarded() -> bool {
    let socket = env::var_os("SSH_AUTH_SOCK").unwrap_or_default();
    let program = |pid: &str| fs::read_to_string(format!("/proc/{pid}/comm")).ok();
    is_of_sshd(Path::new(&socket), program)
}

/// Tells whether sshd has made the socket of an SSH agent, by its name: `/tmp/ssh-RANDOM/agent.PID` with the pid of sshd, which
/// ssh-agent forms with its own, and since version 10.1 `~/.ssh/agent/s.RANDOM.sshd.RANDOM`.
fn is_of_sshd(socket: &Path, program: impl Fn(&str) -> Option<String>) -> bool {
    let name = socket.file_name().map(OsStr::as_bytes).map(String::from_utf8_lossy);
    let Some(name) = name else { return false };
    match name.strip_prefix("agent.") {
        Some(pid) if pid.bytes().all(|byte| byte.is_ascii_digit()) => {
            program(pid).is_some_and(|program| program.starts_with("sshd"))
        }
        _ => name.starts_with("s.") && name.contains(".sshd."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(answer: &str) -> KillRules {
        KillRules::parse(answer).unwrap()
    }

    #[test]
    fn places_are_found_in_both_versions_of_cgroups() {
        let manager = "/user.slice/user-7.slice/user@7.service";
        for (cgroups, place) in [
            ("0::/user.slice/user-1000.slice/session-3.scope\n", Some(Place::Session(1000))),
            (
                "9:pids:/\n1:name=systemd:/user.slice/user-7.slice/session-c1.scope\n0::/\n",
                Some(Place::Session(7)),
            ),
            (
                format!("0::{manager}/app.slice/vte-spawn-5.scope\n").as_str(),
                Some(Place::UserScope),
            ),
            (
                format!("0::{manager}/app.slice/gnome-terminal-server.service\n").as_str(),
                Some(Place::UserService),
            ),
            (
                format!("0::{manager}/app.slice/a.service/ranks\n").as_str(),
                Some(Place::UserService),
            ),
            ("0::/\n", None),
            ("0::/system.slice/cron.service\n", None),
            ("0::/system.slice/docker-0123.scope\n", None),
            ("0::/user.slice/user-1000.slice/session-x\n", None),
            ("", None),
        ] {
            assert_eq!(Place::find(cgroups), place, "{cgroups}");
        }
    }

    #[test]
    fn a_session_takes_along_whom_logind_is_told_to_end() {
        let all = "b true\nas 0\nas 1 \"root\"\n";
        for (answer, user, hit) in [
            ("b false\nas 0\nas 1 \"root\"\n", "alice", false),
            (all, "alice", true),
            (all, "root", false),
            ("b true\nas 0\nas 0\n", "root", false),
            ("b true\nas 0\nas 2 \"bob\" \"alice\"\n", "alice", false),
            ("b true\nas 0\nas 1 \"bob\"\n", "root", true),
            ("b true\nas 1 \"bob\"\nas 1 \"root\"\n", "alice", false),
            ("b false\nas 1 \"alice\"\nas 1 \"root\"\n", "alice", true),
        ] {
            assert_eq!(rules(answer).hit(user), hit, "{answer} of {user}");
        }
        assert_eq!(KillRules::parse("Failed to get property\n"), None);
        assert_eq!(KillRules::parse(""), None);
    }

    #[test]
    fn logind_is_asked_in_a_session_alone() {
        // Nobody has this number.
        let session = Place::Session(u32::MAX - 5);
        assert!(session.is_ended(|| Some(rules("b true\nas 0\nas 0\n"))));
        assert!(!session.is_ended(|| Some(rules("b false\nas 0\nas 0\n"))));
        assert!(!session.is_ended(|| None));
        let unasked = || -> Option<KillRules> { unreachable!("its rules are about sessions") };
        assert!(Place::UserService.is_ended(unasked) && Place::UserScope.is_ended(unasked));
    }

    #[test]
    fn a_bus_that_does_not_answer_is_given_up() {
        let said = |script: &str, limit: Duration| {
            said_within(Command::new("sh").args(["-c", script]).stdin(Stdio::null()), limit)
        };
        let (long, none) = (Duration::from_secs(60), Duration::ZERO);
        assert_eq!(said("echo b true", long), Ok("b true\n".to_owned()));
        let refused = said("echo first >&2; echo Call failed: Access denied >&2; exit 1", long);
        assert_eq!(refused, Err("says: Call failed: Access denied".to_owned()));
        assert_eq!(said("exit 3", long), Err("has failed: exit status: 3".to_owned()));
        let silent = said("exec sleep 1000", none);
        assert_eq!(silent, Err("has no answer within 0 s".to_owned()));
    }

    #[test]
    fn an_agent_of_sshd_is_told_from_one_of_this_machine() {
        let program = |pid: &str| match pid {
            "7" => Some("sshd\n".to_owned()),
            "8" => Some("sshd-session\n".to_owned()),
            "9" => Some("bash\n".to_owned()),
            _ => None,
        };
        for (socket, is_forwarded) in [
            ("/tmp/ssh-AbCdEfGhIj/agent.7", true),
            ("/tmp/ssh-AbCdEfGhIj/agent.8", true),
            ("/tmp/ssh-AbCdEfGhIj/agent.9", false),
            ("/tmp/ssh-AbCdEfGhIj/agent.10", false),
            ("/tmp/ssh-AbCdEfGhIj/agent.7/../../etc/x", false),
            ("/home/u/.ssh/agent/s.aBcDeFgHiJ.sshd.kLmNoPqRsT", true),
            ("/home/u/.ssh/agent/s.aBcDeFgHiJ.agent.kLmNoPqRsT", false),
            ("/run/user/1000/keyring/ssh", false),
            ("", false),
        ] {
            assert_eq!(is_of_sshd(Path::new(socket), program), is_forwarded, "{socket}");
        }
    }
}
