//! Sets of many tensors of a GPU. Those that lie in one allocation cost as much as one.

use std::time::Instant;

use slipring::cuda::{Device, Pool, Stream};
use slipring::error::{CudaFault, TensorFault};
use slipring::{DType, ErrorKind, Tensor, TensorSet};

use crate::support::fake_cuda::{FakeCuda, Kind};
use crate::support::gpus::{
    calls, device, exchange, hear, hear_out, is_closed, numbers, pool_options, recv,
};
use crate::support::{soon, wait_until};

/// The tensors of a mixture of experts of 30 billion parameters.
const COUNT: usize = 19_500;

/// Bytes from the start of one tensor to that of the next.
const STEP: usize = 512;

/// One tensor of all bytes, each part of which starts with its number.
fn written(pool: &Pool, stream: &Stream, count: usize) -> Tensor {
    let words: Vec<u32> = (0..count * STEP / 4).map(|at| (at / (STEP / 4)) as u32).collect();
    let mut draft = pool.alloc::<u32>([words.len()], stream).unwrap();
    draft.write(&words).unwrap();
    draft.share().unwrap()
}

/// A set of parts of one tensor.
fn parts(device: &Device, whole: &Tensor, count: usize) -> TensorSet {
    let mut set = TensorSet::new();
    for at in 0..count {
        let part = device.part(whole, (at * STEP) as u64, DType::Uint32, [5, 4]).unwrap();
        let name = format!("model.layers.{}.mlp.experts.{}.up_proj.weight", at / 384, at % 384);
        set.insert(&name, part).unwrap();
    }
    set
}

#[test]
fn a_set_of_19500_tensors_takes_as_few_calls_of_the_driver_as_one() {
    const TEST: &str = "a_set_of_19500_tensors_takes_as_few_calls_of_the_driver_as_one";
    for kind in Kind::ALL {
        let cuda = FakeCuda::new().of_kind(kind);
        exchange(
            TEST,
            &cuda,
            |mut link| {
                let device = device();
                let stream = device.stream().unwrap();
                let pool =
                    device.pool_with(pool_options().chunk(16 << 20).quota(16 << 20)).unwrap();
                let whole = written(&pool, &stream, COUNT);
                let start = Instant::now();
                let set = parts(&device, &whole, COUNT);
                link.sender().send_tensors_deadline(&set, soon()).unwrap();
                eprintln!("{COUNT} tensors, made and sent: {:?}", start.elapsed());
                drop((set, whole));
                hear(&mut link);
                let full = pool.alloc::<u8>([10 << 20], &stream).unwrap_err();
                assert!(matches!(full.kind(), ErrorKind::Cuda(CudaFault::Exhausted { .. })));
                link.send(b"drop the last one").unwrap();
                hear(&mut link);
                wait_until("all are back", || pool.alloc::<u8>([10 << 20], &stream).is_ok());
                drop((pool, stream));
                hear_out(&mut link);
            },
            |mut link| {
                let device = device();
                let stream = device.stream().unwrap();
                let start = Instant::now();
                let set = link.receiver().recv_tensors_deadline(soon()).unwrap().unwrap();
                let came = start.elapsed();
                assert_eq!(set.len(), COUNT);
                let mut views =
                    device.open_all(set.iter().map(|(_, tensor)| tensor), &stream).unwrap();
                eprintln!("received: {came:?}, and opened: {:?}", start.elapsed());
                for at in [0, 1, 383, 384, COUNT - 1] {
                    let name = format!(
                        "model.layers.{}.mlp.experts.{}.up_proj.weight",
                        at / 384,
                        at % 384
                    );
                    assert_eq!(set[&*name].shape().dims(), [5, 4]);
                    let copy = views[at].to_host().unwrap();
                    assert_eq!(copy.as_slice::<u32>().unwrap(), [at as u32; 20]);
                }
                drop(set);
                let last = views.pop();
                let start = Instant::now();
                drop(views);
                eprintln!("dropped: {:?}", start.elapsed());
                link.send(b"all but one are dropped").unwrap();
                hear(&mut link);
                drop(last);
                link.send(b"it is, too").unwrap();
                drop(stream);
                link.close().unwrap();
                is_closed(&device);
            },
        );
        if cuda.tells(TEST) {
            let trace = cuda.trace();
            // Of both processes. The five copies, and looks at what is back, are most of them.
            let lasting = trace.iter().filter(|call| {
                let polls = ["cuEventQuery", "cuStreamQuery", "cuCtxPushCurrent_v2"];
                let of_polls = ["cuCtxPopCurrent_v2", "cuThreadExchangeStreamCaptureMode"];
                !polls.contains(&&*call.name) && !of_polls.contains(&&*call.name)
            });
            assert!(lasting.count() < 200, "calls for {COUNT} tensors");
            assert!(trace.len() < COUNT / 4, "{} calls", trace.len());
            assert!(
                calls(&trace, "cuStreamWaitEvent") + calls(&trace, "cuStreamWaitValue64_v2") < 4
            );
        }
    }
}

#[test]
fn tensors_of_one_chunk_go_with_one_loan_and_come_back_together() {
    const TEST: &str = "tensors_of_one_chunk_go_with_one_loan_and_come_back_together";
    // Events order one tensor each.
    for kind in [Kind::Words, Kind::Synchronized] {
        exchange(
            TEST,
            &FakeCuda::new().of_kind(kind),
            |mut link| {
                let device = device();
                let stream = device.stream().unwrap();
                let pool = device.pool_with(pool_options().chunk(2 << 20).quota(2 << 20)).unwrap();
                // More than a record has attachments, each a tensor of its own.
                let mut set = TensorSet::new();
                for at in 0..300 {
                    let mut draft = pool.alloc::<u32>([1024], &stream).unwrap();
                    draft.write(&numbers(at, 1024)).unwrap();
                    set.push(draft.share().unwrap());
                }
                link.sender().send_tensors_deadline(&set, soon()).unwrap();
                // Once more, and one of them alone.
                link.sender().send_tensors_deadline(&set, soon()).unwrap();
                link.send_tensor(set.at(7).unwrap()).unwrap();
                drop(set);
                let whole = || pool.alloc::<u8>([15 << 17], &stream);
                for _ in 0..2 {
                    hear(&mut link);
                    whole().unwrap_err();
                    link.send(b"go on").unwrap();
                }
                hear(&mut link);
                wait_until("all are back", || whole().is_ok());
                drop((pool, stream));
                hear_out(&mut link);
            },
            |mut link| {
                let device = device();
                let stream = device.stream().unwrap();
                let mut sets = Vec::new();
                for _ in 0..2 {
                    sets.push(link.receiver().recv_tensors_deadline(soon()).unwrap().unwrap());
                }
                let alone = recv(&mut link);
                for set in &sets {
                    for (at, (_, tensor)) in (0u32..).zip(set.iter()) {
                        let copy = device.to_host(tensor, &stream).unwrap();
                        assert_eq!(copy.as_slice::<u32>().unwrap(), numbers(at, 1024));
                    }
                }
                let copy = device.to_host(&alone, &stream).unwrap();
                assert_eq!(copy.as_slice::<u32>().unwrap(), numbers(7, 1024));
                let last = sets.pop().unwrap().into_iter().next_back();
                for step in 0..2 {
                    if step == 1 {
                        sets.clear();
                    }
                    link.send(b"some are left").unwrap();
                    hear(&mut link);
                }
                drop((last, alone));
                link.send(b"none is left").unwrap();
                drop(stream);
                link.close().unwrap();
            },
        );
    }
}

#[test]
fn a_part_lies_in_its_tensor() {
    const TEST: &str = "a_part_lies_in_its_tensor";
    exchange(
        TEST,
        &FakeCuda::new(),
        |mut link| {
            let device = device();
            let stream = device.stream().unwrap();
            let pool = device.pool_with(pool_options()).unwrap();
            let whole = written(&pool, &stream, 4);
            let part = |offset, shape: [usize; 1]| device.part(&whole, offset, DType::Uint8, shape);
            let refused = |offset, len| part(offset, [len]).unwrap_err().kind().clone();
            let range = |offset, len| {
                ErrorKind::Tensor(TensorFault::GpuRange { offset, len, allocation: 2048 })
            };
            assert_eq!(refused(0, 2049), range(0, 2049));
            assert_eq!(refused(2048, 1), range(2048, 1));
            assert_eq!(refused(1 << 63, 1), range(1 << 63, 1));
            let alignment = TensorFault::Alignment { alignment: 256 };
            assert_eq!(refused(128, 1), ErrorKind::Tensor(alignment));
            let host = Tensor::from_slice([1], &[1u8]).unwrap();
            let on_host = device.part(&host, 0, DType::Uint8, [1]).unwrap_err();
            assert_eq!(*on_host.kind(), ErrorKind::Cuda(CudaFault::OnHost));
            // A part of a part, in this process and in another one.
            let second = part(512, [1024]).unwrap();
            let third = device.part(&second, 512, DType::Uint32, [2]).unwrap();
            let copy = device.to_host(&third, &stream).unwrap();
            assert_eq!(copy.as_slice::<u32>().unwrap(), [2, 2]);
            drop((whole, second));
            link.send_tensor(third).unwrap();
            hear(&mut link);
        },
        |mut link| {
            let device = device();
            let stream = device.stream().unwrap();
            let third = recv(&mut link);
            let copy = device.to_host(&third, &stream).unwrap();
            assert_eq!(copy.as_slice::<u32>().unwrap(), [2, 2]);
            let of_peer = device.part(&third, 0, DType::Uint32, [1]).unwrap_err();
            assert_eq!(*of_peer.kind(), ErrorKind::Tensor(TensorFault::GpuLoan));
            link.send(b"read").unwrap();
        },
    );
}
