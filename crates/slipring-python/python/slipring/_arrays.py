"""Tensors as arrays of NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._slipring import Tensor


# The types that NumPy lacks and the package ml_dtypes has, and those that show their bits.
_LACKING = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}


def array(tensor: Tensor, dtype: Any = None, copy: bool | None = None) -> Any:
    """Returns an array of a tensor's memory. NumPy has no bfloat16 and no fp8: those take ml_dtypes."""
    import numpy as np

    if tensor.dtype == "bytes":
        strings = np.array([*tensor.strings(), None], dtype=object)[:-1].reshape(tensor.shape)
        return strings if dtype is None else strings.astype(dtype)
    if (bits := _LACKING.get(tensor.dtype)) is not None:
        try:
            import ml_dtypes
        except ImportError:
            text = f"NumPy has no {tensor.dtype}: install ml_dtypes, use torch.from_dlpack, or view({bits!r})"
            raise TypeError(text) from None
        plain = np.asarray(memoryview(tensor.view(bits))).view(getattr(ml_dtypes, tensor.dtype))
    else:
        plain = np.asarray(memoryview(tensor))
    if copy is None:
        return plain if dtype is None else plain.astype(dtype, copy=False)
    if not copy and dtype is not None and plain.dtype != np.dtype(dtype):
        raise ValueError(f"an array of {plain.dtype} as {dtype} is a copy, and copy=False")
    return plain.astype(plain.dtype if dtype is None else dtype, copy=copy)
