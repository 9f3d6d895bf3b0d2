"""The peer in Python of every pair of languages: `python pair_peer.py serve|ask NAME` (see `test_pairs.py`)."""

from __future__ import annotations

import asyncio
import struct
import sys

import numpy as np

import slipring

LONG = 60.0
SIZES = (0, 1, 8, 64, 4096, 100_000, 5 << 20)
BATCH, CALLS, SAMPLES = 16, 8, 100
DTYPES = ("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32")
DTYPES += ("float64", "bfloat16", "float8_e4m3fn", "float8_e5m2")
WIDTHS = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}


def data(length: int) -> bytes:
    return ((np.arange(length) * 7 + length) % 251).astype("uint8").tobytes()


def elements(tensor: slipring.Tensor) -> np.ndarray:
    """The elements, or their bits where NumPy lacks the type."""
    width = WIDTHS.get(tensor.dtype)
    return np.asarray(tensor.view(width) if width else tensor)


def said(kind: str) -> None:
    print(kind, flush=True)


def serve(name: str) -> None:
    context = slipring.Context(send_timeout=LONG)
    with slipring.publish(f"{name}-topic", context=context) as publisher, context.listen(name) as listener:
        link = listener.accept(LONG)
        for kind in ("messages", "in place"):
            for _ in SIZES:
                link.send(link.recv(LONG))
            said(kind)

        batch = [link.recv(LONG) for _ in range(BATCH)]
        for message in batch:
            link.send(message)
        said("batch")

        for _ in DTYPES:
            tensors = link.recv_tensors(LONG)
            link.send_tensors(dict(tensors.items()))
        said("tensors")

        weights = link.recv_tensors(LONG)["weights"]
        assert weights.stable
        link.send(struct.pack("<q", int(np.asarray(weights).sum())))
        said("frozen")

        requests = [link.recv_request(LONG) for _ in range(CALLS)]
        for request in reversed(requests):
            request.respond(bytes(request.message or b"")[::-1])
        said("calls")

        request = link.recv_request(LONG)
        assert request.tensors is not None
        request.respond({"y": np.asarray(request.tensors["x"]) * 2})
        said("tensor calls")

        assert link.recv(LONG) == b"joined"
        for number in range(SAMPLES):
            if number % 10 == 9:
                frame = publisher.empty((100, 100), "uint8")
                np.asarray(frame)[:] = number
                publisher.send_tensor(frame)
            else:
                publisher.send(struct.pack("<Q", number))
        assert link.recv(LONG) == b"seen"
        said("topic")

        try:
            link.recv(LONG)
        except slipring.PeerClosed:
            said("end")


def ask(name: str) -> None:
    context = slipring.Context(send_timeout=LONG)
    link = context.connect(name, retry=LONG)
    for kind in ("messages", "in place"):
        for length in SIZES:
            link.send(data(length))
            assert link.recv(LONG) == data(length), length
        said(kind)

    for number in range(BATCH):
        link.send(struct.pack("<Q", number))
    for number in range(BATCH):
        assert link.recv(LONG) == struct.pack("<Q", number)
    said("batch")

    for dtype in DTYPES:
        sent = {}
        for key, shape in (("one", (2, 3, 4)), ("two", (2, 4))):
            sent[key] = link.empty(shape, dtype)
            elements(sent[key])[:] = np.arange(np.prod(shape)).reshape(shape) % 3 == 0
        link.send_tensors(sent)
        back = link.recv_tensors(LONG)
        for key, tensor in back.items():
            shape = sent[key].shape
            assert (tensor.dtype, tensor.shape) == (dtype, shape)
            assert (elements(tensor) == (np.arange(np.prod(shape)).reshape(shape) % 3 == 0)).all()
    said("tensors")

    weights = link.empty(1000, "int64", frozen=True)
    np.asarray(weights)[:] = np.arange(1000)
    link.send_tensors({"weights": weights})
    assert link.recv(LONG) == struct.pack("<q", 499_500)
    said("frozen")

    async def calls() -> list[slipring.Message]:
        return await asyncio.gather(*(link.acall(f"call {number}".encode()) for number in range(CALLS)))

    assert [bytes(answer) for answer in asyncio.run(calls())] == [f"{number} llac".encode() for number in range(CALLS)]
    said("calls")

    answer = link.call_tensors({"x": np.array([1, 2, 3], "int32")}, timeout=LONG)
    assert np.asarray(answer["y"]).tolist() == [2, 4, 6]
    said("tensor calls")

    with slipring.subscribe(f"{name}-topic", "every", wait=LONG) as subscriber:
        link.send(b"joined")
        for number in range(SAMPLES):
            sample = subscriber.recv(LONG)
            assert sample.missed == 0
            if number % 10 == 9:
                frame = np.asarray(sample.tensor)
                assert (frame.shape, frame.dtype) == ((100, 100), np.uint8)
                assert (frame == number).all()
                del frame
            else:
                assert sample.message == struct.pack("<Q", number)
        link.send(b"seen")
    said("topic")

    link.close()
    said("end")


if __name__ == "__main__":
    {"serve": serve, "ask": ask}[sys.argv[1]](sys.argv[2])
