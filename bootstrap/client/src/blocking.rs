//! Client of the agent whose calls block until the agent replies.

use crate::session::{self, Answered, ClockOffset, READ, Request, Session, WELCOME_TIMEOUT};
use crate::{ClientError, Credentials};
use bytes::Bytes;
use rlaunch_bootstrap::protocol::rank::JobEvent;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Connection of a rank to its agent. A process may have several connections.
#[derive(Debug)]
pub struct Client {
    socket: UnixStream,
    session: Session,
}

/// Gives access to the socket, so that callers can `poll` it and read the credentials of the agent.
impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Client {
    /// Connects to the agent that this process's environment names.
    pub fn from_env() -> Result<Client, ClientError> {
        Client::connect(Credentials::from_env()?)
    }

    /// Connects to an agent and authenticates as a rank. Fails after 5 s without a reply.
    pub fn connect(credentials: Credentials) -> Result<Client, ClientError> {
        let (session, hello) = Session::start(&credentials)?;
        let path = credentials.socket;
        let socket = UnixStream::connect(&path);
        let socket = socket.map_err(|source| ClientError::Connect { path, source })?;
        let mut client = Client { socket, session };
        client.send(&hello)?;
        client.socket.set_read_timeout(Some(WELCOME_TIMEOUT)).map_err(ClientError::Socket)?;
        while !client.session.poll_welcome()? {
            client.receive()?;
        }
        client.socket.set_read_timeout(None).map_err(ClientError::Socket)?;
        Ok(client)
    }

    /// Returns the number of ranks in the job.
    pub fn world_size(&self) -> u32 {
        self.session.world_size()
    }

    /// Sets the timeout of later barriers, gathers and waits, in place of RLAUNCH_COMM_TIMEOUT.
    /// `None` means no timeout.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.session.timeout = timeout;
    }

    /// Waits until every rank has called the barrier `name` as often as this rank.
    pub fn barrier(&mut self, name: &str) -> Result<(), ClientError> {
        self.call(Request::barrier(name, self.session.timeout)).map(drop)
    }

    /// Exchanges blobs of at most 64 KiB among all ranks. Returns the blobs, indexed by rank, once
    /// every rank has called the gather `name` as often as this rank.
    pub fn all_gather(&mut self, name: &str, blob: &[u8]) -> Result<Vec<Bytes>, ClientError> {
        let answered = self.call(Request::all_gather(name, blob, self.session.timeout))?;
        session::gathered(answered, self.world_size())
    }

    /// Stores `value`, at most 64 KiB, under a key that all ranks can read.
    pub fn put(&mut self, namespace: &str, key: &str, value: &[u8]) -> Result<(), ClientError> {
        self.call(Request::put(namespace, key, value)).map(drop)
    }

    /// Returns the value of a key, or `None` if the key has no value yet.
    pub fn get(&mut self, namespace: &str, key: &str) -> Result<Option<Bytes>, ClientError> {
        self.call(Request::get(namespace, key)).map(session::value)
    }

    /// Waits until a key has a value, and returns the value.
    pub fn wait(&mut self, namespace: &str, key: &str) -> Result<Bytes, ClientError> {
        let request = Request::wait(namespace, key, self.session.timeout);
        self.call(request).map(|(_, value)| value)
    }

    /// Aborts the job. Pending calls of all ranks fail with `text`.
    pub fn abort(&mut self, text: &str) -> Result<(), ClientError> {
        self.call(Request::abort(text)).map(drop)
    }

    /// Measures the offset between this host's clock and the clock of rank 0's host.
    pub fn clock(&mut self) -> Result<ClockOffset, ClientError> {
        session::offset(&self.call(Request::clock())?)
    }

    /// Adds `text` to the event log that `--events` writes.
    pub fn event(&mut self, text: &str) -> Result<(), ClientError> {
        self.call(Request::event(text)).map(drop)
    }

    /// Returns the next job event that the agent has sent, or `None` if no complete event has
    /// arrived. Waits for at most `timeout`; without a timeout only reads what the socket holds.
    /// Events that arrive during other calls are kept for this function.
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
