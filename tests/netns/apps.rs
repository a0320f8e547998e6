//! Several programs in one job: their common rank numbers, the order in which they start, services
//! that end with the job, and templates.

use crate::support::{BOUND, Field, launch_directory};
use nix::sys::signal::Signal;
use std::collections::HashMap;
use std::fs;
use std::path::Path;

/// Script `service.py NAME PORT [HOST:PORT…]`: connects to its needs, which must already answer,
/// starts slowly, and listens on PORT. With port 0 it exits after it has connected. Its times are
/// comparable, since all hosts are one machine.
const SERVICE: &str = r#"
import os, socket, sys, time

name, port, needs = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
print("started", name, time.monotonic(), flush=True)
for need in needs:
    host, at = need.rsplit(":", 1)
    socket.create_connection((host, int(at)), timeout=60).close()
config = os.environ.get("LMCACHE_CONFIG_FILE")
if config:
    mode = oct(os.stat(config).st_mode & 0o777)
    print("config", name, mode, open(config).read().replace("\n", "|"), flush=True)
if port:
    time.sleep(0.3)
    ready = time.monotonic()
    listener = socket.create_server(("", port))
    print("ready", name, ready, flush=True)
    while True:
        listener.accept()[0].close()
"#;

/// Configuration from the guide for each host, with names in place of addresses.
const LMCACHE: &str = r#"remote_url: "mooncakestore://{{app["master"].oob_ip}}:50052/"
extra_config:
  local_hostname: "{{host.oob_ip}}"
  device_name: "{{rank.hcas | join(",")}}"
"#;

#[test]
fn five_programs_of_a_split_service_come_up_in_order_and_end_together() {
    let field = Field::new();
    let directory = launch_directory();
    fs::write(directory.path().join("service.py"), SERVICE).unwrap();
    fs::write(directory.path().join("lmcache.yaml"), LMCACHE).unwrap();
    let config = "--template lmcache.yaml:/tmp/lmc.yaml -x LMCACHE_CONFIG_FILE=/tmp/lmc.yaml";
    let line = format!(
        r#"--serve --tag-output --preload service.py
           -H a -np 1 --name master python3 service.py master 50052
         : -H a -np 1 --name prefill --after ready:tcp:a:50052 {config}
           python3 service.py prefill 7100 {{{{app["master"].oob_ip}}}}:50052
         : -H b -np 1 --name decode --after ready:tcp:a:50052 {config}
           python3 service.py decode 7200 {{{{app["master"].oob_ip}}}}:50052
         : -H a -np 1 --name proxy --after ready:tcp:a:7100,ready:tcp:b:7200
           python3 service.py proxy 9000 {{{{app["prefill"].oob_ip}}}}:7100
           {{{{app["decode"].oob_ip}}}}:7200
         : -H c -np 1 --after proxy,ready:tcp:a:9000
           python3 service.py client 0 {{{{app["proxy"].oob_ip}}}}:9000"#
    );
    let run = field.rlaunch(&line).in_directory(directory.path());
    let ran = run.run();
    ran.succeeded().says(&["rank 4 on c has ended, so the others are ended too"]);

    let mut stamps: HashMap<(&str, &str), f64> = HashMap::new();
    let mut configs = HashMap::new();
    let out = ran.out();
    for line in out.lines() {
        let (_, said) = line.split_once("] ").unwrap();
        let words: Vec<&str> = said.splitn(4, ' ').collect();
        match words[..] {
            [what @ ("started" | "ready"), name, at] => {
                stamps.insert((what, name), at.parse().unwrap());
            }
            ["config", name, mode, text] => {
                assert_eq!(mode, "0o600", "{ran}");
                configs.insert(name, text.replace('|', "\n"));
            }
            _ => panic!("{line}"),
        }
    }
    let after = [
        ("prefill", "master"),
        ("decode", "master"),
        ("proxy", "prefill"),
        ("proxy", "decode"),
        ("client", "proxy"),
    ];
    for (later, first) in after {
        let (later, first) = (stamps[&("started", later)], stamps[&("ready", first)]);
        assert!(later > first, "{ran}");
    }
    let [a, b] = ["a", "b"].map(|host| field.lab.address(host).unwrap().to_string());
    for (name, own) in [("prefill", &a), ("decode", &b)] {
        let expected = LMCACHE
            .replace("{{app[\"master\"].oob_ip}}", &a)
            .replace("{{host.oob_ip}}", own)
            .replace("{{rank.hcas | join(\",\")}}", "");
        assert_eq!(configs[name], expected, "{name}");
    }
    for host in ["a", "b"] {
        let left = field.lab.path(host, Path::new("/tmp/lmc.yaml")).unwrap();
        assert!(!left.exists(), "left on {host}");
    }
}

#[test]
fn programs_share_one_world_and_have_what_is_their_own() {
    const SHOW: &str = "echo $WHO $RANK/$WORLD_SIZE $LOCAL_RANK $RLAUNCH_HOST $(pwd) $MASTER_PORT";
    let field = Field::new();
    let run = field.rlaunch("-H a:2,b -np 2 -x WHO=one -x MASTER_PORT=77").sh(SHOW);
    let run = run.args(": -x WHO=two -x MASTER_PORT=78 --wdir /usr".split(' ')).sh(SHOW);
    let run = run.args([":", "-H", "c,a", "sh", "-c", "echo \"$0\" $RANK $1 $WHO", "\\:"]);
    let ran = run.args(["{{host.name}}/{{world_size}}"]).run();
    let expected = [
        ": 3 c/5 one", ": 4 a/5 one", "one 0/5 0 a / 77", "one 1/5 1 a / 77", "two 2/5 0 b /usr 78",
    ];
    assert_eq!(ran.succeeded().sorted(), expected, "{ran}");
    ran.says_nothing();

    // Nothing has started on any host when a program is missing on one.
    let run = field.rlaunch("-H a -np 1 echo here : -H b -np 1 no-such-program").run();
    run.refused(127, &["no-such-program is not on b"]);
    let run = field.rlaunch("-H a -np 1 echo {{host.nam}} : -H b -np 1 true").run();
    let said =
        "application 1 (echo): cannot replace placeholders in `{{host.nam}}` for rank 0: undefined";
    run.refused(200, &[said]).hints("host.oob_ip");
    let run = field.rlaunch("-H a -np 1 true : -H b -np 1 --tag-output true").run();
    run.ended_with(200).says(&["'--tag-output' is for all programs"]);
}

#[test]
fn who_waits_in_vain_ends_with_the_others() {
    let field = Field::new();
    // No rank of b's agent has run.
    let ran = field.rlaunch("-H a -np 1 false : -H b -np 1 --after ready:tcp:b:1 echo no").run();
    assert_eq!(ran.ended_with(1).out(), "", "{ran}");
    ran.took_less_than(15);

    let words = "--serve -H a -np 1 --name first sh -c";
    let run = field.rlaunch(words).args(["echo first; exec sleep 1000", ":"]);
    let run = run.args("-H b -np 1 --after first sh -c".split(' '));
    let ran = run.args(["echo second; exit 7"]).run();
    ran.ended_with(7).took_less_than(15);
    assert!(ran.out().contains("second\n"), "{ran}");

    let run = field.rlaunch("-H a -np 1 sh -c").args(["echo up; exec sleep 1000", ":"]);
    let run = run.args("-H a -np 1 --after ready:tcp:a:1 echo no".split(' '));
    let mut running = run.within(BOUND).spawn();
    running.wait_for_lines(1);
    running.signal(Signal::SIGINT);
    assert_eq!(running.finish().ended_with(130).out(), "up\n");
}

#[test]
fn a_file_that_is_there_is_not_replaced() {
    let field = Field::new();
    let directory = launch_directory();
    fs::write(directory.path().join("x"), "{{rank.index}}\n").unwrap();
    let _theirs = field.files(&["b"], "/tmp/rank-1.conf", "theirs\n", 0o644);
    let line = "-H a,b -np 2 --template x:/tmp/rank-{{rank.index}}.conf sleep 1000";
    let ran = field.rlaunch(line).in_directory(directory.path()).run();
    ran.ended_with(126).says(&["rank 1 on b", "cannot create /tmp/rank-1.conf: it exists already"]);
    assert_eq!(field.on("b", "cat /tmp/rank-1.conf"), "theirs\n");
    let ours = field.lab.path("a", Path::new("/tmp/rank-0.conf")).unwrap();
    assert!(!ours.exists(), "left on a");
}

#[test]
fn numbers_of_nodes_and_ports_are_filled_in() {
    let field = Field::new();
    let words = [
        "{{nodes}}/{{node.index}}/{{node.ranks}}",
        "{{ 'first' if rank.index == 0 }}",
        "{{.State}}",
        "{{master.addr}}:{{master.port}}",
    ];
    let show = "echo $RANK $# $1 $MASTER_ADDR:$MASTER_PORT; for last; do :; done; echo $last";
    let ran = field.rlaunch("-H a:2,b --no-tag").args(["sh", "-c", show, "sh"]).args(words).run();
    let out = ran.succeeded().sorted();
    let first = |begin: &str| out.iter().find(|line| line.starts_with(begin)).cloned();
    let master = first("0 4 2/0/2 ").unwrap().split_off("0 4 2/0/2 ".len());
    let mut expected = vec![
        format!("0 4 2/0/2 {master}"),
        format!("1 3 2/0/2 {master}"),
        format!("2 3 2/1/1 {master}"),
    ];
    expected.extend([(); 3].map(|()| master.clone()));
    expected.sort();
    assert_eq!(out, expected, "{ran}");

    // The second program connects to a port of which it knows the name alone.
    let directory = launch_directory();
    fs::write(directory.path().join("service.py"), SERVICE).unwrap();
    let line = r#"--serve --preload service.py
        -H b -np 1 --name api python3 service.py api {{port["api"]}}
        : -H a -np 1 bash -c"#;
    let connect = "until (: </dev/tcp/$0/$1) 2>/dev/null; do sleep 0.1; done";
    let run = field.rlaunch(line).args([connect, r#"{{app["api"].oob_ip}}"#, r#"{{port["api"]}}"#]);
    run.in_directory(directory.path()).run().succeeded();
    let ran = field.rlaunch("-H a echo {{node.idx}}").run();
    ran.refused(200, &["cannot replace placeholders in `{{node.idx}}`"]).hints("node.index");
}
