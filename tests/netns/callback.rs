//! Hosts with a forced command that gives no stdin and prints a banner, as `docker exec` without
//! `-i` does. Their agents connect back to the launcher, and are downloaded by whatever program the
//! host has.

use crate::delivery::mount;
use crate::support::{Field, Undo};
use nix::sys::signal::Signal;
use rlaunch_lab::Account;
use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};

const ABC: [&str; 3] = ["a", "b", "c"];
/// Directory of the forced command.
const FORCED: &str = "/tmp/forced";
const KEYS: &str = "/run/rlaunch-lab/authorized_keys";
/// Programs that every host has in its tools, in addition to those that download the agent.
const TOOLS: &str = "sh uname id mkdir rmdir chmod mv rm wc ls tail cp cat";

/// Makes every login on `hosts` run `lines` instead of its command, until the guard is dropped.
pub(crate) fn forced_command<'a>(
    field: &'a Field,
    hosts: &'a [&'a str],
    lines: &str,
) -> impl Drop + 'a {
    let script = format!("{FORCED}/shell.sh");
    let scratch = field.scratch(hosts, FORCED);
    let mut keys = Vec::new();
    for host in hosts {
        let text = format!("#!/bin/sh\n{lines}\n");
        field.lab.write_file(host, Path::new(&script), text.as_bytes(), 0o755).unwrap();
        let path = field.lab.path(host, Path::new(KEYS)).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("command=\"{script}\" {text}")).unwrap();
        keys.push((path, text));
    }
    Undo(move || {
        // Dropped after the keys are restored.
        let _scratch = &scratch;
        keys.iter().try_for_each(|(path, text)| fs::write(path, text))
    })
}

/// Returns lines that start a container's shell with the programs of `path` and with `stdin`.
fn shell(path: &str, stdin: &str) -> String {
    format!(
        "echo entering container; PATH={path}; export PATH\n\
         exec sh -c \"$SSH_ORIGINAL_COMMAND\" {stdin}"
    )
}

/// Returns lines that start a container's shell without stdin.
pub(crate) fn no_stdin() -> String {
    shell(crate::support::PATH, "</dev/null")
}

/// Makes a directory on a host with only these programs, until the guard is dropped.
fn tools<'a>(field: &'a Field, host: &'a str, programs: &str) -> impl Drop + 'a {
    let line = format!(
        "mkdir -p /tmp/tools; for p in {TOOLS} {programs}; do ln -sf $(PATH={} command -v $p) \
         /tmp/tools/$p || exit 1; done",
        crate::support::PATH
    );
    field.on(host, &line);
    Undo(move || {
        field.on(host, "rm -r /tmp/tools");
        Ok::<(), String>(())
    })
}

#[test]
fn a_job_runs_where_the_shell_gives_no_stdin() {
    let field = Field::new();
    field.warm("a,b,c", Account::Root);
    let _forced = forced_command(&field, &["a", "b"], &no_stdin());
    let ran = field.rlaunch("-H a,b,c -np 3 hostname").run();
    assert_eq!(ran.succeeded().sorted(), ABC, "{ran}");
    ran.says_nothing();
    ran.took_less_than(3);
    // A stdin that is open but carries no data counts as none.
    let pipe = format!("{FORCED}/pipe");
    let silent = shell(crate::support::PATH, &format!("<>{pipe}"));
    let silent = format!("[ -e {pipe} ] || mkfifo {pipe}\n{silent}");
    let _silent = forced_command(&field, &["c"], &silent);
    let script = "rlaunch barrier x && echo $RANK $WORLD_SIZE $LOCAL_RANK $MASTER_PORT && \
                  head -c 3000000 /dev/zero | tr '\\0' x";
    let ran = field.rlaunch("-H a:2,c -np 3").sh(script).run();
    let out = ran.succeeded().out();
    assert_eq!(out.matches('x').count(), 9_000_000, "{ran}");
    let mut places: Vec<String> = out.replace('x', "").lines().map(str::to_owned).collect();
    places.retain(|line| !line.is_empty());
    places.sort_unstable();
    let (first, port) = places[0].rsplit_once(' ').unwrap();
    assert_eq!(first, "0 3 0", "{ran}");
    assert_eq!(places[1..], [format!("1 3 1 {port}"), format!("2 3 0 {port}")], "{ran}");
    let failing = field.rlaunch("-H a,b -np 2").sh("exit $((RANK * 7))").run();
    failing.ended_with(7).says(&["rank 1 on b"]);
}

#[test]
fn a_host_without_stdin_gets_its_agent_by_what_it_has() {
    let field = Field::new();
    let hosts = ["a", "b", "c", "d", "e", "f"];
    field.forget_agents(&hosts, Account::Root);
    // Programs by which each host downloads the agent and verifies it. The last host has the agent.
    let ways = ["bash sha256sum", "python3", "perl", "curl openssl", "wget sha256sum", ""];
    let _tools: Vec<_> = hosts.iter().zip(ways).map(|(h, way)| tools(&field, h, way)).collect();
    let agent = fs::read(field.agent()).unwrap();
    field.lab.write_file("f", Path::new("/tmp/tools/rlaunch-worker"), &agent, 0o755).unwrap();
    let _forced = forced_command(&field, &hosts, &shell("/tmp/tools", "</dev/null"));
    let run = || field.rlaunch("-H a,b,c,d,e,f -np 6 /bin/hostname");
    let cold = run().logging().run();
    assert_eq!(cold.succeeded().sorted(), hosts, "{cold}");
    cold.says(&["agent sent to a, b, c, d, e ("]);
    for host in hosts {
        let cache = field.cache(host, Account::Root);
        let build = fs::read_dir(cache).unwrap().next().unwrap().unwrap().path();
        assert!(fs::read(build.join("rlaunch-worker")).unwrap() == agent, "{host}");
    }
    let warm = run().run();
    assert_eq!(warm.succeeded().sorted(), hosts, "{warm}");
    warm.says_nothing();
    // Commands without a job reach the hosts in the same way.
    let topo = field.rlaunch("topo -H a,f").run();
    topo.succeeded().keeps_quiet_about(&["error"]);
}

/// A full disk, or a quota: the first file that is tried is small, and fits.
#[test]
fn a_home_without_room_for_the_agent_is_passed_over() {
    let field = Field::new();
    let hosts = ["a", "b"];
    field.forget_agents(&hosts, Account::Root);
    // The last host copies the agent that it has.
    let _tools = [tools(&field, "a", "curl openssl"), tools(&field, "b", "")];
    let agent = fs::read(field.agent()).unwrap();
    field.lab.write_file("b", Path::new("/tmp/tools/rlaunch-worker"), &agent, 0o755).unwrap();
    let _mounts = hosts.map(|host| mount(&field, host, "size=200k"));
    let _elsewhere = field.scratch(&hosts, "/tmp/.rlaunch-0");
    let _forced = forced_command(&field, &hosts, &shell("/tmp/tools", "</dev/null"));
    let run = || field.rlaunch("-H a,b -np 2 /bin/hostname");
    let cold = run().logging().run();
    assert_eq!(cold.succeeded().sorted(), hosts, "{cold}");
    cold.says(&["agent sent to a ("]);
    let warm = run().run();
    assert_eq!(warm.succeeded().sorted(), hosts, "{warm}");
    warm.says_nothing();
    for host in hosts {
        assert_eq!(field.on(host, "find ~/.cache -type f"), "", "half a copy is left on {host}");
    }
}

#[test]
fn a_launcher_that_cannot_be_called_says_which_port_to_open() {
    let field = Field::new();
    field.warm("b,c", Account::Root);
    let _forced = forced_command(&field, &["b", "c"], &no_stdin());
    let [b, c] = ["b", "c"].map(|host| field.lab.address(host).unwrap());
    let filter = format!(
        "nft add table inet t; nft add chain inet t c '{{ type filter hook input priority 0; }}'; \
         nft add rule inet t c ip saddr {b} tcp dport 21000-21511 drop; \
         nft add rule inet t c ip saddr {c} tcp dport 21000-21511 reject with tcp reset"
    );
    field.shell(&filter, Path::new("/"));
    let _open = Undo(|| {
        field.shell("nft delete table inet t", Path::new("/"));
        Ok::<(), String>(())
    });
    let ran = field.rlaunch("-H b,c hostname").run();
    ran.refused(
        204,
        &["  b: cannot reach the launcher at ", " (no answer), and its shell has no stdin"],
    );
    ran.says(&["  c: cannot reach the launcher at ", ":21", " (refused)"]);
    let rule =
        format!("nft insert rule inet filter input ip saddr {b} tcp dport 21000-21511 accept");
    ran.hints(&rule).hints(&format!("ufw allow from {b} to any port 21000:21511 proto tcp"));
    ran.hints("--port-range").hints("--oob-if").took_less_than(10);
    // The host cannot download the agent either.
    field.forget_agents(&["c"], Account::Root);
    let ran = field.rlaunch("-H c hostname").run();
    ran.refused(202, &["c: its shell has no stdin", "no rlaunch-worker of this build on PATH"]);
    ran.says(&["bash ", "python3 ", "refused"]).hints("put rlaunch-worker of this build into");
    ran.hints("ufw allow from");
}

#[test]
fn a_killed_launcher_takes_those_along_who_have_called() {
    let field = Field::new();
    field.warm("a,b", Account::Root);
    let _forced = forced_command(&field, &["a", "b"], &no_stdin());
    let run = field.rlaunch("--kill-after 1 -H a:2,b:2").sh("echo up; setsid sleep 1000 & wait");
    let mut running = run.spawn();
    running.wait_for_text("up\n", 4);
    running.signal(Signal::SIGKILL);
    running.finish_first().ended_with(-9);
    field.wait_for("the agents and their ranks to end", || field.started().is_empty());
    field.clear_job_directories();
}

/// Starts a shell line on a host, as root and without SSH.
fn start(field: &Field, host: &str, line: &str) -> Child {
    let mut command = field.lab.on(host, Account::Root).unwrap();
    let command = command.args(["bash", "-c", line]).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

/// A process of another user has read the whole command line, and connects before the agent does.
#[test]
fn a_client_with_the_command_line_that_dials_first_learns_nothing() {
    let field = Field::new();
    field.warm("a,b", Account::Root);
    // The command can be read, and starts only after it has been read.
    let lines = format!(
        "echo \"$SSH_ORIGINAL_COMMAND\" >{FORCED}/read; mv {FORCED}/read {FORCED}/command\n\
         until [ -e {FORCED}/go ]; do sleep 0.02; done\n{}",
        no_stdin()
    );
    let _forced = forced_command(&field, &["b"], &lines);
    let running = field.rlaunch("-H a,b -np 2 hostname").spawn();
    let path = field.lab.path("b", Path::new(&format!("{FORCED}/command"))).unwrap();
    field.wait_for("the command line", || path.exists());
    let command = fs::read_to_string(&path).unwrap();
    let command = command.trim().split_once(" && exec ").unwrap().1;
    let words = command.split_once("--callback ").unwrap().1;
    let address = words.split([' ', ',']).next().unwrap();
    let (ip, port) = address.rsplit_once(':').unwrap();
    let dial = |words: &str| format!("exec 3<>/dev/tcp/{ip}/{port}; {words}; cat <&3");
    // Starts the agent with everything that can be read; its output goes to a file. It connects
    // before the genuine agent starts.
    let agent = start(&field, "b", &format!("{command} </dev/null >{FORCED}/said"));
    let said = || fs::read_to_string(path.with_file_name("said")).unwrap_or_default();
    field.wait_for("the stranger to announce itself", || said().contains("\nrlaunch-callback "));
    let dialled = format!("ss -Htn state connected dst {ip} dport = :{port}");
    field.wait_for("the stranger to dial", || !field.on("b", &dialled).is_empty());
    let mut hostile = vec![
        start(&field, "b", &dial("printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3")),
        start(&field, "b", &dial("head -c 100000 /dev/zero >&3")),
        start(&field, "b", &dial("printf rlaunch-call >&3")),
    ];
    // More silent connections than are allowed to wait.
    let flood = format!(
        "for i in $(seq 280); do exec {{n}}<>/dev/tcp/{ip}/{port}; done; : >{FORCED}/flooded; cat <&$n"
    );
    hostile.push(start(&field, "b", &flood));
    let status = hostile[0].wait().unwrap();
    assert!(status.code().is_some(), "{status}");
    field.wait_for("the flood", || path.with_file_name("flooded").exists());
    fs::write(path.with_file_name("go"), "").unwrap();
    let ran = running.finish_first();
    assert_eq!(ran.succeeded().sorted(), ["a", "b"], "{ran}");
    ran.took_less_than(10);
    let heard = hostile
        .into_iter()
        .map(|child| String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap());
    let heard: Vec<String> = heard.collect();
    assert!(heard.iter().all(String::is_empty), "{heard:?}");
    agent.wait_with_output().unwrap();
    let failed = format!("rlaunch-callback failed {address} (unexpected answer: the ");
    assert!(said().contains(&failed), "{}", said());
    field.wait_for("the strangers to end", || field.started().is_empty());
}
