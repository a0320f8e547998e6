"""Rows, the machine that they run on, and the processes that they start."""

import contextlib
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Variable by which everything that a row has started is found, whatever session it is in.
MARK = "GPU_ROW_MARK"
# Variable that names the lie of a stand-in.
LIE = "GPU_LIE"
# Seconds between SIGTERM and SIGKILL: rlaunch ends its ranks in this time.
GRACE = 6
# Bytes of a log that are packed: its beginning and its end.
MAX_LOG = 1 << 20
# Seconds of the budget that are kept for the table and the logs.
RESERVE = 10


class RowFailed(Exception):
    """A claim does not hold. The text is the line that was seen."""


class RowSkipped(Exception):
    """A row cannot be run here. The text is the reason."""


@dataclass
class Row:
    """A claim, and the function that proves it. The function returns the line that it has seen."""

    name: str
    claim: str
    function: object
    seconds: int
    needs: tuple = ()
    lies: tuple = ()


@dataclass
class Result:
    row: Row
    word: str
    seen: str
    took: float = 0.0


@dataclass
class Ran:
    """A process that has ended."""

    words: list
    code: int
    out: str
    err: str
    took: float
    timed_out: bool = False

    @property
    def both(self):
        return self.out + self.err

    def last(self):
        """The line that tells most: the error, else the last one."""
        lines = [line for line in self.both.splitlines() if line.strip()]
        errors = [line for line in lines if re.search(r"\b[Ee]rror\b", line)]
        return (errors or lines or ["no output"])[-1].strip()

    def passed(self, what):
        """Fails the row unless the process ended with 0."""
        if self.timed_out:
            raise RowFailed(f"{what}: not done after {self.took:.0f} s: {self.last()}")
        if self.code != 0:
            raise RowFailed(f"{what}: exit code {self.code}: {self.last()}")
        return self


def look_up(words, seconds, env=None):
    """Output of a short command, or the reason why there is none: (text, reason)."""
    try:
        ran = subprocess.run(words, capture_output=True, text=True, timeout=seconds, env=env, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        return None, f"{words[0]} is not on the PATH"
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, str(error)
    if ran.returncode:
        lines = (ran.stderr or ran.stdout).strip().splitlines()
        return None, lines[-1] if lines else f"{words[0]} ended with {ran.returncode}"
    return ran.stdout.strip(), None


TORCH = (
    "import torch; print(torch.__version__); print(torch.version.cuda); print(torch.cuda.is_available());"
    "print('.'.join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else 'none')"
)


@dataclass
class Machine:
    """What rows find here. ``lacks`` has the reason for each need that is not met."""

    rlaunch: str
    python: str
    path: str
    stand_in: Path = None
    lacks: dict = field(default_factory=dict)
    facts: dict = field(default_factory=dict)

    @staticmethod
    def look(args, stand_in=None):
        path = os.environ.get("PATH", os.defpath)
        if stand_in:
            # This interpreter itself comes next: another `python3` may be a script that searches for one.
            path = f"{stand_in}:{Path(sys.executable).parent}:{path}"
        beside = HERE / "rlaunch"
        rlaunch = args.rlaunch or (beside if beside.exists() else shutil.which("rlaunch"))
        machine = Machine(str(Path(rlaunch).resolve()) if rlaunch else "rlaunch", args.python, path)
        machine.stand_in = stand_in
        machine.look_at_launcher()
        machine.look_at_gpu()
        machine.look_at_torch()
        return machine

    def look_at_launcher(self):
        text, reason = look_up([self.rlaunch, "version"], 20)
        self.facts["rlaunch"] = (text or reason).splitlines()[0]
        if reason:
            self.lacks["rlaunch"] = f"no launcher: {reason}"

    def look_at_gpu(self):
        env = {**os.environ, "PATH": self.path}
        program = shutil.which("nvidia-smi", path=self.path) or "nvidia-smi"
        columns = "--query-gpu=name,driver_version,memory.total"
        text, reason = look_up([program, columns, "--format=csv,noheader"], 30, env)
        self.facts["card"] = text.splitlines()[0] if text else "none"
        if not text:
            self.lacks["gpu"] = f"no GPU: {reason or 'nvidia-smi lists none'}"

    def look_at_torch(self):
        if self.stand_in:
            # Programs of the stand-in do without torch.
            return
        text, reason = look_up([self.python, "-c", TORCH], 120)
        if reason:
            self.facts["torch"] = "none"
            self.lacks["torch"] = f"no torch: {reason}"
            self.lacks["cuda"] = f"no torch: {reason}"
            return
        version, cuda, available, nccl = text.splitlines()[-4:]
        self.facts["torch"] = f"{version} (CUDA {cuda}, NCCL {nccl})"
        if available != "True":
            self.lacks["cuda"] = self.lacks.get("gpu", "torch finds no GPU: torch.cuda.is_available() is False")

    def describe(self):
        return ", ".join(f"{name}: {fact}" for name, fact in self.facts.items())

    def reason_to_skip(self, row):
        for need in ("rlaunch", *row.needs):
            if need in self.lacks:
                return self.lacks[need]
        if self.stand_in and row.needs and not row.lies:
            return "there is no stand-in for this row"
        return None


class Session:
    """Runs rows one after the other, within the time for all of them."""

    def __init__(self, machine, out, budget):
        self.machine, self.out = machine, out
        self.began = time.monotonic()
        self.deadline = self.began + budget - RESERVE
        self.results = []

    def __enter__(self):
        self.out.mkdir(parents=True, exist_ok=True)
        # Its sockets need a short path.
        self.work = Path(tempfile.mkdtemp(prefix="rgpu-", dir="/tmp"))
        return self

    def __exit__(self, *_):
        pack_logs(self.work, self.out / "logs.tar.gz")
        shutil.rmtree(self.work, ignore_errors=True)

    def carry_out(self, row):
        left = self.deadline - time.monotonic()
        reason = self.machine.reason_to_skip(row)
        if not reason and left < row.seconds:
            reason = f"{left:.0f} s of the time for all rows are left, and it may take {row.seconds} s"
        began = time.monotonic()
        if reason:
            result = Result(row, "skipped", reason)
        else:
            result = self.attempt(row)
        result.took = time.monotonic() - began
        self.results.append(result)
        # Whatever ends the rest, this is known.
        write_table(self)
        print(f"{result.word:7} {row.name:10} {result.seen}  ({result.took:.1f} s)", flush=True)
        return result

    def attempt(self, row, lie=None, memory=None):
        context = Context(self.machine, row, self.work, lie, memory)
        try:
            return Result(row, "passed", context.carry_out())
        except RowFailed as failed:
            return Result(row, "failed", str(failed))
        except RowSkipped as skipped:
            return Result(row, "skipped", str(skipped))
        except Exception as error:  # A fault of the row itself must not hide the other rows.
            (context.logs / "row.txt").write_text(traceback.format_exc())
            return Result(row, "failed", f"the row itself: {type(error).__name__}: {error}")


class Context:
    """What a row may use: programs, with time limits, whose output is kept."""

    numbers = itertools.count(1)

    def __init__(self, machine, row, work, lie=None, memory=None):
        number = next(Context.numbers)
        self.machine, self.row, self.lie = machine, row, lie
        self.python = machine.python
        self.deadline = time.monotonic() + row.seconds
        # That of a row within a row begins with that of the outer one.
        self.mark = f"{os.environ.get(MARK, '')}/{os.getpid()}-{number}"
        self.logs = work / "logs" / (f"{row.name}-{lie}" if lie else row.name)
        self.logs.mkdir(parents=True, exist_ok=True)
        self.work = work / str(number)
        self.work.mkdir()
        self.env = {**os.environ, "PATH": machine.path, MARK: self.mark, "XDG_STATE_HOME": str(self.work)}
        self.env.pop(LIE, None)
        # Settings of the user, and variables of a job around this one.
        for name in [name for name in self.env if name.startswith(("RLAUNCH_", "SLURM_", "PMI"))]:
            del self.env[name]
        self.count = 0
        self.memory = memory

    def carry_out(self):
        try:
            return self.row.function(self)
        finally:
            end_marked(self.mark)

    def once(self, look):
        """What ``look`` returns. No lie changes it, so all trials of a row share one answer."""
        return self.memory.recall(look) if self.memory else look()

    # Programs of rows.

    def program(self, name):
        """Path of a program of ranks: that of the stand-in, if there is one."""
        return self._stand_in(name) or str(HERE / "programs" / name)

    def example(self, name):
        """Path of a program of ``examples/``, packed or in the workspace."""
        packed = HERE / "examples" / name
        return self._stand_in(Path(name).name) or str(packed if packed.exists() else HERE.parent.parent / "examples" / name)

    def _stand_in(self, name):
        path = self.machine.stand_in and self.machine.stand_in / "programs" / name
        return str(path) if path and path.exists() else None

    # Processes.

    def left(self):
        return max(self.deadline - time.monotonic(), 0.5)

    def _files(self, label):
        self.count += 1
        return [self.logs / f"{self.count:02}-{label}.{end}" for end in ("out", "err")]

    def run(self, label, words, seconds=None, env=None):
        """Runs a program to its end. Its whole process group is ended with it."""
        words = [str(word) for word in words]
        with self.spawn(label, words, env) as process:
            process.wait(min(seconds or self.left(), self.left()))
        return process.ran()

    def spawn(self, label, words, env=None):
        return Process([str(word) for word in words], self._files(label), {**self.env, **(env or {})}, self.work)

    def rlaunch(self, label, *words, seconds=None):
        return self.run(label, [self.machine.rlaunch, *words], seconds)

    def lie_words(self):
        """Options by which programs of ranks learn which lie to tell."""
        return ["-x", f"{LIE}={self.lie}"] if self.lie else []

    def smi(self, label, *words):
        """Output of nvidia-smi, the witness. Only what this asks may be a lie, not what rlaunch asks itself."""
        env = {LIE: self.lie} if self.lie else None
        return self.run(label, ["nvidia-smi", *words], 30, env).passed("nvidia-smi").out

    def smi_values(self, label, columns):
        """Values of the first GPU: floats, or None where it has none."""
        out = self.smi(label, f"--query-gpu={','.join(columns)}", "--format=csv,noheader,nounits")
        words = [word.strip() for word in out.splitlines()[0].split(",")]
        if len(words) != len(columns):
            raise RowFailed(f"nvidia-smi: {out.splitlines()[0]}")
        numbers = [float(word) if re.fullmatch(r"[-\d.]+", word) else None for word in words]
        return dict(zip(columns, numbers))


class Process:
    """A program in a session of its own, with its output in files."""

    def __init__(self, words, files, env, directory):
        self.words, (self.out_file, self.err_file) = words, files
        self.began = time.monotonic()
        self.timed_out = False
        self.took = None
        with open(self.out_file, "wb") as out, open(self.err_file, "wb") as err:
            try:
                self.child = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=env, cwd=directory, start_new_session=True
                )
            except OSError as error:
                raise RowFailed(f"{words[0]}: {error}") from error

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def wait(self, seconds):
        try:
            self.child.wait(seconds)
        except subprocess.TimeoutExpired:
            self.timed_out = True

    def wait_for_text(self, text, seconds):
        """Waits until the program has printed this."""
        deadline = time.monotonic() + seconds
        while text not in self.output():
            if self.child.poll() is not None:
                raise RowFailed(f"ended before `{text}`: {self.ran().last()}")
            if time.monotonic() > deadline:
                raise RowFailed(f"no `{text}` within {seconds:.0f} s: {self.ran().last()}")
            time.sleep(0.05)

    def output(self):
        return self.out_file.read_text(errors="replace")

    def end(self):
        """Ends the process and its group: first as a user would, then for sure."""
        if self.child.poll() is None:
            signal_group(self.child.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.child.wait(GRACE)
        signal_group(self.child.pid, signal.SIGKILL)
        self.child.wait()
        self.took = self.took or time.monotonic() - self.began

    def ran(self):
        took = self.took or time.monotonic() - self.began
        code = self.child.poll()
        out, err = self.output(), self.err_file.read_text(errors="replace")
        return Ran(self.words, -1 if code is None else code, out, err, took, self.timed_out)


def signal_group(pid, number):
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def end_marked(mark):
    """Kills what a row has left, ranks in sessions of their own among it."""
    wanted = re.compile(rb"(?:^|\0)" + re.escape(f"{MARK}={mark}".encode()) + rb"[/\0]")
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if wanted.search((entry / "environ").read_bytes()):
                os.kill(int(entry.name), signal.SIGKILL)


def check(holds, seen):
    """Fails the row with what was seen unless the condition holds."""
    if not holds:
        raise RowFailed(seen)


def found(pattern, text, what):
    """The match of a pattern; without one the row fails with the text's most telling line."""
    match = re.search(pattern, text)
    if not match:
        lines = [line for line in text.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith(("error", "warning"))]
        raise RowFailed(f"{what}; seen: {(errors or lines or ['nothing'])[-1].strip()}")
    return match


def pack_logs(work, archive):
    """Packs the logs; of long ones the beginning and the end."""
    logs = work / "logs"
    for file in logs.rglob("*"):
        if file.is_file() and file.stat().st_size > MAX_LOG:
            data = file.read_bytes()
            file.write_bytes(data[: MAX_LOG // 2] + b"\n... shortened ...\n" + data[-MAX_LOG // 2 :])
    with tarfile.open(archive, "w:gz") as tar:
        if logs.exists():
            tar.add(logs, "logs")


def write_table(session):
    """Writes table.md, as tests/README.md can take it."""
    date = time.strftime("%Y-%m-%d", time.gmtime())
    lines = [f"{session.machine.describe()}; {date}", "", "| row | claim | result | seen | s |", "|---|---|---|---|---|"]
    for result in session.results:
        cells = [result.row.name, result.row.claim, result.word, result.seen, f"{result.took:.1f}"]
        lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    (session.out / "table.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit("harness.py: `run` is the program")
