//! Ways to hosts that are odd: names with dead addresses, hung SSH agents, servers that want more than a key; limits and
//! files of machines without which no job starts; and clients of `rlaunch monitor --listen` that are silent or strangers.

use crate::support::{Field, State, Undo, launch_directory};
use nix::sys::signal::Signal;
use rlaunch_lab::Account;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Stdio;

/// Writes an ssh configuration with additional `lines`, and returns its path.
fn configuration(directory: &Path, lines: &str) -> String {
    let path = directory.join("ssh_config");
    fs::write(&path, format!("{lines}\nIdentityFile ~/.ssh/id_ed25519\n")).unwrap();
    path.display().to_string()
}

/// Makes the launch node know an address of the lab's network that no host has, so that the kernel never reports it as unreachable.
fn dead_address(field: &Field, last: u8) -> (String, impl Drop) {
    let [first, second, ..] = field.lab.address("a").unwrap().octets();
    let address = format!("{first}.{second}.9.{last}");
    let neighbour = format!("{address} lladdr 02:00:00:00:00:99 nud permanent dev br0");
    field.shell(&format!("ip neigh replace {neighbour}"), Path::new("/"));
    let forget = format!("ip neigh del {address} dev br0");
    let undo = Undo(move || {
        field.shell(&forget, Path::new("/"));
        Ok::<(), std::io::Error>(())
    });
    (address, undo)
}

/// Adds lines to the launch node's /etc/hosts until the guard is dropped.
fn names<'a>(field: &'a Field, lines: &str) -> impl Drop + use<'a> {
    let before = field.shell("cat /etc/hosts", Path::new("/"));
    field.shell(&format!("cat >>/etc/hosts <<'END'\n{lines}END"), Path::new("/"));
    Undo(move || {
        field.shell(&format!("cat >/etc/hosts <<'END'\n{before}END"), Path::new("/"));
        field.lab.refresh_known_hosts()
    })
}

/// paramiko#22: a name whose first address is dead had no other.
#[test]
fn a_dead_address_of_a_name_costs_a_moment() {
    let field = Field::new();
    let ((one, _one), (other, _other)) = (dead_address(&field, 1), dead_address(&field, 2));
    let b = field.lab.address("b").unwrap();
    let c = field.lab.address("c").unwrap();
    let two_ways = format!("{one} two-ways\n{b} two-ways\n{other} two-ways\n");
    let no_way = format!("{one} no-way\n{c} no-way\n");
    let _names = names(&field, &format!("{two_ways}{no_way}"));
    let ran = field.rlaunch("-H a,two-ways hostname").run();
    assert_eq!(ran.succeeded().sorted(), ["a", "b"], "{ran}");

    let sshd = field.lab.sshd("c").unwrap();
    let _restore = Undo(|| sshd.restart(&[]));
    sshd.stop().unwrap();
    let directory = launch_directory();
    let config = configuration(directory.path(), "ConnectTimeout 2");
    let ran = field.rlaunch("--ssh-config").args([&config, "-H", "no-way", "hostname"]).run();
    let dead =
        format!("no TCP connection within 2 s: {one}:22 does not answer, {c}:22: Connection");
    ran.refused(201, &["no-way: ", &dead]).hints("ConnectTimeout");
}

/// Listens at three addresses of the launch node as programs that are no sshd: one closes connections, one says nothing, and
/// one speaks HTTP.
const NO_SSHDS: &str = "import socket, threading
kept = []
def serve(listener, answer):
    while True:
        peer, _ = listener.accept()
        if answer is None:
            kept.append(peer)
        else:
            peer.sendall(answer)
            peer.close()
http = b'HTTP/1.1 400 Bad Request\\r\\n\\r\\n'
for last, answer in ((8, b''), (9, None), (10, http)):
    listener = socket.create_server((f'127.0.0.{last}', 22))
    threading.Thread(target=serve, args=(listener, answer)).start()
print('up', flush=True)
";

/// A first address that takes TCP connections, and has no sshd, is as good as a dead one.
#[test]
fn an_address_without_an_sshd_costs_a_moment() {
    let field = Field::new();
    let b = field.lab.address("b").unwrap();
    let lines = |(name, last): (&str, u8)| {
        format!("127.0.0.{last} {name}-first\n{b} {name}-first\n127.0.0.{last} {name}-only\n")
    };
    let all: String =
        [("closed", 8), ("silent", 9), ("other", 10)].into_iter().map(lines).collect();
    let _names = names(&field, &all);
    let mut python = field.lab.exec_in(Account::Root, Path::new("/tmp"));
    python.args(["/usr/bin/python3", "-c", NO_SSHDS]).stdout(Stdio::piped());
    let mut python = python.spawn().unwrap();
    let mut said = BufReader::new(python.stdout.take().unwrap());
    let _end = Undo(move || python.kill().and_then(|()| python.wait().map(drop)));
    said.read_line(&mut String::new()).unwrap();
    for name in ["closed", "silent", "other"] {
        let ran = field.rlaunch(&format!("-H {name}-first hostname")).run();
        assert_eq!(ran.succeeded().out(), "b\n", "{ran}");
    }
    let ran = field.rlaunch("-H other-only hostname").run();
    ran.refused(201, &["127.0.0.10:22 answers, but is no SSH server: HTTP/1.1 400 Bad Request"]);
    ran.hints("--port").keeps_quiet_about(&["MaxStartups", "tried "]).took_less_than(5);
    let directory = launch_directory();
    let config = configuration(directory.path(), "ConnectTimeout 2");
    let ran = field.rlaunch("--ssh-config").args([&config, "-H", "closed-only", "hostname"]).run();
    ran.refused(201, &["127.0.0.8:22 closes connections before it says anything"]);
    ran.hints("perhaps too many connect at once");
}

/// nccl#1524: full packets to b are lost, so that the login works, and the agent does not get through; from here and through
/// a jump host.
#[test]
fn an_upload_into_a_hole_ends_soon_and_names_large_packets() {
    let field = Field::new();
    let line = "nft add table inet hole && \
                nft add chain inet hole c '{ type filter hook input priority 0; }' && \
                nft add rule inet hole c tcp dport 22 meta length gt 1400 drop";
    field.on("b", line);
    let _undo = Undo(|| {
        // What sshd waits for will not come any more.
        field.on("b", "nft delete table inet hole; pkill -f '^sshd: root@notty' || true");
        Ok::<(), std::io::Error>(())
    });
    let b = field.lab.address("b").unwrap();
    let directory = launch_directory();
    let far = format!("Host far-b\n HostName {b}\n ProxyJump a\nHost *\n");
    let config = configuration(directory.path(), &far);
    for (host, how) in [("b", "what is sent to it does not arrive"), ("far-b", "keepalives")] {
        let run = field.rlaunch("--agent-dir /tmp/none --ssh-config").args([&config, "-H", host]);
        let ran = run.args(["hostname"]).spawn().finish_first();
        assert_ne!(ran.code, 0, "{ran}");
        ran.says(&[&format!("{host}: the connection to "), how]).took_less_than(20);
        ran.hints("only large packets are lost");
    }
}

/// A forwarded agent whose other end is gone: it takes connections and never answers.
#[test]
fn a_hung_ssh_agent_is_named() {
    let field = Field::new();
    let directory = launch_directory();
    let socket = directory.path().join("agent");
    let _agent = UnixListener::bind(&socket).unwrap();
    let run = |lines: &str| {
        let config = configuration(directory.path(), lines);
        let run = field.rlaunch("--ssh-config").args([&config, "-H", "a", "hostname"]);
        run.env("SSH_AUTH_SOCK", socket.to_str().unwrap()).run()
    };
    let ran = run("ConnectTimeout 2");
    let named = format!("a: the SSH agent at {} does not answer within 2 s", socket.display());
    ran.refused(201, &[&named]).hints("IdentityAgent none").keeps_quiet_about(&["firewall"]);
    assert_eq!(run("IdentityAgent none").succeeded().out(), "a\n");
}

/// varuna#4, net-ssh#121: servers with a second factor, with host-based logins, with a key exchange of their own.
#[test]
fn what_rlaunchs_client_cannot_do_is_left_to_ssh() {
    let field = Field::new();
    let hosts = ["a", "b", "c"];
    let sshds = hosts.map(|host| field.lab.sshd(host).unwrap());
    let _restore = Undo(|| sshds.iter().try_for_each(|sshd| sshd.restart(&[])));
    sshds[0].restart(&["KexAlgorithms sntrup761x25519-sha512@openssh.com"]).unwrap();
    sshds[1].restart(&["HostbasedAuthentication yes", "AuthenticationMethods hostbased"]).unwrap();
    let by_factor = "AuthenticationMethods publickey,keyboard-interactive";
    sshds[2].restart(&["UsePAM yes", "KbdInteractiveAuthentication yes", by_factor]).unwrap();
    let run = |host: &str| field.rlaunch(&format!("-H {host} hostname")).run();
    let kex = run("a");
    kex.refused(201, &["has no key exchange that rlaunch may use, only sntrup761x25519-sha512@"]);
    kex.hints("rlaunch --rsh ssh -H a …");
    assert_eq!(field.rlaunch("-H a --rsh ssh hostname").run().succeeded().out(), "a\n");
    let hostbased = run("b");
    hostbased.refused(201, &["the host accepts no keys, only hostbased"]);
    hostbased.hints("rlaunch --rsh ssh -H root@b …").keeps_quiet_about(&["by password"]);
    let factor = run("c");
    factor.refused(201, &["(accepted, but the host requires keyboard-interactive too)"]);
    factor.hints("ControlMaster auto").hints("ssh root@c true && rlaunch --rsh ssh -H root@c …");
    factor.keeps_quiet_about(&["accepts no keys", "PubkeyAuthentication"]);
}

/// A chroot without /proc: nothing is damaged there.
#[test]
fn a_machine_without_proc_is_told_to_mount_it() {
    let field = Field::new();
    let rlaunch = field.rlaunch.display();
    let inside =
        format!("while umount -l /proc 2>/dev/null; do :; done; exec {rlaunch} -H a hostname");
    let said = field.shell(&format!("unshare --mount sh -c '{inside}' 2>&1"), Path::new("/"));
    assert!(said.contains("/proc is not mounted on this machine"), "{said}");
    assert!(said.contains("mount -t proc") && !said.contains("install it again"), "{said}");

    let sshd = field.lab.sshd("a").unwrap();
    let _restore = Undo(|| sshd.restart(&[]));
    let without =
        "while umount -l /proc 2>/dev/null; do :; done; exec sh -c \"$SSH_ORIGINAL_COMMAND\"";
    sshd.restart(&[&format!("ForceCommand unshare --mount sh -c '{without}'")]).unwrap();
    let ran = field.rlaunch("-H a hostname").run();
    ran.refused(202, &["a: ", "/proc is not mounted on this host"]);
    ran.hints("on a: sudo mount -t proc proc /proc").keeps_quiet_about(&["--agent-dir"]);
}

/// mpich#6681: a hostfile that was written on Windows.
#[test]
fn a_hostfile_of_another_system_is_read() {
    let field = Field::new();
    let directory = launch_directory();
    let hostfile = directory.path().join("hosts");
    let run = |text: &[u8]| {
        fs::write(&hostfile, text).unwrap();
        field.rlaunch("--hostfile").args([hostfile.as_os_str()]).args(["hostname"]).run()
    };
    let ran = run("\u{feff}a slots=1\r\nb slots=1\r\n".as_bytes());
    assert_eq!(ran.succeeded().sorted(), ["a", "b"], "{ran}");
    run(b"\xff\xfea\0\r\0\n\0").refused(200, &["it is in UTF-16", "iconv -f UTF-16"]);
}

/// A rank that cannot listen on a port of its own: MASTER_PORT has nothing to do with it.
#[test]
fn the_port_that_is_taken_is_named() {
    const TWICE: &str = "import asyncio
async def listen():
    for _ in range(2):
        server = await asyncio.start_server(lambda *_: None, '127.0.0.1', 8265)
asyncio.run(listen())
";
    let field = Field::new();
    let ran = field.rlaunch("-H a,b -np 1").args(["/usr/bin/python3", "-c", TWICE]).run();
    ran.ended_with(1).hints("port 8265 of a is taken; it is not MASTER_PORT");
    ran.keeps_quiet_about(&["until rank 0 started"]);
}

/// ompi#12489: more ranks than the limit of open files allows.
#[test]
fn ranks_that_take_too_many_files_are_told_before_they_start() {
    let field = Field::new();
    let run = |ranks: u32| {
        let rlaunch = format!("{} --oversubscribe -np {ranks} true", field.rlaunch.display());
        field.shell(&format!("(ulimit -n 100; {rlaunch}) 2>&1; echo $?"), Path::new("/"))
    };
    let said = run(60);
    assert!(said.contains("60 ranks do not fit on ") && said.ends_with("\n202\n"), "{said}");
    assert!(said.contains("`ulimit -n 203` ") && !said.contains("Too many open"), "{said}");
    let said = run(30);
    assert!(said.contains("warning[lim.files]: 30 ranks on ") && said.ends_with("\n0\n"), "{said}");
}

/// Connections that send nothing, and then two requests: prints the time that the first took, and the status of each. The time
/// is the least of three, since the machine may have other work.
const SCRAPES: &str = "import socket, sys, time
address = ('127.0.0.1', int(sys.argv[1]))
silent = []
def status(host):
    client = socket.create_connection(address, 60)
    client.sendall(f'GET /metrics HTTP/1.1\\r\\nHost: {host}\\r\\n\\r\\n'.encode())
    return client.makefile().readline().split()[1]
times = []
for _ in range(3):
    silent += [socket.create_connection(address) for _ in range(4)]
    began = time.monotonic()
    own = status(f'127.0.0.1:{sys.argv[1]}')
    times.append(time.monotonic() - began)
print(min(times), own, status('attacker.example'))
";

/// A silent client must not hold up a scrape, nor a page in a browser read it through a name of its own (DNS rebinding).
#[test]
fn silent_clients_and_strangers_keep_no_scrape_waiting() {
    let (field, state) = (Field::new(), State::new());
    let job = field.rlaunch("-H a").env("XDG_STATE_HOME", state.path());
    let mut job = job.sh("echo up; exec sleep 1000").spawn();
    job.wait_for_text("up\n", 1);
    let run = field.rlaunch("monitor --listen 0").env("XDG_STATE_HOME", state.path());
    let mut monitor = run.spawn();
    monitor.wait_for_stderr("/metrics\n", 1);
    let said = monitor.err();
    let port = said.split_once("http://127.0.0.1:").unwrap().1.split('/').next().unwrap();
    let mut python = field.lab.exec_in(Account::Root, Path::new("/tmp"));
    let output = python.args(["/usr/bin/python3", "-c", SCRAPES, port]).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let words: Vec<&str> = told.split_whitespace().collect();
    assert_eq!(words[1..], ["200", "421"], "{output:?}");
    // A silent client is let go after 5 s.
    assert!(words[0].parse::<f64>().unwrap() < 4.0, "{told}");
    job.signal(Signal::SIGTERM);
    job.finish().ended_with(143);
    monitor.finish_first().succeeded().says(&["ended: code 143"]);
}
