//! A codec that checks the decoded size of each protobuf message before it decodes the message, and leaves long tensors
//! of responses to the body.

use std::marker::PhantomData;

use bytes::{Buf, Bytes};
use prost::Message;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

use crate::budget::Charge;
use crate::grpc::generated::health::*;
use crate::grpc::generated::inference::*;
use crate::grpc::long_messages::LongMessages;
use crate::grpc::message_size;
use crate::grpc::tail::{Tails, WithTail};

tokio::task_local! {
    /// The charge of the current call. Generated code creates the codec, which therefore does not know the call.
    static CHARGE: Charge;
    /// What passes tonic by in the current call.
    static BESIDE: BesideTonic;
}

/// The bytes of a call that pass tonic by: long messages of the client, and long tensors of the server.
#[derive(Debug, Clone, Default)]
pub(super) struct BesideTonic {
    messages: LongMessages,
    tails: Tails,
}

impl BesideTonic {
    pub(super) fn messages(&self) -> LongMessages {
        self.messages.clone()
    }

    pub(super) fn tails(&self) -> Tails {
        self.tails.clone()
    }
}

/// Runs the code that creates the codec of a call.
pub(super) fn with_bytes_beside<F: Future>(
    beside: BesideTonic,
    creating: F,
) -> impl Future<Output = F::Output> {
    BESIDE.scope(beside, creating)
}

/// Runs code that decodes messages of a call. Memory beyond the message's own bytes goes to the call's charge.
pub(super) fn with_charge<F: Future>(
    charge: Charge,
    decoding: F,
) -> impl Future<Output = F::Output> {
    CHARGE.scope(charge, decoding)
}

/// A message of a client.
pub trait DecodedSize {
    /// Returns the memory of the decoded message in bytes, if it can exceed the encoded size many times.
    fn decoded_size(_message: &[u8]) -> usize {
        0
    }
}

impl DecodedSize for ModelInferRequest {
    fn decoded_size(message: &[u8]) -> usize {
        message_size::of_request(message)
    }
}

impl DecodedSize for RepositoryModelLoadRequest {
    fn decoded_size(message: &[u8]) -> usize {
        message_size::of_control(message)
    }
}

impl DecodedSize for RepositoryModelUnloadRequest {
    fn decoded_size(message: &[u8]) -> usize {
        message_size::of_control(message)
    }
}

// These messages have a few fields, and strings of their encoded size.
impl DecodedSize for CudaSharedMemoryRegisterRequest {}
impl DecodedSize for CudaSharedMemoryStatusRequest {}
impl DecodedSize for CudaSharedMemoryUnregisterRequest {}
impl DecodedSize for HealthCheckRequest {}
impl DecodedSize for ModelConfigRequest {}
impl DecodedSize for ModelMetadataRequest {}
impl DecodedSize for ModelReadyRequest {}
impl DecodedSize for ModelStatisticsRequest {}
impl DecodedSize for RepositoryIndexRequest {}
impl DecodedSize for ServerLiveRequest {}
impl DecodedSize for ServerMetadataRequest {}
impl DecodedSize for ServerReadyRequest {}
impl DecodedSize for SystemSharedMemoryRegisterRequest {}
impl DecodedSize for SystemSharedMemoryStatusRequest {}
impl DecodedSize for SystemSharedMemoryUnregisterRequest {}

/// The decoded size that every message may have.
const ALWAYS_ADMITTED: usize = 256 << 20;

/// The limit on the ratio of decoded to encoded size above [`ALWAYS_ADMITTED`]. Typed contents of small numbers reach
/// a ratio of eight; clients send that much data as raw contents.
const MAX_GROWTH: usize = 4;

/// The codec of the generated code. It writes `T` and reads `U`.
#[derive(Debug, Clone)]
pub struct SizeCheckingCodec<T, U> {
    beside: BesideTonic,
    types: PhantomData<(T, U)>,
}

impl<T, U> Default for SizeCheckingCodec<T, U> {
    fn default() -> Self {
        let beside = BESIDE.try_with(Clone::clone).unwrap_or_default();
        Self { beside, types: PhantomData }
    }
}

impl<T, U> Codec for SizeCheckingCodec<T, U>
where
    T: WithTail + Send + 'static,
    U: Message + Default + DecodedSize + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = TailEncoder<T>;
    type Decoder = SizeCheckingDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        TailEncoder { tails: self.beside.tails.clone(), types: PhantomData }
    }

    fn decoder(&mut self) -> Self::Decoder {
        SizeCheckingDecoder { messages: self.beside.messages.clone(), types: PhantomData }
    }
}

/// Writes messages of `T` without their tails.
#[derive(Debug, Clone)]
pub struct TailEncoder<T> {
    tails: Tails,
    types: PhantomData<T>,
}

impl<T: WithTail> Encoder for TailEncoder<T> {
    type Item = T;
    type Error = Status;

    fn encode(&mut self, message: T, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        self.tails.encode(message, to)
    }
}

/// Reads messages of `U`.
#[derive(Debug, Clone)]
pub struct SizeCheckingDecoder<U> {
    messages: LongMessages,
    types: PhantomData<U>,
}

impl<U: Message + Default + DecodedSize> Decoder for SizeCheckingDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, message: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        match self.messages.pop() {
            Some(message) => decode(message).map(Some),
            // tonic decodes a message only when all of it lies in one chunk.
            None => decode(message.copy_to_bytes(message.remaining())).map(Some),
        }
    }
}

/// Checks and decodes a message.
fn decode<U: Message + Default + DecodedSize>(bytes: Bytes) -> Result<U, Status> {
    let (size, most) =
        (U::decoded_size(&bytes), ALWAYS_ADMITTED.max(bytes.len().saturating_mul(MAX_GROWTH)));
    if size > most {
        let len = bytes.len();
        let text =
            format!("message of {len} bytes takes {size} bytes once decoded, the limit is {most}");
        return Err(Status::resource_exhausted(text));
    }
    if size > 0 {
        let charged = CHARGE.try_with(|charge| charge.add(size as u64));
        charged.unwrap_or(Ok(()))?;
    }
    U::decode(bytes).map_err(|error| Status::internal(error.to_string()))
}
