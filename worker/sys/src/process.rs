//! Processes: fork, exec, limits, and copying into other processes.
//!
//! Detection of fork(2), for resources that a child must neither use nor close.

use std::ffi::{CStr, CString, c_char, c_int};
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::{io, iter, ptr};

/// Process that is running after a [`fork`]: the parent or the child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fork {
    /// The parent, with the child's process id.
    Parent(i32),
    /// The child, which is a new process.
    Child,
}

/// Forks the process. Fails with `EBUSY` if it has more than one thread, because the child would
/// inherit locks whose owners do not exist in it.
pub fn fork() -> io::Result<Fork> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::from_raw_os_error(libc::EBUSY));
    }
    // SAFETY: fork(2) has no requirement on memory. The process has one thread, as the line above
    // has checked and only this thread could change, so the child may do all that the parent may.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Fork::Child),
        pid => Ok(Fork::Parent(pid)),
    }
}

/// Waits until one of `signals`, which this thread blocks, arrives, at most `limit`. Returns its number; `None` if none has
/// come.
pub fn wait_for_signal(signals: &[c_int], limit: Duration) -> Option<c_int> {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset(3) writes one set, and `set` is one.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    for signal in signals {
        // SAFETY: the set is initialised; sigaddset(3) changes it or refuses the number.
        unsafe { libc::sigaddset(set.as_mut_ptr(), *signal) };
    }
    let limit = libc::timespec {
        tv_sec: libc::time_t::try_from(limit.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    };
    // SAFETY: sigtimedwait(2) reads the set and the time, which live until it returns, and writes no information where the
    // pointer to it is null.
    let signal = unsafe { libc::sigtimedwait(set.as_ptr(), ptr::null_mut(), &raw const limit) };
    (signal > 0).then_some(signal)
}

/// Replaces this process with another program, keeping the environment. Returns only if that fails.
/// Calls execv(2): a file that is not an executable fails with `ENOEXEC`, where execvp(3) would run
/// it as a shell script.
pub fn exec(path: &CStr, args: &[CString]) -> io::Error {
    let pointers: Vec<*const c_char> =
        args.iter().map(|arg| arg.as_ptr()).chain(iter::once(ptr::null())).collect();
    // SAFETY: signal(2) touches no memory, and the default action runs no handler. Rust ignores
    // SIGPIPE, which programs do not expect.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    // SAFETY: path and arguments end in a zero and the list in a null pointer; all live until the
    // call returns, if it does.
    unsafe { libc::execv(path.as_ptr(), pointers.as_ptr()) };
    io::Error::last_os_error()
}

/// Starts a command, also where a seccomp filter forbids clone3(2). Filters of older container engines
/// answer every call that they do not know with `EPERM`. glibc's posix_spawn(3), by which std starts
/// commands, would try clone(2) only after `ENOSYS`.
pub fn spawn(command: &mut std::process::Command) -> io::Result<std::process::Child> {
    match command.spawn() {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {}
        spawned => return spawned,
    }
    // std starts a command that has a closure by fork(2), which needs no clone3(2) but copies the page
    // tables of this process.
    // SAFETY: pre_exec requires that the closure does only what is allowed between fork and exec in a
    // process of many threads. It does nothing.
    unsafe { command.pre_exec(|| Ok(())) };
    command.spawn()
}

/// Makes a command start with a soft limit of open files (`RLIMIT_NOFILE`) of `soft`, or of the
/// hard limit if that is lower. This process's own limit, which applies to the command's pipes,
/// does not change.
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
    // SAFETY: pre_exec requires that the closure does only what is allowed between fork and exec in
    // a process of many threads: it makes two system calls on its own stack, takes no lock and
    // allocates nothing.
    unsafe { command.pre_exec(limit) };
}

/// Makes a command start without blocked signals. It would inherit those that this thread blocks.
pub fn unblock_signals(command: &mut std::process::Command) {
    let unblock = || {
        let mut none = MaybeUninit::uninit();
        // SAFETY: sigemptyset(3) writes one set, and `none` has room for it.
        unsafe { libc::sigemptyset(none.as_mut_ptr()) };
        // SAFETY: sigprocmask(2) reads the set, which was written above, and stores no former one.
        match unsafe { libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut()) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    };
    // SAFETY: pre_exec requires that the closure does only what is allowed between fork and exec in a process of many
    // threads: it makes a system call on its own stack, takes no lock and allocates nothing.
    unsafe { command.pre_exec(unblock) };
}

/// Makes writes beyond the limit of the size of files (`RLIMIT_FSIZE`) fail with `EFBIG`, where SIGXFSZ would end the
/// process. A handler does that, and not the disposition to ignore the signal, because exec resets handlers: programs
/// that this process starts have the default. If it was started with the signal ignored, so are they.
pub fn survive_file_size_limit() {
    extern "C" fn nothing(_: c_int) {}
    let handler: extern "C" fn(c_int) = nothing;
    // SAFETY: the handler does nothing, which is allowed at any time.
    let before = unsafe { libc::signal(libc::SIGXFSZ, handler as libc::sighandler_t) };
    if before == libc::SIG_IGN {
        // SAFETY: signal(2) touches no memory, and an ignored signal runs no handler.
        unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    }
}

/// Lets all threads allocate from one heap. By default, glibc maps another for each of the first threads, which costs a
/// program more than it saves if few of its threads allocate at a time.
pub fn share_heap() {
    // SAFETY: mallopt(3) takes two numbers; this option says how many heaps there may be.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Lets the descendants of process `ancestor` access this process's memory, where the Yama security
/// module restricts that to a process's ancestors (`PR_SET_PTRACER`; default on Ubuntu). The ranks
/// of a job are siblings, so each rank names the agent as the ancestor. Returns whether Yama is
/// present.
pub fn let_descendants_read(ancestor: u32) -> io::Result<bool> {
    // SAFETY: prctl(2) with PR_SET_PTRACER takes a number and touches no memory.
    match unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::c_ulong::from(ancestor), 0, 0, 0) } {
        0 => Ok(true),
        _ => match io::Error::last_os_error() {
            // EINVAL means an unknown option without Yama, and an unknown process with it.
            error if error.raw_os_error() == Some(libc::EINVAL) && !yama() => Ok(false),
            error => Err(error),
        },
    }
}

/// Copies `length` bytes from address `source` of this process to address `target` of another
/// process (process_vm_writev(2)). Returns the number of bytes copied, which is smaller than
/// `length` if the mapped memory is shorter. Fails with `EFAULT` if nothing is mapped at one of the
/// addresses, and with `EPERM` if this process may not access the other. Fails with `EINVAL` if
/// `pid` is this process, because the compiler assumes that nothing else changes its memory.
pub fn write_to_process(pid: i32, source: u64, target: u64, length: usize) -> io::Result<usize> {
    if pid <= 0 || is_thread_of_this(pid) {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let local = libc::iovec { iov_base: source as usize as *mut _, iov_len: length };
    let remote = libc::iovec { iov_base: target as usize as *mut _, iov_len: length };
    // SAFETY: the call reads this process's memory wherever that is mapped, and fails where it is
    // not. It writes to another process: the lines above have checked that the id belongs to no
    // thread of this one. It could become one only if that process ended, ids wrapped around and a
    // new thread got this id between the two system calls. The two iovecs live until the call
    // returns.
    match unsafe { libc::process_vm_writev(pid, &raw const local, 1, &raw const remote, 1, 0) } {
        -1 => Err(io::Error::last_os_error()),
        written => Ok(written as usize),
    }
}

/// Tells whether an id is that of a thread of this process; such an id refers to this process's
/// memory.
fn is_thread_of_this(number: i32) -> bool {
    // SAFETY: getpid(2) takes nothing and cannot fail.
    let this = unsafe { libc::getpid() };
    // SAFETY: tgkill(2) takes numbers and touches no memory; signal 0 only checks whether the
    // process has such a thread.
    this == number || unsafe { libc::syscall(libc::SYS_tgkill, this, number, 0) } == 0
}

fn yama() -> bool {
    std::path::Path::new("/proc/sys/kernel/yama").exists()
}

/// Number of forks between the process that first called [`ForkGeneration::current`] and this one.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// Counts a fork; runs in the child of each fork(2).
extern "C" fn count_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Registers `child` to run in all children of fork(2) from now on.
///
/// # Safety
///
/// `child` does only what is allowed between fork(2) and execve(2).
#[cfg(not(target_env = "gnu"))]
unsafe fn at_fork(child: extern "C" fn()) {
    // SAFETY: the caller guarantees what is required of the handler.
    unsafe { libc::pthread_atfork(None, None, Some(child)) };
}

/// Registers `child` to run in all children of fork(2) from now on. `pthread_atfork` is not in
/// glibc's shared library, only in static archives with names that differ by version; all of its
/// copies call this function.
///
/// # Safety
///
/// `child` does only what is allowed between fork(2) and execve(2).
#[cfg(target_env = "gnu")]
unsafe fn at_fork(child: extern "C" fn()) {
    use std::ffi::c_void;

    type Handler = Option<extern "C" fn()>;
    unsafe extern "C" {
        static __dso_handle: c_void;
        fn __register_atfork(
            prepare: Handler,
            parent: Handler,
            child: Handler,
            library: *const c_void,
        ) -> i32;
    }
    // SAFETY: the handle is this library's own, defined by the compiler's start-up code, so that
    // the handler is removed when the library is unloaded. The caller guarantees the rest.
    unsafe { __register_atfork(None, None, Some(child), &raw const __dso_handle) };
}

/// Process in which a resource was created. A fork(2) child has copies of its parent's sockets,
/// device mappings and locks; using or closing them would interfere with the parent. The check is
/// one load, without a system call.
///
/// A child made by the bare system call, without the C library, is not detected, because its
/// `pthread_atfork` handlers do not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForkGeneration(u64);

impl ForkGeneration {
    /// Returns the generation of this process.
    pub fn current() -> ForkGeneration {
        static WATCH: Once = Once::new();
        WATCH.call_once(|| {
            // SAFETY: the handler is a function of this program that only adds to an atomic number,
            // which is allowed between fork(2) and execve(2), and never unwinds. If there is no
            // memory to register it, forks are not detected, and nothing else changes.
            unsafe { at_fork(count_fork) };
        });
        ForkGeneration(FORKS.load(Ordering::Relaxed))
    }

    /// Tells whether this process was forked, directly or not, from the process of this value.
    #[inline]
    pub fn is_inherited(self) -> bool {
        self.0 != FORKS.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn a_process_with_threads_is_refused() {
        // The test harness has a main thread and this one.
        let error = fork().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EBUSY));
    }

    /// Process that runs until this value is dropped.
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

    /// Makes clone3(2) and all other system calls since Linux 5.1 fail with `EPERM` in this thread and its
    /// children, as the seccomp filter of an old container engine does. Returns false if this machine has
    /// no such filters.
    fn forbid_recent_calls() -> bool {
        /// Lowest number of those calls, which are the same on every architecture.
        const FIRST_RECENT: u32 = 424;
        // Codes of BPF: load a word of what the filter is about, jump if it is as high, return.
        let (load, jump, give) = (0x20, 0x35, 0x06);
        let step = |code, jf, k| libc::sock_filter { code, jt: 0, jf, k };
        let mut program = [
            // The first word is the number of the call.
            step(load, 0, 0),
            step(jump, 1, FIRST_RECENT),
            step(give, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
            step(give, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        let (yes, unused): (libc::c_ulong, libc::c_ulong) = (1, 0);
        let option = libc::PR_SET_NO_NEW_PRIVS;
        // SAFETY: prctl(2) with this option takes numbers only.
        if unsafe { libc::prctl(option, yes, unused, unused, unused) } != 0 {
            return false;
        }
        let mode = libc::c_ulong::from(libc::SECCOMP_MODE_FILTER);
        // SAFETY: prctl(2) reads the filter, whose program lives until the call returns.
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const filter) == 0 }
    }

    #[test]
    fn a_filter_that_forbids_clone3_stops_no_command() {
        // The filter ends with the thread that has it.
        let filtered = std::thread::spawn(|| {
            if !forbid_recent_calls() {
                return None;
            }
            let mut command = std::process::Command::new("echo");
            command.arg("x").stdout(std::process::Stdio::piped());
            let said = spawn(&mut command).and_then(std::process::Child::wait_with_output);
            let missing = spawn(&mut std::process::Command::new("/no/such/program"));
            Some((said, missing.map(drop)))
        });
        let Some((said, missing)) = filtered.join().unwrap() else { return };
        assert_eq!(said.unwrap().stdout, b"x\n");
        assert_eq!(missing.unwrap_err().kind(), io::ErrorKind::NotFound);
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
        // A limit above the hard limit is reduced to that.
        assert!(started(u64::MAX).trim().parse::<u64>().is_ok_and(|most| most > 17));
    }

    /// Variable by which the test knows that it runs in the process with the limit.
    const LIMITED: &str = "TEST_OF_FILE_SIZE";

    #[test]
    fn a_file_that_may_not_grow_ends_only_programs_that_are_started() {
        if std::env::var_os(LIMITED).is_none() {
            let test =
                "process::tests::a_file_that_may_not_grow_ends_only_programs_that_are_started";
            // Without `env` a harness that ignores the signal would let programs live.
            let script =
                "ulimit -f 1; exec env --default-signal=XFSZ \"$0\" --exact \"$1\" --nocapture";
            let mut shell = std::process::Command::new("sh");
            shell.args(["-c", script]).arg(std::env::current_exe().unwrap()).arg(test);
            let output = shell.env(LIMITED, "1").output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            return assert!(output.status.success(), "{said}");
        }
        survive_file_size_limit();
        let name = format!("rlaunch-file-size-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let error = std::fs::write(&path, [0; 4096]).unwrap_err();
        let mut shell = std::process::Command::new("sh");
        let started =
            shell.args(["-c", "exec head -c 4096 /dev/zero > \"$0\""]).arg(&path).status();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(error.raw_os_error(), Some(libc::EFBIG));
        assert_eq!(started.unwrap().signal(), Some(libc::SIGXFSZ));
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

    #[test]
    fn a_child_knows_what_its_parent_made() {
        let created_in = ForkGeneration::current();
        // SAFETY: the child calls nothing but a load and `_exit`, which any child may.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let code =
                i32::from(created_in.is_inherited() && !ForkGeneration::current().is_inherited());
            // SAFETY: `_exit` ends the process at once, without running anything of the test
            // harness.
            unsafe { libc::_exit(40 + code) };
        }
        let mut status = 0;
        // SAFETY: the child was forked here, and `status` is an int that lives until the call
        // returns.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(libc::WEXITSTATUS(status), 41);
        assert!(!created_in.is_inherited());
    }
}
