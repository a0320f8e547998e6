"""Waits in a function of the C library."""

import ctypes

print("waits", flush=True)
ctypes.CDLL(None).pause()
