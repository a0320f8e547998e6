//! The way to a host: what runs a command there and carries its bytes.

use crate::channel::AgentChannel;
use crate::hosts::Host;
use crate::job::Reach;
use crate::report::Failed;
use crate::ssh::error::SshError;
use crate::ssh::{Connection, Ssh};
use crate::waiting::Roster;
use std::net::IpAddr;

/// By what hosts are reached; one serves all of a job.
pub(crate) enum Routes {
    Ssh(Ssh),
}

/// A host that was reached: commands can be run there.
pub(crate) enum Route {
    Ssh(Connection),
}

/// Why a host is not reached, or runs no command.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RouteError {
    #[error(transparent)]
    Ssh(#[from] SshError),
}

impl RouteError {
    /// What the user can do.
    pub(crate) fn hint(&self, host: &str) -> Option<String> {
        match self {
            RouteError::Ssh(error) => error.hint(host),
        }
    }
}

/// What a host is asked to run. Its words pass through login shells of every kind, and through
/// whatever wraps them, so none may hold a quote, a backslash, an exclamation mark or a line break.
pub(crate) enum RemoteCommand<'a> {
    /// To become a program: its path, which may begin with `~/`, and its words.
    Become(&'a str, &'a str),
    /// To run a script of sh(1) with these words as `$1` and so on.
    Script(&'a str, &'a [&'a str]),
}

impl RemoteCommand<'_> {
    /// As the host's login shell is to read it.
    pub(crate) fn line(&self) -> String {
        match self {
            RemoteCommand::Become(program, words) => format!("exec {program} {words}"),
            RemoteCommand::Script(script, words) => {
                format!("exec sh -c '{script}' sh {}", words.join(" "))
            }
        }
    }
}

impl Routes {
    /// By what the command line says.
    pub(crate) fn of(reach: &Reach) -> Result<Routes, Failed> {
        Ok(Routes::Ssh(Ssh::of(reach)?))
    }

    /// Reaches a host; `roster` is told what it waits for.
    pub(crate) async fn to(&self, host: &Host, roster: &Roster) -> Result<Route, RouteError> {
        let tell = |stage| roster.set(&host.to_string(), stage);
        match self {
            Routes::Ssh(ssh) => Ok(Route::Ssh(ssh.connect(host, &tell).await?)),
        }
    }
}

impl Route {
    /// Runs a command on the host, and in its container where there is one.
    pub(crate) async fn exec(
        &self,
        command: &RemoteCommand<'_>,
    ) -> Result<AgentChannel, RouteError> {
        match self {
            Route::Ssh(connection) => {
                Ok(AgentChannel::over_ssh(connection.exec(&command.line()).await?))
            }
        }
    }

    /// This machine's address and the host's, where the way is a direct connection between them.
    pub(crate) fn addresses(&self) -> Option<(IpAddr, IpAddr)> {
        match self {
            Route::Ssh(connection) => connection.addresses(),
        }
    }

    /// Whether it still stands, as far as is known.
    pub(crate) fn is_open(&self) -> bool {
        match self {
            Route::Ssh(connection) => connection.is_open(),
        }
    }

    /// Says good-bye.
    pub(crate) async fn close(self) {
        match self {
            Route::Ssh(connection) => connection.close().await,
        }
    }
}
