"""Decoupled models over the streams of the gRPC clients."""

import queue
import time

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from fronts import Front
from regions import Region


# Milliseconds before a response.
AN_HOUR = 3_600_000


class Stream:
    """tritonclient's stream to `repeat_int32`, with its responses in a queue."""

    def __init__(self, server):
        self.client = grpcclient.InferenceServerClient(server.grpc)
        self.answers = queue.Queue()
        self.client.start_stream(lambda result, error: self.answers.put((result, error)))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.client.stop_stream(cancel_requests=True)
        self.client.close()

    def send(self, values, delay=0, outputs=("OUT", "IDX"), **options):
        outputs = [grpcclient.InferRequestedOutput(name) if isinstance(name, str) else name for name in outputs]
        self.client.async_stream_infer("repeat_int32", inputs(values, delay), outputs=outputs, **options)

    def next(self):
        result, error = self.answers.get(timeout=20)
        if error is not None:
            raise error
        return result


def inputs(values, delay=0):
    tensors = []
    for name, array in (
        ("IN", np.array(values, dtype=np.int32)),
        ("DELAY", np.full(len(values), delay, dtype=np.uint32)),
        ("WAIT", np.array([0], dtype=np.uint32)),
    ):
        tensor = grpcclient.InferInput(name, list(array.shape), "INT32" if name == "IN" else "UINT32")
        tensor.set_data_from_numpy(array)
        tensors.append(tensor)
    return tensors


def is_final(result):
    return result.get_response().parameters["triton_final_response"].bool_param


@pytest.mark.parametrize("count", [0, 1, 10])
def test_a_request_has_many_responses_and_an_empty_last_one(server, count):
    with Stream(server) as stream:
        stream.send(range(100, 100 + count), request_id="a", enable_empty_final_response=True)
        for n in range(count):
            result = stream.next()
            assert result.get_response().id == "a"
            assert result.as_numpy("OUT").tolist() == [100 + n]
            assert result.as_numpy("IDX").tolist() == [n]
            assert not is_final(result)
        result = stream.next()
        assert result.get_response().id == "a"
        assert result.get_response().model_name == "repeat_int32"
        assert is_final(result)
        assert result.as_numpy("OUT") is None


def test_the_last_response_is_not_marked_unless_the_client_asks(server):
    with Stream(server) as stream:
        for outputs in (["OUT"], ["IDX"]):
            stream.send([1, 2], outputs=outputs)
            for _ in range(2):
                result = stream.next()
                assert [output.name for output in result.get_response().outputs] == outputs
                assert not is_final(result)
        # This waits for all responses.
        stream.client.stop_stream()
        assert stream.answers.empty()


def test_requests_of_a_stream_run_side_by_side(server):
    with Stream(server) as stream:
        stream.send([1], delay=AN_HOUR, request_id="slow")
        stream.send(range(20), request_id="fast", enable_empty_final_response=True)
        assert [stream.next().get_response().id for _ in range(21)] == ["fast"] * 21


def test_an_error_is_one_answer(server):
    with Stream(server) as stream:
        tensors = inputs([1, 2, 3])
        tensors[1] = inputs([1])[1]
        stream.client.async_stream_infer("repeat_int32", tensors)
        with pytest.raises(InferenceServerException, match="expected IN and DELAY shape to match"):
            stream.next()
        stream.send([5])
        assert stream.next().as_numpy("OUT").tolist() == [5]


def test_calls_of_one_response_are_refused(front):
    tensors = [front.input("IN", np.array([1], dtype=np.int32))]
    for name in ("DELAY", "WAIT"):
        tensors.append(front.input(name, np.array([0], dtype=np.uint32)))
    with pytest.raises(Exception, match="doesn't support models with decoupled transaction policy"):
        front.infer("repeat_int32", tensors)


def test_a_configuration_tells_that_a_model_is_decoupled(front):
    config = front.json("get_model_config", "repeat_int32")
    assert config.get("config", config)["model_transaction_policy"]["decoupled"] is True


def test_a_stream_that_is_cancelled_ends_its_requests(server):
    def failed():
        statistics = client.get_inference_statistics("repeat_int32", as_json=True)
        return int(statistics["model_stats"][0]["inference_stats"]["fail"].get("count", 0))

    with grpcclient.InferenceServerClient(server.grpc) as client:
        before = failed()
        with Stream(server) as stream:
            stream.send([1, 2], delay=AN_HOUR)
            stream.send([3])
            assert stream.next().as_numpy("OUT").tolist() == [3]
        deadline = time.monotonic() + 20
        while failed() == before and time.monotonic() < deadline:
            time.sleep(0.01)
        assert failed() > before


def test_each_response_goes_to_the_same_region(server):
    with grpcclient.InferenceServerClient(server.grpc) as client, Region(client, 4) as region:
        with Stream(server) as stream:
            output = grpcclient.InferRequestedOutput("OUT")
            output.set_shared_memory(region.name, 4)
            stream.send([7, 8, 9], delay=50, outputs=[output])
            for value in (7, 8, 9):
                assert list(stream.next().get_response().raw_output_contents) == [b""]
                # A later response may have been written already.
                assert region.array(np.int32, [1])[0] in range(value, 10)
            assert region.array(np.int32, [1])[0] == 9


def test_streams_of_the_asynchronous_client(server):
    with Front("aio-grpc", server) as front:

        async def go():
            async def requests():
                for n in range(5):
                    yield {
                        "model_name": "repeat_int32",
                        "inputs": inputs([n] * n),
                        "request_id": str(n),
                    }

            return [answer async for answer in front.client.stream_infer(requests())]

        answers = front.loop.run(go())
        assert all(error is None for _, error in answers)
        for n in range(5):
            own = [result for result, _ in answers if result.get_response().id == str(n)]
            # This client cannot ask for an empty last response.
            assert [result.as_numpy("IDX").tolist() for result in own] == [[at] for at in range(n)]
