"""HTTP as `curl` and other clients speak it: paths, bodies, headers, and refusals."""

import base64
import gzip
import json
import struct
import zlib

import pytest

from refusals import leaks
from regions import Region, fresh
from fronts import Front
from wire import Http, raw

SHAPE = {"shape": [1, 16], "datatype": "INT32"}
NUMBERS = list(range(16))
BYTES = struct.pack("<16i", *NUMBERS)


@pytest.fixture
def http(server):
    with Http(server) as http:
        yield http
        # The same connection works after the error.
        assert http.ask("GET", "/v2/health/live")[0] == 200


@pytest.fixture(scope="module")
def client(server):
    with Front("http", server) as client:
        yield client


def simple(first=None, second=None, outputs=None, **rest):
    inputs = [
        {"name": "INPUT0", **SHAPE, **(first or {"data": NUMBERS})},
        {"name": "INPUT1", **SHAPE, **(second or {"data": NUMBERS})},
    ]
    request = {"inputs": inputs, **rest}
    if outputs is not None:
        request["outputs"] = outputs
    return request


def identity(datatype, shape, **rest):
    return {"inputs": [{"name": "INPUT0", "shape": shape, "datatype": datatype, **rest}]}


def refused(answer, status, text):
    assert answer[0] == status, answer
    assert list(answer[1]) == ["error"]
    assert text in answer[1]["error"], answer
    assert not leaks(answer[1]["error"])


# --- paths


@pytest.mark.parametrize(
    "path",
    [
        "/v2",
        "/v2/health/live",
        "/v2/health/ready",
        "/v2/models/simple",
        "/v2/models/simple/ready",
        "/v2/models/simple/config",
        "/v2/models/simple/stats",
        "/v2/models/simple/versions/1",
        "/v2/models/simple/versions/1/ready",
        "/v2/models/simple/versions/1/config",
        "/v2/models/simple/versions/1/stats",
        "/v2/models/stats",
        "/v2/systemsharedmemory/status",
        "/v2/cudasharedmemory/status",
        "/v2/models/simple?a=b",
        "/v2?verbose=true",
    ],
)
def test_what_is_got(http, path):
    assert http.ask("GET", path)[0] == 200


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v1",
        "/v2/",
        "/v3",
        "/v2/health",
        "/v2/health/live/",
        "/v2/models/simple/",
        "/v2/models/simple/nothing",
        "/v2/models/simple/versions",
        "/v2/models/simple/versions/1/infer/x",
        "/v2/systemsharedmemory",
        "/v2/systemsharedmemory/region/a",
        "/v2/systemsharedmemory/status/",
        "/V2",
        "//v2",
        "/v2x",
        "/v2/repository/models",
    ],
)
def test_what_is_not_found(http, path):
    status, _, body = http.ask("GET", path)
    assert (status, json.loads(body)) == (404, {"error": "Not Found"})


@pytest.mark.parametrize(
    "verb, path",
    [
        ("POST", "/v2"),
        ("POST", "/v2/health/live"),
        ("GET", "/v2/models/simple/infer"),
        ("POST", "/v2/models/simple/config"),
        ("GET", "/v2/repository/index"),
        ("POST", "/v2/systemsharedmemory/status"),
        ("GET", "/v2/systemsharedmemory/unregister"),
        ("GET", "/v2/systemsharedmemory/region/a/register"),
        ("PUT", "/v2/models/simple/infer"),
        ("DELETE", "/v2/models/simple"),
    ],
)
def test_another_verb(http, verb, path):
    status, _, body = http.ask(verb, path)
    assert (status, json.loads(body)) == (405, {"error": "Method Not Allowed"})


def test_register_and_unregister_answer_with_nothing(http, client):
    with Region(client, 64, register=False) as region:
        status, headers, body = http.ask(
            "POST",
            f"/v2/systemsharedmemory/region/{region.name}/register",
            json.dumps({"key": region.key, "byte_size": 64}),
        )
        assert (status, body, headers["Content-Type"]) == (200, b"", "application/json")
        status, headers, body = http.ask("GET", "/v2/systemsharedmemory/status")
        assert json.loads(body) == [{"name": region.name, "key": region.key, "offset": 0, "byte_size": 64}]
        assert headers["Content-Type"] == "application/json"
        status, headers, body = http.ask("POST", f"/v2/systemsharedmemory/region/{region.name}/unregister")
        assert (status, body, headers["Content-Type"]) == (200, b"", "application/json")
        assert json.loads(http.ask("GET", "/v2/systemsharedmemory/status")[2]) == []


def test_a_request_may_come_in_pieces(server):
    import socket
    import time

    host, port = server.http.split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        for piece in (b"GET /v2/hea", b"lth/li", b"ve HTTP/1.1\r\nHost: x\r\n", b"Connection: close\r\n\r\n"):
            connection.sendall(piece)
            time.sleep(0.02)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")


# --- registering


def register(http, name, body):
    return http.post(f"/v2/systemsharedmemory/region/{name}/register", body)


@pytest.mark.parametrize(
    "body, text",
    [
        ({"byte_size": 64}, "Shared memory register request has no 'key' field"),
        ({"key": "/x"}, "Shared memory register request has no 'byte_size' field"),
        ({}, "Shared memory register request has no 'key' field"),
    ],
)
def test_a_field_that_is_missing(http, body, text):
    refused(register(http, "a", body), 400, text)


@pytest.mark.parametrize("size", [64.0, "64", -1, True, None, [64], 1.5, 2**64, 1e3])
def test_a_size_that_is_no_unsigned_integer(http, size):
    text = "attempt to access JSON non-unsigned-integer as unsigned-integer"
    refused(register(http, "a", {"key": "/x", "byte_size": size}), 500, text)


@pytest.mark.parametrize("offset", [0.0, "0", -1, True, [0], 2**64])
def test_an_offset_that_is_no_unsigned_integer(http, offset):
    text = "attempt to access JSON non-unsigned-integer as unsigned-integer"
    refused(register(http, "a", {"key": "/x", "byte_size": 1, "offset": offset}), 500, text)


@pytest.mark.parametrize("key", [1, True, None, ["/x"], {"a": 1}])
def test_a_key_that_is_no_text(http, key):
    text = "attempt to access JSON non-string as string"
    refused(register(http, "a", {"key": key, "byte_size": 1}), 500, text)


@pytest.mark.parametrize("body", ["", "{", "[", "{'key': 1}", "nonsense", '{"key":"/x","byte_size":1', "\xff"])
def test_a_body_that_is_no_json(http, body):
    refused(register(http, "a", body), 500 if body else 400, "failed to parse the request JSON buffer: ")


def test_fields_that_nobody_knows_are_passed_over(http, client):
    with Region(client, 64, register=False) as region:
        body = {"key": region.key, "byte_size": 64, "offset": 0, "colour": {"deep": [1]}}
        assert register(http, region.name, body)[0] == 200
        client.unregister_system_shared_memory(region.name)


@pytest.mark.parametrize("escaped, name", [("a%20b", "a b"), ("%61%62", "ab"), ("a%2Fb", "a/b"), ("a+b", "a+b"), ("%25", "%")])
def test_names_in_paths_are_decoded(http, client, escaped, name):
    with Region(client, 64, register=False) as region:
        assert register(http, escaped, {"key": region.key, "byte_size": 64})[0] == 200
        assert list(client.system_status()) == [name]
        with Front("grpc", client.server) as grpc:
            assert list(grpc.system_status(name)) == [name]
        assert http.ask("POST", f"/v2/systemsharedmemory/region/{escaped}/unregister")[0] == 200
        assert client.system_status() == {}


def test_a_region_without_a_name(http):
    text = "'region name' is necessary to register system shared memory region"
    status, _, body = http.ask("POST", "/v2/systemsharedmemory/region//register", '{"key":"/x","byte_size":1}')
    assert status in (400, 404)
    status, _, body = http.ask("POST", "/v2/systemsharedmemory/register", '{"key":"/x","byte_size":1}')
    assert status == 400 and json.loads(body) == {"error": text}


def test_gpu_handles_by_hand(http):
    path = "/v2/cudasharedmemory/region/a/register"
    good = base64.b64encode(bytes(64)).decode()
    broken = "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t"
    for handle in ("", "x", "====", base64.b64encode(bytes(63)).decode(), base64.b64encode(bytes(65)).decode()):
        body = {"raw_handle": {"b64": handle}, "device_id": 0, "byte_size": 1}
        refused(http.post(path, body), 400, broken)
    body = {"raw_handle": {"b64": good}, "device_id": 0, "byte_size": 1}
    status, answer = http.post(path, body)
    assert status in (200, 400)
    if status == 400:
        assert answer["error"] == "failed to register shared memory region: invalid args"
    http.ask("POST", "/v2/cudasharedmemory/unregister")
    refused(http.post(path, {"device_id": 0, "byte_size": 1}), 400, "has no 'raw_handle' field")
    refused(http.post(path, {"raw_handle": {"b64": good}, "device_id": 0}), 400, "has no 'byte_size' field")


# --- inferring


def test_json_there_and_back(http):
    status, answer = http.infer("simple", simple(id="mine"))
    assert status == 200
    assert answer["model_name"] == "simple" and str(answer["model_version"]) == "1" and answer["id"] == "mine"
    first, second = answer["outputs"]
    assert first == {"name": "OUTPUT0", "datatype": "INT32", "shape": [1, 16], "data": [2 * n for n in NUMBERS]}
    assert second["data"] == [0] * 16


def test_a_version_in_the_path(http):
    assert http.post("/v2/models/simple/versions/1/infer", simple())[0] == 200
    text = "Request for unknown model: 'simple' version 9 is not found"
    refused(http.post("/v2/models/simple/versions/9/infer", simple()), 404, text)


@pytest.mark.parametrize("data", [[NUMBERS], NUMBERS, [NUMBERS[:8], NUMBERS[8:]], [[n] for n in NUMBERS]])
def test_data_is_nested_or_flat(http, data):
    status, answer = http.infer("simple", simple({"data": data}))
    assert status == 200 or "Shape does not match" in answer["error"]
    if data in ([NUMBERS], NUMBERS):
        assert status == 200
        assert answer["outputs"][0]["data"] == [2 * n for n in NUMBERS]


@pytest.mark.parametrize("data", [NUMBERS[:15], NUMBERS + [1], [], [NUMBERS, NUMBERS]])
def test_another_count_of_elements(http, data):
    text = "Unable to parse 'data': Shape does not match true shape of 'data' field"
    refused(http.infer("simple", simple({"data": data})), 500, text)


@pytest.mark.parametrize("element", ["1", None, {}, 1.5, 2**31, -(2**31) - 1, 2**64, 1e400])
def test_elements_that_are_no_int32(http, element):
    answer = http.infer("simple", simple({"data": [element] + NUMBERS[1:]}))
    assert answer[0] in (400, 500)


def test_floats_take_integers_nan_and_infinity(http):
    body = '{"inputs":[{"name":"INPUT0","shape":[1,6],"datatype":"FP32","data":[1,-0.5,NaN,Infinity,-Infinity,1e3]}]}'
    status, headers, answer = http.ask("POST", "/v2/models/identity_fp32/infer", body)
    assert status == 200
    (output,) = json.loads(answer)["outputs"]
    assert output["data"][:2] == [1, -0.5]
    assert str(output["data"][2]) == "nan"
    assert output["data"][3:] == [float("inf"), float("-inf"), 1000]


def test_booleans_are_words(http):
    status, answer = http.infer("identity_bool", identity("BOOL", [1, 2], data=[True, False]))
    assert status == 200 and answer["outputs"][0]["data"] == [True, False]


def test_texts_are_bytes(http):
    texts = ["", "ü漢", 'quote " and \\', "line\nbreak", "\u0001"]
    status, answer = http.infer("identity_bytes", identity("BYTES", [1, 5], data=texts))
    assert status == 200 and answer["outputs"][0]["data"] == texts


def test_bytes_that_are_no_text_are_no_json(http):
    header = identity("BYTES", [1, 1], parameters={"binary_data_size": 6})
    status, headers, body = http.ask(
        "POST",
        "/v2/models/identity_bytes/infer",
        json.dumps(header).encode() + b"\x02\0\0\0\xff\xfe",
        {"Inference-Header-Content-Length": str(len(json.dumps(header)))},
    )
    # The server refuses the request or returns valid JSON.
    assert status in (200, 400, 500)
    json.loads(body)


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_halves_are_not_json(http, datatype):
    model = f"identity_{datatype.lower()}"
    text = (
        f"receiving {datatype} data via JSON is not supported. Please use the binary data format for input INPUT0"
    )
    refused(http.infer(model, identity(datatype, [1, 1], data=[1])), 400, text)
    header = identity(datatype, [1, 1], parameters={"binary_data_size": 2})
    status, answer, _ = http.binary(model, header, b"\0\0")
    assert status == 400 and f"sending {datatype}" in answer["error"] and "OUTPUT0" in answer["error"]


@pytest.mark.parametrize(
    "body",
    ["", "{", "null", "[]", "7", '"x"', "{}", '{"inputs":7}', '{"inputs":[7]}', '{"inputs":[{}]}', '{"inputs":{}}'],
)
def test_a_body_that_is_no_request(http, body):
    status, answer = http.infer("simple", body)
    assert status in (400, 500) and answer["error"]


@pytest.mark.parametrize("field", ["name", "shape", "datatype"])
@pytest.mark.parametrize("value", [None, 7, 1.5, {}, [None], "", True, [1.5], ["1"], "absent"])
def test_a_field_of_an_input_that_is_wrong(http, field, value):
    request = simple()
    if value == "absent":
        del request["inputs"][0][field]
    else:
        request["inputs"][0][field] = value
    status, answer = http.infer("simple", request)
    assert status in (400, 404, 500) and answer["error"]


@pytest.mark.parametrize("shape", [[-1, 16], [1, -16], [2**63], [2**64, 1], [2**32, 2**32], [2**62] * 4, [0] * 1000, [1] * 100])
def test_a_shape_that_cannot_be(http, shape):
    status, answer = http.infer("identity_int32", identity("INT32", shape, data=[1]))
    assert status in (400, 500) and answer["error"]
    header = identity("INT32", shape, parameters={"binary_data_size": 4})
    assert http.binary("identity_int32", header, b"\0" * 4)[0] in (400, 500)


# --- binary


def test_both_outputs_in_order_behind_the_json(http):
    outputs = [
        {"name": "OUTPUT1", "parameters": {"binary_data": True}},
        {"name": "OUTPUT0", "parameters": {"binary_data": True}},
    ]
    sizes = {"parameters": {"binary_data_size": 64}}
    status, answer, tail = http.binary("simple", simple(sizes, sizes, outputs), BYTES * 2)
    assert status == 200
    assert [o["name"] for o in answer["outputs"]] == ["OUTPUT1", "OUTPUT0"]
    assert [o["parameters"]["binary_data_size"] for o in answer["outputs"]] == [64, 64]
    assert tail == bytes(64) + struct.pack("<16i", *[2 * n for n in NUMBERS])


@pytest.mark.parametrize("everything", [None, False, True])
@pytest.mark.parametrize("one", [None, False, True])
def test_which_outputs_are_binary(http, everything, one):
    parameters = {} if everything is None else {"parameters": {"binary_data_output": everything}}
    output = {"name": "OUTPUT0"} | ({} if one is None else {"parameters": {"binary_data": one}})
    body = json.dumps(simple(outputs=[output, {"name": "OUTPUT1"}], **parameters))
    status, headers, answer = http.ask("POST", "/v2/models/simple/infer", body)
    assert status == 200
    length = headers.get("Inference-Header-Content-Length")
    header = json.loads(answer[: int(length)] if length else answer)
    binary = ["data" not in output for output in header["outputs"]]
    assert binary == [bool(everything if one is None else one), bool(everything)]
    assert (length is not None) == any(binary)
    tail = len(answer) - int(length) if length else 0
    assert tail == 64 * sum(binary)
    if length:
        assert headers["Content-Type"] == "application/octet-stream"
    else:
        assert headers["Content-Type"] == "application/json"


def test_json_and_binary_inputs_mix(http):
    request = simple({"data": NUMBERS}, {"parameters": {"binary_data_size": 64}})
    status, answer, _ = http.binary("simple", request, BYTES)
    assert status == 200 and answer["outputs"][0]["data"] == [2 * n for n in NUMBERS]


@pytest.mark.parametrize("size", [60, 68, 0])
def test_a_tail_for_another_shape(http, size):
    request = simple({"data": NUMBERS}, {"parameters": {"binary_data_size": size}})
    status, answer, _ = http.binary("simple", request, bytes(size))
    assert status == 400 and f"Expected 64, got {size}" in answer["error"]


def test_a_tail_that_is_too_short_or_too_long(http):
    request = simple({"data": NUMBERS}, {"parameters": {"binary_data_size": 64}})
    status, answer, _ = http.binary("simple", request, BYTES[:60])
    assert status == 400
    assert answer["error"] == "unexpected size for input 'INPUT1', expecting 4 additional bytes for model 'simple'"
    status, answer, _ = http.binary("simple", request, BYTES + b"x")
    assert (status, answer["error"]) == (400, "unexpected additional input data for model 'simple'")


@pytest.mark.parametrize("size", [-1, 1.5, "64", True, None, 2**63, 2**64 - 1, 2**64])
def test_a_binary_size_that_cannot_be(http, size):
    request = simple({"data": NUMBERS}, {"parameters": {"binary_data_size": size}})
    status, answer, _ = http.binary("simple", request, BYTES)
    assert status in (400, 500) and answer["error"]


def test_header_lengths(http):
    body = json.dumps(simple()).encode()
    path = "/v2/models/simple/infer"

    def ask(length):
        status, _, answer = http.ask("POST", path, body, {"Inference-Header-Content-Length": length})
        return status, json.loads(answer)

    assert ask(str(len(body)))[0] == 200
    past = len(body) + 1
    refused(ask(str(past)), 400, f"inference header size should be in range (0, {len(body)}), got: {past}")
    refused(ask(str(2**62)), 400, f"inference header size should be in range (0, {len(body)}), got: {2**62}")
    assert ask("-1")[0] == 400
    assert ask(str(2**64))[0] == 400
    for junk in ("abc", "1x", "0x10", "1.0", ""):
        refused(ask(junk), 400, "Unable to parse Inference-Header-Content-Length, got: ")
    assert ask(str(len(body) - 1))[0] in (400, 500)
    assert ask("1")[0] in (400, 500)


def test_chunked_bodies(http):
    body = json.dumps(simple()).encode()
    chunks = [body[at : at + 7] for at in range(0, len(body), 7)]
    headers = {"Transfer-Encoding": "chunked"}
    status, _, answer = http.ask("POST", "/v2/models/simple/infer", iter(chunks), headers, chunked=True)
    assert status == 200 and json.loads(answer)["outputs"][0]["data"] == [2 * n for n in NUMBERS]
    header = json.dumps(simple({"data": NUMBERS}, {"parameters": {"binary_data_size": 64}})).encode()
    headers |= {"Inference-Header-Content-Length": str(len(header))}
    whole = header + BYTES
    chunks = [whole[at : at + 50] for at in range(0, len(whole), 50)]
    status, _, answer = http.ask("POST", "/v2/models/simple/infer", iter(chunks), headers, chunked=True)
    assert status == 200 and json.loads(answer)["outputs"][0]["data"] == [2 * n for n in NUMBERS]


def test_expect_continue(server):
    body = json.dumps(simple()).encode()
    head = b"POST /v2/models/simple/infer HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nConnection: close\r\n"
    answer = raw(server, head + b"Content-Length: %d\r\n\r\n" % len(body) + body, shut=False)
    assert b"HTTP/1.1 200 OK" in answer


# --- raw requests


def raw_infer(http, model, body, **options):
    headers = {"Inference-Header-Content-Length": "0"}
    status, headers, answer = http.ask("POST", f"/v2/models/{model}/infer", body, headers, **options)
    length = headers.get("Inference-Header-Content-Length")
    split = int(length) if length else len(answer)
    return status, json.loads(answer[:split]), answer[split:]


def test_a_raw_request_deduces_its_shape(http):
    status, answer, tail = raw_infer(http, "identity_1d_fp32", bytes(20))
    assert status == 200 and tail == bytes(20)
    (output,) = answer["outputs"]
    assert (output["shape"], output["datatype"]) == ([5], "FP32")
    assert output["parameters"] == {"binary_data_size": 20}
    # A batching model gets a batch of one.
    status, answer, tail = raw_infer(http, "identity_int32", BYTES)
    assert status == 200 and answer["outputs"][0]["shape"] == [1, 16] and tail == BYTES


def test_a_raw_text_gets_its_length(http):
    status, answer, tail = raw_infer(http, "identity_scalar_bytes", b"hello")
    assert status == 200 and answer["outputs"][0]["shape"] == [1] and tail == b"\x05\0\0\0hello"


def test_what_raw_requests_cannot_say(http):
    text = "Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in 'simple' model configuration"
    refused(raw_infer(http, "simple", BYTES)[:2], 400, text)
    text = "The shape of the raw input 'INPUT0' can not be deduced because there are more than one variable-sized dimension"
    refused(raw_infer(http, "identity_2d_fp32", bytes(16))[:2], 400, text)
    text = "For BYTE datatype raw input 'INPUT0', the model must have input shape [1]"
    refused(raw_infer(http, "identity_bytes", b"x")[:2], 400, text)
    assert raw_infer(http, "identity_1d_fp32", bytes(5))[0] == 400


def test_a_raw_request_in_chunks(http):
    headers = {"Inference-Header-Content-Length": "0", "Transfer-Encoding": "chunked"}
    status, _, answer = http.ask("POST", "/v2/models/identity_1d_fp32/infer", iter([bytes(3), bytes(9)]), headers, chunked=True)
    assert status == 200 and answer.endswith(bytes(12))


# --- regions by hand


def shared(name, size=64, **rest):
    return {"parameters": {"shared_memory_region": name, "shared_memory_byte_size": size, **rest}}


def test_reserved_parameters(http):
    refused(http.infer("simple", simple(parameters={"triton_x": True})), 400, "'triton_'")


def test_two_sources_and_none(http, client):
    with Region(client, 64) as region:
        both = shared(region.name) | {"data": NUMBERS}
        text = (
            "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
            "'shared_memory_region' in 'parameters'. But set 'data' 'shared_memory_region'"
        )
        refused(http.infer("simple", simple(both)), 400, text)
        both = {"parameters": {"binary_data_size": 64}, "data": NUMBERS}
        status, answer, _ = http.binary("simple", simple(both), BYTES)
        assert status == 400 and "But set 'data' 'binary_data_size'" in answer["error"]
        both = shared(region.name, binary_data_size=64)
        status, answer, _ = http.binary("simple", simple(both), BYTES)
        assert status == 400 and "But set 'binary_data_size' 'shared_memory_region'" in answer["error"]
    refused(http.infer("simple", simple({"parameters": {}})), 400, "But no field is set")


def test_an_output_is_not_binary_and_in_memory(http, client):
    with Region(client, 64) as region:
        output = {"name": "OUTPUT0"} | shared(region.name, binary_data=True)
        text = "Output can't set both 'shared_memory_region' and 'binary_data'"
        refused(http.infer("simple", simple(outputs=[output])), 400, text)
        output = {"name": "OUTPUT0"} | shared(region.name, binary_data=False)
        assert http.infer("simple", simple(outputs=[output]))[0] == 200


@pytest.mark.parametrize("name", ["shared_memory_byte_size", "shared_memory_offset"])
def test_a_size_or_offset_without_a_region(http, name):
    status, answer = http.infer("simple", simple({"parameters": {name: 64}, "data": NUMBERS}))
    assert status == 400 and answer["error"]
    output = {"name": "OUTPUT0", "parameters": {name: 64}}
    status, answer = http.infer("simple", simple(outputs=[output]))
    assert status == 400 and answer["error"]


def test_a_region_without_a_size(http, client):
    with Region(client, 64) as region:
        alone = {"parameters": {"shared_memory_region": region.name}}
        assert http.infer("simple", simple(alone))[0] in (400, 500)
        assert http.infer("simple", simple(outputs=[{"name": "OUTPUT0"} | alone]))[0] in (400, 500)


@pytest.mark.parametrize("value", [-1, 1.5, "0", True, [0], {}, 2**64, 1e30])
def test_memory_parameters_that_are_no_unsigned_integers(http, client, value):
    with Region(client, 64) as region:
        for parameters in (shared(region.name, value), shared(region.name, shared_memory_offset=value)):
            status, answer = http.infer("simple", simple(parameters))
            assert status in (400, 500) and answer["error"]
            output = {"name": "OUTPUT0"} | parameters
            status, answer = http.infer("simple", simple(outputs=[output]))
            assert status in (400, 500) and answer["error"]


@pytest.mark.parametrize("offset, size", [(2**63, 64), (2**64 - 1, 64), (2**64 - 64, 64), (2**64 - 1, 2**64 - 1), (1, 2**64 - 1)])
def test_windows_near_the_end_of_all_numbers(http, client, offset, size):
    with Region(client, 64) as region:
        window = shared(region.name, size, shared_memory_offset=offset)
        answer = http.infer("simple", simple(window))
        wraps = (
            f"Integer overflow detected: byte_size ({size}) + offset ({offset}) exceeds maximum value "
            f"(18446744073709551615) for region '{region.name}'"
        )
        beyond = f"Invalid offset for shared memory region: '{region.name}'"
        assert answer[0] == 400
        assert answer[1]["error"] in (wraps, beyond) or answer[1]["error"].startswith("[request id")
        if offset + size >= 2**64:
            assert answer[1]["error"] in (wraps, beyond)


# --- compression


@pytest.mark.parametrize("name, pack", [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_compressed_bodies(http, name, pack):
    header = json.dumps(simple({"data": NUMBERS}, {"parameters": {"binary_data_size": 64}})).encode()
    headers = {"Content-Encoding": name, "Inference-Header-Content-Length": str(len(header))}
    status, _, body = http.ask("POST", "/v2/models/simple/infer", pack(header + BYTES), headers)
    assert status == 200 and json.loads(body)["outputs"][0]["data"] == [2 * n for n in NUMBERS]
    # Damaged, cut off, and not compressed.
    for content in (b"nonsense", pack(header + BYTES)[:-9], header + BYTES, b""):
        status, _, body = http.ask("POST", "/v2/models/simple/infer", content, headers)
        assert status in (400, 500) and json.loads(body)["error"]


def test_another_encoding_is_not_supported(http):
    for name in ("br", "zstd", "compress", "nonsense"):
        status, _, body = http.ask("POST", "/v2/models/simple/infer", json.dumps(simple()), {"Content-Encoding": name})
        assert status == 501 and json.loads(body)["error"]
    status, _, body = http.ask("POST", "/v2/models/simple/infer", json.dumps(simple()), {"Content-Encoding": "identity"})
    assert status == 200


@pytest.mark.parametrize("name, unpack", [("gzip", gzip.decompress), ("deflate", zlib.decompress)])
def test_compressed_answers(http, name, unpack):
    values = [0] * 10_000
    body = json.dumps(identity("INT32", [1, 10_000], data=values))
    status, headers, answer = http.ask("POST", "/v2/models/identity_int32/infer", body, {"Accept-Encoding": name})
    assert status == 200 and headers["Content-Encoding"] == name
    assert json.loads(unpack(answer))["outputs"][0]["data"] == values


def test_a_bomb_takes_bounded_memory(server, http):
    """1 MiB of this decompresses to 1 GiB."""
    pack = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = b"".join(pack.compress(bytes(1 << 20)) for _ in range(1024)) + pack.flush()
    server.forget_peak()
    before = server.memory()
    status, _, body = http.ask("POST", "/v2/models/simple/infer", bomb, {"Content-Encoding": "gzip"})
    assert status in (400, 413, 500) and json.loads(body)["error"]
    assert server.memory("VmHWM") - before < 512 << 20
    del body


# --- bombs of JSON


def test_nesting_that_is_too_deep(http):
    for depth in (101, 1000, 100_000):
        deep = "[" * depth + "]" * depth
        body = '{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"INT32","data":%s}]}' % deep
        status, answer = http.infer("identity_int32", body)
        assert status in (400, 500) and answer["error"]
        status, answer = http.infer("identity_int32", deep)
        assert status in (400, 500) and answer["error"]
        assert "JSON nesting depth exceeds maximum allowed limit (100)" in answer["error"]


@pytest.mark.parametrize("number", ["1e999999", "-" + "9" * 10_000, "0." + "1" * 100_000, "1e-999999"])
def test_numbers_that_are_too_long(http, number):
    body = '{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"FP32","data":[%s]}]}' % number
    status, _ = http.infer("identity_fp32", body)
    assert status in (200, 400, 500)


def test_many_inputs_and_outputs(http):
    inputs = [{"name": f"I{n}", **SHAPE, "data": NUMBERS} for n in range(5000)]
    assert http.infer("simple", {"inputs": inputs})[0] == 400
    outputs = [{"name": f"O{n}"} for n in range(5000)]
    assert http.infer("simple", simple(outputs=outputs))[0] == 400
    outputs = [{"name": "OUTPUT0"}] * 5000
    assert http.infer("simple", simple(outputs=outputs))[0] in (200, 400)


def test_a_claim_of_many_elements_allocates_nothing(server, http):
    server.forget_peak()
    before = server.memory()
    for shape in ([1, 2**30], [2**20, 2**20], [8, 2**40]):
        status, answer = http.infer("identity_int32", identity("INT32", shape, data=[1]))
        assert status in (400, 500) and answer["error"]
    assert server.memory("VmHWM") - before < 64 << 20


# --- connections that misbehave


def test_connections_that_misbehave(server):
    body = json.dumps(simple()).encode()
    head = b"POST /v2/models/simple/infer HTTP/1.1\r\nHost: x\r\n"
    for data in (
        b"",
        b"\x00" * 100,
        b"GET",
        b"nonsense\r\n\r\n",
        b"GET /v2 HTTP/9.9\r\n\r\n",
        head,
        head + b"Content-Length: 100\r\n\r\n",
        head + b"Content-Length: %d\r\n\r\n" % (len(body) + 9) + body,
        head + b"Content-Length: -1\r\n\r\n",
        head + b"Content-Length: 99999999999999999999\r\n\r\n",
        head + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        head + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        head + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
        head + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab",
        head + b"X: " + b"y" * 1_000_000 + b"\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ):
        raw(server, data)
        assert server.alive()
    with Http(server) as http:
        assert http.ask("GET", "/v2/health/live")[0] == 200


def test_clients_that_hang_up_lose_no_descriptor(server):
    import socket

    host, port = server.http.split(":")
    head = b"POST /v2/models/identity_int32/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n"
    head += b"Inference-Header-Content-Length: 100\r\n\r\n"

    def hang_up():
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            connection.sendall(head + bytes(5000))

    hang_up()
    with Http(server) as http:
        before = server.descriptors()
        for _ in range(200):
            hang_up()
        import time

        deadline = time.monotonic() + 20
        while server.descriptors() > before and time.monotonic() < deadline:
            time.sleep(0.05)
        assert server.descriptors() <= before
        assert http.ask("GET", "/v2/health/live")[0] == 200


def test_two_requests_in_one_segment(server):
    one = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
    last = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    assert raw(server, one + one + last, shut=False).count(b"HTTP/1.1 200") == 3
    assert fresh()
