//! What happens to bytes between two hosts, for tests.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// Faults of what the dialling host sends. Bytes of all connections count together.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fault {
    /// Number of bytes after which connections are cut.
    pub(crate) cut_at: Option<u64>,
    /// Number of a byte that is altered.
    pub(crate) flip_at: Option<u64>,
    /// Time by which each part is late.
    pub(crate) delay: Duration,
}

/// Passes connections on to a port of this host. Returns the port at which it accepts them.
pub(crate) fn start(to: u16, fault: Fault) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let count = Arc::new(AtomicU64::new(0));
    thread::spawn(move || {
        for from in listener.incoming() {
            let from = from.unwrap();
            let Ok(to) = TcpStream::connect((Ipv4Addr::LOCALHOST, to)) else { continue };
            let (mut back_from, mut back_to) = (to.try_clone().unwrap(), from.try_clone().unwrap());
            thread::spawn(move || {
                let _ = std::io::copy(&mut back_from, &mut back_to);
                let _ = back_to.shutdown(Shutdown::Write);
            });
            let count = Arc::clone(&count);
            thread::spawn(move || forward(from, to, fault, &count));
        }
    });
    port
}

fn forward(mut from: TcpStream, mut to: TcpStream, fault: Fault, count: &AtomicU64) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        let bytes = &mut buffer[..length];
        let begin = count.fetch_add(length as u64, Ordering::SeqCst);
        let end = begin + length as u64;
        if let Some(at) = fault.flip_at.filter(|at| (begin..end).contains(at)) {
            bytes[(at - begin) as usize] ^= 0x10;
        }
        if fault.cut_at.is_some_and(|at| end > at) {
            let _ = to.shutdown(Shutdown::Both);
            let _ = from.shutdown(Shutdown::Both);
            return;
        }
        thread::sleep(fault.delay);
        if to.write_all(bytes).is_err() {
            let _ = from.shutdown(Shutdown::Both);
            return;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}
