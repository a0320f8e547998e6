//! Hosts that lack space, descriptors or trust: the cache of agents, temporary directories, limits.

use crate::running::said;
use crate::support::{Field, Undo, launch_directory};
use crate::teardown::memory;
use rlaunch_lab::{Account, command};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

/// File that the other user's program creates when it is executed.
const MARK: &str = "/tmp/owned";

/// Returns the name of the agent's build in a cache.
fn build(field: &Field) -> String {
    let sum = field.shell(&format!("sha256sum {}", field.agent().display()), Path::new("/"));
    sum[..32].to_owned()
}

/// Makes an executable of another account on host b, in place of the agent in a cache. All users
/// can read and execute it, and it has the agent's size.
fn strangers_program(field: &Field, cache: &str) {
    let directory = format!("{cache}/{}", build(field));
    let size = fs::metadata(field.agent()).unwrap().len();
    let line = format!(
        "mkdir -p {directory} && printf '#!/bin/sh\\necho $* >>{MARK}; chmod 666 {MARK}\\n' \
         >{directory}/rlaunch-worker && truncate -s {size} {directory}/rlaunch-worker &&
         chown -R nobody {cache} && chmod -R 755 {cache}"
    );
    field.on("b", &line);
}

/// Fails if the other user's program was executed on host b.
fn nothing_was_executed(field: &Field, after: &dyn std::fmt::Display) {
    let said = field.on("b", &format!("cat {MARK} 2>/dev/null; true"));
    assert_eq!(said, "", "a stranger's program ran: {after}");
}

#[test]
fn a_strangers_agent_directory_is_refused_by_its_owner_and_path() {
    let field = Field::new();
    let _mark = field.scratch(&["b"], MARK);
    let _agents = field.scratch(&["b"], "/tmp/ag");
    strangers_program(&field, "/tmp/ag");
    for account in Account::ALL {
        let run = || field.rlaunch("--agent-dir /tmp/ag -H b true").account(account).run();
        let ran = run();
        nothing_was_executed(&field, &ran);
        ran.refused(202, &["b: cannot install the agent: others may change /tmp/ag: owner nobody"]);
        ran.hints("--agent-dir");
    }
}

#[test]
fn a_squatted_place_in_a_shared_directory_is_refused_by_its_owner_and_path() {
    let field = Field::new();
    let _mark = field.scratch(&["b"], MARK);
    let _agents = field.scratch(&["b"], "/tmp/ag");
    field.on("b", "mkdir -m 1777 /tmp/ag");
    strangers_program(&field, &format!("/tmp/ag/{}", build(&field)));
    for account in Account::ALL {
        let place = format!("/tmp/ag/.rlaunch-{}", account.id());
        strangers_program(&field, &place);
        let ran = field.rlaunch("--agent-dir /tmp/ag -H b true").account(account).run();
        nothing_was_executed(&field, &ran);
        let said = format!("b: cannot install the agent: others may change {place}: owner nobody");
        ran.refused(202, &[&said]);
        // The link belongs to the account, but leads to another user's directory.
        field.on("b", &format!("rm -r {place}; ln -s /tmp/ag/{} {place}", build(&field)));
        field.on("b", &format!("chown -h {} {place}", account.id()));
        let ran = field.rlaunch("--agent-dir /tmp/ag -H b true").account(account).run();
        nothing_was_executed(&field, &ran);
        ran.refused(202, &[&place]);
    }
}

/// The default cache and the first of its substitutes belong to another user.
#[test]
fn squatted_places_are_passed_over_for_one_of_the_accounts_own() {
    let field = Field::new();
    let _mark = field.scratch(&["b"], MARK);
    for account in Account::ALL {
        let home = account.home();
        let cache = format!("{}/.cache/rlaunch", home.display());
        let _cache = field.scratch(&["b"], &cache);
        let [first, second] =
            ["/tmp", "/var/tmp"].map(|tmp| format!("{tmp}/.rlaunch-{}", account.id()));
        let _places = [&first, &second].map(|place| field.scratch(&["b"], place));
        field.forget_agents(&["b"], account);
        strangers_program(&field, &cache);
        strangers_program(&field, &first);
        for sent in [true, false] {
            let ran = field.rlaunch("-H b hostname").account(account).logging().run();
            nothing_was_executed(&field, &ran);
            assert_eq!(ran.succeeded().out(), "b\n", "{ran}");
            assert_eq!(ran.err().contains("agent sent to b"), sent, "{ran}");
        }
        let mode = field.on("b", &format!("stat -c %a:%u {second}"));
        assert_eq!(mode, format!("700:{}\n", account.id()));
    }
}

/// A member of the group could replace the account's directory by another.
#[test]
fn no_agent_is_kept_below_what_a_group_may_change() {
    let field = Field::new();
    let _project = field.scratch(&["b"], "/tmp/project");
    for account in Account::ALL {
        let id = account.id();
        field.on("b", "mkdir -p /tmp/project/ag && chgrp 65534 /tmp/project");
        field.on("b", &format!("chmod 2775 /tmp/project && chown {id} /tmp/project/ag"));
        let ran = field.rlaunch("--agent-dir /tmp/project/ag -H b true").account(account).run();
        ran.refused(
            202,
            &["b: cannot install the agent: others may change /tmp/project: owner root"],
        );
        ran.hints("chmod go-w");
        let left = field.on("b", "find /tmp/project -type f");
        assert_eq!(left, "", "{ran}");
        // In place of the default cache, another directory is used.
        let home = account.home();
        let above = format!("{}/.cache", home.display());
        let _cache = field.scratch(&["b"], &format!("{above}/rlaunch"));
        let place = format!("/tmp/.rlaunch-{id}");
        let _place = field.scratch(&["b"], &place);
        field.forget_agents(&["b"], account);
        field.on("b", &format!("mkdir -p {above} && chgrp 65534 {above} && chmod 2775 {above}"));
        for sent in [true, false] {
            let ran = field.rlaunch("-H b hostname").account(account).logging().run();
            assert_eq!(ran.succeeded().out(), "b\n", "{ran}");
            assert_eq!(ran.err().contains("agent sent to b"), sent, "{ran}");
        }
        // 755 alone leaves a directory the bit for its group, which other tests would find in their own.
        let restored = format!("chgrp {id} {above} && chmod g-s {above} && chmod 755 {above}");
        field.on("b", &format!("{restored}; test -x {place}/*/rlaunch-worker"));
    }
}

#[test]
fn two_accounts_share_an_agent_directory_and_do_not_meet() {
    let field = Field::new();
    let _agents = field.scratch(&["b"], "/tmp/ag");
    field.on("b", "mkdir -m 1777 /tmp/ag");
    for account in Account::ALL {
        for sent in [true, false] {
            let ran = field.rlaunch("--agent-dir /tmp/ag -H b").account(account).logging();
            let ran = ran.sh("pwd; rlaunch barrier x; echo $PWD $OLDPWD").run();
            let here = "/\n/\n";
            assert_eq!(ran.succeeded().out(), here, "{ran}");
            assert_eq!(ran.err().contains("agent sent to b"), sent, "{ran}");
        }
    }
    let modes = field.on("b", "cd /tmp/ag && stat -c '%a %n' .rlaunch-*");
    let own = Account::ALL.map(|account| format!("700 .rlaunch-{}\n", account.id())).concat();
    assert_eq!(modes, own);
    // A directory that all users may write to and that has no sticky bit is not used.
    field.on("b", "chmod 777 /tmp/ag; rm -r /tmp/ag/.rlaunch-*");
    let ran = field.rlaunch("--agent-dir /tmp/ag -H b true").account(Account::User).run();
    ran.refused(202, &["b: cannot install the agent: others may change /tmp/ag: owner root"]);
}

#[test]
fn what_root_has_put_there_serves_all() {
    let field = Field::new();
    let _agents = field.scratch(&["b"], "/tmp/ag");
    let path = format!("/tmp/ag/{}/rlaunch-worker", build(&field));
    let agent = fs::read(field.agent()).unwrap();
    field.lab.write_file("b", Path::new(&path), &agent, 0o755).unwrap();
    field.on("b", "chmod 755 /tmp/ag /tmp/ag/*");
    let run = field.rlaunch("--agent-dir /tmp/ag -H b hostname").account(Account::User);
    let ran = run.logging().run();
    assert_eq!(ran.succeeded().out(), "b\n", "{ran}");
    ran.keeps_quiet_about(&["agent sent"]);
    assert_eq!(field.on("b", "ls -A /tmp/ag"), format!("{}\n", build(&field)));
}

/// While a job runs, other builds are sent. The files that its ranks have yet to load must remain.
#[test]
fn a_build_under_a_running_job_is_not_trimmed() {
    let field = Field::new();
    field.forget_agents(&["a"], Account::Root);
    let go = "/tmp/trimmed-go";
    let _go = field.scratch(&["a"], go);
    let script = format!(
        "echo up; until [ -d {go} ]; do sleep 0.02; done; \
         python3 -c 'import rlaunch' && ls $RLAUNCH_LIB/librlaunch.so >/dev/null && echo loaded"
    );
    let mut running = field.rlaunch("-H a").sh(&script).spawn();
    running.wait_for_text("up\n", 1);
    // Makes the build look as if the job had run for many days.
    field.on("a", "touch -d '30 days ago' ~/.cache/rlaunch/* ~/.cache/rlaunch/*/*");
    let idle = "0123456789abcdef0123456789abcdef";
    field.on("a", &format!("cd ~/.cache/rlaunch && mkdir {idle} && echo >{idle}/rlaunch-worker"));
    field.on("a", &format!("touch -d '31 days ago' ~/.cache/rlaunch/{idle}"));
    let directory = launch_directory();
    for number in 0..3 {
        let agent = directory.path().join(format!("{number}/rlaunch-worker"));
        fs::create_dir(agent.parent().unwrap()).unwrap();
        fs::copy(field.agent(), &agent).unwrap();
        let mut file = fs::OpenOptions::new().append(true).open(&agent).unwrap();
        file.write_all(number.to_string().as_bytes()).unwrap();
        drop(file);
        fs::set_permissions(&agent, fs::Permissions::from_mode(0o755)).unwrap();
        let ran = field.rlaunch("-H a --agent").args([&agent]).args(["true"]).spawn();
        ran.finish_first().succeeded();
    }
    field.on("a", &format!("mkdir {go}"));
    let ran = running.finish();
    assert_eq!(ran.succeeded().out(), "up\nloaded\n", "{ran}");
    let left = field.on("a", "ls ~/.cache/rlaunch");
    assert!(!left.contains(idle), "one that is idle is kept: {left}");
    field.forget_agents(&["a"], Account::Root);
}

/// Mounts an empty read-only file system on each of `places` of host a, until the guard is dropped.
fn read_only<'a>(field: &'a Field, places: &'a [&'a str]) -> impl Drop + 'a {
    mounted(field, places, "ro")
}

fn mounted<'a>(field: &'a Field, places: &'a [&'a str], options: &str) -> impl Drop + 'a {
    for place in places {
        field.on("a", &format!("mount -t tmpfs -o {options} none {place}"));
    }
    Undo(move || {
        places.iter().try_for_each(|place| {
            let mut umount = field.lab.on("a", Account::Root)?;
            command::run("unmount", umount.args(["umount", place])).map(drop)
        })
    })
}

#[test]
fn ranks_have_their_commands_where_tmp_is_read_only() {
    let field = Field::new();
    field.warm("a,b", Account::Root);
    let script = "rlaunch barrier x && test -w $TMPDIR && echo $TMPDIR";
    let run = || field.rlaunch("-H a,b -np 2").sh(script).run();
    {
        let _tmp = read_only(&field, &["/tmp"]);
        let ran = run();
        let places = ran.succeeded().sorted();
        assert!(places[0].starts_with("/tmp/rlaunch-"), "{ran}");
        assert!(places[1].starts_with("/var/tmp/rlaunch-"), "{ran}");
        assert_eq!(field.on("a", "ls -d /var/tmp/rlaunch-* 2>/dev/null; true"), "", "{ran}");
        // The same happens if the account's TMPDIR is not usable.
        let bashrc = Account::Root.home().join(".bashrc");
        let text = "export TMPDIR=/nonexistent\n";
        let _bashrc = field.files(&["a", "b"], bashrc.to_str().unwrap(), text, 0o644);
        let ran = run();
        assert_eq!(ran.succeeded().sorted().len(), 2);
        ran.says(&["warning: TMPDIR on a cannot be used (/nonexistent: No such file"]);
        ran.says(&["; /tmp: Read-only file system", " go to /var/tmp\n"]);
        ran.says(&["warning: TMPDIR on b cannot be used (", " go to /tmp\n"]);
        ran.hints("-x TMPDIR=DIR");
        let own = field.rlaunch("-H b -x TMPDIR=/var/tmp").sh("echo $TMPDIR").run();
        assert_eq!(own.succeeded().out(), "/var/tmp\n");
        own.says_nothing();
    }
    // Directories can still be created on a full disk.
    {
        let _tmp = mounted(&field, &["/tmp"], "size=4k");
        field.on("a", "head -c 4096 /dev/zero >/tmp/full");
        let places = run().succeeded().sorted();
        assert!(places[1].starts_with("/var/tmp/rlaunch-"), "{places:?}");
    }
    let _all = read_only(&field, &["/tmp", "/var/tmp", "/dev/shm"]);
    let ran = field.rlaunch("-H a,b -np 2 hostname").run();
    assert_eq!(ran.succeeded().sorted(), ["a", "b"], "{ran}");
    ran.says(&["no directory for the job on a (/tmp: Read-only file system", "; /dev/shm: "]);
    ran.hints("TMPDIR");
}

#[test]
fn a_launcher_with_few_descriptors_starts_or_says_how_many_it_takes() {
    let field = Field::new();
    field.warm("a,b,c", Account::Root);
    let run = |limit: &str, words: &str| {
        let rlaunch = field.rlaunch.display();
        let printed =
            field.shell(&format!("({limit}; exec {rlaunch} {words}) 2>&1"), Path::new("/"));
        said(&printed).into_iter().map(|line| line + "\n").collect::<String>()
    };
    let said = run("ulimit -n 24", "-H a:8,b:8,c:8 hostname");
    let lines = |name: &str| said.lines().filter(|line| *line == name).count();
    let started = ["a", "b", "c"].iter().all(|name| lines(name) == 8);
    assert!(started || said.contains("ulimit -n"), "{said}");
    for limit in [12, 10, 6] {
        let said = run(&format!("ulimit -n {limit}"), "-H a:8,b:8,c:8 hostname");
        assert!(said.contains("`ulimit -n "), "{said}");
        for wrong in ["can be reached from here", "ssh-copy-id", "panicked"] {
            assert!(!said.contains(wrong), "{said}");
        }
    }
    // A soft limit is raised; started programs get the original limit back.
    let script = "#!/bin/sh\nshift\nexec sh -c \"$1\"\n";
    let directory = launch_directory();
    let rsh = directory.path().join("rsh");
    fs::write(&rsh, script).unwrap();
    fs::set_permissions(&rsh, fs::Permissions::from_mode(0o755)).unwrap();
    let words = format!("--rsh {} -H x:3 -np 3 sh -c 'ulimit -S -n'", rsh.display());
    let said = run("ulimit -S -n 18; ulimit -H -n 4096", &words);
    assert!(said.ends_with("\n18\n18\n18\n") || said == "18\n18\n18\n", "{said}");
    let said = run("ulimit -S -n 300", "-np 1 sh -c 'ulimit -S -n'");
    assert_eq!(said, "300\n", "{said}");
}

/// The line is longer than any buffer on its way.
#[test]
fn a_line_without_measure_passes_through_a_small_launcher() {
    const LENGTH: u64 = 128 << 20;
    /// Maximum peak memory of the launcher in KiB, without its code.
    const MEMORY: u64 = 16 << 10;
    let field = Field::new();
    field.warm("a", Account::Root);
    let script = format!("head -c {LENGTH} /dev/zero | tr '\\0' x; echo");
    let mut command = field.rlaunch("-H a").sh(&script).command();
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let (mut count, mut peak, mut part) = (0_u64, 0, vec![0; 1 << 20]);
    loop {
        let read = stdout.read(&mut part).unwrap();
        if read == 0 {
            break;
        }
        assert!(part[..read].iter().all(|&byte| byte == b'x' || byte == b'\n'));
        count += read as u64;
        peak = peak.max(memory(child.id()).unwrap_or(0));
    }
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(count, LENGTH + 1);
    assert!(peak <= MEMORY, "rlaunch took {peak} KiB");
}
