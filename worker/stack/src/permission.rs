//! Reasons why a process may not be read.

use std::fs;

/// Setting of Yama, a security module of the kernel, about which processes may read others.
const YAMA: &str = "/proc/sys/kernel/yama/ptrace_scope";

/// Adds the reason to an error if the error is about a missing permission and the reason is known.
pub(crate) fn explain(cause: String) -> String {
    let scope = fs::read_to_string(YAMA).ok().and_then(|scope| scope.trim().parse().ok());
    match scope.filter(|_| is_denied(&cause)).and_then(reason) {
        Some(reason) => format!("{cause}: {reason}"),
        None => cause,
    }
}

fn is_denied(cause: &str) -> bool {
    ["Operation not permitted", "Permission denied", "EPERM", "EACCES"]
        .iter()
        .any(|part| cause.contains(part))
}

/// Returns what a value of the setting forbids. Ranks let the agent read them, but a process that a rank starts does
/// not inherit that.
fn reason(scope: u32) -> Option<String> {
    let allowed = match scope {
        0 => return None,
        1 => "only ranks themselves may be read, not what they have started",
        2 => "only root may read processes",
        _ => "no process may be read",
    };
    Some(format!("{allowed}, since kernel.yama.ptrace_scope is {scope} on this host"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_missing_permissions_are_explained() {
        assert!(is_denied("no frames of Python: Operation not permitted (os error 1)"));
        assert!(is_denied("cannot stop thread 7: EPERM: Operation not permitted"));
        assert!(!is_denied("no frames of Python: no such process"));
        let other = "no such process".to_owned();
        assert_eq!(explain(other.clone()), other);
        assert_eq!(reason(0), None);
        assert!(reason(1).unwrap().ends_with("since kernel.yama.ptrace_scope is 1 on this host"));
    }
}
