//! Unit tests of `tensor::gpu`.

use super::*;
use crate::error::{ErrorKind, Fault};
use crate::{Address, Connection, Context, DType, Options, Shape, Tensor};
use proptest::prelude::*;
use std::time::{Duration, Instant};

fn place() -> GpuPlace {
    let (memory, order) =
        (GpuHandle::Ipc([2; 64]), GpuOrder::Events { ready: [3; 64], done: [4; 64] });
    let (allocation, offset, len) = (4096, 512, 16);
    GpuPlace { device: GpuUuid([1; 16]), memory, allocation, offset, len, order }
}

/// Memory of no GPU. It keeps a copy of each ticket.
#[derive(Debug, Default)]
struct Nowhere {
    tickets: Mutex<Vec<Ticket>>,
}

impl GpuMemory for Nowhere {
    fn byte_len(&self) -> usize {
        place().len as usize
    }

    fn device(&self) -> GpuUuid {
        place().device
    }

    fn lend(self: Arc<Self>, to: &mut GpuBorrower<'_>) -> Result<GpuParcel> {
        let mapping = to.ticket()?;
        let bytes = to.ticket()?;
        assert!(bytes.is_for(to));
        let (sent, sent_mapping) = (bytes.to_send(), mapping.to_send());
        self.tickets.lock().unwrap().extend([bytes, mapping]);
        let loans = GpuLoans::Own { bytes: sent, mapping: sent_mapping, allocation: None };
        Ok(GpuParcel { place: place(), loans })
    }
}

impl Nowhere {
    fn fates(&self) -> Vec<Fate> {
        let tickets = self.tickets.lock().unwrap();
        Ticket::settle(&mut Settled::default(), tickets.iter());
        tickets.iter().map(Ticket::fate).collect()
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

fn pair() -> (Connection, Connection) {
    pair_of(Context::new().unwrap())
}

fn pair_of(context: Context) -> (Connection, Connection) {
    let address = Address::fresh();
    let mut listener = Context::new().unwrap().listen(&address).unwrap();
    let near = std::thread::spawn(move || context.connect(&address).unwrap());
    let far = listener.accept_deadline(soon()).unwrap();
    (near.join().unwrap(), far)
}

fn tensor(memory: &Arc<Nowhere>) -> Tensor {
    Tensor::on_gpu(DType::Fp32, Shape::from([4]), OnGpu::Own(memory.clone()))
}

fn loan(tensor: &Tensor) -> Arc<GpuLoan> {
    match tensor.on() {
        Some(OnGpu::Lent(loan)) => loan.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_place_travels_and_its_tickets_come_back_one_by_one() {
    let (mut near, mut far) = pair();
    let memory = Arc::new(Nowhere::default());
    near.send_tensor(tensor(&memory)).unwrap();
    let came = far.receiver().recv_tensor_deadline(soon()).unwrap().unwrap();
    assert_eq!((came.gpu(), came.byte_len()), (Some(place().device), 16));
    let lent = loan(&came);
    assert_eq!(lent.place, place());
    assert!(!lent.lender_ended());
    assert_eq!(memory.fates(), [Fate::Out, Fate::Out]);
    // The mapping stays open longer than the tensor.
    let mapping = lent.take_mapping();
    assert!(mapping.is_some() && lent.take_mapping().is_none());
    drop((came, lent));
    assert_eq!(memory.fates(), [Fate::Back, Fate::Out]);
    drop(mapping);
    assert_eq!(memory.fates(), [Fate::Back, Fate::Back]);
}

#[test]
fn in_sets_each_tensor_has_tickets_of_its_own() {
    let (mut near, mut far) = pair();
    let memory = Arc::new(Nowhere::default());
    let mut set = crate::TensorSet::default();
    set.insert("a", tensor(&memory)).unwrap();
    set.insert("b", tensor(&memory)).unwrap();
    near.sender().send_tensors(&set).unwrap();
    let came = far.receiver().recv_tensors_deadline(soon()).unwrap().unwrap();
    assert_eq!((came.len(), memory.fates()), (2, vec![Fate::Out; 4]));
    drop(came);
    assert_eq!(memory.fates(), [Fate::Back; 4]);
}

#[test]
fn what_was_not_sent_is_as_good_as_back() {
    let (mut near, far) = pair();
    drop(far);
    let memory = Arc::new(Nowhere::default());
    let deadline = soon();
    while near.send_tensor(tensor(&memory)).is_ok() {
        assert!(Instant::now() < deadline, "the peer has gone");
    }
    memory.tickets.lock().unwrap().drain(..).for_each(|ticket| {
        // The tickets that went out are lost with a link whose process lives.
        assert_ne!(ticket.fate(), Fate::Dead);
    });
    near.send_tensor(tensor(&memory)).unwrap_err();
    assert_eq!(memory.fates(), [Fate::Back; 2]);
}

#[test]
fn a_link_that_breaks_gives_nothing_back_while_the_borrower_lives() {
    let (mut near, mut far) = pair();
    let memory = Arc::new(Nowhere::default());
    near.send_tensor(tensor(&memory)).unwrap();
    let came = far.receiver().recv_tensor_deadline(soon()).unwrap().unwrap();
    let lent = loan(&came);
    // The link of a peer that lies ends, and it keeps its loans.
    far.sender().fail_for_tests(Fault::Field { field: "test", value: 1 });
    drop(near);
    let deadline = Instant::now() + Duration::from_millis(300);
    while Instant::now() < deadline {
        assert_eq!(memory.fates(), [Fate::Out; 2]);
        std::thread::sleep(Duration::from_millis(10));
    }
    let tickets = memory.tickets.lock().unwrap();
    drop(tickets);
    let tickets = std::mem::take(&mut *memory.tickets.lock().unwrap());
    let deadline = soon();
    while tickets[0].block().users() != Users::Lost {
        assert!(Instant::now() < deadline, "the account is closed after the grace");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(tickets[0].fate(), Fate::Out, "its process may still use the memory");
    assert_eq!(tickets[0].clone().block().users(), Users::Lost, "a clone is no other user");
    let sent = tickets[0].to_send();
    assert_eq!(tickets[0].clone().block().users(), Users::Others, "what is on its way is one");
    drop(sent);
    drop((came, lent));
}

#[test]
fn after_the_drop_of_the_owners_context_a_borrower_that_leaves_gives_back_what_it_never_took() {
    // Nothing depends on how soon the grace is over.
    let options = Options::new().release_grace(Duration::MAX);
    let (mut near, mut far) = pair_of(Context::with_options(options).unwrap());
    let memory = Arc::new(Nowhere::default());
    near.send_tensor(tensor(&memory)).unwrap();
    near.send_tensor(tensor(&memory)).unwrap();
    let came = far.receiver().recv_tensor_deadline(soon()).unwrap().unwrap();
    // The connection alone has held its context.
    drop(near);
    assert_eq!(memory.fates(), [Fate::Out; 4]);
    drop(came);
    assert_eq!(memory.fates(), [Fate::Back, Fate::Back, Fate::Out, Fate::Out]);
    drop(far);
    let deadline = soon();
    while memory.fates() != [Fate::Back; 4] {
        assert!(Instant::now() < deadline, "{:?}", memory.fates());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_tensor_of_a_gpu_is_not_read_or_sent_on() {
    let (mut near, mut far) = pair();
    let memory = Arc::new(Nowhere::default());
    near.send_tensor(tensor(&memory)).unwrap();
    let came = far.receiver().recv_tensor_deadline(soon()).unwrap().unwrap();
    assert!(came.is_loaned() && came.try_clone().is_none());
    let on_gpu = ErrorKind::Tensor(TensorFault::OnGpu);
    assert_eq!(*came.as_bytes().unwrap_err().kind(), on_gpu);
    assert_eq!(*came.bytes().unwrap_err().kind(), on_gpu);
    assert_eq!(*came.to_vec::<f32>().unwrap_err().kind(), on_gpu);
    assert_eq!(*came.copy_to(&mut [0f32; 4]).unwrap_err().kind(), on_gpu);
    assert_eq!(*came.for_each_chunk::<f32>(|_| ()).unwrap_err().kind(), on_gpu);
    assert_eq!(*came.to_private().unwrap_err().kind(), on_gpu);
    assert_eq!(
        *far.send_tensor(&came).unwrap_err().kind(),
        ErrorKind::Tensor(TensorFault::GpuLoan)
    );
    assert_eq!(*came.into_dlpack().unwrap_err().kind(), on_gpu);
}

proptest! {
    #[test]
    fn a_place_survives_its_bytes_or_leads_beyond_the_end(
        bytes in proptest::collection::vec(any::<u8>(), GpuPlace::LEN),
        small in any::<bool>(),
        (memory, order) in (0..4u32, 0..5u32),
    ) {
        let mut bytes: [u8; GpuPlace::LEN] = bytes.try_into().unwrap();
        if small {
            for at in [88, 96, 104, 112] {
                bytes[at + 2..at + 8].fill(0);
            }
            (bytes[96], bytes[112]) = (0, bytes[112] & !7);
        }
        bytes[16..20].copy_from_slice(&memory.to_le_bytes());
        bytes[20..24].copy_from_slice(&order.to_le_bytes());
        // What is not read is 0.
        if memory == 2 {
            bytes[32..88].fill(0);
        }
        match order {
            2 => bytes[128..].fill(0),
            3 => bytes[112..].fill(0),
            _ => {}
        }
        match GpuPlace::decode(&bytes) {
            Ok(place) => {
                prop_assert_eq!(place.encode(), bytes);
                let end = u128::from(place.offset) + u128::from(place.len);
                prop_assert!(end <= place.allocation.into());
            }
            Err(error) => {
                let ErrorKind::Tensor(fault) = error.kind() else { panic!("{error}") };
                let is_known = (1..=2).contains(&memory) && (1..=3).contains(&order);
                let is_place = match fault {
                    TensorFault::Field { .. } => !is_known,
                    TensorFault::GpuRange { .. } | TensorFault::Alignment { .. } => true,
                    _ => false,
                };
                prop_assert!(is_place);
            }
        }
    }
}
