//! Dialling end of a link.

use super::handshake::{Dialled, HANDSHAKE_TIMEOUT, HandshakeError, LinkId, Party, Stream, random};
use super::socket::Socket;
use super::{Link, LinkError, MAX_STREAMS};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Time in which an address has to answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Time in which a command has to start, connect and do the handshake.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(15);
/// Time by which an address is tried later than the better one before it.
const HEAD_START: Duration = Duration::from_millis(250);
/// Time after which all addresses are tried again.
const RETRY: Duration = Duration::from_millis(200);

/// Rank that listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    pub rank: u32,
    /// Name of its host, as the user typed it.
    pub host: String,
    /// Addresses of its host, the best first.
    pub addresses: Vec<IpAddr>,
    pub port: u16,
}

/// Address that was tried in vain.
#[derive(Debug)]
pub struct Attempt {
    pub address: SocketAddr,
    pub why: HandshakeError,
}

/// Connects to a rank by TCP, and tries again until a time has passed.
pub fn dial(peer: &Peer, me: &Party, streams: u32, within: Duration) -> Result<Link, LinkError> {
    let until = Instant::now() + within;
    loop {
        match try_once(peer, me, streams.clamp(1, MAX_STREAMS)) {
            Ok(streams) => return Ok(Link::new(peer.host.clone(), me.is_plain, streams)),
            Err(tried) if Instant::now() + RETRY >= until => {
                let (host, port) = (peer.host.clone(), peer.port);
                return Err(LinkError::Unreachable { host, port, tried });
            }
            Err(_) => sleep(RETRY),
        }
    }
}

fn try_once(peer: &Peer, me: &Party, count: u32) -> Result<Vec<Stream>, Vec<Attempt>> {
    let (address, link, first) = first_stream(peer, me, count)?;
    let mut streams = vec![first];
    for stream in 1..count {
        let joined = begin(address, peer.rank, me)
            .and_then(|dialled| dialled.join(link, stream, count))
            .map_err(|why| vec![Attempt { address, why }])?;
        streams.push(joined);
    }
    Ok(streams)
}

/// Connects the first stream, at whichever address answers first as a rank of the copy does.
fn first_stream(
    peer: &Peer,
    me: &Party,
    count: u32,
) -> Result<(SocketAddr, LinkId, Stream), Vec<Attempt>> {
    let (results, tried) = mpsc::channel();
    let is_taken = Arc::new(AtomicBool::new(false));
    for (place, &address) in (0..).zip(&peer.addresses) {
        let address = SocketAddr::new(address, peer.port);
        let (rank, me, results) = (peer.rank, me.clone(), results.clone());
        let is_taken = is_taken.clone();
        std::thread::spawn(move || {
            sleep(HEAD_START * place);
            if is_taken.load(Ordering::Acquire) {
                return;
            }
            // The rank learns of one connection only: that whose handshake was done first.
            let joined = match begin(address, rank, &me) {
                Ok(dialled) if !is_taken.swap(true, Ordering::AcqRel) => {
                    random().and_then(|link| Ok((link, dialled.join(link, 0, count)?)))
                }
                Ok(_) => return,
                Err(error) => Err(error),
            };
            // Nobody waits any more if another address was faster.
            let _ = results.send((address, joined));
        });
    }
    drop(results);
    let mut attempts = Vec::new();
    for (address, joined) in tried {
        match joined {
            Ok((link, stream)) => return Ok((address, link, stream)),
            Err(why) => attempts.push(Attempt { address, why }),
        }
    }
    Err(attempts)
}

fn begin(address: SocketAddr, rank: u32, me: &Party) -> Result<Dialled, HandshakeError> {
    let stream = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT);
    Dialled::begin(Socket::tcp(stream.map_err(reason)?)?, me, rank, HANDSHAKE_TIMEOUT)
}

/// Says what was waited for, where the system only says that it took too long.
fn reason(error: io::Error) -> HandshakeError {
    match error.kind() {
        io::ErrorKind::TimedOut => {
            let text = format!("no answer within {} s", CONNECT_TIMEOUT.as_secs());
            io::Error::new(io::ErrorKind::TimedOut, text).into()
        }
        _ => error.into(),
    }
}

/// Connects to a rank by a command that carries bytes between its stdin and stdout and the rank's
/// port. Returns the command as well, which ends with the link.
pub fn over_command(
    command: &[String],
    (rank, host): (u32, &str),
    me: &Party,
) -> Result<(Link, Child), LinkError> {
    let text = command.join(" ");
    let cannot_run =
        |source| LinkError::Command { command: text.clone(), host: host.to_owned(), source };
    let (own, its) = UnixStream::pair().map_err(cannot_run)?;
    let mut child = start(command, its).map_err(cannot_run)?;
    let linked = || -> Result<Stream, HandshakeError> {
        Dialled::begin(Socket::unix(own)?, me, rank, COMMAND_TIMEOUT)?.join(random()?, 0, 1)
    };
    match linked() {
        Ok(stream) => Ok((Link::new(host.to_owned(), me.is_plain, vec![stream]), child)),
        Err(source) => {
            // What it printed is on stderr.
            let _ = child.kill();
            let _ = child.wait();
            Err(LinkError::ByCommand { command: text, host: host.to_owned(), source })
        }
    }
}

fn start(command: &[String], socket: UnixStream) -> io::Result<Child> {
    let (program, words) =
        command.split_first().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
    let stdin = OwnedFd::from(socket.try_clone()?);
    Command::new(program)
        .args(words)
        .stdin(Stdio::from(stdin))
        .stdout(Stdio::from(OwnedFd::from(socket)))
        .spawn()
}
