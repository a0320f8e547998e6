//! Jump hosts: the way through them as the configuration has it, and the connections to them,
//! each made once and shared by all hosts behind it.

use super::Connection;
use super::config::{ConfigError, HostConfig, JumpHop, Proxy, SshConfig};
use super::error::SshError;
use super::stream::Stream;
use russh::ChannelOpenFailure;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OnceCell, Semaphore, SemaphorePermit};

/// The most jump hosts on the way to a host.
const MOST_JUMPS: usize = 8;
/// Handshakes at one time through one jump host, which has to carry and to encrypt each of them.
const TURNS: usize = 8;
/// Where sshd listens.
pub(super) const SSH_PORT: u16 = 22;

/// A host to log in to, and what its configuration says.
#[derive(Clone, Debug)]
pub(super) struct Hop {
    /// As the user or the configuration calls it.
    pub(super) name: String,
    pub(super) config: HostConfig,
    pub(super) port: u16,
}

impl Hop {
    fn resolve(files: &SshConfig, jump: &JumpHop) -> Result<Hop, ConfigError> {
        let config = files.resolve_as(&jump.host, jump.user.as_deref(), jump.port)?;
        let port = config.port.unwrap_or(SSH_PORT);
        Ok(Hop { name: jump.host.clone(), config, port })
    }

    /// Where it is, as its configuration has it: `far:22`.
    pub(super) fn place(&self) -> String {
        let name = &self.config.hostname;
        match name.contains(':') {
            true => format!("[{name}]:{}", self.port),
            false => format!("{name}:{}", self.port),
        }
    }

    /// `user@far:22`: the same login at the same place is the same hop.
    fn key(&self) -> String {
        format!("{}@{}", self.config.user.as_deref().unwrap_or_default(), self.place())
    }
}

/// The jump hosts before `target`, the nearest to this machine first. In a list each one is reached
/// through the one before it; the first one may have a `ProxyJump` of its own, as with `ssh -J`.
pub(super) fn jumps_before(files: &SshConfig, target: &Hop) -> Result<Vec<Hop>, SshError> {
    let mut jumps: VecDeque<Hop> = VecDeque::new();
    loop {
        let nearest = jumps.front().unwrap_or(target);
        let Proxy::Jump(list) = nearest.config.proxy.clone() else { return Ok(jumps.into()) };
        for jump in list.iter().rev() {
            let hop = Hop::resolve(files, jump)?;
            let circle = jumps.iter().chain([target]).any(|other| other.key() == hop.key());
            jumps.push_front(hop);
            if circle || jumps.len() > MOST_JUMPS {
                let names: Vec<&str> = jumps.iter().rev().map(|jump| jump.name.as_str()).collect();
                let chain = format!("{} through {}", target.name, names.join(" through "));
                return Err(SshError::JumpChain { chain, circle });
            }
        }
    }
}

/// A jump host that let us in.
pub(super) struct Jump {
    name: String,
    connection: Connection,
    turns: Semaphore,
}

impl Jump {
    /// One of the handshakes that may go on through it.
    pub(super) async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        // It is never closed.
        self.turns.acquire().await.ok()
    }

    /// Lets it connect to a host behind it; the name is looked up there.
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
                let (jump, place) = (self.name.clone(), hop.place());
                Err(SshError::Forward { jump, place, source: Box::new(source) })
            }
        }
    }
}

/// How the login to a jump host went, for all who are behind it.
type Made = Result<Arc<Jump>, Arc<SshError>>;

/// The jump hosts of a job, by the way to each of them.
#[derive(Default)]
pub(super) struct Jumps(Mutex<HashMap<Vec<String>, Arc<OnceCell<Made>>>>);

impl Jumps {
    /// The last one of `way`. Who asks first makes it by `connect`; the others wait for that.
    pub(super) async fn get(
        &self,
        way: &[Hop],
        connect: impl Future<Output = Result<Connection, SshError>>,
    ) -> Result<Arc<Jump>, SshError> {
        let name = way.last().map_or_else(String::new, |hop| hop.name.clone());
        let cell = {
            let mut cells = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            cells.entry(way.iter().map(Hop::key).collect()).or_default().clone()
        };
        let own_name = name.clone();
        let make = || async move {
            let connection = connect.await.map_err(Arc::new)?;
            let turns = Semaphore::new(TURNS);
            Ok(Arc::new(Jump { name: own_name, connection, turns }))
        };
        let made = cell.get_or_init(make).await.clone();
        made.map_err(|source| SshError::Through { jump: name, source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn jumps(text: &str, name: &str) -> Result<Vec<String>, String> {
        let files = SshConfig::parse(text, Path::new("/config")).unwrap();
        let hop = JumpHop { user: None, host: name.into(), port: None };
        let target = Hop::resolve(&files, &hop).unwrap();
        let jumps = jumps_before(&files, &target).map_err(|error| error.to_string())?;
        Ok(jumps.iter().map(Hop::key).collect())
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
        let circle = "its jump hosts lead in a circle: far through a through a";
        assert_eq!(jumps("Host *\n ProxyJump a", "far"), Err(circle.into()));
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
