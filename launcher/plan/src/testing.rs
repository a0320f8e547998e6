//! For tests: recorded machines, decisions for jobs on them, and comparison with golden files.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use crate::env::nccl::Fabric;
use crate::job::apps::{AppSpec, AppTitle};
use crate::job::name::JobName;
use crate::job::{Identity, JobSpec};
use crate::map::RankMap;
use crate::mesh::outcome::{Failure, ProofOutcome};
use crate::mesh::paths::{self, Proof};
use crate::mesh::{Mesh, ProofResult};
use crate::options::{JobView, MeshMode, Options, UserChoices};
use crate::rank_config::{self, RankConfig};
use crate::selection::{Plan, PortOptions};
use crate::table;
use rlaunch_bootstrap::id::JobId;
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::inventory::net::NetdevKind;
use rlaunch_bootstrap::job::{NodeFacts, SingletonPolicy, WorkingDir};
use rlaunch_bootstrap::protocol::mesh::{PathFault, PathProof, ProofStep};
use rlaunch_bootstrap::rank_table::RankTable;
use rlaunch_bootstrap::security::{Secret, Token};
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

pub const NAMES: [&str; 3] = ["a", "b", "c"];

/// Maps `ranks` ranks to each machine. The machines are the hosts `a`, `b` and `c`.
pub fn map_of(machines: &[Inventory], ranks: usize) -> RankMap {
    map_of_named(&NAMES[..machines.len()], ranks)
}

pub fn map_of_named(names: &[&str], ranks: usize) -> RankMap {
    let hosts: Vec<String> = names.iter().map(|name| format!("{name}:{ranks}")).collect();
    let hosts = crate::hosts::parse(&[hosts.join(",")]).unwrap();
    RankMap::by_slot(&hosts, None, false).unwrap()
}

/// Builds the rank table of a job with `ranks` ranks on each machine.
pub fn table_of(machines: &[Inventory], ranks: usize, plan: &Plan) -> RankTable {
    let (map, options) = (map_of(machines, ranks), Options::default());
    let addresses: Vec<IpAddr> = machines.iter().map(management).collect();
    let inventories = machines;
    let seen = JobView { id: JobId(7), map: &map, inventories, plan, addresses: &addresses };
    let choices = UserChoices { options: &options, env: &[] };
    let fabric = Fabric::new(&map, inventories, plan, &options);
    let ports = vec![vec![21_000, 21_001]; machines.len()];
    let rank_configs = rank_config::decide(&choices, &seen, &fabric, &ports).unwrap();
    table::build(&options, &seen, &vec![&facts(); machines.len()], &rank_configs).unwrap()
}

/// Makes all decisions for a job with default options, and passes them to `then`: each node's rank
/// configurations, the rank table, the user's choices and the network.
pub fn decided<T>(
    map: &RankMap,
    machines: &[Inventory],
    then: impl FnOnce(&[Vec<RankConfig>], &RankTable, &UserChoices<'_>, &Fabric<'_>) -> T,
) -> T {
    let addresses: Vec<IpAddr> = machines.iter().map(management).collect();
    let (options, plan) = (Options::default(), Plan::new(machines, &PortOptions::default()));
    let inventories = machines;
    let seen = JobView { id: JobId(7), map, inventories, plan: &plan, addresses: &addresses };
    let ports: Vec<Vec<u16>> = (0..machines.len())
        .map(|node| vec![21_000, 21_001][usize::from(node > 0)..].to_vec())
        .collect();
    let choices = UserChoices { options: &options, env: &[] };
    let fabric = Fabric::new(map, inventories, &plan, &options);
    let rank_configs = rank_config::decide(&choices, &seen, &fabric, &ports).unwrap();
    let table =
        table::build(&options, &seen, &vec![&facts(); machines.len()], &rank_configs).unwrap();
    then(&rank_configs, &table, &choices, &fabric)
}

/// Returns the machine's first address that is not on a loopback interface.
pub fn management(machine: &Inventory) -> IpAddr {
    let netdevs = machine.netdevs.iter().filter(|n| n.kind != NetdevKind::Loopback);
    netdevs.flat_map(|netdev| &netdev.addresses).next().unwrap().0
}

pub fn facts() -> NodeFacts {
    NodeFacts {
        hostname: "h".into(),
        arch: "x86_64".into(),
        pid: 1,
        guardian: 1,
        uid: 0,
        addresses: vec![],
        ssh_address: None,
        gpus: 0,
        machine: String::new(),
    }
}

/// Asserts that a text equals `launcher/goldens/NAME.txt`. With `UPDATE_GOLDENS=1` the text is written to
/// that file instead; review the changes before you commit them.
pub fn is_golden(name: &str, printed: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../goldens");
    let path = path.join(format!("{name}.txt"));
    if std::env::var_os("UPDATE_GOLDENS").is_some_and(|value| value == "1") {
        std::fs::write(&path, printed).unwrap();
        return;
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(printed, golden, "{name}; UPDATE_GOLDENS=1 updates the file");
}

/// Returns three machines of one kind, with a cable and a separate subnet between any two.
pub fn triangle() -> [Inventory; 3] {
    let titanic = inventory("spark");
    let readdressed = |first: [u8; 4], second: [u8; 4]| {
        let mut node = titanic.clone();
        let renamed = |address: IpAddr| match address {
            IpAddr::V4(v4) if v4.octets()[..3] == [192, 168, 100] => IpAddr::from(first),
            IpAddr::V4(v4) if v4.octets()[..3] == [192, 168, 101] => IpAddr::from(second),
            address => address,
        };
        node.netdevs.iter_mut().flat_map(|n| &mut n.addresses).for_each(|a| a.0 = renamed(a.0));
        for gid in node.rdma.iter_mut().flat_map(|d| &mut d.ports).flat_map(|p| &mut p.gids) {
            if let IpAddr::V4(v4) = renamed(gid.ip()) {
                gid.value = v4.to_ipv6_mapped();
            }
        }
        node.routes.clear();
        node
    };
    let iceberg = readdressed([192, 168, 100, 3], [192, 168, 102, 2]);
    let carpathia = readdressed([192, 168, 102, 3], [192, 168, 101, 3]);
    [titanic, iceberg, carpathia]
}

/// Returns the two machines of `examples/guides/connectx3`, which differ only in their addresses.
pub fn pair() -> [Inventory; 2] {
    let pc1 = inventory("connectx3");
    let mut pc2 = pc1.clone();
    for address in pc2.netdevs.iter_mut().flat_map(|netdev| &mut netdev.addresses) {
        address.0 = match address.0 {
            IpAddr::V4(v4) if !v4.is_loopback() => IpAddr::from((u32::from(v4) + 1).to_be_bytes()),
            address => address,
        };
    }
    [pc1, pc2]
}

/// Returns the inventory of the machine recorded in `worker/fixtures/NAME.tree`. The agent's tests keep the
/// inventory in `NAME.json` beside it.
pub fn inventory(name: &str) -> Inventory {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../worker/fixtures");
    let text = std::fs::read(fixtures.join(name).with_extension("json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}

/// Job whose mesh is proved, with faults on chosen paths.
pub struct MeshJob {
    pub machines: Vec<Inventory>,
    pub ranks: usize,
    pub plan: Plan,
    pub mesh: Mesh,
}

impl MeshJob {
    pub fn on(machines: Vec<Inventory>, ranks: usize) -> MeshJob {
        let plan = Plan::new(&machines, &PortOptions::default());
        MeshJob { machines, ranks, plan, mesh: Mesh::default() }
    }

    pub fn table(&self) -> RankTable {
        table_of(&self.machines, self.ranks, &self.plan)
    }

    /// Runs rounds until no path is left to prove; returns the resulting table. A path fails in the step that
    /// `fault` returns for it.
    pub fn prove(
        &mut self,
        mode: MeshMode,
        fault: impl Fn(&Proof) -> Option<ProofStep>,
    ) -> RankTable {
        loop {
            let table = self.table();
            let todo = self.mesh.unproved(paths::wanted(&table, mode));
            if todo.is_empty() {
                return table;
            }
            let from = self.mesh.results.len();
            self.mesh.rounds += 1;
            for proof in todo {
                let (id, outcome) = (self.mesh.next_id(), outcome_of(&proof, fault(&proof)));
                self.mesh.results.push(ProofResult { id, proof, outcome });
            }
            self.mesh.apply_remedies(&mut self.plan, &table, from);
        }
    }
}

fn outcome_of(proof: &Proof, step: Option<ProofStep>) -> ProofOutcome {
    let Some(step) = step else {
        return ProofOutcome::Up(PathProof {
            mtu: proof.mtu,
            round_trip_ns: 41_000,
            write_mbps: None,
        });
    };
    let cause = "transport retry counter exceeded (status 12)".to_owned();
    let fault = PathFault { step, cause, hint: None, awaited_peer: false };
    ProofOutcome::Failed(Failure { node: proof.to.node, fault, other: None })
}

/// Makes a job of a line of words, with the few options that tests of running jobs need.
pub fn job(line: &str) -> JobSpec {
    let identity = Identity {
        id: JobId(7),
        name: JobName::from_bits(7),
        secret: Secret::from_bytes([7; 32]),
        token: Token([7; 16]),
    };
    let programs: Vec<Vec<&str>> =
        line.split(" : ").map(|program| program.split(' ').collect()).collect();
    let app = || AppSpec::new(Vec::new(), WorkingDir::SameAsLauncher("/".into()));
    let mut job = JobSpec::new(identity, Vec::new(), app());
    job.apps = programs.iter().map(|_| app()).collect();
    let mut after: Vec<Vec<String>> = vec![Vec::new(); programs.len()];
    for (index, words) in programs.iter().enumerate() {
        let mut words = words.iter().copied();
        let app = &mut job.apps[index];
        while let Some(word) = words.next() {
            let seconds =
                |word: Option<&str>| Duration::from_secs_f64(word.unwrap().parse().unwrap());
            match word {
                "-H" => {
                    let hosts = crate::hosts::parse(&[words.next().unwrap().to_owned()]).unwrap();
                    match index {
                        0 => job.hosts = hosts,
                        _ => app.hosts = Some(hosts),
                    }
                }
                "-np" => app.ranks = Some(words.next().unwrap().parse().unwrap()),
                "--name" => app.name = words.next().map(str::to_owned),
                "--after" => {
                    after[index].extend(words.next().unwrap().split(',').map(str::to_owned));
                }
                "--timeout" => job.timeout = Some(seconds(words.next())),
                "--kill-after" => job.kill_after = seconds(words.next()),
                "--serve" => job.serve = true,
                "--continue-on-error" => job.continue_on_error = true,
                "--abort-on-link-down" => job.options.mesh.abort_on_link_down = true,
                "--singleton" => {
                    assert_eq!(words.next(), Some("warn"));
                    job.singleton = SingletonPolicy::Warn;
                }
                program => app.argv = vec![program.into()],
            }
        }
        assert!(app.argv.iter().all(|word| !word.to_string_lossy().starts_with('-')), "{line}");
    }
    let names: Vec<Option<String>> = job.apps.iter().map(|app| app.name.clone()).collect();
    for (index, (app, after)) in job.apps.iter_mut().zip(after).enumerate() {
        let title = AppTitle::new(index, app.name.as_deref(), &app.argv);
        app.after = crate::job::apps::after::parse(&after, &names, &title).unwrap();
    }
    job
}
