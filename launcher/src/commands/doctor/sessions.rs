//! Agents of all hosts, each asked twice: for its diagnosis, and, once all hosts have answered, for what it sees
//! of the others. No agent is let go before the last of them has answered, because others may still probe it.

use super::{Diagnosed, DoctorArgs, Examination, ProbeWhen, probes};
use crate::cli::lower;
use crate::commands::agent_session::{AgentHosts, AgentSession, AgentStream, SessionError};
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::protocol::diagnosis::{Diagnosis, Inquiry, InquiryAnswer, ProgramInquiry};
use rlaunch_console::messages;
use rlaunch_console::progress::Progress;
use rlaunch_engine::connect::agent::DeployError;
use rlaunch_engine::connect::agent::store::AgentStoreError;
use rlaunch_engine::connect::connector::{ConnectError, Container, Reach};
use rlaunch_plan::checks::cluster::{ReachStage, Unreached};
use rlaunch_plan::hosts::Host;
use rlaunch_ssh::error::SshError;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::task::JoinSet;

/// Time limit for the diagnosis of a host, counted from the start of its agent.
const DIAGNOSIS_TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit for the answer to an inquiry, with the time that its probes take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of hosts that are probed without `--probe`.
const MAX_PROBED: usize = 16;
/// Time between two readings of counters, in milliseconds.
const INTERVAL_MS: u32 = 1000;

/// Asks all hosts.
pub(super) async fn examine(
    args: &DoctorArgs,
    hosts: &[Host],
    options: &Reach,
) -> Result<Examination, Failed> {
    let in_container = options.container.is_some();
    let opened = AgentHosts::open(hosts, options, "diagnose", DIAGNOSIS_TIMEOUT).await?;
    let (mut sessions, mut unreached) = (Vec::new(), Vec::new());
    for (host, result) in hosts.iter().zip(opened) {
        match result {
            Ok(session) => sessions.push(HostSession::new(session)),
            Err(error) => unreached.push(unreached_by(host, &error)),
        }
    }
    let mut examination = Examination { unreached, in_container, ..Examination::default() };
    inquire(args, sessions, &mut examination).await?;
    examination.outside = outside(options.container.as_ref(), &examination.hosts);
    Ok(examination)
}

/// Sends the inquiry to all hosts at once and stores their answers.
async fn inquire(
    args: &DoctorArgs,
    sessions: Vec<HostSession>,
    examination: &mut Examination,
) -> Result<(), Failed> {
    let inventories: Vec<Inventory> =
        sessions.iter().map(|session| session.host.diagnosis.inventory.clone()).collect();
    let is_probed = match args.probe {
        ProbeWhen::Auto => sessions.len() <= MAX_PROBED,
        ProbeWhen::Always => true,
        ProbeWhen::Never => false,
    };
    let wanted = is_probed && sessions.len() > 1;
    let hosts: Vec<&Diagnosed> = sessions.iter().map(|session| &session.host).collect();
    let planned = if wanted { probes::plan(&hosts, &inventories) } else { Vec::new() };
    let program = program_inquiry(args)?;
    let token = *uuid::Uuid::new_v4().as_bytes();
    let progress =
        Progress::new(sessions.iter().map(|session| session.host.name.clone()), "examining");
    let tasks = sessions.into_iter().enumerate().map(|(index, session)| {
        let probes = planned.iter().filter(|(probe, _)| probe.from == index);
        let inquiry = Inquiry {
            token,
            probes: probes.map(|(_, request)| request.clone()).collect(),
            program: program.clone(),
            interval_ms: INTERVAL_MS,
        };
        (session.host.name.clone(), async move { session.inquire(inquiry).await })
    });
    let (sessions, answers): (Vec<HostSession>, Vec<Option<InquiryAnswer>>) =
        progress.run_all(tasks).await.into_iter().unzip();
    let mut hosts = close_all(sessions).await;
    let outcomes = probes::outcomes(&planned, &answers);
    let mut reports = Vec::new();
    for (host, answer) in hosts.iter_mut().zip(answers) {
        if answer.is_none() {
            messages::warn(&format!(
                "{}: its agent did not answer the second question: its probes, the program there \
                 and counters that grow are not judged",
                host.name
            ));
        }
        let answer = answer.unwrap_or_default();
        probes::update_counters(&mut host.diagnosis.diagnostics, &answer);
        host.program = answer.program.as_ref().map(probes::program_on_host);
        reports.push((host.name.clone(), answer.program));
    }
    examination.hosts = hosts;
    examination.probes = wanted.then_some(outcomes);
    examination.program = program.map(|inquiry| probes::program(inquiry, &reports));
    Ok(())
}

/// Closes all sessions at once and returns their hosts, in the same order.
async fn close_all(sessions: Vec<HostSession>) -> Vec<Diagnosed> {
    let mut closing = JoinSet::new();
    let mut hosts = Vec::new();
    for HostSession { host, stream } in sessions {
        closing.spawn(stream.close());
        hosts.push(host);
    }
    closing.join_all().await;
    hosts
}

fn program_inquiry(args: &DoctorArgs) -> Result<Option<ProgramInquiry>, Failed> {
    if args.program.is_empty() {
        return Ok(None);
    }
    let words = args.program.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let directory = lower::here().map_err(|error| Failed::from_error(Exit::FILES, &error))?;
    Ok(Some(ProgramInquiry { words, directory }))
}

/// Host whose agent waits for an inquiry.
struct HostSession {
    host: Diagnosed,
    stream: AgentStream,
}

fn unreached_by(host: &Host, error: &SessionError) -> Unreached {
    let stage = match error {
        SessionError::Connect(error) => connect_stage(error),
        SessionError::Deploy(error) => deploy_stage(error),
        SessionError::Late(_) => ReachStage::Agent,
    };
    let hints = error.hint(&host.name).into_iter().collect();
    Unreached { host: host.to_string(), stage, cause: messages::error_chain(error), hints }
}

/// Returns by how much the host's clock is ahead of this machine's, and the uncertainty, in microseconds. `arrived` is
/// when the diagnosis arrived, and how long ago its agent had been started.
fn clock_offset(diagnosis: &Diagnosis, arrived: (SystemTime, Duration)) -> Option<(i64, u64)> {
    let theirs = i64::try_from(diagnosis.diagnostics.clock?).ok()?;
    let own = arrived.0.duration_since(UNIX_EPOCH).ok()?;
    let own = i64::try_from(own.as_micros()).ok()?;
    let uncertainty = u64::try_from(arrived.1.as_micros()).ok()?;
    Some((theirs.checked_sub(own)?, uncertainty))
}

fn connect_stage(error: &ConnectError) -> ReachStage {
    match error {
        ConnectError::Ssh(error) => ssh_stage(error),
        ConnectError::Rsh(_) | ConnectError::Step(_) => ReachStage::Connect,
        ConnectError::Container(_) => ReachStage::Landing,
    }
}

fn ssh_stage(error: &SshError) -> ReachStage {
    match error {
        SshError::JumpHost { source, .. } => ssh_stage(source),
        SshError::Repeated { last, .. } => ssh_stage(last),
        SshError::HostKeyChanged(_)
        | SshError::HostKeyRevoked { .. }
        | SshError::HostKeyUnknown { .. }
        | SshError::HostKeyToAsk(_)
        | SshError::HostCertificate { .. }
        | SshError::KnownHosts(_) => ReachStage::HostKey,
        SshError::Refused(_)
        | SshError::Disconnected(_)
        | SshError::Login { .. }
        | SshError::NoUser { .. }
        | SshError::NoPassword(_) => ReachStage::Login,
        _ => ReachStage::Connect,
    }
}

fn deploy_stage(error: &DeployError) -> ReachStage {
    match error {
        DeployError::Connect(error) => match connect_stage(error) {
            ReachStage::Connect => ReachStage::Agent,
            stage => stage,
        },
        DeployError::NoCallback { .. } | DeployError::NoFetch { .. } => ReachStage::Callback,
        DeployError::Store(AgentStoreError::Missing { .. } | AgentStoreError::Wrong { .. })
        | DeployError::System { .. } => ReachStage::Architecture,
        _ => ReachStage::Agent,
    }
}

impl HostSession {
    fn new(session: AgentSession<Diagnosis>) -> HostSession {
        let AgentSession { name, first: diagnosis, noise, arrived, stream } = session;
        let clock_offset = clock_offset(&diagnosis, arrived);
        let noise = Some(noise).filter(|noise| !noise.is_empty());
        let host = Diagnosed { name, diagnosis, noise, clock_offset, program: None };
        HostSession { host, stream }
    }

    /// Sends an inquiry and waits for the answer. Returns no answer if the agent has no stdin or is too slow. The
    /// agent goes on to answer probes until the session is closed.
    async fn inquire(mut self, inquiry: Inquiry) -> (HostSession, Option<InquiryAnswer>) {
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, self.ask(&inquiry)).await;
        (self, answer.ok().flatten())
    }

    async fn ask(&mut self, inquiry: &Inquiry) -> Option<InquiryAnswer> {
        self.stream.send(inquiry).await?;
        self.stream.receive().await
    }
}

/// Lists the hosts whose agents are outside of the container.
fn outside(wanted: Option<&Container>, hosts: &[Diagnosed]) -> Vec<Unreached> {
    let Some(container) = wanted else { return Vec::new() };
    let judge = |host: &Diagnosed| {
        let is_inside = host.diagnosis.inventory.system.container.is_some();
        let error = container.check_inside(is_inside).err()?;
        let name = host.name.rsplit_once('@').map_or(&*host.name, |(_, name)| name);
        Some(Unreached {
            host: host.name.clone(),
            stage: ReachStage::Landing,
            cause: error.to_string(),
            hints: error.hint(name).into_iter().collect(),
        })
    };
    hosts.iter().filter_map(judge).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_bootstrap::inventory::ContainerKind;
    use rlaunch_bootstrap::rendezvous::oob::PortRange;
    use rlaunch_ssh::error::HostKeyChange;
    use std::io;
    use std::sync::Arc;

    fn look_up() -> SshError {
        SshError::LookUp { name: "a".into(), source: io::Error::other("no such name") }
    }

    fn change() -> Box<HostKeyChange> {
        Box::new(HostKeyChange {
            name: "a".into(),
            file: "/known_hosts".into(),
            line: 1,
            recorded: "SHA256:x".into(),
            shown: "SHA256:y".into(),
        })
    }

    #[test]
    fn an_error_of_ssh_has_the_stage_of_its_last_cause() {
        let revoked = || SshError::HostKeyRevoked { file: "/known_hosts".into(), line: 1 };
        let again = |last| SshError::Repeated { attempts: 3, seconds: 9, last: Box::new(last) };
        let through = |error| SshError::JumpHost { jump: "j".into(), source: Arc::new(error) };
        for (error, stage) in [
            (look_up(), ReachStage::Connect),
            (SshError::NoForwarding { jump: "j".into() }, ReachStage::Connect),
            (SshError::HostKeyChanged(change()), ReachStage::HostKey),
            (revoked(), ReachStage::HostKey),
            (SshError::NoPassword(change()), ReachStage::Login),
            (again(revoked()), ReachStage::HostKey),
            (through(SshError::NoPassword(change())), ReachStage::Login),
            (again(through(look_up())), ReachStage::Connect),
        ] {
            assert_eq!(ssh_stage(&error), stage, "{error:?}");
        }
    }

    #[test]
    fn an_agent_that_does_not_start_is_told_from_a_host_that_is_not_reached() {
        let connect = |error: SshError| DeployError::Connect(ConnectError::Ssh(error));
        let ports = PortRange::DEFAULT;
        let missing = AgentStoreError::Missing { arch: "aarch64".into(), searched: Vec::new() };
        let unread =
            AgentStoreError::Read { path: "/agent".into(), source: io::Error::other("broken") };
        for (error, stage) in [
            // The login had worked.
            (connect(look_up()), ReachStage::Agent),
            (connect(SshError::HostKeyChanged(change())), ReachStage::HostKey),
            (
                DeployError::NoCallback { tried: "10.0.0.1:21000".into(), from: None, ports },
                ReachStage::Callback,
            ),
            (DeployError::NoFetch { cause: "no".into(), from: None, ports }, ReachStage::Callback),
            (DeployError::Store(missing), ReachStage::Architecture),
            (DeployError::Store(unread), ReachStage::Agent),
            (DeployError::System { system: "Darwin".into() }, ReachStage::Architecture),
            (DeployError::NoStart("GLIBC".into()), ReachStage::Agent),
            (DeployError::Version { theirs: 1 }, ReachStage::Agent),
        ] {
            assert_eq!(deploy_stage(&error), stage, "{error:?}");
        }
    }

    #[test]
    fn a_login_that_ends_on_the_host() {
        let host = |name: &str, container| {
            let mut diagnosis = Diagnosis::default();
            diagnosis.inventory.system.container = container;
            Diagnosed::recorded(&Host { name: name.into(), ..Host::this_machine() }, diagnosis)
        };
        let hosts = [host("b", Some(ContainerKind::Docker)), host("c", None)];
        assert!(outside(None, &hosts).is_empty());
        let wanted: Container = "forced:mpi".parse().unwrap();
        let found = outside(Some(&wanted), &hosts);
        assert_eq!((found.len(), &*found[0].host), (1, "c"));
        assert!(found[0].cause.starts_with("the login ends on the host"), "{found:?}");
        assert!(found[0].hints[0].contains("authorized_keys of c"), "{found:?}");
    }
}
