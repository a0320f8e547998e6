//! The agent's end of the control channel to the launcher: its stdin and stdout, or a connection
//! back to the launcher.
//!
//! [`ChannelKind`] says which of the two it is, and [`Channel`] carries frames over either.
//!
//! The connection back, [`CallbackTarget`], is for an agent whose remote shell passes it no stdin.
//! The agent prints a one-time public key on stdout, which still reaches the launcher, and connects
//! over TCP. See [`rlaunch_bootstrap::security::callback`] for the handshake.

use crate::network::connection::Connection;
use crate::network::frames::{self, ByteSink, ByteSource, FrameEvent, FrameSender};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rlaunch_bootstrap::id::NodeId;
use rlaunch_bootstrap::protocol::control::{HELLO_MAGIC, PROTOCOL_VERSION, ToAgent};
use rlaunch_bootstrap::rendezvous::oob::EdgeFailure;
use rlaunch_bootstrap::security::callback::{
    Announcement, CallbackDialer, CallbackError, HANDSHAKE, KeyPair, PublicKey, SharedStream,
    parse_address_word,
};
use rlaunch_bootstrap::security::handshake::SecureError;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::unix::pipe;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

/// Time limit for writing the last frames after the launcher has closed its end.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// Time limit for the launcher's first bytes to arrive on stdin. The launcher sends them before
/// this process starts.
const FIRST_BYTES_TIMEOUT: Duration = Duration::from_secs(3);
/// Size of the buffer for the launcher's first bytes. Before the agent's hello, the launcher sends
/// at most one beat.
const FIRST_CHUNK: usize = 4 << 10;

/// Kind of control channel.
pub(crate) enum ChannelKind {
    /// Stdin and stdout; these bytes were already read from stdin.
    Stdin(Vec<u8>),
    /// Connection back to the launcher, since stdin carries nothing.
    Callback(CallbackTarget),
}

impl ChannelKind {
    /// Returns the kind of channel to use. If the launcher accepts connections (`target`), waits up
    /// to [`FIRST_BYTES_TIMEOUT`] for data on stdin before choosing.
    pub(crate) fn detect(target: Option<CallbackTarget>) -> ChannelKind {
        match target {
            None => ChannelKind::Stdin(Vec::new()),
            Some(target) => match first_bytes(FIRST_BYTES_TIMEOUT) {
                Some(bytes) => ChannelKind::Stdin(bytes),
                None => ChannelKind::Callback(target),
            },
        }
    }
}

/// Reads the first bytes from stdin. Returns `None` if stdin has ended, cannot be read, or carries
/// no data within `limit`.
fn first_bytes(limit: Duration) -> Option<Vec<u8>> {
    let mut stdin = File::from(io::stdin().as_fd().try_clone_to_owned().ok()?);
    let deadline = std::time::Instant::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(std::time::Instant::now());
        let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)], left) {
            Err(Errno::EINTR) => {}
            Ok(0) | Err(_) => return None,
            Ok(_) => break,
        }
    }
    let mut bytes = vec![0; FIRST_CHUNK];
    let length = stdin.read(&mut bytes).ok().filter(|&length| length > 0)?;
    bytes.truncate(length);
    Some(bytes)
}

/// Writes `marker`, then takes over stdin and stdout, which may be one socket. Leaves them in the
/// mode, blocking or not, in which they were passed. Call it within a Tokio runtime.
pub(crate) fn open_stdio(marker: &[u8]) -> io::Result<(pipe::Receiver, pipe::Sender)> {
    let input = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut output = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    output.write_all(marker)?;
    // Unchecked, because sshd may use sockets instead of pipes.
    Ok((pipe::Receiver::from_file_unchecked(input)?, pipe::Sender::from_file_unchecked(output)?))
}

/// Open channel that carries frames in both directions.
pub(crate) struct Channel {
    pub(crate) events: mpsc::Receiver<FrameEvent<ToAgent>>,
    pub(crate) to_launcher: FrameSender,
    writer: JoinHandle<io::Result<()>>,
    /// Whether the channel is a TCP connection. Such a channel must not be closed before the
    /// launcher has read everything, because that could discard data in flight.
    is_callback: bool,
    /// TCP connection below the channel; `None` if it is not known.
    connection: Option<Connection>,
}

impl Channel {
    /// Takes over stdin and stdout and prints the marker that ends the login shell's output, or
    /// connects back to the launcher. Must be called within a Tokio runtime.
    pub(crate) async fn open(kind: ChannelKind) -> io::Result<Channel> {
        match kind {
            ChannelKind::Stdin(first) => {
                let (input, output) = open_stdio(HELLO_MAGIC)?;
                Ok(Channel::start(input, first, output, false, Connection::of_ssh()))
            }
            ChannelKind::Callback(target) => {
                let (reader, writer) = target.call_back().await?;
                let connection = Connection::of(reader.tcp.as_ref());
                Ok(Channel::start(reader, Vec::new(), writer, true, connection))
            }
        }
    }

    /// Makes the channel of a test.
    #[cfg(test)]
    pub(crate) fn over_pipes(input: pipe::Receiver, output: pipe::Sender) -> Channel {
        Channel::start(input, Vec::new(), output, false, None)
    }

    fn start(
        input: impl ByteSource,
        first: Vec<u8>,
        output: impl ByteSink,
        is_callback: bool,
        connection: Option<Connection>,
    ) -> Channel {
        let (to_launcher, queue) = FrameSender::new();
        let writer = tokio::spawn(frames::write_all(queue, output));
        let (sender, events) = mpsc::channel(64);
        tokio::spawn(frames::read_all(input, first, sender));
        Channel { events, to_launcher, writer, is_callback, connection }
    }

    /// Tells whether the launcher's machine acknowledges what it is sent. False if that is unknown.
    pub(crate) fn is_answered(&self) -> bool {
        self.connection.is_some_and(Connection::is_answered)
    }

    /// Waits until everything that was sent is written, but at most [`DRAIN_TIMEOUT`] once the
    /// launcher has closed its end.
    pub(crate) async fn close(self) {
        let Channel { to_launcher, mut writer, mut events, is_callback, .. } = self;
        drop(to_launcher);
        let peer_closed = async {
            wait_closed(&mut events).await;
            tokio::time::sleep(DRAIN_TIMEOUT).await;
        };
        tokio::select! {
            // The reader reports a broken channel.
            _ = &mut writer => {}
            () = peer_closed => return,
        }
        if is_callback {
            // The launcher closes the connection once it has read everything.
            let _ = timeout(DRAIN_TIMEOUT, wait_closed(&mut events)).await;
        }
    }
}

/// Waits until the launcher has closed the channel, and drops its messages. May be called again
/// afterwards.
async fn wait_closed(events: &mut mpsc::Receiver<FrameEvent<ToAgent>>) {
    while let Some(event) = events.recv().await {
        if matches!(event, FrameEvent::Closed(_)) {
            return;
        }
    }
}

// The connection back to the launcher.

/// Time limit for connecting to the launcher, for all of its addresses together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time after which the next address is tried, if the previous one has not answered.
const STAGGER: Duration = Duration::from_millis(200);
/// Capacity of the receive buffer in bytes.
const CHUNK: usize = 64 << 10;

/// The launcher's addresses and key, from the command line.
#[derive(Debug)]
pub(crate) struct CallbackTarget {
    addresses: Vec<SocketAddr>,
    key: PublicKey,
    node: NodeId,
}

impl CallbackTarget {
    /// Parses the arguments of `agent`: `--callback ADDRESS[,ADDRESS…] KEY NODE`, or none.
    pub(crate) fn parse(
        mut words: impl Iterator<Item = OsString>,
    ) -> Result<Option<CallbackTarget>, ()> {
        let Some(option) = words.next() else { return Ok(None) };
        let mut word = || words.next().and_then(|word| word.into_string().ok()).ok_or(());
        let (addresses, key, node) = (word()?, word()?, word()?);
        let addresses: Option<Vec<_>> = addresses.split(',').map(parse_address_word).collect();
        let target = CallbackTarget {
            addresses: addresses.ok_or(())?,
            key: key.parse().map_err(drop)?,
            node: NodeId(node.parse().map_err(drop)?),
        };
        if option == "--callback" && words.next().is_none() { Ok(Some(target)) } else { Err(()) }
    }

    /// Announces a one-time key on stdout and connects to the launcher. Announces a failure on
    /// stdout as well.
    pub(crate) async fn call_back(&self) -> io::Result<(SealedReader, SealedWriter)> {
        let key = KeyPair::generate().map_err(io::Error::other)?;
        announce(&Announcement::Dialing { version: PROTOCOL_VERSION, key: key.public() })?;
        match self.dial_all(Arc::new(key)).await {
            Ok((tcp, stream)) => {
                let (reading, writing) = tcp.into_split();
                let reader = SealedReader {
                    tcp: reading,
                    stream: stream.clone(),
                    received: Vec::with_capacity(CHUNK),
                };
                Ok((reader, SealedWriter { tcp: writing, stream }))
            }
            Err(why) => {
                announce(&Announcement::Failed(why.clone()))?;
                Err(io::Error::other(format!("cannot reach the launcher: {why}")))
            }
        }
    }

    /// Dials all addresses, each a little later than the one before, and returns the first
    /// connection on which the peer proves to be the launcher. If there is none, returns an error
    /// text with the outcome for each address.
    async fn dial_all(&self, own: Arc<KeyPair>) -> Result<(TcpStream, SharedStream), String> {
        let deadline = Instant::now() + CONNECT_TIMEOUT;
        let mut outcomes = vec![EdgeFailure::NoAnswer; self.addresses.len()];
        let mut waiting = self.addresses.iter().copied().enumerate();
        let mut dialling = JoinSet::new();
        let mut next_at = Instant::now();
        loop {
            if dialling.is_empty() || Instant::now() >= next_at {
                match waiting.next() {
                    Some((index, address)) => {
                        let dial = dial(address, own.clone(), self.key, self.node, deadline);
                        dialling.spawn(async move { (index, dial.await) });
                        next_at = Instant::now() + STAGGER;
                    }
                    None if dialling.is_empty() => return Err(self.describe(&outcomes)),
                    // All are being dialled, each until the deadline at most: no more is to begin.
                    None => next_at = deadline + STAGGER,
                }
            }
            tokio::select! {
                Some(Ok((index, dialled))) = dialling.join_next() => match dialled {
                    Ok(connected) => return Ok(connected),
                    Err(outcome) => {
                        outcomes[index] = outcome;
                        next_at = Instant::now();
                    }
                },
                () = sleep_until(next_at) => {}
            }
        }
    }

    /// Describes the outcome for each address: `10.0.0.1:21003 (no answer), 10.1.0.1:21003
    /// (refused)`.
    fn describe(&self, outcomes: &[EdgeFailure]) -> String {
        let tried = self.addresses.iter().zip(outcomes);
        let tried = tried.map(|(address, outcome)| format!("{address} ({outcome})"));
        tried.collect::<Vec<_>>().join(", ")
    }
}

/// Prints an announcement on a line of its own, whatever else is on stdout already.
fn announce(announcement: &Announcement) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    write!(stdout, "\n{announcement}\n")?;
    stdout.flush()
}

/// Reason why one of the launcher's addresses could not be used.
#[derive(Debug, thiserror::Error)]
enum DialError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Call(#[from] CallbackError),
}

/// Connects to one address and makes sure that the launcher is there.
async fn dial(
    address: SocketAddr,
    own: Arc<KeyPair>,
    launcher: PublicKey,
    node: NodeId,
    deadline: Instant,
) -> Result<(TcpStream, SharedStream), EdgeFailure> {
    let dialling = async {
        let mut tcp = TcpStream::connect(address).await?;
        tcp.set_nodelay(true)?;
        let (caller, first) = CallbackDialer::start(&own, &launcher, node)?;
        tcp.write_all(&first).await?;
        let mut answer = [0; HANDSHAKE];
        tcp.read_exact(&mut answer).await?;
        Ok::<_, DialError>((tcp, SharedStream::new(caller.finish(&answer)?)))
    };
    match timeout_at(deadline, dialling).await {
        Ok(dialled) => dialled.map_err(edge_failure),
        Err(_) => Err(EdgeFailure::NoAnswer),
    }
}

fn edge_failure(error: DialError) -> EdgeFailure {
    match error {
        DialError::Call(CallbackError::Noise(error)) => EdgeFailure::System(error.to_string()),
        DialError::Call(error) => EdgeFailure::WrongPeer(error.to_string()),
        DialError::Io(error) => match error.kind() {
            io::ErrorKind::ConnectionRefused => EdgeFailure::Refused,
            io::ErrorKind::TimedOut => EdgeFailure::NoAnswer,
            io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
                EdgeFailure::NoRoute
            }
            // Something else listens there, and hangs up on a handshake that it does not know.
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
                EdgeFailure::WrongPeer("the connection ended".to_owned())
            }
            _ => EdgeFailure::System(error.to_string()),
        },
    }
}

/// Decrypting end of the connection: data from the launcher.
pub(crate) struct SealedReader {
    tcp: OwnedReadHalf,
    stream: SharedStream,
    received: Vec<u8>,
}

impl ByteSource for SealedReader {
    async fn read(&mut self, into: &mut Vec<u8>) -> io::Result<bool> {
        into.clear();
        while into.is_empty() {
            self.received.clear();
            if self.tcp.read_buf(&mut self.received).await? == 0 {
                return Ok(false);
            }
            self.stream.open(&self.received, into).map_err(broken)?;
        }
        Ok(true)
    }
}

/// Encrypting end of the connection: data to the launcher.
pub(crate) struct SealedWriter {
    tcp: OwnedWriteHalf,
    stream: SharedStream,
}

impl ByteSink for SealedWriter {
    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let sealed = self.stream.seal(bytes).map_err(broken)?;
        self.tcp.write_all(&sealed).await
    }

    async fn end(&mut self) -> io::Result<()> {
        self.tcp.shutdown().await
    }
}

fn broken(error: SecureError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests {

    use super::*;

    fn parse(line: &str) -> Result<Option<CallbackTarget>, ()> {
        CallbackTarget::parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn the_words_behind_agent_are_all_or_none() {
        assert!(matches!(parse(""), Ok(None)));
        let key = "0f".repeat(32);
        let target = parse(&format!("--callback 10.0.0.1:21003,fd00::1:21004 {key} 7"));
        let target = target.unwrap().unwrap();
        assert_eq!(target.node, NodeId(7));
        assert_eq!(target.key.to_string(), key);
        let addresses: Vec<String> = target.addresses.iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["10.0.0.1:21003", "[fd00::1]:21004"]);
        for bad in ["--other 1:1 x 7", "--callback", "--callback 10.0.0.1:1 00 7", "x"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        assert!(parse(&format!("--callback 10.0.0.1:21003 {key} 7 8")).is_err());
    }

    #[tokio::test]
    async fn every_address_that_failed_is_named() {
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let stranger = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let hangs_up = stranger.local_addr().unwrap();
        tokio::spawn(async move { while stranger.accept().await.is_ok() {} });
        let (own, key) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap().public());
        let target = CallbackTarget { addresses: vec![closed, hangs_up], key, node: NodeId(0) };
        let why = target.dial_all(Arc::new(own)).await.map(drop).unwrap_err();
        let expected = format!("{closed} (refused), {hangs_up} (unexpected answer: ");
        assert!(why.starts_with(&expected), "{why}");
    }
}
