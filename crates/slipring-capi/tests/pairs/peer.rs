//! The peer in Rust of every pair of languages. `test_pairs.py` of the Python package has what the two sides say.

use std::error::Error;
use std::time::Duration;

use slipring::broadcast::{PublishOptions, SubscribeOptions};
use slipring::{Connection, Context, DType, Options, Tensor, TensorSet};

type Outcome = Result<(), Box<dyn Error>>;

const LONG: Duration = Duration::from_secs(60);
const SIZES: [usize; 7] = [0, 1, 8, 64, 4096, 100_000, 5 << 20];
const BATCH: u64 = 16;
const CALLS: u64 = 8;
const SAMPLES: u64 = 100;

fn main() -> Outcome {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [role, name] = &words[..] else { return Err("usage: peer serve|ask NAME".into()) };
    let context = Context::with_options(Options::new().send_timeout(LONG))?;
    if role == "serve" { serve(&context, name) } else { ask(&context, name) }
}

fn said(kind: &str) {
    println!("{kind}");
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| ((at * 7 + len) % 251) as u8).collect()
}

/// All data types whose elements have one size.
fn dtypes() -> impl Iterator<Item = (DType, usize)> {
    DType::ALL.into_iter().filter_map(|dtype| Some((dtype, dtype.size()?)))
}

/// The bytes of a tensor of a data type. Each is 0 or 1, which every data type can have.
fn elements(count: usize, size: usize) -> Vec<u8> {
    (0..count * size).map(|at| u8::from(at % (size * 3) == 0)).collect()
}

fn next(link: &mut Connection) -> Result<Vec<u8>, Box<dyn Error>> {
    Ok(link.recv()?.ok_or("the peer has left")?)
}

fn set(link: &mut Connection) -> Result<TensorSet, Box<dyn Error>> {
    Ok(link.receiver().recv_tensors()?.ok_or("the peer has left")?)
}

fn serve(context: &Context, name: &str) -> Outcome {
    let mut publisher = context.publish(format!("{name}-topic"), PublishOptions::new())?;
    let mut listener = context.listen(name)?;
    let mut link = listener.accept()?;

    for _ in SIZES {
        let message = next(&mut link)?;
        link.send(&message)?;
    }
    said("messages");

    for _ in SIZES {
        let received = link.receiver().peek()?.ok_or("the peer has left")?;
        let message = received.bytes().to_vec();
        received.release()?;
        let mut reservation = link.sender().reserve(message.len())?;
        reservation.copy_from_slice(&message);
        reservation.publish()?;
    }
    said("in place");

    let all: Vec<_> = (0..BATCH).map(|_| next(&mut link)).collect::<Result<_, _>>()?;
    let mut batch = link.sender().batch()?;
    all.iter().try_for_each(|message| batch.push(message))?;
    batch.publish()?;
    said("batch");

    for _ in dtypes() {
        let tensors = set(&mut link)?;
        link.sender().send_tensors(&tensors)?;
    }
    said("tensors");

    let weights = set(&mut link)?;
    let weights = weights.get("weights").ok_or("no weights")?;
    assert!(weights.is_frozen());
    let sum: i64 = weights.as_slice::<i64>()?.iter().sum();
    link.send(&sum.to_le_bytes())?;
    said("frozen");

    let mut requests = Vec::new();
    for _ in 0..CALLS {
        requests.push(link.recv_request()?.ok_or("the peer has left")?);
    }
    while let Some(request) = requests.pop() {
        let answer: Vec<u8> = request.body.iter().rev().copied().collect();
        link.respond(request.id, &answer)?;
    }
    said("calls");

    let request = link.recv_tensor_request()?.ok_or("the peer has left")?;
    let x: Vec<i32> = request.tensors.get("x").ok_or("no x")?.to_vec()?;
    let twice: Vec<i32> = x.iter().map(|value| value * 2).collect();
    let mut answer = TensorSet::new();
    answer.insert("y", Tensor::from_slice([twice.len()], &twice)?)?;
    link.respond_tensors(request.id, &answer)?;
    said("tensor calls");

    assert_eq!(next(&mut link)?, b"joined");
    for number in 0..SAMPLES {
        if number % 10 == 9 {
            let mut frame = publisher.alloc::<u8>([100, 100])?;
            frame.fill(number as u8);
            publisher.send_tensor(frame)?;
        } else {
            publisher.send(&number.to_le_bytes())?;
        }
    }
    assert_eq!(next(&mut link)?, b"seen");
    said("topic");

    if link.recv()?.is_some() {
        return Err("more than was to come".into());
    }
    said("end");
    Ok(())
}

fn ask(context: &Context, name: &str) -> Outcome {
    let mut link = context.connect_retry(name, std::time::Instant::now() + LONG)?;

    for len in SIZES {
        link.send(&bytes(len))?;
        assert!(next(&mut link)? == bytes(len), "{len} bytes");
    }
    said("messages");

    for len in SIZES {
        let mut reservation = link.sender().reserve(len)?;
        reservation.copy_from_slice(&bytes(len));
        reservation.publish()?;
        let received = link.receiver().peek()?.ok_or("the peer has left")?;
        assert!(received.bytes().to_vec() == bytes(len), "{len} bytes");
        received.release()?;
    }
    said("in place");

    let mut batch = link.sender().batch()?;
    (0..BATCH).try_for_each(|number| batch.push(&number.to_le_bytes()))?;
    batch.publish()?;
    for number in 0..BATCH {
        assert_eq!(next(&mut link)?, number.to_le_bytes());
    }
    said("batch");

    for (dtype, size) in dtypes() {
        let (one, two) = (elements(24, size), elements(8, size));
        let mut tensors = TensorSet::new();
        tensors.insert("one", Tensor::from_bytes(dtype, [2, 3, 4], &one)?)?;
        tensors.insert("two", Tensor::from_bytes(dtype, [2, 4], &two)?)?;
        link.sender().send_tensors(&tensors)?;
        let back = set(&mut link)?;
        for (name, dims, bytes) in [("one", &[2, 3, 4][..], one), ("two", &[2, 4], two)] {
            let tensor = back.get(name).ok_or("a name is missing")?;
            assert_eq!((tensor.dtype(), tensor.shape().dims()), (dtype, dims));
            assert_eq!(tensor.bytes()?.to_vec(), bytes, "{dtype:?}");
        }
    }
    said("tensors");

    let mut weights = context.alloc_frozen::<i64>([1000])?;
    weights.iter_mut().zip(0..).for_each(|(weight, number)| *weight = number);
    let mut tensors = TensorSet::new();
    tensors.insert("weights", weights.share()?)?;
    link.sender().send_tensors(&tensors)?;
    assert_eq!(next(&mut link)?, 499_500i64.to_le_bytes());
    said("frozen");

    let submit = |number: u64| Ok((number, link.submit(format!("call {number}").as_bytes())?));
    let asked: slipring::Result<Vec<_>> = (0..CALLS).map(submit).collect();
    for (number, request) in asked? {
        assert_eq!(link.wait(request)?, format!("{number} llac").as_bytes());
    }
    said("calls");

    let mut tensors = TensorSet::new();
    tensors.insert("x", Tensor::from_slice([3], &[1, 2, 3])?)?;
    let answer = link.call_tensors(&tensors)?;
    assert_eq!(answer.get("y").ok_or("no y")?.to_vec::<i32>()?, [2, 4, 6]);
    said("tensor calls");

    let every = SubscribeOptions::every().wait_for_publisher(LONG);
    let mut subscriber = context.subscribe(format!("{name}-topic"), every)?;
    link.send(b"joined")?;
    for number in 0..SAMPLES {
        let sample = subscriber.recv()?.ok_or("the publisher has left")?;
        assert_eq!(sample.missed(), 0);
        if number % 10 == 9 {
            let frame = sample.into_tensor()?;
            assert_eq!((frame.dtype(), frame.shape().dims()), (DType::Uint8, &[100, 100][..]));
            assert!(frame.bytes()?.to_vec().iter().all(|byte| *byte == number as u8));
        } else {
            assert_eq!(sample.to_vec()?, number.to_le_bytes());
        }
    }
    link.send(b"seen")?;
    said("topic");

    link.close()?;
    said("end");
    Ok(())
}
