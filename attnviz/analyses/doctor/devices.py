"""Print what torch finds on this machine, one JSON object a line.

`doctor` runs this file as a script: if torch, transformers or a driver crashes or hangs, that is
seen from outside, and no memory of a GPU is taken from the caller.
"""

from __future__ import annotations

import json
from typing import Any


def main() -> None:
    """Print what torch finds, then whether transformers can be imported."""
    import torch

    found = {
        "threads": torch.get_num_threads(),
        "build": torch.version.cuda or torch.version.hip,
        "cuda": [_cuda(number) for number in range(torch.cuda.device_count())],
        "mps": torch.backends.mps.is_available(),
    }
    print(json.dumps(found), flush=True)
    import transformers  # noqa: F401

    print("{}")


def _cuda(number: int) -> dict[str, Any]:
    """Return what one GPU is and can do, or why it cannot be used."""
    import torch

    try:
        torch.ones(8, 8, dtype=torch.float64, device=f"cuda:{number}").sum().item()
        properties = torch.cuda.get_device_properties(number)
        return {
            "name": properties.name,
            "memory": properties.total_memory,
            "bfloat16": torch.cuda.is_bf16_supported(),
        }
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    main()
