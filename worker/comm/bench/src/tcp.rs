//! Throughput of one TCP connection between the hosts of the first two ranks. Messages are compared with it where
//! the rate of the link is not known, as with devices that software emulates.

use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::rank_table::{PairTransport, RankTable};
use rlaunch_comm::{CommError, Communicator};
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

const TAG: u32 = 2;
/// Time for which data is sent.
const DURATION: Duration = Duration::from_millis(400);
/// Time in which the connection has to be made, and each write to succeed.
const DEADLINE: Duration = Duration::from_secs(2);
/// Time in which an accepted connection has to show the secret.
const PATIENCE: Duration = Duration::from_millis(200);
/// Size of writes and reads in bytes.
const CHUNK: usize = 256 << 10;
/// Length of the secret by which the connection is recognised, in bytes.
const SECRET: usize = 16;

/// Address of rank 1 for the connection: that of its NIC, if its messages take one.
pub(crate) fn address(table: &RankTable) -> Option<IpAddr> {
    let pair = table.pair(Rank(0), Rank(1))?;
    let node = table.nodes().iter().find(|row| row.node == table.ranks()[1].node)?;
    let nic = pair.nic_b.and_then(|nic| node.nics.get(nic as usize));
    match pair.connect {
        PairTransport::SharedMemory => None,
        PairTransport::Tcp => Some(node.address),
        PairTransport::Rdma | PairTransport::RdmaCm => nic?.address,
    }
}

/// Measures with rank 0 as the sender. Returns Mb/s on rank 0; `None` on other ranks, and if no
/// connection was made.
pub(crate) fn throughput(comm: &Communicator, at: IpAddr) -> Result<Option<f64>, CommError> {
    match comm.rank() {
        0 => {
            let mut offer = [0_u8; SECRET + 2];
            comm.recv(&mut offer, 1, TAG)?;
            let (secret, port) = offer.split_at(SECRET);
            let port = u16::from_le_bytes([port[0], port[1]]);
            Ok(if port == 0 { None } else { send(SocketAddr::new(at, port), secret).ok() })
        }
        1 => {
            let listening = listen(at);
            let mut offer = [0_u8; SECRET + 2];
            if let Ok((_, secret, port)) = &listening {
                offer[..SECRET].copy_from_slice(secret);
                offer[SECRET..].copy_from_slice(&port.to_le_bytes());
            }
            comm.send(&offer, 0, TAG)?;
            // The sender reports what failed.
            if let Ok((listener, secret, _)) = listening {
                let _ = receive(&listener, &secret);
            }
            Ok(None)
        }
        _ => Ok(None),
    }
}

fn listen(at: IpAddr) -> io::Result<(TcpListener, [u8; SECRET], u16)> {
    let listener = TcpListener::bind((at, 0))?;
    listener.set_nonblocking(true)?;
    let mut secret = [0; SECRET];
    File::open("/dev/urandom")?.read_exact(&mut secret)?;
    let port = listener.local_addr()?.port();
    Ok((listener, secret, port))
}

/// Sends for [`DURATION`], and returns the rate in Mb/s until the peer has received everything.
fn send(to: SocketAddr, secret: &[u8]) -> io::Result<f64> {
    let mut stream = TcpStream::connect_timeout(&to, DEADLINE)?;
    stream.set_write_timeout(Some(DEADLINE))?;
    stream.set_read_timeout(Some(DEADLINE))?;
    stream.write_all(secret)?;
    let (chunk, mut sent) = (vec![0; CHUNK], 0_usize);
    let begin = Instant::now();
    while begin.elapsed() < DURATION {
        stream.write_all(&chunk)?;
        sent += CHUNK;
    }
    stream.shutdown(std::net::Shutdown::Write)?;
    // The peer closes the connection once it has read the end.
    stream.read_exact(&mut [0])?;
    Ok(sent as f64 * 8.0 / begin.elapsed().as_secs_f64() / 1e6)
}

/// Accepts the connection that begins with the secret, and reads to its end.
fn receive(listener: &TcpListener, secret: &[u8; SECRET]) -> io::Result<()> {
    let deadline = Instant::now() + DEADLINE;
    while Instant::now() < deadline {
        let mut stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            Err(error) => return Err(error),
        };
        stream.set_nonblocking(false)?;
        // The sender writes the secret at once; a stranger may write nothing, or slowly.
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut shown = [0; SECRET];
        if matches!(stream.read(&mut shown), Ok(SECRET)) && shown == *secret {
            stream.set_read_timeout(Some(DEADLINE))?;
            let mut chunk = vec![0; CHUNK];
            while stream.read(&mut chunk)? > 0 {}
            return stream.write_all(&[0]);
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn a_stranger_does_not_take_the_connection() {
        let at = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let (listener, secret, port) = listen(at).unwrap();
        let to = SocketAddr::new(at, port);
        let receiver = std::thread::spawn(move || receive(&listener, &secret));
        let _silent = TcpStream::connect(to).unwrap();
        let mut stranger = TcpStream::connect(to).unwrap();
        stranger.write_all(&[0; SECRET]).unwrap();
        let rate = send(to, &secret).unwrap();
        assert!(rate > 1.0, "{rate}");
        receiver.join().unwrap().unwrap();
    }
}
