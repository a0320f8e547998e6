//! Ways of a copy, and what each makes the programs do.

use super::progress::Source;
use rlaunch_copy::control::{ImageCopy, Role, TreeLimit};

/// Direction of a copy. Every path goes below its destination by its own name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// From this machine to each host.
    Push { paths: Vec<String>, destination: String },
    /// A working tree, from this machine to each host.
    Tree { path: String, destination: String, limit: TreeLimit },
    /// From one of the hosts to each other one.
    Between { from: String, paths: Vec<String>, destination: String },
    /// Container image, to the engines of `hosts`; from one of the hosts, or from this machine.
    Image { image: ImageCopy, hosts: Vec<String>, from: Option<String> },
    /// From each host to this machine, into a directory of the host's name below `destination`.
    Fetch { paths: Vec<String>, destination: String },
}

/// Words by which the programs know what to do.
pub(super) struct Words {
    pub(super) rank: &'static str,
    /// `None` where no program runs on this machine.
    pub(super) local: Option<&'static str>,
}

impl Way {
    pub(super) fn words(&self) -> Words {
        match self {
            _ if self.from().is_some() => Words { rank: "receive", local: None },
            Way::Push { .. } | Way::Tree { .. } | Way::Between { .. } | Way::Image { .. } => {
                Words { rank: "receive", local: Some("send") }
            }
            Way::Fetch { .. } => Words { rank: "serve", local: Some("fetch") },
        }
    }

    /// Returns the host from which files come, if they come from one of several.
    pub(super) fn from(&self) -> Option<&str> {
        match self {
            Way::Between { from, .. } => Some(from),
            Way::Image { from, .. } => from.as_deref(),
            Way::Push { .. } | Way::Tree { .. } | Way::Fetch { .. } => None,
        }
    }

    /// Returns the roles of the ranks and of the program on this machine.
    pub(super) fn roles(&self) -> [Role; 2] {
        let source = |paths: &Vec<String>| Role::Source { paths: paths.clone() };
        match self {
            Way::Push { paths, .. } => [Role::Relay, source(paths)],
            Way::Tree { path, .. } => [Role::Relay, Role::Source { paths: vec![path.clone()] }],
            // The files are those of the image, wherever they are made.
            Way::Image { from: None, .. } => [Role::Relay, source(&Vec::new())],
            Way::Image { .. } => [source(&Vec::new()), Role::Relay],
            Way::Between { paths, .. } | Way::Fetch { paths, .. } => [source(paths), Role::Relay],
        }
    }

    pub(super) fn destination(&self) -> &str {
        match self {
            Way::Push { destination, .. }
            | Way::Tree { destination, .. }
            | Way::Between { destination, .. }
            | Way::Fetch { destination, .. } => destination,
            // The job's directory.
            Way::Image { .. } => "",
        }
    }

    /// Tells who reports how far the copy is.
    pub(super) fn source_of_progress(&self) -> Source {
        match self {
            Way::Push { .. } | Way::Tree { .. } | Way::Between { .. } | Way::Image { .. } => {
                Source::Rank
            }
            Way::Fetch { .. } => Source::Local,
        }
    }

    pub(super) fn verb(&self) -> &'static str {
        match self {
            Way::Push { .. } | Way::Between { .. } | Way::Image { .. } => "pushing",
            Way::Tree { .. } => "copying the working tree:",
            Way::Fetch { .. } => "fetching",
        }
    }

    pub(super) fn tree(&self) -> Option<TreeLimit> {
        match self {
            Way::Tree { limit, .. } => Some(*limit),
            Way::Push { .. } | Way::Between { .. } | Way::Image { .. } | Way::Fetch { .. } => None,
        }
    }

    /// Returns the image as ranks know it, which have other places for its files than this machine.
    pub(super) fn image(&self) -> Option<&ImageCopy> {
        match self {
            Way::Image { image, .. } => Some(image),
            Way::Push { .. } | Way::Tree { .. } | Way::Between { .. } | Way::Fetch { .. } => None,
        }
    }
}
