//! Starting and killing nodes. Each is an init script inside new namespaces.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::names::LAUNCH;
use super::processes::{self, KEEPER};
use super::state::{LabPaths, LabRecord, ProcessId};
use super::{Account, accounts, cgroup, network, sshd};
use crate::command::{last_lines, show, wait_until};
use crate::{LabError, files};

const HOST_INIT: &str = include_str!("host-init.sh");
const LAUNCH_INIT: &str = include_str!("launch-init.sh");
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Script that moves into a cgroup, writes its pid to a file and executes the rest of its
/// arguments. Arguments: path of cgroup.procs or nothing, file for the pid, command.
const ENTER_CGROUP: &str = r#"[ -z "$1" ] || echo $$ >"$1"; echo $$ >"$2"; shift 2; exec "$@""#;

/// Time limit for the start of a node on a busy machine.
const START: Duration = Duration::from_secs(60);

/// Starts `host`. [`wait_for_host`] waits until it is up.
pub(super) fn start_host(paths: &LabPaths, record: &LabRecord, host: &str) -> Result<(), LabError> {
    sshd_files(paths, host)?;
    let mut words: Vec<PathBuf> = vec!["-c".into(), HOST_INIT.into(), "host-init".into()];
    words.push(host.into());
    words.push(paths.host(host));
    words.push(accounts::home_root(paths, record, host));
    words.push(paths.etc());
    words.push(Account::Root.home());
    words.push(record.cgroup.clone().unwrap_or_default());
    words.push(KEEPER.into());
    words.push(venvs_argument(record));
    words.extend(record.hidden.iter().cloned());
    let flags = ["--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child"];
    spawn(paths, record, host, &flags, &words)
}

/// Waits until the sshd of `host` listens, and records the host's pid 1.
pub(super) fn wait_for_host(paths: &LabPaths, host: &str) -> Result<(), LabError> {
    let dir = paths.host(host);
    let what = format!("host {host} to start");
    let mut init = None;
    wait_until(START, &what, || {
        let Some(outer) = started_pid(&dir)? else { return Ok(false) };
        init = processes::children(outer).first().copied();
        // The child is checked, since the outer process is in the machine's network for a moment.
        Ok(init.is_some_and(|init| sshd::listens(init, 22)))
    })
    .map_err(|error| sshd::with_detail(error, &log_of(&dir)))?;
    let init = init.and_then(ProcessId::running);
    let init = init.ok_or_else(|| LabError::HostDown { host: host.into() })?;
    init.store(&dir.join("init"))
}

/// Starts the launch node and waits until it is up.
pub(super) fn start_launch(paths: &LabPaths, record: &LabRecord) -> Result<(), LabError> {
    let dir = paths.launch();
    let mut words: Vec<PathBuf> = vec!["-c".into(), LAUNCH_INIT.into(), "launch-init".into()];
    words.extend([LAUNCH.into(), dir.clone(), paths.etc(), Account::Root.home()]);
    words.extend([Account::User.home(), record.cgroup.clone().unwrap_or_default()]);
    spawn(paths, record, LAUNCH, &["--uts", "--mount"], &words)?;
    let mut launch = None;
    wait_until(START, "the launch node to start", || {
        launch = started_pid(&dir)?;
        Ok(launch.is_some_and(|pid| processes::arguments(pid) == ["sleep", "infinity"]))
    })
    .map_err(|error| sshd::with_detail(error, &log_of(&dir)))?;
    let launch = launch.and_then(ProcessId::running);
    let launch = launch.ok_or_else(|| LabError::NotUp { name: paths.name.clone() })?;
    launch.store(&dir.join("init"))
}

/// Kills every process of `host` at once, as a power loss does.
pub(super) fn kill_host(paths: &LabPaths, record: &LabRecord, host: &str) -> Result<(), LabError> {
    if let Some(init) = ProcessId::load(&paths.host(host).join("init")) {
        // All processes of its pid namespace die with it.
        processes::kill(init.pid);
        let what = format!("host {host} to end");
        wait_until(Duration::from_secs(10), &what, || Ok(!init.is_alive()))?;
    }
    if let Some(lab) = &record.cgroup {
        let path = cgroup::node(lab, host)?;
        cgroup::kill(&path);
        let what = format!("the processes of {host} to end");
        wait_until(Duration::from_secs(10), &what, || Ok(cgroup::members(&path).is_empty()))?;
        // The kernel that a machine boots has no cgroups of jobs.
        cgroup::remove_below(&path)?;
    }
    Ok(())
}

/// Runs `sh WORDS...` detached, in new namespaces of the node.
fn spawn(
    paths: &LabPaths,
    record: &LabRecord,
    node: &str,
    flags: &[&str],
    words: &[PathBuf],
) -> Result<(), LabError> {
    let dir = if node == LAUNCH { paths.launch() } else { paths.host(node) };
    let operation = format!("start {node}");
    let log = File::create(dir.join("init.log")).map_err(LabError::io(operation.clone()))?;
    let errors = log.try_clone().map_err(LabError::io(operation.clone()))?;
    let _ = fs::remove_file(dir.join("pid"));
    let members = match &record.cgroup {
        Some(lab) => cgroup::node(lab, node)?.join("cgroup.procs"),
        None => PathBuf::new(),
    };
    let mut command = Command::new("setsid");
    command.args(["--fork", "sh", "-c", ENTER_CGROUP, "sh"]);
    command.arg(members).arg(dir.join("pid"));
    command.arg("nsenter").arg(format!("--net={}", network::namespace_file(paths, node)));
    command.arg("unshare").args(flags);
    if record.cgroup.is_some() {
        command.arg("--cgroup");
    }
    command.args(["env", "-i", PATH, "sh"]).args(words);
    show(&operation, command.current_dir("/").stdin(Stdio::null()).stdout(log).stderr(errors))
}

/// Returns the pid that the start script has written, or nothing if it has not yet. Fails if that
/// process has ended.
fn started_pid(dir: &Path) -> Result<Option<i32>, LabError> {
    let text = fs::read_to_string(dir.join("pid")).unwrap_or_default();
    // The line may not be complete yet.
    let Some(pid) = text.strip_suffix('\n').and_then(|number| number.parse().ok()) else {
        return Ok(None);
    };
    if processes::start_time(pid).is_some() {
        return Ok(Some(pid));
    }
    let node = dir.file_name().unwrap_or_default().to_string_lossy();
    Err(LabError::Unexpected(format!("node {node} died while starting:\n{}", log_of(dir))))
}

fn log_of(dir: &Path) -> String {
    let read = |name: &str| fs::read_to_string(dir.join(name)).unwrap_or_default();
    // The sshd's may be of an earlier start.
    last_lines(&(read("sshd/sshd.log") + &read("init.log")), 10)
}

/// Writes the lab's own sshd settings, whatever settings the sshd was last restarted with.
fn sshd_files(paths: &LabPaths, host: &str) -> Result<(), LabError> {
    let path = paths.host(host).join("sshd/sshd_config");
    files::write(&path, sshd::config(&[]), 0o644)
}

/// Returns a line `PATH DIRECTORY` for each virtual environment.
fn venvs_argument(record: &LabRecord) -> PathBuf {
    let line = |(path, directory): &(String, PathBuf)| format!("{path} {}\n", directory.display());
    record.venvs.iter().map(line).collect::<String>().into()
}
