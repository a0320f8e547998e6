//! Calls that return when they are answered.

use super::events::JobEvent;
use super::request::{self, Answered, ClockOffset, Request};
use super::session::{READ, Session, WELCOME_TIMEOUT};
use super::{ClientError, Credentials};
use bytes::Bytes;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// A rank's connection to its agent. A process may have several.
#[derive(Debug)]
pub struct Client {
    socket: UnixStream,
    session: Session,
}

/// The socket, to be asked who is at its other end.
impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Client {
    /// Connects to the agent that the environment names.
    pub fn from_env() -> Result<Client, ClientError> {
        Client::connect(Credentials::from_env()?)
    }

    /// Connects and says hello.
    pub fn connect(credentials: Credentials) -> Result<Client, ClientError> {
        let (session, hello) = Session::start(&credentials)?;
        let path = credentials.socket;
        let socket = UnixStream::connect(&path);
        let socket = socket.map_err(|source| ClientError::Connect { path, source })?;
        let mut client = Client { socket, session };
        client.send(&hello)?;
        client.socket.set_read_timeout(Some(WELCOME_TIMEOUT)).map_err(ClientError::Socket)?;
        while !client.session.is_welcomed()? {
            client.receive()?;
        }
        client.socket.set_read_timeout(None).map_err(ClientError::Socket)?;
        Ok(client)
    }

    /// How many ranks the job has.
    pub fn world_size(&self) -> u32 {
        self.session.world_size()
    }

    /// Waits may take this long from here on, in place of what RLAUNCH_COMM_TIMEOUT says.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.session.timeout = timeout;
    }

    /// Waits until every rank has called this as often as this one.
    pub fn barrier(&mut self, name: &str) -> Result<(), ClientError> {
        self.call(Request::barrier(name, self.session.timeout)).map(drop)
    }

    /// Gives `blob`, at most 64 KiB, and gets what every rank gave, by rank.
    pub fn all_gather(&mut self, name: &str, blob: &[u8]) -> Result<Vec<Bytes>, ClientError> {
        let answered = self.call(Request::all_gather(name, blob, self.session.timeout))?;
        request::gathered(answered, self.world_size())
    }

    /// Keeps `value`, at most 64 KiB, for every rank to read.
    pub fn put(&mut self, namespace: &str, key: &str, value: &[u8]) -> Result<(), ClientError> {
        self.call(Request::put(namespace, key, value)).map(drop)
    }

    /// Reads what is kept under a key, if anything is.
    pub fn get(&mut self, namespace: &str, key: &str) -> Result<Option<Bytes>, ClientError> {
        self.call(Request::get(namespace, key)).map(request::value)
    }

    /// Reads what is kept under a key, once something is.
    pub fn wait(&mut self, namespace: &str, key: &str) -> Result<Bytes, ClientError> {
        let request = Request::wait(namespace, key, self.session.timeout);
        self.call(request).map(|(_, value)| value)
    }

    /// Ends the job; every rank's calls end with `text`.
    pub fn abort(&mut self, text: &str) -> Result<(), ClientError> {
        self.call(Request::abort(text)).map(drop)
    }

    /// How this machine's clock stands to that of rank 0's node.
    pub fn clock(&mut self) -> Result<ClockOffset, ClientError> {
        request::offset(&self.call(Request::clock())?)
    }

    /// Puts `text` into the job's events.
    pub fn event(&mut self, text: &str) -> Result<(), ClientError> {
        self.call(Request::event(text)).map(drop)
    }

    /// What the agent tells unasked: why other ranks will not answer any more. Waits for it so long
    /// at most, and not at all without. To be asked when the socket is readable; calls do not lose
    /// any.
    pub fn job_event(
        &mut self,
        timeout: Option<Duration>,
    ) -> Result<Option<JobEvent>, ClientError> {
        if let Some(event) = self.session.next_job_event()? {
            return Ok(Some(event));
        }
        let set = match timeout.filter(|timeout| !timeout.is_zero()) {
            Some(timeout) => self.socket.set_read_timeout(Some(timeout)),
            None => self.socket.set_nonblocking(true),
        };
        set.map_err(ClientError::Socket)?;
        let mut buffer = [0; READ];
        let read = self.socket.read(&mut buffer);
        let reset = self.socket.set_nonblocking(false);
        reset.and_then(|()| self.socket.set_read_timeout(None)).map_err(ClientError::Socket)?;
        match read {
            Ok(0) => Err(self.session.closed(None)),
            Ok(length) => {
                self.session.push(&buffer[..length]);
                self.session.next_job_event()
            }
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock
                        | io::ErrorKind::TimedOut
                        | io::ErrorKind::Interrupted
                ) =>
            {
                Ok(None)
            }
            Err(error) => Err(self.session.closed(Some(error))),
        }
    }

    fn call(&mut self, request: Request) -> Result<Answered, ClientError> {
        let (sent, bytes) = self.session.encode_call(request)?;
        self.send(&bytes)?;
        loop {
            if let Some(answered) = self.session.reply_to(&sent)? {
                return Ok(answered);
            }
            self.receive()?;
        }
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), ClientError> {
        self.socket.write_all(bytes).map_err(|error| self.session.closed(Some(error)))
    }

    fn receive(&mut self) -> Result<(), ClientError> {
        let mut buffer = [0; READ];
        match self.socket.read(&mut buffer) {
            Ok(0) => return Err(self.session.closed(None)),
            Ok(length) => self.session.push(&buffer[..length]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(self.session.closed(Some(error))),
        }
        Ok(())
    }
}
