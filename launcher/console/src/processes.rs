//! Limits of processes and threads: RLIMIT_NPROC of a user, and `pids.max` of a control group.

use nix::errno::Errno;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

/// Returns a hint if the system refuses a process or a thread with an error of this number because of a limit, or because
/// of a filter.
pub fn hint(code: i32) -> Option<String> {
    match Errno::from_raw(code) {
        Errno::EAGAIN => Some(format!(
            "no more processes or threads are allowed here: `ulimit -u` is {}, and counts all of this user; a \
             container may have fewer (`cat /sys/fs/cgroup/pids.max`)",
            limit()
        )),
        Errno::EPERM => Some(
            "a filter forbids clone3, as older container engines do: a newer one, or one started with \
             --security-opt seccomp=unconfined, permits it"
                .to_owned(),
        ),
        _ => None,
    }
}

fn limit() -> String {
    match getrlimit(Resource::RLIMIT_NPROC) {
        Ok((soft, _)) if soft != RLIM_INFINITY => soft.to_string(),
        _ => "unlimited".to_owned(),
    }
}
