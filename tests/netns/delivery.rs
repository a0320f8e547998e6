//! The agent is sent once, and every problem with its directory on a host is reported in a
//! sentence.

use crate::running::Outcome;
use crate::support::{Field, Undo, launch_directory};
use rlaunch_lab::{Account, Lab, Options};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

const ABC: [&str; 3] = ["a", "b", "c"];

/// Returns the only agent in a cache.
fn only_agent(cache: &Path) -> PathBuf {
    let builds: Vec<_> = fs::read_dir(cache).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(builds.len(), 1, "{builds:?}");
    builds[0].join("rlaunch-worker")
}

/// Mounts a small file system over root's `~/.cache` of a host, until the guard is dropped.
pub(crate) fn mount<'a>(field: &'a Field, host: &'a str, options: &str) -> impl Drop + 'a {
    let line = format!("mkdir -p ~/.cache && mount -t tmpfs -o {options} none ~/.cache");
    field.on(host, &line);
    Undo(move || {
        let mut umount = field.lab.on(host, Account::Root)?;
        let line = ["sh", "-c", "umount ~/.cache"];
        rlaunch_lab::command::run("unmount", umount.args(line)).map(drop)
    })
}

fn answered_everywhere(ran: &Outcome) {
    assert_eq!(ran.succeeded().sorted(), ABC, "{ran}");
}

#[test]
fn the_first_launch_sends_and_the_second_does_not() {
    let field = Field::new();
    for account in Account::ALL {
        field.forget_agents(&ABC, account);
        let run = || field.rlaunch("-H a,b,c hostname").account(account);
        let cold = run().logging().run();
        answered_everywhere(&cold);
        cold.says(&["agent sent to a, b, c "]);
        let warm = run().run();
        answered_everywhere(&warm);
        warm.says_nothing();
        let agent = only_agent(&field.cache("b", account));
        assert!(fs::read(agent).unwrap() == fs::read(field.agent()).unwrap());
    }
}

#[test]
fn only_the_host_that_lacks_it_is_sent_the_agent() {
    let field = Field::new();
    field.warm("a,b,c", Account::Root);
    field.forget_agents(&["b"], Account::Root);
    let ran = field.rlaunch("-H a,b,c hostname").logging().run();
    answered_everywhere(&ran);
    ran.says(&["agent sent to b ("]);
}

#[test]
fn two_launches_at_once_both_deliver() {
    let field = Field::new();
    field.forget_agents(&ABC, Account::Root);
    let both = [(); 2].map(|()| field.rlaunch("-H a,b,c hostname").spawn());
    for ran in both.map(crate::running::Running::finish_first) {
        answered_everywhere(&ran);
    }
    for host in ABC {
        let agent = only_agent(&field.cache(host, Account::Root));
        let files = fs::read_dir(agent.parent().unwrap()).unwrap();
        let name = |file: std::io::Result<fs::DirEntry>| file.unwrap().file_name();
        let mut names: Vec<_> = files.map(|file| name(file).into_string().unwrap()).collect();
        names.sort();
        // An agent locks this file while it uses the build.
        assert_eq!(names.remove(0), ".in-use");
        // `bin` has the commands for ranks, and the library is for them to link.
        assert_eq!(names.len(), 3, "half a copy is left on {host}: {names:?}");
        let library = names[1].strip_prefix("library-").unwrap_or_default();
        assert_eq!((names[0].as_str(), library.len(), &*names[2]), ("bin", 32, "rlaunch-worker"));
        assert!(fs::read(agent).unwrap() == fs::read(field.agent()).unwrap());
    }
}

#[test]
fn a_broken_copy_is_replaced() {
    let field = Field::new();
    field.forget_agents(&ABC, Account::Root);
    field.warm("a,b,c", Account::Root);
    let agent = only_agent(&field.cache("b", Account::Root));
    let whole = fs::read(&agent).unwrap();
    let broken: [&[u8]; 3] = [&whole[..whole.len() / 2], &whole[..3000], b"no agent\n"];
    for bytes in broken {
        fs::write(&agent, bytes).unwrap();
        let ran = field.rlaunch("-H a,b,c hostname").logging().run();
        answered_everywhere(&ran);
        ran.says(&["agent sent to b ("]);
        assert!(fs::read(&agent).unwrap() == whole, "{} bytes: {ran}", bytes.len());
    }
    fs::set_permissions(&agent, fs::Permissions::from_mode(0o600)).unwrap();
    answered_everywhere(&field.rlaunch("-H a,b,c hostname").run());
}

/// A power loss can leave an empty file. A shell that executes it succeeds without doing anything.
#[test]
fn an_empty_copy_is_replaced() {
    let field = Field::new();
    field.forget_agents(&["b"], Account::Root);
    field.warm("b", Account::Root);
    let agent = only_agent(&field.cache("b", Account::Root));
    let _restore = Undo(|| {
        field.forget_agents(&["b"], Account::Root);
        Ok::<(), std::io::Error>(())
    });
    fs::write(&agent, b"").unwrap();
    answered_everywhere(&field.rlaunch("-H a,b,c hostname").run());
    assert!(fs::read(&agent).unwrap() == fs::read(field.agent()).unwrap());
}

#[test]
fn three_builds_are_kept_and_those_of_this_week() {
    let field = Field::new();
    field.forget_agents(&["a"], Account::Root);
    let line = "for n in 9 7 5 11 8 10; do d=~/.cache/rlaunch/$(printf %032d $n)
        mkdir -p $d/library-$n/python; echo $n >$d/rlaunch-worker; touch -d \"$n days ago\" $d; done";
    let kept = |line: &str| {
        field.forget_agents(&["a"], Account::Root);
        field.on("a", line);
        field.rlaunch("-H a hostname").run().succeeded();
        let entries = fs::read_dir(field.cache("a", Account::Root)).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut ages: Vec<u32> = names.filter_map(|name| name.parse().ok()).collect();
        ages.sort_unstable();
        ages
    };
    assert_eq!(kept(line), [5, 7]);
    assert_eq!(kept(&line.replace("8 10", "1 2 3")), [1, 2, 3, 5]);
    field.forget_agents(&["a"], Account::Root);
}

/// A full disk, or a quota: the first file that is tried is small, and fits.
#[test]
fn a_home_that_takes_a_small_file_and_not_the_agent() {
    let field = Field::new();
    let _mount = mount(&field, "b", "size=200k");
    let _elsewhere = field.scratch(&["b"], "/tmp/.rlaunch-0");
    let named = Account::Root.home().join(".cache/agents");
    let _named = field.scratch(&ABC, named.to_str().unwrap());
    let ran = field.rlaunch("--agent-dir ~/.cache/agents -H a,b,c hostname").run();
    ran.refused(202, &["b: cannot install the agent: ", "/.cache/agents", "No space left"]);
    ran.hints("--agent-dir");
    reached_all_the_same(&field, Account::Root);
    let left = field.on("b", "find ~/.cache -type f");
    assert_eq!(left, "", "half a copy is left");
}

/// Asserts that jobs run although the cache cannot be used, and that the second job finds the agent
/// in the substitute.
fn reached_all_the_same(field: &Field, account: Account) {
    let run = || field.rlaunch("-H a,b,c hostname").account(account);
    let cold = run().logging().run();
    answered_everywhere(&cold);
    cold.says(&["agent sent to ", "b"]);
    let warm = run().run();
    answered_everywhere(&warm);
    warm.says_nothing();
}

#[test]
fn a_home_that_nothing_executes_from() {
    let field = Field::new();
    let _mount = mount(&field, "b", "noexec");
    let _elsewhere = field.scratch(&["b"], "/tmp/.rlaunch-0");
    reached_all_the_same(&field, Account::Root);
    // A directory that the user has named has no substitute.
    let named = Account::Root.home().join(".cache/agents");
    let _named = field.scratch(&ABC, named.to_str().unwrap());
    let ran = field.rlaunch("--agent-dir ~/.cache/agents -H a,b,c hostname").run();
    ran.refused(202, &["b: cannot install the agent", "cannot execute"]).hints("--agent-dir");
    let _agents = field.scratch(&ABC, "/tmp/agents");
    answered_everywhere(&field.rlaunch("--agent-dir /tmp/agents -H a,b,c hostname").run());
}

#[test]
fn a_home_that_cannot_be_written() {
    let field = Field::new();
    field.forget_agents(&["b"], Account::User);
    let home = field.lab.home("b", Account::User).unwrap();
    let set = |mode| fs::set_permissions(&home, fs::Permissions::from_mode(mode));
    if home.join(".cache").exists() {
        fs::remove_dir_all(home.join(".cache")).unwrap();
    }
    set(0o555).unwrap();
    let _restore = Undo(|| set(0o700));
    let elsewhere = format!("/tmp/.rlaunch-{}", Account::User.id());
    let _elsewhere = field.scratch(&["b"], &elsewhere);
    // A link of another user in place of the directory is left alone.
    field.on("b", &format!("ln -s /var/tmp {elsewhere}"));
    let second = elsewhere.replace("/tmp", "/var/tmp");
    let _second = field.scratch(&["b"], &second);
    reached_all_the_same(&field, Account::User);
    let kept = field.on("b", &format!("stat -c %a:%U {second}; ls /var/tmp -A; rm {elsewhere}"));
    assert_eq!(kept, format!("700:user\n{}\n", second.trim_start_matches("/var/tmp/")));
    let _agents = field.scratch(&ABC, "/tmp/agents-of-user");
    let run = |words| field.rlaunch(words).account(Account::User).logging().run();
    let ran = run("--agent-dir ~/.cache/agents -H b hostname");
    ran.refused(202, &["b: cannot install the agent", "Permission denied"]);
    ran.hints("--agent-dir");
    let elsewhere = run("--agent-dir /tmp/agents-of-user -H a,b,c hostname");
    answered_everywhere(&elsewhere);
    elsewhere.says(&["agent sent to a, b, c "]);
}

#[test]
fn a_shell_that_talks_does_not_disturb() {
    let field = Field::new();
    let noise = "echo Welcome to b; echo 'so much to say' >&2; seq 1 5000; printf 'no newline'\n";
    let bashrc = Account::Root.home().join(".bashrc");
    let _noise = field.files(&["b"], bashrc.to_str().unwrap(), noise, 0o644);
    let mut ssh = field.lab.exec(Account::Root);
    let talked = ssh.args(["ssh", "b", "true"]).output().unwrap().stdout;
    assert!(talked.starts_with(b"Welcome"), "the shell of b keeps quiet");
    field.forget_agents(&["b"], Account::Root);
    for _cold_then_warm in 0..2 {
        let ran = field.rlaunch("-H a,b,c hostname").run();
        answered_everywhere(&ran);
        ran.keeps_quiet_about(&["Welcome", "so much"]);
    }
}

#[test]
fn an_agent_for_other_machines() {
    let field = Field::new();
    let directory = launch_directory();
    let other = directory.path().join("agent");
    let mut bytes = fs::read(field.agent()).unwrap();
    // `e_machine` of the ELF header: AArch64 on x86_64, and the reverse.
    let is_x86 = bytes[18] == 62;
    bytes[18] = if is_x86 { 183 } else { 62 };
    fs::write(&other, bytes).unwrap();
    let ran = field.rlaunch("-H a --agent").args([&other]).args(["hostname"]).run();
    let wrong = if is_x86 { "aarch64" } else { "x86_64" };
    ran.refused(202, &["a: ", "is not an agent for", wrong]).hints("--agent");
}

#[test]
fn a_shared_home_is_sent_one_agent() {
    let field = Field::new();
    let options = Options { shared_home: true, net: [10, 98], ..Options::new("testshared", 3) };
    // An interrupted run leaves its lab behind, in any state.
    Lab::down("testshared").unwrap();
    let lab = Lab::up(&options).unwrap();
    let _down = Undo(|| Lab::down("testshared").map(drop));
    let shared = Field { lab, rlaunch: field.rlaunch.clone() };
    let cold = shared.rlaunch("-H a,b,c hostname").logging().run();
    answered_everywhere(&cold);
    let sent: Vec<String> = ABC.iter().map(|host| format!("agent sent to {host} (")).collect();
    let times = |text: &String| cold.err().matches(text.as_str()).count();
    assert_eq!(sent.iter().map(times).sum::<usize>(), 1, "{cold}");
    let warm = shared.rlaunch("-H a,b,c hostname").run();
    answered_everywhere(&warm);
    warm.says_nothing();
    // Each host removes the agent from which the others are executed.
    let cleaned = shared.rlaunch("cache -H a,b,c --clean").run();
    assert!(cleaned.succeeded().out().contains("removed"), "{cleaned}");
    assert!(!shared.cache("a", Account::Root).exists(), "{cleaned}");
}
