//! A codec that checks the decoded size of each protobuf message before it decodes the message.

use std::marker::PhantomData;

use bytes::Buf;
use prost::Message;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic_prost::{ProstCodec, ProstEncoder};

use crate::budget::Charge;
use crate::grpc::generated::health::*;
use crate::grpc::generated::inference::*;
use crate::grpc::message_size;

tokio::task_local! {
    /// The charge of the current call. Generated code creates the codec, which therefore does not know the call.
    static CHARGE: Charge;
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
pub struct SizeCheckingCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for SizeCheckingCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for SizeCheckingCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + DecodedSize + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = SizeCheckingDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::raw_encoder(Default::default())
    }

    fn decoder(&mut self) -> Self::Decoder {
        SizeCheckingDecoder(PhantomData)
    }
}

/// Reads messages of `U`.
#[derive(Debug, Clone)]
pub struct SizeCheckingDecoder<U>(PhantomData<U>);

impl<U: Message + Default + DecodedSize> Decoder for SizeCheckingDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, message: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        // tonic decodes a message only when all of it lies in one chunk.
        let bytes = message.chunk();
        let (size, most) =
            (U::decoded_size(bytes), ALWAYS_ADMITTED.max(bytes.len().saturating_mul(MAX_GROWTH)));
        if size > most {
            let len = bytes.len();
            let text = format!(
                "message of {len} bytes takes {size} bytes once decoded, the limit is {most}"
            );
            return Err(Status::resource_exhausted(text));
        }
        if size > 0 {
            let charged = CHARGE.try_with(|charge| charge.add(size as u64));
            charged.unwrap_or(Ok(()))?;
        }
        U::decode(message).map(Some).map_err(|error| Status::internal(error.to_string()))
    }
}
