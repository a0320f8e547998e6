//! `rlaunch network`: which interface of a host is cabled to which of another, and addresses for the cables.
//!
//! | file | subject |
//! |---|---|
//! | `agents` | agents of all hosts, which obey orders together |
//! | `standing` | which interfaces are asked, and why others are not |
//! | `links` | links from what was heard; full meshes and rings |
//! | `picture` | links as text and as JSON |
//! | `plan`, `formats` | a subnet for each link; configuration of each host |
//! | `apply` | addresses on trial |
//! | `cabled` | all of it for `rlaunch up`, with addresses that are kept |

mod agents;
mod apply;
pub(super) mod cabled;
mod formats;
mod links;
mod picture;
mod plan;
mod standing;
#[cfg(test)]
pub(super) mod testing;

use crate::cli::args::{ConnectArgs, HostSourceArgs};
use crate::cli::command_line::CommandLine;
use crate::cli::host_selection::HostOptions;
use crate::commands::agent_session;
use crate::commands::changes::ChangingHosts;
use agents::HostAgents;
use cabled::Journaled;
use clap::{Args, Parser, Subcommand};
use formats::{ConfigFormat, SetupFile};
use links::FoundLink;
use picture::Picture;
use plan::{Base, MeshPlan, PlanError, PlanOptions, PlannedEnd};
use rlaunch_bootstrap::inventory::net::NetdevKind;
use rlaunch_bootstrap::protocol::network::{BeaconReport, HostInterface, HostNetwork};
use rlaunch_console::{messages, stdout};
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::text;
use standing::{Standing, Wanted};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// MTU that RDMA packets with 4096 bytes of data need, in bytes, with room for their headers.
const ROCE_MTU: u32 = 4200;

/// Find the cables between hosts, and give them addresses.
#[derive(Debug, Parser)]
#[command(
    subcommand_required = true,
    arg_required_else_help = true,
    disable_help_subcommand = true,
    after_help = "\
Examples:
  rlaunch network discover -H a,b,c              which port is cabled to which
  rlaunch network mesh -H a,b,c                  a netplan file for each host
  rlaunch network mesh -H a,b,c --apply          addresses now, undone if a link does not answer"
)]
pub(crate) struct NetworkCommand {
    #[command(subcommand)]
    verb: NetworkVerb,
}

#[derive(Debug, Subcommand)]
enum NetworkVerb {
    Discover(DiscoverArgs),
    Mesh(MeshSetupArgs),
}

/// Hosts, and which of their interfaces are asked.
#[derive(Debug, Args)]
struct CableArgs {
    #[command(flatten)]
    hosts: HostSourceArgs,

    /// Interfaces, such as eth1 or 'enp1*'; by default all network cards but wireless ones and
    /// those with the default route
    #[arg(long = "if", value_name = "NAME,...", value_delimiter = ',')]
    interfaces: Vec<String>,

    /// Ask every interface, virtual ones and the one that carries SSH included
    #[arg(long)]
    all: bool,

    /// Set interfaces up during the discovery, and give a link-local address to those that have
    /// none (needs root)
    #[arg(long)]
    up: bool,

    /// Time for which all hosts listen, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "0.8", value_parser = parse_seconds)]
    wait: Duration,

    #[command(flatten)]
    connect: ConnectArgs,
}

/// Find out which interface is cabled to which.
///
/// Every host sends datagrams from its network cards to the link-local group of all nodes (IPv6, UDP port 40000), and
/// reports what arrives where. No interface needs an address. Nothing is changed, unless --up is given.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  rlaunch network discover -H a,b,c                      all network cards but uplinks
  rlaunch network discover -H a,b,c --up                 also those that are down
  rlaunch network discover -H a,b --if 'ib*'             some
  rlaunch network discover -H a,b,c --json               for programs

A line for each cable, and why other interfaces have none:
  a enp1s0f0np0 ── b enp1s0f0np0   200 Gb/s, mtu 9000
  a enp1s0f1np1 ─▶ c enp1s0f0np0   200 Gb/s, mtu 9000, a enp1s0f1np1 does not hear c enp1s0f0np0")]
struct DiscoverArgs {
    #[command(flatten)]
    cable: CableArgs,

    /// Print links as JSON
    #[arg(long)]
    json: bool,
}

/// Give each cable between hosts a subnet of its own.
///
/// The cables are found as by `rlaunch network discover`. Each gets the next subnet of --base; its hosts get .2 and .3
/// in their order. Addresses that fit already are kept, and others within the base are replaced. The configuration of
/// each host is printed, or written by --output; nothing is changed, unless --apply is given.
///
/// --apply runs `ip` on all hosts, as root or by `sudo -n`, and then sends packets over every link. If one does not
/// answer, or the launcher is killed, or the time of --confirm-timeout passes, each host undoes its changes. They last
/// until the next boot, unless --keep is given; the files of --format netplan, nmcli and networkd stay.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  rlaunch network mesh -H a,b,c                                     netplan files on stdout
  rlaunch network mesh -H a,b,c --format nmcli --output mesh        mesh/a/rdma-mesh.sh, mesh/b/...
  rlaunch network mesh -H a,b,c --base 10.1.0.0/22 --mtu 9000       other subnets, jumbo frames
  rlaunch network mesh -H a,b,c --apply                             now, on trial
  rlaunch network mesh -H a,b,c --apply --keep                      and after the next boot
  rlaunch network mesh -H a,b,c,d --ring                            two ports for each host")]
struct MeshSetupArgs {
    #[command(flatten)]
    cable: CableArgs,

    /// IPv4 network from which the subnets are taken
    #[arg(long, value_name = "NETWORK/BITS", default_value = "192.168.100.0/22")]
    base: Base,

    /// Length of the prefix of each subnet
    #[arg(long, value_name = "BITS", default_value_t = 24)]
    prefix: u8,

    /// MTU of the Ethernet interfaces, such as 9000; by default it stays as it is
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1280..=65535))]
    mtu: Option<u32>,

    /// Use a ring of cables, where there are too few ports for one between any two hosts
    #[arg(long)]
    ring: bool,

    /// Program that configures the hosts; netplan without --apply
    #[arg(long, value_enum, value_name = "PROGRAM")]
    format: Option<ConfigFormat>,

    /// Write the files to DIR/HOST in place of printing them
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,

    /// Change the addresses now; they are undone if a link does not answer
    #[arg(long)]
    apply: bool,

    /// Keep the addresses for the next boot, by what each host uses: netplan, NetworkManager,
    /// systemd-networkd or ifupdown. `rlaunch down` undoes it
    #[arg(long, requires = "apply", conflicts_with_all = ["format", "output"])]
    keep: bool,

    /// Time after which a host undoes changes that were not confirmed, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = parse_trial)]
    confirm_timeout: Duration,
}

/// Host whose cables were looked for.
#[derive(Clone, Debug)]
struct Surveyed {
    name: String,
    /// Network at the time of the discovery.
    network: HostNetwork,
    hearing: BeaconReport,
    /// Interfaces that were set up only for the time of the discovery, or are down.
    down: Vec<String>,
}

impl Surveyed {
    fn interface(&self, name: &str) -> Option<&HostInterface> {
        self.network.interfaces.iter().find(|one| one.netdev.name == name)
    }

    /// Tells whether an interface was asked and has heard nothing.
    fn has_deaf_port(&self, wanted: &Wanted) -> bool {
        let is_deaf = |one: &HostInterface| {
            !self.hearing.heard.iter().any(|beacon| beacon.on == one.netdev.name)
                && self.standing(one, wanted) == Some(Standing::NothingHeard)
        };
        self.network.interfaces.iter().any(is_deaf)
    }

    /// Judges an interface on which nothing was heard. Returns `None` if it is not wanted.
    fn standing(&self, interface: &HostInterface, wanted: &Wanted) -> Option<Standing> {
        let name = &interface.netdev.name;
        let mute = self.hearing.mute.iter().find(|(mute, _)| mute == name);
        match (Standing::of(interface, &self.network, wanted)?, mute) {
            (Standing::Asked, Some((_, cause))) => Some(Standing::Mute(cause.clone())),
            (Standing::Asked, None) => Some(Standing::NothingHeard),
            (standing, _) => Some(standing),
        }
    }
}

/// Finds cables, and configures or prints what the user wants.
pub(super) async fn run(command: NetworkCommand, line: &CommandLine) -> Result<Exit, Failed> {
    match command.verb {
        NetworkVerb::Discover(args) => discover(&args, line).await,
        NetworkVerb::Mesh(args) => mesh(&args, line).await,
    }
}

async fn discover(args: &DiscoverArgs, line: &CommandLine) -> Result<Exit, Failed> {
    let wanted = args.cable.wanted();
    let (mut agents, failures) = args.cable.open(line, args.cable.up).await?;
    let surveyed = args.cable.survey(&mut agents, &wanted).await;
    agents.close().await;
    let hosts = surveyed?;
    if hosts.is_empty() {
        return agent_session::conclude(failures);
    }
    let links = find_links(&hosts, &wanted);
    let picture = Picture { hosts: &hosts, links: &links, wanted: &wanted };
    match args.json {
        true => stdout::print(&picture.to_json()?),
        false => {
            stdout::print(&picture.to_text());
            picture.hints().iter().for_each(|hint| messages::hint(hint));
        }
    }
    agent_session::conclude(failures)
}

async fn mesh(args: &MeshSetupArgs, line: &CommandLine) -> Result<Exit, Failed> {
    let wanted = args.cable.wanted();
    let (mut agents, failures) = args.cable.open(line, args.cable.up || args.apply).await?;
    if !failures.is_empty() {
        agents.close().await;
        return agent_session::conclude(failures);
    }
    let done = if args.keep {
        set_up_to_stay(args, &mut agents, &wanted, line).await
    } else {
        set_up(args, &mut agents, &wanted).await
    };
    agents.close().await;
    done.map(|()| Exit::SUCCESS)
}

/// Gives addresses to the cables, and keeps them for the next boot (`--keep`). All of it stands in the hosts' journals.
async fn set_up_to_stay(
    args: &MeshSetupArgs,
    agents: &mut HostAgents,
    wanted: &Wanted,
    line: &CommandLine,
) -> Result<(), Failed> {
    let (hosts, plan) = args.plan(agents, wanted).await?;
    let options = HostOptions::of_verb(&args.cable.hosts, &line.config.hosts);
    let (named, reach) = agent_session::select_hosts(&options, &args.cable.connect, line)?;
    let (mut changing, failures) = ChangingHosts::open(&named, &reach).await?;
    let done = if failures.is_empty() {
        stdout::print(&formats::table(&plan, &hosts));
        keep(agents, &plan, &hosts, &mut changing).await
    } else {
        agent_session::conclude(failures).map(drop)
    };
    changing.close().await;
    done
}

async fn keep(
    agents: &mut HostAgents,
    plan: &MeshPlan,
    hosts: &[Surveyed],
    changing: &mut ChangingHosts,
) -> Result<(), Failed> {
    let by = "rlaunch network mesh";
    let journaled = Journaled { changing: &mut *changing, by };
    let tried = cabled::try_addresses(agents, plan, hosts, journaled).await?;
    messages::info(&tried);
    messages::info(&cabled::keep(plan, hosts, Journaled { changing, by }).await?);
    Ok(())
}

async fn set_up(
    args: &MeshSetupArgs,
    agents: &mut HostAgents,
    wanted: &Wanted,
) -> Result<(), Failed> {
    if args.apply {
        agents.check_privilege("--apply")?;
    }
    let (hosts, plan) = args.plan(agents, wanted).await?;
    if let Some(hint) = mtu_hint(&plan, &hosts) {
        messages::hint(&hint);
    }
    if args.apply {
        stdout::print(&formats::table(&plan, &hosts));
        let done = apply::apply(agents, &plan, &hosts, args.confirm_timeout).await?;
        messages::info(&done);
        if args.format.is_none() {
            messages::info(
                "these addresses last until the next boot; --format netplan, nmcli or networkd writes what stays",
            );
        }
    }
    match args.format.or((!args.apply).then_some(ConfigFormat::Netplan)) {
        Some(format) => write_config(args, format, &plan, &hosts),
        None => Ok(()),
    }
}

/// Returns advice on RDMA ports whose MTU is too small for the largest packets.
fn mtu_hint(plan: &MeshPlan, hosts: &[Surveyed]) -> Option<String> {
    let small = |end: &&PlannedEnd| {
        let found = hosts.get(end.end.host).and_then(|host| host.interface(&end.end.interface));
        end.kind == NetdevKind::Physical
            && found.is_some_and(|one| {
                !one.rdma.is_empty() && end.mtu.unwrap_or(one.netdev.mtu) < ROCE_MTU
            })
    };
    let end = plan.links.iter().flat_map(|link| &link.ends).find(small)?;
    let host = hosts.get(end.end.host)?;
    let name = (&host.name, &end.end.interface);
    Some(format!(
        "RoCE packets of 4096 bytes need an MTU of {ROCE_MTU}, and {} {} has less: --mtu 9000",
        name.0, name.1
    ))
}

fn plan_failed(error: &PlanError) -> Failed {
    Failed::from_error(Exit::USAGE, error).hint(error.hint())
}

fn find_links(hosts: &[Surveyed], wanted: &Wanted) -> Vec<FoundLink> {
    let socket =
        |end: &links::CableEnd| hosts.get(end.host)?.interface(&end.interface)?.socket.clone();
    links::find(&agents::observations(hosts, wanted), socket)
}

/// Prints the configuration of all hosts, or writes it to the directory of `--output`.
fn write_config(
    args: &MeshSetupArgs,
    format: ConfigFormat,
    plan: &MeshPlan,
    hosts: &[Surveyed],
) -> Result<(), Failed> {
    let table = formats::table(plan, hosts);
    let mut text = String::new();
    if args.output.is_none() {
        text.extend(table.lines().map(|line| format!("# {line}\n")));
    } else if !args.apply {
        text.push_str(&table);
    }
    for (index, host) in hosts.iter().enumerate() {
        for file in format.files(plan, hosts, index) {
            match &args.output {
                Some(directory) => {
                    let path = write_file(&directory.join(&host.name), &file)?;
                    let _ = writeln!(text, "{}", path.display());
                }
                None => {
                    let directory = file.directory.map(|directory| format!("{directory}/"));
                    let directory = directory.unwrap_or_default();
                    let _ =
                        write!(text, "\n# {}: {directory}{}\n{}", host.name, file.name, file.text);
                }
            }
        }
    }
    stdout::print(&text);
    messages::hint(format.instructions());
    Ok(())
}

fn write_file(directory: &Path, file: &SetupFile) -> Result<PathBuf, Failed> {
    let path = directory.join(&file.name);
    let written = std::fs::create_dir_all(path.parent().unwrap_or(directory))
        .and_then(|()| std::fs::write(&path, &file.text));
    let failed =
        |error| Failed::new(Exit::FILES, format!("cannot write {}: {error}", path.display()));
    written.map_err(failed)?;
    Ok(path)
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("`{text}` is not a number of seconds"))?;
    // Agents limit every step to a minute.
    match (0.1..=60.0).contains(&seconds) {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err("between 0.1 and 60 seconds".to_owned()),
    }
}

/// Parses `--confirm-timeout`: longer than the probes of links take.
fn parse_trial(text: &str) -> Result<Duration, String> {
    let seconds: u32 = text.parse().map_err(|_| format!("`{text}` is not a number of seconds"))?;
    match seconds {
        10..=3600 => Ok(Duration::from_secs(u64::from(seconds))),
        _ => Err("between 10 and 3600 seconds".to_owned()),
    }
}

impl CableArgs {
    fn wanted(&self) -> Wanted {
        Wanted { all: self.all, patterns: self.interfaces.clone() }
    }

    /// Connects to the hosts.
    async fn open(
        &self,
        line: &CommandLine,
        will_change: bool,
    ) -> Result<(HostAgents, Vec<Failed>), Failed> {
        let options = HostOptions::of_verb(&self.hosts, &line.config.hosts);
        let (hosts, options) = agent_session::select_hosts(&options, &self.connect, line)?;
        HostAgents::open(&hosts, &options, will_change).await
    }

    async fn survey(
        &self,
        agents: &mut HostAgents,
        wanted: &Wanted,
    ) -> Result<Vec<Surveyed>, Failed> {
        if self.up {
            agents.check_privilege("--up")?;
        }
        agents.survey(wanted, &[self.wait], self.up).await
    }
}

impl MeshSetupArgs {
    /// Finds the cables, and plans their addresses.
    async fn plan(
        &self,
        agents: &mut HostAgents,
        wanted: &Wanted,
    ) -> Result<(Vec<Surveyed>, MeshPlan), Failed> {
        let hosts = self.cable.survey(agents, wanted).await?;
        let links = find_links(&hosts, wanted);
        let links = self.chosen_links(&hosts, links, wanted)?;
        let options =
            PlanOptions { base: self.base, prefix: self.prefix, mtu: self.mtu, keeps: None };
        let plan = plan::plan(&hosts, &links, options).map_err(|error| plan_failed(&error))?;
        Ok((hosts, plan))
    }

    /// Returns the links that get addresses: all, if they connect any two hosts; with `--ring` those of a ring.
    fn chosen_links(
        &self,
        hosts: &[Surveyed],
        links: Vec<FoundLink>,
        wanted: &Wanted,
    ) -> Result<Vec<FoundLink>, Failed> {
        let missing = links::missing_pairs(hosts.len(), &links);
        let name = |host: usize| hosts.get(host).map_or("?", |host| &host.name);
        let ring = links::find_ring(hosts.len(), &links);
        let in_order =
            |ring: &[usize]| ring.iter().map(|host| name(*host)).collect::<Vec<_>>().join(" ");
        if missing.is_empty() && !self.ring {
            return Ok(links);
        }
        let advice = match &ring {
            _ if hosts.len() <= 3 => {
                "`rlaunch network discover` shows why interfaces have no link".to_owned()
            }
            Some(ring) if !self.ring => {
                format!("--ring uses the ring that is cabled: {}", in_order(ring))
            }
            _ => {
                let ring = (0..hosts.len()).collect::<Vec<_>>();
                let lacking = links::neighbours(&ring).into_iter();
                let lacking = lacking.filter(|pair| missing.contains(pair));
                let cables: Vec<String> =
                    lacking.map(|(a, b)| format!("{} to {}", name(a), name(b))).collect();
                let (ring, cables) = (in_order(&ring), text::list(&cables));
                format!("for the ring {ring}, cable {cables}, and use --ring")
            }
        };
        match ring {
            Some(ring) if self.ring => {
                let neighbours = links::neighbours(&ring);
                let is_in_ring =
                    |link: &FoundLink| link.pairs().iter().any(|pair| neighbours.contains(pair));
                Ok(links.into_iter().filter(is_in_ring).collect())
            }
            _ if hosts.len() == 2 && missing.is_empty() => Ok(links),
            _ => {
                let message = match self.ring {
                    true => "the cables between these hosts form no ring".to_owned(),
                    false => not_full(hosts, &missing, wanted),
                };
                Err(Failed::new(Exit::RENDEZVOUS, message).hint(Some(advice)))
            }
        }
    }
}

/// Says why the links are not a full mesh: too few ports, or missing cables.
fn not_full(hosts: &[Surveyed], missing: &[(usize, usize)], wanted: &Wanted) -> String {
    let needed = hosts.len().saturating_sub(1);
    let ports = |host: &Surveyed| {
        let ports = host.network.interfaces.iter().filter(|one| {
            Standing::of(one, &host.network, wanted).is_some_and(|standing| standing.is_port())
        });
        let sockets: std::collections::BTreeSet<&str> =
            ports.map(|one| one.socket.as_deref().unwrap_or(&one.netdev.name)).collect();
        sockets.len()
    };
    let few: Vec<String> = hosts
        .iter()
        .filter(|host| ports(host) < needed)
        .map(|host| format!("{} has {}", host.name, ports(host)))
        .collect();
    let name = |host: usize| hosts.get(host).map_or("?", |host| &host.name);
    let pairs: Vec<String> =
        missing.iter().map(|(a, b)| format!("{} and {}", name(*a), name(*b))).collect();
    match few.is_empty() {
        true => format!("no cable between {}", text::list(&pairs)),
        false => format!(
            "a full mesh of {} needs {} on each: {}",
            text::count(hosts.len(), "host"),
            text::count(needed, "port"),
            text::list(&few)
        ),
    }
}

#[cfg(test)]
mod tests;
