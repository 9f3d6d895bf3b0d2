"""A peer in Rust and one in Python, in both directions: the examples of the crate.

`SLIPRING_EXAMPLES` is the folder of the built examples.
"""

from __future__ import annotations

import datetime
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import slipring
from conftest import LONG

EXAMPLES = Path(os.environ.get("SLIPRING_EXAMPLES", "/nonexistent"))

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts an example, or skips the test aloud."""
    started: list[subprocess.Popen[str]] = []

    def begin(example: str, *arguments: object) -> subprocess.Popen[str]:
        program = EXAMPLES / example
        if not program.exists():
            pytest.skip(f"{program} is not built (SLIPRING_EXAMPLES): no peer in Rust is checked")
        process = subprocess.Popen([program, *map(str, arguments)], stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_messages_and_tensors_come_back_from_rust(name: str, start: Start) -> None:
    start("echo_server", name)
    with slipring.connect(name, retry=LONG) as link:
        for length in (0, 8, 4096, 100_000, 5 << 20):
            link.send(bytes(length), timeout=LONG)
            assert link.recv(LONG) == bytes(length)
        for dtype in ("bool", "uint8", "int16", "uint32", "int64", "float16", "float32", "float64"):
            values = np.arange(24).reshape(2, 3, 4).astype(dtype)
            link.send_tensors({"one": values, "two": values[:, 0]}, meta={"dtype": dtype, "n": 3, "x": 0.5})
            back = link.recv_tensors(LONG)
            assert (back.names, back.meta) == (("one", "two"), {"dtype": dtype, "n": 3, "x": 0.5})
            np.testing.assert_array_equal(np.asarray(back["one"]), values)
            np.testing.assert_array_equal(np.asarray(back["two"]), values[:, 0])
        link.send_tensor(slipring.strings(["", "zwölf"]))
        assert link.recv_tensor(LONG).strings() == [b"", "zwölf".encode()]


def test_rust_answers_python(name: str, start: Start) -> None:
    start("request_response", "serve", name)
    with slipring.connect(name, retry=LONG) as link:
        for _ in range(100):
            assert link.call(b"hello", timeout=LONG) == b"HELLO"


def test_python_answers_rust(name: str, start: Start) -> None:
    with slipring.listen(name) as listener:
        process = start("request_response", "call", name, "one", "two")
        with listener.accept(LONG) as link:
            link.serve(lambda request: bytes(request.message or b"")[::-1])
    assert process.stdout is not None
    assert [line.split(" after")[0] for line in process.stdout] == ["one: eno", "two: owt"]


def test_python_sees_a_camera_in_rust(name: str, start: Start) -> None:
    start("camera", "--name", name, "--height", 48, "--width", 64, "--rate", 1000)
    with slipring.subscribe(name, 5, wait=LONG) as subscriber:
        for _ in range(20):
            sample = subscriber.recv(LONG)
            frame = np.asarray(sample.tensor)
            assert frame.shape == (48, 64, 3)
            assert (frame == int(sample.meta["frame"]) % 256).all()
            assert isinstance(sample.meta["stamp"], datetime.datetime)


def test_rust_views_a_camera_in_python(name: str, start: Start) -> None:
    with slipring.publish(name, slots=64) as publisher:
        viewer = start("viewer", "--name", name, "--policy", "every", "--count", 20)
        end = time.monotonic() + LONG
        while viewer.poll() is None and time.monotonic() < end:
            # It sees the frames from its join on.
            number = publisher.sent
            frame = publisher.empty((48, 64, 3))
            np.asarray(frame)[:] = number % 256
            now = datetime.datetime.now(datetime.UTC)
            publisher.send_tensor(frame, meta={"frame": number, "stamp": now})
            time.sleep(0.001)
        assert viewer.returncode == 0
