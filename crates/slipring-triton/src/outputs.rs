//! The outputs of a model: tensors that go into the response or into a client's region.

use std::fmt;
use std::sync::Arc;

use slipring::message::BytesMut;
use slipring::region::Lease;
use slipring::tensor::Element;
use slipring::{DType, Shape};
use zerocopy::IntoBytes;

use crate::budget::Charge;
use crate::classification::Classification;
use crate::inputs::{Input, RegionFailure, is_on_gpu};
use crate::metadata::ModelMetadata;
use crate::model_error::ModelError;
use crate::pages::Pages;
use crate::refusal::Refusal;
use crate::request::ResponseOutput;

/// Bytes of a BYTES output written at a time.
const WRITTEN_AT_A_TIME: usize = 64 << 10;

/// The destination of an output.
#[derive(Debug)]
pub(crate) enum OutputTarget {
    /// `None` until the model has obtained the output.
    Inline(Option<Pages>),
    Region(Lease),
    /// The client has not asked for the output.
    Nowhere,
}

/// An output of the request.
#[derive(Debug)]
pub(crate) struct OutputSlot {
    /// The index in the metadata's outputs.
    pub(crate) spec: usize,
    pub(crate) to: OutputTarget,
    /// The shape and the length in bytes, after the model has obtained the output.
    pub(crate) shape: Option<(Shape, usize)>,
    /// The most classes of each batch item, if the client asks for them instead of the tensor.
    pub(crate) classification: Option<usize>,
}

impl OutputSlot {
    /// Returns the same slot without bytes.
    fn unwritten(&self) -> Self {
        let to = match &self.to {
            OutputTarget::Inline(_) => OutputTarget::Inline(None),
            OutputTarget::Region(lease) => OutputTarget::Region(lease.clone()),
            OutputTarget::Nowhere => OutputTarget::Nowhere,
        };
        Self { spec: self.spec, to, shape: None, classification: self.classification }
    }
}

/// The outputs of a request, or of one response of a decoupled model.
pub struct Outputs {
    pub(crate) metadata: Arc<ModelMetadata>,
    /// The outputs that the client asks for, in its order.
    pub(crate) slots: Vec<OutputSlot>,
    /// The slot of outputs that the client has not asked for.
    pub(crate) unwanted: OutputSlot,
    pub(crate) in_place: bool,
    pub(crate) failure: Arc<RegionFailure>,
    pub(crate) charge: Charge,
    /// Bytes that may still go into the response, and the limit.
    pub(crate) left: u64,
    pub(crate) most: u64,
}

impl Outputs {
    /// Returns whether the client asks for the output. A model may skip the others.
    pub fn is_requested(&self, name: &str) -> bool {
        self.slots.iter().any(|slot| self.metadata.outputs[slot.spec].name == name)
    }

    /// Obtains an output of this shape, including the batch.
    ///
    /// # Errors
    ///
    /// The model has no such output, or it has another shape; the output is of BYTES; or the client's window is too
    /// small.
    pub fn output(
        &mut self,
        name: &str,
        shape: impl Into<Shape>,
    ) -> Result<Output<'_>, ModelError> {
        let shape = shape.into();
        let spec = self.spec(name)?;
        let dtype = self.metadata.outputs[spec].dtype;
        let len = shape.byte_len(dtype).map_err(|_| ModelError::new("output of too many bytes"))?;
        let len =
            len.ok_or_else(|| ModelError::new("the length of BYTES is not in their shape"))?;
        self.obtain(spec, shape, len)
    }

    /// Obtains a BYTES output of `len` bytes, including the length prefixes of its elements.
    ///
    /// # Errors
    ///
    /// As for [`output`](Self::output).
    pub fn output_of_len(
        &mut self,
        name: &str,
        shape: impl Into<Shape>,
        len: usize,
    ) -> Result<Output<'_>, ModelError> {
        let (shape, spec) = (shape.into(), self.spec(name)?);
        let expected = shape.byte_len(self.metadata.outputs[spec].dtype);
        if expected.is_ok_and(|expected| expected.is_none_or(|expected| expected == len)) {
            return self.obtain(spec, shape, len);
        }
        Err(ModelError::new("an output's length is not that of its shape"))
    }

    /// Writes a BYTES output.
    ///
    /// # Errors
    ///
    /// As for [`output`](Self::output), and the number of strings differs from the shape.
    pub fn write_strings<T: AsRef<[u8]>>(
        &mut self,
        name: &str,
        shape: impl Into<Shape>,
        strings: &[T],
    ) -> Result<(), ModelError> {
        let shape = shape.into();
        if shape.elements().ok() != Some(strings.len()) {
            return Err(ModelError::new("an output has another number of elements than its shape"));
        }
        if strings.iter().any(|string| u32::try_from(string.as_ref().len()).is_err()) {
            return Err(ModelError::new("a BYTES element of 4 GiB or more"));
        }
        let len: usize = strings.iter().map(|string| 4 + string.as_ref().len()).sum();
        let mut output = self.output_of_len(name, shape, len)?;
        // Each write to a region is a system call, so small ones are joined.
        let mut piece = Vec::with_capacity(len.min(WRITTEN_AT_A_TIME));
        let mut at = 0;
        for string in strings {
            let string = string.as_ref();
            for part in [&(string.len() as u32).to_le_bytes()[..], string] {
                if piece.len() + part.len() > WRITTEN_AT_A_TIME {
                    output.write_at(at, &piece)?;
                    at += piece.len();
                    piece.clear();
                }
                if part.len() > WRITTEN_AT_A_TIME {
                    output.write_at(at, part)?;
                    at += part.len();
                } else {
                    piece.extend_from_slice(part);
                }
            }
        }
        output.write_at(at, &piece)
    }

    fn spec(&self, name: &str) -> Result<usize, ModelError> {
        let spec = self.metadata.outputs.iter().position(|spec| spec.name == name);
        spec.ok_or_else(|| ModelError::new(format!("the model has no output '{name}'")))
    }

    fn obtain(&mut self, spec: usize, shape: Shape, len: usize) -> Result<Output<'_>, ModelError> {
        let described = &self.metadata.outputs[spec];
        if !self.metadata.admits(described, &shape) {
            let name = &described.name;
            let text = format!("output '{name}' has shape {shape}, other than described");
            return Err(ModelError::new(text));
        }
        let slot = match self.slots.iter().position(|slot| slot.spec == spec) {
            Some(at) => &mut self.slots[at],
            None => &mut self.unwanted,
        };
        match &mut slot.to {
            OutputTarget::Inline(buffer) => {
                if let Some(before) = buffer.take() {
                    let len = before.len() as u64;
                    drop(before);
                    self.charge.release(len);
                    self.left += len;
                }
                let left = self.left.checked_sub(len as u64);
                self.left = left.ok_or_else(|| Refusal::response_too_long(self.most))?;
                self.charge.add(len as u64)?;
                *buffer = Some(Pages::whole(len)?);
            }
            OutputTarget::Region(lease) if lease.len() < len as u64 => {
                let refusal = Refusal::window_too_small(&described.name, lease.len(), len);
                return Err(refusal.into());
            }
            OutputTarget::Region(_) | OutputTarget::Nowhere => {}
        }
        slot.shape = Some((shape, len));
        let dtype = described.dtype;
        let (in_place, failure, charge) = (self.in_place, &*self.failure, &self.charge);
        Ok(Output { slot, dtype, shape, len, in_place, failure, charge })
    }

    /// Returns the same outputs, unwritten, with another charge.
    pub(crate) fn another(&self, charge: Charge) -> Self {
        let slots = self.slots.iter().map(OutputSlot::unwritten).collect();
        let (metadata, failure) = (self.metadata.clone(), self.failure.clone());
        let (unwanted, in_place, most) = (self.unwanted.unwritten(), self.in_place, self.most);
        Self { metadata, slots, unwanted, in_place, failure, charge, left: most, most }
    }

    /// Forgets the outputs that the model has not obtained, so that the response lacks them.
    pub(crate) fn leave_out_missing(&mut self) {
        self.slots.retain(|slot| slot.shape.is_some());
    }

    /// Returns the leases of the outputs in regions.
    pub(crate) fn leases(&self) -> impl Iterator<Item = &Lease> {
        self.slots.iter().filter_map(|slot| match &slot.to {
            OutputTarget::Region(lease) => Some(lease),
            OutputTarget::Inline(_) | OutputTarget::Nowhere => None,
        })
    }

    /// Returns the bytes that [`finish`](Self::finish) classifies.
    pub(crate) fn unfinished(&self) -> usize {
        let classified = self.slots.iter().filter(|slot| slot.classification.is_some());
        classified.filter_map(|slot| slot.shape.map(|(_, len)| len)).sum()
    }

    /// Returns the outputs of the response.
    pub(crate) fn finish(self) -> Result<Vec<ResponseOutput>, Refusal> {
        let Self { metadata, charge, mut left, most, .. } = self;
        let written = self.slots.into_iter().map(|slot| {
            let spec = &metadata.outputs[slot.spec];
            let Some((shape, len)) = slot.shape else {
                return Err(Refusal::output_missing(&spec.name, &metadata.name));
            };
            let data = match slot.to {
                // What the model has not written is 0.
                OutputTarget::Inline(buffer) => {
                    Some(buffer.map(|pages| pages.into_bytes(len)).unwrap_or_default())
                }
                OutputTarget::Region(_) | OutputTarget::Nowhere => None,
            };
            if let (Some(count), Some(bytes)) = (slot.classification, &data) {
                let has_batch = metadata.max_batch_size > 0;
                let (charge, left) = (&charge, &mut left);
                let asked = Classification { count, has_batch, charge, left, most };
                let (shape, texts) = asked.of(spec, &shape, bytes)?;
                let (name, data) = (spec.name.clone(), Some(texts.into()));
                return Ok(ResponseOutput { name, dtype: DType::Bytes, shape, data });
            }
            Ok(ResponseOutput { name: spec.name.clone(), dtype: spec.dtype, shape, data })
        });
        written.collect()
    }
}

impl fmt::Debug for Outputs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outputs").field("slots", &self.slots).finish_non_exhaustive()
    }
}

/// An output to be written. Bytes that the model does not write are 0 in a response, and unchanged in a region.
pub struct Output<'a> {
    slot: &'a mut OutputSlot,
    dtype: DType,
    shape: Shape,
    len: usize,
    in_place: bool,
    failure: &'a RegionFailure,
    charge: &'a Charge,
}

impl Output<'_> {
    /// Returns the type of its elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns its dimensions, including the batch.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns its length in bytes.
    pub fn byte_len(&self) -> usize {
        self.len
    }

    /// Returns whether the output goes into the response, so that [`as_mut_slice`](Self::as_mut_slice) returns it.
    pub fn is_inline(&self) -> bool {
        matches!(self.slot.to, OutputTarget::Inline(_))
    }

    /// Writes all elements.
    ///
    /// # Errors
    ///
    /// The elements have another type or number, or the client has truncated its object.
    pub fn write<T: Element>(&mut self, elements: &[T]) -> Result<(), ModelError> {
        if self.dtype != T::DTYPE {
            let (is, wanted) = (self.dtype, T::DTYPE);
            return Err(ModelError::new(format!("the output's elements are {is}, not {wanted}")));
        }
        self.write_bytes(elements.as_bytes())
    }

    /// Writes all bytes.
    ///
    /// # Errors
    ///
    /// The length differs, or the client has truncated its object.
    pub fn write_bytes(&mut self, bytes: &[u8]) -> Result<(), ModelError> {
        if bytes.len() != self.len {
            let (is, len) = (bytes.len(), self.len);
            return Err(ModelError::new(format!("{is} bytes for an output of {len}")));
        }
        self.write_at(0, bytes)
    }

    /// Writes `bytes` from `offset` on. Writes to a response are cheapest in order.
    ///
    /// # Errors
    ///
    /// The range exceeds the output, or the client has truncated its object.
    pub fn write_at(&mut self, offset: usize, bytes: &[u8]) -> Result<(), ModelError> {
        let end = offset.checked_add(bytes.len()).filter(|end| *end <= self.len);
        let end = end.ok_or_else(|| ModelError::new("write past the end of an output"))?;
        match &mut self.slot.to {
            OutputTarget::Inline(buffer) => {
                written(buffer)[offset..end].copy_from_slice(bytes);
            }
            OutputTarget::Region(lease) => {
                let written = if self.in_place && !is_on_gpu(lease) {
                    lease.touch_mut(|buffer| buffer.slice(offset, bytes.len()).copy_from(bytes))
                } else {
                    lease.write_at(offset as u64, bytes)
                };
                written.map_err(|error| self.failure.record(lease, &error))?;
            }
            OutputTarget::Nowhere => {}
        }
        Ok(())
    }

    /// Runs `write` over the output's bytes. The bytes are the region's own if it is sealed or the front works in
    /// place; else they are private zeros, which the front copies afterwards.
    ///
    /// # Errors
    ///
    /// The client has truncated its object, or the server has no memory.
    pub fn in_place<R>(&mut self, write: impl FnOnce(BytesMut<'_>) -> R) -> Result<R, ModelError> {
        let (len, in_place) = (self.len, self.in_place);
        match &mut self.slot.to {
            OutputTarget::Inline(buffer) => Ok(write(BytesMut::of(written(buffer)))),
            OutputTarget::Region(lease) if (in_place && !is_on_gpu(lease)) || lease.is_sealed() => {
                let written = lease.in_place_mut(|buffer| write(buffer.slice(0, len)));
                written.map_err(|error| self.failure.record(lease, &error))
            }
            OutputTarget::Region(_) => {
                let charge = self.charge;
                with_scratch(charge, len, |buffer| {
                    let done = write(BytesMut::of(buffer));
                    self.write_at(0, buffer)?;
                    Ok(done)
                })
            }
            OutputTarget::Nowhere => {
                with_scratch(self.charge, len, |buffer| Ok(write(BytesMut::of(buffer))))
            }
        }
    }

    /// Returns the bytes of an output that goes into the response. Unwritten bytes are 0.
    pub fn as_mut_slice(&mut self) -> Option<&mut [u8]> {
        match &mut self.slot.to {
            OutputTarget::Inline(buffer) => Some(written(buffer)),
            OutputTarget::Region(_) | OutputTarget::Nowhere => None,
        }
    }

    /// Copies an input of the same length, once.
    ///
    /// If the two overlap, the output receives the bytes that the input had before.
    ///
    /// # Errors
    ///
    /// The lengths differ, or a client has truncated its object.
    pub fn copy_from(&mut self, input: &Input<'_>) -> Result<(), ModelError> {
        if input.byte_len() != self.len {
            let (is, len) = (input.byte_len(), self.len);
            return Err(ModelError::new(format!("{is} bytes for an output of {len}")));
        }
        if let Some(bytes) = input.as_bytes() {
            return self.write_at(0, bytes);
        }
        if let OutputTarget::Inline(buffer) = &mut self.slot.to {
            return input.read_at(0, written(buffer));
        }
        if let (OutputTarget::Region(to), Some(from)) = (&self.slot.to, input.lease()) {
            return self.across(to, from);
        }
        Ok(())
    }

    /// Copies from region to region once, in place or by the kernel.
    fn across(&self, to: &Lease, from: &Lease) -> Result<(), ModelError> {
        let direct = |lease: &Lease| (self.in_place && !is_on_gpu(lease)) || lease.is_sealed();
        let copied = match direct(to) && direct(from) {
            true => to.touch_from(from),
            false => to.fill_from(from),
        };
        copied.map_err(|error| {
            let failed = if from.holds().is_err() { from } else { to };
            self.failure.record(failed, &error)
        })
    }
}

/// Returns the bytes of an output that the model has obtained.
fn written(buffer: &mut Option<Pages>) -> &mut [u8] {
    buffer.as_mut().map(Pages::as_mut_slice).unwrap_or_default()
}

/// Runs `act` over private zeros, which are charged meanwhile.
fn with_scratch<R>(
    charge: &Charge,
    len: usize,
    act: impl FnOnce(&mut [u8]) -> Result<R, ModelError>,
) -> Result<R, ModelError> {
    charge.add(len as u64)?;
    let done = act(Pages::whole(len)?.as_mut_slice())?;
    charge.release(len as u64);
    Ok(done)
}

impl fmt::Debug for Output<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.dtype, self.shape)
    }
}
