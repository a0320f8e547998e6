//! Starting a program directly inside a cgroup, so that nothing it forks can be outside.

use std::arch::asm;
use std::ffi::{CStr, CString, c_char, c_int, c_long};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::{io, ptr};

/// Number of the system call clone3(2), the same on every architecture.
const SYS_CLONE3: c_long = 435;
/// Flag of clone3(2) since Linux 5.5: signal handlers are reset to the default in the child.
const CLONE_CLEAR_SIGHAND: u64 = 1 << 32;
/// Flag of clone3(2) since Linux 5.7: the child starts in the given cgroup.
const CLONE_INTO_CGROUP: u64 = 1 << 33;
/// Size of the child's stack in bytes; a few system calls use a fraction of it.
const STACK: usize = 32 * 1024;

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

/// Program that [`spawn_in_cgroup`] is to start.
#[derive(Debug)]
pub struct SpawnArgs<'a> {
    pub program: &'a CStr,
    /// Arguments, the first of which is the program's name.
    pub args: &'a [CString],
    /// Environment, as `NAME=VALUE`.
    pub env: &'a [CString],
    /// Stdin, stdout and stderr. None of the descriptors may be below 3.
    pub streams: [BorrowedFd<'a>; 3],
}

/// Starts a program as a child in the cgroup whose directory is `cgroup`, and returns its process
/// id. Moving a process into a cgroup after its start would wait 5 to 16 ms for a grace period of
/// the kernel.
///
/// Fails if the kernel does not support this, or a seccomp filter or the cgroup forbids it. Fails
/// with `ECANCELED` if the child was killed before it ran, which Linux 6.14 and later do if the
/// caller's cgroup has been killed (`cgroup.kill`) more often than the child's.
///
/// Until the child executes the program, it shares this process's memory, as with posix_spawn(3): a
/// copy of an agent's memory, as with fork(2), would take 0.3 ms. The program starts with no signal
/// blocked and SIGPIPE at its default.
pub fn spawn_in_cgroup(program: &SpawnArgs<'_>, cgroup: BorrowedFd<'_>) -> io::Result<i32> {
    if program.streams.iter().any(|stream| stream.as_raw_fd() < 3) {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    let list = |strings: &[CString]| -> Vec<*const c_char> {
        strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
    };
    let (argv, env) = (list(program.args), list(program.env));
    let child = Child {
        program: program.program.as_ptr(),
        args: argv.as_ptr(),
        env: env.as_ptr(),
        streams: program.streams.map(|stream| stream.as_raw_fd()),
        outcome: AtomicI32::new(libc::ECANCELED),
    };
    let mut stack = Vec::<Block>::with_capacity(STACK / size_of::<Block>());
    let args = CloneArgs {
        flags: CLONE_INTO_CGROUP
            | CLONE_CLEAR_SIGHAND
            | (libc::CLONE_VM | libc::CLONE_VFORK) as u64,
        exit_signal: libc::SIGCHLD as u64,
        stack: stack.as_mut_ptr() as u64,
        stack_size: STACK as u64,
        cgroup: cgroup.as_raw_fd() as u64,
        ..CloneArgs::default()
    };
    // A handler must not run in the child before clone3(2) has reset it.
    let blocked = Blocked::all();
    // SAFETY: the lists end in a null pointer and their strings in a zero. `child`, what it points
    // to, and the stack, which nothing else uses, live until the child is done with them: with
    // CLONE_VFORK the call returns only then.
    let pid = unsafe { clone_child(&args, &child) };
    drop(blocked);
    let pid = i32::try_from(pid).map_err(|_| io::ErrorKind::InvalidData)?;
    if pid < 0 {
        return Err(io::Error::from_raw_os_error(-pid));
    }
    match child.outcome.load(Ordering::Relaxed) {
        0 => Ok(pid),
        error => {
            // SAFETY: waitpid(2) without a place for the status touches no memory.
            unsafe { libc::waitpid(pid, ptr::null_mut(), 0) };
            Err(io::Error::from_raw_os_error(error))
        }
    }
}

/// Part of a stack; both ends of a stack must have this alignment on every architecture.
#[repr(align(16))]
struct Block(#[expect(dead_code, reason = "only its size is used")] [u8; 16]);

/// Program of a child, and the result of starting it.
struct Child {
    program: *const c_char,
    args: *const *const c_char,
    env: *const *const c_char,
    streams: [c_int; 3],
    /// `ECANCELED` until the child runs, then 0, or the error number if the program cannot be
    /// executed.
    outcome: AtomicI32,
}

/// Guard that blocks all signals of the calling thread until it is dropped.
struct Blocked(libc::sigset_t);

impl Blocked {
    fn all() -> Blocked {
        let mut all = MaybeUninit::<libc::sigset_t>::uninit();
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: sigfillset(3) writes the set that it is given.
        unsafe { libc::sigfillset(all.as_mut_ptr()) };
        // SAFETY: the first set was written by the line above, and the other is written here.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
        // SAFETY: pthread_sigmask(3) does not fail with a valid operation, so the set is written.
        Blocked(unsafe { before.assume_init() })
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the set is one that pthread_sigmask(3) wrote; the present one is not needed.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, ptr::null_mut()) };
    }
}

/// Calls clone3(2) with a child that runs [`become_program`]. Returns the child's process id, or
/// the negated error number.
///
/// # Safety
///
/// `args` asks for CLONE_VM, CLONE_VFORK and a stack of its own; `child` and that stack live until
/// the call returns, and `child` meets the requirements of [`become_program`].
#[cfg(target_arch = "x86_64")]
unsafe fn clone_child(args: &CloneArgs, child: &Child) -> isize {
    let pid: isize;
    // SAFETY: the kernel preserves all registers but rax, rcx and r11. The child begins on its own
    // stack, whose end is aligned as `call` requires, and never returns.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r8",
            "call r9",
            "ud2",
            "2:",
            inlateout("rax") SYS_CLONE3 as isize => pid,
            in("rdi") ptr::from_ref(args),
            in("rsi") size_of::<CloneArgs>(),
            in("r8") ptr::from_ref(child),
            in("r9") become_program as unsafe extern "C" fn(*const Child) -> !,
            out("rcx") _,
            out("r11") _,
        );
    }
    pid
}

/// Calls clone3(2) with a child that runs [`become_program`]. Returns the child's process id, or
/// the negated error number.
///
/// # Safety
///
/// `args` asks for CLONE_VM, CLONE_VFORK and a stack of its own; `child` and that stack live until
/// the call returns, and `child` meets the requirements of [`become_program`].
#[cfg(target_arch = "aarch64")]
unsafe fn clone_child(args: &CloneArgs, child: &Child) -> isize {
    let pid: isize;
    // SAFETY: the kernel preserves all registers but x0. The child begins on its own stack, whose
    // end is aligned as the architecture requires, and never returns.
    unsafe {
        asm!(
            "svc 0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "mov x0, x9",
            "blr x10",
            "brk 1",
            "2:",
            inlateout("x0") ptr::from_ref(args) => pid,
            in("x1") size_of::<CloneArgs>(),
            in("x8") SYS_CLONE3,
            in("x9") ptr::from_ref(child),
            in("x10") become_program as unsafe extern "C" fn(*const Child) -> !,
        );
    }
    pid
}

/// Executes the program in the child, or stores the error and exits. Makes only system calls,
/// because the memory is shared with the parent, and locks may be held by threads that do not run
/// in this process.
///
/// # Safety
///
/// `child` is a valid pointer; its program and the strings in its lists end in a zero, and the
/// lists end in a null pointer. The calling process must not be needed any more.
unsafe extern "C" fn become_program(child: *const Child) -> ! {
    // SAFETY: the caller guarantees that the pointer is valid.
    let child = unsafe { &*child };
    child.outcome.store(0, Ordering::Relaxed);
    let mut is_set = true;
    for (target, stream) in (0..).zip(child.streams) {
        // SAFETY: dup2(2) touches no memory.
        is_set &= unsafe { libc::dup2(stream, target) } == target;
    }
    // SAFETY: signal(2) touches no memory of the caller's, and the default action runs no handler.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let mut none = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset(3) writes the set that it is given.
    unsafe { libc::sigemptyset(none.as_mut_ptr()) };
    // SAFETY: the set was written by the line above; the old one is not needed.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut()) };
    if is_set {
        // SAFETY: the caller guarantees that the strings and lists are valid.
        unsafe { libc::execve(child.program, child.args, child.env) };
    }
    let error = io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
    child.outcome.store(error, Ordering::Relaxed);
    // SAFETY: _exit(2) runs nothing of this process.
    unsafe { libc::_exit(127) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::AsFd;

    /// Uses the cgroup of this process; skipped if that is not accessible.
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
            let (mut output, stdout) = io::pipe().unwrap();
            let program = string(program);
            let spawn_args = SpawnArgs {
                program: &program,
                args: &["sh", "-c", "echo $A $0", "word"].map(string),
                env: &[string("A=b")],
                streams: [null.as_fd(), stdout.as_fd(), null.as_fd()],
            };
            let pid = spawn_in_cgroup(&spawn_args, cgroup.as_fd())?;
            drop(stdout);
            let mut text = String::new();
            output.read_to_string(&mut text)?;
            // SAFETY: waitpid(2) without a place for the status touches no memory.
            assert_eq!(unsafe { libc::waitpid(pid, ptr::null_mut(), 0) }, pid);
            Ok::<String, io::Error>(text)
        };
        match run("/bin/sh") {
            Ok(text) => assert_eq!(text, "b word\n"),
            // The kernel or the account does not permit it.
            Err(_) => return,
        }
        let error = run("/no/such/program").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
    }
}
