//! What a thread waits for: the system call in which it sleeps.
//!
//! `/proc/PID/task/TID/syscall` has the number of the call and its arguments. Where it may not be
//! read, the wait channel, a function of the kernel, tells less. The other ends of TCP connections are
//! in the tables of the process's network namespace.

use rlaunch_bootstrap::protocol::inspection::Wait;
use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::FileExt;

/// Maximum length of a path that is read from a process's memory, in bytes.
const MAX_PATH: usize = 4 << 10;
/// Size of a page of memory, in bytes; larger ones consist of such parts.
const PAGE: usize = 4 << 10;

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

/// Calls that look up a path, with the place of the path among their arguments. They wait for the other end of a FIFO
/// that is opened, or for the server of a network file system.
const ON_PATH: &[(libc::c_long, usize)] = &[
    (libc::SYS_openat, 1),
    (libc::SYS_newfstatat, 1),
    (libc::SYS_statx, 1),
    (libc::SYS_faccessat, 1),
    (libc::SYS_readlinkat, 1),
    (libc::SYS_unlinkat, 1),
    (libc::SYS_mkdirat, 1),
    (libc::SYS_statfs, 0),
    (libc::SYS_chdir, 0),
    (libc::SYS_execve, 0),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_open, 0),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_stat, 0),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_lstat, 0),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_access, 0),
];

const SLEEPS: &[libc::c_long] = &[libc::SYS_nanosleep, libc::SYS_clock_nanosleep];
/// Operations of futex(2) with a time limit that C libraries use.
const TIMED_FUTEX: &[i32] = &[
    libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
    libc::FUTEX_WAIT_BITSET | libc::FUTEX_PRIVATE_FLAG,
    libc::FUTEX_WAIT_BITSET | libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME,
];
/// Maximum number of descriptors that a restarted poll(2) is taken to have, and lowest address of memory: the first
/// argument of a sleep is the small number of a clock.
const MAX_POLLED: u64 = 64;
const FIRST_ADDRESS: u64 = 4096;
const CHILDREN: &[libc::c_long] = &[libc::SYS_wait4, libc::SYS_waitid];

/// Maximum number of descriptors of select(2), `FD_SETSIZE`.
const MAX_SELECTED: u64 = 1024;
/// Number of sets of descriptors that select(2) takes.
const SETS: usize = 3;

/// Returns what a thread waits for; `None` if it runs. No file of the process is looked at, since that could wait for
/// the same server as the process.
pub(super) fn of_thread(sockets: &Sockets, tid: u32, state: char) -> Option<Wait> {
    let pid = sockets.pid;
    let file = |name: &str| fs::read_to_string(format!("/proc/{pid}/task/{tid}/{name}"));
    match state {
        'R' => return None,
        'T' | 't' => return Some(Wait::Stopped),
        _ => {}
    }
    let channel = file("wchan").map(|name| name.trim_end().to_owned()).unwrap_or_default();
    let call = file("syscall").ok().and_then(|line| Call::parse(&line));
    let process = Process { pid, channel: &channel, sockets };
    let wait = call.and_then(|call| call.wait(&process));
    Some(wait.unwrap_or_else(|| by_channel(&channel)))
}

/// Process of a thread that waits.
struct Process<'a> {
    pid: u32,
    /// Wait channel of the thread.
    channel: &'a str,
    sockets: &'a Sockets,
}

/// Calls that the kernel restarts after a stop, with what is left of their time limits.
const RESTARTED: &[libc::c_long] = &[
    libc::SYS_futex,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_wait4,
    libc::SYS_waitid,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_restart_syscall,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_select,
];

/// Sleep of a thread in a system call. Its memory can be read meanwhile, and nothing of it changes.
#[derive(Debug)]
pub(crate) struct Sleep {
    pid: u32,
    tid: u32,
    call: Call,
    /// Number of times that the thread had left its CPU.
    switches: u64,
}

impl Sleep {
    /// Returns the sleep of a thread; `None` if it runs, or does not sleep in a call.
    pub(crate) fn of(pid: u32, tid: u32) -> io::Result<Option<Sleep>> {
        // Before the call: a thread that wakes between the two has moved.
        let switches = switches_of(pid, tid);
        let call = Call::parse(&fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall"))?);
        Ok(call.map(|call| Sleep { pid, tid, call, switches }))
    }

    /// Tells whether the thread has been awake since.
    pub(crate) fn has_moved(&self) -> bool {
        let Sleep { pid, tid, .. } = *self;
        let call = fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall"));
        let call = call.ok().and_then(|line| Call::parse(&line));
        // After the call: a thread that slept again by then has been counted.
        call.as_ref() != Some(&self.call) || switches_of(pid, tid) != self.switches
    }

    /// Tells whether the kernel restarts the call after a stop. Of other calls the program would see that they have been
    /// interrupted: `epoll_wait`, `semop` and others always, reads from a socket if it has a time limit, which only the
    /// process itself can ask for.
    pub(crate) fn is_restarted(&self) -> bool {
        let Call { number, arguments: [descriptor, ..], .. } = self.call;
        let is_pipe = || {
            let target = fs::read_link(format!("/proc/{}/fd/{descriptor}", self.pid));
            target.is_ok_and(|target| target.to_string_lossy().starts_with("pipe:["))
        };
        let transfers = number == libc::SYS_read || number == libc::SYS_write;
        RESTARTED.contains(&number) || (transfers && is_pipe())
    }

    /// Registers that are known: the addresses of the next instruction and of the stack's top.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn registers(&self) -> (u64, u64) {
        (self.call.instruction, self.call.stack_pointer)
    }
}

/// Reads how often a thread has left its CPU; 0 where the kernel does not count it.
fn switches_of(pid: u32, tid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/task/{tid}/status")).unwrap_or_default();
    parse_switches(&status)
}

/// Adds up `voluntary_ctxt_switches` and `nonvoluntary_ctxt_switches`.
fn parse_switches(status: &str) -> u64 {
    let lines = status.lines().filter_map(|line| line.split_once("voluntary_ctxt_switches:"));
    lines.filter_map(|(_, count)| count.trim().parse::<u64>().ok()).sum()
}

/// System call in which a thread sleeps.
#[derive(Debug, PartialEq, Eq)]
struct Call {
    number: libc::c_long,
    arguments: [u64; 6],
    stack_pointer: u64,
    /// Address of the instruction after the call.
    instruction: u64,
}

impl Call {
    /// Parses `7 0x1 0x2 0x3 0x4 0x5 0x6 0xSP 0xPC`. Returns `None` for `running`, and for a thread that does not
    /// sleep in a call, whose number is -1.
    fn parse(line: &str) -> Option<Call> {
        let mut words = line.split_ascii_whitespace();
        let number = words.next()?.parse().ok().filter(|number| *number >= 0)?;
        let mut next = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
        let mut arguments = [0; 6];
        for argument in &mut arguments {
            *argument = next()?;
        }
        Some(Call { number, arguments, stack_pointer: next()?, instruction: next()? })
    }

    fn wait(&self, process: &Process<'_>) -> Option<Wait> {
        let [first, second, ..] = self.arguments;
        if let Some((_, at)) = ON_PATH.iter().find(|(number, _)| *number == self.number) {
            return process.of_path(first, self.arguments[*at]);
        }
        match self.number {
            libc::SYS_futex => Some(Wait::Futex),
            number if SLEEPS.contains(&number) => Some(Wait::Sleep),
            number if CHILDREN.contains(&number) => Some(Wait::Child),
            number if ON_DESCRIPTOR.contains(&number) => process.of_descriptor(first),
            libc::SYS_ppoll => Some(process.of_poll(first, second)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_poll => Some(process.of_poll(first, second)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_select => Some(process.of_select(&self.arguments)),
            libc::SYS_pselect6 => Some(process.of_select(&self.arguments)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_wait => Some(process.of_epoll(first)),
            libc::SYS_epoll_pwait => Some(process.of_epoll(first)),
            libc::SYS_restart_syscall => Some(self.restarted(process)),
            _ => None,
        }
    }

    /// Returns the wait of a call with a time limit that goes on after a stop, such as that in which a debugger, or this
    /// program, has read the thread. The number of the call is lost then; its arguments are not.
    fn restarted(&self, process: &Process<'_>) -> Wait {
        let [first, second, ..] = self.arguments;
        let is_futex =
            i32::try_from(second).is_ok_and(|operation| TIMED_FUTEX.contains(&operation));
        match second {
            _ if is_futex => Wait::Futex,
            1..=MAX_POLLED if first >= FIRST_ADDRESS => process.of_poll(first, second),
            _ => Wait::Sleep,
        }
    }
}

impl Process<'_> {
    /// Reads memory of the process. Fails if not all of it is there.
    fn read(&self, address: u64, bytes: &mut [u8]) -> io::Result<()> {
        File::open(format!("/proc/{}/mem", self.pid))?.read_exact_at(bytes, address)
    }

    /// Returns the wait for the descriptors of an epoll instance.
    fn of_epoll(&self, descriptor: u64) -> Wait {
        let info = fs::read_to_string(format!("/proc/{}/fdinfo/{descriptor}", self.pid));
        self.of_all(&watched_by_epoll(&info.unwrap_or_default()))
    }

    /// Returns the wait for the descriptors in an array of `struct pollfd`, at `address` in the process's memory. The
    /// descriptor is the first field.
    fn of_poll(&self, address: u64, count: u64) -> Wait {
        let mut bytes = [0; 4];
        match count {
            0 => Wait::Sleep,
            1 if self.read(address, &mut bytes).is_ok() => {
                self.of_all(&[u64::from(u32::from_ne_bytes(bytes))])
            }
            _ => Wait::Descriptors,
        }
    }

    /// Returns the wait for the descriptors of select(2): their number and the addresses of the sets.
    fn of_select(&self, arguments: &[u64; 6]) -> Wait {
        let [count, sets @ ..] = arguments;
        let mut selected = BTreeSet::new();
        for &address in sets[..SETS].iter().filter(|address| **address != 0) {
            let mut set =
                vec![0; usize::try_from((*count).min(MAX_SELECTED).div_ceil(8)).unwrap_or(0)];
            if self.read(address, &mut set).is_err() {
                return Wait::Descriptors;
            }
            selected.extend(bits(&set).filter(|bit| bit < count));
        }
        if selected.is_empty() {
            Wait::Sleep
        } else {
            self.of_all(&selected.into_iter().collect::<Vec<_>>())
        }
    }

    /// Returns the wait for several descriptors: for the only one, if there is one.
    fn of_all(&self, descriptors: &[u64]) -> Wait {
        match descriptors {
            [only] => self.of_descriptor(*only).unwrap_or(Wait::Descriptors),
            _ => Wait::Descriptors,
        }
    }

    /// Returns the wait in a call that looks up the path at an address in memory, relative to the directory
    /// `descriptor`, or to the working directory.
    fn of_path(&self, descriptor: u64, address: u64) -> Option<Wait> {
        let mut bytes = Vec::new();
        // A page at a time, since memory may end after the path.
        while !bytes.contains(&0) && bytes.len() < MAX_PATH {
            let (at, next) = (bytes.len(), address.checked_add(bytes.len() as u64)?);
            let part = PAGE - usize::try_from(next).ok()? % PAGE;
            bytes.resize(at + part, 0);
            self.read(next, &mut bytes[at..]).ok()?;
        }
        let path = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        let path = String::from_utf8_lossy(path).into_owned();
        if path.is_empty() {
            return self.of_descriptor(descriptor);
        }
        let is_relative = !path.starts_with('/') && descriptor as i32 == libc::AT_FDCWD;
        let directory = is_relative.then(|| fs::read_link(format!("/proc/{}/cwd", self.pid)));
        let path = match directory {
            Some(Ok(directory)) => directory.join(&path).to_string_lossy().into_owned(),
            _ => path,
        };
        Some(self.file(path))
    }

    fn of_descriptor(&self, descriptor: u64) -> Option<Wait> {
        let target = fs::read_link(format!("/proc/{}/fd/{descriptor}", self.pid)).ok()?;
        let target = target.to_string_lossy().into_owned();
        let inode = target.strip_prefix("socket:[").and_then(|end| end.strip_suffix(']'));
        if let Some(inode) = inode {
            return Some(Wait::Socket { peer: self.sockets.peer(inode), owner: None });
        }
        if target.starts_with("/dev/infiniband/") || target == "anon_inode:[infinibandevent]" {
            return Some(Wait::Rdma);
        }
        if target.starts_with("anon_inode:") {
            return Some(Wait::Descriptors);
        }
        Some(self.file(target))
    }

    /// Returns the wait for a file with a name: a pipe if the thread is in the kernel's code for pipes.
    fn file(&self, path: String) -> Wait {
        let is_pipe = ["pipe_", "wait_for_partner", "fifo_"];
        let is_pipe = is_pipe.iter().any(|part| self.channel.contains(part));
        if is_pipe || path.starts_with("pipe:[") {
            Wait::Pipe { name: path }
        } else {
            Wait::File { path }
        }
    }
}

/// Lists the descriptors in the `fdinfo` of an epoll instance: lines like `tfd:       5 events: 19 …`.
fn watched_by_epoll(info: &str) -> Vec<u64> {
    let lines = info.lines().filter_map(|line| line.strip_prefix("tfd:"));
    lines.filter_map(|rest| rest.split_ascii_whitespace().next()?.parse().ok()).collect()
}

/// Lists the bits that are set. Machines of both architectures are little-endian, so the bytes of a set are in order.
fn bits(set: &[u8]) -> impl Iterator<Item = u64> {
    let bits = set.iter().flat_map(|byte| (0..8).map(move |bit| byte >> bit & 1 == 1));
    (0..).zip(bits).filter_map(|(at, is_set)| is_set.then_some(at))
}

/// Returns what the standard input of a process is, as [`Wait::Pipe`] names it.
pub(crate) fn stdin_of(pid: u32) -> Option<String> {
    Some(fs::read_link(format!("/proc/{pid}/fd/0")).ok()?.to_string_lossy().into_owned())
}

/// Name of a pipe where only the kernel's function is known: another program's call may not be read.
pub(crate) const SOME_PIPE: &str = "a pipe";

/// Returns the wait that a function of the kernel stands for.
fn by_channel(channel: &str) -> Wait {
    let has = |part: &str| channel.contains(part);
    match channel {
        "" | "0" => Wait::Kernel { channel: "the kernel".to_owned() },
        _ if has("futex") => Wait::Futex,
        _ if has("nanosleep") => Wait::Sleep,
        _ if has("do_wait") => Wait::Child,
        _ if has("poll") || has("select") => Wait::Descriptors,
        _ if has("pipe_") || has("wait_for_partner") => Wait::Pipe { name: SOME_PIPE.to_owned() },
        _ if has("sk_wait") || has("inet_") || has("unix_stream") => {
            Wait::Socket { peer: None, owner: None }
        }
        _ => Wait::Kernel { channel: channel.to_owned() },
    }
}

/// Sockets of a process. The tables have all connections of the network namespace, and are read once.
pub(super) struct Sockets {
    pid: u32,
    tables: OnceCell<Vec<String>>,
}

impl Sockets {
    pub(super) fn new(pid: u32) -> Sockets {
        Sockets { pid, tables: OnceCell::new() }
    }

    /// Returns the other end of the socket with this inode, such as `10.0.0.2:4711`; `None` if it is not a connected
    /// TCP socket.
    fn peer(&self, inode: &str) -> Option<String> {
        let tables = self.tables.get_or_init(|| {
            let read = |table| fs::read_to_string(format!("/proc/{}/net/{table}", self.pid));
            ["tcp", "tcp6"].into_iter().filter_map(|table| read(table).ok()).collect()
        });
        let mut lines = tables.iter().flat_map(|table| table.lines().skip(1));
        lines.find_map(|line| remote_of(line, inode)).map(|end| end.to_string())
    }
}

/// Returns the remote end in a line of the table if the line is about the inode.
fn remote_of(line: &str, inode: &str) -> Option<SocketAddr> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let end = parse_end(fields.get(2)?).filter(|_| fields.get(9) == Some(&inode))?;
    (end.port() != 0).then_some(end)
}

/// Parses `0100007F:1F90`: 32-bit words of the address in the machine's byte order, and the port.
fn parse_end(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| u32::from_str_radix(address.get(at * 8..at * 8 + 8)?, 16).ok();
    let address = match address.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?.to_ne_bytes())),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?].map(u32::to_ne_bytes);
            let bytes: [u8; 16] = words.concat().try_into().ok()?;
            Ipv6Addr::from(bytes).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(address, port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    #[test]
    fn a_call_that_was_stopped_goes_on_as_what_it_was() {
        let sockets = Sockets::new(std::process::id());
        let process = Process { pid: std::process::id(), channel: "", sockets: &sockets };
        let wait = |first, second| {
            let arguments = [first, second, 0, 0, 0, 0];
            let number = libc::SYS_restart_syscall;
            Call { number, arguments, stack_pointer: 0, instruction: 0 }.wait(&process)
        };
        assert_eq!(wait(1, 0), Some(Wait::Sleep));
        assert_eq!(wait(0x7ffd_0000_1000, 0x7ffd_0000_2000), Some(Wait::Sleep));
        assert_eq!(wait(0x7ffd_0000_1000, 137), Some(Wait::Futex));
        assert_eq!(wait(0x10, 0x10), Some(Wait::Sleep));
    }

    #[test]
    fn calls_are_read() {
        let call = Call::parse("0 0x3 0x7f 0x10 0x0 0x0 0x0 0x7ffd 0x7f00\n").unwrap();
        assert_eq!((call.number, call.arguments[..3].to_vec()), (0, vec![3, 0x7f, 0x10]));
        assert_eq!((call.stack_pointer, call.instruction), (0x7ffd, 0x7f00));
        for none in ["running\n", "-1 0x7ffd 0x7f00\n", "7 x", ""] {
            assert_eq!(Call::parse(none), None, "{none}");
        }
    }

    #[test]
    fn switches_of_both_kinds_are_counted() {
        let status = "Threads:\t1\nvoluntary_ctxt_switches:\t12\nnonvoluntary_ctxt_switches:\t3\n";
        assert_eq!(parse_switches(status), 15);
        assert_eq!(parse_switches(""), 0);
    }

    #[test]
    fn an_epoll_instance_names_what_it_watches() {
        let info = "pos:\t0\nflags:\t02\ntfd:        5 events:       19 data: 5  pos:0\n";
        assert_eq!(watched_by_epoll(info), [5]);
        assert!(watched_by_epoll("pos:\t0\n").is_empty());
    }

    #[test]
    fn descriptors_of_a_set_are_listed() {
        assert_eq!(bits(&[0b101, 0, 0x80]).collect::<Vec<_>>(), [0, 2, 23]);
        assert_eq!(bits(&[]).count(), 0);
    }

    #[test]
    fn channels_of_the_kernel_stand_for_waits() {
        assert_eq!(by_channel("futex_wait_queue"), Wait::Futex);
        assert_eq!(by_channel("hrtimer_nanosleep"), Wait::Sleep);
        assert_eq!(by_channel("anon_pipe_read"), Wait::Pipe { name: "a pipe".into() });
        let nfs = Wait::Kernel { channel: "rpc_wait_bit_killable".into() };
        assert_eq!(by_channel("rpc_wait_bit_killable"), nfs);
    }

    #[test]
    fn the_other_end_of_a_connection_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let link = fs::read_link(format!("/proc/self/fd/{}", stream.as_raw_fd())).unwrap();
        let link = link.to_string_lossy().into_owned();
        let inode = link.trim_start_matches("socket:[").trim_end_matches(']');
        let expected = listener.local_addr().unwrap().to_string();
        let sockets = Sockets::new(std::process::id());
        assert_eq!(sockets.peer(inode), Some(expected));
        assert_eq!(sockets.peer("1"), None);
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn addresses_are_read() {
        assert_eq!(parse_end("0200000A:1267"), Some("10.0.0.2:4711".parse().unwrap()));
        let mapped = parse_end("0000000000000000FFFF00000200000A:1267");
        assert_eq!(mapped, Some("10.0.0.2:4711".parse().unwrap()));
        assert_eq!(parse_end("0A:1"), None);
    }
}
