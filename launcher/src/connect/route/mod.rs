//! The way to a host: what runs a command there, or in a container there, and carries its bytes.
//!
//! Hosts are reached by SSH in process ([`rlaunch_ssh`]), or by a command of the user's ([`rsh`]). On
//! either way a [`container`] may be entered on the host, or be started there from an [`image`].

mod command;
mod container;
mod image;
mod rsh;

pub(crate) use command::{Program, RemoteCommand};
pub(crate) use container::{BadContainer, Container, ContainerError};
pub(crate) use image::GONE as CONTAINER_GONE;
pub(crate) use rsh::{Rsh, RshError, last_words};

use crate::connect::agent::deliver::{DeliverError, HELLO_TIMEOUT};
use crate::connect::channel::{AgentChannel, Ending};
use crate::connect::options::{ConnectOptions, destination};
use crate::hosts::Host;
use crate::hosts::host_table::HostTable;
use container::Entry;
use image::container_name;
use rlaunch_bootstrap::id::JobId;
use rlaunch_console::report::Failed;
use rlaunch_console::waiting::Roster;
use rlaunch_ssh::error::SshError;
use rlaunch_ssh::{Connection, Ssh};
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How long an agent may take to speak where a container is started for it.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// By what hosts are reached; one serves all of a job.
pub(crate) struct Routes {
    by: By,
    book: HostTable,
    container: Option<Container>,
    /// What containers that are started have in their names.
    label: String,
}

enum By {
    Ssh(Box<Ssh>),
    Rsh(Rsh),
}

/// A host that was reached, as far as can be known: commands can be run there.
pub(crate) struct Route {
    to: To,
    container: Option<Container>,
    /// Names of the containers that were started, which begin with the label.
    started: Mutex<Vec<String>>,
    label: String,
    /// Of the last command.
    ending: Mutex<Ending>,
}

enum To {
    Ssh(Connection),
    Rsh(Rsh, Host),
}

/// Why a host is not reached, or runs no command.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RouteError {
    #[error(transparent)]
    Ssh(#[from] SshError),
    #[error(transparent)]
    Rsh(#[from] RshError),
    #[error(transparent)]
    Container(#[from] ContainerError),
}

impl RouteError {
    /// What the user can do.
    pub(crate) fn hint(&self, host: &str) -> Option<String> {
        match self {
            RouteError::Ssh(error) => error.hint(host),
            RouteError::Rsh(error) => error.hint(),
            RouteError::Container(error) => error.hint(host),
        }
    }
}

impl Routes {
    /// By what the command line says.
    pub(crate) fn of(reach: &ConnectOptions) -> Result<Routes, Failed> {
        let by = match &reach.rsh {
            _ if reach.here => By::Rsh(Rsh::here()),
            Some(rsh) => By::Rsh(rsh.clone()),
            None => By::Ssh(Box::new(Ssh::of(&reach.ssh())?)),
        };
        let label = format!("rlaunch-{}", uuid::Uuid::new_v4().simple());
        let (book, container) = (reach.book.clone(), reach.container.clone());
        Ok(Routes { by, book, container, label })
    }

    /// Containers that are started have the job's id in their names.
    pub(crate) fn for_job(self, job: JobId) -> Routes {
        Routes { label: format!("rlaunch-{job}"), ..self }
    }

    /// Says which hosts were met for the first time, if that was not said yet.
    pub(crate) fn introduce(&self) {
        match &self.by {
            By::Ssh(ssh) => ssh.introduce(),
            By::Rsh(_) => {}
        }
    }

    /// Reaches a host; `roster` is told what it waits for. A command that leads there is only
    /// started when it has something to run.
    pub(crate) async fn to(&self, host: &Host, roster: &Roster) -> Result<Route, RouteError> {
        let tell = |stage| roster.set(&host.to_string(), stage);
        let (dialled, port) = self.book.target_of(host);
        let to = match &self.by {
            By::Ssh(ssh) => To::Ssh(ssh.connect(destination(&dialled, port), &tell).await?),
            By::Rsh(rsh) => To::Rsh(rsh.clone(), dialled),
        };
        let label = container_name(&format!("{}-{host}", self.label));
        let (container, ending) = (self.container.clone(), Mutex::default());
        Ok(Route { to, container, started: Mutex::default(), label, ending })
    }
}

impl Route {
    /// Runs a command on the host, and in its container where there is one. Where a container is
    /// started from an image, scripts run on the host and programs in a new container.
    pub(crate) async fn exec(
        &self,
        command: &RemoteCommand<'_>,
    ) -> Result<AgentChannel, RouteError> {
        let line = match (self.entry(), command) {
            (Entry::Behind(enter), _) => command.line_behind(&enter),
            (Entry::Run(image), RemoteCommand::Become(agent, words)) => {
                image.line(&self.next_name(), agent, words)
            }
            (Entry::Login | Entry::Run(_), _) => command.line(),
        };
        self.run(line).await
    }

    /// Ends what an agent has left that is lost: by `reap`, which an agent understands, or by
    /// removing the containers that were started.
    pub(crate) async fn clean_up(
        &self,
        reap: &RemoteCommand<'_>,
    ) -> Result<AgentChannel, RouteError> {
        let Entry::Run(image) = self.entry() else { return self.exec(reap).await };
        let names = self.started.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        self.run(RemoteCommand::Script(&image.removal(), &names).line()).await
    }

    fn entry(&self) -> Entry<'_> {
        self.container.as_ref().map_or(Entry::Login, Container::entry)
    }

    /// Of a container to be started. Engines may be busy with removing the one before.
    fn next_name(&self) -> String {
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        let name = match started.len() {
            0 => self.label.clone(),
            others => format!("{}-{}", self.label, others + 1),
        };
        started.push(name.clone());
        name
    }

    async fn run(&self, line: String) -> Result<AgentChannel, RouteError> {
        let ending = Ending::default();
        *self.ending.lock().unwrap_or_else(PoisonError::into_inner) = ending.clone();
        match &self.to {
            To::Ssh(connection) => {
                Ok(AgentChannel::over_ssh(connection.exec(&line).await?, ending))
            }
            To::Rsh(rsh, host) => Ok(rsh.exec(host, &line, ending)?),
        }
    }

    /// This machine's address and the host's, where the way is a direct connection between them.
    pub(crate) fn addresses(&self) -> Option<(IpAddr, IpAddr)> {
        match &self.to {
            To::Ssh(connection) => connection.addresses(),
            To::Rsh(..) => None,
        }
    }

    /// How far it leads, for those who wait for what is at its end.
    pub(crate) fn stage(&self) -> &'static str {
        match self.to {
            To::Ssh(_) => "ssh authenticated, agent not started",
            To::Rsh(..) => "its command started, no agent yet",
        }
    }

    /// How long an agent may take to speak.
    pub(crate) fn patience(&self) -> Duration {
        match self.entry() {
            Entry::Run(_) => START_TIMEOUT,
            Entry::Login | Entry::Behind(_) => HELLO_TIMEOUT,
        }
    }

    /// Why no agent has spoken, where the way to it knows more than its end.
    pub(crate) fn explain(&self, error: DeliverError) -> DeliverError {
        let Some(said) = error.said() else { return error };
        let ended = self.ending.lock().unwrap_or_else(PoisonError::into_inner).get();
        let by_container = self.container.as_ref().and_then(|c| c.explain(ended, said));
        if let Some(known) = by_container {
            return DeliverError::Route(known.into());
        }
        match (&self.to, &error) {
            (To::Rsh(rsh, host), DeliverError::Shell(said)) => {
                DeliverError::Route(rsh.no_agent(host, ended, said).into())
            }
            _ => error,
        }
    }

    /// Whether agents are in containers that are started for them.
    pub(crate) fn starts_containers(&self) -> bool {
        matches!(self.entry(), Entry::Run(_))
    }

    /// Whether it still stands, as far as is known.
    pub(crate) fn is_open(&self) -> bool {
        match &self.to {
            To::Ssh(connection) => connection.is_open(),
            To::Rsh(..) => true,
        }
    }

    /// Says good-bye.
    pub(crate) async fn close(self) {
        match self.to {
            To::Ssh(connection) => connection.close().await,
            // Each of its commands has ended by itself.
            To::Rsh(..) => {}
        }
    }
}
