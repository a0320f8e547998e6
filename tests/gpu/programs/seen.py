"""Prints as JSON which GPU a rank sees, and the variables that decide it."""

import json
import os

import torch

properties = torch.cuda.get_device_properties(0)
print(
    json.dumps(
        {
            "rank": int(os.environ["RANK"]),
            "local_rank": int(os.environ["LOCAL_RANK"]),
            "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
            "order": os.environ.get("CUDA_DEVICE_ORDER"),
            "count": torch.cuda.device_count(),
            "uuid": f"GPU-{properties.uuid}",
        }
    ),
    flush=True,
)
