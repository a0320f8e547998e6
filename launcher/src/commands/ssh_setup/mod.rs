//! `rlaunch ssh-setup`: hosts that open to the user's key, and containers that open to another.
//!
//! Looks at every host, says what is to be done, asks, does it, and proves it by fresh logins. All
//! of it can be done again and then finds nothing to do.

mod ask;
mod container;
mod entering;
mod error;
mod keys;
mod remote;
mod survey;

use crate::cli::args::NamedContainer;
use crate::cli::args::SetupArgs;
use crate::connect::options::destination;
use crate::hosts::{self, Host};
use crate::run::signals::Signals;
use container::tilde;
use error::SetupError;
use keys::KeyPair;
use remote::{Forced, Wanted};
use rlaunch_console::exit::Exit;
use rlaunch_console::messages::{self, Failed};
use rlaunch_console::progress::Progress;
use rlaunch_console::{printable, stdout, text};
use rlaunch_ssh::KeyLogin;
use rlaunch_ssh::Ssh;
use rlaunch_ssh::SshOptions;
use rlaunch_ssh::config::{HostConfig, SshConfig};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use survey::State;

/// Sets hosts up, or says what would be done.
pub(crate) async fn ssh_setup(args: SetupArgs) -> Result<Exit, Failed> {
    let mut signals = Signals::install()?;
    tokio::select! {
        done = Setup::from_args(args)?.run() => done,
        signal = signals.end() => {
            let message = format!("ended by {signal}; a second run does what is left");
            Err(Failed::new(Exit::signal(signal as i32), message))
        }
    }
}

/// One host and the way to it.
struct Way {
    host: Host,
    /// As the user gave it.
    name: String,
    config: HostConfig,
    user: String,
    /// Which of the keys is for this host.
    key: usize,
    /// Its line for authorized_keys.
    line: String,
}

impl Way {
    fn closed(&self) -> SetupError {
        SetupError::Closed { user: self.user.clone(), line: self.line.clone() }
    }
}

/// The container, its key, and the configuration that uses it.
struct Inside {
    container: NamedContainer,
    key: KeyPair,
    forced: Forced,
    config_path: PathBuf,
    /// What that file is to hold, if it does not yet.
    config_text: Option<String>,
}

/// Everything that was asked for.
struct Setup {
    reach: SshOptions,
    home: PathBuf,
    yes: bool,
    dry_run: bool,
    /// The key was named, so it is installed where another opens the host as well.
    key_is_named: bool,
    keys: Vec<KeyPair>,
    ways: Vec<Arc<Way>>,
    inside: Option<Inside>,
}

/// What was found out about a host, or why nothing was.
type Found = Result<State, SetupError>;

impl Setup {
    fn from_args(args: SetupArgs) -> Result<Setup, Failed> {
        let usage = |error: &dyn std::error::Error| Failed::from_error(Exit::USAGE, error);
        let hosts = hosts::parse(&args.hosts).map_err(|error| usage(&error))?;
        if hosts::are_local(&hosts) {
            let hint = "rlaunch -np 2 hostname runs here without SSH";
            return Err(Failed::new(Exit::USAGE, "this machine needs no set-up").hint(Some(hint)));
        }
        let reach = SshOptions {
            port: args.port,
            config: args.ssh_config.clone(),
            ..SshOptions::default()
        };
        let ssh = Ssh::new(&reach)?;
        let home = ssh.home().to_owned();
        let here = |error: SetupError| error.here();
        let (mut keys, mut ways): (Vec<KeyPair>, Vec<Arc<Way>>) = (Vec::new(), Vec::new());
        for host in hosts {
            let config =
                ssh.config_for(destination(&host, None)).map_err(|error| here(error.into()))?;
            let path = match &args.key {
                Some(path) => absolute(path),
                None => key_path(&config, &home),
            };
            let key = match keys.iter().position(|known| known.path == path) {
                Some(known) => known,
                None => {
                    keys.push(KeyPair::find_or_make(path).map_err(here)?);
                    keys.len() - 1
                }
            };
            let line = keys[key].line().map_err(here)?;
            let (name, user) = (host.to_string(), ssh.user_for(&config));
            ways.push(Arc::new(Way { host, name, config, user, key, line }));
        }
        let sources = match &args.ssh_config {
            Some(path) => vec![absolute(path)],
            None => SshConfig::default_paths(&home),
        };
        let inside = args.container.map(|container| inside(container, &ways, (&home, &sources)));
        Ok(Setup {
            reach,
            home,
            yes: args.yes,
            dry_run: args.dry_run,
            key_is_named: args.key.is_some(),
            keys,
            ways,
            inside: inside.transpose().map_err(here)?,
        })
    }

    async fn run(self) -> Result<Exit, Failed> {
        let ssh = Arc::new(Ssh::new(&self.reach)?);
        let wanted: Vec<Wanted> =
            self.ways.iter().map(|way| self.wanted(way, self.key_is_named)).collect();
        let found = survey::look(&ssh, &self.ways, &wanted).await;
        ssh.announce_new_hosts();
        let here = self.to_do_here(&found);
        let hosts = self
            .ways
            .iter()
            .zip(&found)
            .filter_map(|(way, found)| Some((way.as_ref(), found.as_ref().ok()?)));
        let name = self.inside.as_ref().map(|inside| inside.container.name.as_str());
        let plan = survey::plan(&here, hosts, name);
        if plan.is_empty() && found.iter().all(Result::is_ok) {
            messages::info("there is nothing to do");
        }
        match self.dry_run {
            true => stdout::print(&plan),
            false => drop(std::io::stderr().write_all(printable::text(&plan).as_bytes())),
        }
        if self.dry_run {
            return self.conclude(found.into_iter().map(|found| found.map(drop)));
        }
        if !plan.is_empty() {
            self.ask_whether_to_go_on().await?;
            self.write_here(&found).map_err(|error| error.here())?;
        }
        let done = self.do_it(found).await?;
        self.conclude(done.into_iter())
    }

    /// Keys and files that a host is to have. `key`: the user's key as well.
    fn wanted(&self, way: &Way, key: bool) -> Wanted {
        let blob = way.line.split(' ').nth(1).unwrap_or_default();
        Wanted {
            key: key.then(|| (way.line.clone(), blob.to_owned())),
            forced: self.inside.as_ref().map(|inside| inside.forced.clone()),
        }
    }

    /// The keys that some host needs.
    fn needed_keys(&self, found: &[Found]) -> impl Iterator<Item = &KeyPair> {
        let needs = |found: &Found| {
            found.as_ref().is_ok_and(|state| self.key_is_named || state.needs_key())
        };
        let users = self.ways.iter().zip(found).filter(move |(_, found)| needs(found));
        let used: Vec<usize> = users.map(|(way, _)| way.key).collect();
        self.keys.iter().enumerate().filter(move |(at, _)| used.contains(at)).map(|(_, key)| key)
    }

    fn to_do_here(&self, found: &[Found]) -> Vec<String> {
        if found.iter().all(Result::is_err) {
            return Vec::new();
        }
        let keys = self.needed_keys(found).chain(self.inside.as_ref().map(|inside| &inside.key));
        let mut lines: Vec<String> = keys.filter_map(|key| key.to_do(&self.home)).collect();
        if let Some(inside) = self.inside.as_ref().filter(|inside| inside.config_text.is_some()) {
            let path = tilde(&inside.config_path, &self.home);
            lines.push(format!("write {path}: for --ssh-config, hosts by the container's key"));
        }
        lines
    }

    async fn ask_whether_to_go_on(&self) -> Result<(), Failed> {
        if self.yes {
            return Ok(());
        }
        let refused = |message: &str| Failed::new(Exit::USAGE, message);
        if !ask::somebody_is_there() {
            let hint = "--yes does it without asking; --dry-run only says what it is";
            return Err(
                refused("nothing was changed: standard input is no terminal").hint(Some(hint))
            );
        }
        match ask::go_on().await.map_err(|error| error.here())? {
            true => Ok(()),
            false => Err(refused("nothing was changed")),
        }
    }

    /// Keys of the user and of hosts, and the configuration for the container.
    fn write_here(&self, found: &[Found]) -> Result<(), SetupError> {
        for key in self.needed_keys(found) {
            key.write()?;
        }
        if let Some(inside) = &self.inside {
            inside.key.write()?;
            if let Some(text) = &inside.config_text {
                keys::replace(&inside.config_path, text)?;
            }
        }
        found.iter().try_for_each(|found| match found {
            Ok(State::Unknown(key)) => Ok(key.accept()?),
            _ => Ok(()),
        })
    }

    /// Logs in where something is to be done, does it, and proves all of it.
    async fn do_it(&self, found: Vec<Found>) -> Result<Vec<Result<(), SetupError>>, Failed> {
        // What was read before has changed: keys, and known hosts.
        let ssh = Arc::new(Ssh::new(&self.reach)?);
        let is_left = |found: &Found| found.as_ref().is_ok_and(|state| !state.is_done());
        let left = || self.ways.iter().zip(&found).filter(|(_, found)| is_left(found));
        let ways: Vec<Arc<Way>> = left().map(|(way, _)| way.clone()).collect();
        let wanted = left().map(|(way, found)| {
            let needs_key = found.as_ref().is_ok_and(State::needs_key);
            self.wanted(way, self.key_is_named || needs_key)
        });
        let wanted: Vec<Wanted> = wanted.collect();
        let entered = entering::enter(&ssh, &ways).await;
        let works = ways.iter().zip(wanted).zip(entered).map(|((way, wanted), entered)| {
            (way.name.clone(), async move {
                let connection = entered?;
                let changes = remote::set_up(&connection, &wanted, false).await;
                connection.close().await;
                changes.map(drop)
            })
        });
        let mut worked = at_once("setting up", works.collect()).await.into_iter();
        let done = found.into_iter().map(|found| match is_left(&found) {
            true => worked.next().unwrap_or(Ok(())),
            false => found.map(drop),
        });
        self.prove(&ssh, done.collect()).await
    }

    /// A fresh login on every host, and into its container.
    async fn prove(
        &self,
        ssh: &Arc<Ssh>,
        done: Vec<Result<(), SetupError>>,
    ) -> Result<Vec<Result<(), SetupError>>, Failed> {
        let into = match &self.inside {
            None => None,
            Some(inside) => {
                let reach = SshOptions {
                    port: self.reach.port,
                    config: Some(inside.config_path.clone()),
                    ..SshOptions::default()
                };
                Some(Arc::new(Inward {
                    ssh: Ssh::new(&reach)?,
                    container: inside.container.clone(),
                    line: inside.forced.line.clone(),
                }))
            }
        };
        let proofs = self.ways.iter().zip(done).map(|(way, done)| {
            let mut config = way.config.clone();
            if self.key_is_named {
                config.identity_files = vec![self.keys[way.key].path.clone()];
                config.identities_only = true;
            }
            let (ssh, way, into) = (ssh.clone(), way.clone(), into.clone());
            (way.name.clone(), async move {
                done?;
                prove(&ssh, &config, &way, into.as_deref()).await
            })
        });
        Ok(at_once("trying a login", proofs.collect()).await)
    }

    /// Says of every host what is so now, or would be.
    fn conclude(&self, done: impl Iterator<Item = Result<(), SetupError>>) -> Result<Exit, Failed> {
        let mut failures = Vec::new();
        let mut good = Vec::new();
        for (way, done) in self.ways.iter().zip(done) {
            match done {
                Ok(()) => good.push(way),
                Err(error) => failures.push(error.of(&way.name)),
            }
        }
        if !self.dry_run && !good.is_empty() {
            self.tell(&good);
        }
        error::together(failures, self.ways.len()).map_or(Ok(Exit::SUCCESS), Err)
    }

    fn tell(&self, good: &[&Arc<Way>]) {
        let names: Vec<&str> = good.iter().map(|way| way.name.as_str()).collect();
        let opens = if names.len() == 1 { "opens" } else { "open" };
        messages::info(&format!("{} {opens} to your key", text::list(&names)));
        let used = |way: &&&Arc<Way>| {
            let usual = way.config.identity_files_or_default(&self.home);
            self.key_is_named && !usual.contains(&self.keys[way.key].path)
        };
        if let Some(way) = good.iter().find(used) {
            let key = tilde(&self.keys[way.key].path, &self.home);
            messages::hint(&format!(
                "ssh and rlaunch use {key} when ~/.ssh/config says so: Host {}, IdentityFile {key}",
                way.host.name
            ));
        }
        if let Some(Inside { container, config_path, .. }) = &self.inside {
            let path = tilde(config_path, &self.home);
            let name = &container.name;
            messages::info(&format!("the container {name} of each opens to a key of its own:"));
            messages::info(&format!(
                "  rlaunch --ssh-config {path} -H {} hostname",
                names.join(",")
            ));
        }
    }
}

/// The key that the configuration names for a host, the first that is there.
fn key_path(config: &HostConfig, home: &Path) -> PathBuf {
    let named = config.identity_files_or_default(home);
    let present = named.iter().find(|path| path.exists()).or(named.first());
    present.cloned().unwrap_or_else(|| home.join(".ssh/id_ed25519"))
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// What the container needs on this machine, beside what is there.
fn inside(
    container: NamedContainer,
    ways: &[Arc<Way>],
    (home, sources): (&Path, &[PathBuf]),
) -> Result<Inside, SetupError> {
    let directory = home.join(".ssh");
    let key = KeyPair::find_or_make(directory.join(format!("id_ed25519_{}", container.name)))?;
    let config_path = directory.join(format!("rlaunch-{}", container.name));
    let before = std::fs::read_to_string(&config_path).unwrap_or_default();
    let entries: Vec<container::Entry<'_>> = ways
        .iter()
        .map(|way| container::Entry { alias: &way.host.name, config: &way.config })
        .collect();
    let text = container::configuration(&container, &key.path, &entries, &before, (home, sources));
    let forced = Forced {
        line: container.authorized_line(&key.line()?),
        blob: key.blob()?,
        script: container.script(),
        script_path: container.script_path(),
    };
    let config_text = (text != before).then_some(text);
    Ok(Inside { container, key, forced, config_path, config_text })
}

/// The way into the containers, as it is written down.
struct Inward {
    ssh: Ssh,
    container: NamedContainer,
    line: String,
}

/// Logs in afresh, and into the container if there is one.
async fn prove(
    ssh: &Ssh,
    config: &HostConfig,
    way: &Way,
    into: Option<&Inward>,
) -> Result<(), SetupError> {
    let connection = match ssh.log_in_by_key(config).await? {
        KeyLogin::Open(connection) => connection,
        KeyLogin::Refused { why, .. } => return Err(SetupError::NotOpened(why)),
    };
    let on_host = remote::landing(&connection).await;
    connection.close().await;
    let on_host = on_host?.map_err(SetupError::Shell)?;
    let Some(Inward { ssh, container, line }) = into else { return Ok(()) };
    let name = container.name.clone();
    let connection = match ssh.log_in_by_key(&ssh.config_for(destination(&way.host, None))?).await?
    {
        KeyLogin::Open(connection) => connection,
        KeyLogin::Refused { why, .. } => return Err(SetupError::NoWayIn { name, source: why }),
    };
    let inside = remote::landing(&connection).await;
    connection.close().await;
    match inside? {
        Err(said_there) => {
            let (container, user) = (container.clone(), way.user.clone());
            Err(SetupError::Container { container, user, said_there })
        }
        // A host without /proc tells nothing.
        Ok(place) if place == on_host && !place.is_empty() => {
            Err(SetupError::Landing { name, line: line.clone() })
        }
        Ok(_) => Ok(()),
    }
}

/// Runs these at once and gives the results in their order; a long wait says who is waited for.
async fn at_once<T, F>(stage: &'static str, tasks: Vec<(String, F)>) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let names = tasks.iter().map(|(name, _)| name.clone());
    Progress::new(names, stage).run_all(tasks).await
}
