//! An execution by id of a handler that does nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::Thread;
use std::time::Duration;

use slipring::commit::{
    Buffer, BufferInfo, Buffers, Caller, Client, Description, Direction, ModelSource, Refused,
    Server, Service, Session,
};
use slipring::{Context, DType};

use crate::Outcome;
use crate::exchange::{Exchange, Role, Setup};

/// Counts executions, and wakes the thread that waits for `target` of them.
pub struct Counter {
    count: AtomicU64,
    target: AtomicU64,
    waits: Thread,
}

struct Empty(Arc<Counter>);

impl Service for Empty {
    type Model = ();
    type Commit = ();

    fn load(&self, _: &Caller, _: ModelSource<'_>) -> Result<((), Description), Refused> {
        let buffer = |label, direction| BufferInfo::new(label, direction, DType::Uint8, [64]);
        let description = Description::new()
            .with_own_region(buffer("x", Direction::In))
            .with_own_region(buffer("y", Direction::Out));
        Ok(((), description))
    }

    fn commit(&self, _: &(), _: &Buffers) -> Result<(), Refused> {
        Ok(())
    }

    fn runs_inline(&self, _: &()) -> bool {
        true
    }

    fn execute(&self, _: &(), _: &mut (), _: &Buffers) -> Result<(), Refused> {
        let Counter { count, target, waits } = &*self.0;
        // The service executes one request at a time, so a load and a store suffice.
        let now = count.load(Ordering::Relaxed) + 1;
        count.store(now, Ordering::Relaxed);
        if now == target.load(Ordering::Relaxed) {
            waits.unpark();
        }
        Ok(())
    }
}

pub enum Executed {
    Client { session: Session, _buffers: Vec<Buffer> },
    Service { counter: Arc<Counter>, _server: Server },
}

impl Executed {
    pub fn open(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        let context = Context::new()?;
        if setup.role == Role::Follower {
            let (count, target) = (AtomicU64::new(0), AtomicU64::new(0));
            let counter = Arc::new(Counter { count, target, waits: std::thread::current() });
            let listener = context.listen(setup.name)?;
            let server = Server::new(&context, listener, Empty(counter.clone()))?;
            setup.meet()?;
            return Ok(Box::new(Self::Service { counter, _server: server }));
        }
        setup.meet()?;
        let client = Client::connect(&context, setup.name)?;
        let session = client.load(b"")?.session(0)?;
        let buffers = session.allocate_all()?;
        session.commit()?;
        Ok(Box::new(Self::Client { session, _buffers: buffers }))
    }
}

impl Exchange for Executed {
    fn lead(&mut self, count: u64) -> Outcome<()> {
        let Self::Client { session, .. } = self else {
            return Err("the service does not lead".into());
        };
        for _ in 0..count {
            session.execute()?;
        }
        Ok(())
    }

    fn follow(&mut self, count: u64) -> Outcome<()> {
        let Self::Service { counter, .. } = self else {
            return Err("the client does not follow".into());
        };
        let target = counter.target.load(Ordering::Relaxed) + count;
        counter.target.store(target, Ordering::Relaxed);
        while counter.count.load(Ordering::Relaxed) < target {
            std::thread::park();
        }
        // The handler wakes this thread before the service sends the last answer, on the CPU of the thread that sends it.
        // The harness polls after this call and must not delay that answer.
        std::thread::sleep(Duration::from_micros(100));
        Ok(())
    }
}
