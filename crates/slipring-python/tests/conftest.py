"""What all tests share: links, names, and children that end with their test."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import slipring

# A deadline against hangs. No test depends on it.
LONG = 60.0

_numbers = itertools.count()


@pytest.fixture
def name() -> str:
    """A name that no other test has."""
    return f"slipring-test-{os.getpid()}-{next(_numbers)}"


def connected(
    name: str,
    near: slipring.Context | None = None,
    far: slipring.Context | None = None,
    **far_options: bool,
) -> tuple[slipring.Connection, slipring.Connection]:
    """Returns both ends of a link of this process."""
    with slipring.listen(name, context=far, **far_options) as listener:
        accepted: list[slipring.Connection] = []
        thread = threading.Thread(target=lambda: accepted.append(listener.accept(LONG)))
        thread.start()
        connection = slipring.connect(name, timeout=LONG, context=near)
        thread.join()
    return connection, accepted[0]


@pytest.fixture
def link(name: str) -> Iterator[tuple[slipring.Connection, slipring.Connection]]:
    """Both ends of a link of this process."""
    near, far = connected(name)
    yield near, far
    near.close()
    far.close()


Child = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def child() -> Iterator[Child]:
    """Starts a role of `peer.py` in a process of its own, and kills what is left at the end of the test."""
    started: list[subprocess.Popen[str]] = []

    def start(role: str, *arguments: object, **options: object) -> subprocess.Popen[str]:
        command = [
            sys.executable,
            str(Path(__file__).parent / "peer.py"),
            role,
            *map(str, arguments),
        ]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)  # type: ignore[call-overload]
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()
