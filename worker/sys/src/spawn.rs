//! SpawnArgs of a program inside a cgroup, so that nothing it forks can be outside.

use std::arch::asm;
use std::ffi::{CStr, CString, c_char, c_int, c_long};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};

/// Number of the system call clone3(2), the same on every architecture.
const SYS_CLONE3: c_long = 435;
/// Flag of clone3(2) since Linux 5.5: the child has the default in place of every signal handler.
const CLONE_CLEAR_SIGHAND: u64 = 1 << 32;
/// Flag of clone3(2) since Linux 5.7: the child begins in the given cgroup.
const CLONE_INTO_CGROUP: u64 = 1 << 33;
/// Bytes of a child's stack: a few system calls need a fraction of them.
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

/// A program, what it is called with, and its standard streams.
#[derive(Debug)]
pub struct SpawnArgs<'a> {
    /// Its path.
    pub program: &'a CStr,
    /// Its arguments, its name among them.
    pub words: &'a [CString],
    /// Its environment, as `NAME=VALUE`.
    pub env: &'a [CString],
    /// Its stdin, stdout and stderr, none of them below 3.
    pub streams: [BorrowedFd<'a>; 3],
}

/// Starts a program as a child in the cgroup whose directory this is; returns its process id. A process
/// that is moved there later, as its own first act, would wait for a grace period of the kernel: 5 to
/// 16 ms. Fails where the kernel, or a filter before it, does not know how, or the cgroup refuses; and with
/// `ECANCELED` where the child was killed before it ran. Linux 6.14 and later do that where the caller's
/// cgroup has been killed (`cgroup.kill`) more often than the child's.
///
/// The child has this process's memory until it runs the program, as that of posix_spawn(3): a copy
/// would take 0.3 ms of an agent. Like any started program, it has no signal blocked and SIGPIPE at its
/// default.
pub fn spawn_in_cgroup(start: &SpawnArgs<'_>, cgroup: BorrowedFd<'_>) -> io::Result<i32> {
    if start.streams.iter().any(|stream| stream.as_raw_fd() < 3) {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    let list = |strings: &[CString]| -> Vec<*const c_char> {
        strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
    };
    let (words, env) = (list(start.words), list(start.env));
    let child = Child {
        program: start.program.as_ptr(),
        words: words.as_ptr(),
        env: env.as_ptr(),
        streams: start.streams.map(|stream| stream.as_raw_fd()),
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
    // A handler must not run in the child before clone3(2) has removed it.
    let blocked = Blocked::all();
    // SAFETY: the lists end in a null pointer and their strings in a zero. `child`, what it points to
    // and the stack, of which nothing else is made, live until the child is done with them: with
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
            // SAFETY: waitpid(2) with no place for the status touches no memory.
            unsafe { libc::waitpid(pid, ptr::null_mut(), 0) };
            Err(io::Error::from_raw_os_error(error))
        }
    }
}

/// Piece of a stack, whose ends have to be aligned so on every architecture.
#[repr(align(16))]
struct Block(#[expect(dead_code, reason = "only its size is used")] [u8; 16]);

/// Program of a child, and the result of starting it.
struct Child {
    program: *const c_char,
    words: *const *const c_char,
    env: *const *const c_char,
    streams: [c_int; 3],
    /// `ECANCELED` until the child runs, then 0; at last the error that keeps it from its program.
    outcome: AtomicI32,
}

/// All signals of the calling thread, blocked until this is dropped.
struct Blocked(libc::sigset_t);

impl Blocked {
    fn all() -> Blocked {
        let mut all = MaybeUninit::<libc::sigset_t>::uninit();
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: sigfillset(3) writes the set that it is given.
        unsafe { libc::sigfillset(all.as_mut_ptr()) };
        // SAFETY: the first set was written by the line above, and the other is written here.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
        // SAFETY: pthread_sigmask(3) does not fail with a known operation, so the set is written.
        Blocked(unsafe { before.assume_init() })
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the set is one that pthread_sigmask(3) wrote; the present one is not wanted.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, ptr::null_mut()) };
    }
}

/// Calls clone3(2) with a child that runs [`become_program`]; returns its process id, or the negative
/// error number.
///
/// # Safety
/// `args` asks for CLONE_VM, CLONE_VFORK and a stack of its own; `child` and that stack live until the
/// call returns, and what `child` points to is what [`become_program`] requires.
#[cfg(target_arch = "x86_64")]
unsafe fn clone_child(args: &CloneArgs, child: &Child) -> isize {
    let pid: isize;
    // SAFETY: the kernel keeps all registers but rax, rcx and r11. The child begins on its own stack,
    // whose end is aligned as `call` requires, and never comes back.
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

/// Calls clone3(2) with a child that runs [`become_program`]; returns its process id, or the negative
/// error number.
///
/// # Safety
/// `args` asks for CLONE_VM, CLONE_VFORK and a stack of its own; `child` and that stack live until the
/// call returns, and what `child` points to is what [`become_program`] requires.
#[cfg(target_arch = "aarch64")]
unsafe fn clone_child(args: &CloneArgs, child: &Child) -> isize {
    let pid: isize;
    // SAFETY: the kernel keeps all registers but x0. The child begins on its own stack, whose end is
    // aligned as the architecture requires, and never comes back.
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

/// Becomes a program, or notes why it cannot, and ends. Only system calls are made: locks may be held
/// by threads that do not run in this process, and its memory is another's.
///
/// # Safety
/// `child` is a valid pointer; its program and what its lists hold are strings that end in a zero, and
/// the lists end in a null pointer. The calling process must not be needed any more.
unsafe extern "C" fn become_program(child: *const Child) -> ! {
    // SAFETY: the caller vouches for the pointer.
    let child = unsafe { &*child };
    child.outcome.store(0, Ordering::Relaxed);
    let mut is_set = true;
    for (target, stream) in (0..).zip(child.streams) {
        // SAFETY: dup2(2) touches no memory.
        is_set &= unsafe { libc::dup2(stream, target) } == target;
    }
    // SAFETY: signal(2) touches no memory of the caller's, and the default is no handler.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let mut none = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset(3) writes the set that it is given.
    unsafe { libc::sigemptyset(none.as_mut_ptr()) };
    // SAFETY: the set was written by the line above; the old one is not wanted.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut()) };
    if is_set {
        // SAFETY: the caller vouches for the strings and the lists.
        unsafe { libc::execve(child.program, child.words, child.env) };
    }
    let error = io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
    child.outcome.store(error, Ordering::Relaxed);
    // SAFETY: _exit(2) runs nothing of this process's.
    unsafe { libc::_exit(127) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Read;
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
            let start = SpawnArgs {
                program: &program,
                words: &["sh", "-c", "echo $A $0", "word"].map(string),
                env: &[string("A=b")],
                streams: [null.as_fd(), stdout.as_fd(), null.as_fd()],
            };
            let pid = spawn_in_cgroup(&start, cgroup.as_fd())?;
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
