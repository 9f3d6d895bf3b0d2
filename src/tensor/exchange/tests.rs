//! Unit tests of `tensor::exchange`.

use std::thread;
use std::time::{Duration, Instant};

use super::*;
use crate::{Address, Connection, Context, Options};

/// Bytes of a block. The near context's pool has two.
const BLOCK: usize = 64 << 10;

fn pair() -> (Context, Connection, Connection) {
    let quota = 2 * BLOCK as u64;
    let options = Options::new().pool_quota(quota).loan_limit(2, quota);
    let near = Context::with_options(options.release_grace(Duration::MAX)).unwrap();
    let far = Context::new().unwrap();
    let address = Address::fresh();
    let mut listener = near.listen(&address).unwrap();
    let far = thread::spawn(move || far.connect(&address).unwrap());
    let connection = listener.accept().unwrap();
    (near, connection, far.join().unwrap())
}

/// The pool closes the peer's account while the sender publishes: the sender has passed its checks, and has the slot.
#[test]
fn a_tensor_for_a_closed_account_is_marked_before_its_block_is_used_again() {
    for shares in [false, true] {
        let (context, mut near, mut far) = pair();
        let tensor = |value: u8| {
            let until = Instant::now() + Duration::from_secs(10);
            let mut tensor = context.allocation().until(until).typed::<u8>([BLOCK]).unwrap();
            tensor.fill(value);
            tensor
        };
        // The first tensor brings its segment, and the second one sets the slot of the next aside.
        for value in [5, 6] {
            near.send_tensor(tensor(value)).unwrap();
            drop(far.recv_tensor().unwrap().unwrap());
        }
        let sent = tensor(7);
        near.sender().revoke();
        if shares {
            near.send_tensor(sent.share().unwrap()).unwrap();
        } else {
            near.send_tensor(sent).unwrap();
        }
        let received = far.recv_tensor().unwrap().unwrap();
        drop([tensor(8), tensor(9)]);
        let error = received.to_vec::<u8>().map(drop).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::LoanRevoked);
    }
}

#[test]
fn a_tensor_of_up_to_seven_dimensions_is_taken_apart_as_it_lies_in_the_ring() {
    let (context, mut near, mut far) = pair();
    // The first one brings its segment.
    near.send_tensor(context.alloc::<u8>([1]).unwrap()).unwrap();
    drop(far.recv_tensor().unwrap());
    for rank in 0..=7 {
        let shape = Shape::new(&[2; 7][..rank]).unwrap();
        near.send_tensor(context.alloc::<u8>(shape).unwrap()).unwrap();
        let receiver = far.receiver();
        let single = receiver.single(RecvPatience::Forever).unwrap().expect("a single tensor");
        let loan = single.loan_len();
        let read = SingleTensor::decode(single.description, single.len, loan).expect("it is whole");
        assert_eq!((read.dtype, read.shape), (DType::Uint8, shape));
        drop(receiver.take_single(single).expect("its segment is known"));
    }
}
