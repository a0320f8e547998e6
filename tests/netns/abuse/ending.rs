//! Jobs that try to outlive rlaunch, and jobs that end because nothing is received for too long.

use crate::running::{Outcome, Running};
use crate::support::{Field, Undo, kill_at_once, state};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rlaunch_lab::command::wait_until;
use rlaunch_lab::{Account, Cut, Process, soak};
use std::time::Duration;

/// Path of the hostile program on a host.
const HOSTILE: &str = "/tmp/abuse/hostile";
/// Path of a copy of it with the set-user-ID bit, which runs as root.
const OTHER: &str = "/tmp/abuse/other";
/// Maximum time until nothing is left of a job whose end rlaunch could not wait for.
const SOON: Duration = Duration::from_secs(20);

/// Copies the hostile program to these hosts, until the guard is dropped.
fn hostile(field: &Field, hosts: &[&str], path: &str, mode: u32) -> impl Sized + use<> {
    let built = tempfile::tempdir().unwrap();
    let program = soak::hostile(built.path()).unwrap();
    let bytes = std::fs::read(program).unwrap();
    for host in hosts {
        field.lab.write_file(host, path.as_ref(), &bytes, mode).unwrap();
    }
    let locks = Account::ALL.map(|account| format!("/tmp/hostile.alive.{}", account.id()));
    let paths = hosts
        .iter()
        .flat_map(|host| locks.iter().map(|lock| field.lab.path(host, lock.as_ref()).unwrap()));
    let paths: Vec<_> = paths.collect();
    let remove = move || {
        let mut left = paths.iter().filter(|path| path.exists());
        left.try_for_each(std::fs::remove_file)
    };
    (field.scratch(hosts, "/tmp/abuse"), Undo(remove))
}

/// Lists what jobs have left on hosts: processes, directories, shared memory and cgroups.
fn left(field: &Field) -> Vec<String> {
    let processes = field.started().into_iter().map(|process| format!("{process:?}"));
    let directories = field.job_directories().into_iter().map(|path| path.display().to_string());
    let mut left: Vec<String> = processes.chain(directories).collect();
    for host in field.lab.hosts() {
        if soak::hostile_runs(&field.lab, &host).unwrap() {
            left.push(format!("{host}: a process that holds the helpers' lock"));
        }
        let line = "ls -d /dev/shm/* $(find /sys/fs/cgroup -name 'rlaunch-*') 2>/dev/null || :";
        left.extend(field.on(&host, line).lines().map(|line| format!("{host} {line}")));
    }
    left
}

/// Asserts that nothing of a job is left when rlaunch returns.
fn nothing_left(field: &Field, ran: &Outcome) {
    let left = left(field);
    assert!(left.is_empty(), "left when rlaunch returned: {left:#?}\n{ran}");
    field.assert_idle();
}

/// Runs jobs as root, as root on a host where cgroups cannot be changed, and as an ordinary user,
/// which may not change them either. Ends each job in every way. `before` starts root's programs.
fn outlives_nothing(before: &str, helpers: &str) {
    let field = Field::new();
    let hosts = ["a", "b", "c"];
    let _program = hostile(&field, &hosts, HOSTILE, 0o755);
    field.on("b", "mount -o remount,bind,ro /sys/fs/cgroup");
    let _writable = Undo(|| {
        field.on("b", "mount -o remount,bind,rw /sys/fs/cgroup");
        Ok::<(), ()>(())
    });
    for (host, account) in hosts.into_iter().zip([Account::Root, Account::Root, Account::User]) {
        for (then, code) in [("exit", 0), ("fail", 3), ("stay", 143)] {
            let run = field.rlaunch("--kill-after 0.3 -H").args([host]).account(account);
            let before = before.split_whitespace().filter(|_| account == Account::Root);
            let mut running = run.args(before).args([HOSTILE, helpers, then]).spawn();
            running.wait_for_text("up\n", 1);
            if then == "stay" {
                running.signal(Signal::SIGTERM);
            }
            let ran = running.finish_first();
            ran.ended_with(code).keeps_quiet_about(&["could not end"]);
            nothing_left(&field, &ran);
        }
    }
}

/// Command that starts a program with real-time priority on one processor, so that a scan of the
/// process table rarely finds it.
const HASTY: &str = "chrt -f 50 taskset -c 0";

#[test]
fn a_chain_of_forks() {
    outlives_nothing(HASTY, "c");
}

/// Neither scans of the process table nor signals to process groups find all of the processes.
#[test]
fn a_chain_of_forks_and_sessions() {
    outlives_nothing(HASTY, "s");
}

#[test]
fn a_thousand_children_and_a_bomb() {
    outlives_nothing("", "mb");
}

#[test]
fn stopped_traced_and_stubborn_processes() {
    outlives_nothing("", "tpdhf");
}

/// A process of the job's user is ended although /proc hides it, and one of another user is named.
#[test]
fn processes_that_are_hidden() {
    let field = Field::new();
    let _program = hostile(&field, &["a"], OTHER, 0o4755);
    let _sleep = field.scratch(&["a"], "/tmp/abuse");
    field.on("a", "cp $(command -v sleep) /tmp/abuse/hidden; chmod 4755 /tmp/abuse/hidden");
    // A process that cannot be inspected is named, since it could belong to a job.
    let line = "runuser -u {user} -- sh -c 'exec /tmp/abuse/hidden 997' >/dev/null 2>&1 &";
    field.on("a", &line.replace("{user}", Account::User.name()));
    let hidden = || field.ranks().into_iter().find(|p| p.args == ["/tmp/abuse/hidden", "997"]);
    field.wait_for("a process that may not be looked into", || hidden().is_some());
    let ran = field.rlaunch("reap --all -H a").account(Account::User).spawn().finish_first();
    let unknown = hidden().unwrap();
    let named = format!("; could not look into {} hidden (state S)\n", unknown.host_pid);
    assert!(ran.succeeded().out().ends_with(&named), "{ran}");
    kill(Pid::from_raw(unknown.pid), Signal::SIGKILL).unwrap();
    field.wait_for("it to go", || field.ranks().is_empty());
    field.on("a", "mount -o remount,hidepid=2 /proc");
    let _seen = Undo(|| {
        field.on("a", "mount -o remount,hidepid=0 /proc");
        Ok::<(), ()>(())
    });
    let run = field.rlaunch("-H a").account(Account::User);
    // What is root's is not to be seen.
    let is_seen = "while [ -e /proc/$! ]; do sleep 0.05; done";
    let ran = run.sh(&format!("setsid /tmp/abuse/hidden 998 & {is_seen}; exit 3")).run();
    ran.ended_with(3).says(&["all processes ended on a (1 helper process ended)"]);

    let run = field.rlaunch("-H a").account(Account::User);
    let ran = run.sh(&format!("{OTHER} - root & {is_seen}; exit 3")).spawn().finish_first();
    let others: Vec<Process> = field.ranks();
    let [other] = others.as_slice() else { panic!("not one process: {others:#?}\n{ran}") };
    ran.ended_with(3).says(&[&format!("a: could not end {} ", other.host_pid)]);
    kill(Pid::from_raw(other.pid), Signal::SIGKILL).unwrap();
    field.wait_for("the other user's process to go", || field.ranks().is_empty());
}

/// A container may share the machine's shared memory but have its own process ids. The creator of a
/// file there may live although no process here has its id.
#[test]
fn shared_memory_of_another_container() {
    let field = Field::new();
    let directory = crate::support::launch_directory();
    let says = field.shell(
        &format!(
            "sleep 60 & f=/dev/shm/torch_$!_{0}_0
            unshare -pf --mount-proc {rlaunch} -np 1 sh -c \"sleep 0.2; : >$f; echo up\" </dev/null
            [ ! -e $f ] || echo survives; rm -f $f; kill $!",
            std::process::id(),
            rlaunch = field.rlaunch.display(),
        ),
        directory.path(),
    );
    assert_eq!(says, "up\nsurvives\n");
}

/// A side that receives nothing any more lets its ranks save their work: the launcher of jobs on a
/// and b is stopped, hosts c and d are cut off, agents on e and f are stopped, and agents on g and
/// h are frozen, so that no signal but SIGKILL reaches them.
#[test]
fn a_launcher_a_host_and_an_agent_that_fall_silent() {
    const SAVED: &str = "/tmp/abuse/saved";
    let script = format!("trap 'echo saved >>{SAVED}; exit 0' TERM; echo up; sleep 77 & wait");
    let hosts = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let field = Field::new();
    let _saved = field.scratch(&hosts, "/tmp/abuse");
    hosts.iter().for_each(|host| drop(field.on(host, "install -d -m 1777 /tmp/abuse")));
    let mut jobs: Vec<(&str, Running<'_>)> = Vec::new();
    for (host, account) in hosts.iter().zip([Account::Root, Account::User].repeat(4)) {
        let run = field.rlaunch("--node-timeout 4 --kill-after 3 -H").args([host]);
        jobs.push((host, run.account(account).sh(&script).spawn()));
    }
    jobs.iter_mut().for_each(|(_, job)| job.wait_for_text("up\n", 1));

    let thaw = Undo(|| {
        ["g", "h"].iter().for_each(|host| drop(field.on(host, "rmdir /sys/fs/cgroup/frozen || :")));
        Ok::<(), ()>(())
    });
    let heal = Undo(|| ["c", "d"].iter().try_for_each(|host| field.lab.heal(host)));
    for (host, job) in &jobs {
        match *host {
            "a" | "b" => job.signal(Signal::SIGSTOP),
            "c" | "d" => field.lab.cut(host, Cut::Silent).unwrap(),
            // Only SIGKILL wakes a frozen process.
            "g" | "h" => {
                let found = field.lab.processes(host).unwrap();
                let of_agents = found.iter().filter(|p| p.args[0].ends_with("rlaunch-worker"));
                let is_child =
                    |p: &&Process| agents(&field, host).contains(&Pid::from_raw(p.parent));
                let agent = { of_agents }.find(is_child).unwrap();
                let frozen = field.lab.path(host, "/sys/fs/cgroup/frozen".as_ref()).unwrap();
                std::fs::create_dir(&frozen).unwrap();
                std::fs::write(frozen.join("cgroup.procs"), agent.pid.to_string()).unwrap();
                std::fs::write(frozen.join("cgroup.freeze"), "1").unwrap();
            }
            _ => agents(&field, host).iter().for_each(|pid| kill(*pid, Signal::SIGSTOP).unwrap()),
        }
    }
    wait_until(Duration::from_secs(25), "all ranks to end", || Ok(field.ranks().is_empty()))
        .unwrap_or_else(|error| panic!("{error}: {:#?}", field.ranks()));
    for host in hosts {
        assert_eq!(field.on(host, &format!("cat {SAVED} || :")), "saved\n", "on {host}");
    }
    drop(heal);
    drop(thaw);
    for (host, job) in jobs {
        if state(job.pid()) == 'T' {
            job.signal(Signal::SIGCONT);
        }
        let ran = job.finish_first();
        ran.ended_with(206);
        match host {
            "a" | "b" => ran.says(&[
                &format!(
                    "error: node {host} is lost: it received nothing from this rlaunch for 4 s"
                ),
                &format!("all processes ended on {host}"),
            ]),
            "c" | "d" => {
                ran.says(&["error: node ", "nothing received for 4 s", "was not verified"])
            }
            _ => ran.says(&["nothing received for 4 s", "agent lost, nothing more found"]),
        };
    }
    ["c", "d"].iter().for_each(|host| field.lab.sshd(host).unwrap().kill_sessions().unwrap());
    wait_until(SOON, "everything to be gone", || Ok(left(&field).is_empty()))
        .unwrap_or_else(|error| panic!("{error}: {:#?}", left(&field)));
}

/// Returns the guardian and the agent on a host.
fn agents(field: &Field, host: &str) -> Vec<Pid> {
    let mut found = field.lab.processes(host).unwrap();
    found.retain(|process| process.args[0].ends_with("rlaunch-worker"));
    found.iter().map(|process| Pid::from_raw(process.pid)).collect()
}

/// Agent, guardian and launcher are killed at once, and the leftover has no job id in its
/// environment. It is found by its cgroup.
#[test]
fn a_helper_without_an_environment_is_reaped_by_its_cgroup() {
    let field = Field::new();
    let _program = hostile(&field, &["a"], HOSTILE, 0o755);
    let mut running = field.rlaunch("-H a").args([HOSTILE, "e", "stay"]).spawn();
    running.wait_for_text("up\n", 1);
    let mut all = agents(&field, "a");
    all.push(running.pid());
    kill_at_once(&all);
    running.finish_first();
    assert!(!field.ranks().is_empty(), "nothing was left to reap");
    let ran = field.rlaunch("reap --all -H a").spawn().finish_first();
    nothing_left(&field, ran.succeeded());
}

/// A rank of root creates a cgroup below its own, or moves to another cgroup.
#[test]
fn a_rank_that_changes_its_cgroup() {
    let field = Field::new();
    let script = "c=$(sed -n s/^0:://p /proc/self/cgroup)
        mkdir /sys/fs/cgroup$c/deeper && (echo 0 >/sys/fs/cgroup$c/deeper/cgroup.procs; sleep 1000) &
        (echo 0 >/sys/fs/cgroup/cgroup.procs; exec setsid sleep 1000) & sleep 0.3; echo $c";
    let ran = field.rlaunch("-H a").sh(script).spawn().finish_first();
    assert!(ran.succeeded().out().starts_with("/rlaunch-"), "{ran}");
    nothing_left(&field, &ran);
}
