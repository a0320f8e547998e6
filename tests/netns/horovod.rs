//! Connecting of Horovod's ranks: the key-value store that agents give access to, with requests
//! like those of Horovod's client, and the variables that lead to it. Where Horovod is built with MPI
//! alone, MPI connects its ranks.

use crate::mpi::PATIENCE;
use crate::mpi::stand_in::StandIn;
use crate::support::{Field, Run};
use rlaunch_lab::Account;
use rlaunch_lab::mpi::NAMES;

/// Script that connects ranks as `horovod/common/gloo` does, using only the environment: in each of
/// three contexts, every rank stores its address, reads the addresses of the others, connects to
/// them, and sends DELETE. Runs twice, since ranks may shut down and start again; a barrier between the
/// rounds keeps a fast rank from reading an address that a slow one has yet to delete.
const CLIENT: &str = r#"
import http.client, os, socket, subprocess, sys, time
E = {name[8:]: value for name, value in os.environ.items() if name.startswith("HOROVOD_")}
assert E["CONTROLLER"] == E["CPU_OPERATIONS"] == "gloo", E
host, port = E["GLOO_RENDEZVOUS_ADDR"], int(E["GLOO_RENDEZVOUS_PORT"])
deadline = time.monotonic() + 60

def ask(method, path, body=None):
    connection = http.client.HTTPConnection(host, port, timeout=60)
    connection.request(method, path, body)
    answer = connection.getresponse()
    value = answer.read()
    assert answer.status in (200, 404), (method, path, answer.status)
    return value if answer.status == 200 else None

def wait(path):
    while (value := ask("GET", path)) is None:
        assert time.monotonic() < deadline, path
        time.sleep(0.01)
    return value

def meet(scope, rank, size):
    lines = socket.create_server(("", 0), backlog=64)
    own = os.environ["RLAUNCH_HOST"], E["RANK"], lines.getsockname()[1]
    ask("PUT", f"/{scope}/rank_{rank}", E["HOSTNAME"])
    ask("PUT", f"/{scope}/{rank}", ":".join(map(str, own)))
    found = [wait(f"/{scope}/{other}").decode().split(":") for other in range(size)]
    for there, _, its_port in found:
        # An address from an earlier round would refuse the connection.
        address = sys.argv[1 + "ab".index(there)]
        socket.create_connection((address, int(its_port)), timeout=60).close()
    for _ in range(size):
        lines.settimeout(60)
        lines.accept()[0].close()
    ask("DELETE", f"/{scope}/{rank}")
    return [int(number) for _, number, _ in found]

for turn in range(2):
    met = [meet("global", E["RANK"], int(E["SIZE"])),
           meet("local_" + E["HOSTNAME"], E["LOCAL_RANK"], int(E["LOCAL_SIZE"])),
           meet("cross_" + E["LOCAL_RANK"], E["CROSS_RANK"], int(E["CROSS_SIZE"]))]
    subprocess.run(["rlaunch", "barrier"], check=True)
print("rank", E["RANK"], "met", *met)
"#;

fn clients<'a>(field: &'a Field, words: &str, path: &str) -> Run<'a> {
    let addresses = ["a", "b"].map(|host| field.lab.address(host).unwrap().to_string());
    field.rlaunch(words).args(["python3", path]).args(addresses)
}

#[test]
fn four_ranks_meet_as_horovod_does() {
    let field = Field::new();
    let path = "/tmp/horovod/client.py";
    let _files = field.files(&["a", "b"], path, CLIENT, 0o644);
    let ran = clients(&field, "-H a:2,b:2", path).run();
    let expected = [
        "rank 0 met [0, 1, 2, 3] [0, 1] [0, 2]", "rank 1 met [0, 1, 2, 3] [0, 1] [1, 3]",
        "rank 2 met [0, 1, 2, 3] [2, 3] [0, 2]", "rank 3 met [0, 1, 2, 3] [2, 3] [1, 3]",
    ];
    assert_eq!(ran.succeeded().sorted(), expected, "{ran}");
    // If one host has more ranks than the other, its last rank has no peer in the cross context.
    let ran = clients(&field, "-H a:2,b", path).run();
    let expected = [
        "rank 0 met [0, 1, 2] [0, 1] [0, 2]", "rank 1 met [0, 1, 2] [0, 1] [1]",
        "rank 2 met [0, 1, 2] [2] [0, 2]",
    ];
    assert_eq!(ran.succeeded().sorted(), expected, "{ran}");
}

/// Script that prints the store's answer at an address and port.
const STRANGER: &str = r#"
import http.client, sys
connection = http.client.HTTPConnection(sys.argv[1], int(sys.argv[2]), timeout=60)
try:
    connection.request("GET", "/global/0")
    print(connection.getresponse().status)
except ConnectionError:
    print("refused")
"#;

#[test]
fn the_store_is_reached_on_its_own_host_alone_and_only_as_long_as_the_job_runs() {
    let field = Field::new();
    let script = "echo $RANK $HOROVOD_GLOO_RENDEZVOUS_ADDR $HOROVOD_GLOO_RENDEZVOUS_PORT; \
                  until [ -e /tmp/go ]; do sleep 0.05; done; rlaunch barrier; rm /tmp/go";
    let mut running = field.rlaunch("-H a,b").sh(script).spawn();
    running.wait_for_text("\n", 2);
    let port_of = |rank: &str| {
        let out = running.out();
        let said = out.lines().find_map(|line| line.strip_prefix(rank)).unwrap().to_owned();
        said.strip_prefix(" 127.0.0.1 ").unwrap().to_owned()
    };
    let ports = [port_of("0"), port_of("1")];
    let address = |host: &str| field.lab.address(host).unwrap().to_string();
    let ask = |host: &str, address: &str, port: &str| {
        let mut command = field.lab.on(host, Account::Root).unwrap();
        let output = command.args(["python3", "-c", STRANGER, address, port]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    for (host, port) in ["a", "b"].into_iter().zip(&ports) {
        assert_eq!(ask(host, "127.0.0.1", port), "404\n", "{host}");
        for elsewhere in ["a", "b", "c"] {
            assert_eq!(ask(elsewhere, &address(host), port), "refused\n", "{elsewhere}, {host}");
        }
    }
    for host in ["a", "b"] {
        field.on(host, "touch /tmp/go");
    }
    running.finish().succeeded();
    assert_eq!(ask("b", "127.0.0.1", &ports[1]), "refused\n", "the job is over");
}

/// Shell line that prints the number of Horovod's variables in a rank's environment.
const COUNT: &str = "env | grep -c ^HOROVOD_ || true";

#[test]
fn all_is_set_or_nothing() {
    let field = Field::new();
    let counted = |words: &str, env: &[(&str, &str)]| {
        let run = field.rlaunch(words).sh(COUNT);
        let run = env.iter().fold(run, |run, (name, value)| run.env(name, value));
        run.run().succeeded().sorted()
    };
    assert_eq!(counted("-H a,b", &[]), ["13", "13"]);
    assert_eq!(counted("-H a:2", &[]), ["13", "13"]);
    assert_eq!(counted("-np 2", &[]), ["13", "13"]);
    assert_eq!(counted("-H a", &[]), ["0"], "nobody to meet");
    assert_eq!(counted("-H a,b --no-horovod", &[]), ["0", "0"]);
    // Variables that another launcher left in the shell are ignored.
    let outer = [("HOROVOD_RANK", "7"), ("HOROVOD_GLOO_RENDEZVOUS_ADDR", "203.0.113.9")];
    assert_eq!(counted("-H a,b", &outer), ["13", "13"]);
    assert_eq!(counted("-H a,b --no-horovod", &outer), ["0", "0"]);
    // If the user sets one of these variables, none is added.
    assert_eq!(counted("-H a,b", &[("HOROVOD_CONTROLLER", "mpi")]), ["1", "1"]);
    assert_eq!(counted("-H a,b -x HOROVOD_SIZE=2", &[]), ["1", "1"]);
    assert_eq!(counted("-H a,b", &[("HOROVOD_CYCLE_TIME", "0.1")]), ["14", "14"]);
}

#[test]
fn what_is_set_is_explained() {
    let field = Field::new();
    let ran = field.rlaunch("-H a,b --show env true").run();
    let out = ran.succeeded().out();
    let row = |name: &str| out.lines().find(|line| line.contains(name)).unwrap_or_default();
    assert!(row("HOROVOD_CONTROLLER=gloo").ends_with("without MPI"), "{ran}");
    let row = row("HOROVOD_GLOO_RENDEZVOUS_ADDR=127.0.0.1");
    assert!(row.contains("lets Horovod's ranks meet"), "{ran}");
    let ran = field.rlaunch("-H a,b --show env true").env("HOROVOD_CONTROLLER", "mpi").run();
    let out = ran.succeeded().out();
    let yours = |line: &str| line.contains("HOROVOD_CONTROLLER=mpi") && line.ends_with("(yours)");
    assert!(out.lines().any(yours) && !out.contains("RENDEZVOUS"), "{ran}");
}

/// Script that loads Horovod's library as `horovod/common/basics.py` does.
const BASICS: &str = r#"
import ctypes, sys
horovod = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
horovod.horovod_gloo_store.restype = ctypes.c_char_p
none = (ctypes.c_int * 0)()
assert horovod.horovod_init(none, 0, none, none, 0)
if horovod.horovod_mpi_enabled():
    names = "rank", "size", "local_rank", "local_size", "cross_rank", "cross_size"
    place = [getattr(horovod, f"horovod_{name}")() for name in names]
    print("rank {} of {}, local {} of {}, cross {} of {}".format(*place), flush=True)
else:
    print("by Gloo at", horovod.horovod_gloo_store().decode(), flush=True)
horovod.horovod_shutdown()
"#;

/// Package of Horovod on hosts a and b, built with an MPI library.
struct Built<'a> {
    field: &'a Field,
    /// Directory of the package, for PYTHONPATH.
    packages: String,
    /// Library in the package.
    library: String,
}

impl Built<'_> {
    const HOSTS: [&'static str; 2] = ["a", "b"];
    const DIRECTORY: &'static str = "/tmp/horovod";

    fn with<'a>(field: &'a Field, mpi: &str, options: &str) -> Built<'a> {
        let packages = format!("{}/{mpi}", Built::DIRECTORY);
        let library = format!("{packages}/horovod/torch/mpi_lib_v2.so");
        let options = &format!("-shared -fPIC -pthread {options}");
        let stand_in = StandIn { source: include_str!("mpi/horovod.c"), library: mpi, options };
        stand_in.compile(field, &Built::HOSTS, &library);
        Built { field, packages, library }
    }

    fn run(&self, controller: Option<&str>) -> Vec<String> {
        let run = self.field.rlaunch("-H a:2,b:2");
        let run = run.env("PYTHONPATH", &self.packages);
        let run = run.args(["python3", "-c", BASICS, &self.library]);
        let run = controller.into_iter().fold(run, |run, c| run.env("HOROVOD_CONTROLLER", c));
        run.within(PATIENCE).run().succeeded().sorted()
    }
}

/// Ranks as Horovod numbers them, by MPI.
const BY_MPI: [&str; 4] = [
    "rank 0 of 4, local 0 of 2, cross 0 of 2",
    "rank 1 of 4, local 1 of 2, cross 0 of 2",
    "rank 2 of 4, local 0 of 2, cross 1 of 2",
    "rank 3 of 4, local 1 of 2, cross 1 of 2",
];

#[test]
fn a_build_with_mpi_alone_meets_by_mpi() {
    let field = Field::new();
    let _libraries = field.scratch(&Built::HOSTS, Built::DIRECTORY);
    for mpi in NAMES {
        // Is shown if the test fails.
        println!("with {mpi}:");
        assert_eq!(Built::with(&field, mpi, "").run(None), BY_MPI);
    }
}

#[test]
fn a_build_with_both_meets_by_gloo_unless_mpi_is_chosen() {
    let field = Field::new();
    let _libraries = field.scratch(&Built::HOSTS, Built::DIRECTORY);
    let built = Built::with(&field, "mpich", "-DHAVE_GLOO=1");
    assert_eq!(built.run(None), ["by Gloo at 127.0.0.1"; 4]);
    assert_eq!(built.run(Some("mpi")), BY_MPI);
}
