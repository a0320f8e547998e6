//! Which failures are worth another attempt, and after which pause.

use super::config::HostConfig;
use super::error::SshError;
use ring::rand::{SecureRandom, SystemRandom};
use std::time::{Duration, Instant};

/// The longest first pause; each later one may be twice as long.
const BASE: Duration = Duration::from_millis(100);
/// The longest pause of all.
const CAP: Duration = Duration::from_secs(2);
/// Between attempts that `ConnectionAttempts` counts, as ssh(1) has it.
const COUNTED: Duration = Duration::from_secs(1);

/// When a host is tried again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// `ConnectionAttempts`.
    attempts: u32,
    /// Nothing may listen there yet, and nobody may know its name yet.
    patient: bool,
    /// The name is one that Kubernetes gives, which DNS knows some seconds after the pod is there.
    pod: bool,
}

/// What an attempt failed by, if another one may do better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    /// The server hangs up before it says who it is.
    Dropped,
    /// Who is to look the name up does not answer.
    NoAnswer,
    /// There is no such name.
    NoName,
    /// Nobody takes the connection.
    NoConnection,
}

/// Another attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Again {
    pub(super) pause: Duration,
    /// Names of what is waited for, in the words of [`rlaunch_console::progress`].
    pub(super) stage: &'static str,
}

impl Rules {
    /// Those for a host; `patient` is [`crate::connect::options::ConnectOptions::patient`].
    pub(super) fn of(config: &HostConfig, patient: bool) -> Rules {
        let name = config.hostname.trim_end_matches('.');
        let pod = name.ends_with(".svc") || name.contains(".svc.");
        Rules { attempts: config.connection_attempts.unwrap_or(1), patient, pod }
    }

    /// What follows after attempt number `made`, counted from 1, has failed by `trouble`.
    fn again(self, trouble: Trouble, made: u32, random: u64) -> Option<Again> {
        let (unlimited, stage) = match trouble {
            Trouble::Dropped => (true, "its sshd drops connections"),
            Trouble::NoAnswer => (true, "DNS does not answer yet"),
            Trouble::NoName => (self.patient || self.pod, "DNS does not know it yet"),
            Trouble::NoConnection => (self.patient, "it takes no connection yet"),
        };
        if unlimited {
            return Some(Again { pause: pause(made, random), stage });
        }
        (made < self.attempts).then_some(Again { pause: COUNTED, stage })
    }
}

/// An exponential pause with full jitter: hosts that were turned away together do not come back
/// together.
fn pause(made: u32, random: u64) -> Duration {
    let doublings = made.saturating_sub(1).min(16);
    let ceiling = (BASE * (1 << doublings)).min(CAP);
    let nanos = (ceiling.as_nanos() * u128::from(random)) >> 64;
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// Any number; where the system has none left, the longest pause is as good.
fn random() -> u64 {
    let mut bytes = [0; 8];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_or(u64::MAX, |()| u64::from_ne_bytes(bytes))
}

fn trouble(error: &SshError) -> Option<Trouble> {
    match error {
        SshError::Dropped { .. } => Some(Trouble::Dropped),
        SshError::LookUp { source, .. } => {
            // The library passes on no code, only what gai_strerror(3) says of EAI_AGAIN: the
            // GNU library's words, and those of musl.
            let text = source.to_string();
            let later = ["Temporary failure", "Try again"].iter().any(|w| text.contains(w));
            Some(if later { Trouble::NoAnswer } else { Trouble::NoName })
        }
        SshError::Connect { .. } | SshError::Forward { .. } | SshError::ProxyCommand { .. } => {
            Some(Trouble::NoConnection)
        }
        _ => None,
    }
}

/// The attempts at one host.
pub(super) struct Attempts {
    rules: Rules,
    made: u32,
    started: Instant,
    /// How the one before the present one failed.
    earlier: Option<SshError>,
}

impl Attempts {
    /// None yet.
    pub(super) fn new(rules: Rules) -> Attempts {
        Attempts { rules, made: 0, started: Instant::now(), earlier: None }
    }

    /// One has failed, with so much time left: what follows, or why nothing does.
    pub(super) fn failed(&mut self, error: SshError, left: Duration) -> Result<Again, SshError> {
        self.made += 1;
        let trouble = trouble(&error);
        let again = trouble.and_then(|trouble| self.rules.again(trouble, self.made, random()));
        match again.filter(|again| again.pause < left) {
            Some(again) => {
                self.earlier = Some(error);
                Ok(again)
            }
            None => Err(self.conclude(error, trouble)),
        }
    }

    fn conclude(&mut self, error: SshError, trouble: Option<Trouble>) -> SshError {
        let cut_short = matches!(error, SshError::Timeout { .. });
        let last = match self.earlier.take() {
            // It says less than the one before it.
            Some(earlier) if cut_short => earlier,
            Some(_) if trouble.is_some() => error,
            _ => return error,
        };
        let seconds = self.started.elapsed().as_secs();
        SshError::Repeated { attempts: self.made, seconds, last: Box::new(last) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    const MOST: u64 = u64::MAX;
    const LEFT: Duration = Duration::from_secs(10);

    fn rules(config: &str, name: &str, patient: bool) -> Rules {
        let path = std::path::Path::new("/config");
        let files = super::super::config::SshConfig::parse(config, path).unwrap();
        Rules::of(&files.resolve(name).unwrap(), patient)
    }

    fn look_up(words: &'static str) -> SshError {
        SshError::LookUp { name: "x".into(), source: io::Error::other(words) }
    }

    fn refused() -> SshError {
        let address = "192.0.2.1:22".parse().unwrap();
        SshError::Connect { address, source: io::ErrorKind::ConnectionRefused.into() }
    }

    fn dropped() -> SshError {
        SshError::Dropped { place: "192.0.2.1:22".into(), said: String::new() }
    }

    #[test]
    fn pauses_grow_up_to_two_seconds_and_spread_down_to_none() {
        let most: Vec<u128> = (1..8).map(|made| pause(made, MOST).as_millis()).collect();
        assert_eq!(most, [99, 199, 399, 799, 1599, 1999, 1999]);
        assert_eq!(pause(u32::MAX, MOST).as_millis(), 1999);
        assert_eq!(pause(5, 0), Duration::ZERO);
        assert_eq!(pause(5, 1 << 63).as_millis(), 800);
    }

    #[test]
    fn without_a_word_in_the_configuration_only_what_passes_is_tried_again() {
        let plain = rules("", "n1", false);
        assert_eq!(plain.again(Trouble::NoConnection, 1, MOST), None);
        assert_eq!(plain.again(Trouble::NoName, 1, MOST), None);
        for trouble in [Trouble::Dropped, Trouble::NoAnswer] {
            let again = plain.again(trouble, 40, MOST).unwrap();
            assert_eq!(again.pause.as_millis(), 1999);
        }
    }

    #[test]
    fn connection_attempts_are_a_second_apart_and_counted() {
        let three = rules("ConnectionAttempts 3", "n1", false);
        for trouble in [Trouble::NoConnection, Trouble::NoName] {
            assert_eq!(three.again(trouble, 2, 0).map(|again| again.pause), Some(COUNTED));
            assert_eq!(three.again(trouble, 3, 0), None);
        }
    }

    #[test]
    fn pods_are_waited_for_and_whole_jobs_of_them_too() {
        for name in ["pi-worker-0.pi.default.svc", "w.x.svc.cluster.local."] {
            let pod = rules("", name, false);
            let again = pod.again(Trouble::NoName, 9, MOST).unwrap();
            assert_eq!(again.stage, "DNS does not know it yet");
            assert_eq!(pod.again(Trouble::NoConnection, 1, MOST), None);
        }
        let patient = rules("", "pi-worker-0.pi-worker", true);
        for trouble in [Trouble::NoConnection, Trouble::NoName] {
            assert!(patient.again(trouble, 99, MOST).is_some());
        }
    }

    #[test]
    fn errors_are_told_apart() {
        let again = look_up("failed to lookup address: Temporary failure in name resolution");
        assert_eq!(trouble(&again), Some(Trouble::NoAnswer));
        assert_eq!(trouble(&look_up("Name or service not known")), Some(Trouble::NoName));
        assert_eq!(trouble(&refused()), Some(Trouble::NoConnection));
        assert_eq!(trouble(&dropped()), Some(Trouble::Dropped));
        assert_eq!(trouble(&SshError::HostKeyUnknown { shown: String::new(), why: "" }), None);
    }

    #[test]
    fn what_is_reported_is_the_last_attempt_that_says_something() {
        let mut one = Attempts::new(rules("", "n1", false));
        assert!(matches!(one.failed(refused(), LEFT), Err(SshError::Connect { .. })));

        let late = || SshError::Timeout { what: "no answer", timeout: LEFT };
        let mut many = Attempts::new(rules("", "n1", false));
        many.failed(dropped(), LEFT).unwrap();
        let SshError::Repeated { attempts, last, .. } = many.failed(late(), LEFT).unwrap_err()
        else {
            panic!("not said that it was tried twice");
        };
        assert!(attempts == 2 && matches!(*last, SshError::Dropped { .. }));

        let mut changed = Attempts::new(rules("", "n1", false));
        changed.failed(dropped(), LEFT).unwrap();
        let unknown = SshError::HostKeyUnknown { shown: String::new(), why: "" };
        let error = changed.failed(unknown, LEFT).unwrap_err();
        assert!(matches!(error, SshError::HostKeyUnknown { .. }));
    }

    #[test]
    fn no_attempt_begins_after_the_deadline() {
        let mut attempts = Attempts::new(rules("ConnectionAttempts 9", "n1", false));
        assert!(attempts.failed(refused(), COUNTED * 2).is_ok());
        let error = attempts.failed(refused(), COUNTED / 2).unwrap_err();
        assert!(matches!(error, SshError::Repeated { attempts: 2, .. }));
    }
}
