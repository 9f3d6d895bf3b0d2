//! The verbs of shared memory over HTTP.

use std::fmt::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body::Body;

use crate::triton::front::Front;
use crate::triton::http::body::Reader;
use crate::triton::http::head::{string, unsigned};
use crate::triton::http::path::Verb;
use crate::triton::http::reply::{self, Reply};
use crate::triton::json::{self, Node};
use crate::triton::refusal::{Refusal, Sort};
use crate::triton::shared_memory::SharedMemory;

/// Bytes of a registration at most: a name, a key, some numbers.
const LONGEST: usize = 64 << 10;

pub(super) async fn act<B: Body<Data = Bytes> + Unpin>(
    front: &Front,
    (sort, verb): (Sort, Verb),
    name: &str,
    named: bool,
    body: &mut Reader<B>,
) -> Result<Reply, Refusal> {
    let shared = front.shared_memory();
    shared.check_allowed()?;
    match (verb, sort) {
        (Verb::Status, _) if named && name.is_empty() => Err(Refusal::status_unknown(sort, name)),
        (Verb::Status, Sort::System) => system(shared, name),
        (Verb::Status, Sort::Cuda) => cuda(shared, name),
        (Verb::Register, _) => {
            if name.is_empty() {
                return Err(Refusal::name_missing(sort));
            }
            let text = body.rest(LONGEST).await?;
            register(shared, sort, name, Node::document(&text)?)?;
            Ok(reply::empty())
        }
        // There is no region without a name.
        (Verb::Unregister, _) if named && name.is_empty() => Ok(reply::empty()),
        (Verb::Unregister, Sort::System) => shared.unregister_system(name).map(|()| reply::empty()),
        (Verb::Unregister, Sort::Cuda) => shared.unregister_cuda(name).map(|()| reply::empty()),
    }
}

fn register(
    shared: &SharedMemory,
    sort: Sort,
    name: &str,
    request: Node<'_>,
) -> Result<(), Refusal> {
    let field = |field| request.get(field).ok_or_else(|| Refusal::register_field(field));
    match sort {
        Sort::System => {
            let key = string(field("key")?)?;
            let offset = request.get("offset").map_or(Ok(0), unsigned)?;
            let byte_size = unsigned(field("byte_size")?)?;
            shared.register_system(name, &key, offset, byte_size)
        }
        Sort::Cuda => {
            let handle = field("raw_handle")?;
            let text = handle.get("b64").ok_or_else(|| Refusal::register_field("raw_handle"))?;
            let device = unsigned(field("device_id")?)?;
            let byte_size = unsigned(field("byte_size")?)?;
            let raw = STANDARD.decode(string(text)?).unwrap_or_default();
            shared.register_cuda(name, &raw, i64::try_from(device).unwrap_or(-1), byte_size)
        }
    }
}

fn system(shared: &SharedMemory, name: &str) -> Result<Reply, Refusal> {
    let mut text = String::from("[");
    for (at, region) in shared.system_status(name)?.iter().enumerate() {
        text.push_str(if at > 0 { ",{\"name\":" } else { "{\"name\":" });
        json::string(&mut text, &region.name);
        text.push_str(",\"key\":");
        json::string(&mut text, &region.key);
        let _ = write!(text, ",\"offset\":{},\"byte_size\":{}}}", region.offset, region.byte_size);
    }
    text.push(']');
    Ok(reply::json(text))
}

fn cuda(shared: &SharedMemory, name: &str) -> Result<Reply, Refusal> {
    let mut text = String::from("[");
    for (at, region) in shared.cuda_status(name)?.iter().enumerate() {
        text.push_str(if at > 0 { ",{\"name\":" } else { "{\"name\":" });
        json::string(&mut text, &region.name);
        let (device, byte_size) = (region.device_id, region.byte_size);
        let _ = write!(text, ",\"device_id\":{device},\"byte_size\":{byte_size}}}");
    }
    text.push(']');
    Ok(reply::json(text))
}
