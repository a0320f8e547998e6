//! A program that is started in a cgroup.

use std::ffi::{CStr, CString, c_char, c_int, c_long};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;

/// The same on every architecture.
const SYS_CLONE3: c_long = 435;
/// First word of a child.
const RUNS: u8 = b'r';
/// Linux 5.7.
const CLONE_INTO_CGROUP: u64 = 1 << 33;

/// Arguments of clone3(2).
#[repr(C)]
#[derive(Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// A program, what it is called with, and its standard streams.
#[derive(Debug)]
pub struct Start<'a> {
    /// Its path.
    pub program: &'a CStr,
    /// Its arguments, its name among them.
    pub words: &'a [CString],
    /// Its environment, as `NAME=VALUE`.
    pub env: &'a [CString],
    /// Its stdin, stdout and stderr, none of them below 3.
    pub streams: [BorrowedFd<'a>; 3],
}

/// Starts a program as a child in the cgroup whose directory this is; gives its process id. A process
/// that is moved there later, as its own first act, would wait for a grace period of the kernel: 5 to
/// 16 ms. Fails where the kernel, or a filter before it, does not know how, or the cgroup refuses; and with
/// `ECANCELED` where the child was killed before it ran. Linux 6.14 and later do that where the caller's
/// cgroup has been killed (`cgroup.kill`) more often than the child's.
///
/// Like any started program, the child has no signal blocked and SIGPIPE at its default.
pub fn start_in_cgroup(start: &Start<'_>, cgroup: BorrowedFd<'_>) -> io::Result<i32> {
    if start.streams.iter().any(|stream| stream.as_raw_fd() < 3) {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    let list = |strings: &[CString]| -> Vec<*const c_char> {
        strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
    };
    let (words, env) = (list(start.words), list(start.env));
    let streams = start.streams.map(|stream| stream.as_raw_fd());
    let (mut failure, tells) = io::pipe()?;
    let tells = OwnedFd::from(tells);
    let args = CloneArgs {
        flags: CLONE_INTO_CGROUP,
        exit_signal: libc::SIGCHLD as u64,
        cgroup: cgroup.as_raw_fd() as u64,
        ..CloneArgs::default()
    };
    // SAFETY: clone3(2) reads `args`, which has the size that is given; without CLONE_VM the child has
    // a copy of all memory, this stack included, as that of fork(2).
    match unsafe { libc::syscall(SYS_CLONE3, &raw const args, size_of::<CloneArgs>()) } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let tells = tells.as_raw_fd();
            // SAFETY: this is the child, and only the calling thread is left in it; the lists end in
            // a null pointer and their strings in a zero, and nothing frees them.
            unsafe { become_program(start.program.as_ptr(), &words, &env, streams, tells) }
        }
        pid => {
            drop(tells);
            let pid = pid as i32;
            let mut said = Vec::new();
            // Ends when the program runs: the kernel has closed the other end then.
            failure.read_to_end(&mut said)?;
            let error = match said[..] {
                [RUNS] => return Ok(pid),
                [RUNS, a, b, c, d] => i32::from_ne_bytes([a, b, c, d]),
                _ => libc::ECANCELED,
            };
            // SAFETY: waitpid(2) with no place for the status touches no memory.
            unsafe { libc::waitpid(pid, ptr::null_mut(), 0) };
            Err(io::Error::from_raw_os_error(error))
        }
    }
}

/// Becomes a program, or says through `tells` why it cannot, and ends. Only calls that are safe in a
/// signal handler are made: locks may be held by threads that do not exist in this process.
///
/// # Safety
/// `program` and what the lists hold are strings that end in a zero, and the lists end in a null
/// pointer. The calling process must not be needed any more.
unsafe fn become_program(
    program: *const c_char,
    words: &[*const c_char],
    env: &[*const c_char],
    streams: [c_int; 3],
    tells: c_int,
) -> ! {
    let runs = [RUNS];
    // SAFETY: `runs` is that long and lives until the call returns.
    unsafe { libc::write(tells, runs.as_ptr().cast(), runs.len()) };
    let mut is_set = true;
    for (target, stream) in (0..).zip(streams) {
        // SAFETY: dup2(2) touches no memory.
        is_set &= unsafe { libc::dup2(stream, target) } == target;
    }
    let mut none = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset(3) writes the set that it is given.
    unsafe { libc::sigemptyset(none.as_mut_ptr()) };
    // SAFETY: the set was written by the line above; the old one is not wanted.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut()) };
    // SAFETY: signal(2) touches no memory, and the default is no handler.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    if is_set {
        // SAFETY: the caller vouches for the strings and the lists.
        unsafe { libc::execve(program, words.as_ptr(), env.as_ptr()) };
    }
    let error = io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO).to_ne_bytes();
    // SAFETY: `error` is that long and lives until the call returns.
    unsafe { libc::write(tells, error.as_ptr().cast(), error.len()) };
    // SAFETY: _exit(2) runs nothing of this process's.
    unsafe { libc::_exit(127) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;

    /// In the cgroup that this process is in already, where that is to be had.
    #[test]
    fn a_program_has_its_words_environment_and_streams() {
        let mounts = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
        let own = std::fs::read_to_string("/proc/self/cgroup").unwrap();
        let Some(own) = own.lines().find_map(|line| line.strip_prefix("0::")) else { return };
        let own = mounts.iter().map(|mount| format!("{mount}{own}"));
        let Some(cgroup) = own.filter_map(|path| File::open(path).ok()).next() else { return };
        let string = |text: &str| CString::new(text).unwrap();
        let run = |program: &str| {
            let null = File::options().read(true).write(true).open("/dev/null").unwrap();
            let (mut said, stdout) = io::pipe().unwrap();
            let program = string(program);
            let start = Start {
                program: &program,
                words: &["sh", "-c", "echo $A $0", "word"].map(string),
                env: &[string("A=b")],
                streams: [null.as_fd(), stdout.as_fd(), null.as_fd()],
            };
            let pid = start_in_cgroup(&start, cgroup.as_fd())?;
            drop(stdout);
            let mut text = String::new();
            said.read_to_string(&mut text)?;
            // SAFETY: waitpid(2) with no place for the status touches no memory.
            assert_eq!(unsafe { libc::waitpid(pid, ptr::null_mut(), 0) }, pid);
            Ok::<String, io::Error>(text)
        };
        match run("/bin/sh") {
            Ok(text) => assert_eq!(text, "b word\n"),
            // A kernel, or an account, that may not.
            Err(_) => return,
        }
        let error = run("/no/such/program").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
    }
}
