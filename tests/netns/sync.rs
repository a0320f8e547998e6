//! `--sync`: the working tree on hosts, before a job starts and while it runs.

use crate::support::{Field, Run, Undo, children, kill_at_once, launch_directory, state};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rlaunch_lab::Account;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::thread::sleep;
use std::time::Duration;
use tempfile::TempDir;

/// Directory of hosts that has the copies of trees.
const COPIES: &str = "/root/.cache/rlaunch/sync";

/// Working tree on the launching machine, and the directory of the launcher's locks.
struct Project {
    directory: TempDir,
}

impl Project {
    /// Makes a tree in which a file and a directory are ignored.
    fn new() -> Project {
        let project = Project { directory: launch_directory() };
        for directory in ["tree/src", "tree/data", "state"] {
            fs::create_dir_all(project.directory.path().join(directory)).unwrap();
        }
        for (name, content) in [
            (".gitignore", "data/\n*.log\n"),
            ("src/module", "first\n"),
            ("old", "old\n"),
            ("data/large", "large\n"),
            ("run.log", "log\n"),
        ] {
            project.write(name, content);
        }
        project
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join("tree").join(name)
    }

    fn write(&self, name: &str, content: &str) {
        fs::write(self.path(name), content).unwrap();
    }

    /// Prepares a job that is started in a directory of the tree.
    fn job<'a>(&self, field: &'a Field, words: &str, below: &str) -> Run<'a> {
        let state = self.directory.path().join("state");
        let run = field.rlaunch(words).in_directory(&self.path(below));
        run.env("XDG_STATE_HOME", state.to_str().unwrap())
    }
}

/// Returns the path of the first copy on a host, below which the tree has its name.
fn first_copy(field: &Field, host: &str) -> String {
    field.on(host, &format!("ls -d {COPIES}/*/tree | grep -v '[.]2/'")).trim().to_owned()
}

#[test]
fn ranks_run_in_a_copy_that_follows_the_directory() {
    let field = Field::new();
    let hosts = ["a", "b"];
    let _copies = field.scratch(&hosts, COPIES);
    let project = Project::new();
    let list = "cat src/module; find . -type f | sort | xargs; echo mine > own; pwd";
    let ran = project.job(&field, "--sync -H a,b --no-tag", "").sh(list).run();
    let copy = first_copy(&field, "a");
    let files = "./.gitignore ./old ./src/module";
    let mut expected = [&*copy, files, "first"].repeat(2);
    expected.sort_unstable();
    assert_eq!(ran.succeeded().sorted(), expected, "{ran}");
    let below_home = copy.strip_prefix("/root/").unwrap();
    ran.says(&[&format!(
        "ranks wrote 2 files, 1 KiB, such as own: rlaunch fetch -H a,b {below_home}"
    )]);
    assert_eq!(first_copy(&field, "b"), copy);
    // The line brings it, and is that of a job that has written something.
    let results = launch_directory();
    let fetch = field.rlaunch(&format!("fetch -H a,b {below_home}"));
    fetch.in_directory(results.path()).run().succeeded();
    for host in hosts {
        let own = results.path().join(host).join("tree/own");
        assert_eq!(fs::read_to_string(own).unwrap(), "mine\n");
    }
    let ran = project.job(&field, "--sync -H a,b --no-tag", "").args(["true"]).run();
    ran.succeeded();
    ran.says_nothing();
    // What has changed here, and what a rank has written.
    project.write("src/module", "second\n");
    fs::remove_file(project.path("old")).unwrap();
    let ran = project.job(&field, "--sync -H a,b --no-tag", "").sh(list).run();
    let files = "./.gitignore ./own ./src/module";
    let mut expected = [&*copy, files, "second"].repeat(2);
    expected.sort_unstable();
    assert_eq!(ran.succeeded().sorted(), expected, "{ran}");
    // From a directory of the tree, and for a directory of it.
    let ran = project.job(&field, "--sync=.. -H a --no-tag", "src").args(["pwd"]).run();
    assert_eq!(ran.succeeded().out(), format!("{copy}/src\n"), "{ran}");
    let ran = project.job(&field, "--sync -H a --wdir src --no-tag", "").args(["pwd"]).run();
    assert_eq!(ran.succeeded().out(), format!("{copy}/src\n"), "{ran}");
}

#[test]
fn a_job_and_its_copy_have_one_login() {
    let field = Field::new();
    let hosts = ["a", "b"];
    let _copies = field.scratch(&hosts, COPIES);
    let project = Project::new();
    let logins = |host| field.lab.sshd(host).unwrap().log().matches("Accepted publickey").count();
    let before = hosts.map(logins);
    let ran = project.job(&field, "--sync -H a,b --no-tag", "").args(["cat", "old"]).run();
    assert_eq!(ran.succeeded().out(), "old\nold\n", "{ran}");
    assert_eq!(hosts.map(logins), before.map(|count| count + 1), "{ran}");
}

#[test]
fn a_server_may_take_one_session_a_connection() {
    let field = Field::new();
    let _copies = field.scratch(&["a", "b"], COPIES);
    let project = Project::new();
    field.warm("a,b", Account::Root);
    let sshd = field.lab.sshd("b").unwrap();
    let _restore = Undo(|| sshd.restart(&[]));
    sshd.restart(&["MaxSessions 1"]).unwrap();
    let ran = project.job(&field, "--sync -H a,b --no-tag", "").args(["cat", "old"]).run();
    assert_eq!(ran.succeeded().out(), "old\nold\n", "{ran}");
}

/// Returns where a host has the program that copies. A job that runs it puts it there.
fn copiers(field: &Field, host: &str) -> String {
    field.on(host, "find /root/.cache/rlaunch -name '*copier*'")
}

fn remove_copiers(field: &Field, hosts: &[&str]) {
    for host in hosts {
        assert_ne!(copiers(field, host), "", "{host}");
        field.on(host, "find /root/.cache/rlaunch -name '*copier*' -delete");
    }
}

/// Lines about the copy of a host: content of files, targets of links, modes of files and directories.
fn shown(field: &Field, host: &str) -> String {
    let content = "find . -type f ! -name own | sort | xargs sha256sum
        find . -type l -printf '%p %l\\n' | sort
        find . ! -type l ! -name own -printf '%p %m\\n' | sort";
    field.on(host, &format!("cd {} && {content}", first_copy(field, host)))
}

#[test]
fn a_few_changes_go_without_the_program_that_copies() {
    let field = Field::new();
    let hosts = ["a", "b"];
    let _copies = field.scratch(&hosts, COPIES);
    let project = Project::new();
    let run = || {
        let run = project.job(&field, "--sync -H a,b --no-tag", "");
        let ran = run.sh("cat src/module; echo mine >own").run();
        ran.succeeded();
        ran
    };
    assert_eq!(run().out(), "first\nfirst\n");
    remove_copiers(&field, &hosts);
    project.write("src/module", "second\n");
    fs::set_permissions(project.path("src/module"), PermissionsExt::from_mode(0o750)).unwrap();
    fs::remove_file(project.path("old")).unwrap();
    fs::create_dir_all(project.path("new/deep")).unwrap();
    project.write("new/deep/file", "new\n");
    symlink("deep/file", project.path("new/link")).unwrap();
    let ran = run();
    assert_eq!(ran.out(), "second\nsecond\n", "{ran}");
    for host in hosts {
        assert_eq!(copiers(&field, host), "", "{host}: {ran}");
        let there = shown(&field, host);
        for line in ["./new/link deep/file", "./src/module 750", "./new/deep/file 644"] {
            assert!(there.lines().any(|other| other == line), "{host}: {line}: {there}");
        }
        assert!(!there.contains("./old"), "{host}: {there}");
        assert_eq!(field.on(host, &format!("cat {}/own", first_copy(&field, host))), "mine\n");
    }
    // What a patch has put there is compared as well as what a copy has.
    field.on("b", &format!("echo other >{}/new/deep/file", first_copy(&field, "b")));
    let ran = run();
    assert_ne!(copiers(&field, "b"), "", "{ran}");
    assert_eq!(shown(&field, "b"), shown(&field, "a"), "{ran}");
    // Many changes go with it, and what a patch has put there is gone with its file here.
    project.write("src/module", "third\n");
    fs::remove_dir_all(project.path("new")).unwrap();
    project.write("other", "other\n");
    let ran = run();
    assert_eq!(ran.out(), "third\nthird\n", "{ran}");
    remove_copiers(&field, &hosts);
    fs::remove_file(project.path("other")).unwrap();
    (0..100).for_each(|number| project.write(&format!("src/{number}"), "many\n"));
    let ran = run();
    for host in hosts {
        assert_ne!(copiers(&field, host), "", "{host}: {ran}");
        let there = shown(&field, host);
        assert!(!there.contains("./new") && !there.contains("./other"), "{host}: {there}");
        assert_eq!(there.matches("  ./src/").count(), 101, "{host}: {there}");
    }
}

#[test]
fn hosts_without_the_former_copy_get_all_of_it() {
    let field = Field::new();
    let hosts = ["a", "b"];
    let _copies = field.scratch(&hosts, COPIES);
    let project = Project::new();
    let run = |hosts: &str, content: &str| {
        project.write("src/module", content);
        let run = project.job(&field, &format!("--sync -H {hosts} --no-tag"), "");
        let ran = run.args(["cat", "src/module"]).run();
        assert_eq!(ran.succeeded().out(), content.repeat(hosts.split(',').count()), "{ran}");
    };
    run("a,b", "first\n");
    remove_copiers(&field, &hosts);
    run("a", "second\n");
    assert_eq!(copiers(&field, "a"), "");
    // One has the second version, and one the first.
    run("a,b", "third\n");
    remove_copiers(&field, &hosts);
    field.on("b", &format!("rm -r {COPIES}"));
    run("a,b", "fourth\n");
    remove_copiers(&field, &hosts);
    run("a,b", "fifth\n");
    hosts.iter().for_each(|host| assert_eq!(copiers(&field, host), "", "{host}"));
    // A patch that has not come to its end.
    let zeros = "dd if=/dev/zero bs=1 seek=15 count=32 conv=notrunc status=none of=";
    field.on(
        "b",
        &format!("{zeros}$(ls {COPIES}/*.seal) && echo half >{}/old", first_copy(&field, "b")),
    );
    run("a,b", "sixth\n");
    assert_ne!(copiers(&field, "b"), "");
    assert_eq!(shown(&field, "b"), shown(&field, "a"));
}

/// Its agent has looked at its copy while another host was being reached.
#[test]
fn a_host_that_dies_before_its_copy_is_changed_ends_the_job() {
    let field = Field::new();
    let hosts = ["a", "b"];
    let _copies = field.scratch(&hosts, COPIES);
    let _go = field.scratch(&["a"], "/tmp/go");
    let project = Project::new();
    let job = || project.job(&field, "--sync -H a,b --no-tag", "").args(["cat", "src/module"]);
    job().run().succeeded();
    project.write("src/module", "second\n");
    let bashrc = Account::Root.home().join(".bashrc");
    let waits = "while ! test -e /tmp/go; do sleep 0.05; done\n";
    let waiting = field.files(&["a"], bashrc.to_str().unwrap(), waits, 0o644);
    let running = job().spawn();
    field.wait_for("the agent of b to look", || {
        field.on("b", &format!("ls {COPIES}")).contains(".holder.")
    });
    let mut agents = field.lab.processes("b").unwrap();
    agents.retain(|process| {
        process.args.first().is_some_and(|name| name.ends_with("rlaunch-worker"))
    });
    let agents: Vec<Pid> = agents.iter().map(|process| Pid::from_raw(process.pid)).collect();
    kill_at_once(&agents);
    field.on("a", "mkdir /tmp/go");
    let ran = running.finish_first();
    ran.ended_with(206).says(&["node b is lost"]);
    drop(waiting);
    let ran = job().run();
    assert_eq!(ran.succeeded().out(), "second\nsecond\n", "{ran}");
}

/// A copy that is what it has to be is compared by agents alone.
#[test]
fn an_unchanged_tree_is_only_compared() {
    let field = Field::new();
    let hosts = ["a", "b"];
    let _copies = field.scratch(&hosts, COPIES);
    let project = Project::new();
    let ran = || {
        let run = project.job(&field, "--sync -H a,b --no-tag", "");
        let ran = run.sh("cat src/module; ls; echo mine >own").run();
        ran.succeeded();
        ran
    };
    // The program that copies makes a new one.
    let seal = |host: &str| field.on(host, &format!("stat -c '%i %z' {COPIES}/*.seal"));
    ran();
    let sealed = hosts.map(seal);
    let again = ran();
    assert_eq!(hosts.map(seal), sealed, "{again}");
    // A changed file here, a changed file and a missing one there, and a file that is gone here.
    let copy = first_copy(&field, "b");
    project.write("src/module", "second\n");
    assert!(ran().out().contains("second"));
    assert_ne!(hosts.map(seal), sealed);
    let changes =
        ["echo other >src/module", "rm src/module", "rm -r src", "touch old", "chmod 700 src"];
    for change in changes {
        let sealed = hosts.map(seal);
        field.on("b", &format!("cd {copy} && {change}"));
        let ran = ran();
        assert_ne!(hosts.map(seal), sealed, "{change}: {ran}");
        assert_eq!(ran.out().matches("second\n").count(), 2, "{change}: {ran}");
    }
    fs::remove_file(project.path("old")).unwrap();
    assert!(!ran().out().contains("old"));
}

/// The shell of the host keeps its login waiting until the tree is read here, and has changed.
#[test]
fn what_changes_here_until_hosts_are_reached_is_run() {
    let field = Field::new();
    let _copies = field.scratch(&["a"], COPIES);
    let _go = field.scratch(&["a"], "/tmp/go");
    let project = Project::new();
    let read = |below: &str| {
        let run = project.job(&field, "--sync -H a --no-tag", "").args(["cat", "src/module"]);
        let cache = project.directory.path().join(below);
        (run.env("XDG_CACHE_HOME", cache.to_str().unwrap()), cache.join("rlaunch/copy"))
    };
    let (first, _) = read("one");
    assert_eq!(first.run().succeeded().out(), "first\n");
    let bashrc = Account::Root.home().join(".bashrc");
    let waits = "while ! test -e /tmp/go; do sleep 0.05; done\n";
    let _waits = field.files(&["a"], bashrc.to_str().unwrap(), waits, 0o644);
    let (second, indexes) = read("other");
    let running = second.spawn();
    field.wait_for("the tree to be read", || {
        let names = fs::read_dir(&indexes).into_iter().flatten().flatten();
        names.map(|entry| entry.path()).any(|path| path.extension().is_some_and(|x| x == "index"))
    });
    project.write("src/module", "second\n");
    field.on("a", "mkdir /tmp/go");
    let ran = running.finish_first();
    assert_eq!(ran.succeeded().out(), "second\n", "{ran}");
}

#[test]
fn a_copy_that_is_suspended_goes_on() {
    /// Time for which agents wait that have no job yet, and programs that copy for their neighbours, and more.
    const LONG: Duration = Duration::from_secs(25);
    let field = Field::new();
    let _copies = field.scratch(&["a", "b"], COPIES);
    let project = Project::new();
    // Hosts have rlaunch's programs afterwards.
    project.job(&field, "--sync -H a,b --no-tag", "").args(["true"]).run().succeeded();
    fs::write(project.path("big"), vec![b'x'; 256 << 20]).unwrap();
    let job = project.job(&field, "--sync -H a,b --no-tag", "").sh("wc -c <big");
    let running = job.within(Duration::from_secs(120)).spawn();
    let mut copier = None;
    // Programs that are still connecting have less patience.
    let kilobytes = format!("du -s {COPIES} | cut -f1");
    field.wait_for("bytes to come", || {
        field.on("b", &kilobytes).trim().parse::<u64>().unwrap() > 4 << 10
    });
    field.wait_for("the copy to begin", || {
        let found = field.lab.processes("b").unwrap();
        let is_it =
            |args: &[String]| args.first().is_some_and(|name| name.ends_with("rlaunch-copier"));
        copier = found.into_iter().find(|process| is_it(&process.args));
        copier.is_some()
    });
    // It would be done before the launcher is stopped. It goes on with the job.
    kill(Pid::from_raw(copier.unwrap().pid), Signal::SIGSTOP).unwrap();
    let launcher = running.pid();
    running.signal(Signal::SIGTSTP);
    field.wait_for("the launcher to stop", || state(launcher) == 'T');
    let here: Vec<char> = children(launcher).into_iter().map(state).collect();
    assert_eq!(here, ['T'], "the program that copies here");
    sleep(LONG);
    running.signal(Signal::SIGCONT);
    let ran = running.finish();
    assert_eq!(ran.succeeded().out(), "268435456\n268435456\n", "{ran}");
}

#[test]
fn hosts_that_share_a_home_have_one_copy() {
    let field = Field::new();
    let hosts = ["a", "b"];
    // All hosts have the devices of this machine.
    let home = tempfile::tempdir_in("/dev").unwrap();
    let shared = home.path().join("sync");
    fs::create_dir(&shared).unwrap();
    let _copies = field.scratch(&hosts, COPIES);
    for host in hosts {
        let link =
            format!("mkdir -p {COPIES} && rmdir {COPIES} && ln -s {} {COPIES}", shared.display());
        field.on(host, &link);
    }
    let project = Project::new();
    // The second time agents compare the copy, and then one of them changes it.
    for content in ["first\n", "first\n", "second\n"] {
        project.write("src/module", content);
        let run = project.job(&field, "--sync -H a,b --no-tag", "").sh("echo mine >own");
        let ran = run.run();
        ran.succeeded();
        ran.says(&["ranks wrote 1 file, 1 KiB, such as own: rlaunch fetch -H a .cache/"]);
        let names = fs::read_dir(&shared).unwrap().map(|entry| entry.unwrap().path());
        let of_holder = names.filter(|path| path.extension().is_some_and(|x| x == "holder"));
        assert_eq!(of_holder.count(), 0, "{ran}");
        let copy = first_copy(&field, "b");
        assert_eq!(field.on("b", &format!("cat {copy}/src/module")), content, "{ran}");
    }
}

#[test]
fn a_running_job_keeps_its_copy() {
    let field = Field::new();
    let _copies = field.scratch(&["a"], COPIES);
    let project = Project::new();
    let wait = "echo begun; while ! test -e stop; do sleep 0.1; done; cat src/module";
    let mut first = project.job(&field, "--sync -H a --no-tag", "").sh(wait).spawn();
    first.wait_for_lines(1);
    let copy = first_copy(&field, "a");
    project.write("src/module", "second\n");
    let show = "cat src/module; pwd";
    let second = project.job(&field, "--sync -H a --no-tag", "").sh(show).spawn().finish_first();
    let out = second.succeeded().out().into_owned();
    assert!(out.starts_with("second\n/root/") && out.ends_with(".2/tree\n"), "{second}");
    field.on("a", &format!("touch {copy}/stop"));
    let ran = first.finish();
    assert_eq!(ran.succeeded().out(), "begun\nfirst\n", "{ran}");
    let third = project.job(&field, "--sync -H a --no-tag", "").sh(show).run();
    assert_eq!(third.succeeded().out(), format!("second\n{copy}\n"), "{third}");
}

#[test]
fn a_large_tree_needs_consent() {
    let field = Field::new();
    let _copies = field.scratch(&["a"], COPIES);
    let project = Project::new();
    project.write("big", &"x".repeat(5000));
    let ran = project.job(&field, "--sync --sync-limit 4K -H a", "").args(["true"]).run();
    ran.ended_with(203).says(&["4 files that git does not ignore"]).hints("--sync-limit 1G");
    assert_eq!(field.on("a", &format!("ls {COPIES} 2>/dev/null || true")), "");
    project.job(&field, "--sync --sync-limit 8K -H a", "").args(["true"]).run().succeeded();
}

#[test]
fn on_this_machine_alone_nothing_is_copied() {
    let field = Field::new();
    let project = Project::new();
    let ran = project.job(&field, "--sync -np 1", "").args(["pwd"]).run();
    let here = project.path("").canonicalize().unwrap();
    assert_eq!(ran.succeeded().out().trim_end(), here.to_str().unwrap(), "{ran}");
    let ran = project.job(&field, "--sync=/nowhere -np 1", "").args(["pwd"]).run();
    ran.ended_with(203).says(&["--sync cannot copy /nowhere"]);
}

#[test]
fn copies_are_listed_and_pruned() {
    let field = Field::new();
    let _copies = field.scratch(&["a", "b"], COPIES);
    let _data = field.scratch(&["a"], "/tmp/kept");
    let project = Project::new();
    let wait = "echo begun; while ! test -e stop; do sleep 0.1; done; echo mine > own";
    let mut job = project.job(&field, "--sync -H a,b --no-tag", "").sh(wait).spawn();
    job.wait_for_lines(2);
    let copy = first_copy(&field, "a");
    // Only trees that were made from here are removed, by the locks in this state.
    let state = project.directory.path().join("state");
    let state = state.to_str().unwrap();
    let push = |words: &str| field.rlaunch(words).env("XDG_STATE_HOME", state);
    let source = format!("{}:/tmp/kept", project.path("src").display());
    field.rlaunch("push -H a").args([source]).spawn().finish_first().succeeded();
    let list = || {
        let listed = push("push -H a,b --list").spawn().finish_first();
        listed.succeeded().out().into_owned()
    };
    let listed = list();
    let line = |path: &str| listed.lines().find(|line| line.starts_with(path)).unwrap_or_default();
    assert!(line("/tmp/kept/src ").ends_with("  a"), "{listed}");
    assert!(line(&copy).contains("in use") && line(&copy).ends_with("  a, b"), "{listed}");
    // A tree that a job uses is not offered, and nobody is asked without need.
    push("push -H a,b --prune").spawn().finish_first().succeeded();
    assert_eq!(field.on("a", &format!("cat {copy}/old")), "old\n");
    ["a", "b"].iter().for_each(|host| drop(field.on(host, &format!("touch {copy}/stop"))));
    job.finish().succeeded();
    let asked = push("push -H a,b --prune").run();
    asked.ended_with(200).says(&["without your consent"]);
    let ran = push("push -H a,b --prune --yes").run();
    assert_eq!(ran.succeeded().out().lines().count(), 2, "{ran}");
    for host in ["a", "b"] {
        assert_eq!(field.on(host, &format!("ls {copy}")), "own\nstop\n", "{host}");
    }
    assert_eq!(field.on("a", "cat /tmp/kept/src/module"), "first\n");
    assert!(!list().contains(COPIES), "the tree has nothing that was copied");
}
