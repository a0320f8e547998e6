//! Retries of failed connections: which failures are retried, and after which pause.

use crate::config::HostConfig;
use crate::error::{NoVersion, SshError, TriedAddress, is_dns_silent};
use ring::rand::{SecureRandom, SystemRandom};
use std::time::{Duration, Instant};

/// Maximum length of the first pause; it doubles with each retry.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Maximum length of any pause.
const MAX_PAUSE: Duration = Duration::from_secs(2);
/// Pause after a failure that is retried only as often as `ConnectionAttempts` allows; the same as in ssh(1).
const COUNTED_PAUSE: Duration = Duration::from_secs(1);

/// Conditions under which a failed connection to a host is retried.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetryPolicy {
    /// Maximum number of attempts, from `ConnectionAttempts`.
    attempts: u32,
    /// Whether to retry unknown names and refused connections until the time limit, for hosts that may not be
    /// up yet.
    until_up: bool,
    /// Whether the host name belongs to a Kubernetes service. DNS has such a name only some seconds after
    /// the pod has started.
    is_pod: bool,
}

/// Failure after which a later attempt may succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RetryableFailure {
    /// The server closed the connection before it sent its SSH version, as one does that serves too many.
    Dropped,
    /// The DNS server did not answer.
    NoAnswer,
    /// The name does not exist.
    NoName,
    /// The host, or the route to it, refused the connection.
    NoConnection,
}

/// Pause before the next attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Retry {
    pub(crate) pause: Duration,
    /// Reason for the pause, reported to the user as the stage of the connection.
    pub(crate) stage: &'static str,
}

impl RetryPolicy {
    /// Makes the policy for a host; `until_up` is [`crate::SshOptions::retry_until_up`].
    pub(crate) fn new(config: &HostConfig, until_up: bool) -> RetryPolicy {
        let name = config.hostname.trim_end_matches('.');
        let is_pod = name.ends_with(".svc") || name.contains(".svc.");
        RetryPolicy { attempts: config.connection_attempts.unwrap_or(1), until_up, is_pod }
    }

    /// Decides whether to retry after attempt number `made`, counted from 1, has failed; `None` means no.
    /// `random` determines the length of the pause.
    fn retry(self, failure: RetryableFailure, made: u32, random: u64) -> Option<Retry> {
        let (unlimited, stage) = match failure {
            RetryableFailure::Dropped => (true, "it drops connections"),
            RetryableFailure::NoAnswer => (true, "DNS does not answer yet"),
            RetryableFailure::NoName => {
                (self.until_up || self.is_pod, "its name is not in DNS yet")
            }
            RetryableFailure::NoConnection => (self.until_up, "it accepts no connections yet"),
        };
        if unlimited {
            return Some(Retry { pause: pause(made, random), stage });
        }
        (made < self.attempts).then_some(Retry { pause: COUNTED_PAUSE, stage })
    }
}

/// Returns a pause of random length, below a maximum that doubles with each attempt. It is random so that
/// connections that were dropped at the same time are not retried at the same time.
fn pause(made: u32, random: u64) -> Duration {
    let doublings = made.saturating_sub(1).min(16);
    let ceiling = (FIRST_PAUSE * (1 << doublings)).min(MAX_PAUSE);
    let nanos = (ceiling.as_nanos() * u128::from(random)) >> 64;
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// Returns a random number, or `u64::MAX` if the system cannot provide one.
fn random() -> u64 {
    let mut bytes = [0; 8];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_or(u64::MAX, |()| u64::from_ne_bytes(bytes))
}

/// Classifies an error; `None` if a retry would not help.
fn retryable(error: &SshError) -> Option<RetryableFailure> {
    match error {
        SshError::NoVersion { what, .. } => what.may_pass().then_some(RetryableFailure::Dropped),
        SshError::Connect { tried } if tried.iter().any(drops) => Some(RetryableFailure::Dropped),
        SshError::LookUp { source, .. } if is_dns_silent(source) => {
            Some(RetryableFailure::NoAnswer)
        }
        SshError::LookUp { .. } => Some(RetryableFailure::NoName),
        SshError::Connect { .. } | SshError::Forward { .. } | SshError::ProxyCommand { .. } => {
            Some(RetryableFailure::NoConnection)
        }
        _ => None,
    }
}

/// Tells whether an address took a connection and closed it, which may have been one too many.
fn drops(tried: &TriedAddress) -> bool {
    tried.no_version().is_some_and(NoVersion::may_pass)
}

/// Failed attempts to connect to one host, and the policy for further ones.
pub(crate) struct Attempts {
    policy: RetryPolicy,
    made: u32,
    started: Instant,
    /// Error of the attempt before the current one.
    earlier: Option<SshError>,
}

impl Attempts {
    pub(crate) fn new(policy: RetryPolicy) -> Attempts {
        Attempts { policy, made: 0, started: Instant::now(), earlier: None }
    }

    /// Counts a failed attempt. Returns the pause before the next attempt, or the error to report if the
    /// policy or the time `left` until the deadline does not allow another attempt.
    pub(crate) fn note_failure(
        &mut self,
        error: SshError,
        left: Duration,
    ) -> Result<Retry, SshError> {
        self.made += 1;
        let failure = retryable(&error);
        let retry = failure.and_then(|failure| self.policy.retry(failure, self.made, random()));
        match retry.filter(|retry| retry.pause < left) {
            Some(retry) => {
                self.earlier = Some(error);
                Ok(retry)
            }
            None => Err(self.conclude(error, failure.is_some())),
        }
    }

    /// Returns the error to report: the error of the last attempt, or of the attempt before it if the last
    /// attempt only timed out.
    fn conclude(&mut self, error: SshError, is_retryable: bool) -> SshError {
        let cut_short = matches!(error, SshError::Timeout { .. } | SshError::NoAnswer { .. });
        let last = match self.earlier.take() {
            // A timeout tells the user less than the error of the attempt before it.
            Some(earlier) if cut_short => earlier,
            Some(_) if is_retryable => error,
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

    fn policy(config: &str, name: &str, until_up: bool) -> RetryPolicy {
        let path = std::path::Path::new("/config");
        let files = crate::config::SshConfig::parse(config, path).unwrap();
        RetryPolicy::new(&files.resolve(name).unwrap(), until_up)
    }

    fn look_up(words: &'static str) -> SshError {
        SshError::LookUp { name: "x".into(), source: io::Error::other(words) }
    }

    fn refused() -> SshError {
        let address = "192.0.2.1:22".parse().unwrap();
        let error = Some(io::ErrorKind::ConnectionRefused.into());
        SshError::Connect { tried: vec![TriedAddress { address, error }] }
    }

    fn dropped() -> SshError {
        SshError::NoVersion { address: "192.0.2.1:22".into(), what: NoVersion::Closes }
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
        let plain = policy("", "n1", false);
        assert_eq!(plain.retry(RetryableFailure::NoConnection, 1, MOST), None);
        assert_eq!(plain.retry(RetryableFailure::NoName, 1, MOST), None);
        for failure in [RetryableFailure::Dropped, RetryableFailure::NoAnswer] {
            let retry = plain.retry(failure, 40, MOST).unwrap();
            assert_eq!(retry.pause.as_millis(), 1999);
        }
    }

    #[test]
    fn connection_attempts_are_a_second_apart_and_counted() {
        let three = policy("ConnectionAttempts 3", "n1", false);
        for failure in [RetryableFailure::NoConnection, RetryableFailure::NoName] {
            assert_eq!(three.retry(failure, 2, 0).map(|retry| retry.pause), Some(COUNTED_PAUSE));
            assert_eq!(three.retry(failure, 3, 0), None);
        }
    }

    #[test]
    fn pods_are_waited_for_and_whole_jobs_of_them_too() {
        for name in ["pi-worker-0.pi.default.svc", "w.x.svc.cluster.local."] {
            let pod = policy("", name, false);
            let retry = pod.retry(RetryableFailure::NoName, 9, MOST).unwrap();
            assert_eq!(retry.stage, "its name is not in DNS yet");
            assert_eq!(pod.retry(RetryableFailure::NoConnection, 1, MOST), None);
        }
        let until_up = policy("", "pi-worker-0.pi-worker", true);
        for failure in [RetryableFailure::NoConnection, RetryableFailure::NoName] {
            assert!(until_up.retry(failure, 99, MOST).is_some());
        }
    }

    #[test]
    fn errors_are_told_apart() {
        let again = look_up("failed to lookup address: Temporary failure in name resolution");
        assert_eq!(retryable(&again), Some(RetryableFailure::NoAnswer));
        assert_eq!(
            retryable(&look_up("Name or service not known")),
            Some(RetryableFailure::NoName)
        );
        assert_eq!(retryable(&refused()), Some(RetryableFailure::NoConnection));
        assert_eq!(retryable(&dropped()), Some(RetryableFailure::Dropped));
        let what = NoVersion::of("HTTP/1.1 400 Bad Request".into());
        let of_address = |what: NoVersion| {
            let error = Some(io::Error::other(what));
            TriedAddress { address: "192.0.2.1:22".parse().unwrap(), error }
        };
        let tried = vec![of_address(what.clone()), of_address(NoVersion::Closes)];
        assert_eq!(retryable(&SshError::Connect { tried }), Some(RetryableFailure::Dropped));
        let address = "192.0.2.1:22".to_owned();
        assert_eq!(retryable(&SshError::NoVersion { address, what }), None);
        assert_eq!(retryable(&SshError::HostKeyUnknown { shown: String::new(), why: "" }), None);
    }

    #[test]
    fn what_is_reported_is_the_last_attempt_that_says_something() {
        let mut one = Attempts::new(policy("", "n1", false));
        assert!(matches!(one.note_failure(refused(), LEFT), Err(SshError::Connect { .. })));

        let late = || SshError::Timeout { what: "no answer".into(), timeout: LEFT };
        let mut many = Attempts::new(policy("", "n1", false));
        many.note_failure(dropped(), LEFT).unwrap();
        let SshError::Repeated { attempts, last, .. } =
            many.note_failure(late(), LEFT).unwrap_err()
        else {
            panic!("not said that it was tried twice");
        };
        assert!(attempts == 2 && matches!(*last, SshError::NoVersion { .. }));

        let mut changed = Attempts::new(policy("", "n1", false));
        changed.note_failure(dropped(), LEFT).unwrap();
        let unknown = SshError::HostKeyUnknown { shown: String::new(), why: "" };
        let error = changed.note_failure(unknown, LEFT).unwrap_err();
        assert!(matches!(error, SshError::HostKeyUnknown { .. }));
    }

    #[test]
    fn no_attempt_begins_after_the_deadline() {
        let mut attempts = Attempts::new(policy("ConnectionAttempts 9", "n1", false));
        assert!(attempts.note_failure(refused(), COUNTED_PAUSE * 2).is_ok());
        let error = attempts.note_failure(refused(), COUNTED_PAUSE / 2).unwrap_err();
        assert!(matches!(error, SshError::Repeated { attempts: 2, .. }));
    }
}
