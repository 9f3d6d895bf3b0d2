"""Loads and unloads of models by the official clients, as Triton's example `simple_http_model_control.py` does it."""

import json
import time

import numpy as np
import pytest

from fronts import KINDS, Front
from refusals import refused
from server import Server

# Beside a busy machine an unloaded model is dropped within milliseconds.
DROPPED_WITHIN = 30


@pytest.fixture(scope="module")
def explicit():
    server = Server("--model-control-mode", "explicit", "--load-model", "identity_uint8")
    try:
        yield server
        assert server.alive(), "".join(server.lines)
    finally:
        server.stop()


@pytest.fixture(params=KINDS)
def front(request, explicit):
    with Front(request.param, explicit) as front:
        yield front


def index(front):
    rows = front.json("get_model_repository_index")
    return rows["models"] if front.is_grpc else rows


def states(front, name):
    """Returns version, state and reason of each version of a model."""
    rows = [row for row in index(front) if row["name"] == name]
    return [(str(row.get("version", "")), row["state"], row.get("reason", "")) for row in rows]


def reaches(front, name, wanted):
    deadline = time.monotonic() + DROPPED_WITHIN
    while states(front, name) != wanted:
        assert time.monotonic() < deadline, states(front, name)
        time.sleep(0.01)


def infer(front, model="simple", batch=1):
    array = np.arange(16 * batch, dtype=np.int32).reshape(batch, 16)
    inputs = [front.input("INPUT0", array), front.input("INPUT1", array)]
    return front.infer(model, inputs).as_numpy("OUTPUT0"), array


def is_ready(front, model):
    return front.is_model_ready(model)


def test_a_model_is_loaded_and_unloaded(front):
    assert {"simple", "identity_fp32"} <= {row["name"] for row in index(front)}
    assert not is_ready(front, "simple")
    front.load_model("simple")
    assert is_ready(front, "simple")
    assert states(front, "simple") == [("1", "READY", "")]
    total, array = infer(front)
    assert (total == 2 * array).all()
    # Loaded anew it goes on.
    front.load_model("simple")
    assert is_ready(front, "simple")
    front.unload_model("simple")
    assert not is_ready(front, "simple")
    reaches(front, "simple", [("1", "UNAVAILABLE", "unloaded")])
    with refused(front, 404, "NOT_FOUND", "Request for unknown model: 'simple' has no available versions"):
        infer(front)
    front.unload_model("simple")
    front.unload_model("nobody", unload_dependents=True)


def test_an_unknown_model_is_refused(front):
    text = "failed to load 'wrong_model_name', failed to poll from model repository"
    with refused(front, 500, "INTERNAL", text):
        front.load_model("wrong_model_name")


def test_a_configuration_overrides_that_of_the_repository(front):
    front.load_model("simple", config=json.dumps({"name": "simple", "max_batch_size": 2}))
    config = front.json("get_model_config", "simple")
    config = config["config"] if front.is_grpc else config
    assert config["max_batch_size"] == 2
    infer(front, batch=2)
    with refused(front, 400, "INVALID_ARGUMENT", "inference request batch-size must be <= 2 for 'simple'"):
        infer(front, batch=3)
    with refused(front, 400, "INVALID_ARGUMENT", "Invalid config override"):
        front.load_model("simple", config="{")
    front.load_model("simple")
    infer(front, batch=8)
    front.unload_model("simple")


def test_files_come_with_a_load(front):
    data = bytes(range(256)) * 1000
    front.load_model("brought", config="{}", files={"file:1/constant.bin": data})
    result = front.infer("brought", [])
    assert result.as_numpy("OUTPUT0").tobytes() == data
    front.unload_model("brought")
    assert "brought" not in {row["name"] for row in index(front)}
    with refused(front, 400, "INVALID_ARGUMENT", "invalid path of a file"):
        front.load_model("brought", config="{}", files={"file:../x": data})


def test_the_extension_is_told_where_it_is_served(front, servers):
    wanted = {"model_repository", "model_repository(unload_dependents)"}
    assert wanted <= set(front.json("get_server_metadata")["extensions"])
    with Front(front.kind, servers["in-place"]) as other:
        assert not wanted & set(other.json("get_server_metadata")["extensions"])
        text = "explicit model load / unload is not allowed if polling is enabled"
        with refused(other, 503, "UNAVAILABLE", text):
            other.load_model("simple")
        with refused(other, 503, "UNAVAILABLE", text):
            other.unload_model("simple")
        assert states(other, "simple") == [("1", "READY", "")]
