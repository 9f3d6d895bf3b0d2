//! Accesses of the processor to a dmabuf, announced to the driver that exports it.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::error::{Error, Result};

/// `DMA_BUF_IOCTL_SYNC` of `linux/dma-buf.h`, whose argument is a `struct dma_buf_sync`: one `u64`.
const SYNC: libc::Ioctl = libc::_IOW::<u64>(b'b' as u32, 0);
const READ: u64 = 1;
const WRITE: u64 = 2;
const END: u64 = 4;

/// An announced access. Dropping it ends the access, too.
#[derive(Debug)]
pub(super) struct Announced<'a> {
    fd: BorrowedFd<'a>,
    direction: u64,
}

impl<'a> Announced<'a> {
    /// Announces an access. The call may wait until the device is done with the buffer.
    pub(super) fn start(fd: BorrowedFd<'a>, write: bool) -> Result<Self> {
        let direction = if write { READ | WRITE } else { READ };
        sync(fd, direction)?;
        Ok(Self { fd, direction })
    }

    /// Ends the access: written bytes reach the device.
    pub(super) fn end(self) -> Result<()> {
        let (fd, direction) = (self.fd, self.direction);
        core::mem::forget(self);
        sync(fd, direction | END)
    }
}

impl Drop for Announced<'_> {
    fn drop(&mut self) {
        // After a panic. The driver is told of the end, and its answer is lost.
        let _ = sync(self.fd, self.direction | END);
    }
}

fn sync(fd: BorrowedFd<'_>, flags: u64) -> Result<()> {
    loop {
        // SAFETY: the argument is laid out as `struct dma_buf_sync`, a `u64`, and outlives the call.
        let done = unsafe { libc::ioctl(fd.as_raw_fd(), SYNC, &flags) };
        if done == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        // Documentation/driver-api/dma-buf: both mean that the caller repeats the call.
        if !matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN)) {
            return Err(Error::os("DMA_BUF_IOCTL_SYNC", error));
        }
    }
}
