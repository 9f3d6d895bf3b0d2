//! Metadata arrives beside tensors, whichever way they take.

use slipring::message::{Metadata, Value};
use slipring::{Context, Options, Reactor, Tensor, TensorSet, meta};

use crate::support::{pair, pair_of, soon};

fn values() -> Metadata {
    meta! { "frame" => 7, "camera" => "left" }.unwrap()
}

#[test]
fn metadata_arrives_with_a_tensor_of_each_kind_of_memory() {
    let context = Context::new().unwrap();
    let (mut near, mut far) = pair_of(&context, &Context::new().unwrap());
    let mut lent = context.alloc::<i32>([1000]).unwrap();
    lent.fill(7);
    let lent = lent.share().unwrap();
    let mut frozen = context.alloc_frozen::<i32>([1000]).unwrap();
    frozen.fill(7);
    let tensors = [
        lent,
        frozen.share().unwrap(),
        Tensor::from_slice([1000], &[7; 1000]).unwrap(),
        Tensor::from_slice([3], &[7; 3]).unwrap(),
        Tensor::from_slice::<i32>([0], &[]).unwrap(),
    ];
    for tensor in &tensors {
        near.sender().send_tensor_with(tensor, &values()).unwrap();
        near.sender().try_send_tensor_with(tensor, &values()).unwrap();
        near.sender().send_tensor_with(tensor, &Metadata::new()).unwrap();
        let sets = [(); 2].map(|()| far.receiver().recv_tensors_deadline(soon()).unwrap().unwrap());
        for set in &sets {
            assert_eq!(set.metadata(), &values());
            assert_eq!(
                set.at(0).unwrap().to_vec::<i32>().unwrap(),
                tensor.to_vec::<i32>().unwrap()
            );
        }
        // A receiver of the tensor alone gets it, with metadata and without.
        near.sender().send_tensor_with(tensor, &values()).unwrap();
        for _ in 0..2 {
            let one = far.recv_tensor().unwrap().unwrap();
            assert_eq!(one.shape(), tensor.shape());
        }
    }
    let mut moved = context.alloc::<u8>([4096]).unwrap();
    moved.fill(3);
    near.sender().send_tensor_with(moved, &values()).unwrap();
    let set = far.receiver().recv_tensors().unwrap().unwrap();
    assert_eq!(
        (set.metadata(), set.at(0).unwrap().to_vec::<u8>().unwrap()),
        (&values(), vec![3; 4096])
    );
    drop((set, tensors));
    assert_eq!(near.stats().loans_out, 0);
}

#[test]
fn a_set_keeps_its_metadata_from_hand_to_hand() {
    let (mut near, mut far) = pair(Options::new());
    let mut set = TensorSet::new();
    set.insert("ids", Tensor::from_slice([3], &[7, 8, 9]).unwrap()).unwrap();
    set.set_metadata(values());
    near.sender().send_tensors(&set).unwrap();
    let set = far.receiver().recv_tensors().unwrap().unwrap();
    far.sender().send_tensors(&set).unwrap();
    let set = near.receiver().recv_tensors().unwrap().unwrap();
    assert_eq!((set.metadata(), set.len()), (&values(), 1));
    // A set without tensors is metadata alone.
    let mut empty = TensorSet::new();
    empty.set_metadata(values());
    near.sender().send_tensors(&empty).unwrap();
    let set = far.receiver().recv_tensors().unwrap().unwrap();
    assert!(set.is_empty() && *set.metadata() == values());
}

#[test]
fn tensors_that_are_set_aside_keep_their_metadata() {
    let (mut near, mut far) = pair(Options::new());
    let id = near.submit(b"question").unwrap();
    let request = far.recv_request().unwrap().unwrap();
    let tensor = Tensor::from_slice([2], &[1, 2]).unwrap();
    far.sender().send_tensor_with(&tensor, &values()).unwrap();
    far.sender().send_tensor_with(&tensor, &values()).unwrap();
    far.respond(request.id, b"answer").unwrap();
    near.wait(id).unwrap();
    let received = near.receiver().peek().unwrap().unwrap();
    assert_eq!(received.metadata(), &values());
    assert_eq!(received.into_tensors().unwrap().metadata(), &values());
    assert_eq!(near.receiver().recv_tensors().unwrap().unwrap().metadata(), &values());
}

#[test]
fn a_reactor_hands_metadata_to_its_callbacks() {
    let context = Context::new().unwrap();
    let reactor = Reactor::spawn(&context).unwrap();
    let (mut near, far) = pair_of(&context, &context);
    // The connection has set one of each aside before the reactor adopts it.
    let mut far = far;
    let id = far.submit(b"question").unwrap();
    let request = near.recv_request().unwrap().unwrap();
    let tensor = Tensor::from_slice([2], &[1, 2]).unwrap();
    let say = |near: &mut slipring::Connection| {
        near.sender().send_with(b"short", &values()).unwrap();
        near.sender().send_with(&[7; 1 << 16], &values()).unwrap();
        near.sender().send_tensor_with(&tensor, &values()).unwrap();
    };
    say(&mut near);
    near.respond(request.id, b"answer").unwrap();
    far.wait(id).unwrap();

    let link = reactor.adopt(far).unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    let messages = sender.clone();
    link.on_message(move |_, message| {
        let _ = messages.send((message.len(), message.metadata().clone()));
    });
    link.on_tensors(move |_, set| {
        let _ = sender.send((0, set.metadata().clone()));
    });
    say(&mut near);
    for _ in 0..2 {
        for len in [5, 1 << 16, 0] {
            let (came, metadata) = receiver.recv_timeout(crate::support::HANG).unwrap();
            assert_eq!((came, metadata.get("frame")), (len, Some(Value::Integer(7))));
        }
    }
}
