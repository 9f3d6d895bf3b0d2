//! What a model reads: tensors that came with the request, or lie in a client's region.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use bytes::Bytes as Owned;

use crate::budget::Charge;
use crate::model_error::ModelError;
use crate::refusal::Refusal;
use crate::request::Parameter;
use crate::strings::{Strings, StringsValidator, zeros};
use slipring::error::RegionFault;
use slipring::message::Bytes;
use slipring::region::{Lease, RegionKind};
use slipring::tensor::Element;
use slipring::{DType, Shape};
use slipring::{Error, ErrorKind};

/// Bytes of elements that are copied at a time.
const CHUNK: usize = 4096;

/// Bytes of BYTES in a region that are looked at at a time.
const WALK: usize = 64 << 10;

/// The first access to a client's region that failed. The request fails with it, whatever the model makes of it.
#[derive(Debug, Default)]
pub(super) struct RegionFailure(OnceLock<Refusal>);

impl RegionFailure {
    pub(super) fn get(&self) -> Option<&Refusal> {
        self.0.get()
    }

    /// Keeps what went wrong with a region.
    pub(super) fn record(&self, lease: &Lease, error: &Error) -> ModelError {
        let refusal = accessing(lease.name(), error);
        self.0.get_or_init(|| refusal.clone());
        refusal.into()
    }
}

/// What a client is told of an access to its region.
fn accessing(name: &str, error: &Error) -> Refusal {
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

/// Whether a region lies on a GPU, where no processor reaches.
pub(super) fn is_on_gpu(lease: &Lease) -> bool {
    lease.kind() == RegionKind::Cuda
}

/// Where the bytes of an input are.
#[derive(Debug)]
pub(super) enum InputSource {
    Inline(Owned),
    Region(Lease),
}

/// An input, and what holds its bytes.
#[derive(Debug)]
pub(super) struct InputTensor {
    pub(super) name: String,
    pub(super) dtype: DType,
    pub(super) shape: Shape,
    pub(super) from: InputSource,
}

/// What a request says besides its tensors.
#[derive(Debug, Default)]
pub(super) struct RequestInfo {
    pub(super) version: u64,
    pub(super) id: Option<String>,
    pub(super) parameters: BTreeMap<String, Parameter>,
}

/// The inputs of a request.
pub struct Inputs {
    pub(super) info: RequestInfo,
    pub(super) tensors: Vec<InputTensor>,
    /// Whether memory that its owner can truncate is touched where it lies.
    pub(super) in_place: bool,
    pub(super) failure: Arc<RegionFailure>,
    /// What its bytes have taken of those under way: until they are dropped, even where nobody waits any more.
    pub(super) charge: Charge,
}

impl Inputs {
    /// The input of this name.
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

    /// The model's version that is asked for; the last one, where the client names none.
    pub fn version(&self) -> u64 {
        self.info.version
    }

    /// What the client calls the request.
    pub fn id(&self) -> Option<&str> {
        self.info.id.as_deref()
    }

    /// What else the client says: the parameters of the request, without those of the protocol.
    pub fn parameters(&self) -> &BTreeMap<String, Parameter> {
        &self.info.parameters
    }

    /// All of them, in the order of the request.
    pub fn iter(&self) -> impl Iterator<Item = Input<'_>> {
        self.tensors.iter().map(|tensor| self.view(tensor))
    }

    /// Bytes of BYTES that lie in regions.
    pub(super) fn strings_len(&self) -> u64 {
        let lens = self.tensors.iter().map(|tensor| match &tensor.from {
            InputSource::Region(lease) if tensor.dtype == DType::Bytes => lease.len(),
            _ => 0,
        });
        lens.sum()
    }

    /// That what lies in regions as BYTES is BYTES. It may be something else a moment later; what came with the
    /// request was judged before.
    pub(super) fn check_strings(&self) -> Result<(), Refusal> {
        let inputs = self.iter().filter(|input| input.dtype() == DType::Bytes);
        for input in inputs.filter(|input| input.lease().is_some()) {
            let mut walk = StringsValidator::new(input.shape().elements().unwrap_or(usize::MAX));
            let mut chunk = vec![0; WALK.min(input.byte_len())];
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

    /// The parts of regions that they lie in.
    pub(super) fn leases(&self) -> impl Iterator<Item = &Lease> {
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
/// | its bytes | had by | cost |
/// |---|---|---|
/// | came with the request | all of these | nothing, or the copy that was asked for |
/// | lie in a region | [`read_at`](Self::read_at), [`bytes`](Self::bytes), [`elements`](Self::elements) | a copy |
/// | | [`in_place`](Self::in_place) | none where the server works in place, else a copy |
#[derive(Clone, Copy)]
pub struct Input<'a> {
    tensor: &'a InputTensor,
    in_place: bool,
    failure: &'a RegionFailure,
    charge: &'a Charge,
}

impl<'a> Input<'a> {
    /// Its name.
    pub fn name(&self) -> &'a str {
        &self.tensor.name
    }

    /// What its elements are.
    pub fn dtype(&self) -> DType {
        self.tensor.dtype
    }

    /// Its dimensions, with that of the batch.
    pub fn shape(&self) -> &'a Shape {
        &self.tensor.shape
    }

    /// Its length in bytes.
    pub fn byte_len(&self) -> usize {
        match &self.tensor.from {
            InputSource::Inline(bytes) => bytes.len(),
            // Judged against the shape, or, of BYTES, inside of an object.
            InputSource::Region(lease) => lease.len() as usize,
        }
    }

    /// Its bytes, if they came with the request, so that nobody else can change them.
    pub fn as_bytes(&self) -> Option<&'a [u8]> {
        match &self.tensor.from {
            InputSource::Inline(bytes) => Some(bytes),
            InputSource::Region(_) => None,
        }
    }

    /// Copies `out.len()` bytes at `offset` out.
    ///
    /// # Errors
    ///
    /// They are not all inside of the input, or no longer inside of the client's object.
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

    /// Whether a region's bytes are touched where they lie.
    fn touches(&self, lease: &Lease) -> bool {
        (self.in_place && !is_on_gpu(lease)) || lease.is_sealed()
    }

    /// Runs `read` over its bytes: where they lie, if nothing that its owner does can hurt, or the server works in
    /// place; else over a copy.
    ///
    /// Where the client truncates its object meanwhile, `read` finds zeros, and the request fails.
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

    /// Its bytes; copied, if they lie in a region. The copy counts as bytes under way until the request ends.
    ///
    /// # Errors
    ///
    /// As for [`read_at`](Self::read_at), and there may be no memory.
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

    /// Its elements; copied, if they lie in a region or start where a `T` cannot.
    ///
    /// # Errors
    ///
    /// As for [`bytes`](Self::bytes), and its elements are others, or a BOOL is neither 0 nor 1.
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

    /// The elements of BYTES, of a copy if they lie in a region.
    ///
    /// # Errors
    ///
    /// As for [`bytes`](Self::bytes), and they are no BYTES elements, or not as many as the shape says.
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

    /// The region that it lies in.
    pub(super) fn lease(&self) -> Option<&'a Lease> {
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
