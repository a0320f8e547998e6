//! Loss of a node, in words for the user.

use nix::sys::signal::Signal;
use rlaunch_bootstrap::protocol::control::{EndCause, FromAgent};
use rlaunch_text::exit::Exit;
use rlaunch_text::message::{Failed, FailedHost};

/// Loss of a node.
pub(crate) struct Loss {
    pub how: String,
    hint: Option<&'static str>,
    /// Whether its agent still ends the ranks in order, and reports that.
    pub(crate) ends_in_order: bool,
    /// Whether the job may start again. It may not once a batch system has taken nodes back, which may be another's.
    may_restart: bool,
}

impl Loss {
    /// Makes the loss of a node whose channel ended before its agent was done.
    pub(crate) fn of_channel(how: String) -> Loss {
        Loss { how, hint: None, ends_in_order: false, may_restart: true }
    }

    /// Makes the loss of a node that its batch system has taken back. Its agent goes on.
    pub(crate) fn of_job(how: String) -> Loss {
        Loss { how, hint: None, ends_in_order: true, may_restart: false }
    }

    /// Returns the loss that an agent reports about itself.
    pub(crate) fn reported(message: &FromAgent) -> Option<Loss> {
        match message {
            FromAgent::Failed { operation, cause } => {
                let how = format!("cannot {operation}: {cause}");
                Some(Loss::of_channel(how))
            }
            FromAgent::EndsRanks(cause) => {
                let (how, hint) = describe_end_cause(*cause);
                Some(Loss { how, hint: Some(hint), ends_in_order: true, may_restart: true })
            }
            _ => None,
        }
    }

    /// Makes the error of a job that has lost the node on `host`.
    pub(crate) fn error(&self, host: &str) -> Failed {
        let message = format!("node {host} is lost: {}", self.how);
        let mut failed =
            Failed { may_restart: self.may_restart, ..Failed::new(Exit::NODE_LOST, message) };
        failed.host = Some(Box::new(FailedHost { name: host.to_owned(), is_lost: true }));
        failed.hint(self.hint)
    }
}

/// Says why an agent ends its ranks without an order of the launcher, and returns a hint with it.
fn describe_end_cause(cause: EndCause) -> (String, &'static str) {
    match cause {
        EndCause::LauncherSilent { for_s } => (
            format!("it received nothing from this rlaunch for {for_s} s and gave up"),
            "hosts cannot tell an rlaunch that is suspended or cut off from one that has died; \
             --node-timeout sets how long they wait once they have the job",
        ),
        EndCause::Signal(number) => {
            let name = Signal::try_from(number).map_or("unknown", Signal::as_str);
            (
                format!("its agent got signal {number} ({name}) and ended"),
                "a host that shuts down, its batch system or a person there sends it to \
                 rlaunch-worker",
            )
        }
    }
}
