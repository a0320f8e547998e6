//! Connections of other users to ports of a job, and a flood of connections.

use crate::support::{Field, PATH};
use rlaunch_lab::Account;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};

/// Script that opens more silent connections to Horovod's store than the store serves at once, and
/// then sends a request. Up to three attempts, in case the machine stalls.
const CROWD: &str = r#"
[ $RANK = 1 ] && exit
store=$HOROVOD_GLOO_RENDEZVOUS_ADDR:$HOROVOD_GLOO_RENDEZVOUS_PORT
for attempt in 1 2 3; do
    for i in {1..64}; do exec {silent}<>/dev/tcp/${store/://}; done
    exec {slow}<>/dev/tcp/${store/://}; printf 'PUT /g/0 HTTP/1.1\r\nContent-Len' >&$slow
    code=$(curl --silent --max-time 4 --output /dev/null --write-out '%{http_code}' $store/g/0)
    [ $code = 404 ] && exec echo answered
done
echo no answer beside silent connections
"#;

#[test]
fn silent_connections_keep_no_rank_from_horovods_store() {
    let field = Field::new();
    for account in Account::ALL {
        let run = field.rlaunch("-H a:2 -np 2").account(account).args(["bash", "-c", CROWD]);
        assert_eq!(run.run().succeeded().out(), "answered\n", "as {}", account.name());
    }
}

/// Script that sends a request to an address and port, and prints the result.
const ASK: &str = r#"
import http.client, sys
connection = http.client.HTTPConnection(sys.argv[1], int(sys.argv[2]), timeout=30)
try:
    connection.request("PUT", "/global/0", "203.0.113.9")
    print(connection.getresponse().status)
except OSError:
    print("refused")
"#;

#[test]
fn another_users_process_cannot_write_horovods_store() {
    let field = Field::new();
    let go = "/tmp/services/go";
    let script = format!(
        "test $RANK = 0 && echo $HOROVOD_GLOO_RENDEZVOUS_ADDR $HOROVOD_GLOO_RENDEZVOUS_PORT; \
         until [ -e {go} ]; do sleep 0.05; done"
    );
    let mut running = field.rlaunch("-H a:2").sh(&script).spawn();
    running.wait_for_text("\n", 1);
    let said = running.out();
    let (address, port) = said.trim().split_once(' ').unwrap();
    let ask = |account| {
        let mut command = field.lab.on("a", account).unwrap();
        let output = command.args(["python3", "-c", ASK, address, port]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(ask(Account::Root), "200\n", "the job's own user");
    assert_eq!(ask(Account::User), "refused\n");
    let _go = field.files(&["a"], go, "", 0o644);
    running.finish().succeeded();
}

/// Program on the launch node; dropping this value ends it.
struct Nuisance(Child);

impl Drop for Nuisance {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Script that keeps about 900 connections open to the ports of a range, and replaces those that
/// are closed.
const FLOOD: &str = r#"
import socket, sys, time
address, lines = sys.argv[1], []
print("flooding", flush=True)
while True:
    for port in range(21000, 21005):
        line = socket.socket()
        line.setblocking(False)
        line.connect_ex((address, port))
        lines.append(line)
    while len(lines) > 900:
        lines.pop(0).close()
    time.sleep(0.001)
"#;

/// The kernel remembers each connection that an agent has closed, at the agent's port for a minute.
/// Consecutive jobs must not run out of ports.
#[test]
fn a_flood_of_an_agents_ports_keeps_no_job_from_starting() {
    let field = Field::new();
    field.warm("a,b,c", Account::Root);
    let address = field.lab.address("a").unwrap().to_string();
    let mut command = field.lab.exec_in(Account::User, Path::new("/"));
    command.args(["python3", "-c", FLOOD, &address]).env("PATH", PATH);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut flood = Nuisance(command.spawn().unwrap());
    let mut said = BufReader::new(flood.0.stdout.take().unwrap());
    said.read_line(&mut String::new()).unwrap();
    for _ in 0..5 {
        let run = field.rlaunch("--port-range 21000-21004 -H a,b,c");
        let ran = run.sh("rlaunch barrier x && hostname").run();
        assert_eq!(ran.succeeded().sorted(), ["a", "b", "c"], "{ran}");
        assert!(flood.0.try_wait().unwrap().is_none(), "the flood has ended");
    }
}

/// Script that prints MASTER_PORT and later binds it, as rank 0 of a framework does.
const RANK_0: &str = r#"
import os, socket, time
if os.environ["RANK"] != "0":
    time.sleep(3600)
print(os.environ["MASTER_PORT"], flush=True)
while not os.path.exists("/tmp/services/go"):
    time.sleep(0.02)
socket.create_server(("", int(os.environ["MASTER_PORT"])))
"#;

/// Script that listens on a port, lets rank 0 continue, and exits after the job.
const STRANGER: &str = r#"
import os, socket, sys, time
listening = socket.create_server(("", int(sys.argv[1])))
open("/tmp/services/go", "w")
while not os.path.exists("/tmp/services/end"):
    time.sleep(0.02)
"#;

#[test]
fn a_stranger_on_master_port_ends_the_job_with_a_sentence() {
    let field = Field::new();
    field.on("a", "mkdir -m 777 /tmp/services");
    let _scratch = field.scratch(&["a"], "/tmp/services");
    let mut running = field.rlaunch("-H a,b").args(["python3", "-c", RANK_0]).spawn();
    running.wait_for_text("\n", 1);
    let port = running.out().trim().to_owned();
    let mut command = field.lab.on("a", Account::User).unwrap();
    let mut stranger = command.args(["python3", "-c", STRANGER, &port]).spawn().unwrap();
    let ran = running.finish_first();
    field.on("a", "touch /tmp/services/end");
    assert!(stranger.wait().unwrap().success());
    ran.ended_with(1).says(&["rank 0 on a", "Address already in use"]);
    ran.hints(&format!("MASTER_PORT {port} was free on a until rank 0 started"));
}

#[test]
fn one_machine_under_two_names_is_refused_with_what_to_write() {
    let field = Field::new();
    let address = field.lab.address("a").unwrap();
    let ran = field.rlaunch(&format!("-H b,a,{address} hostname")).run();
    ran.refused(200, &[&format!("a and {address} are one machine (a), named twice")]);
    ran.hints("name it once, as a:2 with -H or `a slots=2` in a hostfile");
    let ran = field.rlaunch(&format!("-H a,{address} --oversubscribe hostname")).run();
    assert_eq!(ran.succeeded().out(), "a\na\n", "{ran}");
}
