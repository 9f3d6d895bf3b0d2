"""Places of tensors: JSON, binary, typed contents, raw contents, and regions, in every mixture."""

import itertools

import numpy as np
import pytest

from datatypes import SAMPLES
from refusals import refused
from regions import Region
from fronts import size_of

A = np.arange(16, dtype=np.int32).reshape(1, 16)
B = np.full((1, 16), 7, dtype=np.int32)


def pairs(ways):
    return itertools.product(ways, repeat=2)


def test_every_mixture_of_inputs_and_outputs_computes(either_front):
    front = either_front
    with Region(front, 128) as into, Region(front, 256) as out:
        for (a, b), (c, d) in itertools.product(pairs(front.ways_in()), pairs(front.ways_out())):
            if front.is_grpc and {a, b} == {"binary", "typed"}:
                continue  # refused; a test below covers it
            out.write(0, bytes(256))
            inputs = [front.input("INPUT0", A, a, into), front.input("INPUT1", B, b, into, 64)]
            outputs = [
                front.output("OUTPUT0", c, out, 64),
                front.output("OUTPUT1", d, out, 64, 128),
            ]
            result = front.infer("simple", inputs, outputs=outputs)
            shapes = [("OUTPUT0", "INT32", [1, 16]), ("OUTPUT1", "INT32", [1, 16])]
            assert front.outputs_of(result) == shapes, (a, b, c, d)
            for name, how, at, wanted in (("OUTPUT0", c, 0, A + B), ("OUTPUT1", d, 128, A - B)):
                if how == "shm":
                    got = out.array(np.int32, [1, 16], at)
                else:
                    got = result.as_numpy(name)
                assert (got == wanted).all(), (a, b, c, d)
            # The server has written only the results.
            assert out.read(64, 64) == bytes(64)
            assert out.read(192, 64) == bytes(64)


@pytest.mark.parametrize("datatype", SAMPLES)
def test_every_datatype_goes_every_way(front, datatype):
    values = SAMPLES[datatype]
    size = size_of(values)
    with Region(front, size + 8) as into, Region(front, size + 8) as out:
        for how, to in itertools.product(front.ways_in(datatype), front.ways_out(datatype)):
            out.write(0, bytes(size + 8))
            tensor = front.input("INPUT0", values, how, into, 3, datatype=datatype)
            wanted = front.output("OUTPUT0", to, out, size + 5, 3)
            result = front.infer(f"identity_{datatype.lower()}", [tensor], outputs=[wanted])
            assert front.outputs_of(result) == [("OUTPUT0", datatype, list(values.shape))]
            if to == "shm":
                got = out.array(values.dtype, values.shape, 3)
                assert out.read(0, 3) == bytes(3)
                assert out.read(3 + size, 5) == bytes(5)
            else:
                got = result.as_numpy("OUTPUT0")
            if datatype == "BYTES" and to == "json":
                got = np.array([text.encode() for text in got.flatten()], dtype=object).reshape(got.shape)
            assert got.dtype == values.dtype or datatype == "BYTES"
            assert got.shape == values.shape
            assert got.tolist() == values.tolist(), (how, to)


@pytest.mark.parametrize("datatype", SAMPLES)
def test_no_elements_go_every_way(front, datatype):
    values = SAMPLES[datatype][:1, :0]
    with Region(front, 8) as region:
        for how, to in itertools.product(front.ways_in(datatype), front.ways_out(datatype)):
            if "shm" in (how, to):
                continue  # the clients cannot send a byte size of 0
            if how == "typed":
                continue  # empty typed contents mean no data
            tensor = front.input("INPUT0", values, how, region, datatype=datatype)
            outputs = [front.output("OUTPUT0", to, region, 8)]
            result = front.infer(f"identity_{datatype.lower()}", [tensor], outputs=outputs)
            assert front.outputs_of(result) == [("OUTPUT0", datatype, [1, 0])]
            assert result.as_numpy("OUTPUT0").size == 0


def test_outputs_that_nobody_asked_for_all_come(front):
    inputs = [front.input("INPUT0", A), front.input("INPUT1", B)]
    result = front.infer("simple", inputs)
    assert [name for name, *_ in front.outputs_of(result)] == ["OUTPUT0", "OUTPUT1"]
    assert (result.as_numpy("OUTPUT0") == A + B).all()
    assert (result.as_numpy("OUTPUT1") == A - B).all()


def test_outputs_come_in_the_order_in_which_they_were_asked_for(front):
    inputs = [front.input("INPUT1", B), front.input("INPUT0", A)]
    outputs = [front.output("OUTPUT1"), front.output("OUTPUT0")]
    result = front.infer("simple", inputs, outputs=outputs)
    assert [name for name, *_ in front.outputs_of(result)] == ["OUTPUT1", "OUTPUT0"]
    assert (result.as_numpy("OUTPUT0") == A + B).all()
    assert (result.as_numpy("OUTPUT1") == A - B).all()


def test_one_output_of_two_may_be_asked_for(front):
    inputs = [front.input("INPUT0", A), front.input("INPUT1", B)]
    result = front.infer("simple", inputs, outputs=[front.output("OUTPUT1")])
    assert [name for name, *_ in front.outputs_of(result)] == ["OUTPUT1"]
    assert (result.as_numpy("OUTPUT1") == A - B).all()


def test_an_output_in_memory_has_an_empty_entry_in_its_place(front):
    if not front.is_grpc:
        pytest.skip("HTTP finds outputs by name")
    with Region(front, 64) as region:
        inputs = [front.input("INPUT0", A), front.input("INPUT1", B)]
        outputs = [front.output("OUTPUT0", "shm", region, 64), front.output("OUTPUT1")]
        response = front.infer("simple", inputs, outputs=outputs).get_response()
        assert [len(raw) for raw in response.raw_output_contents] == [0, 64]
        assert [len(o.contents.ListFields()) for o in response.outputs] == [0, 0]


def test_an_output_in_memory_is_described_and_no_more(front):
    if front.is_grpc:
        pytest.skip("gRPC is tested above")
    with Region(front, 64) as region:
        inputs = [front.input("INPUT0", A), front.input("INPUT1", B)]
        outputs = [front.output("OUTPUT0", "shm", region, 64)]
        (shown,) = front.infer("simple", inputs, outputs=outputs).get_response()["outputs"]
        assert "data" not in shown and "binary_data_size" not in shown.get("parameters", {})


def test_input_and_output_may_be_the_same_bytes(either_front):
    front = either_front
    values = np.arange(1024, dtype=np.int32).reshape(1, 1024)
    with Region(front, values.nbytes) as region:
        inputs = [front.input("INPUT0", values, "shm", region)]
        outputs = [front.output("OUTPUT0", "shm", region, values.nbytes)]
        front.infer("identity_int32", inputs, outputs=outputs)
        assert (region.array(np.int32, values.shape) == values).all()


@pytest.mark.parametrize("shift", [4, 64, 2048, 4092])
def test_input_and_output_may_overlap(either_front, shift):
    """The result depends on the model. The server survives, and bytes outside of the window stay."""
    front = either_front
    values = np.arange(1024, dtype=np.int32).reshape(1, 1024)
    with Region(front, 2 * values.nbytes) as region:
        region.write(0, b"\xee" * region.size)
        inputs = [front.input("INPUT0", values, "shm", region)]
        outputs = [front.output("OUTPUT0", "shm", region, values.nbytes, shift)]
        front.infer("identity_int32", inputs, outputs=outputs)
        assert region.read(values.nbytes + shift, 16) == (b"\xee" * 16)[: values.nbytes - shift]


def test_two_outputs_may_go_to_the_same_bytes(either_front):
    front = either_front
    with Region(front, 64) as region:
        inputs = [front.input("INPUT0", A), front.input("INPUT1", B)]
        outputs = [front.output(name, "shm", region, 64) for name in ("OUTPUT0", "OUTPUT1")]
        front.infer("simple", inputs, outputs=outputs)
        got = region.array(np.int32, [1, 16])
        assert (got == A + B).all() or (got == A - B).all()


def test_two_regions_may_be_one_object(either_front):
    front = either_front
    with Region(front, 128) as region:
        front.register_system_shared_memory(region.name + "-again", region.key, 64, 64)
        region.write(64, A.tobytes())
        tensor = front.module.InferInput("INPUT0", [1, 16], "INT32")
        tensor.set_shared_memory(region.name + "-again", 64)
        result = front.infer("identity_int32", [tensor])
        assert (result.as_numpy("OUTPUT0") == A).all()
        front.unregister_system_shared_memory(region.name + "-again")


def test_a_batch_is_computed_row_by_row(front):
    a = np.arange(8 * 16, dtype=np.int32).reshape(8, 16)
    b = a[::-1].copy()
    result = front.infer("simple", [front.input("INPUT0", a), front.input("INPUT1", b)])
    assert (result.as_numpy("OUTPUT0") == a + b).all()
    assert (result.as_numpy("OUTPUT1") == a - b).all()


def test_strings_are_added(front):
    a = np.array([[str(n).encode() for n in range(16)]], dtype=object)
    b = np.array([[b"100"] * 16], dtype=object)
    for how in front.ways_in("BYTES"):
        if how == "shm":
            continue
        result = front.infer("simple_string", [front.input("INPUT0", a, how), front.input("INPUT1", b, how)])
        assert [int(text) for text in result.as_numpy("OUTPUT0").flatten()] == [100 + n for n in range(16)]
        assert [int(text) for text in result.as_numpy("OUTPUT1").flatten()] == [n - 100 for n in range(16)]


def test_small_integers_are_added(front):
    a = np.arange(16, dtype=np.int8).reshape(1, 16)
    b = np.full((1, 16), 3, dtype=np.int8)
    result = front.infer("simple_int8", [front.input("INPUT0", a), front.input("INPUT1", b)])
    assert (result.as_numpy("OUTPUT0") == a + b).all()
    assert (result.as_numpy("OUTPUT1") == a - b).all()


def test_strings_of_any_bytes_come_back(front):
    values = np.array([[b"", b"\x00\xff\xfe", bytes(range(256)), "ü漢".encode(), b"x" * 10_000]], dtype=object)
    with Region(front, size_of(values)) as region:
        for how in ("binary", "shm"):
            result = front.infer("simple_identity", [front.input("INPUT0", values, how, region)])
            assert result.as_numpy("OUTPUT0").tolist() == values.tolist()


def test_three_tensors_find_their_places(front):
    tensors = [np.full((1, n + 2), n, dtype=np.float32) for n in range(3)]
    inputs = [front.input(f"INPUT{n}", tensor) for n, tensor in enumerate(tensors)]
    with Region(front, 64) as region:
        inputs[1] = front.input("INPUT1", tensors[1], "shm", region, 8)
        # Raw contents skip the input in memory and follow the request's order.
        inputs = [inputs[2], inputs[1], inputs[0]]
        outputs = [front.output("OUTPUT1"), front.output("OUTPUT2"), front.output("OUTPUT0")]
        try:
            result = front.infer("identity_multi_fp32", inputs, outputs=outputs)
        except Exception as error:
            shapes = front.json("get_model_metadata", "identity_multi_fp32")["inputs"]
            raise AssertionError(f"{error}: {shapes}") from error
    for n, tensor in enumerate(tensors):
        assert (result.as_numpy(f"OUTPUT{n}") == tensor).all()


@pytest.mark.parametrize(
    "model, values",
    [
        ("identity_1d_fp32", np.arange(5, dtype=np.float32)),
        ("identity_2d_fp32", np.arange(6, dtype=np.float32).reshape(3, 2)),
        ("identity_scalar_bytes", np.array([b"one"], dtype=object)),
    ],
)
def test_models_without_batches_take_their_shapes(front, model, values):
    result = front.infer(model, [front.input("INPUT0", values)])
    assert result.as_numpy("OUTPUT0").tolist() == values.tolist()


def test_ids_are_echoed_and_absent_if_not_given(front):
    tensor = front.input("INPUT0", A)
    response = front.infer("identity_int32", [tensor], request_id="id 7 ü").get_response()
    assert (response.id if front.is_grpc else response["id"]) == "id 7 ü"
    response = front.infer("identity_int32", [tensor]).get_response()
    assert response.id == "" if front.is_grpc else "id" not in response


def test_a_version_may_be_named(front):
    tensor = front.input("INPUT0", A)
    result = front.infer("identity_int32", [tensor], model_version="1")
    assert (result.as_numpy("OUTPUT0") == A).all()


def test_parameters_of_a_request_are_taken(front):
    tensor = front.input("INPUT0", A)
    options = {"text": "x", "number": 7, "fraction": 0.5, "yes": True}
    result = front.infer("identity_int32", [tensor], parameters=options)
    assert (result.as_numpy("OUTPUT0") == A).all()
    result = front.infer(
        "identity_int32", [tensor], sequence_id=5, sequence_start=True, sequence_end=True, priority=1, timeout=10**6
    )
    assert (result.as_numpy("OUTPUT0") == A).all()


def test_typed_and_raw_contents_do_not_mix(front):
    if not front.is_grpc:
        pytest.skip("gRPC alone has them")
    text = "contents field must not be specified when using raw_input_contents for 'INPUT1' for model 'simple'"
    with refused(front, None, "INVALID_ARGUMENT", text):
        front.infer("simple", [front.input("INPUT0", A), front.input("INPUT1", B, "typed")])
