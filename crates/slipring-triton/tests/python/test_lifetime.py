"""Regions that disappear, shrink, or change owners while requests use them."""

import os
import threading
import time

import numpy as np
import pytest

from fronts import KINDS, Front
from refusals import refused
from regions import Region, fresh

VALUES = np.arange(1024, dtype=np.int32).reshape(1, 1024)


class Slow(threading.Thread):
    """Sends a request to the model that sleeps for 1.5 s before it reads its input."""

    def __init__(self, kind, server, region, out=None, wait=0.5):
        super().__init__(daemon=True)
        self.kind, self.server, self.region, self.out = kind, server, region, out
        self.result = self.error = None
        self.start()
        # The request is in flight, and the model has not read its input.
        time.sleep(wait)

    def run(self):
        with Front(self.kind, self.server) as front:
            tensor = front.module.InferInput("INPUT0", list(VALUES.shape), "INT32")
            tensor.set_shared_memory(self.region.name, VALUES.nbytes)
            outputs = None
            if self.out is not None:
                outputs = [front.output("OUTPUT0", "shm", self.out, VALUES.nbytes)]
            try:
                self.result = front.infer("identity_slow_int32", [tensor], outputs=outputs)
            except Exception as error:
                self.error = error

    def end(self):
        self.join(60)
        assert not self.is_alive()


def test_a_region_stays_for_the_request_that_uses_it(either_front):
    front = either_front
    with Region(front, VALUES.nbytes) as region:
        region.write(0, VALUES.tobytes())
        request = Slow(front.kind, front.server, region)
        started = time.monotonic()
        front.unregister_system_shared_memory(region.name)
        assert time.monotonic() - started < 0.9, "unregistering waited for the request"
        assert front.system_status() == {}
        with refused(front, 404, "NOT_FOUND", f"Unable to find shared memory region: '{region.name}'"):
            tensor = front.module.InferInput("INPUT0", list(VALUES.shape), "INT32")
            tensor.set_shared_memory(region.name, VALUES.nbytes)
            front.infer("identity_int32", [tensor])
        # The name is free at once.
        front.register_system_shared_memory(region.name, region.key, 64)
        request.end()
        assert request.error is None
        assert (request.result.as_numpy("OUTPUT0") == VALUES).all()


def test_an_output_region_stays_too(either_front):
    front = either_front
    with Region(front, VALUES.nbytes) as region, Region(front, VALUES.nbytes) as out:
        region.write(0, VALUES.tobytes())
        request = Slow(front.kind, front.server, region, out)
        front.unregister_system_shared_memory()
        request.end()
        assert request.error is None
        assert (out.array(np.int32, VALUES.shape) == VALUES).all()


def test_an_object_that_is_unlinked_stays_usable(either_front):
    front = either_front
    with Region(front, VALUES.nbytes) as region:
        os.unlink(region.path)
        tensor = front.input("INPUT0", VALUES, "shm", region)
        for _ in range(3):
            assert (front.infer("identity_int32", [tensor]).as_numpy("OUTPUT0") == VALUES).all()
        # Another object under the same key is another object.
        with open(region.path, "wb") as file:
            file.write(bytes(VALUES.nbytes))
        assert (front.infer("identity_int32", [tensor]).as_numpy("OUTPUT0") == VALUES).all()


@pytest.mark.parametrize("left", [0, 1024])
def test_an_object_that_was_truncated_fails_requests_and_no_more(either_front, left):
    front = either_front
    with Region(front, VALUES.nbytes) as region:
        tensor = front.input("INPUT0", VALUES, "shm", region)
        output = front.output("OUTPUT0", "shm", region, VALUES.nbytes)
        plain = front.input("INPUT0", VALUES)
        os.truncate(region.path, left)
        for _ in range(3):
            with refused(front, None, None, ""):
                front.infer("identity_int32", [tensor])
            with refused(front, None, None, ""):
                front.infer("identity_int32", [plain], outputs=[output])
        assert front.is_server_live()
        # After an extension the region works.
        os.truncate(region.path, VALUES.nbytes)
        assert (front.infer("identity_int32", [tensor]).as_numpy("OUTPUT0") == region.array(np.int32, VALUES.shape)).all()
        front.infer("identity_int32", [plain], outputs=[output])
        assert (region.array(np.int32, VALUES.shape) == VALUES).all()


def test_an_object_is_truncated_under_a_request(either_front):
    front = either_front
    with Region(front, VALUES.nbytes) as region, Region(front, VALUES.nbytes) as out:
        region.write(0, VALUES.tobytes())
        requests = [Slow(front.kind, front.server, region, wait=0), Slow(front.kind, front.server, region, out)]
        os.truncate(region.path, 64)
        for request in requests:
            request.end()
            assert request.error is not None and request.result is None
        assert front.server.alive()
        # Requests to other memory are not affected.
        assert (front.infer("identity_int32", [front.input("INPUT0", VALUES)]).as_numpy("OUTPUT0") == VALUES).all()


def test_an_output_is_truncated_under_a_request(either_front):
    front = either_front
    with Region(front, VALUES.nbytes) as region, Region(front, VALUES.nbytes) as out:
        region.write(0, VALUES.tobytes())
        request = Slow(front.kind, front.server, region, out)
        os.truncate(out.path, 64)
        request.end()
        assert request.error is not None
        assert front.server.alive()


def test_an_object_that_shrinks_and_grows_all_the_time(either_server):
    """Every response is an error, or has the object's bytes or zeros."""
    size = 1 << 20
    values = np.full((1, size // 4), 7, dtype=np.int32)
    with Front("http", either_server) as front, Region(front, size) as region:
        tensor = front.input("INPUT0", values, "shm", region)
        end = threading.Event()

        def shake():
            while not end.is_set():
                os.truncate(region.path, 4096)
                os.truncate(region.path, size)

        shaker = threading.Thread(target=shake, daemon=True)
        shaker.start()
        answers = 0
        try:
            deadline = time.monotonic() + 1
            while time.monotonic() < deadline:
                try:
                    got = front.infer("identity_int32", [tensor]).as_numpy("OUTPUT0")
                    assert set(np.unique(got)) <= {0, 7}
                except AssertionError:
                    raise
                except Exception as error:
                    assert "truncated" in str(error) or "shorter" in str(error) or "region" in str(error), error
                answers += 1
        finally:
            end.set()
            shaker.join(20)
        assert answers > 3
        assert either_server.alive()


def test_two_clients_fight_over_a_name(server):
    name = fresh("fought-over")
    with Front("http", server) as http:
        with Region(http, 4096, register=False) as one, Region(http, 8192, register=False) as two:
            end = time.monotonic() + 1
            faults = []

            def fight(kind, region):
                values = np.zeros((1, 16), dtype=np.int32)
                with Front(kind, server) as front:
                    tensor = front.module.InferInput("INPUT0", [1, 16], "INT32")
                    tensor.set_shared_memory(name, 64)
                    while time.monotonic() < end:
                        for act in (
                            lambda: front.register_system_shared_memory(name, region.key, region.size),
                            lambda: front.infer("identity_int32", [tensor]),
                            lambda: front.unregister_system_shared_memory(name),
                            lambda: front.system_status(name),
                        ):
                            try:
                                act()
                            except Exception as error:
                                text = str(error)
                                if "already in manager" not in text and "Unable to find" not in text:
                                    faults.append(text)
                    del values

            fighters = [
                threading.Thread(target=fight, args=(kind, region), daemon=True)
                for kind in KINDS
                for region in (one, two)
            ]
            for fighter in fighters:
                fighter.start()
            for fighter in fighters:
                fighter.join(60)
            assert faults == []
            http.unregister_system_shared_memory(name)


def test_many_clients_compute_at_once(either_server):
    """Eight clients of all kinds, each with its own memory and values."""
    faults = []

    def work(kind, seed):
        try:
            with Front(kind, either_server) as front, Region(front, 4096) as region:
                for n in range(30):
                    a = np.full((1, 16), seed * 1000 + n, dtype=np.int32)
                    b = np.arange(16, dtype=np.int32).reshape(1, 16)
                    inputs = [front.input("INPUT0", a, "shm", region), front.input("INPUT1", b)]
                    outputs = [front.output("OUTPUT0", "shm", region, 64, 128), front.output("OUTPUT1")]
                    result = front.infer("simple", inputs, outputs=outputs, request_id=str(n))
                    assert (region.array(np.int32, [1, 16], 128) == a + b).all()
                    assert (result.as_numpy("OUTPUT1") == a - b).all()
        except BaseException as error:
            faults.append(repr(error))

    workers = [threading.Thread(target=work, args=(KINDS[n % 4], n), daemon=True) for n in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert faults == []


def test_slow_requests_do_not_hold_others_up(front):
    with Region(front, VALUES.nbytes) as region:
        region.write(0, VALUES.tobytes())
        requests = [Slow("grpc", front.server, region, wait=0.25) for _ in range(2)]
        started = time.monotonic()
        for _ in range(10):
            front.infer("identity_int32", [front.input("INPUT0", VALUES)])
        quick = time.monotonic() - started
        for request in requests:
            request.end()
            assert request.error is None
        assert quick < 1.0


def test_asynchronous_requests_of_one_client(server):
    """tritonclient's own asynchronous calls, many in flight at once."""
    import tritonclient.grpc as grpcclient
    import tritonclient.http as httpclient

    http = httpclient.InferenceServerClient(server.http, concurrency=8)
    pending = []
    for n in range(64):
        tensor = httpclient.InferInput("INPUT0", [1, 16], "INT32")
        tensor.set_data_from_numpy(np.full((1, 16), n, dtype=np.int32))
        pending.append(http.async_infer("identity_int32", [tensor]))
    for n, request in enumerate(pending):
        assert (request.get_result().as_numpy("OUTPUT0") == n).all()
    http.close()

    grpc = grpcclient.InferenceServerClient(server.grpc)
    done = threading.Semaphore(0)
    answers = {}

    def answer(n):
        def take(result, error):
            answers[n] = (result, error)
            done.release()

        return take

    for n in range(64):
        tensor = grpcclient.InferInput("INPUT0", [1, 16], "INT32")
        tensor.set_data_from_numpy(np.full((1, 16), n, dtype=np.int32))
        grpc.async_infer("identity_int32", [tensor], answer(n))
    for _ in range(64):
        assert done.acquire(timeout=20)
    for n, (result, error) in answers.items():
        assert error is None and (result.as_numpy("OUTPUT0") == n).all()
    grpc.close()
