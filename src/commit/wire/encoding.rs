//! The fields of messages: numbers, texts, memory, descriptions, faults. All numbers are little-endian.

use crate::commit::description::{BufferInfo, Description, LONGEST, MOST, RegionInfo};
use crate::commit::wire::fault;
use crate::commit::wire::message::{Memory, Object, Passed};
use crate::error::{CommitFault, Fault};
use crate::tensor::{DType, Shape};

/// Bytes of one region's memory in a commit.
const MEMORY_LEN: usize = 32;

/// Returns the fault of a field that no honest peer sends.
pub(super) fn lie(field: &'static str, value: impl Into<u64>) -> Fault {
    Fault::Field { field, value: value.into() }
}

/// Checks that a count is within its limits.
pub(super) fn at_most(count: u32, least: usize, most: usize) -> Result<usize, Fault> {
    match count as usize {
        is if (least..=most).contains(&is) => Ok(is),
        _ => Err(lie("commit.count", count)),
    }
}

/// A message that fields are appended to.
pub(super) struct Writer(Vec<u8>);

impl Writer {
    /// Starts with these bytes.
    pub(super) fn new(head: &[u8]) -> Self {
        Self(head.to_vec())
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    pub(super) fn u32(mut self, word: u32) -> Self {
        self.0.extend_from_slice(&word.to_le_bytes());
        self
    }

    pub(super) fn u64(mut self, word: u64) -> Self {
        self.0.extend_from_slice(&word.to_le_bytes());
        self
    }

    /// Appends a length and a text, which is cut after `longest` bytes at most.
    fn text(self, text: &str, longest: usize) -> Self {
        let fits = (0..=longest.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
        let text = &text[..fits.unwrap_or(0)];
        let mut writer = self.u32(text.len() as u32);
        writer.0.extend_from_slice(text.as_bytes());
        writer
    }

    pub(super) fn memory(self, passed: Passed, memory: &[Memory]) -> Self {
        let writer = self.u64(passed.first).u32(passed.count).u32(0);
        memory.iter().fold(writer, |writer, piece| {
            let Memory { region, descriptor, object, offset, len } = *piece;
            writer.u32(region).u32(descriptor).u32(object as u32).u32(0).u64(offset).u64(len)
        })
    }

    pub(super) fn description(mut self, description: &Description) -> Self {
        for region in &description.regions {
            let RegionInfo { attributes, size, name } = region;
            self = self.u64(*size).u32(*attributes).text(name, LONGEST);
        }
        for buffer in &description.buffers {
            let kind = u32::from(buffer.dtype.code()) | u32::from(buffer.is_able_to_update) << 8;
            let (direction, dims) = (buffer.direction as u32, buffer.shape.dims());
            self = self.u32(direction).u32(buffer.index).u32(buffer.region).u32(kind);
            self = self.u64(buffer.offset).u64(buffer.size).u32(buffer.buffer_type);
            self = buffer.nwhc.iter().fold(self, |writer, dim| writer.u32(*dim));
            self = self.u32(dims.len() as u32);
            self = dims.iter().fold(self, |writer, dim| writer.u64(*dim as u64));
            self = self.text(&buffer.label, LONGEST);
        }
        self
    }

    pub(super) fn fault(self, fault: &CommitFault) -> Self {
        let (code, a, b, c, text) = fault::to_wire(fault);
        self.u32(code).u64(a).u64(b).u64(c).text(&text, fault::LONGEST)
    }
}

/// The rest of a message that fields are taken from.
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn new(message: &'a [u8]) -> Self {
        Self(message)
    }

    /// Returns all bytes that are left.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.0
    }

    fn bytes(&mut self, len: usize) -> Result<&'a [u8], Fault> {
        let (taken, rest) =
            self.0.split_at_checked(len).ok_or_else(|| lie("commit.len", self.0.len() as u64))?;
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Fault> {
        let bytes = self.bytes(4)?;
        Ok(bytes.try_into().map_or(0, u32::from_le_bytes))
    }

    pub(super) fn u64(&mut self) -> Result<u64, Fault> {
        let bytes = self.bytes(8)?;
        Ok(bytes.try_into().map_or(0, u64::from_le_bytes))
    }

    fn text(&mut self, longest: usize) -> Result<String, Fault> {
        let len = self.u32()?;
        if len as usize > longest {
            return Err(lie("commit.text", len));
        }
        let bytes = self.bytes(len as usize)?.to_vec();
        String::from_utf8(bytes).map_err(|_| lie("commit.text", len))
    }

    fn zero(&mut self) -> Result<(), Fault> {
        match self.u32()? {
            0 => Ok(()),
            zero => Err(lie("commit.zero", zero)),
        }
    }

    pub(super) fn memory(&mut self, count: u32) -> Result<(Passed, Vec<Memory>), Fault> {
        let count = at_most(count, 0, MOST)?;
        let passed = Passed { first: self.u64()?, count: self.u32()? };
        self.zero()?;
        if passed.count as usize > count {
            return Err(lie("commit.descriptors", passed.count));
        }
        if self.0.len() != count * MEMORY_LEN {
            return Err(lie("commit.len", self.0.len() as u64));
        }
        let pieces = (0..count).map(|_| {
            let (region, descriptor) = (self.u32()?, self.u32()?);
            if descriptor >= passed.count {
                return Err(lie("commit.descriptor", descriptor));
            }
            let object = match self.u32()? {
                1 => Object::Memfd,
                2 => Object::Dmabuf,
                object => return Err(lie("commit.object", object)),
            };
            self.zero()?;
            let (offset, len) = (self.u64()?, self.u64()?);
            Ok(Memory { region, descriptor, object, offset, len })
        });
        Ok((passed, pieces.collect::<Result<_, _>>()?))
    }

    pub(super) fn description(&mut self, buffers: u32, regions: u64) -> Result<Description, Fault> {
        let buffers = at_most(buffers, 0, MOST)?;
        if regions > MOST as u64 {
            return Err(lie("commit.regions", regions));
        }
        let mut description = Description::new();
        for _ in 0..regions {
            let (size, attributes) = (self.u64()?, self.u32()?);
            let region = RegionInfo::new(size).attributes(attributes).name(self.text(LONGEST)?);
            description.regions.push(region);
        }
        for _ in 0..buffers {
            description.buffers.push(self.buffer()?);
        }
        // The client checks the description itself, since an inconsistent one is no fault of the protocol.
        Ok(description)
    }

    fn buffer(&mut self) -> Result<BufferInfo, Fault> {
        let direction = self.u32()?;
        let direction =
            fault::direction(direction).ok_or_else(|| lie("commit.direction", direction))?;
        let (index, region, kind) = (self.u32()?, self.u32()?, self.u32()?);
        let dtype = DType::from_code(kind as u8).map_err(|_| lie("commit.dtype", kind))?;
        if kind >> 9 != 0 {
            return Err(lie("commit.dtype", kind));
        }
        let (offset, size, buffer_type) = (self.u64()?, self.u64()?, self.u32()?);
        let nwhc = [self.u32()?, self.u32()?, self.u32()?, self.u32()?];
        let rank = at_most(self.u32()?, 0, Shape::MAX_RANK)?;
        let dims: Vec<usize> =
            (0..rank).map(|_| Ok(self.u64()? as usize)).collect::<Result<_, Fault>>()?;
        let shape = Shape::of(&dims).map_err(|_| lie("commit.rank", rank as u64))?;
        let label = self.text(LONGEST)?;
        let is_able_to_update = kind & 1 << 8 != 0;
        Ok(BufferInfo {
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
            is_able_to_update,
        })
    }

    pub(super) fn fault(&mut self) -> Result<CommitFault, Fault> {
        let (code, a, b, c) = (self.u32()?, self.u64()?, self.u64()?, self.u64()?);
        Ok(fault::from_wire(code, a, b, c, self.text(fault::LONGEST)?))
    }

    pub(super) fn end(&self) -> Result<(), Fault> {
        if self.0.is_empty() { Ok(()) } else { Err(lie("commit.len", self.0.len() as u64)) }
    }
}
