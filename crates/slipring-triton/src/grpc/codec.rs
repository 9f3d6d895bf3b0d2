//! Messages of protobuf, each weighed before it is decoded.

use std::marker::PhantomData;

use bytes::Buf;
use prost::Message;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic_prost::{ProstCodec, ProstEncoder};

use crate::budget::Share;
use crate::grpc::generated::health::*;
use crate::grpc::generated::inference::*;
use crate::grpc::weight;

tokio::task_local! {
    /// Of the call whose messages are decoded: the codec is made by generated code, which knows of no call.
    static SHARE: Share;
}

/// Runs what decodes messages of a call. What they take in memory beyond their bytes is taken from its share.
pub(super) fn sharing<F: Future>(share: Share, decoding: F) -> impl Future<Output = F::Output> {
    SHARE.scope(share, decoding)
}

/// A message that a client sends.
pub trait Weighed {
    /// What it takes in memory, as far as that may be many times what it takes on the wire: bytes.
    fn weight(_message: &[u8]) -> usize {
        0
    }
}

impl Weighed for ModelInferRequest {
    fn weight(message: &[u8]) -> usize {
        weight::of_request(message)
    }
}

// A few fields each, and strings that take what they are long.
impl Weighed for CudaSharedMemoryRegisterRequest {}
impl Weighed for CudaSharedMemoryStatusRequest {}
impl Weighed for CudaSharedMemoryUnregisterRequest {}
impl Weighed for HealthCheckRequest {}
impl Weighed for ModelConfigRequest {}
impl Weighed for ModelMetadataRequest {}
impl Weighed for ModelReadyRequest {}
impl Weighed for ModelStatisticsRequest {}
impl Weighed for RepositoryIndexRequest {}
impl Weighed for ServerLiveRequest {}
impl Weighed for ServerMetadataRequest {}
impl Weighed for ServerReadyRequest {}
impl Weighed for SystemSharedMemoryRegisterRequest {}
impl Weighed for SystemSharedMemoryStatusRequest {}
impl Weighed for SystemSharedMemoryUnregisterRequest {}

/// What a message may always weigh.
const LIGHT: usize = 256 << 20;

/// A heavier one may weigh as many times its length. Typed contents weigh up to eight times theirs, if all numbers
/// are small; whoever sends as much of them as this shall send raw contents.
const HEAVY: usize = 4;

/// The codec that the generated code asks for: `T` is written, `U` is read.
#[derive(Debug, Clone)]
pub struct WeighingCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for WeighingCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for WeighingCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Weighed + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = WeighingDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::raw_encoder(Default::default())
    }

    fn decoder(&mut self) -> Self::Decoder {
        WeighingDecoder(PhantomData)
    }
}

/// Reads messages of `U`.
#[derive(Debug, Clone)]
pub struct WeighingDecoder<U>(PhantomData<U>);

impl<U: Message + Default + Weighed> Decoder for WeighingDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, message: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        // A message is whole before it is decoded, and lies in one piece.
        let bytes = message.chunk();
        let (weight, most) = (U::weight(bytes), LIGHT.max(bytes.len().saturating_mul(HEAVY)));
        if weight > most {
            let len = bytes.len();
            let text = format!(
                "message of {len} bytes takes {weight} once decoded, at most {most} may be"
            );
            return Err(Status::resource_exhausted(text));
        }
        if weight > 0 {
            let taken = SHARE.try_with(|share| share.take(weight as u64));
            taken.unwrap_or(Ok(()))?;
        }
        U::decode(message).map(Some).map_err(|error| Status::internal(error.to_string()))
    }
}
