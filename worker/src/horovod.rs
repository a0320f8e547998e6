//! The door of the store by which Horovod's ranks meet, on the node of rank 0.
//!
//! Horovod's client cannot show that it is of the job. So only the job's nodes are let in, by their
//! addresses: whoever runs a program on one of them could read and write here, other machines
//! cannot. What anybody may send, and how long, is bounded.

use crate::oob::ports::HeldPort;
use rlaunch_bootstrap::job::HorovodStore;
use rlaunch_horovod::{Answer, Refusal, RequestReader, Store};
use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// How long a request and its answer may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Requests at once; more wait in the kernel. Bounds the memory for values that are arriving.
const MOST: usize = 64;
/// Between two tries to open a door that jams.
const BREATH: Duration = Duration::from_millis(10);

/// Serves for as long as it is kept, where there is anything to serve.
pub(crate) struct Door {
    // Aborts its tasks when it goes.
    _tasks: JoinSet<()>,
}

impl Door {
    /// Nothing is served on this node.
    pub(crate) fn absent() -> Door {
        Door { _tasks: JoinSet::new() }
    }

    /// Opens it at an address and port that are held for it.
    pub(crate) fn open(plan: &HorovodStore, held: &mut Vec<HeldPort>) -> io::Result<Door> {
        let port = plan.address.port();
        let index = held.iter().position(|held| held.port == port);
        let Some(index) = index else {
            return Err(io::Error::new(io::ErrorKind::NotFound, format!("no port {port} is held")));
        };
        let listener = held.remove(index).listen(plan.address.ip())?;
        let mut tasks = JoinSet::new();
        tasks.spawn(accept_all(listener, plan.peers.iter().copied().collect()));
        Ok(Door { _tasks: tasks })
    }
}

async fn accept_all(listener: TcpListener, peers: BTreeSet<IpAddr>) {
    let store = Arc::new(Mutex::new(Store::default()));
    let seats = Arc::new(Semaphore::new(MOST));
    let mut requests = JoinSet::new();
    loop {
        // Never closed.
        let Ok(seat) = seats.clone().acquire_owned().await else { return };
        let (socket, from) = loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok(accepted) => break accepted,
                    // The caller has gone already, or there are too many open files for a while.
                    Err(_) => tokio::time::sleep(BREATH).await,
                },
                Some(_) = requests.join_next() => {}
            }
        };
        if !peers.contains(&from.ip().to_canonical()) {
            continue;
        }
        let store = store.clone();
        requests.spawn(async move {
            // Whose request fails asks again, or has gone.
            let _ = timeout(PATIENCE, serve(socket, &store)).await;
            drop(seat);
        });
    }
}

/// One request, as Horovod's client opens a connection for each.
async fn serve(mut socket: TcpStream, store: &Mutex<Store>) -> io::Result<()> {
    let mut reader = RequestReader::default();
    let mut buffer = [0; 4096];
    let answer = loop {
        let length = socket.read(&mut buffer).await?;
        if length == 0 {
            break Answer::Refused(Refusal::Malformed);
        }
        match reader.push(&buffer[..length]) {
            Ok(None) => {}
            Ok(Some(request)) => {
                break store.lock().unwrap_or_else(PoisonError::into_inner).answer(request);
            }
            Err(refusal) => break Answer::Refused(refusal),
        }
    };
    socket.write_all(&answer.to_bytes()).await?;
    socket.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_bootstrap::id::JobId;
    use rlaunch_bootstrap::job::PortRange;
    use std::net::{Ipv4Addr, SocketAddr};

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const RANGE: PortRange = PortRange { first: 21000, last: 21511 };

    fn open(job: u128, peers: &[IpAddr]) -> (Door, SocketAddr) {
        let mut held = vec![HeldPort::take(RANGE, JobId(job), &[HERE]).unwrap()];
        let address = SocketAddr::new(HERE, held[0].port);
        let plan = HorovodStore { address, peers: peers.to_vec() };
        let door = Door::open(&plan, &mut held).unwrap();
        assert!(held.is_empty());
        (door, address)
    }

    /// What comes back; nothing when the door is shut.
    async fn ask(address: SocketAddr, request: &str) -> String {
        let mut socket = TcpStream::connect(address).await.unwrap();
        let mut answer = Vec::new();
        let asked = async {
            socket.write_all(request.as_bytes()).await?;
            socket.read_to_end(&mut answer).await
        };
        drop(timeout(PATIENCE, asked).await.unwrap());
        String::from_utf8(answer).unwrap()
    }

    #[tokio::test]
    async fn ranks_leave_and_find_values() {
        let (_door, address) = open(31, &[HERE]);
        let get = "GET /global/0 HTTP/1.1\r\n\r\n";
        assert!(ask(address, get).await.starts_with("HTTP/1.1 404 "));
        let put = "PUT /global/0 HTTP/1.1\r\nContent-Length: 4\r\n\r\nhere";
        assert!(ask(address, put).await.starts_with("HTTP/1.1 200 "));
        let found = ask(address, get).await;
        assert!(found.starts_with("HTTP/1.1 200 ") && found.ends_with("\r\n\r\nhere"), "{found}");
        assert!(ask(address, "nonsense\r\n\r\n").await.starts_with("HTTP/1.1 400 "));
    }

    #[tokio::test]
    async fn others_are_not_let_in() {
        let (_door, address) = open(32, &[IpAddr::V4(Ipv4Addr::new(10, 1, 0, 2))]);
        assert_eq!(ask(address, "GET /global/0 HTTP/1.1\r\n\r\n").await, "");
    }

    #[tokio::test]
    async fn who_says_nothing_keeps_nobody_out() {
        let (_door, address) = open(33, &[HERE]);
        let mut silent = Vec::new();
        for _ in 0..MOST - 1 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        assert!(ask(address, "GET /global/0 HTTP/1.1\r\n\r\n").await.starts_with("HTTP/1.1 404 "));
    }

    #[tokio::test]
    async fn the_door_shuts_with_the_job() {
        let (door, address) = open(34, &[HERE]);
        drop(door);
        tokio::task::yield_now().await;
        assert!(TcpStream::connect(address).await.is_err());
    }

    #[test]
    fn a_port_that_is_not_held_is_not_listened_on() {
        let plan = HorovodStore { address: SocketAddr::new(HERE, 21_000), peers: vec![HERE] };
        assert!(Door::open(&plan, &mut Vec::new()).is_err());
    }
}
