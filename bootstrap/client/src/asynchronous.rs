//! Client of the agent whose calls are futures, for tokio.
//!
//! Dropping a future does not cancel its call: a rank that drops the future of a barrier still
//! counts as arrived.

use crate::session::{self, Answered, ClockOffset, READ, Request, Session, WELCOME_TIMEOUT};
use crate::{ClientError, Credentials};
use bytes::Bytes;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;

/// Connection of a rank to its agent. A process may have several connections.
#[derive(Debug)]
pub struct AsyncClient {
    socket: UnixStream,
    session: Session,
    /// Encoded messages not yet written to the socket. A future that is dropped early may leave
    /// messages here; the next call writes them first.
    unsent: Vec<u8>,
}

impl AsyncClient {
    /// Connects to the agent that this process's environment names.
    pub async fn from_env() -> Result<AsyncClient, ClientError> {
        AsyncClient::connect(Credentials::from_env()?).await
    }

    /// Connects to an agent and authenticates as a rank. Fails after 5 s without a reply.
    pub async fn connect(credentials: Credentials) -> Result<AsyncClient, ClientError> {
        let (session, unsent) = Session::start(&credentials)?;
        let path = credentials.socket;
        let socket = UnixStream::connect(&path).await;
        let socket = socket.map_err(|source| ClientError::Connect { path, source })?;
        let mut client = AsyncClient { socket, session, unsent };
        let welcome = timeout(WELCOME_TIMEOUT, client.await_welcome()).await;
        welcome.map_err(|_| ClientError::Socket(io::ErrorKind::TimedOut.into()))??;
        Ok(client)
    }

    async fn await_welcome(&mut self) -> Result<(), ClientError> {
        self.send().await?;
        while !self.session.poll_welcome()? {
            self.receive().await?;
        }
        Ok(())
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
    pub async fn barrier(&mut self, name: &str) -> Result<(), ClientError> {
        self.call(Request::barrier(name, self.session.timeout)).await.map(drop)
    }

    /// Exchanges blobs of at most 64 KiB among all ranks. Returns the blobs, indexed by rank, once
    /// every rank has called the gather `name` as often as this rank.
    pub async fn all_gather(&mut self, name: &str, blob: &[u8]) -> Result<Vec<Bytes>, ClientError> {
        let request = Request::all_gather(name, blob, self.session.timeout);
        let answered = self.call(request).await?;
        session::gathered(answered, self.world_size())
    }

    /// Stores `value`, at most 64 KiB, under a key that all ranks can read.
    pub async fn put(
        &mut self,
        namespace: &str,
        key: &str,
        value: &[u8],
    ) -> Result<(), ClientError> {
        self.call(Request::put(namespace, key, value)).await.map(drop)
    }

    /// Returns the value of a key, or `None` if the key has no value yet.
    pub async fn get(&mut self, namespace: &str, key: &str) -> Result<Option<Bytes>, ClientError> {
        self.call(Request::get(namespace, key)).await.map(session::value)
    }

    /// Waits until a key has a value, and returns the value.
    pub async fn wait(&mut self, namespace: &str, key: &str) -> Result<Bytes, ClientError> {
        let request = Request::wait(namespace, key, self.session.timeout);
        self.call(request).await.map(|(_, value)| value)
    }

    /// Aborts the job. Pending calls of all ranks fail with `text`.
    pub async fn abort(&mut self, text: &str) -> Result<(), ClientError> {
        self.call(Request::abort(text)).await.map(drop)
    }

    /// Measures the offset between this host's clock and the clock of rank 0's host.
    pub async fn clock(&mut self) -> Result<ClockOffset, ClientError> {
        session::offset(&self.call(Request::clock()).await?)
    }

    /// Adds `text` to the event log that `--events` writes.
    pub async fn event(&mut self, text: &str) -> Result<(), ClientError> {
        self.call(Request::event(text)).await.map(drop)
    }

    async fn call(&mut self, request: Request) -> Result<Answered, ClientError> {
        let (sent, bytes) = self.session.encode_call(request)?;
        self.unsent.extend_from_slice(&bytes);
        self.send().await?;
        loop {
            if let Some(answered) = self.session.reply_to(&sent)? {
                return Ok(answered);
            }
            self.receive().await?;
        }
    }

    async fn send(&mut self) -> Result<(), ClientError> {
        while !self.unsent.is_empty() {
            match self.socket.write(&self.unsent).await {
                Ok(length) => drop(self.unsent.drain(..length)),
                Err(error) => return Err(self.session.closed(Some(error))),
            }
        }
        Ok(())
    }

    async fn receive(&mut self) -> Result<(), ClientError> {
        let mut buffer = Vec::with_capacity(READ);
        match self.socket.read_buf(&mut buffer).await {
            Ok(0) => Err(self.session.closed(None)),
            Ok(_) => {
                self.session.push(&buffer);
                Ok(())
            }
            Err(error) => Err(self.session.closed(Some(error))),
        }
    }
}
