//! `rlaunch-worker diagnose` as the launcher runs it, twice on this host.

#![expect(clippy::unwrap_used, reason = "a test fails where it cannot go on")]

use rlaunch_bootstrap::protocol::control::{FrameReader, HELLO_MAGIC, encode};
use rlaunch_bootstrap::protocol::diagnosis::{
    Diagnosis, Inquiry, InquiryAnswer, ProbeRequest, ProbeResult, ProgramInquiry,
};
use serde::de::DeserializeOwned;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Time limit for an agent to end.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Agent that is killed when this value is dropped.
struct Agent {
    process: Child,
    frames: FrameReader,
    has_said_hello: bool,
}

impl Agent {
    fn start(arguments: &[&str]) -> Agent {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rlaunch-worker"));
        command.arg("diagnose").args(arguments);
        let process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        Agent { process, frames: FrameReader::default(), has_said_hello: false }
    }

    /// Reads the next message.
    fn read<T: DeserializeOwned>(&mut self) -> T {
        let stdout = self.process.stdout.as_mut().unwrap();
        if !self.has_said_hello {
            let mut hello = vec![0; HELLO_MAGIC.len()];
            stdout.read_exact(&mut hello).unwrap();
            assert_eq!(hello, HELLO_MAGIC);
            self.has_said_hello = true;
        }
        let mut bytes = vec![0; 64 << 10];
        loop {
            if let Some(message) = self.frames.next_frame().unwrap() {
                return message;
            }
            let length = stdout.read(&mut bytes).unwrap();
            assert!(length > 0, "the agent has ended");
            self.frames.push(&bytes[..length]);
        }
    }

    fn inquire(&mut self, inquiry: &Inquiry) {
        let frame = encode(inquiry).unwrap();
        self.process.stdin.as_mut().unwrap().write_all(&frame).unwrap();
    }

    /// Closes stdin and waits until the agent has ended; returns whether it succeeded.
    fn end(mut self) -> bool {
        drop(self.process.stdin.take());
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status.success();
            }
            assert!(Instant::now() < deadline, "the agent has not ended");
            sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn two_agents_examine_the_way_between_them() {
    let mut agents = [Agent::start(&[]), Agent::start(&[])];
    let said: Vec<Diagnosis> = agents.iter_mut().map(Agent::read).collect();
    let ports: Vec<u16> = said.iter().map(|diagnosis| diagnosis.probe_port.unwrap()).collect();
    assert_ne!(ports[0], ports[1]);
    assert!(said[0].diagnostics.clock.is_some() && said[0].facts.is_same_host(&said[1].facts));
    assert!(!said[0].inventory.netdevs.is_empty());
    let to = |agent: usize| SocketAddr::new(HERE, ports[agent]);
    let program =
        ProgramInquiry { words: vec!["sh".into(), "/nosuch/x.sh".into()], directory: "/".into() };
    for (at, agent) in agents.iter_mut().enumerate() {
        let udp =
            ProbeRequest::Udp { from: HERE, netdev: "lo".to_owned(), to: to(1 - at), packet: 1500 };
        agent.inquire(&Inquiry {
            token: [7; 16],
            probes: vec![ProbeRequest::Tcp { to: to(1 - at) }, udp],
            program: Some(program.clone()),
            interval_ms: 50,
        });
    }
    for agent in &mut agents {
        let answer: InquiryAnswer = agent.read();
        let worked = |result: &ProbeResult| matches!(result, ProbeResult::Worked { .. });
        assert!(answer.probes.len() == 2 && answer.probes.iter().all(worked), "{answer:?}");
        let program = answer.program.unwrap();
        assert!(program.program.is_some_and(|path| path.ends_with("sh")));
        assert_eq!(program.files, [("/nosuch/x.sh".to_owned(), None)]);
        assert!(answer.interval_ms >= 50 && !answer.counters.is_empty());
    }
    assert!(agents.map(Agent::end).iter().all(|ended| *ended));
}

#[test]
fn without_an_inquiry_the_diagnosis_is_all() {
    let mut agent = Agent::start(&[]);
    let _: Diagnosis = agent.read();
    assert!(agent.end());
    // Some shells give the agent no stdin.
    let mut command = Command::new(env!("CARGO_BIN_EXE_rlaunch-worker"));
    let output = command.arg("diagnose").stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success() && output.stdout.starts_with(HELLO_MAGIC));
}

#[test]
fn a_recorded_host_has_no_probes() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("services"), "opensm\n").unwrap();
    std::fs::write(directory.path().join("kernel-log"), "5 oom-kill:x\n").unwrap();
    let mut agent = Agent::start(&[directory.path().to_str().unwrap()]);
    let diagnosis: Diagnosis = agent.read();
    assert!(agent.end());
    assert_eq!((diagnosis.probe_port, diagnosis.diagnostics.clock), (None, None));
    assert_eq!(diagnosis.diagnostics.services, ["opensm"]);
    assert_eq!(diagnosis.diagnostics.kernel_log.unwrap()[0].age, 5);
}

/// A start-up file of the login shell that never ends must not outlive the agent.
#[test]
fn a_login_shell_that_hangs_is_not_left_behind() {
    let home = tempfile::tempdir().unwrap();
    for file in [".bash_profile", ".profile", ".zprofile"] {
        std::fs::write(home.path().join(file), "echo $$ > \"$HOME/pid\"; exec sleep 600\n")
            .unwrap();
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_rlaunch-worker"));
    command.arg("diagnose").env("HOME", home.path()).stdin(Stdio::null());
    assert!(command.output().unwrap().status.success());
    let shell = std::fs::read_to_string(home.path().join("pid")).unwrap();
    // `812 (sleep) S 1 …`; a process that nobody waits for stays as Z.
    let state = || std::fs::read_to_string(format!("/proc/{}/stat", shell.trim()));
    let deadline = Instant::now() + TIMEOUT;
    while state().is_ok_and(|state| !state.contains(") Z")) {
        assert!(Instant::now() < deadline, "shell {shell} runs on");
        sleep(Duration::from_millis(10));
    }
}
