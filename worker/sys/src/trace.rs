//! Stops of threads of other processes, by ptrace(2).

use std::marker::PhantomData;
use std::time::{Duration, Instant};
use std::{io, ptr, thread};

/// Shortest and longest time between two looks whether a thread has stopped.
const PAUSES: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(5));

/// Thread of another process that this thread has stopped, and that goes on when this is dropped. No signal is sent to
/// it, and none is taken from it; but a system call in which it sleeps may end with `EINTR` (signal(7)).
#[derive(Debug)]
pub struct StoppedThread {
    tid: i32,
    /// Signal that the kernel was delivering when the thread stopped; 0 if none. The tracer has to pass it on.
    signal: i32,
    /// Only the thread that has stopped another one can let it go.
    is_of_this_thread: PhantomData<*const ()>,
}

impl StoppedThread {
    /// Stops a thread. Fails with `ESRCH` if it has ended, and with [`io::ErrorKind::TimedOut`] if it has not stopped
    /// before the deadline, since it waits in the kernel; what then stops later goes on when the calling thread ends.
    pub fn stop(tid: i32, deadline: Instant) -> io::Result<StoppedThread> {
        request(libc::PTRACE_SEIZE, tid, 0)?;
        // Until it has stopped it cannot be let go.
        request(libc::PTRACE_INTERRUPT, tid, 0)?;
        let mut pause = PAUSES.0;
        loop {
            if let Some(status) = poll(tid)? {
                return StoppedThread::new(tid, status);
            }
            if Instant::now() >= deadline {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "it waits in the kernel"));
            }
            thread::sleep(pause);
            pause = (2 * pause).min(PAUSES.1);
        }
    }

    /// Makes the stop of which waitpid(2) tells by this status.
    fn new(tid: i32, status: i32) -> io::Result<StoppedThread> {
        if !libc::WIFSTOPPED(status) {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        // A stop without an event is the delivery of a signal, which came first.
        let is_delivery = status >> 16 == 0;
        let signal = if is_delivery { libc::WSTOPSIG(status) } else { 0 };
        Ok(StoppedThread { tid, signal, is_of_this_thread: PhantomData })
    }
}

impl Drop for StoppedThread {
    fn drop(&mut self) {
        // Fails if the thread has been killed.
        let _ = request(libc::PTRACE_DETACH, self.tid, self.signal);
    }
}

#[cfg(target_env = "gnu")]
type Request = libc::c_uint;
#[cfg(not(target_env = "gnu"))]
type Request = libc::c_int;

/// Makes a request of ptrace(2) that has no address, and a number as its data. Only those that this file names fit.
fn request(request: Request, tid: i32, data: i32) -> io::Result<()> {
    let none = ptr::null_mut::<libc::c_void>();
    let data = ptr::without_provenance_mut::<libc::c_void>(data as usize);
    // SAFETY: none of the requests of this file reads or writes memory, of this process or of the other.
    match unsafe { libc::ptrace(request, tid, none, data) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Returns the status of a thread if it has stopped or ended.
fn poll(tid: i32) -> io::Result<Option<i32>> {
    let mut status = 0;
    // SAFETY: waitpid(2) writes an int, and `status` is one.
    match unsafe { libc::waitpid(tid, &raw mut status, libc::__WALL | libc::WNOHANG) } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        _ => Ok(Some(status)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    struct Process(Child);

    impl Drop for Process {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn state(process: &Process) -> char {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.0.id())).unwrap();
        stat.rsplit_once(") ").unwrap().1.chars().next().unwrap()
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    #[test]
    fn a_thread_stops_and_goes_on() {
        let process = Process(Command::new("sleep").arg("1000").spawn().unwrap());
        let stopped = StoppedThread::stop(process.0.id() as i32, soon()).unwrap();
        assert_eq!(state(&process), 't');
        drop(stopped);
        while state(&process) == 't' {
            thread::yield_now();
        }
    }

    #[test]
    fn what_has_ended_cannot_be_stopped() {
        let mut process = Process(Command::new("true").spawn().unwrap());
        process.0.wait().unwrap();
        assert!(StoppedThread::stop(process.0.id() as i32, soon()).is_err());
        assert!(StoppedThread::new(1, 0).is_err());
    }

    #[test]
    fn the_signal_that_is_being_delivered_is_known() {
        let stopped = |status| StoppedThread::new(i32::MAX, status).unwrap().signal;
        assert_eq!(stopped(40 << 8 | 0x7f), 40);
        const PTRACE_EVENT_STOP: i32 = 128;
        assert_eq!(stopped(PTRACE_EVENT_STOP << 16 | libc::SIGTRAP << 8 | 0x7f), 0);
    }

    /// A parent waits in the kernel until its child has executed a program, here until it has opened a FIFO.
    #[test]
    fn a_thread_that_waits_in_the_kernel_is_given_up() {
        let script = "import os, tempfile\npath = tempfile.mkdtemp() + '/f'\nos.mkfifo(path)\n\
            print(path, flush=True)\n\
            os.posix_spawn('/bin/true', ['true'], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, path, os.O_RDONLY, 0)])\n\
            os._exit(0)";
        let mut command = Command::new("python3");
        let command = command.args(["-c", script]).stdout(Stdio::piped());
        let mut process = Process(command.spawn().unwrap());
        let mut path = String::new();
        let mut output = std::io::BufReader::new(process.0.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut output, &mut path).unwrap();
        while state(&process) != 'D' {
            thread::yield_now();
        }
        // Its tracer ends, which lets it go.
        let tid = process.0.id() as i32;
        let (tell, told) = std::sync::mpsc::channel();
        thread::spawn(move || {
            let limit = Instant::now() + Duration::from_millis(50);
            tell.send(StoppedThread::stop(tid, limit).map(drop))
        });
        let error =
            told.recv_timeout(Duration::from_secs(20)).expect("it is given up").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        // Opening the other end lets both go on, to their ends.
        let path = path.trim_end();
        let _writer = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        assert!(process.0.wait().unwrap().success());
        let _ = std::fs::remove_file(path);
        let _ = std::fs::remove_dir(std::path::Path::new(path).parent().unwrap());
    }
}
