//! Unit tests of `tensor::copies`.

use super::*;
use crate::error::ErrorKind;
use zerocopy::IntoBytes;

#[test]
fn elements_come_in_order_whole_and_checked() {
    let elements: Vec<u32> = (0..10_001).collect();
    let bytes = Bytes::of(elements.as_bytes());
    let mut seen = Vec::new();
    bytes.for_each_chunk::<u32>(|chunk| seen.extend_from_slice(chunk)).unwrap();
    assert_eq!(seen, elements);
    let mut copy = vec![0u32; 10_001];
    bytes.copy_elements(&mut copy).unwrap();
    assert_eq!(copy, elements);
    let fault = |answer: Result<()>| answer.unwrap_err().kind().clone();
    let len = |len, expected| ErrorKind::Tensor(TensorFault::Len { len, expected });
    assert_eq!(fault(bytes.copy_elements(&mut copy[1..])), len(40_000, 40_004));
    let odd = bytes.slice(0, 7);
    assert_eq!(fault(odd.for_each_chunk::<u32>(|_| panic!("no whole elements"))), len(7, 4));
    Bytes::of(&[]).for_each_chunk::<f64>(|_| panic!("there is nothing")).unwrap();
    // Behind the first chunk.
    let (at, mut bools) = (CHUNK + 300, [1; CHUNK + 400]);
    bools[at] = 2;
    let wrong = ErrorKind::Tensor(TensorFault::Bool { index: at as u64, value: 2 });
    let bools = Bytes::of(&bools);
    assert_eq!(fault(bools.copy_elements(&mut [false; CHUNK + 400])), wrong);
    assert_eq!(fault(bools.for_each_chunk::<bool>(|_| {})), wrong);
}
