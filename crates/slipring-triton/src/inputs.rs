//! The inputs of a model: tensors that came with the request or lie in a client's region.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use bytes::Bytes as Owned;
use slipring::error::RegionFault;
use slipring::message::Bytes;
use slipring::region::{Lease, RegionKind};
use slipring::tensor::Element;
use slipring::{DType, Error, ErrorKind, Shape};

use crate::budget::Charge;
use crate::model_error::ModelError;
use crate::refusal::Refusal;
use crate::request::Parameter;
use crate::strings::{Strings, StringsValidator, zeros};

/// Bytes of elements copied at a time.
const CHUNK: usize = 4096;

/// Bytes of a BYTES tensor in a region read at a time.
const VALIDATED_AT_A_TIME: usize = 64 << 10;

/// The first failed access to a client's region. The request fails with it, whatever the model returns.
#[derive(Debug, Default)]
pub(crate) struct RegionFailure(OnceLock<Refusal>);

impl RegionFailure {
    pub(crate) fn get(&self) -> Option<&Refusal> {
        self.0.get()
    }

    /// Records a failure if a region is shorter than a lease of it.
    ///
    /// A cut inside of a page raises no signal, so each region is asked once for its length.
    pub(crate) fn check_whole<'a, L: Iterator<Item = &'a Lease>>(&self, leases: impl Fn() -> L) {
        let leases = || leases().enumerate();
        for (at, lease) in leases() {
            let mut others = leases().filter(|(other, _)| *other != at);
            let covered = others.any(|(other, behind)| {
                behind.ends_behind(lease) && (other < at || !lease.ends_behind(behind))
            });
            if !covered && let Err(error) = lease.holds() {
                self.record(lease, &error);
            }
        }
    }

    /// Keeps the first failure.
    pub(crate) fn record(&self, lease: &Lease, error: &Error) -> ModelError {
        let refusal = access_refusal(lease.name(), error);
        self.0.get_or_init(|| refusal.clone());
        refusal.into()
    }
}

/// Returns the refusal for a failed access to a client's region.
fn access_refusal(name: &str, error: &Error) -> Refusal {
    match error.kind() {
        ErrorKind::Region(RegionFault::Truncated { .. } | RegionFault::TruncatedInPlace { .. }) => {
            Refusal::region_truncated(name)
        }
        ErrorKind::Region(RegionFault::ReadOnly) => Refusal::region_read_only(name),
        ErrorKind::Region(RegionFault::GuardFull { .. }) => Refusal::region_unguarded(name),
        ErrorKind::Region(RegionFault::OutOfReach { .. }) => Refusal::region_out_of_reach(name),
        _ => Refusal::region_failed(name),
    }
}

/// Returns whether a region lies on a GPU, where no CPU can touch it.
pub(crate) fn is_on_gpu(lease: &Lease) -> bool {
    lease.kind() == RegionKind::Cuda
}

/// The place of an input's bytes.
#[derive(Debug)]
pub(crate) enum InputSource {
    Inline(Owned),
    Region(Lease),
}

/// An input, and the holder of its bytes.
#[derive(Debug)]
pub(crate) struct InputTensor {
    pub(crate) name: String,
    pub(crate) dtype: DType,
    pub(crate) shape: Shape,
    pub(crate) from: InputSource,
}

/// The request's fields other than its tensors.
#[derive(Debug, Default)]
pub(crate) struct RequestInfo {
    pub(crate) version: u64,
    pub(crate) id: Option<String>,
    pub(crate) parameters: BTreeMap<String, Parameter>,
}

/// The inputs of a request.
pub struct Inputs {
    pub(crate) info: RequestInfo,
    pub(crate) tensors: Vec<InputTensor>,
    /// Whether the model touches memory in place that its owner can truncate.
    pub(crate) in_place: bool,
    pub(crate) failure: Arc<RegionFailure>,
    /// The charge for the request's bytes. It lasts until the inputs are dropped, even if the client has gone.
    pub(crate) charge: Charge,
}

impl Inputs {
    /// Returns the input of this name.
    ///
    /// # Errors
    ///
    /// The model has no such input.
    pub fn input(&self, name: &str) -> Result<Input<'_>, ModelError> {
        let tensor = self.tensors.iter().find(|tensor| tensor.name == name);
        tensor
            .map(|tensor| self.view(tensor))
            .ok_or_else(|| ModelError::new(format!("the model has no input '{name}'")))
    }

    /// Returns the model version that the client asks for, or the last version if it names none.
    pub fn version(&self) -> u64 {
        self.info.version
    }

    /// Returns the client's id of the request.
    pub fn id(&self) -> Option<&str> {
        self.info.id.as_deref()
    }

    /// Returns the parameters of the request, without those of the protocol.
    pub fn parameters(&self) -> &BTreeMap<String, Parameter> {
        &self.info.parameters
    }

    /// Returns all inputs in the order of the request.
    pub fn iter(&self) -> impl Iterator<Item = Input<'_>> {
        self.tensors.iter().map(|tensor| self.view(tensor))
    }

    /// Returns the bytes of BYTES inputs that lie in regions.
    pub(crate) fn strings_len(&self) -> u64 {
        let lens = self.tensors.iter().map(|tensor| match &tensor.from {
            InputSource::Region(lease) if tensor.dtype == DType::Bytes => lease.len(),
            _ => 0,
        });
        lens.sum()
    }

    /// Checks that the BYTES inputs in regions are well formed. The client can still change them afterwards. The
    /// validation of the request has checked inline ones.
    pub(crate) fn check_strings(&self) -> Result<(), Refusal> {
        let inputs = self.iter().filter(|input| input.dtype() == DType::Bytes);
        for input in inputs.filter(|input| input.lease().is_some()) {
            let mut walk = StringsValidator::new(input.shape().elements().unwrap_or(usize::MAX));
            let mut chunk = vec![0; VALIDATED_AT_A_TIME.min(input.byte_len())];
            let mut at = 0;
            while at < input.byte_len() {
                let len = chunk.len().min(input.byte_len() - at);
                input.read_at(at, &mut chunk[..len])?;
                walk.feed(input.name(), &chunk[..len])?;
                at += len;
            }
            walk.finish(input.name())?;
        }
        Ok(())
    }

    /// Returns the leases of the inputs in regions.
    pub(crate) fn leases(&self) -> impl Iterator<Item = &Lease> {
        self.tensors.iter().filter_map(|tensor| match &tensor.from {
            InputSource::Region(lease) => Some(lease),
            InputSource::Inline(_) => None,
        })
    }

    fn view<'a>(&'a self, tensor: &'a InputTensor) -> Input<'a> {
        Input { tensor, in_place: self.in_place, failure: &self.failure, charge: &self.charge }
    }
}

impl fmt::Debug for Inputs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// A view of an input: `dtype`, `shape`, row-major, little-endian.
///
/// | place of the bytes | method | cost |
/// |---|---|---|
/// | the request | all | none, or the copy that the caller asks for |
/// | a region | [`read_at`](Self::read_at), [`bytes`](Self::bytes), [`elements`](Self::elements) | a copy |
/// | | [`in_place`](Self::in_place) | none if the front works in place, else a copy |
#[derive(Clone, Copy)]
pub struct Input<'a> {
    tensor: &'a InputTensor,
    in_place: bool,
    failure: &'a RegionFailure,
    charge: &'a Charge,
}

impl<'a> Input<'a> {
    /// Returns the input's name.
    pub fn name(&self) -> &'a str {
        &self.tensor.name
    }

    /// Returns the type of its elements.
    pub fn dtype(&self) -> DType {
        self.tensor.dtype
    }

    /// Returns its dimensions, including the batch.
    pub fn shape(&self) -> &'a Shape {
        &self.tensor.shape
    }

    /// Returns its length in bytes.
    pub fn byte_len(&self) -> usize {
        match &self.tensor.from {
            InputSource::Inline(bytes) => bytes.len(),
            // Validation has checked the length against the shape; a BYTES region lies inside of its object.
            InputSource::Region(lease) => lease.len() as usize,
        }
    }

    /// Returns the bytes of an input that came with the request. Nobody else can change them.
    pub fn as_bytes(&self) -> Option<&'a [u8]> {
        match &self.tensor.from {
            InputSource::Inline(bytes) => Some(bytes),
            InputSource::Region(_) => None,
        }
    }

    /// Copies `out.len()` bytes from `offset` on to `out`.
    ///
    /// # Errors
    ///
    /// The range exceeds the input, or the client has truncated its object.
    pub fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<(), ModelError> {
        match &self.tensor.from {
            InputSource::Inline(bytes) => {
                let end = offset.checked_add(out.len());
                let part = end.and_then(|end| bytes.get(offset..end));
                let part = part.ok_or_else(|| ModelError::new("read past the end of an input"))?;
                out.copy_from_slice(part);
                Ok(())
            }
            InputSource::Region(lease) => {
                let inside =
                    offset.checked_add(out.len()).is_some_and(|end| end as u64 <= lease.len());
                let read = if self.in_place && inside && !is_on_gpu(lease) {
                    lease.touch(|bytes| bytes.slice(offset, out.len()).copy_to(out))
                } else {
                    lease.read_at(offset as u64, out)
                };
                read.map_err(|error| self.failure.record(lease, &error))
            }
        }
    }

    /// Returns whether the front touches the region in place.
    fn touches(&self, lease: &Lease) -> bool {
        (self.in_place && !is_on_gpu(lease)) || lease.is_sealed()
    }

    /// Runs `read` over the input's bytes. The bytes are the region's own if it is sealed or the front works in place;
    /// else they are a copy.
    ///
    /// If the client truncates its object meanwhile, `read` finds zeros and the request fails.
    ///
    /// # Errors
    ///
    /// The client has truncated its object.
    pub fn in_place<R>(&self, read: impl FnOnce(Bytes<'_>) -> R) -> Result<R, ModelError> {
        match &self.tensor.from {
            InputSource::Inline(bytes) => Ok(read(Bytes::of(bytes))),
            InputSource::Region(lease) if self.touches(lease) => {
                lease.in_place(read).map_err(|error| self.failure.record(lease, &error))
            }
            InputSource::Region(_) => Ok(read(Bytes::of(&self.bytes()?))),
        }
    }

    /// Returns the input's bytes, as a copy if they lie in a region. The copy is charged until the request ends.
    ///
    /// # Errors
    ///
    /// As for [`read_at`](Self::read_at), and the server has no memory for the copy.
    pub fn bytes(&self) -> Result<Cow<'a, [u8]>, ModelError> {
        match &self.tensor.from {
            InputSource::Inline(bytes) => Ok(Cow::Borrowed(bytes)),
            InputSource::Region(_) => {
                self.charge.add(self.byte_len() as u64)?;
                let mut bytes = zeros(self.byte_len())?;
                self.read_at(0, &mut bytes)?;
                Ok(Cow::Owned(bytes))
            }
        }
    }

    /// Returns the input's elements, as a copy if they lie in a region or are not aligned for `T`.
    ///
    /// # Errors
    ///
    /// As for [`bytes`](Self::bytes); the elements have another type; or a BOOL is neither 0 nor 1.
    pub fn elements<T: Element>(&self) -> Result<Cow<'a, [T]>, ModelError> {
        self.check::<T>()?;
        if let Some(slice) = self.as_bytes().and_then(T::slice_of) {
            return Ok(Cow::Borrowed(slice));
        }
        let len = self.byte_len();
        self.charge.add(len as u64)?;
        let mut elements = Vec::new();
        elements.try_reserve_exact(len / size_of::<T>()).map_err(|_| Refusal::no_memory(len))?;
        elements.resize_with(len / size_of::<T>(), T::new_zeroed);
        let mut chunk = [0; CHUNK];
        let mut at = 0;
        for part in elements.chunks_mut(CHUNK / size_of::<T>()) {
            let bytes = &mut chunk[..size_of_val(part)];
            self.read_at(at, bytes)?;
            let copied = T::copy_from_bytes(bytes, part);
            copied.map_err(|_| ModelError::invalid("a BOOL is neither 0 nor 1"))?;
            at += bytes.len();
        }
        Ok(Cow::Owned(elements))
    }

    /// Returns the elements of a BYTES input, of a copy if they lie in a region.
    ///
    /// # Errors
    ///
    /// As for [`bytes`](Self::bytes); the input is not of BYTES; or the number of elements differs from the shape.
    pub fn strings(&self) -> Result<Strings<'a>, ModelError> {
        if self.dtype() != DType::Bytes {
            return Err(ModelError::new("the input's elements are no BYTES"));
        }
        let count = self.shape().elements().map_err(|_| ModelError::new("shape without end"))?;
        Ok(Strings::new(self.name(), self.bytes()?, count)?)
    }

    fn check<T: Element>(&self) -> Result<(), ModelError> {
        if self.dtype() == T::DTYPE {
            return Ok(());
        }
        let (is, wanted) = (self.dtype(), T::DTYPE);
        Err(ModelError::new(format!("the input's elements are {is}, not {wanted}")))
    }

    /// Returns the lease of an input in a region.
    pub(crate) fn lease(&self) -> Option<&'a Lease> {
        match &self.tensor.from {
            InputSource::Inline(_) => None,
            InputSource::Region(lease) => Some(lease),
        }
    }
}

impl fmt::Debug for Input<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.name(), self.dtype(), self.shape())
    }
}
