"""Topics: one publisher, many subscribers, every policy."""

from __future__ import annotations

import gc
import signal
import time
from typing import Any

import numpy as np
import pytest

import slipring
from conftest import LONG, Child


def test_every_message_arrives_in_order(name: str) -> None:
    with slipring.publish(name) as publisher, slipring.subscribe(name, "every") as subscriber:
        for number in range(1000):
            publisher.send(number.to_bytes(4, "big"), meta={"n": number} if number % 2 else None)
            sample = subscriber.recv(LONG)
            assert sample.message == number.to_bytes(4, "big")
            assert sample.meta == ({"n": number} if number % 2 else {})
            assert (sample.sequence, sample.missed, sample.tensors) == (number + 1, 0, None)
            with pytest.raises(slipring.OtherKind):
                _ = sample.tensor
        assert subscriber.try_recv() is None
        assert (publisher.sent, subscriber.counts) == (1000, (1000, 0))


@pytest.mark.parametrize(("policy", "count"), [("latest", 1), (3, 3)])
def test_a_slow_subscriber_gets_the_newest(name: str, policy: Any, count: int) -> None:
    with slipring.publish(name) as publisher, slipring.subscribe(name, policy) as subscriber:
        for number in range(10):
            publisher.send(bytes([number]))
        got = [subscriber.recv(LONG) for _ in range(count)]
        assert [bytes(sample.message or b"")[0] for sample in got] == list(range(10 - count, 10))
        assert got[0].missed == 10 - count
        assert subscriber.try_recv() is None


def test_frames_go_to_all(name: str, child: Child) -> None:
    with slipring.publish(name) as publisher:
        viewers = [child("subscribe", name, "every", 20) for _ in range(3)]
        for viewer in viewers:
            assert viewer.stdout is not None
            assert viewer.stdout.readline() == "joined\n"
        for number in range(20):
            frame = publisher.empty((100, 100))
            np.asarray(frame)[:] = number
            publisher.send_tensor(frame, meta={"n": number})
            with pytest.raises(slipring.TensorGone):
                np.asarray(frame)
        assert {facts["policy"] for facts in publisher.subscribers()} <= {"every"}
        for viewer in viewers:
            assert viewer.stdout is not None
            assert [int(line) for line in viewer.stdout] == [number * 10_000 for number in range(20)]
            assert viewer.wait(LONG) == 0
        kinds = [kind for kind, _, _ in publisher.events()]
        assert kinds.count("joined") == 3


def test_a_sample_is_held_as_long_as_a_view_of_it(name: str) -> None:
    with slipring.publish(name) as publisher, slipring.subscribe(name, "every") as subscriber:
        publisher.send_tensors({"a": np.arange(3000), "b": np.arange(3)}, meta={"x": 1})
        sample = subscriber.recv(LONG)
        assert (sample.message, sample.meta) == (None, {"x": 1})
        assert sample.tensors is not None
        assert sample.tensors.names == ("a", "b")
        array = np.asarray(sample.tensors["a"])
        del sample
        gc.collect()
        assert (subscriber.held, array[2999]) == (1, 2999)
        del array
        assert subscriber.held == 0


def test_policies_are_checked(name: str) -> None:
    with slipring.publish(name, every=False):
        with pytest.raises(slipring.Refused):
            slipring.subscribe(name, "every")
        for policy, error in [("some", ValueError), (1.5, TypeError), (None, None)]:
            if error is not None:
                with pytest.raises(error):
                    slipring.subscribe(name, policy)  # type: ignore[arg-type]
        with pytest.raises(slipring.Refused):
            slipring.connect(name)
    with pytest.raises(slipring.NobodyListens):
        slipring.subscribe(name, "latest")
    with pytest.raises(slipring.InvalidOption, match="slots is 3"):
        slipring.publish(name, slots=3)


def test_a_name_has_one_publisher(name: str) -> None:
    with slipring.publish(name) as publisher, slipring.subscribe(name, "every") as subscriber:
        with pytest.raises(slipring.AddressInUse, match=name):
            slipring.publish(name)
        publisher.send(b"on")
        sample = subscriber.recv()
        assert sample is not None and sample.message == b"on"


def test_a_subscriber_is_told_of_the_end(name: str) -> None:
    publisher = slipring.publish(name)
    subscriber = slipring.subscribe(name, "every", reconnect=False)
    publisher.send(b"last")
    publisher.close()
    publisher.close()
    assert [sample.message for sample in subscriber] == [b"last"]
    with pytest.raises(slipring.PeerClosed):
        subscriber.recv(LONG)
    with pytest.raises(slipring.Closed):
        publisher.send(b"")


def test_an_evicted_subscriber_is_told(name: str) -> None:
    with slipring.publish(name) as publisher, slipring.subscribe(name, "every") as subscriber:
        (facts,) = publisher.subscribers()
        assert publisher.evict(facts["id"])
        with pytest.raises(slipring.Evicted):
            subscriber.recv(LONG)
        assert not publisher.evict(12345)


def test_a_subscriber_finds_the_next_publisher(name: str) -> None:
    publisher = slipring.publish(name)
    subscriber = slipring.subscribe(name, "every")
    publisher.close()
    with slipring.publish(name, history=1) as publisher:
        publisher.send(b"again")
        sample = subscriber.recv(LONG)
        assert (sample.message, sample.restarted) == (b"again", True)


def full(publisher: slipring.Publisher) -> None:
    """Publishes until a subscriber that reads nothing has all slots."""
    with pytest.raises(slipring.TimedOut):
        while True:
            publisher.send(b"", timeout=0)


SENDS = {
    "send": lambda publisher, **options: publisher.send(b"x", **options),
    "meta": lambda publisher, **options: publisher.send(b"x", meta={"a": 1}, **options),
    "tensor": lambda publisher, **options: publisher.send_tensor(np.ones(3), **options),
    "tensor with meta": lambda publisher, **options: publisher.send_tensor(np.ones(3), meta={"a": 1}, **options),
    "tensors": lambda publisher, **options: publisher.send_tensors([np.ones(3)], **options),
}


@pytest.mark.parametrize("what", SENDS)
def test_each_send_gives_up_at_its_timeout_and_publishes_nothing(name: str, what: str) -> None:
    with (
        slipring.publish(name, slots=4, newest_limit=1, stall_after=LONG) as publisher,
        slipring.subscribe(name, "every") as subscriber,
    ):
        full(publisher)
        sent, draft = publisher.sent, publisher.empty((3,), "float64", zeroed=True)
        start = time.monotonic()
        with pytest.raises(slipring.TimedOut):
            SENDS[what](publisher, timeout=0.1)
        assert 0.1 <= time.monotonic() - start < 10
        with pytest.raises(slipring.TimedOut):
            publisher.send_tensor(draft, timeout=0)
        assert publisher.sent == sent
        for _ in range(sent):
            subscriber.recv(LONG)
        SENDS[what](publisher)
        # A tensor whose send has failed is not lost.
        publisher.send_tensor(draft)
        assert publisher.sent == sent + 2


@pytest.mark.parametrize("what", SENDS)
def test_a_send_evicts_a_subscriber_that_has_stalled(name: str, what: str) -> None:
    with (
        slipring.publish(name, slots=4, newest_limit=1, stall_after=0.2) as publisher,
        slipring.subscribe(name, "every") as subscriber,
    ):
        full(publisher)
        SENDS[what](publisher, timeout=LONG)
        assert [kind for kind, _, _ in publisher.events()] == ["joined", "evicted"]
        assert not subscriber.closed


@pytest.mark.parametrize("what", ["publish", "publish meta", "publish tensor", "publish empty"])
def test_a_publisher_that_waits_is_interrupted(name: str, child: Child, what: str) -> None:
    process = child("interrupted", name, what)
    subscriber = slipring.subscribe(name, "every", wait=LONG)
    assert process.stdout is not None
    assert process.stdout.readline() == "waits\n"
    time.sleep(0.2)
    start = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "interrupted\n"
    # 40 ms, and what a busy machine adds.
    assert time.monotonic() - start < 10
    assert process.wait(LONG) == 0
    subscriber.close()


def test_copies_take_memory_back_that_nobody_reads(name: str) -> None:
    context = slipring.Context(pool_quota=4 << 20)
    frame = np.zeros(1 << 20, "uint8")
    with (
        slipring.publish(name, context=context, stall_after=LONG) as publisher,
        slipring.subscribe(name, "every") as subscriber,
    ):
        with pytest.raises(slipring.TimedOut):
            while True:
                publisher.send_tensor(frame, timeout=0.05)
        with pytest.raises(slipring.TimedOut):
            publisher.empty(1 << 20, timeout=0)
        assert publisher.sent > 1
        for _ in range(publisher.sent):
            subscriber.recv(LONG)
        publisher.send_tensor(frame, timeout=LONG)
        publisher.send_tensors([frame, frame], timeout=LONG)
        assert subscriber.recv(LONG).tensor.nbytes == 1 << 20
