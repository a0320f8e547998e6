"""Every call, in a job of one rank."""

import array
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import unittest

import rlaunch

comm = rlaunch.init()

# By way of ctypes, signals do not interrupt calls.
needs_signals = unittest.skipIf(rlaunch._impl.__name__ == "rlaunch._fallback", "BY CTYPES")


def numbers(*values):
    return array.array("f", values)


class Alone(unittest.TestCase):
    def test_a_world_of_one(self):
        self.assertIs(rlaunch.init(), comm)
        self.assertEqual((comm.rank, comm.size, comm.local_rank, comm.local_size), (0, 1, 0, 1))
        self.assertEqual(repr(comm), "<rlaunch.Communicator: rank 0 of 1>")
        comm.barrier()

    def test_messages_to_itself(self):
        x, out = numbers(1, 2, 3), numbers(0, 0, 0, 0)
        comm.send(x, 0, tag=7)
        received = comm.recv(out, 0, tag=7)
        self.assertEqual((received.source, received.length), (0, 3))
        self.assertEqual(out, numbers(1, 2, 3, 0))
        self.assertEqual(repr(received), "Received(source=0, length=3)")

    def test_a_message_of_whoever_sends_one(self):
        sender = threading.Thread(target=comm.send, args=(b"hello", 0, 1))
        sender.start()
        out = bytearray(5)
        received = comm.recv(out, source=None, tag=1)
        sender.join()
        self.assertEqual((received.source, received.length, bytes(out)), (0, 5, b"hello"))

    def test_sendrecv(self):
        for source in (0, None):
            out = array.array("h", bytes(6))
            received = comm.sendrecv(array.array("h", [4, 5, 6]), 0, out, source, tag=2)
            self.assertEqual((received.source, received.length), (0, 3))
            self.assertEqual(out.tolist(), [4, 5, 6])

    def test_every_collective_in_place(self):
        calls = [
            comm.broadcast,
            comm.all_reduce,
            comm.reduce,
            comm.gather,
            comm.scatter,
            comm.all_gather,
            comm.reduce_scatter,
            comm.all_to_all,
        ]
        for call in calls:
            for count in (3, 100_000):
                x = numbers(*range(count))
                self.assertIsNone(call(x))
                self.assertEqual(x, numbers(*range(count)), call)

    def test_every_collective_to_another_buffer(self):
        calls = [
            comm.all_reduce,
            comm.reduce,
            comm.gather,
            comm.scatter,
            comm.all_gather,
            comm.reduce_scatter,
            comm.all_to_all,
        ]
        for call in calls:
            for count in (3, 100_000):
                out = numbers(*[0] * count)
                call(numbers(*range(count)), out=out)
                self.assertEqual(out, numbers(*range(count)), call)

    def test_every_operation_by_its_name(self):
        for op in ("sum", "prod", "min", "max"):
            comm.all_reduce(numbers(1), op)
        with self.assertRaises(ValueError) as raised:
            comm.all_reduce(numbers(1), op="avg")
        self.assertIn("unknown operation avg, expected one of sum, prod, min, max", str(raised.exception))

    def test_what_does_not_fit_is_said(self):
        for call, sentence in [
            (
                lambda: comm.send(numbers(1), 3),
                "send to rank 3 (tag 0): there is no rank 3 in a communicator of 1",
            ),
            (lambda: comm.broadcast(numbers(1), 1), "broadcast: there is no rank 1 in a communicator of 1"),
            (
                lambda: comm.all_reduce(numbers(1, 2), out=numbers(1)),
                "all_reduce: output has 1 elements but should have 2",
            ),
        ]:
            with self.assertRaises(rlaunch.Error) as raised:
                call()
            self.assertEqual(str(raised.exception), sentence)
            self.assertNotIsInstance(raised.exception, rlaunch.PeerLost)
        self.assertTrue(issubclass(rlaunch.Error, RuntimeError))
        self.assertTrue(issubclass(rlaunch.PeerLost, rlaunch.Error))
        self.assertTrue(issubclass(rlaunch.TimedOut, rlaunch.Error))

    def test_messages_that_are_too_long_or_no_whole_number(self):
        comm.send(numbers(1, 2), 0, tag=3)
        with self.assertRaisesRegex(rlaunch.Error, "8 bytes from rank 0 does not fit into a buffer of 4"):
            comm.recv(numbers(0), 0, tag=3)
        comm.send(b"abc", 0, tag=4)
        with self.assertRaisesRegex(rlaunch.Error, "3 bytes, which is not a whole number of float32"):
            comm.recv(numbers(0), 0, tag=4)
        comm.send(b"abc", 0, tag=5)
        with self.assertRaisesRegex(rlaunch.Error, "3 bytes, which is not a whole number of int16"):
            comm.recv(array.array("h", [0, 0]), 0, tag=5)

    def test_requests_go_on_until_they_are_awaited(self):
        out = numbers(0, 0, 0)
        receives = comm.irecv(out, tag=20)
        self.assertFalse(receives.test())
        sends = comm.isend(numbers(1, 2), 0, tag=20)
        self.assertIsNone(sends.wait())
        self.assertTrue(receives.test())
        for _ in range(2):
            received = receives.wait()
            self.assertEqual((received.source, received.length), (0, 2))
        self.assertEqual(out, numbers(1, 2, 0))

    def test_every_collective_as_a_request(self):
        comm.ibarrier().wait()
        calls = [
            comm.ibroadcast,
            comm.iall_reduce,
            comm.ireduce,
            comm.igather,
            comm.iscatter,
            comm.iall_gather,
            comm.ireduce_scatter,
            comm.iall_to_all,
        ]
        for call in calls:
            x, out = numbers(*range(5)), numbers(*[0] * 5)
            self.assertIsNone(call(x).wait())
            self.assertEqual(x, numbers(*range(5)), call)
            if call != comm.ibroadcast:
                call(x, out=out).wait()
                self.assertEqual(out, x, call)

    def test_a_request_holds_its_memory_and_then_lets_it_go(self):
        out = bytearray(8)
        receives = comm.irecv(out, 0, tag=21)
        with self.assertRaises(BufferError):
            out.append(0)
        comm.send(b"12345678", 0, tag=21)
        receives.wait()
        out.append(0)
        self.assertEqual(out, b"12345678\0")

    def test_registered_memory_stays_until_it_is_released(self):
        x = bytearray(1 << 16)
        with comm.register(x) as registration:
            with self.assertRaises(BufferError):
                x.append(0)
            comm.broadcast(x)
            comm.sendrecv(b"a" * len(x), 0, x, 0)
        self.assertEqual(x, b"a" * len(x))
        x.append(0)
        registration.release()
        dropped = comm.register(x)
        del dropped
        gc.collect()
        x.append(0)
        with self.assertRaises(TypeError):
            comm.register(5)

    def test_a_request_that_is_dropped_goes_on(self):
        x, out = bytearray(1 << 20), bytearray(1 << 20)
        x[-1] = 7
        comm.isend(x, 0, tag=22)
        comm.recv(out, 0, tag=22)
        self.assertEqual(out[-1], 7)
        # Starting another operation drops operations that have completed.
        comm.ibarrier().wait()
        x.append(0)

    def test_a_request_that_fails_says_so_whenever_it_is_awaited(self):
        receives = comm.irecv(bytearray(1), 0, tag=23)
        comm.send(b"123", 0, tag=23)
        for _ in range(2):
            with self.assertRaisesRegex(rlaunch.Error, "3 bytes from rank 0 does not fit into a buffer of 1"):
                receives.wait()
        with self.assertRaisesRegex(rlaunch.Error, "there is no rank 1 in a communicator of 1"):
            comm.isend(b"", 1)

    def test_abort_says_why(self):
        # Without rlaunch nothing terminates the process.
        with self.assertRaisesRegex(rlaunch.Error, "^abort: no data$"):
            comm.abort("no data")

    def test_numbers_that_are_none_are_refused(self):
        for call in (
            lambda: comm.send(b"", -1),
            lambda: comm.send(b"", 0, tag=-1),
            lambda: comm.send(b"", 0, tag=1 << 32),
            lambda: comm.recv(bytearray(1), -1),
            lambda: comm.broadcast(b"", root=-1),
        ):
            with self.assertRaises((OverflowError, TypeError)):
                call()

    def test_split(self):
        part = comm.split(3, key=-1)
        self.assertEqual((part.rank, part.size), (0, 1))
        part.all_reduce(numbers(1))
        self.assertEqual(comm.split(color=0).split(1).size, 1)

    def test_other_threads_run_while_one_waits(self):
        out = bytearray(1)
        waiter = threading.Thread(target=comm.recv, args=(out, 0, 6))
        waiter.start()
        comm.send(b"x", 0, tag=6)
        waiter.join()
        self.assertEqual(bytes(out), b"x")

    def test_memory_that_is_lent_is_not_resized(self):
        out = bytearray(8)
        waiter = threading.Thread(target=comm.recv, args=(out, 0, 8))
        waiter.start()
        resized = 0
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                out.append(0)
                out.pop()
                resized += 1
            except BufferError:
                break
        else:
            self.fail(f"it was resized {resized} times")
        comm.send(b"12345678", 0, tag=8)
        waiter.join()
        # The receive may lock the buffer between append and pop, so it may be one byte longer.
        self.assertEqual(bytes(out[:8]), b"12345678")

    def test_a_forked_process_is_no_rank(self):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                comm.barrier()
            except rlaunch.Error as error:
                os.write(writer, str(error).encode())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as said:
            self.assertEqual(
                said.read(), "the communicator belongs to the process that forked this one"
            )
        os.waitpid(child, 0)
        comm.barrier()

    @needs_signals
    def test_a_wait_ends_by_ctrl_c(self):
        program = (
            "import rlaunch, signal, sys\n"
            # If this runs in the background, SIGINT is ignored, and Python does not change that.
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            "comm = rlaunch.init()\n"
            "try:\n"
            "    print('ready', flush=True)\n"
            "    comm.recv(bytearray(1), 0)\n"
            "except KeyboardInterrupt:\n"
            "    comm.barrier()\n"
            "    sys.exit(7)\n"
        )
        child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
        self.addCleanup(child.kill)
        child.stdout.readline()
        child.send_signal(signal.SIGINT)
        with child.stdout:
            self.assertEqual(child.wait(60), 7)

    @needs_signals
    def test_a_wait_ends_after_the_timeout_of_python_signals_too(self):
        class Alarm(Exception):
            pass

        def ring(*_):
            raise Alarm

        before = signal.signal(signal.SIGALRM, ring)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with self.assertRaises(Alarm):
                comm.recv(bytearray(1), 0, tag=9)
        finally:
            signal.signal(signal.SIGALRM, before)

    def test_another_launcher_is_told(self):
        environment = {**os.environ, "WORLD_SIZE": "2"}
        program = "import rlaunch\ntry: rlaunch.init()\nexcept rlaunch.Error as e: print(e)"
        said = subprocess.run(
            [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True
        )
        self.assertEqual(
            said.stdout.strip(),
            "WORLD_SIZE is 2, but this process was not started by rlaunch; "
            "start it with: rlaunch -H HOST,... PROGRAM",
        )


if __name__ == "__main__":
    unittest.main()
