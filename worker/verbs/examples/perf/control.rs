//! Control connection between both ends, over TCP. The ends exchange endpoints over it, and wait
//! for each other.

use crate::Failure;
use rlaunch_verbs::{Endpoint, Mtu};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};

/// Control connection, which carries lines of text.
pub(crate) struct Control(BufReader<TcpStream>);

impl Control {
    /// Connects to the server; without a server, waits for a client.
    pub(crate) fn connect(server: Option<&str>, port: u16) -> Result<Control, Failure> {
        let stream = match server {
            Some(server) => TcpStream::connect((server, port))?,
            None => TcpListener::bind(("0.0.0.0", port))?.accept()?.0,
        };
        stream.set_nodelay(true)?;
        Ok(Control(BufReader::new(stream)))
    }

    /// Sends this end's endpoint and receives the peer's.
    pub(crate) fn exchange(&mut self, mine: &Endpoint) -> Result<Endpoint, Failure> {
        let (address, key) = mine.memory.ok_or("no memory")?;
        let gid = mine.gid.ok_or("the entry of the GID table is empty")?;
        let Endpoint { qpn, psn, lid, mtu, .. } = mine;
        let mtu = mtu.bytes();
        self.send(&format!("{qpn} {psn} {lid} {gid} {mtu} {address} {key}"))?;
        let line = self.receive()?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let [qpn, psn, lid, gid, mtu, address, key] = words[..] else {
            return Err(format!("unexpected line from the peer: {line}").into());
        };
        Ok(Endpoint {
            qpn: qpn.parse()?,
            psn: psn.parse()?,
            lid: lid.parse()?,
            gid: Some(gid.parse()?),
            mtu: Mtu::up_to(mtu.parse()?).ok_or("the peer's MTU is below 256")?,
            memory: Some((address.parse()?, key.parse()?)),
        })
    }

    /// Returns once the peer has called this function as well.
    pub(crate) fn wait_for_peer(&mut self) -> Result<(), Failure> {
        self.send("ready")?;
        match self.receive()?.as_str() {
            "ready" => Ok(()),
            line => Err(format!("unexpected line from the peer: {line}").into()),
        }
    }

    fn send(&mut self, line: &str) -> Result<(), Failure> {
        Ok(self.0.get_mut().write_all(format!("{line}\n").as_bytes())?)
    }

    fn receive(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        match self.0.read_line(&mut line)? {
            0 => Err("the peer has closed the control connection".into()),
            _ => Ok(line.trim_end().to_owned()),
        }
    }
}
