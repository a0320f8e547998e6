//! `rlaunch ssh-setup`: lets the user's key log in to hosts, and a second key log in to containers there.
//!
//! 1. Log in to all hosts, and find what has to be changed (`host_state`).
//! 2. Print the changes, and ask whether to make them.
//! 3. Change files here (`keys`, `container`), log in by keys or passwords (`login`), and run a script on the hosts
//!    (`remote`, `setup.sh`).
//! 4. Test a new login to every host and container.
//!
//! A second run finds nothing to change.

mod container;
mod error;
mod host_state;
mod keys;
mod login;
mod remote;

use crate::cli::args::SshArgs;
use crate::cli::config;
use clap::Parser;
use container::{HostBlock, NamedContainer, tilde};
use error::SetupError;
use host_state::HostState;
use keys::KeyPair;
use remote::{DesiredState, ForcedCommand};
use rlaunch_console::process_env::ProcessEnv;
use rlaunch_console::progress::Progress;
use rlaunch_console::{messages, stdout};
use rlaunch_engine::connect::connector::destination;
use rlaunch_engine::run::signals::{Signals, ended_by};
use rlaunch_plan::hosts::host_table::HostTable;
use rlaunch_plan::hosts::{self, Host};
use rlaunch_ssh::config::{HostConfig, SshConfig};
use rlaunch_ssh::{KeyLogin, Ssh, SshOptions};
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::{printable, text};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Let your key log in to hosts, so that jobs run there without a password.
///
/// On hosts that accept no key yet it logs in by password, once. It installs the key, corrects file modes that sshd
/// would not accept, and tests a new login. Before that it prints all changes, and asks. A second run finds nothing
/// to change.
#[derive(Debug, Parser)]
#[command(after_help = "\
Files that are written, unless they are right already:
  here        ~/.ssh/id_ed25519 and .pub        a key without a passphrase, if you have none
              ~/.ssh/known_hosts                keys of hosts, which you see first
  on a host   ~/.ssh/authorized_keys            one line for your key is added
              modes: ~ not writable for others, ~/.ssh 700, authorized_keys 600
With --container NAME also
  here        ~/.ssh/id_ed25519_NAME and .pub   a second key, for the container
              ~/.ssh/rlaunch-NAME               for --ssh-config: hosts by that key
  on a host   ~/.ssh/rlaunch-NAME.sh            runs `docker exec -i NAME`, mode 700
              ~/.ssh/authorized_keys            one line for that key, with this command
Nothing else is changed. Secrets are neither written to files nor given to other programs.

Examples:
  rlaunch ssh-setup -H a,b                        as this user, at most one password for each
  rlaunch ssh-setup -H nvidia@a,nvidia@b --dry-run   print what would be changed
  rlaunch ssh-setup -H a,b --container mpicont    also into containers called mpicont:
  rlaunch --ssh-config ~/.ssh/rlaunch-mpicont -H a,b hostname")]
pub(crate) struct SshSetupArgs {
    /// Hosts, as for a job
    #[arg(short = 'H', long = "host", visible_alias = "hosts", value_name = "HOST,...")]
    #[arg(required = true)]
    pub(crate) hosts: Vec<String>,

    /// Make a second key that logs in to the container of this name on every host: by docker, or by podman
    /// or nerdctl as podman:NAME
    #[arg(long, value_name = "[KIND:]NAME")]
    pub(crate) container: Option<NamedContainer>,

    /// Key to install, made if the file does not exist. By default the key that ~/.ssh/config names, or
    /// ~/.ssh/id_ed25519
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,

    /// Make the changes without asking
    #[arg(short, long)]
    pub(crate) yes: bool,

    /// Print what would be changed, and change nothing
    #[arg(long, conflicts_with = "yes")]
    pub(crate) dry_run: bool,

    #[command(flatten)]
    pub(crate) ssh: SshArgs,
}

/// Sets up hosts, or prints what would be changed.
pub(super) async fn run(args: SshSetupArgs) -> Result<Exit, Failed> {
    let mut signals = Signals::install()?;
    tokio::select! {
        done = SshSetup::from_args(args)?.run() => done,
        signal = signals.end() => Err(ended_by(signal, "; run it again for the rest")),
    }
}

/// Host with its SSH configuration and key.
struct TargetHost {
    host: Host,
    /// Name of the host as the user typed it.
    name: String,
    config: HostConfig,
    user: String,
    /// Index of the user's key for this host in [`SshSetup::keys`].
    key: usize,
    /// Line of the user's key for authorized_keys.
    line: String,
}

impl TargetHost {
    fn closed(&self) -> SetupError {
        SetupError::Closed { user: self.user.clone(), line: self.line.clone() }
    }
}

/// Container with its key, and the SSH configuration that uses it.
struct ContainerSetup {
    container: NamedContainer,
    key: KeyPair,
    forced: ForcedCommand,
    config_path: PathBuf,
    /// New content of the file `config_path`; `None` if it needs no change.
    config_text: Option<String>,
}

/// Hosts, keys and options of one run.
struct SshSetup {
    ssh_options: SshOptions,
    home: PathBuf,
    yes: bool,
    dry_run: bool,
    /// Whether the user named the key. It is then installed even on hosts that accept another key.
    key_is_named: bool,
    keys: Vec<KeyPair>,
    hosts: Vec<Arc<TargetHost>>,
    container: Option<ContainerSetup>,
}

/// State of a host, or the reason why it is unknown.
type StateResult = Result<HostState, SetupError>;

impl SshSetup {
    fn from_args(args: SshSetupArgs) -> Result<SshSetup, Failed> {
        let SshArgs { port, ssh_config } = args.ssh;
        let usage = |error: &dyn std::error::Error| Failed::from_error(Exit::USAGE, error);
        let mut entries = args.hosts.iter().flat_map(|list| hosts::entries(list));
        let table = if entries.any(|entry| entry.starts_with('@')) {
            let table = config::host_table(&ProcessEnv::current());
            table.map_err(|error| usage(&error).hint(error.hint()))?
        } else {
            HostTable::default()
        };
        let hosts = table.parse_hosts(&args.hosts).map_err(|error| usage(&error))?;
        if hosts::are_local(&hosts) {
            let hint = "rlaunch -np 2 hostname runs here without SSH";
            return Err(Failed::new(Exit::USAGE, "this machine needs no set-up").hint(Some(hint)));
        }
        let ssh_options = SshOptions { port, config: ssh_config.clone(), ..SshOptions::default() };
        let ssh = Ssh::new(&ssh_options)?;
        let home = ssh.home().to_owned();
        let here = |error: SetupError| error.here();
        let (mut keys, mut targets): (Vec<KeyPair>, Vec<Arc<TargetHost>>) =
            (Vec::new(), Vec::new());
        for host in hosts {
            let config =
                ssh.config_for(destination(&host, None)).map_err(|error| here(error.into()))?;
            let name = host.to_string();
            let user = ssh.user_for(&config);
            let user = user.map_err(|error| SetupError::from(error).on_host(&name))?;
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
            targets.push(Arc::new(TargetHost { host, name, config, user, key, line }));
        }
        let sources = match &ssh_config {
            Some(path) => vec![absolute(path)],
            None => SshConfig::default_paths(&home),
        };
        let container = args
            .container
            .map(|container| set_up_container(container, &targets, (&home, &sources)));
        Ok(SshSetup {
            ssh_options,
            home,
            yes: args.yes,
            dry_run: args.dry_run,
            key_is_named: args.key.is_some(),
            keys,
            hosts: targets,
            container: container.transpose().map_err(here)?,
        })
    }

    async fn run(self) -> Result<Exit, Failed> {
        let ssh = Arc::new(Ssh::new(&self.ssh_options)?);
        let desired: Vec<DesiredState> =
            self.hosts.iter().map(|host| self.desired_state(host, self.key_is_named)).collect();
        let states = host_state::find(&ssh, &self.hosts, &desired).await;
        ssh.announce_new_hosts();
        let here = self.changes_here(&states);
        let known = self.hosts.iter().zip(&states);
        let known = known.filter_map(|(host, state)| Some((host.as_ref(), state.as_ref().ok()?)));
        let name = self.container.as_ref().map(|setup| setup.container.name.as_str());
        let plan = host_state::format_plan(&here, known, name);
        if plan.is_empty() && states.iter().all(Result::is_ok) {
            messages::info("logins by your key: there is nothing to do");
        }
        match self.dry_run {
            true => stdout::print(&plan),
            false => drop(std::io::stderr().write_all(printable::text(&plan).as_bytes())),
        }
        if self.dry_run {
            return self.conclude(states.into_iter().map(|state| state.map(drop)));
        }
        if !plan.is_empty() {
            self.confirm().await?;
            self.change_files_here(&states).map_err(|error| error.here())?;
        }
        let results = self.change_hosts(states).await?;
        self.conclude(results.into_iter())
    }

    /// Returns the keys and files that a host should have; `has_key` tells whether the user's key is among them.
    fn desired_state(&self, host: &TargetHost, has_key: bool) -> DesiredState {
        let blob = host.line.split(' ').nth(1).unwrap_or_default();
        DesiredState {
            key: has_key.then(|| (host.line.clone(), blob.to_owned())),
            forced: self.container.as_ref().map(|setup| setup.forced.clone()),
        }
    }

    /// Returns the keys that at least one host needs.
    fn needed_keys(&self, states: &[StateResult]) -> impl Iterator<Item = &KeyPair> {
        let needs = |state: &StateResult| {
            state.as_ref().is_ok_and(|state| self.key_is_named || state.needs_key())
        };
        let users = self.hosts.iter().zip(states).filter(move |(_, state)| needs(state));
        let used: Vec<usize> = users.map(|(host, _)| host.key).collect();
        self.keys.iter().enumerate().filter(move |(at, _)| used.contains(at)).map(|(_, key)| key)
    }

    fn changes_here(&self, states: &[StateResult]) -> Vec<String> {
        if states.iter().all(Result::is_err) {
            return Vec::new();
        }
        let container = self.container.as_ref();
        let keys = self.needed_keys(states).chain(container.map(|setup| &setup.key));
        let mut lines: Vec<String> = keys.filter_map(|key| key.change(&self.home)).collect();
        if let Some(setup) = container.filter(|setup| setup.config_text.is_some()) {
            let path = tilde(&setup.config_path, &self.home);
            lines.push(format!("write {path}: for --ssh-config, hosts by the container's key"));
        }
        lines
    }

    async fn confirm(&self) -> Result<(), Failed> {
        if self.yes {
            return Ok(());
        }
        let refused = |message: &str| Failed::new(Exit::USAGE, message);
        if !host_state::can_confirm() {
            let hint = "--yes makes the changes without asking; --dry-run only prints them";
            return Err(
                refused("nothing was changed: standard input is not a terminal").hint(Some(hint))
            );
        }
        match host_state::confirm().await.map_err(|error| error.here())? {
            true => Ok(()),
            false => Err(refused("nothing was changed")),
        }
    }

    /// Writes the user's keys, accepted keys of hosts, and the SSH configuration for the container.
    fn change_files_here(&self, states: &[StateResult]) -> Result<(), SetupError> {
        for key in self.needed_keys(states) {
            key.write()?;
        }
        if let Some(setup) = &self.container {
            setup.key.write()?;
            if let Some(text) = &setup.config_text {
                keys::replace(&setup.config_path, text)?;
            }
        }
        states.iter().try_for_each(|state| match state {
            Ok(HostState::Unknown(key)) => Ok(key.accept()?),
            _ => Ok(()),
        })
    }

    /// Changes the hosts that are not in their desired state, and tests a login to all hosts.
    async fn change_hosts(
        &self,
        states: Vec<StateResult>,
    ) -> Result<Vec<Result<(), SetupError>>, Failed> {
        // Keys and known hosts are read again, since they have changed.
        let ssh = Arc::new(Ssh::new(&self.ssh_options)?);
        let is_left = |state: &StateResult| state.as_ref().is_ok_and(|state| !state.is_done());
        let left = || self.hosts.iter().zip(&states).filter(|(_, state)| is_left(state));
        let hosts: Vec<Arc<TargetHost>> = left().map(|(host, _)| host.clone()).collect();
        let desired = left().map(|(host, state)| {
            let needs_key = state.as_ref().is_ok_and(HostState::needs_key);
            self.desired_state(host, self.key_is_named || needs_key)
        });
        let desired: Vec<DesiredState> = desired.collect();
        let logins = login::log_in(&ssh, &hosts).await;
        let changes = hosts.iter().zip(desired).zip(logins).map(|((host, desired), login)| {
            (host.name.clone(), async move {
                let connection = login?;
                let changes = remote::apply(&connection, &desired, false).await;
                connection.close().await;
                changes.map(drop)
            })
        });
        let mut changed = on_hosts("setting up", changes.collect()).await.into_iter();
        let results = states.into_iter().map(|state| match is_left(&state) {
            true => changed.next().unwrap_or(Ok(())),
            false => state.map(drop),
        });
        self.test_logins(&ssh, results.collect()).await
    }

    /// Tests a new login to every host that has no error so far, and to the container there.
    async fn test_logins(
        &self,
        ssh: &Arc<Ssh>,
        results: Vec<Result<(), SetupError>>,
    ) -> Result<Vec<Result<(), SetupError>>, Failed> {
        let container = match &self.container {
            None => None,
            Some(setup) => {
                let options = SshOptions {
                    port: self.ssh_options.port,
                    config: Some(setup.config_path.clone()),
                    ..SshOptions::default()
                };
                Some(Arc::new(ContainerLogin {
                    ssh: Ssh::new(&options)?,
                    container: setup.container.clone(),
                    line: setup.forced.line.clone(),
                }))
            }
        };
        let tests = self.hosts.iter().zip(results).map(|(host, result)| {
            let mut config = host.config.clone();
            if self.key_is_named {
                config.identity_files = vec![self.keys[host.key].path.clone()];
                config.identities_only = true;
            }
            let (ssh, host, container) = (ssh.clone(), host.clone(), container.clone());
            (host.name.clone(), async move {
                result?;
                test_login(&ssh, &config, &host, container.as_deref()).await
            })
        });
        Ok(on_hosts("trying a login", tests.collect()).await)
    }

    /// Reports the hosts that are set up, and combines the failures of the others. `results` are in the order
    /// of the hosts.
    fn conclude(
        &self,
        results: impl Iterator<Item = Result<(), SetupError>>,
    ) -> Result<Exit, Failed> {
        let mut failures = Vec::new();
        let mut good = Vec::new();
        for (host, result) in self.hosts.iter().zip(results) {
            match result {
                Ok(()) => good.push(host),
                Err(error) => failures.push(error.on_host(&host.name)),
            }
        }
        if !self.dry_run && !good.is_empty() {
            self.report_success(&good);
        }
        error::combine(failures, self.hosts.len()).map_or(Ok(Exit::SUCCESS), Err)
    }

    fn report_success(&self, good: &[&Arc<TargetHost>]) {
        let names: Vec<&str> = good.iter().map(|host| host.name.as_str()).collect();
        let accept = if names.len() == 1 { "accepts" } else { "accept" };
        messages::info(&format!("{} {accept} your key", text::list(&names)));
        let is_unusual = |host: &&&Arc<TargetHost>| {
            let usual = host.config.identity_files_or_default(&self.home);
            self.key_is_named && !usual.contains(&self.keys[host.key].path)
        };
        if let Some(host) = good.iter().find(is_unusual) {
            let key = tilde(&self.keys[host.key].path, &self.home);
            messages::hint(&format!(
                "ssh and rlaunch use {key} if ~/.ssh/config says so: Host {}, IdentityFile {key}",
                host.host.name
            ));
        }
        if let Some(ContainerSetup { container, config_path, .. }) = &self.container {
            let path = tilde(config_path, &self.home);
            let name = &container.name;
            messages::info(&format!("the container {name} on each accepts a key of its own:"));
            messages::info(&format!(
                "  rlaunch --ssh-config {path} -H {} hostname",
                names.join(",")
            ));
        }
    }
}

/// Returns the path of the key that the configuration names for a host. If it names several, this is the
/// first that exists.
fn key_path(config: &HostConfig, home: &Path) -> PathBuf {
    let named = config.identity_files_or_default(home);
    let present = named.iter().find(|path| path.exists()).or(named.first());
    present.cloned().unwrap_or_else(|| home.join(".ssh/id_ed25519"))
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Prepares the files for a container: its key, its SSH configuration, and its script on the hosts.
fn set_up_container(
    container: NamedContainer,
    hosts: &[Arc<TargetHost>],
    (home, sources): (&Path, &[PathBuf]),
) -> Result<ContainerSetup, SetupError> {
    let directory = home.join(".ssh");
    let key = KeyPair::find_or_make(directory.join(format!("id_ed25519_{}", container.name)))?;
    let config_path = directory.join(format!("rlaunch-{}", container.name));
    let before = std::fs::read_to_string(&config_path).unwrap_or_default();
    let blocks: Vec<HostBlock<'_>> = hosts
        .iter()
        .map(|host| HostBlock { alias: &host.host.name, config: &host.config })
        .collect();
    let text = container::configuration(&container, &key.path, &blocks, &before, (home, sources));
    let forced = ForcedCommand {
        line: container.authorized_line(&key.line()?),
        blob: key.blob()?,
        script: container.script(),
        script_path: container.script_path(),
    };
    let config_text = (text != before).then_some(text);
    Ok(ContainerSetup { container, key, forced, config_path, config_text })
}

/// Login to the container on any host, by the SSH configuration that was written for it.
struct ContainerLogin {
    ssh: Ssh,
    container: NamedContainer,
    /// Line of the container's key for authorized_keys.
    line: String,
}

/// Tests a new login to a host, and one to its container. It is an error if the second login reaches the host
/// and not the container.
async fn test_login(
    ssh: &Ssh,
    config: &HostConfig,
    host: &TargetHost,
    container: Option<&ContainerLogin>,
) -> Result<(), SetupError> {
    let connection = match ssh.log_in_by_key(config).await? {
        KeyLogin::Open(connection) => connection,
        KeyLogin::Refused { why, .. } => return Err(SetupError::KeyRefused(why)),
    };
    let on_host = remote::mount_namespace(&connection).await;
    connection.close().await;
    let on_host = on_host?.map_err(SetupError::NoCommands)?;
    let Some(ContainerLogin { ssh, container, line }) = container else { return Ok(()) };
    let name = container.name.clone();
    let connection =
        match ssh.log_in_by_key(&ssh.config_for(destination(&host.host, None))?).await? {
            KeyLogin::Open(connection) => connection,
            KeyLogin::Refused { why, .. } => {
                return Err(SetupError::ContainerKeyRefused { name, source: why });
            }
        };
    let in_container = remote::mount_namespace(&connection).await;
    connection.close().await;
    match in_container? {
        Err(output) => {
            let (container, user) = (container.clone(), host.user.clone());
            Err(SetupError::Container { container, user, output })
        }
        // Without /proc the namespace is empty, and the two cannot be compared.
        Ok(namespace) if namespace == on_host && !namespace.is_empty() => {
            Err(SetupError::NotInContainer { name, line: line.clone() })
        }
        Ok(_) => Ok(()),
    }
}

/// Runs a task for each host at once, and returns the results in order. If this takes long, the hosts that
/// are left are printed.
async fn on_hosts<T, F>(stage: &'static str, tasks: Vec<(String, F)>) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let names = tasks.iter().map(|(name, _)| name.clone());
    Progress::new(names, stage).run_all(tasks).await
}
