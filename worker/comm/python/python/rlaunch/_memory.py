"""Access to the memory of Python objects without a copy, for calls by ctypes: by the buffer
protocol or ``__array_interface__``."""

import ctypes
from ctypes import POINTER, byref, c_char_p, c_int, c_ssize_t, c_void_p

# Element types of rlaunch.h.
U8 = 6
TYPES = {
    "float16": 0,
    "bfloat16": 1,
    "float32": 2,
    "float64": 3,
    "int32": 4,
    "int64": 5,
    "uint8": U8,
    "uint64": 7,
}


class _View(ctypes.Structure):
    """A Py_buffer, which keeps an object's memory in place until it is deleted."""

    _fields_ = [
        ("buf", c_void_p),
        ("obj", c_void_p),
        ("len", c_ssize_t),
        ("itemsize", c_ssize_t),
        ("readonly", c_int),
        ("ndim", c_int),
        ("format", c_char_p),
        ("shape", POINTER(c_ssize_t)),
        ("strides", POINTER(c_ssize_t)),
        ("suboffsets", POINTER(c_ssize_t)),
        ("internal", c_void_p),
    ]

    _FULL_READ_ONLY = 0x11C

    def __init__(self, array):
        super().__init__()
        _get_buffer(array, byref(self), self._FULL_READ_ONLY)

    def __del__(self):
        if self.obj:
            _release_buffer(byref(self))


_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = [ctypes.py_object, POINTER(_View), c_int]
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes = [POINTER(_View)]
_release_buffer.restype = None

_KINDS = {"i": "int", "u": "uint", "f": "float", "c": "complex"}
_LETTERS = {
    **dict.fromkeys("bhilqn", "i"),
    **dict.fromkeys("BHILQNc", "u"),
    **dict.fromkeys("efdg", "f"),
    **dict.fromkeys(("Zf", "Zd", "Zg"), "c"),
    "?": "b",
}


def _type_name(order, kind, size, otherwise):
    """Returns numpy's name of a type; None if it is not in native byte order."""
    non_native = ">!" if memoryview(b"\1\0").cast("H")[0] == 1 else "<"
    if order in non_native and size > 1:
        return None
    if kind == "b":
        return "bool"
    return _KINDS[kind] + str(8 * size) if kind in _KINDS else otherwise


def _is_contiguous(shape, strides, size):
    if strides is None or 0 in shape:
        return True
    for length, stride in zip(reversed(shape), reversed(strides)):
        if length != 1 and stride != size:
            return False
        size *= length
    return True


class Buffer:
    """Contiguous memory of an object, which stays in place as long as the Buffer exists.

    ``call`` is the name of the call, which begins error messages; ``writes`` tells whether the call
    writes to the memory."""

    def __init__(self, array, call, writes):
        kind = type(array).__name__
        self.exporter = None
        if not self._by_buffer(array) and not self._by_interface(array):
            raise TypeError(f"{call}: {_no_memory(array, kind)}")
        if self.name is None:
            raise TypeError(f"{call}: {kind} has non-native byte order")
        if not _is_contiguous(self.shape, self.strides, self.size):
            shape = tuple(self.shape)
            raise TypeError(f"{call}: {self.name} array of shape {shape} is not contiguous")
        if writes and self.is_read_only:
            raise TypeError(f"{call}: {kind} is read-only")
        self.elements = 1
        for length in self.shape:
            self.elements *= length
        self.is_element = self.name in TYPES
        if self.is_element and self.elements and self.address % self.size:
            raise TypeError(f"{call}: {self.name} array is not aligned to {self.size}")

    def _by_buffer(self, array):
        try:
            view = _View(array)
        except (TypeError, BufferError, ValueError):
            return False
        self.exporter, self.address, self.is_read_only = view, view.buf or 0, bool(view.readonly)
        self.size = max(view.itemsize, 1)
        dimensions = range(view.ndim)
        self.shape = [view.shape[i] for i in dimensions] if view.shape else [view.len // self.size]
        self.strides = [view.strides[i] for i in dimensions] if view.strides else None
        if view.suboffsets:
            self.strides = [0] * view.ndim
        letters = (view.format or b"B").decode()
        order = letters[0] if letters[:1] in tuple("@=<>!") else "@"
        kind = _LETTERS.get(letters.lstrip("@=<>!"))
        self.name = _type_name(order, kind, self.size, letters)
        return True

    def _by_interface(self, array):
        interface = getattr(array, "__array_interface__", None)
        if not isinstance(interface, dict) or not isinstance(interface.get("data"), tuple):
            return False
        self.exporter = array
        self.address, self.is_read_only = interface["data"]
        typestr = interface["typestr"]
        self.size = int(typestr[2:])
        self.shape, self.strides = interface["shape"], interface.get("strides")
        self.name = _type_name(typestr[0], typestr[1], self.size, typestr)
        # The typestr has no letter for bfloat16, so it is recognised by the name of the dtype.
        if self.name == typestr and self.size == 2:
            if str(getattr(array, "dtype", None)) == "bfloat16":
                self.name = "bfloat16"
        return True

    @property
    def type(self):
        """Number of the type that the elements are transferred as, and their number."""
        if self.is_element:
            return TYPES[self.name], self.elements
        return U8, self.bytes

    @property
    def bytes(self):
        return self.elements * self.size


def _no_memory(array, kind):
    if isinstance(array, (list, tuple, int, float)):
        numbers = "x" if isinstance(array, (list, tuple)) else "[x]"
        return (
            f"{kind} does not expose its memory; pass array.array('d', {numbers}), a numpy array or "
            "a torch tensor"
        )
    if hasattr(array, "__dlpack__"):
        return f"{kind} has no buffer and no __array_interface__, and DLPack needs the extension"
    return f"{kind} has no buffer, no __dlpack__ and no __array_interface__"


def pair(call, x, out):
    """Returns the buffers of x (input) and out (output), either of which may be None. Fails if they
    overlap or differ in type."""
    x = None if x is None else Buffer(x, call, False)
    out = None if out is None else Buffer(out, call, True)
    if x and out:
        if x.name != out.name:
            raise TypeError(f"{call}: x is {x.name}, and out is {out.name}")
        if x.address < out.address + out.bytes and out.address < x.address + x.bytes:
            hint = "without out, the call works in place"
            raise ValueError(f"{call}: x and out overlap; {hint}")
    return x, out
