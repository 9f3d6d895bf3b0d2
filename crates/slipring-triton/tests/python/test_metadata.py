"""Requests of health checks, metadata readers and perf_analyzer."""

import numpy as np
import pytest

from datatypes import SAMPLES
from refusals import refused

REFERENCE = (
    ["simple", "simple_string", "simple_int8", "simple_identity"]
    + [f"identity_{datatype.lower()}" for datatype in SAMPLES]
    + ["identity_1d_fp32", "identity_2d_fp32", "identity_scalar_bytes", "identity_multi_fp32", "identity_slow_int32"]
    + ["repeat_int32"]
)


def test_the_server_and_its_models_are_ready(front):
    assert front.is_server_live()
    assert front.is_server_ready()
    for model in REFERENCE:
        assert front.is_model_ready(model)
    assert front.is_model_ready("simple", "1")


def test_a_model_that_is_not_there_is_not_ready(front):
    if front.is_grpc:
        try:
            assert not front.is_model_ready("nobody")
        except Exception as error:
            assert "nobody" in str(error)
    else:
        assert not front.is_model_ready("nobody")
        assert not front.is_model_ready("simple", "9")


def test_the_server_tells_its_extensions(front):
    metadata = front.json("get_server_metadata")
    assert metadata["name"]
    assert metadata["version"]
    wanted = {
        "system_shared_memory",
        "cuda_shared_memory",
        "binary_tensor_data",
        "classification",
        "statistics",
        "model_configuration",
    }
    assert wanted <= set(metadata["extensions"])


def test_metadata_has_the_batch_dimension_and_the_configuration_has_not(front):
    metadata = front.json("get_model_metadata", "simple")
    assert metadata["name"] == "simple"
    assert [str(version) for version in metadata["versions"]] == ["1"]
    assert metadata["platform"]
    tensors = [(t["name"], t["datatype"], t["shape"]) for t in metadata["inputs"]]
    assert tensors == [("INPUT0", "INT32", [-1, 16]), ("INPUT1", "INT32", [-1, 16])]
    tensors = [(t["name"], t["datatype"], t["shape"]) for t in metadata["outputs"]]
    assert tensors == [("OUTPUT0", "INT32", [-1, 16]), ("OUTPUT1", "INT32", [-1, 16])]

    config = front.json("get_model_config", "simple")
    config = config.get("config", config)
    assert config["name"] == "simple"
    assert config["max_batch_size"] == 8
    tensors = [(t["name"], t["data_type"], t["dims"]) for t in config["input"]]
    assert tensors == [("INPUT0", "TYPE_INT32", [16]), ("INPUT1", "TYPE_INT32", [16])]
    tensors = [(t["name"], t["data_type"], t["dims"]) for t in config["output"]]
    assert tensors == [("OUTPUT0", "TYPE_INT32", [16]), ("OUTPUT1", "TYPE_INT32", [16])]
    # perf_analyzer reads these: no ensemble, no sequences, one response for each request.
    assert not {"ensemble_scheduling", "sequence_batching"} & set(config)
    assert not config.get("model_transaction_policy", {}).get("decoupled", False)


@pytest.mark.parametrize("datatype", SAMPLES)
def test_the_identities_describe_themselves(front, datatype):
    metadata = front.json("get_model_metadata", f"identity_{datatype.lower()}", "1")
    (tensor,) = metadata["inputs"]
    assert (tensor["name"], tensor["datatype"], tensor["shape"]) == ("INPUT0", datatype, [-1, -1])
    config = front.json("get_model_config", f"identity_{datatype.lower()}", "1")
    config = config.get("config", config)
    wanted = "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"
    assert config["max_batch_size"] == 8
    assert [(t["data_type"], t["dims"]) for t in config["input"]] == [(wanted, [-1])]


def test_models_without_batches_say_so(front):
    config = front.json("get_model_config", "identity_2d_fp32")
    config = config.get("config", config)
    assert config.get("max_batch_size", 0) == 0
    assert config["input"][0]["dims"] == [-1, -1]
    assert front.json("get_model_metadata", "identity_2d_fp32")["inputs"][0]["shape"] == [-1, -1]
    assert front.json("get_model_metadata", "identity_1d_fp32")["inputs"][0]["shape"] == [-1]
    assert front.json("get_model_metadata", "identity_scalar_bytes")["inputs"][0]["shape"] == [1]


def test_the_repository_lists_every_model(front):
    index = front.json("get_model_repository_index")
    models = index.get("models", []) if front.is_grpc else index
    assert {model["name"] for model in models} == set(REFERENCE)
    assert {model["state"] for model in models} == {"READY"}
    assert {str(model["version"]) for model in models} == {"1"}


@pytest.mark.parametrize("method", ["get_model_metadata", "get_model_config", "get_inference_statistics"])
def test_unknown_models_and_versions_are_refused(front, method):
    with refused(front, None, None, "nobody"):
        getattr(front, method)("nobody")
    with refused(front, None, None, "simple"):
        getattr(front, method)("simple", "9")


def statistics(front, *args):
    return front.json("get_inference_statistics", *args)["model_stats"]


def test_statistics_grow(front):
    model = "identity_uint16"
    values = np.zeros((4, 3), dtype=np.uint16)

    def counted():
        (stats,) = statistics(front, model)
        assert (stats["name"], str(stats["version"])) == (model, "1")
        durations = stats.get("inference_stats", {})
        names = ["success", "fail", "queue", "compute_input", "compute_infer", "compute_output"]
        counts = {name: durations.get(name, {}).get("count", 0) for name in names}
        times = {name: durations.get(name, {}).get("ns", 0) for name in names}
        batches = {b["batch_size"]: b["compute_infer"]["count"] for b in stats.get("batch_stats", [])}
        return stats, counts, times, batches

    before, counts_before, times_before, batches_before = counted()
    for _ in range(5):
        front.infer(model, [front.input("INPUT0", values)])
    with refused(front, 400, "INVALID_ARGUMENT", "unexpected inference output"):
        front.infer(model, [front.input("INPUT0", values)], outputs=[front.output("NOBODY")])
    after, counts_after, times_after, batches_after = counted()

    grew = {name: counts_after[name] - counts_before[name] for name in counts_after}
    for name in ["success", "queue", "compute_input", "compute_infer", "compute_output"]:
        assert grew[name] == 5, name
    # The inferences of a batch, and the calls of the model.
    assert after["inference_count"] - before.get("inference_count", 0) == 20
    assert after["execution_count"] - before.get("execution_count", 0) == 5
    assert after["last_inference"] > before.get("last_inference", 0)
    for name in ["success", "compute_infer"]:
        assert times_after[name] > times_before[name], name
    assert times_after["success"] - times_before["success"] >= times_after["compute_infer"] - times_before["compute_infer"]
    assert batches_after.get(4, 0) - batches_before.get(4, 0) == 5


def test_statistics_of_all_models_are_told_at_once(front):
    names = [stats["name"] for stats in statistics(front)]
    assert sorted(names) == sorted(REFERENCE)


def test_a_slow_model_counts_its_time(front):
    values = np.zeros((1, 4), dtype=np.int32)

    def spent():
        (stats,) = statistics(front, "identity_slow_int32")
        return stats.get("inference_stats", {}).get("compute_infer", {}).get("ns", 0)

    before = spent()
    front.infer("identity_slow_int32", [front.input("INPUT0", values)])
    assert spent() - before > 10**9
