"""Does nothing for a while, where programs/load.py keeps a GPU busy."""

import time

print("busy", flush=True)
time.sleep(60)
