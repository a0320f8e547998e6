//! Limits of processes and threads (RLIMIT_NPROC of a user, `pids.max` of a control group), and of the size of files
//! (RLIMIT_FSIZE).

use nix::errno::Errno;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

/// Returns a hint if the system refuses a process or a thread with an error of this number because of a limit, or because
/// of a filter.
pub fn process_hint(code: i32) -> Option<String> {
    match Errno::from_raw(code) {
        Errno::EAGAIN => Some(format!(
            "no more processes or threads are allowed here: `ulimit -u` is {}, and counts all of this user; a \
             container may have fewer (`cat /sys/fs/cgroup/pids.max`)",
            process_limit()
        )),
        Errno::EPERM => Some(
            "a filter forbids clone3, as older container engines do: a newer one, or one started with \
             --security-opt seccomp=unconfined, permits it"
                .to_owned(),
        ),
        _ => None,
    }
}

fn process_limit() -> String {
    match getrlimit(Resource::RLIMIT_NPROC) {
        Ok((soft, _)) if soft != RLIM_INFINITY => soft.to_string(),
        _ => "unlimited".to_owned(),
    }
}

/// Makes writes beyond the limit of the size of files fail, where the kernel would end this process by SIGXFSZ. Programs
/// that this process starts are ended as before.
pub fn survive_file_size() {
    rlaunch_sys::survive_file_size_limit();
}

/// Returns a hint if `error`, the text of an error with its causes, says that a file has become too large, here or on a
/// host.
pub fn file_size_hint(error: &str) -> Option<String> {
    // Compares texts, since those of hosts have no error codes. They have the same words.
    let hint = "`ulimit -f` shows the limit of the size of files, there or in this shell; `ulimit -f unlimited` lifts it, \
                if the hard limit allows that";
    error.contains(Errno::EFBIG.desc()).then(|| hint.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn a_file_that_is_too_large_is_found_among_the_causes() {
        let error = |errno: Errno| format!("cannot write /a: {}", io::Error::from(errno));
        assert!(
            file_size_hint(&error(Errno::EFBIG)).is_some_and(|hint| hint.contains("`ulimit -f`"))
        );
        assert_eq!(file_size_hint(&error(Errno::ENOSPC)), None);
    }
}
