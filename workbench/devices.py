"""Where computations run."""

from __future__ import annotations

import torch

from workbench.errors import WorkbenchError


def resolve_device(device: str | torch.device) -> torch.device:
    """ "auto" is a CUDA device where there is one, else the CPU. Raises ``WorkbenchError`` for a device that cannot compute.

    float64 is needed, which MPS lacks.
    """
    if str(device) == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
        torch.zeros(1, dtype=torch.float64, device=place).item()
    except (RuntimeError, TypeError, AssertionError, NotImplementedError) as error:
        count = torch.cuda.device_count()
        usable = ["auto", "cpu", *(f"cuda:{number}" for number in range(count))]
        raise WorkbenchError(
            f"The device {str(device)!r} cannot be used ({str(error).strip().splitlines()[0][:120]})",
            expected=f"one of {', '.join(usable)}",
        ) from error
    return place
