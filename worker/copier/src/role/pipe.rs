//! Carries bytes between stdin, stdout and a port of this host, where no TCP connection reaches it.

use super::RoleError;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::thread;

/// Carries bytes until the program at the port closes its connection.
pub fn pipe(port: u16) -> Result<(), RoleError> {
    let carried = files().and_then(|(input, output)| carry(port, input, output));
    let carried = carried.map_err(|source| RoleError::Pipe { port, source });
    if let Err(error) = &carried {
        // Nobody reads reports of this one.
        eprintln!("error: {}", error.text());
    }
    carried
}

/// Returns stdin and stdout without buffers.
fn files() -> io::Result<(File, File)> {
    let input = io::stdin().as_fd().try_clone_to_owned()?;
    let output = io::stdout().as_fd().try_clone_to_owned()?;
    Ok((input.into(), output.into()))
}

fn carry(
    port: u16,
    mut input: impl Read + Send + 'static,
    mut output: impl Write,
) -> io::Result<()> {
    let mut socket = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    socket.set_nodelay(true)?;
    let mut to = socket.try_clone()?;
    // Ends with the process, if nothing more is written to stdin.
    thread::spawn(move || {
        // The program at the port notices what is missing.
        let _ = carry_to_end(&mut input, &mut to);
        let _ = to.shutdown(Shutdown::Write);
    });
    carry_to_end(&mut socket, &mut output)?;
    output.flush()
}

/// Copies to the end of `from`. `io::copy` would call splice(2), which holds the pipe's lock while it waits for the socket:
/// the agent at the other end of the pipe would be blocked by a read that must not block.
fn carry_to_end(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut buffer = vec![0; 128 << 10];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(length) => to.write_all(&buffer[..length])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;
    use std::net::TcpListener;

    #[test]
    fn bytes_go_both_ways_to_their_end() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let echo = thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let mut bytes = Vec::new();
            socket.read_to_end(&mut bytes).unwrap();
            bytes.reverse();
            socket.write_all(&bytes).unwrap();
        });
        let sent: Vec<u8> = (0..300_000_u32).map(|byte| byte as u8).collect();
        let mut received = Vec::new();
        carry(port, Cursor::new(sent.clone()), &mut received).unwrap();
        echo.join().unwrap();
        received.reverse();
        assert!(received == sent);
    }

    #[test]
    fn a_port_without_a_program_is_named() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let source = carry(port, io::empty(), io::sink()).unwrap_err();
        let text = RoleError::Pipe { port, source }.text();
        assert!(text.starts_with(&format!("cannot carry bytes to port {port}: ")), "{text}");
    }
}
