//! Programs on the launcher's machine: the source of a push, and the destination of a fetch.

use super::report::{LOCAL, Reporter};
use super::{CONNECT_DIRECT, RoleError, Settings, files, rank, read_line};
use crate::link::{Link, LinkError, Peer, dial, over_command};
use rlaunch_copy::control::{Report, Request, Role};
use std::io::{self, BufRead, StdinLock};
use std::path::Path;
use std::process::Child;
use std::thread::JoinHandle;

/// Sends files to rank 0.
pub fn send(via: &[String]) -> Result<(), RoleError> {
    as_local(|me, request, input| {
        send_to_first(me, request, input, via).inspect_err(|error| me.failed(error))
    })
}

/// Receives files from every rank, into a directory of the host's name.
pub fn fetch(via: &[String]) -> Result<(), RoleError> {
    as_local(|me, request, input| fetch_all(me, request, input, via))
}

/// Runs a program that reads its request, and then where ranks listen.
fn as_local(
    run: impl FnOnce(&Reporter, &Request, &mut StdinLock<'static>) -> Result<(), RoleError>,
) -> Result<(), RoleError> {
    let mut input = io::stdin().lock();
    let request = read_line::<Request>(&mut input);
    match request.and_then(|request| request.ok_or(RoleError::NoRequest)) {
        Ok(request) => run(&Reporter::to_stdout(LOCAL, &request.hosts), &request, &mut input),
        Err(error) => {
            Reporter::to_stdout(LOCAL, &[]).failed(&error);
            Err(error)
        }
    }
}

/// Sends files to rank 0, which passes them on.
pub(super) fn send_to_first(
    me: &Reporter,
    request: &Request,
    input: &mut impl BufRead,
    via: &[String],
) -> Result<(), RoleError> {
    let settings = Settings::of(request)?;
    let Role::Source { paths } = &request.role else { return Err(RoleError::NoSource) };
    // While the job reaches its hosts. A tree that is too large is refused before they wait for it.
    let tree = settings.tree.map(|limit| files::look(paths, Some(limit), me)).transpose()?;
    // A thread of its own, which nobody waits for if there is nobody to send to.
    let hashing = tree.map(|looked| {
        let (settings, me) = (settings.clone(), me.clone());
        std::thread::spawn(move || {
            let original = files::original(looked, &settings, &me)?;
            me.report(&Report::Content { hash: original.manifest().content() });
            Ok(original)
        })
    });
    let first = loop {
        let peer = next_peer(input, me)?.ok_or_else(|| not_listening(me, 0))?;
        if peer.rank == 0 {
            break peer;
        }
    };
    let (link, command) = connect(me, &settings, &first, via)?;
    let original = || match hashing {
        Some(hashing) => hashing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
        None => rank::look_and_hash(me, paths, &settings),
    };
    let sent = rank::send_files(me, original, &settings, link);
    end(command);
    let manifest = sent?;
    me.report(&Report::Done {
        rank: LOCAL,
        files: rank::count_files(&manifest),
        bytes: manifest.bytes(),
        received: 0,
        unchanged: manifest.bytes(),
        seconds: 0.0,
        root: String::new(),
    });
    Ok(())
}

type Fetching = Vec<(u32, JoinHandle<Result<(), RoleError>>)>;

/// Receives files from every rank, and reports what failed. Those of one host arrive even if those
/// of another do not.
pub(super) fn fetch_all(
    me: &Reporter,
    request: &Request,
    input: &mut impl BufRead,
    via: &[String],
) -> Result<(), RoleError> {
    let fetching = begin_all(me, request, input, via).inspect_err(|error| me.failed(error))?;
    // A host that does not listen has failed, and its program has said why.
    let missing = (0..).zip(&request.hosts).map(|(rank, _)| rank);
    let missing = missing.filter(|rank| fetching.iter().all(|(there, _)| there != rank)).min();
    let mut first = missing.map(|rank| not_listening(me, rank));
    for (_, thread) in fetching {
        let done = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        first = first.or(done.err());
    }
    first.map_or(Ok(()), Err)
}

/// Begins to receive from each rank as soon as it listens.
fn begin_all(
    me: &Reporter,
    request: &Request,
    input: &mut impl BufRead,
    via: &[String],
) -> Result<Fetching, RoleError> {
    let settings = Settings::of(request)?;
    let destination = files::below_home(&request.destination)?;
    let mut fetching = Fetching::new();
    while fetching.len() < request.hosts.len() {
        let Some(peer) = next_peer(input, me)? else { break };
        if fetching.iter().any(|(rank, _)| *rank == peer.rank) {
            continue;
        }
        let (local, me) = (me.clone(), me.for_rank(peer.rank));
        let (settings, via) = (settings.clone(), via.to_vec());
        let (rank, directory) = (peer.rank, destination.join(folder(&peer.host)));
        let fetch = move || {
            let fetched = fetch_one(&me, &settings, &peer, &directory, &via);
            fetched.inspect_err(|error| match error {
                // The disk is that of this machine.
                RoleError::Stage(_) => local.failed(error),
                error => me.failed(error),
            })
        };
        fetching.push((rank, std::thread::spawn(fetch)));
    }
    Ok(fetching)
}

fn fetch_one(
    me: &Reporter,
    settings: &Settings,
    peer: &Peer,
    directory: &Path,
    via: &[String],
) -> Result<(), RoleError> {
    // To the rank, this is the program on the launcher's machine.
    let (link, command) = connect(me, settings, peer, via)?;
    let received = rank::receive_files(me, directory, settings, (link, None));
    end(command);
    received
}

/// Returns the directory of a host: its name, which may be an address with a port or a user.
fn folder(host: &str) -> String {
    match host {
        "" | "." | ".." => format!("host-{host}"),
        host => host.replace(['/', '\0'], "_"),
    }
}

/// Reads where the next rank listens; `None` at the end.
fn next_peer(input: &mut impl BufRead, me: &Reporter) -> Result<Option<Peer>, RoleError> {
    while let Some(report) = read_line::<Report>(input)? {
        if let Report::Listening { rank, addresses, port } = report {
            let host = me.name_of(rank).to_owned();
            return Ok(Some(Peer { rank, host, addresses, port }));
        }
    }
    Ok(None)
}

fn not_listening(me: &Reporter, rank: u32) -> RoleError {
    RoleError::NotListening { host: me.name_of(rank).to_owned() }
}

/// Connects to a rank: directly, or else by the command.
fn connect(
    me: &Reporter,
    settings: &Settings,
    peer: &Peer,
    via: &[String],
) -> Result<(Link, Option<Child>), RoleError> {
    let party = settings.party(LOCAL);
    let error = match dial(peer, &party, settings.streams, CONNECT_DIRECT) {
        Ok(link) => return Ok((link, None)),
        Err(error @ LinkError::Unreachable { .. }) if !via.is_empty() => error,
        Err(error) => return Err(error.into()),
    };
    me.note(format!("{error}; bytes go by way of the job"));
    let rank = peer.rank.to_string();
    let words = via.iter().map(|word| word.replace("{rank}", &rank));
    let command: Vec<String> = words.chain([peer.port.to_string()]).collect();
    let (link, child) = over_command(&command, (peer.rank, &peer.host), &party)?;
    Ok((link, Some(child)))
}

/// Ends the command that carried bytes.
fn end(command: Option<Child>) {
    if let Some(mut child) = command {
        // It may have ended with the connection.
        let _ = child.kill();
        let _ = child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_one_directory() {
        assert_eq!(folder("me@a:2222"), "me@a:2222");
        assert_eq!(folder("../../etc"), ".._.._etc");
        assert_eq!(folder(".."), "host-..");
    }

    #[test]
    fn other_reports_are_not_where_a_rank_listens() {
        let me = Reporter::new(LOCAL, &["a".into(), "b".into()], io::sink());
        let lines = "{\"note\":{\"rank\":0,\"text\":\"x\"}}\n\
                     {\"listening\":{\"rank\":1,\"addresses\":[\"10.0.0.1\"],\"port\":5}}\n";
        let mut input = lines.as_bytes();
        let peer = next_peer(&mut input, &me).unwrap().unwrap();
        assert_eq!((peer.rank, peer.host.as_str(), peer.port), (1, "b", 5));
        assert_eq!(next_peer(&mut input, &me).unwrap(), None);
        assert!(next_peer(&mut &b"{}\n"[..], &me).is_err());
    }
}
