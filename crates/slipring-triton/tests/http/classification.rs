//! The highest elements of an output, over HTTP.

use serde_json::json;

use crate::http_served::{Served, request, tensor};

/// Returns a request to an identity with two batch items, and these parameters of its output.
fn asked(dtype: &str, data: &str, parameters: &str) -> String {
    let input = tensor("INPUT0", dtype, "[2,3]", &format!(r#""data":{data}"#));
    request(&[input], &[format!(r#"{{"name":"OUTPUT0","parameters":{{{parameters}}}}}"#)])
}

#[test]
fn classes_come_as_json_or_behind_it() {
    let served = Served::new();
    let path = "/v2/models/identity_fp32/infer";
    let data = "[1,2.5,-3,0.1,9,4]";
    let answer = served.post(path, &asked("FP32", data, r#""classification":2"#)).ok();
    let texts = json!(["2.500000:1", "1.000000:0", "9.000000:1", "4.000000:2"]);
    let output = json!({"name": "OUTPUT0", "datatype": "BYTES", "shape": [2, 2], "data": texts});
    assert_eq!(answer["outputs"][0], output);
    let binary = r#""classification":1,"binary_data":true"#;
    let answer = served.post(path, &asked("FP32", data, binary));
    assert_eq!(answer.ok()["outputs"][0]["shape"], json!([2, 1]));
    assert_eq!(answer.tail(), b"\x0a\0\0\x002.500000:1\x0a\0\0\x009.000000:1");
    // As in the reference server, 0 asks for the tensor.
    let answer = served.post(path, &asked("FP32", data, r#""classification":0"#)).ok();
    assert_eq!(answer["outputs"][0]["datatype"], "FP32");
}

#[test]
fn classes_that_cannot_be_are_refused_before_the_model_runs() {
    let served = Served::new();
    served.region("r", 64);
    for (dtype, data) in
        [("BOOL", "[true,true,true,true,true,true]"), ("BYTES", r#"["","","","","",""]"#)]
    {
        let path = format!("/v2/models/identity_{}/infer", dtype.to_lowercase());
        let text =
            format!("class result not available for output due to unsupported type '{dtype}'");
        served.post(&path, &asked(dtype, data, r#""classification":1"#)).is_error(400, &text);
    }
    let mut client = served.client();
    let input = tensor("INPUT0", "FP16", "[2,3]", r#""parameters":{"binary_data_size":12}"#);
    let output = r#"{"name":"OUTPUT0","parameters":{"classification":1}}"#.to_owned();
    let text = "class result not available for output due to unsupported type 'FP16'";
    client.infer("identity_fp16", &request(&[input], &[output]), &[0; 12]).is_error(400, text);
    let both = r#""classification":1,"shared_memory_region":"r","shared_memory_byte_size":24"#;
    let text = "Output can't set both 'shared_memory_region' and 'classification'";
    let path = "/v2/models/identity_int32/infer";
    served.post(path, &asked("INT32", "[1,2,3,4,5,6]", both)).is_error(400, text);
    let statistics = served.get("/v2/models/identity_fp16/stats").ok();
    assert_eq!(statistics["model_stats"][0]["execution_count"], 0);
}
