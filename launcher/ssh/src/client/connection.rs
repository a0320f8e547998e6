//! Connections to servers, before and after the login, and those to jump hosts: the chain that the configuration sets
//! for a host, of which each is connected once and shared by all hosts behind it.

use crate::config::{ConfigError, DEFAULT_PORT, HostConfig, JumpHop, Proxy, SshConfig};
use crate::error::{HostKeyChange, SshError};
use crate::host_keys::{CheckOutcome, HostKeyChecker};
use crate::transport::stream::{ProxyCommand, Stream};
use rlaunch_console::deadline::Deadline;
use russh::client::{Handle, Msg};
use russh::{Channel, ChannelOpenFailure, Disconnect};
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{OnceCell, Semaphore, SemaphorePermit};

/// Time limit for a server to open a session and take a command. It is long because a login may have to wait for
/// services of the host: pam_systemd gives up after 25 s.
const SESSION_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit for sending the SSH disconnect message to a server behind a jump host or a ProxyCommand.
pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// SSH connection to a server, usually logged in.
pub struct Connection {
    pub(super) handle: Handle<HostKeyChecker>,
    /// Address and port of the server, such as `192.0.2.7:22`; behind a jump host or a ProxyCommand, its
    /// host name and port, such as `far:22`.
    pub(super) address: String,
    /// IP addresses of this machine and of the server, if TCP connects the two directly.
    pub(super) ip_addresses: Option<(IpAddr, IpAddr)>,
    /// Has the reason why the connection ended.
    pub(super) outcome: CheckOutcome,
    /// Set if the server has another key than the recorded one, and the configuration allows that.
    pub(super) changed: Option<Box<HostKeyChange>>,
    /// Jump host through which this connection passes. Holding it here keeps the connection to the jump host
    /// open.
    pub(super) via: Option<Arc<Jump>>,
    pub(super) proxy: Option<ProxyCommand>,
}

/// Byte stream to a server before the SSH handshake.
pub(super) struct Transport {
    pub(super) stream: Box<dyn Stream>,
    pub(super) address: String,
    pub(super) ip_addresses: Option<(IpAddr, IpAddr)>,
    pub(super) proxy: Option<ProxyCommand>,
}

impl Connection {
    /// Runs `command` on the host, in the user's login shell. The channel carries the command's stdin,
    /// stdout and stderr.
    pub async fn exec(&self, command: &str) -> Result<Channel<Msg>, SshError> {
        let opening = async {
            let channel = self.handle.channel_open_session().await?;
            channel.exec(true, command).await?;
            Ok(channel)
        };
        let opened = Deadline::after(SESSION_TIMEOUT).wait("answer to a command", opening).await;
        let stalled = |late| SshError::Stalled { address: self.address.clone(), late };
        opened.map_err(stalled)?.map_err(|error| {
            let (address, source) = (self.address.clone(), Box::new(error));
            self.loss().unwrap_or(SshError::Channel { address, source })
        })
    }

    /// Returns the error of a connection that has ended although it was not closed here; `None` while it is open.
    pub fn loss(&self) -> Option<SshError> {
        let how = || self.outcome.end().unwrap_or_else(|| "it was closed".to_owned());
        (!self.is_open()).then(|| SshError::Lost { address: self.address.clone(), how: how() })
    }

    /// Returns the IP addresses of this machine and of the host, if TCP connects the two directly.
    pub fn addresses(&self) -> Option<(IpAddr, IpAddr)> {
        self.ip_addresses
    }

    /// Tells whether the connection is open, as far as this client knows.
    pub fn is_open(&self) -> bool {
        !self.handle.is_closed()
    }

    /// Closes the connection with an SSH disconnect message. Dropping the value closes the connection
    /// without that message.
    pub async fn close(self) {
        let Connection { handle, via, proxy, .. } = self;
        // A host that is cut off may take nothing any more.
        let leaving = handle.disconnect(Disconnect::ByApplication, "", "");
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, leaving).await;
        if via.is_none() && proxy.is_none() {
            return;
        }
        // The jump host or the ProxyCommand must stay until it has forwarded the disconnect message.
        let closing = async {
            let _ = handle.await;
            if let Some(proxy) = proxy {
                proxy.end().await;
            }
        };
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, closing).await;
        drop(via);
    }
}

/// Maximum number of jump hosts in a chain.
const MAX_JUMPS: usize = 8;
/// Maximum number of concurrent handshakes through one jump host, which has to encrypt and forward each of
/// them.
const HANDSHAKES: usize = 8;

/// Host or jump host to log in to, with its configuration.
#[derive(Clone, Debug)]
pub(super) struct Hop {
    /// Name by which the user or the configuration calls the host.
    pub(super) name: String,
    pub(super) config: HostConfig,
    pub(super) port: u16,
}

impl Hop {
    fn resolve(files: &SshConfig, jump: &JumpHop) -> Result<Hop, ConfigError> {
        let config = files.resolve_as(&jump.host, jump.user.as_deref(), jump.port)?;
        let port = config.port.unwrap_or(DEFAULT_PORT);
        Ok(Hop { name: jump.host.clone(), config, port })
    }

    /// Returns host name and port, such as `far:22`.
    pub(super) fn address(&self) -> String {
        let name = &self.config.hostname;
        if name.contains(':') {
            format!("[{name}]:{}", self.port)
        } else {
            format!("{name}:{}", self.port)
        }
    }

    /// Returns a text that identifies a login, such as `user@far:22`. It serves to find loops and to share
    /// connections.
    fn login_key(&self) -> String {
        format!("{}@{}", self.config.user.as_deref().unwrap_or_default(), self.address())
    }
}

/// Returns the jump hosts that lead to `target`, the nearest to this machine first. Each is reached through
/// the one before it. The first jump host of a list may have a `ProxyJump` of its own, as with `ssh -J`.
pub(super) fn jumps_before(files: &SshConfig, target: &Hop) -> Result<Vec<Hop>, SshError> {
    let mut jumps: VecDeque<Hop> = VecDeque::new();
    loop {
        let nearest = jumps.front().unwrap_or(target);
        let Proxy::Jump(list) = nearest.config.proxy.clone() else { return Ok(jumps.into()) };
        for jump in list.iter().rev() {
            let hop = Hop::resolve(files, jump)?;
            let is_loop =
                jumps.iter().chain([target]).any(|other| other.login_key() == hop.login_key());
            jumps.push_front(hop);
            if is_loop || jumps.len() > MAX_JUMPS {
                let names: Vec<&str> = jumps.iter().rev().map(|jump| jump.name.as_str()).collect();
                let chain = format!("{} through {}", target.name, names.join(" through "));
                return Err(SshError::JumpChain { chain, is_loop });
            }
        }
    }
}

/// Connection to a jump host.
pub(super) struct Jump {
    name: String,
    connection: Connection,
    handshakes: Semaphore,
}

impl Jump {
    /// Waits for a permit for an SSH handshake with a host behind this jump host.
    pub(super) async fn handshake_permit(&self) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed.
        self.handshakes.acquire().await.ok()
    }

    /// Opens a TCP stream from the jump host to `hop`. The jump host looks up the name of `hop`.
    pub(super) async fn stream_to(&self, hop: &Hop) -> Result<Box<dyn Stream>, SshError> {
        let (host, port) = (hop.config.hostname.as_str(), u32::from(hop.port));
        let handle = &self.connection.handle;
        match handle.channel_open_direct_tcpip(host, port, "127.0.0.1", 0).await {
            Ok(channel) => Ok(Box::new(channel.into_stream())),
            Err(russh::Error::ChannelOpenFailure(
                ChannelOpenFailure::AdministrativelyProhibited
                | ChannelOpenFailure::UnknownChannelType,
            )) => Err(SshError::NoForwarding { jump: self.name.clone() }),
            Err(source) => {
                let (jump, address) = (self.name.clone(), hop.address());
                Err(SshError::Forward { jump, address, source: Box::new(source) })
            }
        }
    }
}

/// Result of the login to a jump host, shared by the hosts behind it.
type JumpResult = Result<Arc<Jump>, Arc<SshError>>;

/// Connections to the jump hosts of a job, each under the keys (`Hop::login_key`) of all jump hosts from this
/// machine up to that jump host.
#[derive(Default)]
pub(super) struct Jumps(Mutex<HashMap<Vec<String>, Arc<OnceCell<JumpResult>>>>);

impl Jumps {
    /// Returns the connection to the last jump host of `chain`. The first caller runs `connect`; other
    /// callers with the same chain wait for its result.
    pub(super) async fn get_or_connect(
        &self,
        chain: &[Hop],
        connect: impl Future<Output = Result<Connection, SshError>>,
    ) -> Result<Arc<Jump>, SshError> {
        let name = chain.last().map_or_else(String::new, |hop| hop.name.clone());
        let cell = {
            let mut cells = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            cells.entry(chain.iter().map(Hop::login_key).collect()).or_default().clone()
        };
        let own_name = name.clone();
        let make = || async move {
            let connection = connect.await.map_err(Arc::new)?;
            let handshakes = Semaphore::new(HANDSHAKES);
            Ok(Arc::new(Jump { name: own_name, connection, handshakes }))
        };
        let made = cell.get_or_init(make).await.clone();
        made.map_err(|source| SshError::JumpHost { jump: name, source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::testing::{Answer, Server};
    use std::path::Path;
    use tokio::time::Instant;

    #[tokio::test(start_paused = true)]
    async fn a_command_that_is_not_run_says_whether_it_was_refused_stalls_or_lost_its_connection() {
        let stalls = "the connection to 192.0.2.7:22 stalls: no answer to a command within 30 s";
        let lost = "the connection to 192.0.2.7:22 was lost: ";
        let refused = "192.0.2.7:22 refused to run a command";
        for (answer, sentence) in
            [(Answer::Nothing, stalls), (Answer::HangUp, lost), (Answer::Refuse, refused)]
        {
            let connection = Server::new(answer).connect().await;
            let began = Instant::now();
            let error = connection.exec("true").await.map(drop).unwrap_err();
            assert!(error.to_string().starts_with(sentence), "{error}");
            let is_about_limits = error.hint("b").unwrap().contains("MaxSessions");
            assert_eq!(is_about_limits, answer == Answer::Refuse, "{error}");
            let limit = if answer == Answer::Nothing { SESSION_TIMEOUT } else { Duration::ZERO };
            assert_eq!(began.elapsed().as_secs(), limit.as_secs(), "{error}");
        }
        assert!(Server::new(Answer::Accept).connect().await.exec("true").await.is_ok());
    }

    fn jumps(text: &str, name: &str) -> Result<Vec<String>, String> {
        let files = SshConfig::parse(text, Path::new("/config")).unwrap();
        let hop = JumpHop { user: None, host: name.into(), port: None };
        let target = Hop::resolve(&files, &hop).unwrap();
        let jumps = jumps_before(&files, &target).map_err(|error| error.to_string())?;
        Ok(jumps.iter().map(Hop::login_key).collect())
    }

    fn expect(text: &str, name: &str, wanted: &[&str]) {
        assert_eq!(jumps(text, name).unwrap(), wanted, "{text}");
    }

    #[test]
    fn lists_begin_with_the_nearest_and_go_on_in_its_own_configuration() {
        expect("Host x\n ProxyJump a", "far", &[]);
        expect("Host far\n ProxyJump none\nHost *\n ProxyJump a", "far", &[]);
        expect("Host far\n ProxyJump me@a:7,b", "far", &["me@a:7", "@b:22"]);
        let own = "Host far\n ProxyJump a,b\nHost a\n ProxyJump c\n HostName a.net\n User u\n\
                   Host b\n ProxyJump never\n Port 9";
        expect(own, "far", &["@c:22", "u@a.net:22", "@b:9"]);
    }

    #[test]
    fn circles_and_endless_chains_are_refused_with_their_hosts() {
        let is_loop = "its jump hosts form a loop: far through a through a";
        assert_eq!(jumps("Host *\n ProxyJump a", "far"), Err(is_loop.into()));
        let own = jumps("Host far a\n ProxyJump far", "a").unwrap_err();
        assert!(own.contains("a through far through far"), "{own}");
        let text: String = (0..20).map(|n| format!("Host h{n}\n ProxyJump h{}\n", n + 1)).collect();
        let long = jumps(&text, "h0").unwrap_err();
        assert!(long.starts_with("more than 8 jump hosts: h0 through h1 "), "{long}");
        assert_eq!(jumps(&text, "h12").unwrap().len(), 8);
    }

    #[test]
    fn addresses_of_ipv6_stand_in_brackets() {
        expect("Host far\n ProxyJump [fd00::2]:7", "far", &["@[fd00::2]:7"]);
    }
}
