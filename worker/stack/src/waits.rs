//! Waits of threads, from the system calls in which they sleep.
//!
//! `/proc/PID/task/TID/syscall` has the number of the call and its arguments. Where it may not be
//! read, the wait channel, a function of the kernel, tells less.

use crate::sockets;
use rlaunch_bootstrap::protocol::inspection::Wait;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, FileTypeExt};

/// Calls whose first argument is the descriptor that they wait for.
const ON_DESCRIPTOR: &[libc::c_long] = &[
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwrite64,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_flock,
    libc::SYS_fcntl,
    libc::SYS_ioctl,
    libc::SYS_getdents64,
];

const SLEEPS: &[libc::c_long] = &[libc::SYS_nanosleep, libc::SYS_clock_nanosleep];
const CHILDREN: &[libc::c_long] = &[libc::SYS_wait4, libc::SYS_waitid];

/// Returns what a thread waits for; `None` if it runs.
pub(crate) fn of_thread(pid: u32, tid: u32, state: char) -> Option<Wait> {
    let file = |name: &str| fs::read_to_string(format!("/proc/{pid}/task/{tid}/{name}"));
    match state {
        'R' => return None,
        'T' | 't' => return Some(Wait::Stopped),
        _ => {}
    }
    let channel = || file("wchan").map(|name| name.trim_end().to_owned()).unwrap_or_default();
    let call = file("syscall").ok().and_then(|line| Call::parse(&line));
    // A thread in state D cannot be woken by a signal: its wait channel says most.
    match call.and_then(|call| call.wait(pid)) {
        Some(wait) => Some(wait),
        None => Some(by_channel(&channel())),
    }
}

/// System call in which a thread sleeps.
#[derive(Debug, PartialEq, Eq)]
struct Call {
    number: libc::c_long,
    arguments: [u64; 6],
}

impl Call {
    /// Parses `7 0x1 0x2 0x3 0x4 0x5 0x6 0xSP 0xPC`. Returns `None` for `running`, and for a thread that does not
    /// sleep in a call, whose number is -1.
    fn parse(line: &str) -> Option<Call> {
        let mut words = line.split_ascii_whitespace();
        let number = words.next()?.parse().ok().filter(|number| *number >= 0)?;
        let mut arguments = [0; 6];
        for argument in &mut arguments {
            *argument = u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
        }
        Some(Call { number, arguments })
    }

    fn wait(&self, pid: u32) -> Option<Wait> {
        let first = self.arguments[0];
        match self.number {
            libc::SYS_futex => Some(Wait::Futex),
            number if SLEEPS.contains(&number) => Some(Wait::Sleep),
            number if CHILDREN.contains(&number) => Some(Wait::Child),
            number if ON_DESCRIPTOR.contains(&number) => of_descriptor(pid, first),
            libc::SYS_ppoll => Some(of_poll(pid, first, self.arguments[1])),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_poll => Some(of_poll(pid, first, self.arguments[1])),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_select | libc::SYS_epoll_wait => Some(self.of_many(pid)),
            libc::SYS_pselect6 | libc::SYS_epoll_pwait => Some(self.of_many(pid)),
            _ => None,
        }
    }

    /// Returns the wait for one of many descriptors: the only one of an epoll instance, if it has one.
    fn of_many(&self, pid: u32) -> Wait {
        let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{}", self.arguments[0]));
        let watched = watched_by_epoll(&info.unwrap_or_default());
        match watched[..] {
            [only] => of_descriptor(pid, only).unwrap_or(Wait::Descriptors),
            _ => Wait::Descriptors,
        }
    }
}

/// Lists the descriptors in the `fdinfo` of an epoll instance: lines like `tfd:       5 events: 19 …`.
fn watched_by_epoll(info: &str) -> Vec<u64> {
    let lines = info.lines().filter_map(|line| line.strip_prefix("tfd:"));
    lines.filter_map(|rest| rest.split_ascii_whitespace().next()?.parse().ok()).collect()
}

/// Returns the wait for the descriptors in an array of `struct pollfd`, at `address` in the process's memory. The
/// descriptor is the first field.
fn of_poll(pid: u32, address: u64, count: u64) -> Wait {
    let mut bytes = [0; 4];
    let mut read = || File::open(format!("/proc/{pid}/mem"))?.read_exact_at(&mut bytes, address);
    if count != 1 || read().is_err() {
        return Wait::Descriptors;
    }
    let descriptor = u64::from(u32::from_ne_bytes(bytes));
    of_descriptor(pid, descriptor).unwrap_or(Wait::Descriptors)
}

fn of_descriptor(pid: u32, descriptor: u64) -> Option<Wait> {
    let link = format!("/proc/{pid}/fd/{descriptor}");
    let target = fs::read_link(&link).ok()?.to_string_lossy().into_owned();
    if let Some(inode) = target.strip_prefix("socket:[").and_then(|end| end.strip_suffix(']')) {
        return Some(Wait::Socket { peer: sockets::peer(pid, inode) });
    }
    if target.starts_with("/dev/infiniband/") || target == "anon_inode:[infinibandevent]" {
        return Some(Wait::Rdma);
    }
    if target.starts_with("anon_inode:") {
        return Some(Wait::Descriptors);
    }
    let is_fifo = fs::metadata(&link).is_ok_and(|found| found.file_type().is_fifo());
    match is_fifo {
        true => Some(Wait::Pipe { name: target }),
        false => Some(Wait::File { path: target }),
    }
}

/// Returns the wait that a function of the kernel stands for.
fn by_channel(channel: &str) -> Wait {
    let has = |part: &str| channel.contains(part);
    match channel {
        "" | "0" => Wait::Kernel { channel: "the kernel".to_owned() },
        _ if has("futex") => Wait::Futex,
        _ if has("nanosleep") => Wait::Sleep,
        _ if has("do_wait") => Wait::Child,
        _ if has("poll") || has("select") => Wait::Descriptors,
        _ if has("pipe_") => Wait::Pipe { name: "a pipe".to_owned() },
        _ if has("sk_wait") || has("inet_") || has("unix_stream") => Wait::Socket { peer: None },
        _ => Wait::Kernel { channel: channel.to_owned() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_read() {
        let call = Call::parse("0 0x3 0x7f 0x10 0x0 0x0 0x0 0x7ffd 0x7f00\n").unwrap();
        assert_eq!((call.number, call.arguments[..3].to_vec()), (0, vec![3, 0x7f, 0x10]));
        for none in ["running\n", "-1 0x7ffd 0x7f00\n", "7 x", ""] {
            assert_eq!(Call::parse(none), None, "{none}");
        }
    }

    #[test]
    fn an_epoll_instance_names_what_it_watches() {
        let info = "pos:\t0\nflags:\t02\ntfd:        5 events:       19 data: 5  pos:0\n";
        assert_eq!(watched_by_epoll(info), [5]);
        assert!(watched_by_epoll("pos:\t0\n").is_empty());
    }

    #[test]
    fn channels_of_the_kernel_stand_for_waits() {
        assert_eq!(by_channel("futex_wait_queue"), Wait::Futex);
        assert_eq!(by_channel("hrtimer_nanosleep"), Wait::Sleep);
        assert_eq!(by_channel("anon_pipe_read"), Wait::Pipe { name: "a pipe".into() });
        let nfs = Wait::Kernel { channel: "rpc_wait_bit_killable".into() };
        assert_eq!(by_channel("rpc_wait_bit_killable"), nfs);
    }
}
