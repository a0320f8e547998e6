//! The same calls as futures, on tokio.
//!
//! A call may be dropped before it is answered. It counts as made: a rank that gave up a barrier
//! has arrived at it.

use super::request::{self, Answered, ClockOffset, Request};
use super::session::{READ, Session, WELCOME_TIMEOUT};
use super::{ClientError, Credentials};
use bytes::Bytes;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;

/// A rank's connection to its agent. A process may have several.
#[derive(Debug)]
pub struct AsyncClient {
    socket: UnixStream,
    session: Session,
    /// What is to be written before anything else; a dropped call may leave some of it.
    unsent: Vec<u8>,
}

impl AsyncClient {
    /// Connects to the agent that the environment names.
    pub async fn from_env() -> Result<AsyncClient, ClientError> {
        AsyncClient::connect(Credentials::from_env()?).await
    }

    /// Connects and says hello.
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
        while !self.session.is_welcomed()? {
            self.receive().await?;
        }
        Ok(())
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
    pub async fn barrier(&mut self, name: &str) -> Result<(), ClientError> {
        self.call(Request::barrier(name, self.session.timeout)).await.map(drop)
    }

    /// Gives `blob`, at most 64 KiB, and gets what every rank gave, by rank.
    pub async fn all_gather(&mut self, name: &str, blob: &[u8]) -> Result<Vec<Bytes>, ClientError> {
        let request = Request::all_gather(name, blob, self.session.timeout);
        let answered = self.call(request).await?;
        request::gathered(answered, self.world_size())
    }

    /// Keeps `value`, at most 64 KiB, for every rank to read.
    pub async fn put(
        &mut self,
        namespace: &str,
        key: &str,
        value: &[u8],
    ) -> Result<(), ClientError> {
        self.call(Request::put(namespace, key, value)).await.map(drop)
    }

    /// Reads what is kept under a key, if anything is.
    pub async fn get(&mut self, namespace: &str, key: &str) -> Result<Option<Bytes>, ClientError> {
        self.call(Request::get(namespace, key)).await.map(request::value)
    }

    /// Reads what is kept under a key, once something is.
    pub async fn wait(&mut self, namespace: &str, key: &str) -> Result<Bytes, ClientError> {
        let request = Request::wait(namespace, key, self.session.timeout);
        self.call(request).await.map(|(_, value)| value)
    }

    /// Ends the job; every rank's calls end with `text`.
    pub async fn abort(&mut self, text: &str) -> Result<(), ClientError> {
        self.call(Request::abort(text)).await.map(drop)
    }

    /// How this machine's clock stands to that of rank 0's node.
    pub async fn clock(&mut self) -> Result<ClockOffset, ClientError> {
        request::offset(&self.call(Request::clock()).await?)
    }

    /// Puts `text` into the job's events.
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
