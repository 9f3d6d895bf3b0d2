//! Memory that another library of a process allocated.

use crate::support::cuda_driver as driver;
use crate::support::fake_cuda::Kind;

/// Memory of another library.
pub struct Framework {
    pub start: u64,
    /// The lengths of the mappings. None: it is of `cuMemAlloc`.
    mappings: Vec<usize>,
}

impl Framework {
    pub fn alloc(len: usize) -> Self {
        Self { start: driver::alloc(len), mappings: Vec::new() }
    }

    /// Maps allocations one behind the other, as PyTorch's expandable segments are.
    pub fn map(lens: &[usize], has_descriptor: bool) -> Self {
        let (whole, mut at) = (lens.iter().sum(), 0);
        let start = driver::given(|start| driver::cuMemAddressReserve(start, whole, 0, 0, 0));
        for &len in lens {
            let properties = driver::AllocationProp::new(0, has_descriptor);
            let made = driver::given(|made| driver::cuMemCreate(made, len, &properties, 0));
            assert_eq!(driver::cuMemMap(start + at, len, 0, made, 0), 0);
            assert_eq!(driver::cuMemRelease(made), 0);
            let access = driver::Access::read_write(0);
            assert_eq!(driver::cuMemSetAccess(start + at, len, &access, 1), 0);
            at += len as u64;
        }
        Self { start, mappings: lens.to_vec() }
    }

    pub fn of_kind(kind: Kind, len: usize) -> Self {
        if kind == Kind::Handles { Self::alloc(len) } else { Self::map(&[len], true) }
    }

    pub fn write(&self, offset: u64, elements: &[u32]) {
        let bytes: Vec<u8> = elements.iter().flat_map(|element| element.to_le_bytes()).collect();
        driver::write(self.start + offset, &bytes);
    }

    pub fn free(self) {
        if self.mappings.is_empty() {
            return assert_eq!(driver::cuMemFree_v2(self.start), 0);
        }
        let mut at = self.start;
        for &len in &self.mappings {
            assert_eq!(driver::cuMemUnmap(at, len), 0);
            at += len as u64;
        }
        assert_eq!(driver::cuMemAddressFree(self.start, self.mappings.iter().sum()), 0);
    }
}

/// Ends the use of the driver by the library.
pub fn end() {
    assert_eq!(driver::cuCtxPopCurrent_v2(&mut 0), 0);
    assert_eq!(driver::cuDevicePrimaryCtxRelease_v2(0), 0);
}
