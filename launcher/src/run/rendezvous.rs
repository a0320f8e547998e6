//! Between the preparation of all nodes and the start of their ranks: the tree of agents comes
//! about, and the rank table goes to everybody.

use crate::connect::outbox::Reserved;
use crate::hosts::addresses;
use crate::job::JobSpec;
use crate::plan::held_ports::Held;
use crate::plan::horovod::Meeting;
use crate::plan::map::RankMap;
use crate::plan::mesh::{self, Mesh};
use crate::plan::nccl::Fabric;
use crate::plan::rdma_check;
use crate::plan::selection::Plan;
use crate::plan::setup::{self, Seen, Setup};
use crate::plan::table;
use crate::run::crew::{Crew, Prepared};
use crate::run::mesh::{Offer, prove};
use crate::run::session::{Event, What};
use rlaunch_bootstrap::id::NodeId;
use rlaunch_bootstrap::job::NodeFacts;
use rlaunch_bootstrap::job::library::NodeLibrary;
use rlaunch_bootstrap::protocol::control::{FromAgent, ToAgent};
use rlaunch_bootstrap::protocol::mesh::{PathOutcome, RoundCost};
use rlaunch_bootstrap::rank_table::RankTable;
use rlaunch_bootstrap::rendezvous::Time;
use rlaunch_bootstrap::rendezvous::coordinator::{
    Coordinator, CoordinatorInput, CoordinatorOutput,
};
use rlaunch_bootstrap::rendezvous::oob::{EdgeAttempt, EdgeFailure, EdgeReport, ParentPeer};
use rlaunch_bootstrap::rendezvous::shape::TreeShape;
use rlaunch_console::deadline::Deadline;
use rlaunch_console::exit::Exit;
use rlaunch_console::messages::{self, Failed};
use rlaunch_console::progress::Progress;
use rlaunch_console::text;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Lines about edges that are not as they should be; the others are counted.
const MOST_LINES: usize = 8;

/// What the rendezvous led to.
pub(crate) struct Joined {
    /// Goes on to say which nodes are relayed.
    pub(crate) relay: Relay,
    /// Where rank 0 listens.
    pub(crate) master: (IpAddr, u16),
    /// Each node's port of the door to Horovod's store; none where it is not served.
    pub(crate) horovod: Vec<u16>,
    pub(crate) table: RankTable,
    pub(crate) mesh: Mesh,
    /// By node and local rank.
    pub(crate) setups: Vec<Vec<Setup>>,
    /// By node: the directory of the library for its ranks.
    pub(crate) libraries: Vec<Option<PathBuf>>,
}

/// Carries what neighbours in the tree cannot say to each other directly.
pub(crate) struct Relay {
    server: Coordinator,
    since: Instant,
}

impl Relay {
    fn new(shape: TreeShape) -> Relay {
        Relay { server: Coordinator::new(shape, Time(0)), since: Instant::now() }
    }

    fn now(&self) -> Time {
        Time(u64::try_from(self.since.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Passes bytes on, if these two are neighbours.
    pub(crate) fn carry(
        &mut self,
        crew: &Crew,
        (from, to): (NodeId, NodeId),
        data: Vec<u8>,
        room: Option<Reserved>,
    ) {
        match self.server.handle(CoordinatorInput::Relay { from, to }) {
            Ok(()) => {
                crew.nodes[to.index()].commands.pass_on(&ToAgent::Relay { from, data }, room);
            }
            Err(violation) => tracing::error!("{violation}"),
        }
        while self.server.poll_output().is_some() {}
    }

    /// An edge broke in mid-job. Returns its ends, parent first, when that is news.
    pub(crate) fn broke(&mut self, node: NodeId, peer: NodeId) -> Option<(NodeId, NodeId)> {
        if let Err(violation) = self.server.handle(CoordinatorInput::Broke { node, peer }) {
            tracing::error!("{violation}");
        }
        let mut ends = None;
        while let Some(output) = self.server.poll_output() {
            if let CoordinatorOutput::Relayed { parent, child, .. } = output {
                ends = Some((parent, child));
            }
        }
        ends
    }
}

impl Crew {
    /// Has every node join the tree, and hands out the rank table.
    pub(crate) async fn join(
        &mut self,
        job: &JobSpec,
        map: &RankMap,
        prepared: &Prepared,
    ) -> Result<Joined, Failed> {
        let shape = job.shape(self.nodes.len());
        let mut plan = Plan::of(&prepared.inventories, &job.options.ports);
        let mut gathering = Gathering::of(self, shape);
        if mesh::is_wanted(&job.options, &plan) {
            let given = job.reach.agent.as_deref();
            gathering.offer = Offer::make(self, given, &plan, &job.options.mesh)?;
        }
        self.call_together(shape, prepared);
        if job.dry_run.is_none() {
            self.send_libraries(prepared);
        }
        gathering.progress.done(&self.host(NodeId(0)));
        let progress = gathering.progress.clone();
        progress
            .report_while(gathering.until(self, |g| g.edges.len() + 1 == shape.nodes() as usize))
            .await?;
        self.say_what_is_odd(shape, &gathering.edges);

        let addresses = addresses(shape, &gathering.edges, prepared);
        let facts: Vec<NodeFacts> = self.nodes.iter().map(|node| node.facts.clone()).collect();
        let known = Known { job, map, prepared, addresses: &addresses, facts: &facts };
        let network = known.fabric(&plan).network;
        rdma_check::check(&job.wishes(), map, &prepared.inventories, &plan, &network)?;
        setup::log_crowded(map, &prepared.inventories);
        let (mesh, decided) = gathering.prove(self, &known, &mut plan).await?;
        let Decided { table, setups, horovod } = decided;
        mesh.conclude(&table, job.options.transport, job.options.mesh.mode)?;
        gathering.hand_out(self, &table).await?;
        let hosts = self.nodes.iter().zip(&addresses);
        let used: Vec<String> = hosts.map(|(node, a)| format!("{} {a}", node.host)).collect();
        tracing::info!("out-of-band addresses: {}", text::list(&used));
        let master = (addresses[0], Held::master(&prepared.ports));
        let path = |place: &Option<NodeLibrary>| place.as_ref().map(|place| place.path.clone());
        let libraries = prepared.libraries.iter().map(path).collect();
        Ok(Joined { relay: gathering.relay, master, horovod, table, mesh, setups, libraries })
    }

    /// Tells every node where its parent in the tree is.
    fn call_together(&self, shape: TreeShape, prepared: &Prepared) {
        for node in &self.nodes {
            let pairs = |parent: NodeId| ParentPeer {
                node: parent,
                pairs: addresses::pairs(
                    &prepared.candidates[node.id.index()],
                    &prepared.candidates[parent.index()],
                    &prepared.listeners[parent.index()],
                ),
            };
            let parent = shape.parent(node.id).map(pairs);
            node.commands.tell(&ToAgent::Join { parent });
        }
    }

    /// One line for each edge that goes another way than it should, or through here.
    fn say_what_is_odd(&self, shape: TreeShape, edges: &BTreeMap<NodeId, EdgeReport>) {
        let mut lines = Vec::new();
        for (&child, edge) in edges {
            let Some(parent) = shape.parent(child) else { continue };
            let (child, parent) = (self.host(child), self.host(parent));
            lines.extend(describe(&child, &parent, edge));
        }
        for (line, hint) in lines.iter().take(MOST_LINES) {
            messages::info(line);
            if let Some(hint) = hint {
                messages::hint(hint);
            }
        }
        if lines.len() > MOST_LINES {
            messages::info(&format!("and {} more pairs of hosts", lines.len() - MOST_LINES));
        }
    }
}

/// What is known once every node has joined.
struct Known<'a> {
    job: &'a JobSpec,
    map: &'a RankMap,
    prepared: &'a Prepared,
    addresses: &'a [IpAddr],
    facts: &'a [NodeFacts],
}

impl<'a> Known<'a> {
    fn fabric(&'a self, plan: &'a Plan) -> Fabric<'a> {
        Fabric::of(self.map, &self.prepared.inventories, plan, &self.job.options)
    }

    /// The rank table and what each rank is given, as they follow from a plan.
    fn decide(&self, plan: &Plan) -> Result<Decided, Failed> {
        let Known { job, map, prepared, addresses, facts } = *self;
        let inventories = &prepared.inventories;
        let seen = Seen { id: job.id, map, inventories, plan, addresses };
        let setups = setup::decide(&job.wishes(), &seen, &self.fabric(plan), &prepared.ports)?;
        let facts: Vec<&NodeFacts> = facts.iter().collect();
        let table = table::build(&job.options, &seen, &facts, &setups)
            .map_err(|error| Failed::from_error(Exit::BUG, &error))?;
        let horovod = Meeting::of(&job.options, &seen, &prepared.ports);
        let horovod = horovod.map(|meeting| meeting.ports).unwrap_or_default();
        Ok(Decided { table, setups, horovod })
    }
}

/// What follows from a plan.
pub(crate) struct Decided {
    pub(crate) table: RankTable,
    /// By node and local rank.
    pub(crate) setups: Vec<Vec<Setup>>,
    /// Each node's port of the door to Horovod's store; none where it is not served.
    pub(crate) horovod: Vec<u16>,
}

/// What the nodes have answered in a round.
type Answers = BTreeMap<NodeId, (Vec<PathOutcome>, RoundCost)>;

/// Reports as they come in.
pub(crate) struct Gathering {
    relay: Relay,
    /// By child.
    edges: BTreeMap<NodeId, EdgeReport>,
    progress: Progress,
    everywhere: bool,
    /// What proves the mesh, where there is one to prove.
    offer: Option<Offer>,
    /// Of the round of this number.
    answers: (u32, Answers),
}

impl Gathering {
    fn of(crew: &Crew, shape: TreeShape) -> Gathering {
        Gathering {
            relay: Relay::new(shape),
            edges: BTreeMap::new(),
            progress: Progress::new(crew.nodes.iter().map(|n| n.host.to_string()), "joining"),
            everywhere: false,
            offer: None,
            answers: (0, BTreeMap::new()),
        }
    }

    /// Takes part until `done`, at most as long as the server allows.
    async fn until(
        &mut self,
        crew: &mut Crew,
        done: impl Fn(&Gathering) -> bool,
    ) -> Result<(), Failed> {
        let left = self.relay.server.poll_timeout().map(|at| at.since(self.relay.now()));
        let mut deadline = Deadline::after(left.unwrap_or(Duration::ZERO));
        if self.until_at(crew, &mut deadline, done).await? {
            Ok(())
        } else {
            Err(self.too_late(crew))
        }
    }

    /// Takes part until `done`, or until the deadline: whether it is done.
    async fn until_at(
        &mut self,
        crew: &mut Crew,
        deadline: &mut Deadline,
        done: impl Fn(&Gathering) -> bool,
    ) -> Result<bool, Failed> {
        while !done(self) {
            match deadline.run(crew.events.recv()).await {
                Some(Some(event)) => self.on_event(crew, event)?,
                Some(None) => return Err(Failed::new(Exit::BUG, "nobody is there any more")),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Has the nodes prove what the plan wants, where there is anything to prove.
    async fn prove(
        &mut self,
        crew: &mut Crew,
        known: &Known<'_>,
        plan: &mut Plan,
    ) -> Result<(Mesh, Decided), Failed> {
        let Some(offer) = &self.offer else { return Ok((Mesh::default(), known.decide(plan)?)) };
        offer.say();
        let decide = |plan: &Plan| known.decide(plan);
        prove(crew, self, &known.job.options.mesh, plan, decide).await
    }

    /// What every node has answered in a round; whoever is silent until the deadline is left out.
    pub(crate) async fn proved(
        &mut self,
        crew: &mut Crew,
        round: u32,
        deadline: &mut Deadline,
    ) -> Result<Answers, Failed> {
        self.answers = (round, BTreeMap::new());
        let nodes = crew.nodes.len();
        self.until_at(crew, deadline, |gathering| gathering.answers.1.len() == nodes).await?;
        Ok(std::mem::take(&mut self.answers.1))
    }

    /// Gives the table to the root, and waits until everybody has it.
    async fn hand_out(&mut self, crew: &mut Crew, table: &RankTable) -> Result<(), Failed> {
        let text = serde_json::to_vec(table)
            .map_err(|error| Failed::new(Exit::BUG, format!("cannot write the table: {error}")))?;
        let now = self.relay.now();
        self.relay.server.begin_table(now);
        crew.nodes[0].commands.try_tell(&ToAgent::Table(text)).map_err(|error| {
            Failed::new(Exit::RENDEZVOUS, format!("the rank table does not fit a frame: {error}"))
        })?;
        self.until(crew, |gathering| gathering.everywhere).await
    }

    fn on_event(&mut self, crew: &Crew, event: Event) -> Result<(), Failed> {
        let Event { node, what, room } = event;
        let input = match what {
            What::Lost(how) => return Err(crew.lost(node, &how)),
            What::Said(FromAgent::Failed { operation, cause }) => {
                return Err(crew.lost(node, &format!("cannot {operation}: {cause}")));
            }
            What::Said(FromAgent::Edge(edge)) => {
                self.progress.done(&crew.host(node));
                let relayed = edge.edge.is_none();
                self.edges.insert(node, edge);
                CoordinatorInput::Joined { node, relayed }
            }
            What::Said(FromAgent::TableEverywhere) => {
                self.everywhere = true;
                CoordinatorInput::TableEverywhere { node }
            }
            What::Said(FromAgent::Relay { to, data }) => {
                self.relay.carry(crew, (node, to), data, room);
                return Ok(());
            }
            What::Said(FromAgent::NeedsProver) => {
                if let Some(offer) = &mut self.offer {
                    offer.send(crew, node);
                }
                return Ok(());
            }
            What::Said(FromAgent::NoLibrary { cause }) => {
                crew.warn_of_no_library(node, &cause);
                return Ok(());
            }
            What::Said(FromAgent::RoundDone { round, outcomes, cost }) => {
                // An answer that came too late is of no use any more.
                if round == self.answers.0 {
                    self.answers.1.insert(node, (outcomes, cost));
                }
                return Ok(());
            }
            What::Said(FromAgent::EdgeBroke { peer, how }) => {
                tracing::info!(%node, %peer, how, "edge broke");
                CoordinatorInput::Broke { node, peer }
            }
            What::Said(_) | What::Reaped(_) => return Ok(()),
        };
        let handled = self.relay.server.handle(input);
        while self.relay.server.poll_output().is_some() {}
        handled.map_err(|violation| Failed::from_error(Exit::BUG, &violation))
    }

    fn too_late(&mut self, crew: &Crew) -> Failed {
        let now = self.relay.now();
        self.relay.server.handle_timeout(now);
        let seconds = rlaunch_bootstrap::rendezvous::coordinator::JOIN_TIMEOUT.as_secs();
        let absent: Vec<String> = self.relay.server.absent().map(|node| crew.host(node)).collect();
        let message = match absent.is_empty() {
            true => format!("rendezvous: the rank table did not reach every host in {seconds} s"),
            false => format!(
                "rendezvous: {} did not join within {seconds} s (agent started, prepared, \
                 silent since)",
                text::list(&absent)
            ),
        };
        Failed::new(Exit::RENDEZVOUS, message)
    }
}

/// By node: the address by which the others know it.
fn addresses(
    shape: TreeShape,
    edges: &BTreeMap<NodeId, EdgeReport>,
    prepared: &Prepared,
) -> Vec<IpAddr> {
    let known = |node: NodeId| {
        let own = edges.get(&node).and_then(|report| report.edge).map(|(local, _)| local.ip());
        // The root has no parent: the address that most of its children dialled.
        let dialled = || {
            let mut counts: Vec<(IpAddr, u32)> = Vec::new();
            for child in shape.children(node) {
                let Some((_, remote)) = edges.get(&child).and_then(|r| r.edge) else { continue };
                match counts.iter_mut().find(|(address, _)| *address == remote.ip()) {
                    Some((_, count)) => *count += 1,
                    None => counts.push((remote.ip(), 1)),
                }
            }
            // The first of those that are used equally often.
            counts.into_iter().rev().max_by_key(|(_, count)| *count).map(|(address, _)| address)
        };
        let candidate = prepared.candidates[node.index()].first().map(|c| c.address);
        let alone = IpAddr::from([127, 0, 0, 1]);
        match shape.nodes() {
            1 => alone,
            _ => own.or_else(dialled).or(candidate).unwrap_or(alone),
        }
    };
    (0..shape.nodes()).map(NodeId).map(known).collect()
}

/// What the user should know of an edge, and what could be done; nothing when all is well.
fn describe(child: &str, parent: &str, report: &EdgeReport) -> Option<(String, Option<String>)> {
    if let Some((local, remote)) = report.edge {
        let EdgeAttempt { outcome, remote: tried, .. } = report.failed.first()?;
        let (by, not) = (remote.ip(), failed_way(child, parent, *tried, outcome));
        let line = format!("{child} and {parent} meet over {by} and {}: {not}", local.ip());
        return Some((line, None));
    }
    let Some(EdgeAttempt { local, remote, outcome }) = report.failed.first() else {
        let line = format!("{child} and {parent} have no addresses of one kind: ");
        return Some((format!("{line}their messages go through this machine"), None));
    };
    let way = failed_way(child, parent, *remote, outcome);
    let hint = match outcome {
        EdgeFailure::NoReturnPath(listener) => let_in(child, *listener, parent, remote.ip()),
        EdgeFailure::Refused | EdgeFailure::NoAnswer => let_in(parent, *remote, child, *local),
        _ => format!("on {child}: ip route get {} from {local}", remote.ip()),
    };
    Some((format!("{way}: their messages go through this machine"), Some(hint)))
}

/// `b cannot reach a at 10.1.0.1:21007 (no answer)`
fn failed_way(child: &str, parent: &str, remote: SocketAddr, outcome: &EdgeFailure) -> String {
    match outcome {
        EdgeFailure::NoReturnPath(listener) => {
            format!("{parent} cannot reach {child} at {listener} (no answer)")
        }
        outcome => format!("{child} cannot reach {parent} at {remote} ({outcome})"),
    }
}

/// The firewall rule that would help.
fn let_in(on: &str, at: SocketAddr, who: &str, from: IpAddr) -> String {
    let family = if from.is_ipv4() { "ip" } else { "ip6" };
    let port = at.port();
    format!(
        "on {on}, let {who} in: nft insert rule inet filter input {family} saddr {from} \
         tcp dport {port} accept (or all of --port-range)"
    )
}

impl JobSpec {
    /// The shape of the tree over so many nodes.
    pub(crate) fn shape(&self, nodes: usize) -> TreeShape {
        let nodes = u32::try_from(nodes).unwrap_or(u32::MAX);
        self.radix.map_or_else(|| TreeShape::for_nodes(nodes), |radix| TreeShape::new(nodes, radix))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    fn said(report: &EdgeReport) -> (String, Option<String>) {
        describe("b", "a", report).unwrap()
    }

    #[test]
    fn an_edge_as_it_should_be_is_not_mentioned() {
        let edge = report(Some(("10.1.0.2:4711", "10.1.0.1:21007")), &[]);
        assert_eq!(describe("b", "a", &edge), None);
    }

    #[test]
    fn another_way_is_said() {
        let edge = report(Some(("10.2.0.2:4711", "10.2.0.1:21008")), &[EdgeFailure::NoAnswer]);
        let (line, hint) = said(&edge);
        let expected = "b and a meet over 10.2.0.1 and 10.2.0.2: \
                        b cannot reach a at 10.1.0.1:21007 (no answer)";
        assert_eq!((line.as_str(), hint), (expected, None));
    }

    #[test]
    fn a_relay_is_said_with_what_would_end_it() {
        let (line, hint) = said(&report(None, &[EdgeFailure::Refused]));
        let way = "b cannot reach a at 10.1.0.1:21007 (refused)";
        assert_eq!(line, format!("{way}: their messages go through this machine"));
        assert!(hint.unwrap().starts_with("on a, let b in: nft insert rule inet filter input ip saddr 10.1.0.2 tcp dport 21007 accept"));
        let back = EdgeFailure::NoReturnPath("10.1.0.2:21009".parse().unwrap());
        let (line, hint) = said(&report(None, &[back]));
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
        let prepared = Prepared {
            ports: vec![],
            listeners: vec![],
            candidates: vec![vec![]; 4],
            inventories: vec![],
            libraries: vec![],
        };
        let found = addresses(TreeShape::new(4, 3), &edges, &prepared);
        let expected = ["10.2.0.1", "10.1.0.2", "10.2.0.3", "10.2.0.4"];
        assert_eq!(found, expected.map(|a| a.parse::<IpAddr>().unwrap()));
    }
}
