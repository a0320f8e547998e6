"""Prints what programs/seen.py prints on a machine with one H200. GPU_LIE names what it lies about."""

import json
import os
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import card  # noqa: E402

lie = os.environ.get("GPU_LIE")
# rlaunch sees no GPU here, and so masks none.
masked = "--masked" in sys.argv
print(
    json.dumps(
        {
            "rank": int(os.environ["RANK"]),
            "local_rank": int(os.environ["LOCAL_RANK"]),
            "visible": {True: "0", False: None}[masked and lie != "unmasked"],
            "order": "PCI_BUS_ID" if masked else None,
            "count": 2 if lie == "second" else 1,
            "uuid": card.values(lie)["uuid"],
        }
    )
)
