//! Messages of protobuf, each weighed before it is decoded.

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
    /// Of the call whose messages are decoded: the codec is made by generated code, which knows of no call.
    static CHARGE: Charge;
}

/// Runs what decodes messages of a call. What they take in memory beyond their bytes is taken from its charge.
pub(super) fn with_charge<F: Future>(
    charge: Charge,
    decoding: F,
) -> impl Future<Output = F::Output> {
    CHARGE.scope(charge, decoding)
}

/// A message that a client sends.
pub trait DecodedSize {
    /// What it takes in memory, as far as that may be many times what it takes on the wire: bytes.
    fn decoded_size(_message: &[u8]) -> usize {
        0
    }
}

impl DecodedSize for ModelInferRequest {
    fn decoded_size(message: &[u8]) -> usize {
        message_size::of_request(message)
    }
}

// A few fields each, and strings that take what they are long.
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

/// What a message may always weigh.
const ALWAYS_ADMITTED: usize = 256 << 20;

/// A heavier one may weigh as many times its length. Typed contents weigh up to eight times theirs, if all numbers
/// are small; whoever sends as much of them as this shall send raw contents.
const MAX_GROWTH: usize = 4;

/// The codec that the generated code asks for: `T` is written, `U` is read.
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
        // A message is whole before it is decoded, and lies in one piece.
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
