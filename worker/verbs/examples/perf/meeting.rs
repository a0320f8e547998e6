//! Where both ends meet before and after: a TCP connection.

use crate::Failure;
use rlaunch_verbs::{Endpoint, Mtu};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};

/// The connection, read by lines.
pub(crate) struct Meeting(BufReader<TcpStream>);

impl Meeting {
    /// At the server, or as the server for one peer.
    pub(crate) fn at(server: Option<&str>, port: u16) -> Result<Meeting, Failure> {
        let stream = match server {
            Some(server) => TcpStream::connect((server, port))?,
            None => TcpListener::bind(("0.0.0.0", port))?.accept()?.0,
        };
        stream.set_nodelay(true)?;
        Ok(Meeting(BufReader::new(stream)))
    }

    /// Tells the peer what it has to know, and is told.
    pub(crate) fn exchange(&mut self, mine: &Endpoint) -> Result<Endpoint, Failure> {
        let (address, key) = mine.memory.ok_or("no memory")?;
        let gid = mine.gid.ok_or("the place in the GID table is empty")?;
        let Endpoint { qpn, psn, lid, mtu, .. } = mine;
        let mtu = mtu.bytes();
        self.say(&format!("{qpn} {psn} {lid} {gid} {mtu} {address} {key}"))?;
        let line = self.hear()?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let [qpn, psn, lid, gid, mtu, address, key] = words[..] else {
            return Err(format!("the peer said: {line}").into());
        };
        Ok(Endpoint {
            qpn: qpn.parse()?,
            psn: psn.parse()?,
            lid: lid.parse()?,
            gid: Some(gid.parse()?),
            mtu: Mtu::up_to(mtu.parse()?).ok_or("the peer's MTU is none")?,
            memory: Some((address.parse()?, key.parse()?)),
        })
    }

    /// Returns once the peer is here as well.
    pub(crate) fn wait_for_peer(&mut self) -> Result<(), Failure> {
        self.say("here")?;
        match self.hear()?.as_str() {
            "here" => Ok(()),
            line => Err(format!("the peer said: {line}").into()),
        }
    }

    fn say(&mut self, line: &str) -> Result<(), Failure> {
        Ok(self.0.get_mut().write_all(format!("{line}\n").as_bytes())?)
    }

    fn hear(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        match self.0.read_line(&mut line)? {
            0 => Err("the peer has gone".into()),
            _ => Ok(line.trim_end().to_owned()),
        }
    }
}
