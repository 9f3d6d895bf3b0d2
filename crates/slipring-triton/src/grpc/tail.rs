//! Long tensors of a response, which go behind its message without a copy.
//!
//! ```text
//!   message   the encoder's part: everything else │ key, length, bytes of a tensor │ key, length, bytes of a tensor …
//! ```
//!
//! tonic encodes a message into one buffer, in one go: for a tensor of 1 GiB that is a second gigabyte, and a thread of
//! the runtime that does nothing else for some hundred milliseconds. The encoder therefore leaves such tensors to
//! [`ChargedBody`](super::response_body::ChargedBody), which appends them. In protobuf the last field of a message may
//! as well come from elsewhere.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};
use tonic::Status;

use crate::grpc::generated::health::*;
use crate::grpc::generated::inference::*;

/// Shorter tensors are copied into the message, which costs less than a chunk of their own.
pub(super) const LONG: usize = 64 << 10;

/// The longest message. Clients refuse longer ones.
const MAX_LEN: usize = i32::MAX as usize;

/// The fields of `raw_output_contents` and `infer_response`.
const RAW: u32 = 6;
const RESPONSE: u32 = 2;

/// The tails of the messages that a call has encoded and its body has not yet sent, one for each message.
#[derive(Debug, Clone, Default)]
pub(super) struct Tails(Arc<Mutex<VecDeque<VecDeque<Bytes>>>>);

impl Tails {
    fn push(&self, tail: VecDeque<Bytes>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_back(tail);
    }

    /// Returns the tail of the next message.
    pub(super) fn pop(&self) -> VecDeque<Bytes> {
        let tail = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        tail.unwrap_or_default()
    }

    /// Encodes a message into `to`, and keeps its tail.
    ///
    /// # Errors
    ///
    /// The message is too long.
    pub(super) fn encode<T: WithTail>(
        &self,
        mut message: T,
        to: &mut impl BufMut,
    ) -> Result<(), Status> {
        let len = message.encoded_len();
        if len > MAX_LEN {
            let text = format!("message of {len} bytes, the limit is {MAX_LEN}");
            return Err(Status::out_of_range(text));
        }
        let tail = message.split(to);
        self.push(tail);
        Ok(())
    }
}

/// A message of the server.
pub trait WithTail: Message + Sized {
    /// Encodes the message into `to`, except for the tail that it returns.
    fn split(&mut self, to: &mut impl BufMut) -> VecDeque<Bytes> {
        self.encode_raw(to);
        VecDeque::new()
    }
}

/// Returns whether the body appends the tensors of a response. Such a response is not compressed.
pub(super) fn has_tail(response: &ModelInferResponse) -> bool {
    response.raw_output_contents.iter().any(|bytes| bytes.len() > LONG)
}

/// Takes the fields of `raw_output_contents`, if one of them is long.
fn take_raw(response: &mut ModelInferResponse) -> VecDeque<Bytes> {
    if !has_tail(response) {
        return VecDeque::new();
    }
    let fields = std::mem::take(&mut response.raw_output_contents).into_iter().flat_map(|bytes| {
        let mut head = BytesMut::with_capacity(16);
        encode_key(RAW, WireType::LengthDelimited, &mut head);
        encode_varint(bytes.len() as u64, &mut head);
        [head.freeze(), bytes]
    });
    fields.filter(|piece| !piece.is_empty()).collect()
}

impl WithTail for ModelInferResponse {
    fn split(&mut self, to: &mut impl BufMut) -> VecDeque<Bytes> {
        let tail = take_raw(self);
        self.encode_raw(to);
        tail
    }
}

impl WithTail for ModelStreamInferResponse {
    fn split(&mut self, to: &mut impl BufMut) -> VecDeque<Bytes> {
        let Some(mut response) = self.infer_response.take() else {
            self.encode_raw(to);
            return VecDeque::new();
        };
        self.encode_raw(to);
        let len = response.encoded_len();
        encode_key(RESPONSE, WireType::LengthDelimited, to);
        encode_varint(len as u64, to);
        response.split(to)
    }
}

// These messages are short.
impl WithTail for CudaSharedMemoryRegisterResponse {}
impl WithTail for CudaSharedMemoryStatusResponse {}
impl WithTail for CudaSharedMemoryUnregisterResponse {}
impl WithTail for HealthCheckResponse {}
impl WithTail for ModelConfigResponse {}
impl WithTail for ModelMetadataResponse {}
impl WithTail for ModelReadyResponse {}
impl WithTail for ModelStatisticsResponse {}
impl WithTail for RepositoryIndexResponse {}
impl WithTail for RepositoryModelLoadResponse {}
impl WithTail for RepositoryModelUnloadResponse {}
impl WithTail for ServerLiveResponse {}
impl WithTail for ServerMetadataResponse {}
impl WithTail for ServerReadyResponse {}
impl WithTail for SystemSharedMemoryRegisterResponse {}
impl WithTail for SystemSharedMemoryStatusResponse {}
impl WithTail for SystemSharedMemoryUnregisterResponse {}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(lens: &[usize]) -> ModelInferResponse {
        let raw_output_contents = lens.iter().map(|len| vec![*len as u8; *len].into()).collect();
        ModelInferResponse { model_name: "M".to_owned(), raw_output_contents, ..Default::default() }
    }

    /// Returns the encoded message, and how many bytes of it are its tail.
    fn encode<T: WithTail + Clone>(message: &T) -> (Vec<u8>, usize) {
        let (tails, mut bytes) = (Tails::default(), Vec::new());
        tails.encode(message.clone(), &mut bytes).unwrap();
        let head = bytes.len();
        tails.pop().iter().for_each(|piece| bytes.extend_from_slice(piece));
        assert_eq!(bytes.len(), message.encoded_len());
        (bytes.clone(), bytes.len() - head)
    }

    #[test]
    fn a_message_and_its_tail_are_the_message() {
        for lens in [&[][..], &[7], &[LONG], &[LONG + 1], &[0, 3, 5 * LONG, 0], &[LONG; 3]] {
            let message = response(lens);
            let (bytes, tail) = encode(&message);
            assert_eq!(tail > LONG, lens.iter().any(|len| *len > LONG));
            assert!(ModelInferResponse::decode(&bytes[..]).unwrap() == message, "{lens:?}");
            let error_message = if lens.len() == 1 { "fault" } else { "" }.to_owned();
            let message = ModelStreamInferResponse { error_message, infer_response: Some(message) };
            let (bytes, tail) = encode(&message);
            assert_eq!(tail > LONG, lens.iter().any(|len| *len > LONG));
            assert!(ModelStreamInferResponse::decode(&bytes[..]).unwrap() == message, "{lens:?}");
        }
        encode(&ModelStreamInferResponse::default());
    }
}
