//! Processes.

use std::ffi::{CStr, CString, c_char};
use std::io;
use std::iter;
use std::os::unix::process::CommandExt;
use std::ptr;

/// Which side of a [`fork`] this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fork {
    /// The process that called, with the child's process id.
    Parent(i32),
    /// The new process.
    Child,
}

/// Splits the process in two. Fails with `EBUSY` when the process has more than one thread: the
/// child would hold locks whose owners do not exist in it.
pub fn fork() -> io::Result<Fork> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::from_raw_os_error(libc::EBUSY));
    }
    // SAFETY: fork(2) has no requirement on memory; in a process of one thread, which the line
    // above established and only this thread could change, the child may go on as the parent may.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Fork::Child),
        pid => Ok(Fork::Parent(pid)),
    }
}

/// Becomes another program, with `words` as its arguments and this process's environment; returns only
/// why it could not. This is execv(2): what no program is fails with `ENOEXEC`, where execvp(3) has a
/// shell read it.
pub fn exec(path: &CStr, words: &[CString]) -> io::Error {
    let pointers: Vec<*const c_char> =
        words.iter().map(|word| word.as_ptr()).chain(iter::once(ptr::null())).collect();
    // SAFETY: signal(2) touches no memory, and the default is no handler of anybody's. Rust ignores
    // this signal, and programs do not expect it.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    // SAFETY: path and words end in a zero and the list in a null pointer; all live until the call
    // returns, if it does.
    unsafe { libc::execv(path.as_ptr(), pointers.as_ptr()) };
    io::Error::last_os_error()
}

/// Has a command start with this soft limit of open files (`RLIMIT_NOFILE`), or the hard one where that
/// is lower. The limit of this process, under which the command's pipes are made, stays as it is.
pub fn limit_open_files(command: &mut std::process::Command, soft: u64) {
    let limit = move || {
        let mut both = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: getrlimit(2) writes one rlimit, and `both` is one.
        if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut both) } == -1 {
            return Err(io::Error::last_os_error());
        }
        both.rlim_cur = soft.min(both.rlim_max);
        // SAFETY: setrlimit(2) reads one rlimit, and `both` is one.
        match unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const both) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    };
    // SAFETY: pre_exec requires what may be done between fork and exec in a process of many threads:
    // `limit` makes two system calls on its own stack, takes no lock and allocates nothing.
    unsafe { command.pre_exec(limit) };
}

/// Lets the descendants of a process read this process's memory where the Yama module keeps that
/// to a process's ancestors (`PR_SET_PTRACER`; Ubuntu, Debian): the ranks of a job are siblings, so
/// each names the agent. Says whether Yama is there at all.
pub fn let_descendants_read(ancestor: u32) -> io::Result<bool> {
    // SAFETY: prctl(2) with PR_SET_PTRACER takes a number and touches no memory.
    match unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::c_ulong::from(ancestor), 0, 0, 0) } {
        0 => Ok(true),
        _ => match io::Error::last_os_error() {
            // Without Yama, the call does not know the option; with it, there is no such process.
            error if error.raw_os_error() == Some(libc::EINVAL) && !yama() => Ok(false),
            error => Err(error),
        },
    }
}

/// Copies bytes from an address of this process to one of another (process_vm_writev(2)); how many,
/// which are fewer where memory ends. Fails with `EFAULT` where there is none, with `EPERM` where
/// this process may not, and with `EINVAL` for this process itself: its memory has owners that the
/// compiler knows of.
pub fn write_to_process(pid: i32, source: u64, target: u64, length: usize) -> io::Result<usize> {
    if pid <= 0 || is_thread_of_this(pid) {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let local = libc::iovec { iov_base: source as usize as *mut _, iov_len: length };
    let remote = libc::iovec { iov_base: target as usize as *mut _, iov_len: length };
    // SAFETY: the call reads this process's memory, wherever that is mapped, and fails where it
    // is not. What it writes to is another process's: the number is that of none of this one's
    // threads, by the lines above, and would become one only if that process ended, the numbers went
    // all the way around, and a new thread got this one, between two system calls. The two
    // descriptions live until it returns.
    match unsafe { libc::process_vm_writev(pid, &raw const local, 1, &raw const remote, 1, 0) } {
        -1 => Err(io::Error::last_os_error()),
        written => Ok(written as usize),
    }
}

/// Whether a number is that of one of this process's threads, of which each stands for its memory.
fn is_thread_of_this(number: i32) -> bool {
    // SAFETY: getpid(2) takes nothing and cannot fail.
    let this = unsafe { libc::getpid() };
    // SAFETY: tgkill(2) takes numbers and touches no memory; signal 0 only asks whether the process
    // has such a thread.
    this == number || unsafe { libc::syscall(libc::SYS_tgkill, this, number, 0) } == 0
}

fn yama() -> bool {
    std::path::Path::new("/proc/sys/kernel/yama").exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_threads_is_refused() {
        // The test harness has a main thread and this one.
        let error = fork().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EBUSY));
    }

    /// A process that sleeps until its end of the pipe is closed.
    struct Child(std::process::Child);

    impl Child {
        fn start() -> Child {
            let mut cat = std::process::Command::new("cat");
            let pipe = std::process::Stdio::piped;
            Child(cat.stdin(pipe()).stdout(pipe()).spawn().unwrap())
        }
    }

    impl Drop for Child {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn a_command_starts_with_the_limit_it_is_given() {
        let started = |soft| {
            let mut command = std::process::Command::new("sh");
            command.args(["-c", "ulimit -S -n"]);
            limit_open_files(&mut command, soft);
            String::from_utf8(command.output().unwrap().stdout).unwrap()
        };
        assert_eq!(started(17), "17\n");
        // More than the hard limit is that.
        assert!(started(u64::MAX).trim().parse::<u64>().is_ok_and(|most| most > 17));
    }

    #[test]
    fn memory_that_is_not_there_is_not_copied() {
        let child = Child::start();
        let from = [7_u8; 16];
        let source = from.as_ptr().addr() as u64;
        for (source, target) in [(8, source), (source, 8)] {
            let error = write_to_process(child.0.id() as i32, source, target, 16).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
        }
    }

    #[test]
    fn memory_of_this_process_is_not_written_to() {
        let (from, to) = ([7_u8; 16], [0_u8; 16]);
        let (source, target) = (from.as_ptr().addr() as u64, to.as_ptr().addr() as u64);
        let me = std::process::id() as i32;
        // SAFETY: gettid(2) takes nothing and cannot fail. The harness runs tests in threads.
        let thread = unsafe { libc::gettid() };
        for number in [me, thread, 0, -1] {
            let error = write_to_process(number, source, target, 16).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EINVAL), "{number}");
        }
        assert_eq!(std::hint::black_box(to), [0; 16]);
    }

    #[test]
    fn the_parent_of_this_process_may_be_named_as_the_ancestor() {
        assert_eq!(let_descendants_read(std::os::unix::process::parent_id()).unwrap(), yama());
    }
}
