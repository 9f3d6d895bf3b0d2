"""A batch of two rows of three elements of each of the 14 datatypes, extremes among them."""

import ml_dtypes
import numpy as np


def limits(dtype):
    info = np.iinfo(dtype)
    return np.array([[info.min, 1, info.max], [0, 2, 3]], dtype=dtype)


def fractions(dtype):
    return np.array([[0.5, -2.0, 65504.0], [0.0, 0.25, -0.0]], dtype=dtype)


SAMPLES = {
    "BOOL": np.array([[True, False, True], [False, False, True]]),
    "UINT8": limits(np.uint8),
    "UINT16": limits(np.uint16),
    "UINT32": limits(np.uint32),
    "UINT64": limits(np.uint64),
    "INT8": limits(np.int8),
    "INT16": limits(np.int16),
    "INT32": limits(np.int32),
    "INT64": limits(np.int64),
    "FP16": fractions(np.float16),
    "FP32": fractions(np.float32),
    "FP64": fractions(np.float64),
    "BF16": np.array([[0.5, -2.0, 128.0], [0.0, 0.25, -0.0]], dtype=ml_dtypes.bfloat16),
    "BYTES": np.array([[b"", b"a", b"text"], [b"0", "ü".encode(), b"longer than the rest"]], dtype=object),
}
assert len(SAMPLES) == 14
