//! The memory that is set for the regions of a session. No I/O.
//!
//! One buffer of the region's length fills a region. If several tensors share the region, views of one such buffer may
//! fill it instead, each at its tensor's offset.

use std::collections::BTreeMap;

use crate::commit::buffer::Piece;
use crate::commit::description::Description;
use crate::error::{CommitFault, Slot, Unset};

/// The memory of one region. `B` is a handle of a buffer.
#[derive(Debug, Clone)]
enum Fill<B> {
    Empty,
    Whole(Piece, B),
    /// Views of one buffer, by the positions of their tensors in the description.
    Views(BTreeMap<usize, (Piece, B)>),
}

/// The memory with which a region is committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::commit) struct Chosen<B> {
    pub region: u32,
    pub buffer: B,
    /// The region's start, in bytes of the root of `buffer`.
    pub offset: u64,
    pub len: u64,
}

/// The memory of all regions of a session.
#[derive(Debug, Clone)]
pub(super) struct Fills<B> {
    /// By index of the region.
    fills: Vec<Fill<B>>,
}

impl<B: Clone> Fills<B> {
    pub(super) fn new(description: &Description) -> Self {
        Self { fills: description.regions.iter().map(|_| Fill::Empty).collect() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.fills.iter().all(|fill| matches!(fill, Fill::Empty))
    }

    /// Checks that a piece has the length and the offset that the tensor at position `at` needs.
    ///
    /// # Errors
    ///
    /// [`CommitFault::Size`], [`CommitFault::Placement`]
    pub(super) fn check(
        description: &Description,
        at: usize,
        piece: Piece,
    ) -> Result<(), CommitFault> {
        let tensor = &description.buffers[at];
        let region = &description.regions[tensor.region as usize];
        if piece.len == region.size {
            return Ok(());
        }
        let shares = tensor.size < region.size;
        if !shares || piece.len != tensor.size {
            let expected = if shares { tensor.size } else { region.size };
            return Err(CommitFault::Size { slot: tensor.slot(), len: piece.len, expected });
        }
        if piece.root_len != region.size || piece.offset != tensor.offset {
            let (offset, expected, size) = (piece.offset, tensor.offset, region.size);
            return Err(CommitFault::Placement { slot: tensor.slot(), offset, expected, size });
        }
        Ok(())
    }

    /// Sets a piece that was checked, for the tensor at position `at`. A view of another buffer replaces all views that
    /// the region has.
    pub(super) fn set(&mut self, description: &Description, at: usize, piece: Piece, buffer: B) {
        let region = description.buffers[at].region as usize;
        let fill = &mut self.fills[region];
        if piece.len == description.regions[region].size {
            *fill = Fill::Whole(piece, buffer);
            return;
        }
        match fill {
            Fill::Views(views) if views.values().any(|(other, _)| other.root == piece.root) => {
                views.insert(at, (piece, buffer));
            }
            fill => *fill = Fill::Views(BTreeMap::from([(at, (piece, buffer))])),
        }
    }

    /// Sets one buffer for a whole region.
    ///
    /// # Errors
    ///
    /// [`CommitFault::UnknownRegion`], [`CommitFault::Size`]
    pub(super) fn set_region(
        &mut self,
        description: &Description,
        region: u32,
        piece: Piece,
        buffer: B,
    ) -> Result<(), CommitFault> {
        let expected = description.region(region)?.size;
        if piece.len != expected {
            let slot = Slot::Region { index: region };
            return Err(CommitFault::Size { slot, len: piece.len, expected });
        }
        self.fills[region as usize] = Fill::Whole(piece, buffer);
        Ok(())
    }

    /// Empties all regions.
    pub(super) fn clear(&mut self) {
        self.fills.iter_mut().for_each(|fill| *fill = Fill::Empty);
    }

    /// Returns the buffers and regions that lack memory, in the order of the description.
    pub(super) fn unset(
        &self,
        description: &Description,
        exists: impl Fn(&B) -> bool,
    ) -> Vec<Unset> {
        let mut unset = Vec::new();
        for at in description.in_order() {
            let tensor = &description.buffers[at];
            let (direction, index) = (tensor.direction, tensor.index);
            let set = match &self.fills[tensor.region as usize] {
                Fill::Empty => None,
                Fill::Whole(_, buffer) => Some(buffer),
                Fill::Views(views) => views.get(&at).map(|(_, buffer)| buffer),
            };
            if !set.is_some_and(&exists) {
                unset.push(Unset::Buffer { direction, index, released: set.is_some() });
            }
        }
        for (index, fill) in (0..).zip(&self.fills) {
            if description.buffers_of(index).next().is_none() {
                match fill {
                    Fill::Whole(_, buffer) if exists(buffer) => {}
                    Fill::Whole(..) => unset.push(Unset::Region { index, released: true }),
                    _ => unset.push(Unset::Region { index, released: false }),
                }
            }
        }
        unset
    }

    /// Returns the memory of every region that is filled.
    pub(super) fn chosen(&self) -> Vec<Chosen<B>> {
        let fills = (0..).zip(&self.fills);
        fills.filter_map(|(region, fill)| choose(region, fill)).collect()
    }
}

fn choose<B: Clone>(region: u32, fill: &Fill<B>) -> Option<Chosen<B>> {
    let (buffer, offset, len) = match fill {
        Fill::Empty => return None,
        Fill::Whole(piece, buffer) => (buffer, piece.offset, piece.len),
        Fill::Views(views) => {
            let (piece, buffer) = views.values().next()?;
            (buffer, 0, piece.root_len)
        }
    };
    Some(Chosen { region, buffer: buffer.clone(), offset, len })
}
