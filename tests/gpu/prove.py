"""Shows that rows turn red: beside stand-ins each row must pass, and fail with every lie that it knows."""

import concurrent.futures
import os
import shutil
import tempfile
import threading
from pathlib import Path

from harness import HERE, Machine, Session


class Memory:
    """What rlaunch has said to the first trial of a row, for the others."""

    def __init__(self):
        self.lock, self.answers = threading.Lock(), []

    def recall(self, look):
        with self.lock:
            if not self.answers:
                self.answers.append(look())
            return self.answers[0]


def prove_rows(args):
    machine = Machine.look(args, HERE / "stand_in")
    rows = [row for row in args.rows if row.lies]
    if "rlaunch" in machine.lacks:
        print(machine.lacks["rlaunch"])
        return 2
    out = Path(tempfile.mkdtemp(prefix="rgpu-prove-"))
    try:
        with Session(machine, out, args.budget) as session:
            # A lie is told to the row alone, so that all can be told at once.
            memories = {row.name: Memory() for row in rows}
            trials = [(row, lie) for row in rows for lie in (None, *row.lies)]
            with concurrent.futures.ThreadPoolExecutor(2 * (os.cpu_count() or 1)) as pool:
                results = list(pool.map(lambda trial: session.attempt(*trial, memories[trial[0].name]), trials))
    finally:
        shutil.rmtree(out, ignore_errors=True)
    wrong = 0
    for (row, lie), result in zip(trials, results):
        is_right = result.word == ("failed" if lie else "passed") and "the row itself" not in result.seen
        wrong += not is_right
        verdict = "" if is_right else "WRONG: "
        colour = {"passed": "green", "failed": "red"}.get(result.word, result.word)
        print(f"{verdict}{row.name:10} {lie or 'truth':12} {colour}: {result.seen}")
    print(f"{len(rows)} rows, {sum(len(row.lies) for row in rows)} lies: {wrong or 'none'} wrong")
    return 1 if wrong else 0
