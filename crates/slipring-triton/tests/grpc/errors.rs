//! Every error of the table over gRPC: its code and its text.

use crate::grpc_served::inference::infer_parameter::ParameterChoice;
use crate::grpc_served::inference::*;
use crate::grpc_served::{
    Served, identity, in_memory, input, int, is_refused, output, parameter, request, simple, text,
    window,
};
use crate::http_served::ints;
use crate::support::unique_name;
use slipring::region::{CudaHandle, Registry, Source};
use tonic::{Code, Status};

const REGION: &str = "shared_memory_region";
const OFFSET: &str = "shared_memory_offset";
const SIZE: &str = "shared_memory_byte_size";

#[track_caller]
fn infer_is_refused(served: &Served, request: ModelInferRequest, text: &str) {
    is_refused(served.infer(request), Code::InvalidArgument, text);
}

fn system_status(served: &Served, name: &str) -> Result<(), Status> {
    let mut client = served.client();
    let asked = SystemSharedMemoryStatusRequest { name: name.to_owned() };
    served.run(client.system_shared_memory_status(asked)).map(|_| ())
}

fn cuda_status(served: &Served, name: &str) -> Result<(), Status> {
    let mut client = served.client();
    let asked = CudaSharedMemoryStatusRequest { name: name.to_owned() };
    served.run(client.cuda_shared_memory_status(asked)).map(|_| ())
}

#[test]
fn names_are_taken_once_and_known_by_their_kind() {
    let registry = Registry::new().unwrap();
    registry.register("gpu", Source::Cuda(CudaHandle { raw: [1; 64], device: 0 }), 0, 64).unwrap();
    let served = Served::with(|builder| builder.registry(registry));
    let object = served.region("r", 64);
    let taken = "shared memory region 'r' already in manager";
    is_refused(served.register("r", object.key(), 0, 64), Code::AlreadyExists, taken);
    let gone = "Unable to find system shared memory region: 'nobody'";
    is_refused(system_status(&served, "nobody"), Code::NotFound, gone);
    is_refused(cuda_status(&served, "nobody"), Code::NotFound, &gone.replace("system", "cuda"));
    let other =
        "The region named 'r' is registered as system shared memory, not CUDA shared memory";
    is_refused(cuda_status(&served, "r"), Code::NotFound, other);
    let other =
        "The region named 'gpu' is registered as CUDA shared memory, not system shared memory";
    is_refused(system_status(&served, "gpu"), Code::NotFound, other);
    // An unregister operation ignores regions of the other kind.
    served.unregister("gpu");
    served.unregister("");
    cuda_status(&served, "gpu").unwrap();
    let mut client = served.client();
    let asked = CudaSharedMemoryStatusRequest::default();
    let all = served.run(client.cuda_shared_memory_status(asked)).unwrap().into_inner().regions;
    assert_eq!((all.len(), all["gpu"].device_id, all["gpu"].byte_size), (1, 0, 64));
}

#[test]
fn objects_that_are_not_there_or_too_short_are_not_registered() {
    let served = Served::new();
    let object = served.region("r", 4096);
    let name = "'region name' is necessary to register system shared memory region";
    is_refused(served.register("", object.key(), 0, 1), Code::InvalidArgument, name);
    let missing = format!("/{}", unique_name());
    for key in [&*missing, "", "/", "..", "/../etc/passwd", "/a/b", "a\0b", &"k".repeat(256)] {
        let text = format!("Unable to open shared memory region: '{key}'");
        is_refused(served.register("n", key, 0, 1), Code::Internal, &text);
    }
    for (offset, len) in
        [(0, 4097), (4096, 1), (1 << 63, 1), (u64::MAX, 1), (1, u64::MAX), (4095, 2)]
    {
        let text = "failed to register shared memory region 'n': invalid args";
        is_refused(served.register("n", object.key(), offset, len), Code::InvalidArgument, text);
    }
    let text = "failed to register shared memory region 'n': unable to process address space";
    is_refused(served.register("n", object.key(), 0, 0), Code::InvalidArgument, text);
    assert!(served.register("n", object.key(), 4095, 1).is_ok(), "nothing was kept");
}

#[test]
fn gpu_handles_are_refused_by_length_and_for_want_of_a_gpu() {
    let served = Served::new();
    let mut client = served.client();
    let mut register = |name: &str, len: usize, device_id: i64| {
        let (name, raw_handle) = (name.to_owned(), vec![1; len]);
        let asked = CudaSharedMemoryRegisterRequest { name, raw_handle, device_id, byte_size: 64 };
        served.run(client.cuda_shared_memory_register(asked))
    };
    let text = "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t";
    for len in [0, 1, 63, 65, 4096] {
        is_refused(register("g", len, 0), Code::InvalidArgument, text);
    }
    let name = "'region name' is necessary to register cuda shared memory region";
    is_refused(register("", 64, 0), Code::InvalidArgument, name);
    if std::path::Path::new("/dev/nvidia0").exists() {
        return eprintln!("skipped: there is a GPU");
    }
    for device in [0, -1, i64::MIN, i64::MAX] {
        let text = "failed to register shared memory region: invalid args";
        is_refused(register("g", 64, device), Code::InvalidArgument, text);
    }
}

#[test]
fn shared_memory_may_be_switched_off() {
    let served = Served::with(|builder| builder.client_shared_memory(false));
    let text = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable.";
    is_refused(served.register("r", "/r", 0, 64), Code::Unimplemented, text);
    is_refused(system_status(&served, ""), Code::Unimplemented, text);
    is_refused(cuda_status(&served, ""), Code::Unimplemented, text);
    let mut client = served.client();
    let asked = SystemSharedMemoryUnregisterRequest::default();
    is_refused(
        served.run(client.system_shared_memory_unregister(asked)),
        Code::Unimplemented,
        text,
    );
    let asked = CudaSharedMemoryUnregisterRequest::default();
    is_refused(served.run(client.cuda_shared_memory_unregister(asked)), Code::Unimplemented, text);
    let mut asked = identity(&ints(0..16));
    assert!(served.infer(asked.clone()).is_ok());
    asked.raw_input_contents.clear();
    asked.inputs[0].parameters = window("r", 0, 64);
    is_refused(served.infer(asked), Code::Unimplemented, text);
}

/// Returns a request with an input in this window, and one with an output.
fn both(
    parameters: std::collections::BTreeMap<String, InferParameter>,
) -> [(ModelInferRequest, &'static str); 2] {
    let mut first = identity(&ints(0..16));
    first.raw_input_contents.clear();
    let mut second = identity(&ints(0..16));
    first.inputs[0].parameters = parameters.clone();
    second.outputs = vec![output("OUTPUT0")];
    second.outputs[0].parameters = parameters;
    [(first, "INPUT0"), (second, "OUTPUT0")]
}

#[test]
fn windows_that_no_region_has_are_refused_for_inputs_and_outputs() {
    let served = Served::new();
    let object = served.region("r", 64);
    for (asked, _) in both(window("nobody", 0, 64)) {
        let text = "Unable to find shared memory region: 'nobody'";
        is_refused(served.infer(asked), Code::NotFound, text);
    }
    let offset = "Invalid offset for shared memory region: 'r'";
    let range = "Invalid offset + byte size for shared memory region: 'r'";
    for (from, len, text) in [
        (64, 64, offset),
        (65, 1, offset),
        (i64::MAX, 1, offset),
        (i64::MAX, i64::MAX, offset),
        (1, 64, range),
        (0, 65, range),
        (0, i64::MAX, range),
        // As unsigned numbers these would wrap to windows inside of the region.
        (-1, 64, offset),
        (i64::MIN, 64, offset),
        (64, -32, range),
        (0, -1, range),
    ] {
        for (asked, _) in both(window("r", from, len)) {
            infer_is_refused(&served, asked, text);
        }
    }
    let mut room = [1; 64];
    object.read_at(0, &mut room).unwrap();
    assert_eq!(room, [0; 64], "nothing was written");
}

#[test]
fn an_output_window_that_is_too_small_stays_as_it_is() {
    let served = Served::new();
    let object = served.region("r", 64);
    let [_, (asked, _)] = both(window("r", 0, 63));
    let text = "shared memory size specified with the request for output 'OUTPUT0' (63 bytes) should be at least 64 bytes to hold the results";
    is_refused(served.infer(asked), Code::Internal, text);
    let mut room = [1; 64];
    object.read_at(0, &mut room).unwrap();
    assert_eq!(room, [0; 64]);
}

#[test]
fn parameters_of_windows_belong_together_and_have_their_types() {
    let served = Served::new();
    served.region("r", 64);
    for without in [SIZE, OFFSET] {
        let mut alone = window("r", 0, 64);
        alone.retain(|name, _| name != REGION && name != without);
        let left = if without == SIZE { OFFSET } else { SIZE };
        for (asked, tensor) in both(alone) {
            let text = format!(
                "'{left}' can not be specified without '{REGION}' parameter for tensor '{tensor}'"
            );
            infer_is_refused(&served, asked, &text);
        }
    }
    let mut sizeless = window("r", 0, 64);
    sizeless.remove(SIZE);
    for (asked, tensor) in both(sizeless) {
        let text = format!(
            "'{SIZE}' must be specified along with '{REGION}' parameter for tensor '{tensor}'"
        );
        infer_is_refused(&served, asked, &text);
    }
    let others = [
        ParameterChoice::BoolParam(true),
        ParameterChoice::DoubleParam(64.0),
        ParameterChoice::Uint64Param(64),
    ];
    for (name, expected, own) in [
        (REGION, "string_param", int(1)),
        (OFFSET, "int64_param", text("0")),
        (SIZE, "int64_param", text("64")),
    ] {
        let empty = InferParameter { parameter_choice: None };
        for wrong in others.iter().cloned().map(parameter).chain([own, empty]) {
            let mut parameters = window("r", 0, 64);
            parameters.insert(name.to_owned(), wrong);
            for (asked, tensor) in both(parameters) {
                let text = format!(
                    "invalid value type for '{name}' parameter for tensor '{tensor}', expected {expected}."
                );
                infer_is_refused(&served, asked, &text);
            }
        }
    }
}

#[test]
fn an_input_has_one_source() {
    let served = Served::new();
    served.region("r", 64);
    let ints32 = || InferTensorContents { int_contents: (0..16).collect(), ..Default::default() };
    let mut asked = identity(&ints(0..16));
    asked.inputs[0].contents = Some(ints32());
    let text = "contents field must not be specified when using raw_input_contents for 'INPUT0' for model 'identity_int32'";
    infer_is_refused(&served, asked.clone(), text);
    asked.raw_input_contents.clear();
    asked.inputs[0].parameters = window("r", 0, 64);
    let text = "unexpected 'content' provided when using shared memory for input tensor 'INPUT0' for model 'identity_int32'";
    infer_is_refused(&served, asked, text);
    let mut asked = simple(&ints(0..16), &ints(0..16));
    asked.raw_input_contents.truncate(1);
    let text = "unable to find data for input tensor 'INPUT1' for model 'simple' in request.";
    infer_is_refused(&served, asked.clone(), text);
    asked.raw_input_contents.clear();
    infer_is_refused(&served, asked.clone(), &text.replace("INPUT1", "INPUT0"));
    // An input in shared memory takes none of the raw contents.
    asked.inputs[0] = in_memory(asked.inputs[0].clone(), "r", 0);
    asked.raw_input_contents = vec![ints(0..16).into(); 2];
    let text = "expected 1 raw_input_contents but got 2 for model 'simple'";
    infer_is_refused(&served, asked, text);
}

#[test]
fn typed_contents_are_those_of_their_data_type() {
    let served = Served::new();
    let typed = |datatype: &str, contents: InferTensorContents| {
        let mut tensor = input("INPUT0", datatype, &[1, 1]);
        tensor.contents = Some(contents);
        request(&format!("identity_{}", datatype.to_lowercase()), vec![tensor], &[])
    };
    let ints = |value| InferTensorContents { int_contents: vec![value], ..Default::default() };
    let uints = |value| InferTensorContents { uint_contents: vec![value], ..Default::default() };
    let text = "contents of input 'INPUT0' are not those of datatype 'FP32'";
    infer_is_refused(&served, typed("FP32", ints(1)), text);
    let two = InferTensorContents { fp32_contents: vec![1.0], ..ints(1) };
    infer_is_refused(&served, typed("FP32", two), text);
    for (datatype, contents) in [
        ("INT8", ints(128)),
        ("INT16", ints(-32769)),
        ("UINT8", uints(256)),
        ("UINT16", uints(65536)),
    ] {
        let text = format!("contents of input 'INPUT0' do not fit into datatype '{datatype}'");
        infer_is_refused(&served, typed(datatype, contents), &text);
    }
    for datatype in ["FP16", "BF16"] {
        let text = format!(
            "contents can not hold datatype '{datatype}' of input 'INPUT0', use raw_input_contents"
        );
        infer_is_refused(&served, typed(datatype, ints(1)), &text);
    }
}

#[test]
fn requests_that_are_not_as_their_model_says_are_refused() {
    let served = Served::new();
    let mut unknown = simple(&[], &[]);
    unknown.model_name = "nobody".to_owned();
    let text = "Request for unknown model: 'nobody' is not found";
    is_refused(served.infer(unknown), Code::NotFound, text);
    let good = || simple(&ints(0..16), &ints(0..16));
    let version = ModelInferRequest { model_version: "9".to_owned(), ..good() };
    let text = "Request for unknown model: 'simple' version 9 is not found";
    is_refused(served.infer(version), Code::NotFound, text);
    let asked = ModelInferRequest { outputs: vec![output("O")], ..good() };
    infer_is_refused(&served, asked, "unexpected inference output 'O' for model 'simple'");
    let mut asked = good();
    asked.inputs.truncate(1);
    asked.raw_input_contents.truncate(1);
    let text = "expected 2 inputs but got 1 inputs for model 'simple'. Got input(s) ['INPUT0'], but missing required input(s) ['INPUT1']. Please provide all required input(s).";
    infer_is_refused(&served, asked, text);
    let mut asked = good();
    asked.inputs[1].name = "INPUT0".to_owned();
    infer_is_refused(&served, asked, "input 'INPUT0' already exists in request");
    let mut asked = good();
    asked.inputs[0].datatype = "FP32".to_owned();
    let text = "inference input 'INPUT0' data-type is 'FP32', but model 'simple' expects 'INT32'";
    infer_is_refused(&served, asked, text);
    let mut asked = good();
    asked.inputs[0].shape = vec![1, 8];
    let refused = served.infer(asked).unwrap_err();
    let text =
        "unexpected shape for input 'INPUT0' for model 'simple'. Expected [-1,16], got [1,8]. ";
    assert!(refused.message().starts_with(text), "{refused}");
    let mut asked = good();
    asked.inputs.iter_mut().for_each(|input| input.shape[0] = 9);
    infer_is_refused(&served, asked, "inference request batch-size must be <= 8 for 'simple'");
    for (id, shown) in [("", "<id_unknown>"), ("mine", "mine")] {
        let asked = ModelInferRequest { id: id.to_owned(), ..simple(&[0; 60], &ints(0..16)) };
        let text = format!(
            "[request id: {shown}] input byte size mismatch for input 'INPUT0' for model 'simple'. Expected 64, got 60"
        );
        infer_is_refused(&served, asked, &text);
    }
    let mut asked = good();
    asked.parameters.insert("triton_x".to_owned(), int(1));
    let text =
        "parameter keys starting with 'triton_' are reserved for Triton usage, got 'triton_x'";
    infer_is_refused(&served, asked, text);
    for shape in [
        vec![-1, 16],
        vec![1, i64::MIN],
        vec![i64::MAX, 16],
        vec![1 << 62, 4],
        vec![0; 100],
        vec![],
    ] {
        let mut asked = identity(&ints(0..16));
        asked.inputs[0].shape = shape;
        assert_eq!(served.infer(asked).unwrap_err().code(), Code::InvalidArgument);
    }
}

#[test]
fn unknown_models_have_no_metadata_configuration_or_statistics() {
    let served = Served::new();
    let mut client = served.client();
    let (name, version) = ("nobody".to_owned(), String::new());
    let text = "Request for unknown model: 'nobody' is not found";
    let asked = ModelMetadataRequest { name: name.clone(), version: version.clone() };
    is_refused(served.run(client.model_metadata(asked)), Code::NotFound, text);
    let asked = ModelConfigRequest { name: name.clone(), version: version.clone() };
    is_refused(served.run(client.model_config(asked)), Code::NotFound, text);
    let asked = ModelStatisticsRequest { name, version };
    is_refused(served.run(client.model_statistics(asked)), Code::NotFound, text);
}
