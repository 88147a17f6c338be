"""Arrays from whatever a trainer holds its columns in. numpy only."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def as_array(values: Any, dtype: npt.DTypeLike | None = None) -> npt.NDArray[Any]:
    """Return `np.asarray`, also of tensors that numpy refuses: in bfloat16, with a gradient, on a device.

    Raises:
        Exception: Whatever `np.asarray` raises for values that are no tensor.
    """
    try:
        return np.asarray(values, dtype=dtype)
    except (TypeError, RuntimeError):
        if not hasattr(values, "tolist"):
            raise
        return np.asarray(values.tolist(), dtype=dtype)
