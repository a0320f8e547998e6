//! Client of NCCL's RAS service.
//!
//! Every process of a job with NCCL has a thread for the service, and the processes of a node share its port, so the
//! answer of one tells about all ranks. The protocol is text (`src/ras/client_support.cc` in the source of NCCL); the
//! format JSON exists since 2.28.7. An older service refuses it, and its ranks have no positions.

use super::RankProcess;
use nix::ifaddrs::getifaddrs;
use rlaunch_bootstrap::protocol::inspection::{GroupPosition, GroupProgress};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::{self, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Share of the time that remains in which the service waits for other processes.
const SERVICE_SHARE: f64 = 0.6;
/// Maximum length of an answer in bytes. A rank takes 0.5 KiB in each communicator.
const MAX_ANSWER: u64 = 64 << 20;
/// Maximum length of a line of the handshake in bytes.
const MAX_LINE: usize = 1024;
/// Time in which a process must connect and answer the handshake.
const HANDSHAKE: Duration = Duration::from_millis(500);
/// Number of connections that are tried. Each reaches one of the processes that share the address.
const ATTEMPTS: usize = 4;

/// Answer to `status`, without what is not read.
#[derive(Debug, Deserialize)]
struct Status {
    communicators: Vec<Communicator>,
}

#[derive(Debug, Deserialize)]
struct Communicator {
    /// Number that the ranks of a communicator share.
    hash: String,
    size: u32,
    ranks: Vec<Member>,
    #[serde(default)]
    missing_ranks: Vec<MissingMember>,
}

/// Rank that has answered.
#[derive(Debug, Deserialize)]
struct Member {
    /// IP address of its host, or `unknown`.
    host: String,
    /// Process id in the process's own namespace; -1 if unknown.
    pid: i64,
    collective_counts: BTreeMap<String, u64>,
}

/// Rank that has not answered.
#[derive(Debug, Deserialize)]
struct MissingMember {
    host: String,
    pid: i64,
    status: MissingStatus,
}

#[derive(Debug, Deserialize)]
struct MissingStatus {
    considered_dead: bool,
}

/// Asks the service at `address`, as in `localhost:28028`, and returns the positions of these processes.
pub(super) fn positions(
    address: &str,
    processes: &[RankProcess],
    deadline: Instant,
) -> io::Result<Vec<GroupPosition>> {
    let answer = ask(address, deadline)?;
    let status: Status = serde_json::from_slice(&answer)?;
    let local: Vec<IpAddr> = getifaddrs()?.filter_map(|interface| ip(interface.address?)).collect();
    Ok(select(&status, processes, &local))
}

/// Returns the positions of those ranks that are processes of this host.
fn select(status: &Status, processes: &[RankProcess], local: &[IpAddr]) -> Vec<GroupPosition> {
    let process = |host: &str, pid: i64| {
        let address: IpAddr = host.parse().ok()?;
        let pid = u32::try_from(pid).ok()?;
        let mut own = processes.iter().filter(|_| local.contains(&address));
        own.find(|process| process.pids.contains(&pid))
    };
    let mut positions = Vec::new();
    for Communicator { hash, size, ranks, missing_ranks } in &status.communicators {
        let answered = ranks.iter().filter_map(|member| {
            let counts = member.collective_counts.iter().filter(|(_, count)| **count > 0);
            let counts = counts.map(|(name, count)| (name.clone(), *count)).collect();
            Some((process(&member.host, member.pid)?, GroupProgress::Launched(counts)))
        });
        let missing = missing_ranks.iter().filter_map(|member| {
            let is_dead = member.status.considered_dead;
            Some((process(&member.host, member.pid)?, GroupProgress::Missing { is_dead }))
        });
        positions.extend(answered.chain(missing).map(|(process, progress)| GroupPosition {
            rank: process.rank,
            started: process.started,
            group: hash.clone(),
            size: *size,
            progress,
        }));
    }
    positions
}

/// Returns the service's answer to `status`, a JSON document. The processes of a node share the address, and a connection
/// reaches one of them: if that one is silent, another connection is tried.
fn ask(address: &str, deadline: Instant) -> io::Result<Vec<u8>> {
    let address =
        address.to_socket_addrs()?.next().ok_or_else(|| io::Error::other("no address"))?;
    let greeted = (0..ATTEMPTS).find_map(|_| {
        let soon = deadline.min(Instant::now() + HANDSHAKE);
        Conversation::begin(&address, soon, deadline).ok()
    });
    let mut conversation = greeted.ok_or(io::ErrorKind::TimedOut)?;
    conversation.deadline = deadline;
    conversation.send("status")?;
    let mut answer = Vec::new();
    BufReader::new(conversation).take(MAX_ANSWER).read_to_end(&mut answer)?;
    Ok(answer)
}

/// Connection to the service, with one deadline for all that is read and written.
struct Conversation {
    socket: TcpStream,
    deadline: Instant,
}

impl Conversation {
    /// Connects and chooses the format, until `soon`. The service is to answer before `deadline`.
    fn begin(address: &SocketAddr, soon: Instant, deadline: Instant) -> io::Result<Conversation> {
        let socket = TcpStream::connect_timeout(address, left(soon)?)?;
        let mut conversation = Conversation { socket, deadline: soon };
        // The service refuses fractions of a second.
        let limit = (left(deadline)?.as_secs_f64() * SERVICE_SHARE).floor().max(1.0);
        let timeout = format!("timeout {limit}");
        // The service has little room for commands that wait, so each one waits for the answer to the last.
        for command in ["client protocol 2", &timeout, "set format json"] {
            conversation.send(command)?;
            let line = conversation.line()?;
            if line.starts_with("ERROR") || line.is_empty() {
                return Err(io::Error::other(format!("`{command}`: {}", line.trim())));
            }
        }
        Ok(conversation)
    }

    fn send(&mut self, command: &str) -> io::Result<()> {
        self.socket.set_write_timeout(Some(left(self.deadline)?))?;
        self.socket.write_all(format!("{command}\n").as_bytes())
    }

    /// Reads a line byte by byte, since what follows it is for another reader.
    fn line(&mut self) -> io::Result<String> {
        let (mut line, mut byte) = (Vec::new(), [0]);
        while line.len() < MAX_LINE && byte != [b'\n'] && self.read(&mut byte)? > 0 {
            line.extend(byte);
        }
        Ok(String::from_utf8_lossy(&line).into_owned())
    }
}

impl Read for Conversation {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(Some(left(self.deadline)?))?;
        self.socket.read(buffer)
    }
}

/// Returns the time until the deadline; an error if it has passed.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

fn ip(address: nix::sys::socket::SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_bootstrap::id::Rank;
    use std::io::BufRead;
    use std::net::TcpListener;
    use std::thread;

    /// Answer in the form in which NCCL 2.32 writes it.
    const STATUS: &str = r#"{
  "nccl_version": "2.32.3",
  "communicators_count": 1,
  "communicators": [
    {
      "hash": "0x5b1c",
      "secondary_hash": "0x1:0x2",
      "size": 3,
      "ranks_count": 2,
      "missing_ranks_count": 1,
      "ranks": [
        { "rank": 0, "host": "127.0.0.1", "pid": 40, "cuda_dev": 0, "nvml_dev": 0,
          "status": { "init_state": 0, "async_error": 0 },
          "collective_counts": { "Broadcast": 2, "AllReduce": 42, "Reduce": 0 } },
        { "rank": 1, "host": "203.0.113.9", "pid": 40, "cuda_dev": 0, "nvml_dev": 0,
          "collective_counts": { "AllReduce": 41 } }
      ],
      "missing_ranks": [
        { "rank": 2, "host": "127.0.0.1", "pid": 41, "cuda_dev": 1, "nvml_dev": 1,
          "status": { "unresponsive": true, "considered_dead": false } }
      ]
    }
  ],
  "ras": { "collection_time_sec": 0.002, "timeouts_count": 0 }
}
"#;

    fn process(rank: u32, pid: u32) -> RankProcess {
        RankProcess {
            rank: Rank(rank),
            started: None,
            pids: vec![pid],
            ras_address: None,
            recorder: None,
        }
    }

    /// Serves one client as NCCL does, and returns the address. `answers` answers a command.
    fn service(answers: impl Fn(&str) -> &'static str + Send + 'static) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        thread::spawn(move || {
            let (socket, _) = listener.accept().unwrap();
            for command in BufReader::new(&socket).lines() {
                let command = command.unwrap();
                (&socket).write_all(answers(&command).as_bytes()).unwrap();
                if command == "status" {
                    return;
                }
            }
        });
        address
    }

    /// Answers `timeout` as the service does, which takes whole seconds alone; anything else is accepted.
    fn accepts_timeout(command: &str) -> &'static str {
        let seconds = command.strip_prefix("timeout ");
        match seconds.map(str::parse::<u32>) {
            Some(Err(_)) => "ERROR: Invalid timeout value\n",
            Some(Ok(_)) | None => "OK\n",
        }
    }

    fn asked(address: &str) -> io::Result<Vec<GroupPosition>> {
        let deadline = Instant::now() + Duration::from_secs(20);
        positions(address, &[process(5, 40), process(6, 41)], deadline)
    }

    #[test]
    fn ranks_of_this_host_have_positions() {
        let address = service(|command| match command {
            "status" => STATUS,
            "client protocol 2" => "SERVER PROTOCOL 2\n",
            _ => accepts_timeout(command),
        });
        let position = |rank, progress| {
            let (group, size) = ("0x5b1c".to_owned(), 3);
            GroupPosition { rank: Rank(rank), started: None, group, size, progress }
        };
        let launched = vec![("AllReduce".to_owned(), 42), ("Broadcast".to_owned(), 2)];
        assert_eq!(
            asked(&address).unwrap(),
            [
                position(5, GroupProgress::Launched(launched)),
                position(6, GroupProgress::Missing { is_dead: false }),
            ]
        );
    }

    #[test]
    fn a_service_without_json_has_no_positions() {
        let address = service(|command| match command {
            "set format json" => "ERROR: Unknown command set format json\n",
            _ => accepts_timeout(command),
        });
        assert!(asked(&address).is_err());
    }

    #[test]
    fn a_service_that_is_silent_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let deadline = Instant::now() + Duration::from_millis(50);
        assert!(positions(&address, &[], deadline).is_err());
    }
}
