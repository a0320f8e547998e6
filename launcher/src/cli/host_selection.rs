//! Which hosts a job has: those of `-H` and `--hostfile`, or else of whoever has set some aside for
//! this shell, less those of `--exclude`. `rlaunch hostfile` prints them.

use crate::cli::allocation::{self, AllocationError, Found, MpiJob, MpiJobError};
use crate::cli::args::{HostArgs, HostfileArgs};
use crate::connect::connector::RshError;
use crate::connect::options::ConnectOptions;
use crate::hosts::hostfile::{self, HostfileError};
use crate::hosts::{self, Host, HostSet, HostsError, SlotsBy};
use rlaunch_console::exit::Exit;
use rlaunch_console::messages::{self, Failed};
use rlaunch_console::{stdout, text};
use std::path::PathBuf;

/// What was typed of hosts.
pub(crate) struct Typed<'a> {
    /// Values of `-H`.
    pub(crate) lists: &'a [String],
    pub(crate) files: &'a [PathBuf],
    /// Values of `--exclude`.
    pub(crate) exclude: &'a [String],
}

impl<'a> From<&'a HostArgs> for Typed<'a> {
    fn from(args: &'a HostArgs) -> Typed<'a> {
        Typed { lists: &args.hosts, files: &args.hostfiles, exclude: &args.exclude }
    }
}

/// The hosts of a job.
struct Listing {
    /// None where nobody has named any: this machine is meant.
    hosts: Vec<Host>,
    /// As in `hosts of …`.
    source: String,
    /// What leads to them, where they are those of an mpirun.
    job: Option<MpiJob>,
    /// They were not typed.
    is_found: bool,
}

/// Hosts that cannot be meant.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ListingError {
    #[error(transparent)]
    Hosts(#[from] HostsError),
    #[error(transparent)]
    Hostfile(#[from] HostfileError),
    #[error(transparent)]
    Allocation(#[from] AllocationError),
    #[error(transparent)]
    MpiJob(#[from] MpiJobError),
    #[error(transparent)]
    Rsh(#[from] RshError),
    #[error("-H {host} is no host of {source_of}: {known}")]
    NotInFile { host: String, source_of: String, known: String },
    #[error("--exclude {host} is none of the hosts: {known}")]
    NotExcluded { host: String, known: String },
    #[error("--exclude leaves none of the hosts: {known}")]
    NoneLeft { known: String },
}

impl ListingError {
    /// What the user can do.
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            ListingError::Hosts(_) => Some("-H takes names like a,b:2,user@c,n[01-16]".into()),
            ListingError::Hostfile(_) => {
                Some("a hostfile has a line for each host, as `a slots=4` or `n[01-16]:4`".into())
            }
            ListingError::Allocation(error) => Some(error.hint()),
            ListingError::MpiJob(error) => Some(error.hint()),
            ListingError::Rsh(error) => error.hint(),
            ListingError::NotInFile { .. } => {
                Some("with --hostfile, -H chooses among its hosts".into())
            }
            ListingError::NotExcluded { .. } | ListingError::NoneLeft { .. } => None,
        }
    }
}

/// The hosts of a job, none where this machine is meant. Says where they are from when they were
/// not typed, and takes the way to them from there, where none was typed.
pub(crate) fn hosts(
    args: &HostArgs,
    reach: &mut ConnectOptions,
) -> Result<Vec<Host>, ListingError> {
    let typed = Typed::from(args);
    let listing = Listing::of(&typed)?;
    if listing.is_found {
        messages::info(&listing.origin());
    }
    if let Some(job) = &listing.job {
        // Its pods may still be on their way.
        reach.retry_until_up = true;
        if reach.rsh.is_none() {
            reach.rsh = job.rsh()?;
        }
    }
    Ok(listing.hosts)
}

impl Listing {
    fn of(typed: &Typed<'_>) -> Result<Listing, ListingError> {
        let listing = Listing::without_exceptions(typed)?;
        if typed.exclude.is_empty() {
            return Ok(listing);
        }
        let mut hosts = listing.hosts;
        if hosts.is_empty() {
            hosts.push(Host::this_machine());
        }
        Ok(Listing { hosts: without(hosts, typed.exclude)?, ..listing })
    }

    fn without_exceptions(typed: &Typed<'_>) -> Result<Listing, ListingError> {
        let typed_hosts = |hosts, source| Listing { hosts, source, job: None, is_found: false };
        match (typed.lists, typed.files) {
            ([], []) => Listing::found(),
            (lists, []) => Ok(typed_hosts(hosts::parse(lists)?, "-H".to_owned())),
            (lists, files) => {
                let source = names_of(files);
                let listed = of_files(files)?;
                let hosts = match lists {
                    [] => listed,
                    lists => chosen(&listed, hosts::parse(lists)?, &source)?,
                };
                Ok(typed_hosts(hosts, source))
            }
        }
    }

    /// Those that the environment speaks of, or none.
    fn found() -> Result<Listing, ListingError> {
        let found = allocation::find(|name| std::env::var_os(name))?;
        let (hosts, source, job) = match found {
            Some(Found::Scheduler(allocation)) => (allocation.hosts, allocation.source, None),
            Some(Found::MpiJob(job)) => (job.hosts()?, job.source(), Some(job)),
            None => (Vec::new(), "this machine: nobody has named another".to_owned(), None),
        };
        let is_found = !hosts.is_empty();
        Ok(Listing { hosts, source, job, is_found })
    }

    /// `hosts of Slurm's job 4711 (SLURM_JOB_NODELIST): n01, n02`
    fn origin(&self) -> String {
        match &self.job {
            Some(job) => job.origin(&self.hosts),
            None => format!("hosts of {}: {}", self.source, text::list(&self.hosts)),
        }
    }
}

fn names_of(files: &[PathBuf]) -> String {
    let names: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    names.join(" and ")
}

/// The hosts of all files: repeats add up.
fn of_files(files: &[PathBuf]) -> Result<Vec<Host>, ListingError> {
    let mut hosts = HostSet::default();
    for file in files {
        for host in hostfile::read(file)? {
            hosts.add(host)?;
        }
    }
    Ok(hosts.into_hosts())
}

/// Whether a host is meant by a name that was typed: `a` is every user's, `me@a` only that one.
fn is_meant(host: &Host, typed: &Host) -> bool {
    host.name == typed.name && (typed.user.is_none() || host.user == typed.user)
}

/// Those of a hostfile that `-H` names, with the slots it gives them if it does.
fn chosen(listed: &[Host], typed: Vec<Host>, source: &str) -> Result<Vec<Host>, ListingError> {
    let mut hosts = HostSet::default();
    for typed in typed {
        let mut meant = listed.iter().filter(|host| is_meant(host, &typed)).peekable();
        if meant.peek().is_none() {
            let (host, source_of) = (typed.to_string(), source.to_owned());
            let known = text::list(listed);
            return Err(ListingError::NotInFile { host, source_of, known });
        }
        for host in meant {
            hosts.add(match typed.slots_by {
                SlotsBy::Given => Host { user: host.user.clone(), ..typed.clone() },
                _ => host.clone(),
            })?;
        }
    }
    Ok(hosts.into_hosts())
}

/// The hosts but these.
fn without(hosts: Vec<Host>, exclude: &[String]) -> Result<Vec<Host>, ListingError> {
    let known = text::list(&hosts);
    let excluded = hosts::parse(exclude)?;
    let unknown = excluded.iter().find(|typed| !hosts.iter().any(|host| is_meant(host, typed)));
    if let Some(host) = unknown.map(Host::to_string) {
        return Err(ListingError::NotExcluded { host, known });
    }
    let is_kept = |host: &Host| !excluded.iter().any(|typed| is_meant(host, typed));
    let left: Vec<Host> = hosts.into_iter().filter(is_kept).collect();
    if left.is_empty() { Err(ListingError::NoneLeft { known }) } else { Ok(left) }
}

/// `rlaunch hostfile`: prints the hosts as a hostfile, for other launchers and for people.
pub(crate) fn print(args: &HostfileArgs) -> Result<Exit, Failed> {
    let lists = args.config.found.book.with_slots(&args.hosts);
    let typed = Typed { lists: &lists, files: &args.hostfiles, exclude: &args.exclude };
    let listing = Listing::of(&typed)
        .map_err(|error| Failed::from_error(Exit::USAGE, &error).hint(error.hint()))?;
    if listing.hosts.is_empty() {
        let checked = args.config.found.check_no_hosts();
        checked.map_err(|error| Failed::from_error(Exit::USAGE, &error).hint(error.hint()))?;
    }
    let text = as_hostfile(&listing);
    stdout::print(&text);
    Ok(Exit::SUCCESS)
}

fn as_hostfile(listing: &Listing) -> String {
    let mut text = format!("# hosts of {}\n", listing.source);
    if listing.hosts.iter().any(|host| host.slots_by == SlotsBy::Open) {
        text += "# without a number: as many slots as it has GPUs, or one\n";
    }
    match listing.hosts.as_slice() {
        [] => text + &hostfile::write(&[Host::this_machine()]),
        hosts => text + &hostfile::write(hosts),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(lists: &[&str], file: Option<&str>, exclude: &[&str]) -> Result<String, String> {
        let owned =
            |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("hosts");
        let files: Vec<PathBuf> = file.iter().map(|_| path.clone()).collect();
        std::fs::write(&path, file.unwrap_or_default()).unwrap();
        let (lists, exclude) = (owned(lists), owned(exclude));
        let typed = Typed { lists: &lists, files: &files, exclude: &exclude };
        let listing = Listing::of(&typed).map_err(|error| messages::error_chain(&error))?;
        let text = as_hostfile(&listing);
        Ok(text.replace(&path.display().to_string(), "F").replace('\n', "; "))
    }

    #[test]
    fn what_is_typed_is_a_hostfile() {
        let of = |lists: &[&str], file, exclude: &[&str]| listed(lists, file, exclude).unwrap();
        let typed = of(&["n[09-10]:4", "me@a"], None, &[]);
        assert_eq!(typed, "# hosts of -H; n09 slots=4; n10 slots=4; me@a slots=1; ");
        let file = "a slots=2\nb\nme@c:3\n";
        let open = "# without a number: as many slots as it has GPUs, or one; ";
        let all = of(&[], Some(file), &[]);
        assert_eq!(all, format!("# hosts of F; {open}a slots=2; b; me@c slots=3; "));
        // -H chooses, in its own order.
        let chosen = of(&["c,a:1"], Some(file), &[]);
        assert_eq!(chosen, "# hosts of F; me@c slots=3; a slots=1; ");
        let left = of(&["n[1-4],a"], None, &["n[2-3]", "a"]);
        assert_eq!(left, "# hosts of -H; n1 slots=1; n4 slots=1; ");
        let left = of(&["a,me@a,you@a"], None, &["you@a"]);
        assert_eq!(left, "# hosts of -H; a slots=1; me@a slots=1; ");
    }

    #[test]
    fn what_is_no_host_is_said_with_those_that_are() {
        let said =
            |lists: &[&str], file, exclude: &[&str]| listed(lists, file, exclude).unwrap_err();
        assert_eq!(said(&["a,b"], None, &["c"]), "--exclude c is none of the hosts: a, b");
        assert_eq!(said(&["a,b"], None, &["a,b"]), "--exclude leaves none of the hosts: a, b");
        assert!(said(&["c"], Some("a\nb\n"), &[]).ends_with("hosts: a, b"));
        assert!(said(&[], Some("a\nb c\n"), &[]).ends_with("hosts:2: `c` is not understood"));
        assert!(said(&["a["], None, &[]).contains("a bracket is not closed"));
    }
}
