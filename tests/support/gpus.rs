//! Two processes that hand each other tensors of a GPU, and what tests of GPUs ask of errors and of traces.
//!
//! ```ignore
//! let cuda = FakeCuda::new();
//! exchange(TEST, &cuda, |link| { /* the owner */ }, |link| { /* the borrower */ });
//! ```

use slipring::cuda::{Device, Export, Order, Pool, PoolOptions};
use slipring::error::CudaFault;
use slipring::{Connection, Context, ErrorKind, Result, Tensor};

use super::fake_cuda::{Call, FakeCuda, Kind};
use super::other::{Namespace, Other, run_here, say};
use super::{pair_of, soon, unique_name, wait_until};

/// Two processes: what they do, by the test's name.
#[derive(Debug)]
pub struct Two {
    pub owner: Other,
    pub borrower: Other,
}

impl Two {
    /// Runs both sides, each with a driver.
    pub fn start(
        test: &str,
        cuda: &FakeCuda,
        owner: fn(Connection),
        borrower: fn(Connection),
    ) -> Self {
        Self::start_with(test, [cuda, cuda], owner, borrower)
    }

    /// As [`start`](Self::start), with two drivers of one session: the owner's, and the borrower's.
    pub fn start_with(
        test: &str,
        [near, far]: [&FakeCuda; 2],
        owner: fn(Connection),
        borrower: fn(Connection),
    ) -> Self {
        play(test, owner, borrower);
        let name = unique_name();
        let borrower = far.start(test, &format!("borrower {name}"));
        borrower.expect("listening");
        let owner = near.start(test, &format!("owner {name}"));
        Self { owner, borrower }
    }

    /// As [`start`](Self::start), with the borrower in a namespace of its own. `None`, said aloud: that is not
    /// permitted here.
    pub fn start_apart(
        test: &str,
        cuda: &FakeCuda,
        namespace: Namespace,
        owner: fn(Connection),
        borrower: fn(Connection),
    ) -> Option<Self> {
        play(test, owner, borrower);
        let name = unique_name();
        let argument = format!("borrower {name}");
        let borrower = Other::spawn_apart(test, &argument, &cuda.command_env(), namespace)?;
        borrower.expect("listening");
        let owner = cuda.start(test, &format!("owner {name}"));
        Some(Self { owner, borrower })
    }

    /// As [`start_apart`](Self::start_apart), with the owner in a namespace of its own, too.
    pub fn start_both_apart(
        test: &str,
        cuda: &FakeCuda,
        namespace: Namespace,
        owner: fn(Connection),
        borrower: fn(Connection),
    ) -> Option<Self> {
        play(test, owner, borrower);
        let (name, environment) = (unique_name(), cuda.command_env());
        let apart = |role: &str| {
            Other::spawn_apart(test, &format!("{role} {name}"), &environment, namespace)
        };
        let borrower = apart("borrower")?;
        borrower.expect("listening");
        Some(Self { owner: apart("owner")?, borrower })
    }

    pub fn succeed(mut self) {
        self.owner.succeeds();
        self.borrower.succeeds();
    }
}

/// In one of the two processes: plays its part, and ends.
fn play(test: &str, owner: fn(Connection), borrower: fn(Connection)) {
    run_here(test, |argument| {
        let (role, name) = argument.split_once(' ').unwrap();
        // The link alone keeps its context.
        let context = Context::new().unwrap();
        if role == "borrower" {
            let mut listener = context.listen(name).unwrap();
            say("listening");
            let link = listener.accept_deadline(soon()).unwrap();
            drop((listener, context));
            borrower(link);
        } else {
            let link = context.connect(name).unwrap();
            drop(context);
            owner(link);
        }
        // Whatever happened, nothing stays behind.
        is_closed(&device());
    });
}

/// One exchange between two processes with a driver each, which nobody misuses.
pub fn exchange(test: &str, cuda: &FakeCuda, owner: fn(Connection), borrower: fn(Connection)) {
    Two::start(test, cuda, owner, borrower).succeed();
    cuda.was_used_well();
    assert!(cuda.objects().is_empty(), "left behind: {:?}", cuda.objects());
}

/// Runs `body` in a process with a driver, where such a driver can be had.
pub fn alone(test: &str, cuda: &FakeCuda, body: fn()) {
    run_here(test, |_| body());
    if cuda.is_there(test) {
        cuda.start(test, "").succeeds();
    }
}

/// Waits until nothing of this GPU is lent by pools that are gone, and all that nobody uses is freed and closed.
pub fn is_closed(device: &Device) {
    wait_until("all is freed and closed", || device.trim().unwrap() == 0);
}

pub fn device() -> Device {
    Device::new(0).unwrap()
}

/// The options of a pool of the kind that this process was told.
pub fn pool_options() -> PoolOptions {
    let descriptors = || PoolOptions::new().export(Export::FileDescriptor);
    match Kind::told() {
        Kind::Handles => PoolOptions::new(),
        Kind::Words => descriptors().order(Order::Words),
        Kind::Synchronized => descriptors().order(Order::Synchronized),
        Kind::Events => descriptors().order(Order::Events),
    }
}

/// The length of a tensor that takes all of a chunk of 2 MiB.
pub fn whole_chunk() -> usize {
    // Each 512 bytes have a word of 8.
    if Kind::told() == Kind::Words { (2 << 20) / 520 * 512 } else { 2 << 20 }
}

/// A pool of one chunk of 2 MiB.
pub fn small_pool(device: &Device) -> Pool {
    device.pool_with(pool_options().chunk(2 << 20).quota(2 << 20)).unwrap()
}

/// Sends a tensor the whole way in one process, as far as it comes: written, lent, opened, copied, back on the host.
pub fn whole_way(device: &Device, pool: &Pool) -> Result<()> {
    let context = Context::new()?;
    let (mut near, mut far) = pair_of(&context, &Context::new()?);
    let stream = device.stream()?;
    let mut draft = pool.alloc::<u32>([16], &stream)?;
    draft.write(&[7; 16])?;
    draft.fill(1)?;
    near.send_tensor(draft.share()?)?;
    let tensor = far.receiver().recv_tensor_deadline(soon())?.expect("a tensor");
    let view = device.open(&tensor, &stream)?;
    let mut copy = pool.alloc::<u32>([16], &stream)?;
    copy.copy_from(&view)?;
    drop((view, tensor));
    let copy = device.to_host(&copy.share()?, &stream)?;
    assert_eq!(copy.as_slice::<u32>()?, [0x0101_0101; 16]);
    Ok(())
}

pub fn numbers(first: u32, count: u32) -> Vec<u32> {
    (first..first + count).collect()
}

pub fn recv(link: &mut Connection) -> Tensor {
    link.receiver().recv_tensor_deadline(soon()).unwrap().expect("a tensor")
}

/// Waits for a word of the peer.
pub fn hear(link: &mut Connection) {
    link.receiver().recv_deadline(soon()).unwrap().expect("a word");
}

/// Waits until the peer closes.
pub fn hear_out(link: &mut Connection) {
    assert!(link.receiver().recv_deadline(soon()).unwrap().is_none());
}

pub fn calls(trace: &[Call], name: &str) -> usize {
    trace.iter().filter(|call| call.name == name).count()
}

pub fn cuda_fault<T: std::fmt::Debug>(answer: Result<T>) -> CudaFault {
    match answer.unwrap_err().kind() {
        ErrorKind::Cuda(fault) => fault.clone(),
        other => panic!("{other}"),
    }
}

pub fn driver_fault<T: std::fmt::Debug>(answer: Result<T>) -> (&'static str, u32) {
    match cuda_fault(answer) {
        CudaFault::Driver { call, code, .. } => (call, code),
        other => panic!("{other}"),
    }
}
