//! Ranks of a push and of a fetch.

use super::files::{self, Files};
use super::order::{addresses_toward, order};
use super::report::{LOCAL, Reporter};
use super::shared::{self, Mark};
use super::{CONNECT, RoleError, Settings, chain, listing, read_line};
use crate::files::Original;
use crate::images::{self, Engine, EngineError};
use crate::link::{Acceptor, Link, LinkError, Peer, dial};
use rlaunch_bootstrap::env as names;
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::job::PortRange;
use rlaunch_bootstrap::rank_table::RankTable;
use rlaunch_client::Client;
use rlaunch_copy::control::{ImageCopy, Report, Request, Role};
use rlaunch_copy::{Kind, Manifest};
use std::env;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Time in which the program on the launcher's machine has to connect, which it may do by way of the job.
const CONNECT_LOCAL: Duration = Duration::from_secs(60);
/// Time in which all ranks have to listen.
const GATHER: Duration = Duration::from_secs(60);
/// Names of the all-gathers of ports, and of ranks that have the same place for files.
const PORTS: &str = "rlaunch copy";
const LOWEST: &str = "rlaunch copy shared";

/// Receives as a place of the chain, or sends if it is rank 0 and the files are there.
pub fn receive(ports: PortRange) -> Result<(), RoleError> {
    as_rank(|me, request, rank| {
        let settings = Settings::of(&request)?;
        let table = rank_table()?;
        let mut client = Client::from_env()?;
        client.set_timeout(Some(GATHER));
        let acceptor = listen(&table, rank, ports, me)?;
        let mark = mark(&request, rank)?;
        let gathered = client.all_gather(PORTS, &acceptor.port().to_le_bytes())?;
        let port_of = |rank: Rank| {
            let bytes = gathered.get(rank.index()).and_then(|bytes| bytes.first_chunk::<2>());
            bytes.map(|bytes| u16::from_le_bytes(*bytes)).ok_or(RoleError::NoSuchRank(rank.0))
        };
        // All files of ranks are there, and none is removed before all have looked.
        let ranks = u32::try_from(gathered.len()).unwrap_or(u32::MAX);
        let lowest = mark.as_ref().map_or(rank.0, |mark| mark.lowest(ranks));
        let all_lowest = client.all_gather(LOWEST, &lowest.to_le_bytes())?;
        drop(mark);
        let number = |bytes: &[u8]| bytes.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
        let all_lowest: Vec<u32> =
            all_lowest.iter().map(|bytes| number(bytes).unwrap_or(u32::MAX)).collect();
        let receivers = shared::receivers(&all_lowest);
        let receives = |rank: Rank| receivers.get(rank.index()).is_none_or(|of| *of == rank.0);
        if !receives(rank) {
            let with = receivers[rank.index()];
            me.report(&Report::Shares { rank: rank.0, with });
            return Ok(());
        }
        let neighbours = Neighbours::of(&table, rank, &request.role, receives);
        let downstream = match neighbours.downstream {
            Some(next) => {
                let addresses = addresses_toward(&table, rank, next);
                let host = me.name_of(next.0).to_owned();
                Some(Peer { rank: next.0, host, addresses, port: port_of(next)? })
            }
            None => None,
        };
        take_part(me, &request, &settings, &acceptor, (neighbours.upstream, downstream))
    })
}

/// Makes a mark where files go, by which ranks find others that have the same place.
fn mark(request: &Request, rank: Rank) -> Result<Option<Mark>, RoleError> {
    let is_source = rank.0 == 0 && matches!(request.role, Role::Source { .. });
    if is_source || request.image.is_some() {
        return Ok(None);
    }
    let destination = files::below_home(&request.destination)?;
    Ok(Mark::make(&destination, &request.secret, rank.0))
}

/// Sends its files to the launcher's machine.
pub fn serve(ports: PortRange) -> Result<(), RoleError> {
    as_rank(|me, request, rank| {
        let settings = Settings::of(&request)?;
        let Role::Source { paths } = &request.role else { return Err(RoleError::NoSource) };
        let acceptor = listen(&rank_table()?, rank, ports, me)?;
        serve_at(me, paths, &settings, &acceptor)
    })
}

/// Sends files to whoever connects from the launcher's machine.
pub(super) fn serve_at(
    me: &Reporter,
    paths: &[String],
    settings: &Settings,
    acceptor: &Acceptor,
) -> Result<(), RoleError> {
    let party = settings.party(me.rank());
    let local = (LOCAL, me.name_of(LOCAL));
    let link = acceptor.accept(&party, local, CONNECT_LOCAL)?;
    send_files(me, || look_and_hash(me, paths, settings), settings, link).map(drop)
}

/// Runs as a rank of a job, and reports how that failed.
fn as_rank(
    run: impl FnOnce(&Reporter, Request, Rank) -> Result<(), RoleError>,
) -> Result<(), RoleError> {
    let rank = rank_from_env();
    let request = read_line::<Request>(&mut io::stdin().lock());
    let request = request.and_then(|request| request.ok_or(RoleError::NoRequest));
    let hosts = request.as_ref().map_or(&[][..], |request| request.hosts.as_slice());
    let me = Reporter::to_stdout(rank.as_ref().map_or(LOCAL, |rank| rank.0), hosts);
    let done = rank.and_then(|rank| run(&me, request?, rank));
    if let Err(error) = &done {
        me.failed(error);
    }
    done
}

fn rank_from_env() -> Result<Rank, RoleError> {
    let rank = env::var(names::RLAUNCH_RANK).ok().and_then(|text| text.parse().ok());
    rank.map(Rank).ok_or(RoleError::NotARank(names::RLAUNCH_RANK))
}

fn rank_table() -> Result<RankTable, RoleError> {
    let path = env::var_os(names::RLAUNCH_RANK_TABLE).map(PathBuf::from);
    let path = path.ok_or(RoleError::NotARank(names::RLAUNCH_RANK_TABLE))?;
    let bytes = std::fs::read(&path).map_err(|source| RoleError::Table { path, source })?;
    serde_json::from_slice(&bytes).map_err(RoleError::BadTable)
}

/// Listens at all addresses of this host, and reports where.
fn listen(
    table: &RankTable,
    rank: Rank,
    ports: PortRange,
    me: &Reporter,
) -> Result<Acceptor, RoleError> {
    let row = table.ranks().get(rank.index());
    let node = row.and_then(|row| table.nodes().get(row.node.index()));
    let node = node.ok_or(RoleError::NoSuchRank(rank.0))?;
    // Loopback is for what comes by way of the job.
    let loopback = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    let own = node.addresses.iter().map(|own| own.address);
    let all: Vec<IpAddr> = [node.address].into_iter().chain(own).chain(loopback).collect();
    let acceptor = Acceptor::open(&all, ports)?;
    let (addresses, port) = (acceptor.addresses(), acceptor.port());
    me.report(&Report::Listening { rank: rank.0, addresses, port });
    Ok(acceptor)
}

/// Ranks before and after one in the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Neighbours {
    upstream: Option<u32>,
    downstream: Option<Rank>,
}

impl Neighbours {
    /// Finds them among the ranks for which `receives` is true, of which the first one of all is one.
    fn of(table: &RankTable, me: Rank, role: &Role, receives: impl Fn(Rank) -> bool) -> Neighbours {
        let mut chain = order(table);
        chain.retain(|rank| receives(*rank));
        let place = chain.iter().position(|rank| *rank == me).unwrap_or(0);
        let upstream = match (place.checked_sub(1), role) {
            (Some(before), _) => Some(chain[before].0),
            (None, Role::Relay) => Some(LOCAL),
            (None, Role::Source { .. }) => None,
        };
        Neighbours { upstream, downstream: chain.get(place + 1).copied() }
    }
}

/// Connects to both neighbours and copies.
pub(super) fn take_part(
    me: &Reporter,
    request: &Request,
    settings: &Settings,
    acceptor: &Acceptor,
    (upstream, downstream): (Option<u32>, Option<Peer>),
) -> Result<(), RoleError> {
    let began = Instant::now();
    let party = &settings.party(me.rank());
    let (waiting, is_over) = mpsc::channel();
    let (upstream, downstream) = std::thread::scope(|scope| {
        let dialled = downstream.as_ref().map(|peer| {
            scope.spawn(move || -> Result<Link, LinkError> {
                let mut link = dial(peer, party, settings.streams, CONNECT)?;
                // The host after waits for as long as this one does.
                listing::beat_until(&is_over, &mut [&mut link.senders[0]]);
                Ok(link)
            })
        });
        let accepted = upstream.map(|rank| {
            let within = if rank == LOCAL { CONNECT_LOCAL } else { CONNECT };
            acceptor.accept(party, (rank, me.name_of(rank)), within)
        });
        drop(waiting);
        let joined = dialled
            .map(|dialled| dialled.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        (accepted, joined)
    });
    let (upstream, downstream) = match (upstream.transpose(), downstream.transpose()) {
        (Ok(upstream), Ok(downstream)) => (upstream, downstream),
        (upstream, downstream) => return Err(give_up(me, upstream, downstream)),
    };
    match (&request.role, upstream) {
        (Role::Source { paths }, None) => {
            let original = || look_and_hash(me, paths, settings);
            let sent =
                downstream.map(|link| send_files(me, original, settings, link)).transpose()?;
            let bytes = sent.as_ref().map_or(0, |manifest| manifest.bytes());
            me.report(&Report::Done {
                rank: me.rank(),
                files: sent.as_ref().map_or(0, |manifest| count_files(manifest)),
                bytes,
                received: 0,
                unchanged: bytes,
                seconds: began.elapsed().as_secs_f64(),
                root: request.destination.clone(),
            });
            Ok(())
        }
        (_, Some(link)) => {
            let destination = match &request.image {
                Some(_) => files::image_place()?,
                None => files::below_home(&request.destination)?,
            };
            receive_files(me, &destination, settings, (link, downstream))
        }
        (Role::Relay, None) => Err(RoleError::NoSource),
    }
}

/// Tells the neighbour that is there that the other one is not.
fn give_up(
    me: &Reporter,
    upstream: Result<Option<Link>, LinkError>,
    downstream: Result<Option<Link>, LinkError>,
) -> RoleError {
    let (error, mut there) = match (upstream, downstream) {
        (Err(error), there) => (error, there.ok().flatten()),
        (Ok(there), Err(error)) => (error, there),
        (Ok(there), Ok(_)) => (LinkError::Ended, there),
    };
    let error: RoleError = error.into();
    listing::tell(there.as_mut(), &error, me);
    error
}

/// Receives files into a directory, and passes them on.
pub(super) fn receive_files(
    me: &Reporter,
    destination: &Path,
    settings: &Settings,
    (mut upstream, mut downstream): (Link, Option<Link>),
) -> Result<(), RoleError> {
    let began = Instant::now();
    let listed = listing::receive(&mut upstream, downstream.as_mut());
    let staged = listed.and_then(|manifest| {
        let links = [&mut upstream].into_iter().chain(downstream.as_mut());
        let senders = links.map(|link| &mut link.senders[0]).collect();
        let stage = || Files::stage(destination, Arc::clone(&manifest), settings);
        let files = listing::while_beating(senders, stage)?;
        Ok((manifest, Arc::new(files)))
    });
    let (manifest, files) = match staged {
        Ok(staged) => staged,
        Err(error) => {
            listing::tell([&mut upstream].into_iter().chain(downstream.as_mut()), &error, me);
            return Err(error);
        }
    };
    let copied = chain::copy(&manifest, &files, (Some(upstream), downstream), settings, me)?;
    files.seal(settings, me);
    if let Some(image) = &settings.image
        && let Err(error) = load_image(image, destination, me)
    {
        // The job goes on, since other hosts are loading.
        let (text, hint) = (error.to_string(), error.hint());
        me.report(&Report::NotLoaded { rank: me.rank(), text, hint });
    }
    me.report(&Report::Done {
        rank: me.rank(),
        files: count_files(&manifest),
        bytes: manifest.bytes(),
        received: copied.received,
        unchanged: manifest.bytes().saturating_sub(copied.received),
        seconds: began.elapsed().as_secs_f64(),
        root: destination.display().to_string(),
    });
    Ok(())
}

fn load_image(image: &ImageCopy, place: &Path, me: &Reporter) -> Result<(), EngineError> {
    let engine = Engine::find(image.engine_of_hosts.as_deref())?;
    me.report(&Report::Loading { rank: me.rank(), engine: engine.name().to_owned() });
    images::load(&engine, place)
}

/// Looks at files that are to be sent, and hashes what is not known yet.
pub(super) fn look_and_hash(
    me: &Reporter,
    paths: &[String],
    settings: &Settings,
) -> Result<Original, RoleError> {
    let saved = settings.image.as_ref().map(|image| files::save_image(image, me)).transpose()?;
    let paths = saved.as_ref().map_or(paths, std::slice::from_ref);
    files::original(files::look(paths, settings.tree, me)?, settings, me)
}

/// Sends the files that `original` finds. Returns what they are.
pub(super) fn send_files(
    me: &Reporter,
    original: impl FnOnce() -> Result<Original, RoleError>,
    settings: &Settings,
    mut link: Link,
) -> Result<Arc<Manifest>, RoleError> {
    let hashed = listing::while_beating(vec![&mut link.senders[0]], original);
    let listed = hashed.and_then(|original| {
        listing::send(&mut link, original.manifest())?;
        Ok(original)
    });
    let original = match listed {
        Ok(original) => original,
        Err(error) => {
            listing::tell([&mut link], &error, me);
            return Err(error);
        }
    };
    let manifest = Arc::clone(original.manifest());
    let files = Arc::new(Files::Original(original));
    chain::copy(&manifest, &files, (None, Some(link)), settings, me)?;
    Ok(manifest)
}

pub(super) fn count_files(manifest: &Manifest) -> u64 {
    let is_file = |kind: &Kind| matches!(kind, Kind::File { .. });
    manifest.entries.iter().filter(|entry| is_file(&entry.kind)).count() as u64
}
