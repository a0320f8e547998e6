"""breakpoint() in a rank: pdb at the other end of a socket, to which `rlaunch attach` connects.

The socket is in the job's private directory, beside that of the agent. It exists as long as the rank
stands at a breakpoint: the agent takes its removal as the sign that the program goes on.
"""

import io
import os
import pdb
import socket
import sys
import threading


def breakpoint():
    """Waits for `rlaunch attach RANK`, then runs pdb there, at the place of the call. Without a job,
    runs pdb at the terminal."""
    frame = sys._getframe(1)
    directory = os.path.dirname(os.environ.get("RLAUNCH_SOCKET", ""))
    rank = os.environ.get("RLAUNCH_RANK", "")
    if not directory or not rank.isdigit():
        debugger = pdb.Pdb()
    else:
        if _stops.held_by_this_thread():
            # `breakpoint()` while the debugger of an earlier one still has breakpoints.
            return _stops.debugger.set_trace(frame)
        _stops.acquire()
        debugger = _Debugger(_Attachable(directory, rank, frame))
        _stops.debugger = debugger
    # The last statement, so that the debugger stops in the caller and not here.
    debugger.set_trace(frame)


class _Stops:
    """Turn of the thread that stands at a breakpoint. Others of this process wait for theirs."""

    def __init__(self):
        self._lock = threading.Lock()
        self._owner = None
        self.debugger = None

    def held_by_this_thread(self):
        return self._owner == threading.get_ident()

    def acquire(self):
        self._lock.acquire()
        self._owner = threading.get_ident()

    def release(self):
        if self._owner is not None:
            self._owner = self.debugger = None
            self._lock.release()


_stops = _Stops()


def _after_fork():
    """Forgets the parent's debugger in a forked child, which leaves the parent's socket alone."""
    global _stops
    _stops = _Stops()


os.register_at_fork(after_in_child=_after_fork)


class _Debugger(pdb.Pdb):
    """pdb at an `_Attachable`, which is closed when no breakpoint can stop the program any more."""

    def __init__(self, terminal):
        # Without `nosigint`, `continue` would replace the program's handler of SIGINT.
        super().__init__(stdin=terminal, stdout=terminal, nosigint=True)
        self._terminal = terminal

    def interaction(self, frame, *rest):
        if frame is not None:
            self._terminal.frame = frame
        return super().interaction(frame, *rest)

    def set_continue(self):
        super().set_continue()
        if not self.breaks:
            self._close()

    def set_quit(self):
        super().set_quit()
        self._close()

    def _close(self):
        self._terminal.go_on()
        if _stops.debugger is self:
            _stops.release()


class _Attachable(io.TextIOBase):
    """Text stream to the client that is attached. It waits for one, also after a client has left."""

    def __init__(self, directory, rank, frame):
        self.frame = frame
        self._rank = rank
        self._process = os.getpid()
        self._name = os.path.join(directory, "debug-%s-%d.sock" % (rank, self._process))
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # An address has at most 107 bytes, and the path of the directory may be longer.
        opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            address = "/proc/self/fd/%d/%s" % (opened, os.path.basename(self._name))
            self._listener.bind(address)
            # The directory is private already.
            os.chmod(address, 0o600)
        finally:
            os.close(opened)
        self._listener.listen(1)
        self._connection = self._reader = None
        self._unsent = []
        self._await_client()

    @property
    def encoding(self):
        return "utf-8"

    def readable(self):
        return True

    def writable(self):
        return True

    def isatty(self):
        return False

    def readline(self, limit=-1):
        """Returns the next line. If the client has left, waits for the next one."""
        while True:
            self.flush()
            try:
                line = self._reader.readline()
            except OSError:
                line = b""
            # A line without an end is one that the client has not finished.
            if line.endswith(b"\n"):
                return line.decode("utf-8", "replace")
            self._await_client()
            self.write("(Pdb) ")

    def write(self, text):
        self._unsent.append(text.encode("utf-8", "replace"))
        if len(self._unsent) >= 100:
            self.flush()
        return len(text)

    def flush(self):
        data, self._unsent = b"".join(self._unsent), []
        try:
            if self._connection is not None:
                self._connection.sendall(data)
        except OSError:
            # The client has left, which the next `readline` notices.
            pass

    def _await_client(self):
        """Tells where the rank stands, and waits for a client."""
        self._drop_client()
        place = "rank %s stops at %s" % (self._rank, self._place())
        print("%s: rlaunch attach %s" % (place, self._rank), file=sys.__stderr__, flush=True)
        self._connection, _ = self._listener.accept()
        self._reader = self._connection.makefile("rb")
        self.write(place + "\n")

    def _place(self):
        code = self.frame.f_code
        name = code.co_name if code.co_name != "<module>" else "the module"
        return "%s:%d in %s" % (os.path.basename(code.co_filename), self.frame.f_lineno, name)

    def _drop_client(self):
        self.flush()
        if self._connection is not None:
            self._reader.close()
            self._connection.close()
            self._connection = self._reader = None

    def go_on(self):
        """Removes the socket, then lets the client go."""
        if self._process == os.getpid() and self._listener.fileno() >= 0:
            try:
                os.unlink(self._name)
            except OSError:
                pass
            self._listener.close()
        self._drop_client()
