//! The descriptors of allocations that other libraries made: one for each allocation, while a tensor of it is sent or lent.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::channel::SharedAllocation;
use crate::cuda::device::Device;
use crate::cuda::mapped::Found;
use crate::cuda::memory::PAGE;
use crate::cuda::per_gpu::PerGpu;
use crate::error::{CudaFault, Result};

/// By the start and the length of the mapping. While one lives, the owner of a tensor keeps the mapping as it is.
type Known = Arc<Mutex<HashMap<(u64, u64), Weak<SharedAllocation>>>>;

static KNOWN: PerGpu<Known> = PerGpu::new();

/// Returns the allocation of a mapping, for peers.
///
/// # Errors
///
/// [`CudaFault::NotExportable`]: the wire has no such length.
pub(super) fn shared(device: &Device, found: Found) -> Result<Arc<SharedAllocation>> {
    let Found { start, len, fd } = found;
    if !len.is_multiple_of(PAGE) {
        return Err(CudaFault::NotExportable { why: "its length is no multiple of 2 MiB" }.into());
    }
    let known = KNOWN.of(device);
    let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(shared) = known.get(&(start, len)).and_then(Weak::upgrade) {
        return Ok(shared);
    }
    known.retain(|_, shared| shared.strong_count() > 0);
    let shared = Arc::new(SharedAllocation::new(device.uuid(), len, fd));
    known.insert((start, len), Arc::downgrade(&shared));
    Ok(shared)
}
