//! The memory of a pool: its chunks, the processes that have them open, and the loans.

use std::cell::OnceCell;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::cuda::chunk::{Chunk, FailedBytes, PLACE};
use crate::cuda::closer;
use crate::cuda::device::Device;
use crate::cuda::event::{Event, OwnEvent};
use crate::cuda::ledger::{Ledger, Look, Number, Range};
use crate::cuda::library::{OUT_OF_MEMORY, is_ours};
use crate::cuda::memory::{Area, PAGE};
use crate::cuda::options::{Order, Terms};
use crate::cuda::retired::Retired;
use crate::cuda::stream::Stream;
use crate::cuda::words;
use crate::error::{CudaFault, ErrorKind, GpuUuid, Result, TensorFault};
use crate::tensor::{
    Fate, GpuBorrower, GpuLoans, GpuMemory, GpuOrder, GpuParcel, GpuPlace, GpuShare, GpuShared,
    Settled, Ticket,
};

/// The longest wait for memory that is being freed, when there is no other.
const PATIENCE: Duration = Duration::from_secs(1);

/// The chunks of a GPU's memory and their ledger.
#[derive(Debug)]
pub(super) struct Store {
    device: Device,
    terms: Terms,
    books: Mutex<Books>,
    /// Signalled when a chunk is made or the driver refuses it.
    made: Condvar,
}

#[derive(Debug)]
struct Books {
    ledger: Ledger<Ticket, OwnEvent>,
    /// By the ledger's number.
    chunks: Vec<Option<Chunk>>,
    /// Freed chunks that peers have open.
    lingering: Vec<Lingering>,
    failed: FailedBytes,
    /// Bytes of chunks that are being made.
    coming: u64,
    /// The last value of a word.
    value: u64,
}

/// The memory of a freed chunk. The driver keeps it for the peers that have it open, so it counts as the pool's.
#[derive(Debug)]
struct Lingering {
    len: u64,
    /// One for each such peer.
    exposed: Vec<Ticket>,
}

/// Freed on a thread that may wait.
fn free(chunks: Vec<Chunk>) {
    chunks.into_iter().for_each(closer::close);
}

impl Store {
    pub(super) fn new(device: &Device, terms: Terms) -> Self {
        let (ledger, chunks) = (Ledger::new(), Vec::new());
        let (lingering, failed) = (Vec::new(), FailedBytes::default());
        let books = Books { ledger, chunks, lingering, failed, coming: 0, value: 0 };
        let (books, made) = (Mutex::new(books), Condvar::new());
        Self { device: device.clone(), terms, books, made }
    }

    /// Returns a store of a range that another library allocated, and nothing else.
    pub(super) fn adopting(
        device: &Device,
        range: (u64, u64),
        owner: Box<dyn Send>,
    ) -> Result<Self> {
        let chunk = Chunk::adopted(device, range, owner)?;
        let terms = Terms::adopted(chunk.export());
        let store = Self::new(device, terms);
        store.books().add(chunk, terms.order());
        Ok(store)
    }

    pub(super) fn order(&self) -> Order {
        self.terms.order()
    }

    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        // Every step leaves the ledger consistent.
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the bytes of all chunks, with those of freed ones that a peer has open, and of failed ones that are not freed yet.
    pub(super) fn used(&self) -> Result<u64> {
        self.device.driver().check_fork()?;
        Ok(self.books().bytes())
    }

    /// Collects returned memory, then frees the chunks that nobody uses, and has open where that matters.
    pub(super) fn trim(&self) -> Result<()> {
        self.device.driver().check_fork()?;
        self.collect(&mut Settled::default());
        Ok(())
    }

    fn collect(&self, settled: &mut Settled) {
        let mut books = self.books();
        books.sweep_with(&self.device, settled);
        let freed = books.drop_chunks(self.order());
        drop(books);
        free(freed);
    }

    /// Collects returned memory and frees the chunks that nobody uses. Returns whether no range is in use and all chunks are
    /// freed. In the lending process.
    pub(super) fn is_over(&self, settled: &mut Settled) -> bool {
        self.collect(settled);
        let books = self.books();
        books.ledger.is_idle() && books.chunks.iter().all(Option::is_none)
    }

    /// Returns a range of `len` bytes. The caller uses its number once.
    fn take(&self, len: u64) -> Result<(Number, Range, u64)> {
        self.device.driver().check_fork()?;
        let (quota, order) = (self.terms.quota(), self.terms.order());
        let whole = if order == Order::Words { words::whole(len) } else { Some(len.max(1)) };
        let needed = whole.and_then(|whole| whole.checked_next_multiple_of(PAGE));
        let needed = needed.filter(|needed| *needed <= quota);
        let mut books = self.books();
        if books.ledger.is_due() {
            books.sweep(&self.device);
        }
        let mut has_waited = false;
        let size = loop {
            if let Some(taken) = books.take(len) {
                return Ok(taken);
            }
            books.sweep(&self.device);
            if let Some(taken) = books.take(len) {
                return Ok(taken);
            }
            let Some(needed) = needed else { return Err(self.exhausted(len, books.total())) };
            let mut size = needed.max(self.terms.chunk());
            if size > self.room(&books) {
                free(books.drop_chunks(order));
                // A chunk shorter than usual, if the quota has no room for a whole one.
                size = size.min(self.room(&books) / PAGE * PAGE);
            }
            if size >= needed {
                break size;
            }
            if books.failed.get() > 0 && !std::mem::replace(&mut has_waited, true) {
                // The thread that frees may only need a moment.
                drop(books);
                closer::wait_for_all(PATIENCE, || self.books().failed.get() == 0);
                books = self.books();
                continue;
            }
            if books.coming == 0 {
                return Err(self.exhausted(needed, books.total()));
            }
            // Another thread is making a chunk, which may have room.
            books = self.made.wait(books).unwrap_or_else(PoisonError::into_inner);
        };
        let needed = needed.unwrap_or(size);
        // Other threads see the quota as it will be and do not wait for the driver.
        let mut coming = Coming::new(self, size, &mut books);
        drop(books);
        let made = match self.make(size) {
            Err(error) if is_out_of_memory(&error) => {
                self.make_where_there_is_little(needed, &mut coming)
            }
            made => made,
        };
        let mut books = self.books();
        coming.lower_to(0, &mut books);
        books.add(made?, order);
        books.take(len).ok_or_else(|| self.exhausted(needed, books.total()))
    }

    /// Frees dropped pools that are back and idle chunks first, and then takes no more than the request needs.
    #[cold]
    fn make_where_there_is_little(&self, needed: u64, coming: &mut Coming<'_>) -> Result<Chunk> {
        Retired::of(&self.device).sweep();
        let freed = self.books().drop_chunks(self.order());
        free(freed);
        closer::wait_for_all(PATIENCE, || false);
        let mut books = self.books();
        coming.lower_to(needed, &mut books);
        // What the first try has made may not be freed yet.
        let total = books.total();
        if total > self.terms.quota() {
            return Err(self.exhausted(needed, total - needed));
        }
        drop(books);
        self.make(needed)
    }

    fn make(&self, size: u64) -> Result<Chunk> {
        let failed = self.books().failed.clone();
        Chunk::new(&self.device, size, &self.terms, &failed)
    }

    fn room(&self, books: &Books) -> u64 {
        self.terms.quota().saturating_sub(books.total())
    }

    fn exhausted(&self, needed: u64, used: u64) -> crate::Error {
        CudaFault::Exhausted { needed, used, quota: self.terms.quota() }.into()
    }

    /// A range in use by this process, until it is dropped.
    pub(super) fn hold(self: &Arc<Self>, len: usize) -> Result<Hold> {
        let (number, range, start) = self.take(len as u64)?;
        let (area, word) = (Area { start, len }, OnceLock::new());
        Ok(Hold { store: self.clone(), number, range, area, word })
    }
}

/// A chunk that is being made counts until its drop.
struct Coming<'a> {
    store: &'a Store,
    size: u64,
}

impl<'a> Coming<'a> {
    fn new(store: &'a Store, size: u64, books: &mut Books) -> Self {
        books.coming += size;
        Self { store, size }
    }

    /// Counts it as `size` bytes, which are no more than before.
    fn lower_to(&mut self, size: u64, books: &mut Books) {
        books.coming -= self.size - size;
        self.size = size;
        self.store.made.notify_all();
    }
}

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        if self.size > 0 {
            self.lower_to(0, &mut self.store.books());
        }
    }
}

impl Books {
    /// Collects returned memory. In the lending process.
    fn sweep(&mut self, device: &Device) {
        self.sweep_with(device, &mut Settled::default());
    }

    /// As [`sweep`](Self::sweep), after a look at the borrowers that `settled` lacks.
    fn sweep_with(&mut self, device: &Device, settled: &mut Settled) {
        let Self { ledger, chunks, lingering, .. } = self;
        let exposed = chunks.iter().flatten().flat_map(Chunk::exposed);
        let freed = lingering.iter().flat_map(|freed| &freed.exposed);
        Ticket::settle(settled, ledger.tickets().chain(exposed).chain(freed));
        chunks.iter_mut().flatten().for_each(Chunk::forget_returned);
        lingering.retain_mut(|freed| {
            freed.exposed.retain(|ticket| ticket.fate() == Fate::Out);
            !freed.exposed.is_empty()
        });
        // Before the first query of an event, if there is one.
        let entered = OnceCell::new();
        let fate = |ticket: &mut Ticket| ticket.fate();
        ledger.sweep(fate, |ticket, event| {
            entered.get_or_init(|| device.enter());
            match event.is_over() {
                true if event.is_of(device) => Look::Over,
                true => Look::Spent,
                false if ticket.is_some_and(Ticket::has_ended) => Look::Lost,
                false => Look::Running,
            }
        });
    }

    /// Returns the bytes of all chunks, with those of freed ones that a peer has open, and of failed ones that are not freed yet.
    fn bytes(&self) -> u64 {
        let chunks = self.chunks.iter().flatten().map(|chunk| chunk.memory().len());
        let lingering = self.lingering.iter().map(|freed| freed.len);
        chunks.chain(lingering).sum::<u64>() + self.failed.get()
    }

    /// Returns the bytes of all chunks, those included that are being made.
    fn total(&self) -> u64 {
        self.bytes() + self.coming
    }

    fn take(&mut self, len: u64) -> Option<(Number, Range, u64)> {
        let (number, range) = self.ledger.take(len)?;
        let chunk = self.chunks.get(range.chunk)?.as_ref()?;
        Some((number, range, chunk.memory().start() + chunk.start() + range.offset))
    }

    fn add(&mut self, chunk: Chunk, order: Order) {
        let at = self.ledger.add_chunk(chunk.room(order));
        if self.chunks.len() <= at {
            self.chunks.resize_with(at + 1, || None);
        }
        self.chunks[at] = Some(chunk);
    }

    /// Takes out the chunks that nobody uses and that [may go](Chunk::may_go), as of the last [sweep](Self::sweep).
    fn drop_chunks(&mut self, order: Order) -> Vec<Chunk> {
        let Self { ledger, chunks, lingering, .. } = self;
        let mut freed = Vec::new();
        ledger.drop_chunks(|at| {
            let gone = chunks[at].take_if(|chunk| chunk.may_go(order));
            let is_gone = gone.is_some();
            freed.extend(gone);
            is_gone
        });
        for chunk in freed.iter_mut().filter(|chunk| !chunk.exposed().is_empty()) {
            let (len, exposed) = (chunk.memory().len(), chunk.take_exposed());
            lingering.push(Lingering { len, exposed });
        }
        freed
    }

    /// Returns an event that nobody else uses.
    fn event(&mut self, device: &Device, order: Order) -> Result<OwnEvent> {
        if self.ledger.is_due_for_events() {
            self.sweep(device);
        }
        match (self.ledger.spare(), order) {
            (Some(event), _) => Ok(event),
            (None, Order::Events) => Event::exported(device).map(OwnEvent::Exported),
            (None, _) => Event::private(device).map(OwnEvent::Private),
        }
    }
}

fn is_out_of_memory(error: &crate::Error) -> bool {
    use ErrorKind::Cuda;
    matches!(error.kind(), Cuda(CudaFault::Driver { code: OUT_OF_MEMORY, .. }))
}

/// A range in use in this process.
pub(super) struct Hold {
    store: Arc<Store>,
    number: Number,
    range: Range,
    area: Area,
    /// The value of its word with which the range can be read.
    word: OnceLock<u64>,
}

impl Hold {
    pub(super) fn area(&self) -> Area {
        self.area
    }

    /// Makes the range readable when the work that `stream` has got so far is done.
    pub(super) fn set_ready(&self, stream: &Stream) -> Result<()> {
        let Store { device, terms, .. } = &*self.store;
        device.driver().check_fork()?;
        let mut books = self.store.books();
        let event = books.event(device, terms.order())?;
        let written = match terms.order() {
            Order::Words => self.write_word(&mut books, stream),
            Order::Events | Order::Synchronized => Ok(()),
        };
        // The event comes behind the word, so the range is not used again before the word is written.
        match written.and_then(|()| event.record(stream)) {
            Ok(()) => books.ledger.set_ready(self.number, event),
            Err(error) => {
                books.ledger.put_spare(event);
                return Err(error);
            }
        }
        drop(books);
        if terms.order() == Order::Synchronized { stream.synchronize() } else { Ok(()) }
    }

    /// Raises the range's word when the work that `stream` has got so far is done.
    fn write_word(&self, books: &mut Books, stream: &Stream) -> Result<()> {
        let chunk = books.chunks[self.range.chunk].as_ref().ok_or(CudaFault::OnHost)?;
        let word = words::word_of(chunk.memory().len(), self.range.offset);
        let value = books.value + 1;
        stream.write_word(chunk.memory().start() + word, value)?;
        books.value = value;
        let _ = self.word.set(value);
        Ok(())
    }

    /// Lets a GPU read the range.
    ///
    /// # Errors
    ///
    /// [`CudaFault::OneDevice`], [`CudaFault::NoPeerAccess`], [`CudaFault::Driver`].
    pub(super) fn reach_from(&self, device: &Device) -> Result<()> {
        if self.is_on(device) {
            return Ok(());
        }
        let store = &*self.store;
        if store.order() == Order::Events {
            // As for a peer's tensors.
            let (is, asked) = (store.device.uuid(), device.uuid());
            return Err(CudaFault::OneDevice { is, asked }.into());
        }
        device.driver().check_fork()?;
        let books = store.books();
        let chunk = books.chunks[self.range.chunk].as_ref().ok_or(CudaFault::OnHost)?;
        chunk.memory().reach_from(device)
    }

    /// Returns whether a GPU is that of the range.
    fn is_on(&self, device: &Device) -> bool {
        self.store.device.is(device)
    }

    /// Makes later work of `stream`, which may be of another GPU, wait until the range can be read.
    pub(super) fn hold_back(&self, stream: &Stream) -> Result<()> {
        self.store.device.driver().check_fork()?;
        let books = self.store.books();
        books.ledger.ready(self.number).map_or(Ok(()), |event| event.hold_back(stream))
    }

    /// Records a use by `stream`, which may be of another GPU, after which nothing in this process uses the range.
    pub(super) fn end_behind(&self, stream: &Stream) {
        if !is_ours() {
            return;
        }
        let _entered = stream.device().enter();
        if stream.is_capturing() {
            // A recorded event would become part of the graph and tell nothing of earlier work.
            tracing::warn!(
                "a use of a GPU's memory ends while its stream is captured: it is not used again"
            );
            return self.store.books().ledger.keep(self.number);
        }
        let recorded = match self.is_on(stream.device()) {
            true => self.put_behind(stream),
            false => self.put_behind_other(stream),
        };
        let Err(error) = recorded else { return };
        stream.device().tell(&error, "a use of a GPU's memory is waited for");
        if !stream.wait_to_end() {
            // The stream's work may run forever. Then nobody gets the memory.
            self.store.books().ledger.keep(self.number);
        }
    }

    /// Ends a use here when the work is over that `stream`, of the GPU of the range, has got so far.
    fn put_behind(&self, stream: &Stream) -> Result<()> {
        let Store { device, terms, .. } = &*self.store;
        let mut books = self.store.books();
        let event = books.event(device, terms.order())?;
        let recorded = event.record(stream);
        books.ledger.put_behind(self.number, event);
        recorded
    }

    /// Ends a use here when the work is over that `stream`, of another GPU, has got so far. The pool has no events of that GPU.
    fn put_behind_other(&self, stream: &Stream) -> Result<()> {
        if stream.is_idle().unwrap_or(false) {
            return Ok(());
        }
        let event = Event::private(stream.device())?;
        event.record(stream)?;
        let mut books = self.store.books();
        // A program that only reads takes and lends nothing.
        if books.ledger.is_due() {
            books.sweep(&self.store.device);
        }
        books.ledger.put_behind(self.number, OwnEvent::Private(event));
        Ok(())
    }

    /// Lends `part` of the range: an offset and a length in bytes. Parts of one range that go into one record are lent once.
    fn lend(&self, part: (u64, usize), to: &mut GpuBorrower<'_>) -> Result<GpuParcel> {
        let Self { store, number, range, word, .. } = self;
        store.device.driver().check_fork()?;
        let mut guard = store.books();
        let books = &mut *guard;
        if books.ledger.is_due() {
            books.sweep(&store.device);
        }
        let chunk = books.chunks[range.chunk].as_mut().ok_or(CudaFault::OnHost)?;
        let (offset, len) = (chunk.start() + range.offset + part.0, part.1 as u64);
        let here = GpuShare::Memory([Arc::as_ptr(store).addr() as u64, number.value()]);
        if let Some(shared) = to.shared(here) {
            let place = GpuPlace { offset, len, ..shared.place };
            return Ok(GpuParcel { place, loans: GpuLoans::Of(shared.index) });
        }
        let order = match store.terms.order() {
            Order::Events => return self.lend_by_events((offset, len), books, here, to),
            Order::Words => GpuOrder::Word {
                offset: words::word_of(chunk.memory().len(), range.offset),
                value: word.get().copied().unwrap_or_default(),
            },
            Order::Synchronized => GpuOrder::Synchronized,
        };
        let place = chunk.place(&store.device, (offset, len), order);
        // The ticket comes back after the last use is over, so it stands for any number of ranges. The chunk that was lent
        // first holds the allocation while the borrower has it open, also of another library's, where each tensor has a chunk.
        let allocation = GpuShare::Allocation(place.memory);
        let is_alike = |shared: &&GpuShared| shared.place.order.is_like(&order);
        if let Some(shared) = to.shared(allocation).filter(is_alike).cloned() {
            books.ledger.lend(*number, shared.bytes.clone(), None);
            let index = shared.index;
            to.share(here, GpuShared { place, ..shared });
            return Ok(GpuParcel { place, loans: GpuLoans::Of(index) });
        }
        let (shared, loans) = chunk.tickets(place, to)?;
        books.ledger.lend(*number, shared.bytes.clone(), None);
        to.share(allocation, shared.clone());
        to.share(here, shared);
        Ok(GpuParcel { place, loans })
    }

    /// Lends the range with an event for its borrower to record, which stands for this range alone.
    fn lend_by_events(
        &self,
        (offset, len): (u64, u64),
        books: &mut Books,
        here: GpuShare,
        to: &mut GpuBorrower<'_>,
    ) -> Result<GpuParcel> {
        let Self { store, number, range, .. } = self;
        let event = books.event(&store.device, Order::Events)?;
        let Books { ledger, chunks, .. } = books;
        let ready = ledger.ready(*number).map_or([0; 64], |event| event.handle());
        let order = GpuOrder::Events { ready, done: event.handle() };
        let made = (|| {
            let chunk = chunks[range.chunk].as_mut().ok_or(CudaFault::OnHost)?;
            let place = chunk.place(&store.device, (offset, len), order);
            chunk.tickets(place, to)
        })();
        match made {
            Ok((shared, loans)) => {
                let place = shared.place;
                ledger.lend(*number, shared.bytes.clone(), Some(event));
                to.share(here, shared);
                Ok(GpuParcel { place, loans })
            }
            Err(error) => {
                ledger.put_spare(event);
                Err(error)
            }
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if !is_ours() {
            return;
        }
        self.store.books().ledger.end_use(self.number);
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold").field("range", &self.range).finish_non_exhaustive()
    }
}

/// A written range, or a part of one, as a tensor holds it.
#[derive(Debug)]
pub(super) struct OwnedTensor {
    hold: Arc<Hold>,
    /// In the range, in bytes.
    offset: u64,
    len: usize,
}

impl OwnedTensor {
    pub(super) fn new(hold: Hold) -> Self {
        let len = hold.area.len;
        Self { hold: Arc::new(hold), offset: 0, len }
    }

    /// Returns `len` bytes of it from `offset` on.
    ///
    /// # Errors
    ///
    /// [`TensorFault::GpuRange`], [`TensorFault::Alignment`].
    pub(super) fn part(&self, offset: u64, len: usize) -> Result<Self> {
        let whole = self.len as u64;
        if offset > whole || len as u64 > whole - offset {
            let (len, allocation) = (len as u64, whole);
            return Err(TensorFault::GpuRange { offset, len, allocation }.into());
        }
        if !offset.is_multiple_of(PLACE) {
            return Err(TensorFault::Alignment { alignment: PLACE as usize }.into());
        }
        Ok(Self { hold: self.hold.clone(), offset: self.offset + offset, len })
    }

    pub(super) fn hold(&self) -> &Hold {
        &self.hold
    }

    pub(super) fn area(&self) -> Area {
        Area { start: self.hold.area.start + self.offset, len: self.len }
    }
}

impl GpuMemory for OwnedTensor {
    fn byte_len(&self) -> usize {
        self.len
    }

    fn device(&self) -> GpuUuid {
        self.hold.store.device.uuid()
    }

    fn lend(self: Arc<Self>, to: &mut GpuBorrower<'_>) -> Result<GpuParcel> {
        self.hold.lend((self.offset, self.len), to)
    }
}
