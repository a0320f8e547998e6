# Runs mpi4py's own tests, and records each of them in a file.
#
#   suite.py TESTS RECORD LEFT_OUT SHARED
#
# TESTS is the directory of the tests. The file of a rank is RECORD with its number appended, and has lines
# `begin TEST`, `OUTCOME TEST` and, at the end, `done`. LEFT_OUT is a file with a pattern of names in each
# line; tests that match one are left out. SHARED is a directory that hosts share, for files of the tests.
import os
import sys
import tempfile
import unittest

tests, record, left_out, tempfile.tempdir = sys.argv[1:]
# Ranks that share CPUs wait for each other: without these a rank that waits keeps its CPU from the one
# that it waits for until the kernel takes it away, and the tests take twice as long. Open MPI, MPICH
# and Intel MPI read one each.
os.environ["OMPI_MCA_mpi_yield_when_idle"] = "1"
os.environ["MPIR_CVAR_POLLS_BEFORE_YIELD"] = "1"
os.environ["I_MPI_THREAD_YIELD"] = "2"
names = "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"
rank = next(os.environ[name] for name in names if name in os.environ)
lines = open(record + rank, "w", buffering=1)


class Recorder(unittest.TextTestResult):
    def startTest(self, test):
        super().startTest(test)
        self.outcome = "passed"
        print("begin", test.id(), file=lines)

    def stopTest(self, test):
        super().stopTest(test)
        print(self.outcome, test.id(), file=lines)

    def failed(self, test, outcome):
        # What fails before any test of a class is not a test that begins.
        if isinstance(test, unittest.TestCase):
            self.outcome = outcome
        else:
            print(outcome, test.id(), file=lines)

    def addError(self, test, error):
        super().addError(test, error)
        self.failed(test, "raised")

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.failed(test, "failed")

    def addSubTest(self, test, part, error):
        super().addSubTest(test, part, error)
        if error is not None:
            self.failed(test, "failed")

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self.failed(test, "failed")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.failed(test, "skipped")

    def stopTestRun(self):
        super().stopTestRun()
        print("done", file=lines)


sys.path.insert(0, tests)
sys.dont_write_bytecode = True
import main  # noqa: E402

runner = unittest.TextTestRunner(verbosity=0, resultclass=Recorder)
sys.argv[1:] = ["--xfile", left_out]
try:
    main.main(module=None, testRunner=runner)
except SystemExit:
    # Failures are in the record. Another status would end the ranks that are not done yet.
    pass
