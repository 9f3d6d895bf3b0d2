//! The description of a model: its buffers, and the regions that hold them.

use crate::error::{CommitFault, Direction, Slot};
use crate::tensor::{DType, Shape};

/// The largest number of buffers of a model, and of regions. Part of the wire format.
pub(super) const MOST: usize = 4096;

/// The length of the longest label and of the longest region name, in bytes. Part of the wire format.
pub(super) const LONGEST: usize = 255;

/// Memory that the client provides: the ENN document's region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegionInfo {
    /// Attributes, which the service defines; the document's `attr`.
    pub attributes: u32,
    /// The exact length in bytes; the document's `req_size`.
    pub size: u64,
    /// The name, which may be empty.
    pub name: String,
}

impl RegionInfo {
    /// Returns a region of `size` bytes, without attributes and name.
    pub fn new(size: u64) -> Self {
        Self { attributes: 0, size, name: String::new() }
    }

    /// Sets the attributes.
    pub fn attributes(mut self, attributes: u32) -> Self {
        self.attributes = attributes;
        self
    }

    /// Sets the name.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }
}

/// A named tensor inside a region: the document's buffer, `EnnBufferInfo`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BufferInfo {
    /// The label, which may be empty. No lookup finds an empty label.
    pub label: String,
    /// The direction in which the bytes go.
    pub direction: Direction,
    /// The index among the buffers of this direction: from 0, without gaps.
    pub index: u32,
    /// The index of the region that holds the tensor.
    pub region: u32,
    /// The start of the tensor, in bytes of the region.
    pub offset: u64,
    /// The type of the elements.
    pub dtype: DType,
    /// The lengths of its dimensions, row-major.
    pub shape: Shape,
    /// The length in bytes, which `dtype` and `shape` give.
    pub size: u64,
    /// Batch, width, height and channels, as the document prints them. Their product is the number of elements.
    pub nwhc: [u32; 4],
    /// A type, which the service defines.
    pub buffer_type: u32,
    /// Whether the client may replace the buffer while it is committed.
    pub is_able_to_update: bool,
}

impl BufferInfo {
    /// Returns what errors call the buffer.
    pub(super) fn slot(&self) -> Slot {
        let (direction, index, label) = (self.direction, self.index, self.label.clone());
        Slot::Buffer { direction, index, label }
    }

    /// Returns a tensor of index 0, at the start of region 0.
    ///
    /// Batch, width, height and channels are the last four dimensions. Dimensions before them multiply the batch.
    pub fn new(
        label: impl Into<String>,
        direction: Direction,
        dtype: DType,
        shape: impl Into<Shape>,
    ) -> Self {
        let (label, shape) = (label.into(), shape.into());
        let size = shape.len(dtype).ok().flatten().unwrap_or(0) as u64;
        let nwhc = nwhc(&shape);
        let (index, region, offset, buffer_type) = (0, 0, 0, 0);
        Self {
            label,
            direction,
            index,
            region,
            offset,
            dtype,
            shape,
            size,
            nwhc,
            buffer_type,
            is_able_to_update: false,
        }
    }

    /// Sets the index among the buffers of this direction.
    pub fn index(mut self, index: u32) -> Self {
        self.index = index;
        self
    }

    /// Places the tensor at `offset` bytes of a region.
    pub fn region(mut self, region: u32, offset: u64) -> Self {
        (self.region, self.offset) = (region, offset);
        self
    }

    /// Sets batch, width, height and channels.
    pub fn nwhc(mut self, nwhc: [u32; 4]) -> Self {
        self.nwhc = nwhc;
        self
    }

    /// Sets the type, which the service defines.
    pub fn buffer_type(mut self, buffer_type: u32) -> Self {
        self.buffer_type = buffer_type;
        self
    }

    /// Lets the client replace the buffer while it is committed.
    pub fn updatable(mut self) -> Self {
        self.is_able_to_update = true;
        self
    }

    /// Returns the document's `n`.
    pub fn batch(&self) -> u32 {
        self.nwhc[0]
    }

    /// Returns the document's `width`.
    pub fn width(&self) -> u32 {
        self.nwhc[1]
    }

    /// Returns the document's `height`.
    pub fn height(&self) -> u32 {
        self.nwhc[2]
    }

    /// Returns the document's `channel`.
    pub fn channel(&self) -> u32 {
        self.nwhc[3]
    }
}

/// Returns the last four dimensions, and 0 for one that does not fit: the check of the description refuses that.
fn nwhc(shape: &Shape) -> [u32; 4] {
    let dims = shape.dims();
    let (before, last) = dims.split_at(dims.len().saturating_sub(4));
    let mut nwhc = [1; 4];
    for (to, from) in nwhc[4 - last.len()..].iter_mut().zip(last) {
        *to = u32::try_from(*from).unwrap_or(0);
    }
    for dim in before {
        nwhc[0] = u32::try_from(*dim).ok().and_then(|dim| nwhc[0].checked_mul(dim)).unwrap_or(0);
    }
    nwhc
}

/// The buffers and regions that a model needs.
///
/// # Examples
///
/// An image classifier:
///
/// ```
/// use slipring::DType;
/// use slipring::commit::{BufferInfo, Description, Direction, RegionInfo};
///
/// let description = Description::new()
///     .with_region(RegionInfo::new(268203))
///     .with_region(RegionInfo::new(4000))
///     .with_buffer(BufferInfo::new("IFM", Direction::In, DType::Uint8, [1, 299, 299, 3]))
///     .with_buffer(BufferInfo::new("690", Direction::Out, DType::Fp32, [1, 1000]).region(1, 0));
/// description.check()?;
/// # Ok::<(), slipring::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Description {
    /// The buffers, in any order.
    pub buffers: Vec<BufferInfo>,
    /// The regions, by index.
    pub regions: Vec<RegionInfo>,
}

impl Description {
    /// Returns a description without buffers and regions.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a region.
    pub fn with_region(mut self, region: RegionInfo) -> Self {
        self.regions.push(region);
        self
    }

    /// Adds a buffer.
    pub fn with_buffer(mut self, buffer: BufferInfo) -> Self {
        self.buffers.push(buffer);
        self
    }

    /// Adds a buffer, and a region that it fills.
    pub fn with_own_region(mut self, mut buffer: BufferInfo) -> Self {
        (buffer.region, buffer.offset) = (self.regions.len() as u32, 0);
        self.regions.push(RegionInfo::new(buffer.size));
        self.buffers.push(buffer);
        self
    }

    /// Checks that the description is consistent. Client and server both do.
    ///
    /// # Errors
    ///
    /// [`CommitFault::Description`]
    pub fn check(&self) -> Result<(), CommitFault> {
        let wrong = |why: String| Err(CommitFault::Description { why });
        if self.buffers.len() > MOST || self.regions.len() > MOST {
            let (buffers, regions) = (self.buffers.len(), self.regions.len());
            return wrong(format!("{buffers} buffers in {regions} regions, at most {MOST} may be"));
        }
        for (at, region) in self.regions.iter().enumerate() {
            if region.size == 0 || region.size > i64::MAX as u64 || region.name.len() > LONGEST {
                let (size, name) = (region.size, region.name.len());
                return wrong(format!("region {at} of {size} bytes with a name of {name} bytes"));
            }
        }
        for buffer in &self.buffers {
            if let Err(why) = self.check_buffer(buffer) {
                return wrong(format!("{} {}: {why}", buffer.direction, buffer.index));
            }
        }
        for direction in Direction::ALL {
            let mut indexes: Vec<u32> = self.of(direction).map(|buffer| buffer.index).collect();
            indexes.sort_unstable();
            if let Some((due, is)) = (0..).zip(&indexes).find(|(due, is)| due != *is) {
                return wrong(format!("{direction} {is} where {due} is due"));
            }
        }
        Ok(())
    }

    fn check_buffer(&self, buffer: &BufferInfo) -> Result<(), String> {
        let BufferInfo { region, offset, size, dtype, shape, nwhc, label, .. } = buffer;
        let Some(holder) = self.regions.get(*region as usize) else {
            return Err(format!("region {region} of {}", self.regions.len()));
        };
        let len = shape.len(*dtype).ok().flatten().map(|len| len as u64);
        if len != Some(*size) || *size == 0 {
            return Err(format!("{size} bytes, {dtype} {:?} makes {len:?}", shape.dims()));
        }
        if offset.checked_add(*size).is_none_or(|end| end > holder.size) {
            return Err(format!("{size} bytes at {offset} of a region of {}", holder.size));
        }
        // No product of four u32 fills a u128.
        let elements: u128 = nwhc.iter().map(|dim| u128::from(*dim)).product();
        if shape.count().ok().map(|count| count as u128) != Some(elements) {
            return Err(format!("nwhc {nwhc:?} for {:?}", shape.dims()));
        }
        if label.len() > LONGEST {
            return Err(format!("label of {} bytes, at most {LONGEST} may be", label.len()));
        }
        Ok(())
    }

    /// Returns the number of buffers of one direction.
    pub fn count(&self, direction: Direction) -> u32 {
        self.of(direction).count() as u32
    }

    /// The buffers of one direction.
    fn of(&self, direction: Direction) -> impl Iterator<Item = &BufferInfo> {
        self.buffers.iter().filter(move |buffer| buffer.direction == direction)
    }

    /// Returns the position in `buffers` of the buffer with this direction and index.
    ///
    /// # Errors
    ///
    /// [`CommitFault::UnknownBuffer`]
    pub fn position(&self, direction: Direction, index: u32) -> Result<usize, CommitFault> {
        let is = |buffer: &BufferInfo| (buffer.direction, buffer.index) == (direction, index);
        self.buffers.iter().position(is).ok_or_else(|| CommitFault::UnknownBuffer {
            direction,
            index,
            count: self.count(direction),
        })
    }

    /// Returns the position in `buffers` of the first buffer with this label. Labels are compared byte by byte. No
    /// buffer has the empty label.
    ///
    /// # Errors
    ///
    /// [`CommitFault::UnknownLabel`]
    pub fn labelled(&self, label: &str) -> Result<usize, CommitFault> {
        let found = self.buffers.iter().position(|buffer| buffer.label == label);
        let found = found.filter(|_| !label.is_empty());
        found.ok_or_else(|| CommitFault::UnknownLabel { label: label.to_owned() })
    }

    /// Returns the region of this index.
    ///
    /// # Errors
    ///
    /// [`CommitFault::UnknownRegion`]
    pub fn region(&self, index: u32) -> Result<&RegionInfo, CommitFault> {
        let count = self.regions.len() as u32;
        self.regions.get(index as usize).ok_or(CommitFault::UnknownRegion { index, count })
    }

    /// Returns positions in `buffers` in the order in which [`Session::set_all`](super::Session::set_all) takes
    /// buffers: inputs, outputs, ext buffers, each by index.
    pub(super) fn in_order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.buffers.len()).collect();
        order.sort_by_key(|at| (self.buffers[*at].direction, self.buffers[*at].index));
        order
    }

    /// Returns the positions in `buffers` of the buffers of a region.
    pub(super) fn buffers_of(&self, region: u32) -> impl Iterator<Item = usize> {
        let buffers = self.buffers.iter().enumerate();
        buffers.filter(move |(_, buffer)| buffer.region == region).map(|(at, _)| at)
    }
}

/// A description that is consistent, with an index of its buffers.
#[derive(Debug)]
pub(super) struct Layout {
    description: Description,
    /// Positions in `description.buffers`, by direction and index.
    positions: [Vec<usize>; 3],
    /// By region: whether the service writes it, and whether an output lies in it.
    written: Vec<(bool, bool)>,
}

impl Layout {
    pub(super) fn new(description: Description) -> Result<Self, CommitFault> {
        description.check()?;
        let mut positions = [const { Vec::new() }; 3];
        for at in description.in_order() {
            positions[description.buffers[at].direction as usize].push(at);
        }
        let mut written = vec![(false, false); description.regions.len()];
        for buffer in &description.buffers {
            let (any, output) = &mut written[buffer.region as usize];
            *any |= buffer.direction != Direction::In;
            *output |= buffer.direction == Direction::Out;
        }
        Ok(Self { description, positions, written })
    }

    pub(super) fn description(&self) -> &Description {
        &self.description
    }

    /// Returns whether the service writes this region.
    pub(super) fn is_written(&self, region: u32) -> bool {
        self.written[region as usize].0
    }

    /// Returns whether an output lies in this region.
    pub(super) fn holds_output(&self, region: u32) -> bool {
        self.written[region as usize].1
    }

    /// As [`Description::position`], without a search.
    #[inline]
    pub(super) fn position(&self, direction: Direction, index: u32) -> Result<usize, CommitFault> {
        let positions = &self.positions[direction as usize];
        let count = positions.len() as u32;
        let unknown = CommitFault::UnknownBuffer { direction, index, count };
        positions.get(index as usize).copied().ok_or(unknown)
    }
}

#[cfg(test)]
mod tests;
