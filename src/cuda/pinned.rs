//! Segments of host memory that the driver has registered, so that GPUs copy from and to them directly.
//!
//! ```text
//!   pin ──▶ registered, kept mapped ── nobody else uses it: the next pin or trim ──▶ slipring-cuda: unregistered ──▶ unmapped
//! ```
//!
//! 1. A segment is registered once a process, whatever the number of tensors in it and of GPUs.
//! 2. It is unregistered before it is unmapped: the entry keeps it mapped.
//! 3. Unregistering may wait for all work on the GPU, and so for a peer. The thread `slipring-cuda` does it.
//! 4. Registering is slow, and is done outside of the lock. A segment that the driver does not unregister stays registered and
//!    mapped, and the next look tries once more.

#![allow(unsafe_code)]

use std::ffi::c_uint;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::{CU_MEMHOSTREGISTER_PORTABLE, CU_MEMHOSTREGISTER_READ_ONLY};

use crate::cuda::closer;
use crate::cuda::device::Device;
use crate::cuda::library::{NOT_REGISTERED, ends_all, is_ours};
use crate::cuda::parked::Parked;
use crate::error::{CudaFault, Result};
use crate::shm::SegmentMemory;
use crate::tensor::{Element, Tensor, TensorMut};

/// The segments that are registered.
static PINNED: Mutex<Vec<Entry>> = Mutex::new(Vec::new());

/// Signalled when a segment is registered, or is not.
static REGISTERED: Condvar = Condvar::new();

struct Entry {
    start: usize,
    len: u64,
    state: State,
}

enum State {
    Registering,
    Pinned(PinnedSegment),
    Unregistering,
}

/// A registered segment. Its drop unregisters it.
struct PinnedSegment {
    device: Device,
    /// `None` during the drop.
    memory: Option<SegmentMemory>,
}

/// A segment that is being registered. Its drop says so to those who wait.
struct Registering {
    start: usize,
    /// `None`: the driver refuses.
    segment: Option<PinnedSegment>,
}

impl Drop for Registering {
    fn drop(&mut self) {
        let mut pinned = lock();
        match self.segment.take() {
            Some(segment) => set(&mut pinned, self.start, State::Pinned(segment)),
            None => pinned.retain(|entry| entry.start != self.start),
        }
        REGISTERED.notify_all();
    }
}

impl Device {
    /// Pins the segment of shared memory that a tensor lies in: one of this process's pool, or one of a peer that has lent the
    /// tensor. Copies between the segment and GPUs then take the time of pinned memory. Every tensor of the segment gains, and
    /// every GPU of the process. A segment that is pinned stays so, and the call does nothing.
    ///
    /// The pages of a pinned segment cannot be swapped out. The process may have `limit` bytes pinned by this call. A peer
    /// chooses how long its segments are, within what `Options` let it lend.
    ///
    /// A segment that nobody else uses is unpinned and unmapped on another thread after the next call of this function or of
    /// [`trim`](Self::trim): its pool, its link and its tensors are gone.
    ///
    /// # Errors
    ///
    /// - [`CudaFault::NotPinnable`]: the tensor does not lie in a segment of a pool, or the GPU cannot pin memory that this
    ///   process may only read.
    /// - [`CudaFault::PinLimit`]: the process has too many bytes pinned.
    /// - [`CudaFault::Closing`]: the segment is being unpinned.
    /// - [`CudaFault::Driver`]: the driver refuses, perhaps for lack of memory, or because another library has pinned it.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn copy(link: &mut slipring::Connection) -> slipring::Result<()> {
    /// use slipring::cuda::Device;
    ///
    /// let device = Device::new(0)?;
    /// let (pool, stream) = (device.pool(), device.stream()?);
    /// while let Some(tensor) = link.recv_tensor()? {
    ///     device.pin(&tensor, 8 << 30)?; // the driver is asked once a segment
    ///     let there = pool.copy_of(&tensor, &stream)?; // read by the GPU from the peer's memory
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn pin(&self, tensor: &Tensor, limit: u64) -> Result<()> {
        self.pin_segment(tensor.segment_memory(), limit)
    }

    /// Pins the segment of the pool that a tensor lies in, as [`pin`](Self::pin) does, for copies from a GPU to the tensor.
    ///
    /// # Errors
    ///
    /// As [`pin`](Self::pin).
    pub fn pin_mut<T: Element>(&self, tensor: &TensorMut<T>, limit: u64) -> Result<()> {
        self.pin_segment(tensor.segment_memory(), limit)
    }

    fn pin_segment(&self, memory: Option<SegmentMemory>, limit: u64) -> Result<()> {
        let (driver, _entered) = (self.driver(), self.enter()?);
        let why = "it lies in no segment of a pool";
        let memory = memory.ok_or(CudaFault::NotPinnable { why })?;
        sweep();
        let (start, needed) = (memory.start().addr(), memory.byte_len() as u64);
        let mut pinned = lock();
        while let Some(known) = pinned.iter().find(|entry| entry.start == start) {
            match known.state {
                State::Pinned(_) => return Ok(()),
                State::Unregistering => return Err(CudaFault::Closing.into()),
                // Another thread with a tensor of the segment.
                State::Registering => {
                    pinned = REGISTERED.wait(pinned).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
        let used: u64 = pinned.iter().map(|entry| entry.len).sum();
        if needed > limit.saturating_sub(used) {
            return Err(CudaFault::PinLimit { used, needed, limit }.into());
        }
        pinned.push(Entry { start, len: needed, state: State::Registering });
        drop(pinned);
        let mut registering = Registering { start, segment: None };
        if !self.pins(memory.is_own())? {
            let why = "the GPU cannot pin memory that this process may only read, or none at all";
            return Err(CudaFault::NotPinnable { why }.into());
        }
        let read_only = if memory.is_own() { 0 } else { CU_MEMHOSTREGISTER_READ_ONLY };
        let flags = (CU_MEMHOSTREGISTER_PORTABLE | read_only) as c_uint;
        let address = memory.start().cast_mut().cast();
        // SAFETY: the range is mapped, and `memory` keeps it so, which the entry gets. The driver does not write what this process may only read,
        // as the flag says.
        let code =
            unsafe { (driver.calls.cuMemHostRegister_v2)(address, memory.byte_len(), flags) };
        driver.check("cuMemHostRegister_v2", code)?;
        let (device, memory) = (self.clone(), Some(memory));
        registering.segment = Some(PinnedSegment { device, memory });
        Ok(())
    }
}

fn lock() -> MutexGuard<'static, Vec<Entry>> {
    PINNED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether an address lies in a segment that is registered.
pub(super) fn is_pinned(address: *const u8) -> bool {
    let is_in = |entry: &Entry| {
        address.addr().checked_sub(entry.start).is_some_and(|offset| (offset as u64) < entry.len)
    };
    lock().iter().any(is_in)
}

/// Unregisters the segments that nobody else uses, on a thread that may wait. In the process that loaded the driver.
pub(super) fn sweep() {
    let mut unused = Vec::new();
    for entry in lock().iter_mut() {
        let is_unused = |memory: &SegmentMemory| memory.is_unused();
        if matches!(&entry.state, State::Pinned(segment) if segment.memory.as_ref().is_some_and(is_unused))
        {
            unused.push(std::mem::replace(&mut entry.state, State::Unregistering));
        }
    }
    // Outside of the lock, which a drop takes.
    for state in unused {
        if let State::Pinned(segment) = state {
            closer::close(segment);
        }
    }
}

impl Parked for PinnedSegment {
    fn is_over(&self) -> bool {
        // It is parked when it is unused, and copies end before their calls return.
        true
    }

    fn drop_waits(&self) -> bool {
        true
    }
}

impl Drop for PinnedSegment {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        if !is_ours() {
            return;
        }
        let start = memory.start().addr();
        match self.unregister(&memory) {
            Ok(()) => lock().retain(|entry| entry.start != start),
            Err(error) => {
                self.device.tell(&error, "a segment of the host stays pinned");
                let segment = Self { device: self.device.clone(), memory: Some(memory) };
                set(&mut lock(), start, State::Pinned(segment));
            }
        }
    }
}

impl PinnedSegment {
    /// Unregisters the segment, unless it is not registered any more.
    fn unregister(&self, memory: &SegmentMemory) -> Result<()> {
        let (driver, _entered) = (self.device.driver(), self.device.enter()?);
        let start = memory.start().cast_mut().cast();
        // SAFETY: it was registered once, and is still mapped.
        match unsafe { (driver.calls.cuMemHostUnregister)(start) } {
            // Another library has, or the context is over, and its registrations with it.
            NOT_REGISTERED => Ok(()),
            code if ends_all(code) => Ok(()),
            code => driver.check("cuMemHostUnregister", code),
        }
    }
}

fn set(pinned: &mut [Entry], start: usize, state: State) {
    if let Some(entry) = pinned.iter_mut().find(|entry| entry.start == start) {
        entry.state = state;
    }
}
