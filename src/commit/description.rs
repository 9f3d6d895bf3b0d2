//! What a model needs: its buffers, and the regions that hold them.

use crate::error::{CommitFault, Direction};
use crate::tensor::{DType, Shape};

/// Buffers of a model at most, and regions. Part of the wire format.
pub(super) const MOST: usize = 4096;

/// The longest label, and the longest name of a region, in bytes. Part of the wire format.
pub(super) const LONGEST: usize = 255;

/// Memory that the client provides: the document's region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegionInfo {
    /// What the service says about it; the document's `attr`.
    pub attributes: u32,
    /// Bytes that it must have, exactly; the document's `req_size`.
    pub size: u64,
    /// Its name, which may be empty.
    pub name: String,
}

impl RegionInfo {
    /// A region of `size` bytes.
    pub fn new(size: u64) -> Self {
        Self { attributes: 0, size, name: String::new() }
    }

    /// With these attributes.
    pub fn attributes(mut self, attributes: u32) -> Self {
        self.attributes = attributes;
        self
    }

    /// With this name.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }
}

/// A named tensor inside of a region: the document's buffer, `EnnBufferInfo`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BufferInfo {
    /// Its label, which may be empty; an empty one is never found.
    pub label: String,
    /// Which way its bytes go.
    pub direction: Direction,
    /// Its index among those of its direction, from 0 on without gaps.
    pub index: u32,
    /// The index of the region that holds it.
    pub region: u32,
    /// Where it starts in that region, in bytes.
    pub offset: u64,
    /// What its elements are.
    pub dtype: DType,
    /// The lengths of its dimensions, row-major.
    pub shape: Shape,
    /// Its length in bytes: that of `dtype` and `shape`.
    pub size: u64,
    /// Batch, width, height and channels, as the document prints them. Together as many as `shape` has elements.
    pub nwhc: [u32; 4],
    /// What the service says about it.
    pub buffer_type: u32,
    /// Whether it may be replaced while it is committed.
    pub is_able_to_update: bool,
}

impl BufferInfo {
    /// A tensor that fills a region by itself: of index 0, in region 0, at its start.
    ///
    /// Batch, width, height and channels are the last four dimensions, the batch with those before them.
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

    /// Of this index among those of its direction.
    pub fn index(mut self, index: u32) -> Self {
        self.index = index;
        self
    }

    /// At `offset` bytes of this region.
    pub fn region(mut self, region: u32, offset: u64) -> Self {
        (self.region, self.offset) = (region, offset);
        self
    }

    /// With this batch, width, height and channels.
    pub fn nwhc(mut self, nwhc: [u32; 4]) -> Self {
        self.nwhc = nwhc;
        self
    }

    /// Of this type, whatever the service means by it.
    pub fn buffer_type(mut self, buffer_type: u32) -> Self {
        self.buffer_type = buffer_type;
        self
    }

    /// It may be replaced while it is committed.
    pub fn updatable(mut self) -> Self {
        self.is_able_to_update = true;
        self
    }

    /// The document's `n`.
    pub fn batch(&self) -> u32 {
        self.nwhc[0]
    }

    /// The document's `width`.
    pub fn width(&self) -> u32 {
        self.nwhc[1]
    }

    /// The document's `height`.
    pub fn height(&self) -> u32 {
        self.nwhc[2]
    }

    /// The document's `channel`.
    pub fn channel(&self) -> u32 {
        self.nwhc[3]
    }
}

/// The last four dimensions. What does not fit is no description, and says so when it is checked.
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

/// What a model needs.
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
    /// Its buffers, in any order.
    pub buffers: Vec<BufferInfo>,
    /// Its regions, by index.
    pub regions: Vec<RegionInfo>,
}

/// How many buffers of each direction a model has: the document's `EnnGetBuffersInfo`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Inputs.
    pub inputs: u32,
    /// Outputs.
    pub outputs: u32,
    /// Ext buffers.
    pub ext: u32,
    /// Regions.
    pub regions: u32,
}

impl Description {
    /// Of no buffers.
    pub fn new() -> Self {
        Self::default()
    }

    /// With one more region.
    pub fn with_region(mut self, region: RegionInfo) -> Self {
        self.regions.push(region);
        self
    }

    /// With one more buffer.
    pub fn with_buffer(mut self, buffer: BufferInfo) -> Self {
        self.buffers.push(buffer);
        self
    }

    /// With one more buffer, and a region that it fills by itself.
    pub fn with_own_region(mut self, mut buffer: BufferInfo) -> Self {
        (buffer.region, buffer.offset) = (self.regions.len() as u32, 0);
        self.regions.push(RegionInfo::new(buffer.size));
        self.buffers.push(buffer);
        self
    }

    /// That it can be. Both sides ask.
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

    /// How many buffers there are.
    pub fn counts(&self) -> Counts {
        let count = |direction| self.of(direction).count() as u32;
        Counts {
            inputs: count(Direction::In),
            outputs: count(Direction::Out),
            ext: count(Direction::Ext),
            regions: self.regions.len() as u32,
        }
    }

    /// Those of one direction.
    fn of(&self, direction: Direction) -> impl Iterator<Item = &BufferInfo> {
        self.buffers.iter().filter(move |buffer| buffer.direction == direction)
    }

    /// Where in `buffers` the one of this index stands.
    ///
    /// # Errors
    ///
    /// [`CommitFault::UnknownBuffer`]
    pub fn position(&self, direction: Direction, index: u32) -> Result<usize, CommitFault> {
        let is = |buffer: &BufferInfo| (buffer.direction, buffer.index) == (direction, index);
        self.buffers.iter().position(is).ok_or_else(|| {
            let count = self.of(direction).count() as u32;
            CommitFault::UnknownBuffer { direction, index, count }
        })
    }

    /// Where in `buffers` the first one with this label stands. Labels are compared byte by byte; the empty one
    /// is nobody's.
    ///
    /// # Errors
    ///
    /// [`CommitFault::UnknownLabel`]
    pub fn labelled(&self, label: &str) -> Result<usize, CommitFault> {
        let found = self.buffers.iter().position(|buffer| buffer.label == label);
        let found = found.filter(|_| !label.is_empty());
        found.ok_or_else(|| CommitFault::UnknownLabel { label: label.to_owned() })
    }

    /// The region of this index.
    ///
    /// # Errors
    ///
    /// [`CommitFault::UnknownRegion`]
    pub fn region(&self, index: u32) -> Result<&RegionInfo, CommitFault> {
        let count = self.regions.len() as u32;
        self.regions.get(index as usize).ok_or(CommitFault::UnknownRegion { index, count })
    }

    /// All buffers as [`Session::set_all`](super::Session::set_all) takes them: inputs, outputs, ext buffers, each by
    /// index. Gives where each stands in `buffers`.
    pub(super) fn in_order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.buffers.len()).collect();
        order.sort_by_key(|at| (self.buffers[*at].direction, self.buffers[*at].index));
        order
    }

    /// The buffers of a region: where they stand in `buffers`.
    pub(super) fn buffers_of(&self, region: u32) -> impl Iterator<Item = usize> {
        let buffers = self.buffers.iter().enumerate();
        buffers.filter(move |(_, buffer)| buffer.region == region).map(|(at, _)| at)
    }
}

/// A description that was checked, and where its buffers stand.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) description: Description,
    /// Places in the description, by direction and index.
    places: [Vec<usize>; 3],
    /// By region: whether the service writes it, and whether an output lies in it.
    pub(super) written: Vec<(bool, bool)>,
}

impl Layout {
    pub(super) fn new(description: Description) -> Result<Self, CommitFault> {
        description.check()?;
        let mut places = [const { Vec::new() }; 3];
        for at in description.in_order() {
            places[description.buffers[at].direction as usize].push(at);
        }
        let mut written = vec![(false, false); description.regions.len()];
        for buffer in &description.buffers {
            let (any, output) = &mut written[buffer.region as usize];
            *any |= buffer.direction != Direction::In;
            *output |= buffer.direction == Direction::Out;
        }
        Ok(Self { description, places, written })
    }

    /// As [`Description::position`].
    #[inline]
    pub(super) fn place(&self, direction: Direction, index: u32) -> Result<usize, CommitFault> {
        let places = &self.places[direction as usize];
        let count = places.len() as u32;
        let unknown = CommitFault::UnknownBuffer { direction, index, count };
        places.get(index as usize).copied().ok_or(unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The document's example.
    fn inception() -> Description {
        let ext = |label, dtype| BufferInfo::new(label, Direction::Ext, dtype, [1, 1000]);
        Description::new()
            .with_own_region(
                BufferInfo::new("IFM", Direction::In, DType::Uint8, [1, 299, 299, 3])
                    .buffer_type(3),
            )
            .with_own_region(ext("691", DType::Uint8).buffer_type(9))
            .with_own_region(ext("689", DType::Fp32).index(1))
            .with_own_region(BufferInfo::new("690", Direction::Out, DType::Fp32, [1, 1000]))
    }

    #[test]
    fn the_documents_example_loads_as_printed() {
        let description = inception();
        description.check().unwrap();
        let Counts { inputs, outputs, ext, regions } = description.counts();
        assert_eq!((inputs, outputs, ext, regions), (1, 1, 2, 4));
        let sizes: Vec<u64> = description.regions.iter().map(|region| region.size).collect();
        assert_eq!(sizes, [268203, 1000, 4000, 4000]);
        let image = &description.buffers[description.labelled("IFM").unwrap()];
        assert_eq!(
            (image.batch(), image.width(), image.height(), image.channel()),
            (1, 299, 299, 3)
        );
        let logits = &description.buffers[description.position(Direction::Out, 0).unwrap()];
        assert_eq!((logits.nwhc, logits.label.as_str()), ([1, 1, 1, 1000], "690"));
        assert_eq!(description.in_order(), [0, 3, 1, 2]);
    }

    #[test]
    fn labels_are_exact_and_the_first_of_two_is_meant() {
        let description = inception()
            .with_own_region(BufferInfo::new("IFM", Direction::In, DType::Uint8, [4]).index(1))
            .with_own_region(BufferInfo::new("", Direction::In, DType::Uint8, [4]).index(2));
        description.check().unwrap();
        assert_eq!(description.labelled("IFM"), Ok(0));
        for label in ["ifm", "IFM ", "", "IF"] {
            let unknown = CommitFault::UnknownLabel { label: label.to_owned() };
            assert_eq!(description.labelled(label), Err(unknown));
        }
    }

    #[test]
    fn what_is_not_there_says_how_many_there_are() {
        let description = inception();
        for index in [2, u32::MAX] {
            let direction = Direction::Ext;
            let unknown = CommitFault::UnknownBuffer { direction, index, count: 2 };
            assert_eq!(description.position(direction, index), Err(unknown));
        }
        assert_eq!(description.region(4), Err(CommitFault::UnknownRegion { index: 4, count: 4 }));
    }

    #[test]
    fn a_description_that_cannot_be_is_refused_with_the_reason() {
        type Spoil = fn(&mut Description);
        let spoilt: [(Spoil, &str); 13] = [
            (|d| d.buffers[0].index = 1, "input 1 where 0 is due"),
            (|d| d.buffers[2].index = 0, "ext buffer 0 where 1 is due"),
            (|d| d.buffers[0].region = 4, "region 4 of 4"),
            (|d| d.buffers[0].offset = 1, "268203 bytes at 1 of a region of 268203"),
            (|d| d.buffers[0].offset = u64::MAX, "of a region of 268203"),
            (|d| d.buffers[0].size = 268202, "makes Some(268203)"),
            (|d| d.buffers[0].dtype = DType::Bytes, "makes None"),
            (|d| d.buffers[0].shape = Shape::from([usize::MAX, 2]), "makes None"),
            (|d| d.buffers[0].nwhc = [u32::MAX; 4], "nwhc"),
            (|d| d.regions[1].size = 0, "region 1 of 0 bytes"),
            (|d| d.regions[1].size = u64::MAX, "region 1 of"),
            (|d| d.buffers[1].label = "x".repeat(256), "label of 256 bytes"),
            (|d| d.regions.resize(MOST + 1, RegionInfo::new(1)), "at most 4096"),
        ];
        for (spoil, why) in spoilt {
            let mut description = inception();
            spoil(&mut description);
            let fault = description.check().unwrap_err().to_string();
            assert!(fault.contains(why), "{fault}: not {why}");
        }
    }
}
