//! Unit tests of `tensor::dlpack::export`.

use super::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// An owner that holds its bytes in itself and counts its drops.
struct Counted([u8; 6], Arc<AtomicUsize>);

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_add(1, Relaxed);
    }
}

fn end(managed: *mut DLManagedTensorVersioned) {
    // SAFETY: the tests end a tensor once.
    let deleter = unsafe { (*managed).deleter }.unwrap();
    // SAFETY: as above, with the deleter that it came with.
    unsafe { deleter(managed) };
}

#[test]
fn the_structure_says_what_was_exported() {
    let drops = Arc::new(AtomicUsize::new(0));
    let owner = Counted([1, 2, 3, 4, 5, 6], drops.clone());
    let managed =
        DLManagedTensorVersioned::export(owner, DType::Uint16, &Shape::from([3, 1])).unwrap();
    // SAFETY: it was made above and is ended below.
    let seen = unsafe { &*managed };
    assert_eq!((seen.version.major, seen.flags), (1, DLManagedTensorVersioned::READ_ONLY));
    let tensor = seen.dl_tensor;
    assert_eq!((tensor.device, tensor.ndim, tensor.byte_offset), (DLDevice::CPU, 2, 0));
    assert_eq!(tensor.dtype, DLDataType { code: 1, bits: 16, lanes: 1 });
    // SAFETY: there are two dimensions.
    assert_eq!(unsafe { std::slice::from_raw_parts(tensor.shape, 2) }, [3, 1]);
    // SAFETY: there are two dimensions.
    assert_eq!(unsafe { std::slice::from_raw_parts(tensor.strides, 2) }, [1, 1]);
    let data = tensor.data.cast::<u8>();
    // SAFETY: the owner has six bytes.
    assert_eq!(unsafe { std::slice::from_raw_parts(data, 6) }, [1, 2, 3, 4, 5, 6]);
    assert_eq!(drops.load(Relaxed), 0);
    end(managed);
    assert_eq!(drops.load(Relaxed), 1);
}

#[test]
fn the_owner_is_dropped_once_by_the_thread_that_ends_the_tensor() {
    struct Where(Arc<std::sync::Mutex<Vec<std::thread::ThreadId>>>);
    impl Drop for Where {
        fn drop(&mut self) {
            self.0.lock().unwrap().push(std::thread::current().id());
        }
    }
    let dropped = Arc::default();
    let owner = Where(Arc::clone(&dropped));
    let none = (ptr::null_mut(), 0);
    // SAFETY: an empty tensor has no bytes that could be read.
    let managed = unsafe { export_raw(owner, none, DType::Fp32, &Shape::from([0]), 0) };
    let address = managed.unwrap().expose_provenance();
    let thread = std::thread::spawn(move || end(ptr::with_exposed_provenance_mut(address)));
    let id = thread.thread().id();
    thread.join().unwrap();
    assert_eq!(*dropped.lock().unwrap(), [id]);
}

#[test]
fn what_cannot_be_exported_drops_its_owner() {
    let drops = Arc::new(AtomicUsize::new(0));
    let refused = |dtype, shape| {
        let owner = Counted([0; 6], drops.clone());
        DLManagedTensorVersioned::export(owner, dtype, &shape).unwrap_err().to_string()
    };
    let long = refused(DType::Uint8, Shape::from([5]));
    assert_eq!(long, "6 bytes, shape and data type need 5");
    assert_eq!(
        refused(DType::Bytes, Shape::from([0])),
        "elements of BYTES have no fixed length: give the length (Allocation::encoded)"
    );
    for shape in [Shape::from([usize::MAX]), Shape::from([0, usize::MAX])] {
        let overflow = "shape and data type need more than 2^63 bytes";
        assert_eq!(refused(DType::Uint8, shape), overflow);
    }
    assert_eq!(drops.load(Relaxed), 4);
}

#[test]
fn strides_are_those_of_row_major_order() {
    let list = |dims: &[usize]| dims_and_strides(&Shape::new(dims).unwrap()).unwrap();
    assert!(list(&[]).is_empty());
    assert_eq!(list(&[7]), [7, 1]);
    assert_eq!(list(&[2, 3, 4]), [2, 3, 4, 12, 4, 1]);
    assert_eq!(list(&[2, 0, 4]), [2, 0, 4, 4, 4, 1]);
}
