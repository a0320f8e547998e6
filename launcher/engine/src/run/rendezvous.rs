//! The rendezvous: agents join a tree, the mesh is proved, and every node receives the rank table.
//!
//! ```text
//! every node is sent its parent ─▶ each reports its edge ─▶ RDMA paths are proved
//!     ─▶ the root is sent the rank table ─▶ the root reports that every node has it
//! ```
//!
//! If two neighbours in the tree cannot connect to each other, the launcher relays their messages, from
//! here on to the end of the job.

mod mesh_proof;

use crate::run::inventory_check;
use crate::run::job_run::JobRun;
use crate::run::nodes::{Agents, HelperUpload, Node, Prepared, PreparedNode};
use crate::run::pump::{self, AgentMessage, Pump};
use mesh_proof::{offer_prover, prove};
use rlaunch_bootstrap::id::{NodeId, Rank};
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::job::NodeFacts;
use rlaunch_bootstrap::protocol::control::{FromAgent, ToAgent};
use rlaunch_bootstrap::protocol::mesh::{PathOutcome, RoundCost};
use rlaunch_bootstrap::rank_table::{RankLayout, RankTable};
use rlaunch_bootstrap::rendezvous::Time;
use rlaunch_bootstrap::rendezvous::coordinator::{
    Coordinator, CoordinatorInput, CoordinatorOutput, JOIN_TIMEOUT,
};
use rlaunch_bootstrap::rendezvous::oob::{EdgeAttempt, EdgeFailure, EdgeReport, ParentPeer};
use rlaunch_bootstrap::rendezvous::shape::TreeShape;
use rlaunch_console::deadline::Deadline;
use rlaunch_console::messages;
use rlaunch_console::progress::Progress;
use rlaunch_plan::env::ReservedPorts;
use rlaunch_plan::env::horovod::GlooStore;
use rlaunch_plan::env::nccl::Fabric;
use rlaunch_plan::findings::{self, id};
use rlaunch_plan::hosts::addresses;
use rlaunch_plan::job::JobSpec;
use rlaunch_plan::job::apps::JobAddresses;
use rlaunch_plan::map::RankMap;
use rlaunch_plan::mesh::{self, Mesh};
use rlaunch_plan::options::JobView;
use rlaunch_plan::rank_config::{self, RankConfig};
use rlaunch_plan::selection::Plan;
use rlaunch_plan::{rdma_check, table};
use rlaunch_text::exit::Exit;
use rlaunch_text::firewall;
use rlaunch_text::message::Failed;
use rlaunch_text::text;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Maximum number of edges of the tree that are described one by one; the rest are only counted.
const MAX_LINES: usize = 8;
/// Time that a node may take for the library for ranks, a few megabytes.
const LIBRARY_TIME: Duration = Duration::from_secs(20);

/// Nodes that have joined the tree and have the rank table.
pub(crate) struct Joined {
    pub map: RankMap,
    pub nodes: Vec<Node>,
    /// Inventories by node.
    pub inventories: Vec<Inventory>,
    pub relay: Relay,
    pub addresses: JobAddresses,
    /// Port at which each node's agent serves Horovod's store, by node; empty if there is no store.
    pub horovod: Vec<u16>,
    pub table: RankTable,
    pub mesh: Mesh,
    /// Configuration of ranks, by node and local rank.
    pub(crate) rank_configs: Vec<Vec<RankConfig>>,
    /// Directory of the library for ranks, by node.
    pub libraries: Vec<Option<PathBuf>>,
}

/// State of the tree by which the launcher decides which messages it relays between neighbours.
pub(crate) struct Relay {
    coordinator: Coordinator,
    since: Instant,
}

impl Relay {
    pub(super) fn new(shape: TreeShape) -> Relay {
        Relay { coordinator: Coordinator::new(shape, Time(0)), since: pump::now() }
    }

    fn now(&self) -> Time {
        let passed = pump::now().saturating_duration_since(self.since);
        Time(u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Tells whether bytes from node `from` may be relayed to node `to`: only if the two are neighbours in
    /// the tree.
    pub(crate) fn may_relay(&mut self, from: NodeId, to: NodeId) -> bool {
        let handled = self.coordinator.handle(CoordinatorInput::Relay { from, to });
        while self.coordinator.poll_output().is_some() {}
        handled.inspect_err(|violation| tracing::error!("{violation}")).is_ok()
    }

    /// Records that the edge between `node` and `peer` broke while the job runs. Returns its ends, parent
    /// first, or `None` if the edge was relayed already.
    pub(super) fn broke(&mut self, node: NodeId, peer: NodeId) -> Option<(NodeId, NodeId)> {
        if let Err(violation) = self.coordinator.handle(CoordinatorInput::Broke { node, peer }) {
            tracing::error!("{violation}");
        }
        let mut ends = None;
        while let Some(output) = self.coordinator.poll_output() {
            if let CoordinatorOutput::Relayed { parent, child, .. } = output {
                ends = Some((parent, child));
            }
        }
        ends
    }
}

impl Prepared {
    /// Waits until every node has joined the tree, proves the mesh, and distributes the rank table.
    pub(crate) async fn join(self, job: &JobRun, pump: &mut Pump<'_>) -> Result<Joined, Failed> {
        let options = &job.spec.options;
        let shape = job.spec.shape(self.nodes.len());
        let mut plan = Plan::new(&self.inventories, &options.ports);
        let is_library_sent = self.answers.iter().any(PreparedNode::lacks_library);
        let limit = join_limit(job.spec.node_timeout(), is_library_sent);
        let mut state = JoinState::new(&self.nodes, shape, limit);
        if mesh::is_wanted(options, &plan) {
            let given = job.reach.agent.as_deref();
            state.prover = offer_prover(&pump.agents, &self.nodes, given, &plan, &options.mesh)?;
        }
        self.send_parents(&pump.agents, shape);
        if job.spec.dry_run.is_none() {
            self.send_libraries(&pump.agents);
        }
        // The nodes are connecting to each other meanwhile.
        let hosts = self.nodes.iter().zip(&self.inventories);
        let checked: Vec<_> = hosts.map(|(node, i)| (&node.host, i, node.facts.uid)).collect();
        inventory_check::print_quick(job, &checked, &plan);
        state.await_edges(pump).await?;
        print_odd_edges(&self.nodes, shape, &state.edges);

        let addresses = addresses(shape, &state.edges, &self.answers);
        let inputs = PlanInputs { job: &job.spec, prepared: &self, addresses: &addresses };
        let network = inputs.fabric(&plan).network;
        let choices = job.spec.user_choices();
        let told = rdma_check::check(&choices, &self.map, &self.inventories, &plan, &network)?;
        messages::print(&told);
        rank_config::log_crowded(&self.map, &self.inventories);
        let (mesh, planned) = state.prove(pump, &inputs, &mut plan).await?;
        let RankPlan { table, rank_configs, horovod } = planned;
        messages::print(&mesh.conclude(&table, options.transport, options.mesh.mode)?);
        state.distribute(pump, &table, self.map.first_ranks().to_vec()).await?;
        let hosts = self.nodes.iter().zip(&addresses);
        let used: Vec<String> = hosts.map(|(node, a)| format!("{} {a}", node.host)).collect();
        tracing::info!("out-of-band addresses: {}", text::list(&used));
        let relay = state.relay;
        let addresses = JobAddresses {
            master: (addresses[0], ReservedPorts::master(&self.ports)),
            ports: ReservedPorts::named(options, &self.map, &self.ports),
        };
        let Prepared { map, nodes, answers, inventories, .. } = self;
        let path = |own: PreparedNode| own.library.map(|library| library.path);
        let libraries = answers.into_iter().map(path).collect();
        Ok(Joined {
            map,
            nodes,
            inventories,
            relay,
            addresses,
            horovod,
            table,
            mesh,
            rank_configs,
            libraries,
        })
    }

    /// Sends every node the addresses of its parent in the tree.
    fn send_parents(&self, agents: &Agents, shape: TreeShape) {
        for (node, own) in self.nodes.iter().zip(&self.answers) {
            let peer = |parent: NodeId| {
                let PreparedNode { candidates, listeners, .. } = &self.answers[parent.index()];
                let pairs = addresses::pairs(&own.candidates, candidates, listeners);
                ParentPeer { node: parent, pairs }
            };
            let parent = shape.parent(node.id).map(peer);
            agents.queue_command(node.id, &ToAgent::Join { parent });
        }
    }
}

/// Prints a line for each edge of the tree that is relayed or does not use the preferred addresses.
fn print_odd_edges(nodes: &[Node], shape: TreeShape, edges: &BTreeMap<NodeId, EdgeReport>) {
    let host = |node: NodeId| nodes[node.index()].host.to_string();
    let mut lines = Vec::new();
    for (&child, edge) in edges {
        let Some(parent) = shape.parent(child) else { continue };
        lines.extend(describe(&host(child), &host(parent), edge));
    }
    for (line, hint) in lines.iter().take(MAX_LINES) {
        messages::info(line);
        if let Some(hint) = hint {
            messages::hint(hint);
        }
    }
    if lines.len() > MAX_LINES {
        messages::info(&format!("and {} more pairs of hosts", lines.len() - MAX_LINES));
    }
}

/// Makes the warning about a node that could not store the library for its ranks.
pub(crate) fn no_library(host: &str, cause: &str) -> String {
    format!("{host}: ranks have no library to link or import: {cause}")
}

/// Facts about job and nodes from which the configuration of ranks is computed. They are complete once every
/// node has joined the tree.
struct PlanInputs<'a> {
    job: &'a JobSpec,
    prepared: &'a Prepared,
    addresses: &'a [IpAddr],
}

impl<'a> PlanInputs<'a> {
    fn fabric(&'a self, plan: &'a Plan) -> Fabric<'a> {
        let Prepared { map, inventories, .. } = self.prepared;
        Fabric::new(map, inventories, plan, &self.job.options)
    }

    /// Computes the rank table and the configuration of each rank from a choice of NICs.
    fn rank_plan(&self, plan: &Plan) -> Result<RankPlan, Failed> {
        let PlanInputs { job, prepared, addresses } = *self;
        let Prepared { map, nodes, inventories, ports, .. } = prepared;
        let seen = JobView { id: job.id, map, inventories, plan, addresses };
        let rank_configs =
            rank_config::decide(&job.user_choices(), &seen, &self.fabric(plan), ports)?;
        let facts: Vec<&NodeFacts> = nodes.iter().map(|node| &node.facts).collect();
        let table = table::build(&job.options, &seen, &facts, &rank_configs)
            .map_err(|error| Failed::from_error(Exit::BUG, &error))?;
        let horovod = GlooStore::new(&job.options, &seen, ports);
        let horovod = horovod.map(|store| store.ports).unwrap_or_default();
        Ok(RankPlan { table, rank_configs, horovod })
    }
}

/// Rank table and configuration of ranks, which depend on the choice of NICs.
struct RankPlan {
    pub table: RankTable,
    /// Configuration of ranks, by node and local rank.
    pub(crate) rank_configs: Vec<Vec<RankConfig>>,
    /// Port at which each node's agent serves Horovod's store, by node; empty if there is no store.
    pub horovod: Vec<u16>,
}

/// Results that nodes have reported for one round of proofs.
type ProofAnswers = BTreeMap<NodeId, (Vec<PathOutcome>, RoundCost)>;

/// State of the rendezvous, which changes with the reports of nodes.
struct JoinState<'a> {
    nodes: &'a [Node],
    relay: Relay,
    /// Report of each child about the edge to its parent, by child.
    edges: BTreeMap<NodeId, EdgeReport>,
    progress: Progress,
    table_everywhere: bool,
    /// Nodes whose lack of the library was reported.
    without_library: BTreeSet<NodeId>,
    /// Prover that is sent to nodes on request; `None` if the job has no mesh to prove.
    prover: Option<HelperUpload>,
    /// Number of the current round of proofs.
    round: u32,
    /// Results reported for the current round.
    proof_answers: ProofAnswers,
    /// Time that nodes have to join, and then to pass on the rank table.
    limit: Duration,
}

impl<'a> JoinState<'a> {
    fn new(nodes: &'a [Node], shape: TreeShape, limit: Duration) -> JoinState<'a> {
        JoinState {
            nodes,
            relay: Relay::new(shape),
            edges: BTreeMap::new(),
            progress: Progress::new(nodes.iter().map(|node| node.host.to_string()), "joining"),
            table_everywhere: false,
            without_library: BTreeSet::new(),
            prover: None,
            round: 0,
            proof_answers: BTreeMap::new(),
            limit,
        }
    }

    /// Waits until every node but the root has reported the edge to its parent.
    async fn await_edges(&mut self, pump: &mut Pump<'_>) -> Result<(), Failed> {
        self.progress.done(&pump.host(NodeId(0)));
        let (progress, count) = (self.progress.clone(), self.nodes.len());
        let joining = self.handle_until(pump, |state| state.edges.len() + 1 == count);
        progress.report_while(joining).await
    }

    /// Handles messages until `done` returns true. Returns an error if the attempt must end, or if the time limit of
    /// the current step expires.
    async fn handle_until(
        &mut self,
        pump: &mut Pump<'_>,
        done: impl Fn(&JoinState<'a>) -> bool,
    ) -> Result<(), Failed> {
        let mut deadline = Deadline::after(self.limit);
        if self.handle_until_deadline(pump, &mut deadline, done).await? {
            Ok(())
        } else {
            Err(self.too_late(pump))
        }
    }

    /// Handles messages until `done` returns true or the deadline expires. Returns false if the deadline
    /// expired.
    async fn handle_until_deadline(
        &mut self,
        pump: &mut Pump<'_>,
        deadline: &mut Deadline,
        done: impl Fn(&JoinState<'a>) -> bool,
    ) -> Result<bool, Failed> {
        while !done(self) {
            match pump.next_message(deadline).await? {
                Some(message) => self.on_message(pump, message)?,
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Proves the paths between the ports of `plan`, if the job has a mesh to prove. Returns the results, and
    /// the configuration of ranks that follows from them.
    async fn prove(
        &mut self,
        pump: &mut Pump<'_>,
        inputs: &PlanInputs<'_>,
        plan: &mut Plan,
    ) -> Result<(Mesh, RankPlan), Failed> {
        let Some(prover) = &self.prover else {
            return Ok((Mesh::default(), inputs.rank_plan(plan)?));
        };
        prover.log_sent("RDMA prover");
        let rank_plan = |plan: &Plan| inputs.rank_plan(plan);
        prove(pump, self, &inputs.job.options.mesh, plan, rank_plan).await
    }

    /// Collects the results of all nodes for a round of proofs. Nodes that do not report before the deadline
    /// are missing from the result.
    async fn await_proofs(
        &mut self,
        pump: &mut Pump<'_>,
        round: u32,
        deadline: &mut Deadline,
    ) -> Result<ProofAnswers, Failed> {
        self.round = round;
        self.proof_answers.clear();
        let count = self.nodes.len();
        self.handle_until_deadline(pump, deadline, |state| state.proof_answers.len() == count)
            .await?;
        Ok(std::mem::take(&mut self.proof_answers))
    }

    /// Sends the rank table to the root of the tree, and waits until every node has it.
    async fn distribute(
        &mut self,
        pump: &mut Pump<'_>,
        table: &RankTable,
        first_ranks: Vec<Rank>,
    ) -> Result<(), Failed> {
        let bug = |error: &dyn std::fmt::Display| {
            Failed::new(Exit::BUG, format!("cannot write the table: {error}"))
        };
        let json = serde_json::to_vec(table).map_err(|error| bug(&error))?;
        let layout = RankLayout::new(table, first_ranks);
        let message = layout.encode_message(&json).map_err(|error| bug(&error))?;
        let now = self.relay.now();
        self.relay.coordinator.begin_table(now);
        let root = pump.agents.outbox(NodeId(0));
        root.try_queue_message(&ToAgent::Table(message)).map_err(|error| {
            Failed::new(Exit::RENDEZVOUS, format!("the rank table does not fit a frame: {error}"))
        })?;
        self.handle_until(pump, |state| state.table_everywhere).await
    }

    fn on_message(
        &mut self,
        pump: &Pump<'_>,
        AgentMessage { node, message, room }: AgentMessage,
    ) -> Result<(), Failed> {
        let input = match message {
            FromAgent::Edge(edge) => {
                self.progress.done(&pump.host(node));
                let relayed = edge.edge.is_none();
                self.edges.insert(node, edge);
                CoordinatorInput::Joined { node, relayed }
            }
            FromAgent::TableEverywhere => {
                self.table_everywhere = true;
                CoordinatorInput::TableEverywhere { node }
            }
            FromAgent::Relay { to, data } => {
                if self.relay.may_relay(node, to) {
                    pump.agents.relay((node, to), data, room);
                }
                return Ok(());
            }
            FromAgent::NeedsHelper(_) => {
                if let Some(prover) = &mut self.prover {
                    prover.send(&pump.agents, &self.nodes[node.index()]);
                }
                return Ok(());
            }
            FromAgent::NoLibrary { cause } => {
                if self.without_library.insert(node) {
                    messages::warn(&no_library(&pump.host(node), &cause));
                }
                return Ok(());
            }
            FromAgent::RoundDone { round, outcomes, cost } => {
                // A result of an earlier round, which came after the deadline of that round, is dropped.
                if round == self.round {
                    self.proof_answers.insert(node, (outcomes, cost));
                }
                return Ok(());
            }
            FromAgent::EdgeBroke { peer, how } => {
                tracing::info!(%node, %peer, how, "edge broke");
                CoordinatorInput::Broke { node, peer }
            }
            // Nothing else concerns the rendezvous.
            _ => return Ok(()),
        };
        let handled = self.relay.coordinator.handle(input);
        while self.relay.coordinator.poll_output().is_some() {}
        handled.map_err(|violation| Failed::from_error(Exit::BUG, &violation))
    }

    fn too_late(&mut self, pump: &Pump<'_>) -> Failed {
        let now = self.relay.now();
        self.relay.coordinator.handle_timeout(now);
        let seconds = self.limit.as_secs();
        let absent: Vec<String> =
            self.relay.coordinator.absent().map(|node| pump.host(node)).collect();
        let message = if absent.is_empty() {
            format!("rendezvous: the rank table did not reach every host in {seconds} s")
        } else {
            format!(
                "rendezvous: {} did not join within {seconds} s (agent started, prepared, \
                 not connected to its neighbour since)",
                text::list(&absent)
            )
        };
        findings::with_finding(Failed::new(Exit::RENDEZVOUS, message), Some(id::NET_PAIR))
    }
}

/// Returns the time that nodes have to join: as long as to say anything at all, and longer if some receive and
/// unpack the library for ranks meanwhile.
fn join_limit(node_timeout: Duration, is_library_sent: bool) -> Duration {
    JOIN_TIMEOUT.max(node_timeout) + if is_library_sent { LIBRARY_TIME } else { Duration::ZERO }
}

/// Returns the addresses by which nodes reach each other, by node.
fn addresses(
    shape: TreeShape,
    edges: &BTreeMap<NodeId, EdgeReport>,
    prepared: &[PreparedNode],
) -> Vec<IpAddr> {
    let known = |node: NodeId| {
        let own = edges.get(&node).and_then(|report| report.edge).map(|(local, _)| local.ip());
        // The root has no parent, so its address is the one to which most of its children connected.
        let dialled = || {
            let dialling = shape.children(node).filter_map(|child| edges.get(&child)?.edge);
            let by_address = text::grouped(dialling.map(|(child, remote)| (remote.ip(), child)));
            // `max_by_key` returns the last of equal elements; `rev` makes that the first.
            let most = by_address.into_iter().rev().max_by_key(|(_, children)| children.len());
            most.map(|(address, _)| address)
        };
        let candidate = prepared[node.index()].candidates.first().map(|c| c.address);
        let alone = IpAddr::from([127, 0, 0, 1]);
        match shape.nodes() {
            1 => alone,
            _ => own.or_else(dialled).or(candidate).unwrap_or(alone),
        }
    };
    (0..shape.nodes()).map(NodeId).map(known).collect()
}

/// Describes an edge that is relayed or does not use the preferred addresses, as a line and a hint. Returns
/// `None` for any other edge.
fn describe(child: &str, parent: &str, report: &EdgeReport) -> Option<(String, Option<String>)> {
    if let Some((local, remote)) = report.edge {
        let EdgeAttempt { outcome, remote: dialled, .. } = report.failed.first()?;
        let (by, not) = (remote.ip(), failed_attempt(child, parent, *dialled, outcome));
        let line = format!("{child} and {parent} connect over {by} and {}: {not}", local.ip());
        return Some((line, None));
    }
    let Some(EdgeAttempt { local, remote, outcome }) = report.failed.first() else {
        let line = format!("{child} and {parent} have no addresses of the same family: ");
        return Some((format!("{line}their messages go through this machine"), None));
    };
    let failure = failed_attempt(child, parent, *remote, outcome);
    let hint = match outcome {
        EdgeFailure::NoReturnPath(listener) => {
            firewall_rule_hint(child, *listener, parent, remote.ip())
        }
        EdgeFailure::Refused | EdgeFailure::NoAnswer => {
            firewall_rule_hint(parent, *remote, child, *local)
        }
        _ => format!("on {child}: ip route get {} from {local}", remote.ip()),
    };
    Some((format!("{failure}: their messages go through this machine"), Some(hint)))
}

/// Describes a failed attempt to connect, as in `b cannot reach a at 10.1.0.1:21007 (no answer)`.
fn failed_attempt(child: &str, parent: &str, remote: SocketAddr, outcome: &EdgeFailure) -> String {
    match outcome {
        EdgeFailure::NoReturnPath(listener) => {
            format!("{parent} cannot reach {child} at {listener} (no answer)")
        }
        outcome => format!("{child} cannot reach {parent} at {remote} ({outcome})"),
    }
}

/// Returns a hint with a firewall rule that lets host `peer`, at address `from`, connect to address `at` of
/// host `on`.
fn firewall_rule_hint(on: &str, at: SocketAddr, peer: &str, from: IpAddr) -> String {
    let line = firewall::admission(Some(&from.to_string()), "tcp", (at.port(), at.port()));
    format!(
        "on {on}, let {peer} in: {line} (or all of --port-range); `rlaunch doctor -H {on},{peer}` \
         looks for the rule that drops it"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_bootstrap::job::library::NodeLibrary;

    fn report(edge: Option<(&str, &str)>, failed: &[EdgeFailure]) -> EdgeReport {
        let attempt = |outcome: &EdgeFailure| EdgeAttempt {
            local: "10.1.0.2".parse().unwrap(),
            remote: "10.1.0.1:21007".parse().unwrap(),
            outcome: outcome.clone(),
        };
        EdgeReport {
            edge: edge.map(|(local, remote)| (local.parse().unwrap(), remote.parse().unwrap())),
            failed: failed.iter().map(attempt).collect(),
        }
    }

    fn described(report: &EdgeReport) -> (String, Option<String>) {
        describe("b", "a", report).unwrap()
    }

    #[test]
    fn a_node_that_receives_the_library_has_longer_to_join() {
        let node = |library: Option<bool>| PreparedNode {
            library: library.map(|is_present| NodeLibrary { path: "/library".into(), is_present }),
            ..PreparedNode::default()
        };
        let limit = |seconds, libraries: &[_]| {
            let is_sent = libraries.iter().any(|library| node(*library).lacks_library());
            join_limit(Duration::from_secs(seconds), is_sent).as_secs()
        };
        assert_eq!(limit(6, &[None, Some(true)]), 8);
        assert_eq!(limit(6, &[Some(true), Some(false)]), 28);
        assert_eq!(limit(60, &[None]), 60);
    }

    #[test]
    fn an_edge_as_it_should_be_is_not_mentioned() {
        let edge = report(Some(("10.1.0.2:4711", "10.1.0.1:21007")), &[]);
        assert_eq!(describe("b", "a", &edge), None);
    }

    #[test]
    fn another_way_is_said() {
        let edge = report(Some(("10.2.0.2:4711", "10.2.0.1:21008")), &[EdgeFailure::NoAnswer]);
        let (line, hint) = described(&edge);
        let expected = "b and a connect over 10.2.0.1 and 10.2.0.2: \
                        b cannot reach a at 10.1.0.1:21007 (no answer)";
        assert_eq!((line.as_str(), hint), (expected, None));
    }

    #[test]
    fn a_relay_is_said_with_what_would_end_it() {
        let (line, hint) = described(&report(None, &[EdgeFailure::Refused]));
        let way = "b cannot reach a at 10.1.0.1:21007 (refused)";
        assert_eq!(line, format!("{way}: their messages go through this machine"));
        let hint = hint.unwrap();
        assert!(hint.starts_with("on a, let b in: nft insert rule inet filter input ip saddr 10.1.0.2 tcp dport 21007 accept"));
        assert!(hint.contains("`rlaunch doctor -H a,b` looks for"), "{hint}");
        let back = EdgeFailure::NoReturnPath("10.1.0.2:21009".parse().unwrap());
        let (line, hint) = described(&report(None, &[back]));
        assert!(line.starts_with("a cannot reach b at 10.1.0.2:21009 (no answer)"), "{line}");
        assert!(hint.unwrap().starts_with("on b, let a in"));
    }

    #[test]
    fn the_root_is_known_by_what_its_children_dialled() {
        let edge = |local: &str, remote: &str| report(Some((local, remote)), &[]);
        let edges = BTreeMap::from([
            (NodeId(1), edge("10.1.0.2:1", "10.1.0.1:1")),
            (NodeId(2), edge("10.2.0.3:1", "10.2.0.1:1")),
            (NodeId(3), edge("10.2.0.4:1", "10.2.0.1:1")),
        ]);
        let prepared = vec![PreparedNode::default(); 4];
        let found = addresses(TreeShape::new(4, 3), &edges, &prepared);
        let expected = ["10.2.0.1", "10.1.0.2", "10.2.0.3", "10.2.0.4"];
        assert_eq!(found, expected.map(|a| a.parse::<IpAddr>().unwrap()));
    }
}
