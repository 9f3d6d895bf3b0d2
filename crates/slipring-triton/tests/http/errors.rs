//! Inference requests that HTTP refuses: every text of the table, on connections that stay usable.

use crate::http_served::{Client, SIMPLE, Served, ints, request, simple_json, tensor, window};

/// Asserts that the connection is in step.
fn goes_on(client: &mut Client) {
    client.call("POST", SIMPLE, &request(&simple_json(), &[])).ok();
}

const DATA: &str = r#""data":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15]"#;

/// Returns a request to `identity_int32` with an input of shape `[1,16]`.
fn identity(source: &str, output: &str) -> String {
    let outputs = match output {
        "" => vec![],
        place => vec![format!(r#"{{"name":"OUTPUT0",{place}}}"#)],
    };
    request(&[tensor("INPUT0", "INT32", "[1,16]", source)], &outputs)
}

const IDENTITY: &str = "/v2/models/identity_int32/infer";

#[test]
fn regions_that_are_not_there_or_too_small() {
    let served = Served::new();
    let object = served.region("r", 128);
    let mut client = served.client();
    object.write_at(0, &[9; 128]).unwrap();
    let overflow = format!(
        "Integer overflow detected: byte_size (64) + offset ({}) exceeds maximum value (18446744073709551615) for region 'r'",
        u64::MAX - 32
    );
    for (region, offset, len, status, text) in [
        ("none", 0, 64, 404, "Unable to find shared memory region: 'none'"),
        ("", 0, 64, 404, "Unable to find shared memory region: ''"),
        ("r", 129, 64, 400, "Invalid offset for shared memory region: 'r'"),
        ("r", 128, 64, 400, "Invalid offset for shared memory region: 'r'"),
        ("r", 1 << 63, 64, 400, "Invalid offset for shared memory region: 'r'"),
        ("r", (1 << 63) - 1, 64, 400, "Invalid offset for shared memory region: 'r'"),
        ("r", 65, 64, 400, "Invalid offset + byte size for shared memory region: 'r'"),
        ("r", 127, 64, 400, "Invalid offset + byte size for shared memory region: 'r'"),
        ("r", u64::MAX - 32, 64, 400, &overflow),
    ] {
        let window = window(region, offset, len);
        client.call("POST", IDENTITY, &identity(&window, "")).is_error(status, text);
        client.call("POST", IDENTITY, &identity(DATA, &window)).is_error(status, text);
        goes_on(&mut client);
    }
    let small = "shared memory size specified with the request for output 'OUTPUT0' (63 bytes) should be at least 64 bytes to hold the results";
    client.call("POST", IDENTITY, &identity(DATA, &window("r", 0, 63))).is_error(500, small);
    // The server has written nothing.
    let mut bytes = [0; 128];
    object.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, [9; 128]);
    client.call("POST", IDENTITY, &identity(DATA, &window("r", 0, 100))).ok();
    object.read_at(0, &mut bytes).unwrap();
    assert_eq!((&bytes[..64], &bytes[64..]), (&ints(0..16)[..], &[9; 64][..]));
}

#[test]
fn a_decoupled_model_has_no_responses_over_http() {
    let served = Served::new();
    let mut client = served.client();
    let text = "HTTP end point doesn't support models with decoupled transaction policy";
    for body in ["", "{", &request(&[tensor("IN", "INT32", "[1]", r#""data":[1]"#)], &[])] {
        client.call("POST", "/v2/models/repeat_int32/infer", body).is_error(501, text);
        goes_on(&mut client);
    }
}

#[test]
fn sizes_unlike_the_shape() {
    let served = Served::new();
    let _object = served.region("r", 128);
    let mut client = served.client();
    for len in [60, 68, 0] {
        let text = format!(
            "[request id: <id_unknown>] input byte size mismatch for input 'INPUT0' for model 'identity_int32'. Expected 64, got {len}"
        );
        client.call("POST", IDENTITY, &identity(&window("r", 0, len), "")).is_error(400, &text);
        let size = format!(r#""parameters":{{"binary_data_size":{len}}}"#);
        let tail = vec![0; len as usize];
        client.infer("identity_int32", &identity(&size, ""), &tail).is_error(400, &text);
        let named = identity(&window("r", 0, len), "").replacen('{', r#"{"id":"my id","#, 1);
        let text = text.replace("<id_unknown>", "my id");
        client.call("POST", IDENTITY, &named).is_error(400, &text);
        goes_on(&mut client);
    }
}

#[test]
fn places_of_data_exclude_each_other() {
    let served = Served::new();
    let _object = served.region("r", 128);
    let mut client = served.client();
    let only = "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', 'shared_memory_region' in 'parameters'.";
    let shared = window("r", 0, 64);
    let both = shared.replacen('{', r#"{"binary_data_size":64,"#, 1);
    let size = r#""parameters":{"binary_data_size":64}"#;
    let mut is = |source: &str, output: &str, text: &str| {
        client.call("POST", IDENTITY, &identity(source, output)).is_error(400, text);
    };
    is(&format!("{DATA},{shared}"), "", &format!("{only} But set 'data' 'shared_memory_region'"));
    is(&format!("{DATA},{size}"), "", &format!("{only} But set 'data' 'binary_data_size'"));
    is(&both, "", &format!("{only} But set 'binary_data_size' 'shared_memory_region'"));
    is(
        &format!("{DATA},{both}"),
        "",
        &format!("{only} But set 'data' 'binary_data_size' 'shared_memory_region'"),
    );
    is(r#""parameters":{}"#, "", &format!("{only} But no field is set"));
    let both = shared.replacen('{', r#"{"binary_data":true,"#, 1);
    is(DATA, &both, "Output can't set both 'shared_memory_region' and 'binary_data'");
    for tensor in ["INPUT0", "OUTPUT0"] {
        let mut at = |parameters: &str, text: String| {
            let parameters = format!(r#""parameters":{{{parameters}}}"#);
            match tensor {
                "INPUT0" => is(&format!("{DATA},{parameters}"), "", &text),
                _ => is(DATA, &parameters, &text),
            }
        };
        at(
            r#""shared_memory_byte_size":64"#,
            format!(
                "'shared_memory_byte_size' can not be specified without 'shared_memory_region' parameter for tensor '{tensor}'"
            ),
        );
        at(
            r#""shared_memory_offset":0"#,
            format!(
                "'shared_memory_offset' can not be specified without 'shared_memory_region' parameter for tensor '{tensor}'"
            ),
        );
        at(
            r#""shared_memory_region":"r""#,
            format!(
                "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor '{tensor}'"
            ),
        );
    }
    // `false` excludes nothing, and neither does a default for all outputs.
    let fine = shared.replacen('{', r#"{"binary_data":false,"#, 1);
    client.call("POST", IDENTITY, &identity(DATA, &fine)).ok();
    let all =
        identity(DATA, &shared).replacen('{', r#"{"parameters":{"binary_data_output":true},"#, 1);
    client.call("POST", IDENTITY, &all).ok();
}

#[test]
fn numbers_of_parameters_never_wrap() {
    let served = Served::new();
    let _object = served.region("r", 128);
    let mut client = served.client();
    for (name, value) in [
        ("shared_memory_offset", "-1"),
        ("shared_memory_offset", "18446744073709551616"),
        ("shared_memory_offset", "0.0"),
        ("shared_memory_byte_size", "-64"),
        ("shared_memory_byte_size", "6.4e1"),
        ("shared_memory_byte_size", "\"64\""),
        ("binary_data_size", "-64"),
        ("binary_data_size", "null"),
    ] {
        let window = format!(r#""parameters":{{"shared_memory_region":"r","{name}":{value}}}"#);
        let text = format!(
            "Unable to parse '{name}': attempt to access JSON non-unsigned-integer as unsigned-integer"
        );
        client.call("POST", IDENTITY, &identity(&window, "")).is_error(500, &text);
    }
    for (name, value, kind) in
        [("shared_memory_region", "7", "string"), ("binary_data", "1", "boolean")]
    {
        let output = format!(r#""parameters":{{"{name}":{value}}}"#);
        let text = format!("Unable to parse '{name}': attempt to access JSON non-{kind} as {kind}");
        client.call("POST", IDENTITY, &identity(DATA, &output)).is_error(500, &text);
    }
    let reserved = identity(DATA, "").replacen('{', r#"{"parameters":{"triton_x":1},"#, 1);
    client.call("POST", IDENTITY, &reserved).has_error(400, "'triton_'");
    let other = r#"{"parameters":{"sequence_id":1,"timeout":5,"mine":"x","b":true,"f":1.5},"#;
    client.call("POST", IDENTITY, &identity(DATA, "").replacen('{', other, 1)).ok();
    let nested = identity(DATA, "").replacen('{', r#"{"parameters":{"mine":[1]},"#, 1);
    client.call("POST", IDENTITY, &nested).has_error(400, "parameter 'mine' has invalid type");
    goes_on(&mut client);
}

#[test]
fn lengths_of_the_header() {
    let served = Served::new();
    let mut client = served.client();
    let body = request(&simple_json(), &[]);
    let len = body.len();
    let mut call = |value: &str| {
        let header = format!("Inference-Header-Content-Length: {value}\r\n");
        client.call_with("POST", SIMPLE, &header, body.as_bytes())
    };
    call(&len.to_string()).ok();
    for value in [(len + 1).to_string(), "-1".to_owned(), u64::MAX.to_string(), "9".repeat(40)] {
        let text = format!("inference header size should be in range (0, {len}), got: {value}");
        call(&value).is_error(400, &text);
    }
    for value in ["abc", "1.0", "0x10", "12 13", "--1", ""] {
        let text = format!("Unable to parse Inference-Header-Content-Length, got: {value}");
        call(value).is_error(400, &text);
    }
    // A part of the JSON is not JSON.
    call(&(len - 1).to_string()).has_error(500, "failed to parse the request JSON buffer: ");
    // With chunks the server does not know the length beforehand.
    let header = format!("Inference-Header-Content-Length: {}\r\n", len + 1);
    let text = format!("inference header size should be in range (0, {len}), got: {}", len + 1);
    client
        .call_chunked(SIMPLE, &header, &[&body.as_bytes()[..9], &body.as_bytes()[9..]])
        .is_error(400, &text);
    goes_on(&mut client);
}

#[test]
fn tails_that_are_too_short_or_too_long() {
    let served = Served::new();
    let mut client = served.client();
    let size = r#""parameters":{"binary_data_size":64}"#;
    let json = identity(size, "");
    for missing in [4, 63, 64] {
        let text = format!(
            "unexpected size for input 'INPUT0', expecting {missing} additional bytes for model 'identity_int32'"
        );
        let tail = vec![0; 64 - missing];
        client.infer("identity_int32", &json, &tail).is_error(400, &text);
        let header = format!("Inference-Header-Content-Length: {}\r\n", json.len());
        client.call_chunked(IDENTITY, &header, &[json.as_bytes(), &tail]).is_error(400, &text);
    }
    let long = "unexpected additional input data for model 'identity_int32'";
    client.infer("identity_int32", &json, &[0; 65]).is_error(400, long);
    client.infer("identity_int32", &identity(DATA, ""), &[0]).is_error(400, long);
    // Without the header the whole body is JSON.
    let text = "unexpected size for input 'INPUT0', expecting 64 additional bytes for model 'identity_int32'";
    client.call("POST", IDENTITY, &json).is_error(400, text);
    // Longer than any memory, and than the shape.
    for size in [1u64 << 40, 1 << 62, u64::MAX] {
        let json = identity(&format!(r#""parameters":{{"binary_data_size":{size}}}"#), "");
        client
            .infer("identity_int32", &json, &[0; 64])
            .has_error(400, &format!("Expected 64, got {size}"));
    }
    goes_on(&mut client);
}

#[test]
fn raw_requests_that_cannot_be_deduced() {
    let served = Served::new();
    let mut client = served.client();
    let mut raw = |model: &str, body: &[u8]| {
        let path = format!("/v2/models/{model}/infer");
        client.call_with("POST", &path, "Inference-Header-Content-Length: 0\r\n", body)
    };
    raw("simple", &[0; 128]).is_error(
        400,
        "Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in 'simple' model configuration",
    );
    raw("identity_2d_fp32", &[0; 64]).is_error(
        400,
        "The shape of the raw input 'INPUT0' can not be deduced because there are more than one variable-sized dimension",
    );
    raw("identity_bytes", b"abc")
        .is_error(400, "For BYTE datatype raw input 'INPUT0', the model must have input shape [1]");
    raw("identity_fp32", &[0; 63]).has_error(400, "input byte size mismatch");
    raw("none", &[0; 64]).is_error(404, "Request for unknown model: 'none' is not found");
    goes_on(&mut client);
}

#[test]
fn data_that_is_unlike_its_type_or_shape() {
    let served = Served::new();
    let mut client = served.client();
    let count = "Unable to parse 'data': Shape does not match true shape of 'data' field";
    for data in
        ["[]", "[1]", "[[1,2],[3]]", "[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]", "7", "{}"]
    {
        let body = identity(&format!(r#""data":{data}"#), "");
        client.call("POST", IDENTITY, &body).is_error(500, count);
    }
    let of = |dtype: &str, data: &str| {
        request(&[tensor("INPUT0", dtype, "[1,1]", &format!(r#""data":[{data}]"#))], &[])
    };
    for (dtype, data) in [
        ("BOOL", "1"),
        ("INT32", "1.5"),
        ("INT32", "\"1\""),
        ("FP32", "true"),
        ("BYTES", "1"),
        ("UINT8", "-1"),
        ("INT8", "200"),
    ] {
        let path = format!("/v2/models/identity_{}/infer", dtype.to_lowercase());
        client.call("POST", &path, &of(dtype, data)).has_error(500, "Unable to parse 'data': ");
    }
    for dtype in ["FP16", "BF16"] {
        let path = format!("/v2/models/identity_{}/infer", dtype.to_lowercase());
        client.call("POST", &path, &of(dtype, "1")).is_error(
            400,
            &format!("receiving {dtype} data via JSON is not supported. Please use the binary data format for input INPUT0"),
        );
        let input = tensor("INPUT0", dtype, "[1,1]", r#""parameters":{"binary_data_size":2}"#);
        let model = path.split('/').nth(3).unwrap();
        client
            .infer(model, &request(&[input], &[]), &[0; 2])
            .has_error(400, &format!("sending {dtype} data via JSON"));
    }
    // The server validates BYTES before it calls a model.
    let bytes = |tail: &[u8], client: &mut Client| {
        let size = format!(r#""parameters":{{"binary_data_size":{}}}"#, tail.len());
        let input = tensor("INPUT0", "BYTES", "[1,2]", &size);
        client.infer("identity_bytes", &request(&[input], &[]), tail)
    };
    bytes(b"\x01\0\0\0a", &mut client)
        .is_error(400, "expected 2 strings for inference input 'INPUT0', got 1");
    bytes(b"\x01\0\0\0a\0\0\0\0\0\0\0\0", &mut client).has_error(400, "expected 2 strings");
    bytes(b"\x01\0\0\0a\0\0", &mut client).has_error(400, "incomplete string length indicator");
    bytes(b"\xff\xff\xff\xffa\0\0", &mut client).has_error(400, "incomplete string data");
    goes_on(&mut client);
}

#[test]
fn strings_in_regions_are_judged_too() {
    let served = Served::new();
    let object = served.region("s", 1 << 20);
    let mut client = served.client();
    let mut call = |len: u64, count: u64| {
        let shape = format!("[1,{count}]");
        let input = tensor("INPUT0", "BYTES", &shape, &window("s", 0, len));
        let outputs = [format!(r#"{{"name":"OUTPUT0",{}}}"#, window("s", 1 << 19, len))];
        client.call("POST", "/v2/models/identity_bytes/infer", &request(&[input], &outputs))
    };
    // Longer than one step of the validation, with length prefixes across the boundary.
    let long: Vec<u8> = (0..20_000u32).flat_map(|_| *b"\x03\0\0\0abc").collect();
    object.write_at(0, &long).unwrap();
    call(140_000, 20_000).ok();
    call(140_000, 20_001).has_error(400, "expected 20001 strings");
    call(139_999, 20_000).has_error(400, "incomplete string data");
    call(139_997, 20_000).has_error(400, "incomplete string data");
    call(139_996, 20_000).has_error(400, "incomplete string length");
    object.write_at(70_000, &[255; 4]).unwrap();
    call(140_000, 20_000).has_error(400, "incomplete string data");
}

#[test]
fn models_versions_and_tensors_that_are_unknown() {
    let served = Served::new();
    let mut client = served.client();
    let body = request(&simple_json(), &[]);
    let unknown = "Request for unknown model: 'none' is not found";
    let version = "Request for unknown model: 'simple' version 9 is not found";
    client.call("POST", "/v2/models/none/infer", &body).is_error(404, unknown);
    client.call("POST", "/v2/models/simple/versions/9/infer", &body).is_error(404, version);
    for about in ["", "/config", "/stats"] {
        client.call("GET", &format!("/v2/models/none{about}"), "").is_error(404, unknown);
        let path = format!("/v2/models/simple/versions/9{about}");
        client.call("GET", &path, "").is_error(404, version);
    }
    let output = |name: &str| [format!(r#"{{"name":"{name}"}}"#)];
    client
        .call("POST", SIMPLE, &request(&simple_json(), &output("O")))
        .is_error(400, "unexpected inference output 'O' for model 'simple'");
    let twice = [output("OUTPUT0"), output("OUTPUT0")].concat();
    client
        .call("POST", SIMPLE, &request(&simple_json(), &twice))
        .is_error(400, "output 'OUTPUT0' already exists in request");
    let [x, y] = simple_json();
    let mut inputs = |inputs: &[&String], text: &str| {
        let inputs: Vec<String> = inputs.iter().map(|input| (*input).clone()).collect();
        client.call("POST", SIMPLE, &request(&inputs, &[])).is_error(400, text);
    };
    inputs(
        &[&x],
        "expected 2 inputs but got 1 inputs for model 'simple'. Got input(s) ['INPUT0'], but missing required input(s) ['INPUT1']. Please provide all required input(s).",
    );
    inputs(
        &[],
        "expected 2 inputs but got 0 inputs for model 'simple'. Got input(s) [], but missing required input(s) ['INPUT0','INPUT1']. Please provide all required input(s).",
    );
    inputs(&[&x, &x], "input 'INPUT0' already exists in request");
    inputs(&[&x, &y, &y], "input 'INPUT1' already exists in request");
    let other = y.replace("INPUT1", "INPUT2");
    inputs(&[&x, &other], "unexpected inference input 'INPUT2' for model 'simple'");
    inputs(
        &[&x, &y, &other],
        "expected 2 inputs but got 3 inputs for model 'simple'. Got input(s) ['INPUT0','INPUT1','INPUT2'], but missing required input(s) []. Please provide all required input(s).",
    );
    goes_on(&mut client);
}

#[test]
fn types_shapes_and_batches_that_are_others() {
    let served = Served::new();
    let mut client = served.client();
    let zeros = |dtype: &str, shape: &str, count: usize| {
        let data = format!(r#""data":{:?}"#, vec![0; count]);
        [tensor("INPUT0", dtype, shape, &data), tensor("INPUT1", dtype, shape, &data)]
    };
    let mut call = |inputs: &[String]| client.call("POST", SIMPLE, &request(inputs, &[]));
    call(&zeros("FP32", "[1,16]", 16)).is_error(
        400,
        "inference input 'INPUT0' data-type is 'FP32', but model 'simple' expects 'INT32'",
    );
    call(&zeros("INT33", "[1,16]", 16)).is_error(
        400,
        "inference input 'INPUT0' data-type is 'INT33', but model 'simple' expects 'INT32'",
    );
    for (shape, count) in [
        ("[1,8]", 8),
        ("[16]", 16),
        ("[1,16,1]", 16),
        ("[]", 1),
        ("[1,1,1,1,1,1,1,1,16]", 16),
        ("[-1,16]", 16),
        ("[1,-16]", 16),
    ] {
        let text = format!(
            "unexpected shape for input 'INPUT0' for model 'simple'. Expected [-1,16], got {shape}."
        );
        call(&zeros("INT32", shape, count)).has_error(400, &text);
    }
    call(&zeros("INT32", "[9,16]", 144))
        .is_error(400, "inference request batch-size must be <= 8 for 'simple'");
    call(&zeros("INT32", "[8,16]", 128)).ok();
    call(&[zeros("INT32", "[1,16]", 16)[0].clone(), zeros("INT32", "[2,16]", 32)[1].clone()])
        .is_error(400, "input 'INPUT1' batch size does not match other inputs for 'simple'");
    let mut fixed = |shape: &str, len: u64| {
        let size = format!(r#""parameters":{{"binary_data_size":{len}}}"#);
        let input = [tensor("INPUT0", "FP32", shape, &size)];
        client.infer("identity_2d_fp32", &request(&input, &[]), &vec![0; len as usize])
    };
    fixed("[16]", 64).is_error(400, "unexpected shape for input 'INPUT0' for model 'identity_2d_fp32'. Expected [-1,-1], got [16].");
    fixed("[4294967296,4294967296]", 64).has_error(400, "describes more bytes than can be");
    fixed("[4611686018427387904,1]", 64).has_error(400, "describes more bytes than can be");
    fixed("[9223372036854775808,1]", 64).has_error(500, "Unable to parse 'shape'");
    fixed("[1.0,16]", 64).has_error(500, "Unable to parse 'shape'");
    fixed("16", 64).has_error(500, "Unable to parse 'shape'");
    goes_on(&mut client);
}

#[test]
fn json_that_is_none_or_something_else() {
    let served = Served::new();
    let mut client = served.client();
    let parse = "failed to parse the request JSON buffer: ";
    for (body, status, text) in [
        ("", 400, "failed to parse the request JSON buffer: EOF while parsing a value at 0"),
        ("{\"inputs\":[}", 500, "failed to parse the request JSON buffer: expected value at 11"),
        ("[]", 500, "attempt to access JSON non-object as object"),
        ("7", 500, "attempt to access JSON non-object as object"),
        (
            "{}",
            500,
            "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'",
        ),
        (
            r#"{"inputs":{}}"#,
            500,
            "Unable to parse 'inputs': attempt to access JSON non-array as array",
        ),
        (
            r#"{"inputs":[7]}"#,
            500,
            "Unable to parse 'name': attempt to access non-existing object member 'name'",
        ),
        (
            r#"{"inputs":[{"name":7}]}"#,
            500,
            "Unable to parse 'name': attempt to access JSON non-string as string",
        ),
        (
            r#"{"id":7,"inputs":[]}"#,
            500,
            "Unable to parse 'id': attempt to access JSON non-string as string",
        ),
        (
            r#"{"inputs":[],"outputs":7}"#,
            500,
            "Unable to parse 'outputs': attempt to access JSON non-array as array",
        ),
        (
            r#"{"inputs":[],"outputs":[{"name":"O","parameters":{"classification":-2}}]}"#,
            500,
            "Unable to parse 'classification': attempt to access JSON non-unsigned-integer as unsigned-integer",
        ),
    ] {
        client.call("POST", SIMPLE, body).is_error(status, text);
    }
    let deep = format!(r#"{{"inputs":{}"#, "[".repeat(100));
    let depth = "JSON nesting depth exceeds maximum allowed limit (100)";
    client.call("POST", SIMPLE, &deep).is_error(400, depth);
    client.call_with("POST", SIMPLE, "", b"{\"id\":\"\xff\"}").has_error(500, parse);
    goes_on(&mut client);
}

#[test]
fn batches_of_nothing_and_negative_dimensions_are_refused() {
    let served = Served::new();
    let simple = |shape: &str| {
        let inputs = ["INPUT0", "INPUT1"].map(|name| tensor(name, "INT32", shape, r#""data":[]"#));
        served.post(SIMPLE, &request(&inputs, &[]))
    };
    simple("[0,16]").is_error(400, "inference request batch-size must be >= 1 for 'simple', got 0");
    let text = "unexpected shape for input 'INPUT0' for model 'simple'. Expected [-1,16], got [-1,16]. NOTE: -1 stands for any length there, and a request names each length.";
    simple("[-1,16]").is_error(400, text);
}

#[test]
fn an_empty_body_is_an_error_of_the_client() {
    let text = "failed to parse the request JSON buffer: EOF while parsing a value at 0";
    Served::new().post(SIMPLE, "").is_error(400, text);
}

#[test]
fn extensions_that_are_not_served_are_named() {
    let served = Served::new();
    for (path, name) in [
        ("/v2/logging", "logging"),
        ("/v2/trace/setting", "trace"),
        ("/v2/models/simple/trace/setting", "trace"),
        ("/v2/models/simple/generate", "generate"),
    ] {
        let text = format!("the {name} extension is not served");
        served.get(path).is_error(501, &text);
        served.post(path, "{}").is_error(501, &text);
    }
}
