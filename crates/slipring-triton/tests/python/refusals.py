"""Assertions on refused requests."""

import contextlib

import pytest
from tritonclient.utils import InferenceServerException


@contextlib.contextmanager
def refused(front, http, grpc, text):
    """Asserts that the body raises an error with this status (`None`: any) whose text contains `text`."""
    with pytest.raises(InferenceServerException) as caught:
        yield
    status = caught.value.status()
    wanted = (grpc and f"StatusCode.{grpc}") if front.is_grpc else (http and str(http))
    assert wanted is None or status == wanted, caught.value.message()
    assert text in caught.value.message()
    assert not leaks(caught.value.message())


def leaks(text):
    """Returns whether a text contains paths or addresses."""
    return "/dev/shm" in text or "/proc/" in text or "0x7" in text or ".rs:" in text
