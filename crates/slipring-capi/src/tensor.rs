//! Tensors: memory of a context's pool, of a peer, or of this process alone, with a data type and a shape.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::thread::LocalKey;

use slipring::seam::SendPatience;
use slipring::tensor::{Allocation, Outgoing};
use slipring::{Context, DType, Sender, Shape, Tensor, TensorMut};

use crate::context::{context_of, slipring_context};
use crate::failure::{Answer, Failure, guard};
use crate::half::{Half, free_half};
use crate::handle::{self, Handle, Kind, Lately};
use crate::pointers::{Out, list, put_sized};
use crate::status::slipring_status::{self, SLIPRING_INVALID_ARGUMENT, SLIPRING_WRONG_STATE};
use crate::timeout::Timeout;

/// A tensor: row-major, little-endian, contiguous elements of one type. A new one is written by its maker. From its send or
/// from slipring_tensor_share() on it is only read. One thread at a time uses a tensor: slipring_tensor_clone() makes another
/// handle of the same memory for another thread.
pub struct slipring_tensor(());

/// The type of an element.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(dead_code, reason = "a caller gives and gets its numbers")]
pub enum slipring_dtype {
    /// One byte: 1 is true, 0 is false.
    SLIPRING_DTYPE_BOOL = 1,
    /// uint8_t.
    SLIPRING_DTYPE_UINT8 = 2,
    /// uint16_t.
    SLIPRING_DTYPE_UINT16 = 3,
    /// uint32_t.
    SLIPRING_DTYPE_UINT32 = 4,
    /// uint64_t.
    SLIPRING_DTYPE_UINT64 = 5,
    /// int8_t.
    SLIPRING_DTYPE_INT8 = 6,
    /// int16_t.
    SLIPRING_DTYPE_INT16 = 7,
    /// int32_t.
    SLIPRING_DTYPE_INT32 = 8,
    /// int64_t.
    SLIPRING_DTYPE_INT64 = 9,
    /// IEEE 754 binary16.
    SLIPRING_DTYPE_FLOAT16 = 10,
    /// float.
    SLIPRING_DTYPE_FLOAT32 = 11,
    /// double.
    SLIPRING_DTYPE_FLOAT64 = 12,
    /// Strings: each is a uint32_t length and as many bytes.
    SLIPRING_DTYPE_BYTES = 13,
    /// The upper half of a float.
    SLIPRING_DTYPE_BFLOAT16 = 14,
    /// float8_e4m3fn.
    SLIPRING_DTYPE_FLOAT8_E4M3FN = 15,
    /// float8_e5m2.
    SLIPRING_DTYPE_FLOAT8_E5M2 = 16,
}

/// The most dimensions of a tensor.
pub const SLIPRING_MAX_RANK: usize = 8;

/// For slipring_tensor_new(): the memory is sealed when it is shared. After that nobody can write it, not even this process,
/// and every receiver reads it as memory that cannot change: model weights.
pub const SLIPRING_TENSOR_FROZEN: u32 = 1;
/// For slipring_tensor_new(): all bytes are 0.
pub const SLIPRING_TENSOR_ZEROED: u32 = 2;
/// In a view: the memory may be written.
pub const SLIPRING_TENSOR_WRITABLE: u32 = 4;
/// In a view: the memory is a peer's, which can write it: an honest peer does not. slipring_tensor_check() says whether
/// the peer has taken it back.
pub const SLIPRING_TENSOR_ON_LOAN: u32 = 8;
/// In a view: the elements are on a GPU, and `data` is NULL.
pub const SLIPRING_TENSOR_ON_GPU: u32 = 16;

/// What a tensor is.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct slipring_tensor_view {
    /// The first element, or NULL if there are no bytes. Valid until the tensor is sent or freed; of one that is to be frozen until
    /// slipring_tensor_share(), or a send, also one that fails. Write it only with SLIPRING_TENSOR_WRITABLE.
    pub data: *mut c_void,
    /// The length in bytes.
    pub len: usize,
    /// The lengths of the dimensions, the outermost first.
    pub shape: [usize; SLIPRING_MAX_RANK],
    /// The number of dimensions.
    pub rank: usize,
    /// The type of an element: a slipring_dtype.
    pub dtype: u32,
    /// SLIPRING_TENSOR_FROZEN, SLIPRING_TENSOR_WRITABLE, SLIPRING_TENSOR_ON_LOAN, SLIPRING_TENSOR_ON_GPU.
    pub flags: u32,
}

/// What a handle of a tensor holds.
pub(crate) enum Held {
    Writable(TensorMut),
    Readable(Tensor),
    /// The memory could not be frozen, or is lent although the send has failed.
    Nothing,
}

thread_local! {
    static LATELY: Lately<Half<Held>> = const { Lately::new() };
}

impl Kind for Half<Held> {
    const MAGIC: u64 = 0x7d33_6601_c5ae_0005;
    const WRONG: &'static str = "the handle is no slipring_tensor";

    fn lately() -> &'static LocalKey<Lately<Self>> {
        &LATELY
    }
}

fn wrong<T>(status: slipring_status, text: &'static str) -> Answer<T> {
    Err(Failure::Border(status, text))
}

fn nothing() -> Failure {
    Failure::Border(SLIPRING_WRONG_STATE, "the tensor's memory is gone: free the handle")
}

impl Held {
    /// Returns a handle of a tensor.
    #[inline(always)]
    pub(crate) fn handle(tensor: Tensor) -> Answer<*mut slipring_tensor> {
        Ok(Handle::make(Half::new(Self::Readable(tensor))?))
    }

    /// Returns a handle of a tensor that is being written.
    #[inline(always)]
    fn writable(tensor: TensorMut) -> Answer<*mut slipring_tensor> {
        Ok(Handle::make(Half::new(Self::Writable(tensor))?))
    }

    /// Returns the tensor, which is only read from now on.
    pub(crate) fn share(&mut self) -> Answer<&Tensor> {
        if let Self::Writable(_) = self {
            let Self::Writable(tensor) = std::mem::replace(self, Self::Nothing) else {
                return Err(nothing());
            };
            *self = Self::Readable(tensor.share()?);
        }
        match self {
            Self::Readable(tensor) => Ok(tensor),
            _ => Err(nothing()),
        }
    }

    /// Returns the tensor, which is shared.
    fn readable(&self) -> Answer<&Tensor> {
        match self {
            Self::Readable(tensor) => Ok(tensor),
            Self::Writable(_) => {
                wrong(SLIPRING_WRONG_STATE, "the tensor is being written: slipring_tensor_share")
            }
            Self::Nothing => Err(nothing()),
        }
    }

    /// Sends the tensor. If that fails, it is as it was, or shared.
    #[inline]
    pub(crate) fn send(&mut self, sender: &mut Sender, patience: SendPatience) -> Answer {
        if let Self::Writable(tensor) = self
            && let Some(sent) = sender.put_writable(tensor, patience)
        {
            // A send that fails behind the publication has lent the memory: the peer has it, or the pool again.
            if sent.is_err() && tensor.is_empty() {
                *self = Self::Nothing;
            }
            return Ok(sent?);
        }
        Ok(sender.put_tensor(&mut Outgoing::from(self.share()?), patience)?)
    }

    /// Returns the tensor, shared, which leaves the handle.
    pub(crate) fn take_shared(&mut self) -> Answer<Tensor> {
        self.share()?;
        match std::mem::replace(self, Self::Nothing) {
            Self::Readable(tensor) => Ok(tensor),
            _ => Err(nothing()),
        }
    }

    fn view(&mut self) -> Answer<slipring_tensor_view> {
        let (data, len, of, dtype, flags) = match self {
            Self::Writable(tensor) => {
                let (dtype, shape) = (tensor.dtype(), *tensor.shape());
                (tensor.as_mut_ptr(), tensor.len(), shape, dtype, SLIPRING_TENSOR_WRITABLE)
            }
            Self::Readable(tensor) => {
                let (data, len, mut flags) = match tensor.on() {
                    Some(_) => (std::ptr::null_mut(), tensor.byte_len(), SLIPRING_TENSOR_ON_GPU),
                    None => {
                        let bytes = tensor.bytes()?;
                        (bytes.as_ptr().cast_mut(), bytes.len(), 0)
                    }
                };
                if tensor.is_loaned() {
                    flags |= SLIPRING_TENSOR_ON_LOAN;
                }
                if tensor.is_frozen() {
                    flags |= SLIPRING_TENSOR_FROZEN;
                }
                (data, len, *tensor.shape(), tensor.dtype(), flags)
            }
            Self::Nothing => return Err(nothing()),
        };
        let mut shape = [0; SLIPRING_MAX_RANK];
        let rank = of.dims().len();
        shape[..rank].copy_from_slice(of.dims());
        Ok(slipring_tensor_view {
            data: if len == 0 { std::ptr::null_mut() } else { data.cast() },
            len,
            shape,
            rank,
            dtype: u32::from(dtype.code()),
            flags,
        })
    }
}

/// Returns the tensor behind a pointer.
///
/// # Safety
///
/// No other thread frees the handle meanwhile.
pub(crate) unsafe fn tensor_of<'a>(tensor: *const slipring_tensor) -> Answer<&'a Half<Held>> {
    // SAFETY: as the caller vouches.
    let half = unsafe { Handle::<Half<Held>>::of(tensor) }?;
    half.check_process()?;
    Ok(half)
}

/// Frees the handle of a tensor that was sent.
///
/// # Safety
///
/// No other thread uses the handle.
pub(crate) unsafe fn free_sent(tensor: *mut slipring_tensor) {
    // SAFETY: as the caller vouches.
    let _ = unsafe { handle::free::<Half<Held>, _>(tensor) };
}

/// Returns an allocation of the context's pool that waits for memory as long as the caller says.
pub(crate) fn allocation(context: &Context, timeout: i64) -> Answer<Allocation<'_>> {
    Ok(match Timeout::new(timeout)? {
        Timeout::Default => context.allocation(),
        time => context.allocation().until(time.deadline()),
    })
}

/// Returns the data type and the shape that the caller gave.
///
/// # Safety
///
/// `rank` lengths at `shape` are readable.
unsafe fn kind_of(dtype: u32, shape: *const usize, rank: usize) -> Answer<(DType, Shape)> {
    let code = u8::try_from(dtype).unwrap_or(u8::MAX);
    let dtype = DType::from_code(code).map_err(slipring::Error::from)?;
    // SAFETY: as the caller vouches.
    let dims = unsafe { list(shape, rank) }?;
    Ok((dtype, Shape::new(dims)?))
}

/// Makes a tensor in the context's pool, to be written and sent. `shape` has `rank` lengths, and may be NULL if `rank` is 0:
/// one element. `flags` are SLIPRING_TENSOR_FROZEN, SLIPRING_TENSOR_ZEROED, or 0. Its memory starts at a multiple of the page
/// size, and has old bytes of this process. `timeout` is for a full pool, whose memory peers hold: SLIPRING_DEFAULT and
/// SLIPRING_NONBLOCK do not wait. Free it with slipring_tensor_free(), unless a send took it.
///
/// SLIPRING_INVALID_TENSOR: the data type, the shape, or their size is impossible. SLIPRING_RESOURCE_LIMIT,
/// SLIPRING_TIMED_OUT: the pool is full. SLIPRING_INVALID_ARGUMENT: other flags, or strings, which slipring_tensor_new_encoded()
/// makes. SLIPRING_OUT_OF_MEMORY, SLIPRING_FORKED.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_tensor_new(
    context: *mut slipring_context,
    dtype: u32,
    shape: *const usize,
    rank: usize,
    flags: u32,
    timeout: i64,
    tensor: *mut *mut slipring_tensor,
) -> slipring_status {
    // SAFETY: as that function demands.
    unsafe { make(context, (dtype, shape, rank), None, flags, timeout, tensor) }
}

/// As slipring_tensor_new(), for strings: `len` bytes, in which each element is a uint32_t length and as many bytes. A receiver
/// checks them.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_tensor_new_encoded(
    context: *mut slipring_context,
    len: usize,
    shape: *const usize,
    rank: usize,
    flags: u32,
    timeout: i64,
    tensor: *mut *mut slipring_tensor,
) -> slipring_status {
    let kind = (u32::from(DType::Bytes.code()), shape, rank);
    // SAFETY: as that function demands.
    unsafe { make(context, kind, Some(len), flags, timeout, tensor) }
}

/// # Safety
///
/// As the header says of slipring_tensor_new().
unsafe fn make(
    context: *mut slipring_context,
    (dtype, shape, rank): (u32, *const usize, usize),
    len: Option<usize>,
    flags: u32,
    timeout: i64,
    tensor: *mut *mut slipring_tensor,
) -> slipring_status {
    guard(|| {
        // SAFETY: the header demands a place for the answer.
        let mut out = unsafe { Out::new(tensor) }?;
        // SAFETY: the header demands that nobody frees the handle meanwhile.
        let context = unsafe { context_of(context) }?;
        // SAFETY: the header demands as many lengths.
        let (dtype, shape) = unsafe { kind_of(dtype, shape, rank) }?;
        if flags & !(SLIPRING_TENSOR_FROZEN | SLIPRING_TENSOR_ZEROED) != 0 {
            return wrong(SLIPRING_INVALID_ARGUMENT, "flags other than FROZEN and ZEROED");
        }
        let mut allocation = allocation(context, timeout)?;
        if flags & SLIPRING_TENSOR_FROZEN != 0 {
            allocation = allocation.frozen();
        }
        if flags & SLIPRING_TENSOR_ZEROED != 0 {
            allocation = allocation.zeroed();
        }
        // Each arm makes its handle by itself. A tensor that the arms had in common would be moved once more.
        out.set(match len {
            Some(len) => Held::writable(allocation.encoded(shape, len)?)?,
            None if dtype == DType::Bytes => {
                let text = "the length of strings is not known: slipring_tensor_new_encoded";
                return wrong(SLIPRING_INVALID_ARGUMENT, text);
            }
            None => Held::writable(allocation.dtype(dtype, shape)?)?,
        });
        Ok(())
    })
}

/// Writes what a tensor is. `size` is `sizeof *view`. Also of a tensor that is being written.
///
/// SLIPRING_LOAN_REVOKED: the peer has taken the memory back. SLIPRING_WRONG_STATE: the memory is gone. SLIPRING_INVALID_TENSOR: it
/// lies in a region of the peer. SLIPRING_FORKED.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_tensor_get_view(
    tensor: *const slipring_tensor,
    view: *mut slipring_tensor_view,
    size: usize,
) -> slipring_status {
    guard(|| {
        // SAFETY: the header demands that nobody frees the handle meanwhile.
        let found = unsafe { tensor_of(tensor) }?.enter(Held::view)?;
        // SAFETY: the header demands that `size` bytes may be written; the structure has no padding.
        unsafe { put_sized(view, size, &found) }
    })
}

/// Ends the writing: the tensor is only read from now on, and can be cloned. One with SLIPRING_TENSOR_FROZEN is sealed here.
/// No effect on one that is shared already.
///
/// SLIPRING_OS: it could not be sealed, and its memory is gone: free the handle. SLIPRING_WRONG_STATE: the memory is gone.
/// SLIPRING_FORKED.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_tensor_share(tensor: *mut slipring_tensor) -> slipring_status {
    guard(|| {
        // SAFETY: the header demands that nobody frees the handle meanwhile.
        unsafe { tensor_of(tensor) }?.enter(|held| held.share().map(drop))
    })
}

/// Makes another handle of the same memory, to send a tensor to several peers or to use it on another thread. Free it with
/// slipring_tensor_free(), unless a send took it.
///
/// SLIPRING_WRONG_STATE: the tensor is being written (slipring_tensor_share() first), or it is a peer's (slipring_tensor_copy()).
/// SLIPRING_FORKED.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_tensor_clone(
    tensor: *const slipring_tensor,
    clone: *mut *mut slipring_tensor,
) -> slipring_status {
    guard(|| {
        // SAFETY: the header demands a place for the answer.
        let mut out = unsafe { Out::new(clone) }?;
        // SAFETY: the header demands that nobody frees the handle meanwhile.
        let other = unsafe { tensor_of(tensor) }?.enter(|held| {
            let text = "the memory is a peer's, which one handle gives back: slipring_tensor_copy";
            let lent = Failure::Border(SLIPRING_WRONG_STATE, text);
            held.readable()?.try_clone().ok_or(lent)
        })?;
        out.set(Held::handle(other)?);
        Ok(())
    })
}

/// Makes a copy in private memory, which no peer can write. Free it with slipring_tensor_free(), unless a send took it.
///
/// SLIPRING_WRONG_STATE: the tensor is being written. SLIPRING_LOAN_REVOKED: the peer has taken the memory back.
/// SLIPRING_OUT_OF_MEMORY, SLIPRING_INVALID_TENSOR (a tensor on a GPU), SLIPRING_FORKED.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_tensor_copy(
    tensor: *const slipring_tensor,
    copy: *mut *mut slipring_tensor,
) -> slipring_status {
    guard(|| {
        // SAFETY: the header demands a place for the answer.
        let mut out = unsafe { Out::new(copy) }?;
        // SAFETY: the header demands that nobody frees the handle meanwhile.
        let other =
            unsafe { tensor_of(tensor) }?.enter(|held| Ok(held.readable()?.to_private()?))?;
        out.set(Held::handle(other)?);
        Ok(())
    })
}

/// Checks that the peer has not taken the memory back. Call it behind the last read: then what was read is what the peer
/// has sent. Always SLIPRING_OK for memory that is not on loan, and for that of a GPU.
///
/// SLIPRING_LOAN_REVOKED, SLIPRING_WRONG_STATE (the memory is gone), SLIPRING_FORKED.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_tensor_check(tensor: *const slipring_tensor) -> slipring_status {
    guard(|| {
        // SAFETY: the header demands that nobody frees the handle meanwhile.
        unsafe { tensor_of(tensor) }?.enter(|held| match held {
            Held::Readable(tensor) if tensor.is_loaned() && tensor.on().is_none() => {
                Ok(tensor.bytes().map(drop)?)
            }
            Held::Nothing => Err(nothing()),
            _ => Ok(()),
        })
    })
}

/// Frees a tensor. A peer's memory goes back to the peer. NULL has no effect.
///
/// SLIPRING_BUSY: another thread uses the tensor. It is not freed.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_tensor_free(tensor: *mut slipring_tensor) -> slipring_status {
    // SAFETY: the header demands that no other thread frees the handle.
    unsafe { free_half::<Held, _>(tensor) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_data_types_are_their_codes() {
        use slipring_dtype::*;
        let all = [
            SLIPRING_DTYPE_BOOL,
            SLIPRING_DTYPE_UINT8,
            SLIPRING_DTYPE_UINT16,
            SLIPRING_DTYPE_UINT32,
            SLIPRING_DTYPE_UINT64,
            SLIPRING_DTYPE_INT8,
            SLIPRING_DTYPE_INT16,
            SLIPRING_DTYPE_INT32,
            SLIPRING_DTYPE_INT64,
            SLIPRING_DTYPE_FLOAT16,
            SLIPRING_DTYPE_FLOAT32,
            SLIPRING_DTYPE_FLOAT64,
            SLIPRING_DTYPE_BYTES,
            SLIPRING_DTYPE_BFLOAT16,
            SLIPRING_DTYPE_FLOAT8_E4M3FN,
            SLIPRING_DTYPE_FLOAT8_E5M2,
        ];
        assert_eq!(all.map(|dtype| dtype as u8), DType::ALL.map(DType::code));
        assert_eq!(SLIPRING_MAX_RANK, Shape::MAX_RANK);
    }
}
