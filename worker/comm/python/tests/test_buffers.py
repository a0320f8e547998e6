"""Objects whose memory calls can use, and the errors for others."""

import array
import ctypes
import unittest

import rlaunch

try:
    import numpy
except ImportError:
    numpy = None
try:
    import torch
except ImportError:
    torch = None

comm = rlaunch.init()

BY_CTYPES = rlaunch._impl.__name__ == "rlaunch._fallback"
needs_dlpack = unittest.skipIf(BY_CTYPES, "BY CTYPES")


def moves(x, out):
    comm.all_gather(x, out=out)


class Interface:
    """Memory that only ``__array_interface__`` describes."""

    def __init__(self, memory, typestr, shape, strides=None, read_only=False, dtype=None):
        self.memory = memory
        self.dtype = dtype
        self.__array_interface__ = {
            "version": 3,
            "data": (ctypes.addressof(memory), read_only),
            "typestr": typestr,
            "shape": shape,
            "strides": strides,
        }


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


class Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class Lent:
    """Memory that only ``__dlpack__`` describes."""

    def __init__(self, memory, code, bits, shape, strides=None, device=1, offset=0, flags=None):
        self.memory = memory
        dimensions = ctypes.c_int64 * len(shape)
        self.tensor = Tensor(
            data=ctypes.addressof(memory) - offset,
            device_type=device,
            ndim=len(shape),
            code=code,
            bits=bits,
            lanes=1,
            shape=dimensions(*shape),
            byte_offset=offset,
        )
        if strides is not None:
            self.tensor.strides = dimensions(*strides)
        self.flags = flags
        self.versioned = Versioned(major=1, flags=flags or 0, tensor=self.tensor)

    def __dlpack_device__(self):
        return (self.tensor.device_type, 0)

    def __dlpack__(self, **arguments):
        if self.flags is None:
            if arguments:
                raise TypeError("__dlpack__() takes no arguments")
            return new_capsule(ctypes.addressof(self.tensor), b"dltensor", None)
        return new_capsule(ctypes.addressof(self.versioned), b"dltensor_versioned", None)


class Buffers(unittest.TestCase):
    def wrong(self, sentence, call, *arguments, error=TypeError, **named):
        with self.assertRaises(error) as raised:
            call(*arguments, **named)
        self.assertEqual(str(raised.exception), sentence)

    def test_every_type_of_the_buffer_protocol_moves(self):
        for code in "bBhHiIlLqQfd":
            x = array.array(code, range(6))
            out = array.array(code, bytes(6 * x.itemsize))
            moves(x, out)
            self.assertEqual(x, out)

    def test_every_type_that_can_be_reduced_is(self):
        for code in "iBlLqQfd":
            x = array.array(code, range(6))
            out = array.array(code, bytes(6 * x.itemsize))
            comm.all_reduce(x, out=out)
            self.assertEqual(x, out)

    def test_the_others_cannot_be_reduced(self):
        self.wrong(
            "all_reduce: int16 cannot be reduced, only float16, bfloat16, float32, float64, int32, "
            "int64, uint8, uint64",
            comm.all_reduce,
            array.array("h", [1, 2]),
        )

    def test_half_precision_and_the_arrays_of_ctypes(self):
        halves = (ctypes.c_uint16 * 2)(0x3C00, 0x4000)
        comm.all_reduce(Interface(halves, "<f2", (2,)), "min")
        self.assertEqual(list(halves), [0x3C00, 0x4000])
        x = (ctypes.c_float * 3)(1, 2, 3)
        comm.all_reduce(x, "max")
        self.assertEqual(list(x), [1, 2, 3])

    def test_bytes_can_be_sent_but_not_written(self):
        out = bytearray(3)
        moves(b"abc", out)
        self.assertEqual(out, b"abc")
        self.wrong("broadcast: bytes is read-only", comm.broadcast, b"abc")
        view = memoryview(bytearray(3)).toreadonly()
        self.wrong("recv: memoryview is read-only", comm.recv, view)

    def test_nothing_that_is_not_contiguous(self):
        view = memoryview(array.array("f", range(24)))[::2]
        self.wrong(
            "all_reduce: float32 array of shape (12,) is not contiguous", comm.all_reduce, view
        )
        square = memoryview(bytearray(48)).cast("f", (3, 4))
        comm.all_reduce(square)
        self.assertEqual(square.tolist(), [[0] * 4] * 3)

    def test_nothing_that_is_not_aligned(self):
        memory = bytearray(17)
        view = memoryview(memory)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        odd = view[1:] if address % 4 == 0 else view[:16]
        self.wrong("all_reduce: float32 array is not aligned to 4", comm.all_reduce, odd.cast("f"))

    def test_lists_and_numbers_get_a_hint(self):
        hint = (
            "does not expose its memory; pass array.array('d', {}), a numpy array or a torch tensor"
        )
        self.wrong("all_reduce: list " + hint.format("x"), comm.all_reduce, [1.0, 2.0])
        self.wrong("all_reduce: tuple " + hint.format("x"), comm.all_reduce, (1, 2))
        self.wrong("send: float " + hint.format("[x]"), comm.send, 1.5, 0)
        self.wrong(
            "send: str has no buffer, no __dlpack__ and no __array_interface__", comm.send, "x", 0
        )

    def test_x_and_out_are_of_one_type_and_apart(self):
        x = array.array("f", [1])
        self.wrong(
            "all_reduce: x is float32, and out is float64",
            comm.all_reduce,
            x,
            out=array.array("d", [1]),
        )
        self.wrong(
            "all_reduce: x and out overlap; without out, the call works in place",
            comm.all_reduce,
            x,
            out=x,
            error=ValueError,
        )

    def test_nothing_is_resized_while_it_is_lent_and_anything_afterwards(self):
        x = array.array("f", [1])
        comm.all_reduce(x)
        x.append(2)
        self.assertEqual(len(x), 2)

    def test_array_interface(self):
        memory = (ctypes.c_double * 4)(1, 2, 3, 4)
        out = array.array("d", bytes(32))
        moves(Interface(memory, "<f8", (2, 2)), out)
        self.assertEqual(out.tolist(), [1, 2, 3, 4])
        comm.all_reduce(Interface(memory, "<f8", (2, 2), (16, 8)))
        columns = Interface(memory, "<f8", (2, 2), (8, 16))
        self.wrong(
            "all_reduce: float64 array of shape (2, 2) is not contiguous", comm.all_reduce, columns
        )
        swapped = Interface(memory, ">f8", (4,))
        self.wrong(
            "all_reduce: Interface has non-native byte order", comm.all_reduce, swapped
        )
        read_only = Interface(memory, "<f8", (4,), read_only=True)
        self.wrong("all_reduce: Interface is read-only", comm.all_reduce, read_only)

    def test_bfloat16_by_its_name(self):
        # The bfloat16 values 1.0 and 2.0.
        memory = (ctypes.c_uint16 * 2)(0x3F80, 0x4000)
        comm.all_reduce(Interface(memory, "<V2", (2,), dtype="bfloat16"), "prod")
        self.assertEqual(list(memory), [0x3F80, 0x4000])
        with self.assertRaisesRegex(TypeError, "<V2 cannot be reduced"):
            comm.all_reduce(Interface(memory, "<V2", (2,)))

    @needs_dlpack
    def test_dlpack_with_and_without_versions(self):
        for flags in (None, 0):
            memory = (ctypes.c_uint16 * 4)(0x3F80, 0x4000, 0x4040, 0x4080)
            x = Lent(memory, 4, 16, (2, 2), (2, 1), offset=64, flags=flags)
            comm.all_reduce(x)
            out = (ctypes.c_uint16 * 4)()
            moves(x, Lent(out, 4, 16, (4,), flags=flags))
            self.assertEqual(list(out), list(memory))
            columns = Lent(memory, 4, 16, (2, 2), (1, 2), flags=flags)
            self.wrong(
                "all_reduce: bfloat16 array of shape (2, 2) is not contiguous",
                comm.all_reduce,
                columns,
            )

    @needs_dlpack
    def test_types_of_dlpack_that_only_move(self):
        memory = (ctypes.c_uint8 * 2)(1, 2)
        for code, bits, name in ((10, 8, "type 10 of DLPack"), (6, 8, "bool"), (0, 16, "int16")):
            shape = (16 // bits,)
            out = (ctypes.c_uint8 * 2)()
            moves(Lent(memory, code, bits, shape), Lent(out, code, bits, shape))
            self.assertEqual(list(out), [1, 2])
            with self.assertRaisesRegex(TypeError, f"{name} cannot be reduced"):
                comm.all_reduce(Lent(memory, code, bits, shape))
        with self.assertRaisesRegex(TypeError, "elements that are not whole bytes"):
            comm.broadcast(Lent(memory, 0, 4, (4,)))

    @needs_dlpack
    def test_dlpack_of_other_devices_and_what_is_read_only(self):
        memory = (ctypes.c_float * 4)()
        self.wrong(
            "all_reduce: Lent is in the memory of a device; copy it to the host first",
            comm.all_reduce,
            Lent(memory, 2, 32, (4,), device=2),
        )
        for flags in (1, 2):
            x = Lent(memory, 2, 32, (4,), flags=flags)
            self.wrong("all_reduce: Lent is read-only", comm.all_reduce, x)

    @unittest.skipIf(numpy is None, "NUMPY IS NOT INSTALLED")
    def test_numpy(self):
        for dtype in ("f2", "f4", "f8", "i4", "i8", "u1", "u8"):
            x = numpy.arange(12, dtype=dtype).reshape(3, 4)
            out = numpy.zeros_like(x)
            comm.all_reduce(x, out=out)
            self.assertTrue((x == out).all())
        with self.assertRaisesRegex(TypeError, r"shape \(4, 3\) is not contiguous"):
            comm.all_reduce(numpy.zeros((3, 4), dtype="f4").T)

    @unittest.skipIf(not BY_CTYPES, "BY THE EXTENSION")
    def test_dlpack_needs_the_extension(self):
        hint = "Lent has no buffer and no __array_interface__, and DLPack needs the extension"
        x = Lent((ctypes.c_float * 4)(), 2, 32, (4,))
        self.wrong("send: " + hint, comm.send, x, 0)

    @needs_dlpack
    @unittest.skipIf(torch is None, "TORCH IS NOT INSTALLED")
    def test_torch(self):
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.int64):
            x = torch.arange(12).to(dtype).reshape(3, 4)
            out = torch.zeros_like(x)
            comm.all_reduce(x, out=out)
            self.assertTrue(torch.equal(x, out))


if __name__ == "__main__":
    unittest.main()
