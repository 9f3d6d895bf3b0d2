//! The operations on shared memory over HTTP.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body::Body;
use serde_json::json;

use crate::blocking::run_limited;
use crate::front::Front;
use crate::http::body::Reader;
use crate::http::infer_json::{string, unsigned};
use crate::http::path::Operation;
use crate::http::reply::{self, Reply};
use crate::json::Node;
use crate::refusal::{Refusal, SharedMemoryKind};
use crate::shared_memory::{CudaRegion, GPU_CALLS, SharedMemory, SystemRegion};

/// The largest registration in bytes: a name, a key, some numbers.
const MAX_REGISTRATION: usize = 64 << 10;

pub(super) async fn serve<B: Body<Data = Bytes> + Unpin>(
    front: &Front,
    (memory, operation): (SharedMemoryKind, Operation),
    name: &str,
    named: bool,
    body: &mut Reader<B>,
) -> Result<Reply, Refusal> {
    let shared = front.shared_memory();
    shared.check_allowed()?;
    match (operation, memory) {
        (Operation::Status, _) if named && name.is_empty() => {
            Err(Refusal::status_unknown(memory, name))
        }
        (Operation::Status, SharedMemoryKind::System) => system(shared, name),
        (Operation::Status, SharedMemoryKind::Cuda) => cuda(shared, name),
        (Operation::Register, _) => {
            if name.is_empty() {
                return Err(Refusal::name_missing(memory));
            }
            let text = body.rest(MAX_REGISTRATION).await?;
            match memory {
                SharedMemoryKind::System => register(shared, memory, name, Node::document(&text)?)?,
                SharedMemoryKind::Cuda => {
                    let (shared, name, text) = (shared.clone(), name.to_owned(), text.to_vec());
                    let register = move || register(&shared, memory, &name, Node::document(&text)?);
                    run_limited(&GPU_CALLS, register).await?;
                }
            }
            Ok(reply::empty())
        }
        // No region has an empty name.
        (Operation::Unregister, _) if named && name.is_empty() => Ok(reply::empty()),
        (Operation::Unregister, SharedMemoryKind::System) => {
            shared.unregister_system(name).map(|()| reply::empty())
        }
        (Operation::Unregister, SharedMemoryKind::Cuda) => {
            let (shared, name) = (shared.clone(), name.to_owned());
            run_limited(&GPU_CALLS, move || shared.unregister_cuda(&name)).await?;
            Ok(reply::empty())
        }
    }
}

fn register(
    shared: &SharedMemory,
    memory: SharedMemoryKind,
    name: &str,
    request: Node<'_>,
) -> Result<(), Refusal> {
    let field = |field| request.get(field).ok_or_else(|| Refusal::register_field(field));
    match memory {
        SharedMemoryKind::System => {
            let key = string(field("key")?)?;
            let offset = request.get("offset").map_or(Ok(0), unsigned)?;
            let byte_size = unsigned(field("byte_size")?)?;
            shared.register_system(name, &key, offset, byte_size)
        }
        SharedMemoryKind::Cuda => {
            let handle = field("raw_handle")?;
            if !handle.is_object() {
                return Err(Refusal::parse("raw_handle", &Refusal::json_type("object")));
            }
            let missing = || Refusal::parse("raw_handle", &Refusal::register_field("b64"));
            let text = handle.get("b64").ok_or_else(missing)?;
            let device = unsigned(field("device_id")?)?;
            let byte_size = unsigned(field("byte_size")?)?;
            let raw = STANDARD.decode(string(text)?).unwrap_or_default();
            shared.register_cuda(name, &raw, i64::try_from(device).unwrap_or(-1), byte_size)
        }
    }
}

fn system(shared: &SharedMemory, name: &str) -> Result<Reply, Refusal> {
    let regions = shared.system_status(name)?.into_iter().map(|region| {
        let SystemRegion { name, key, offset, byte_size } = region;
        json!({ "name": name, "key": key, "offset": offset, "byte_size": byte_size })
    });
    Ok(reply::describing(&regions.collect()))
}

fn cuda(shared: &SharedMemory, name: &str) -> Result<Reply, Refusal> {
    let regions = shared.cuda_status(name)?.into_iter().map(|region| {
        let CudaRegion { name, device_id, byte_size } = region;
        json!({ "name": name, "device_id": device_id, "byte_size": byte_size })
    });
    Ok(reply::describing(&regions.collect()))
}
