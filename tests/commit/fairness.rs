//! Executions of one client beside those of another one, and a handler that runs a loop of its own. Both hold for inline
//! models and for queued ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use slipring::commit::{
    Buffer, BufferInfo, Buffers, Caller, Client, Description, Direction, ModelSource, Refused,
    Server, Service, Session,
};
use slipring::{Context, DType, EventLoop};

use crate::support::unique_name;

/// Sessions that one client executes at a time.
const SESSIONS: u32 = 256;

/// Executions that warm up a session.
const WARM_UP: u32 = 20;

/// Counts executions. The model's name says what else a handler does.
#[derive(Clone, Default)]
struct Counting {
    inline: bool,
    started: Arc<AtomicU64>,
    /// The number of executions that had started when the last one of model `mark` did.
    marked: Arc<AtomicU64>,
    /// Loops in a handler that returned too early.
    early: Arc<AtomicU64>,
}

impl Service for Counting {
    type Model = Vec<u8>;
    type Commit = ();

    fn load(&self, _: &Caller, model: ModelSource<'_>) -> Result<(Vec<u8>, Description), Refused> {
        let buffer = |label, direction| BufferInfo::new(label, direction, DType::Uint8, [8]);
        let description = Description::new()
            .with_own_region(buffer("x", Direction::In))
            .with_own_region(buffer("y", Direction::Out));
        Ok((model.to_vec()?, description))
    }

    fn runs_inline(&self, _: &Vec<u8>) -> bool {
        self.inline
    }

    fn commit(&self, _: &Vec<u8>, _: &Buffers) -> Result<(), Refused> {
        Ok(())
    }

    fn execute(&self, model: &Vec<u8>, _: &mut (), _: &Buffers) -> Result<(), Refused> {
        let started = self.started.fetch_add(1, Ordering::SeqCst);
        match &model[..] {
            b"mark" => self.marked.store(started, Ordering::SeqCst),
            b"loop" => {
                let context = Context::new().map_err(|error| error.to_string())?;
                let mut events = EventLoop::new(&context).map_err(|error| error.to_string())?;
                let _reactor = events.reactor();
                let mut asked = 0;
                let turned = events.run_until(|| {
                    asked += 1;
                    asked > 5
                });
                turned.map_err(|error| error.to_string())?;
                self.early.fetch_add(u64::from(asked <= 5), Ordering::SeqCst);
            }
            _ => {
                let start = Instant::now();
                while start.elapsed() < Duration::from_micros(5) {}
            }
        }
        Ok(())
    }
}

/// A server, and a way to make clients of it.
fn serve(service: &Counting) -> (Server, impl Fn() -> Client) {
    let (context, name) = (Context::new().unwrap(), unique_name());
    let listener = context.listen(&*name).unwrap();
    let server = Server::new(&context, listener, service.clone()).unwrap();
    (server, move || Client::connect(&context, &*name).unwrap().max_sessions(SESSIONS))
}

fn sessions(client: &Client, model: &[u8], count: u32) -> Vec<(Session, Vec<Buffer>)> {
    let model = client.load(model).unwrap();
    let commit = |session: Session| {
        let buffers = session.allocate_all().unwrap();
        session.commit().unwrap();
        (session, buffers)
    };
    model.sessions(count).unwrap().into_iter().map(commit).collect()
}

fn one_execution_beside_many(inline: bool) {
    let service = Counting { inline, ..Counting::default() };
    let (_server, connect) = serve(&service);
    let (busy, other) = (connect(), connect());
    let (many, one) = (sessions(&busy, b"busy", SESSIONS), sessions(&other, b"mark", 1));
    for _ in 0..WARM_UP {
        one[0].0.execute().unwrap();
        many.iter().for_each(|(session, _)| session.execute().unwrap());
    }
    let round = || {
        // Both links are hot.
        (0..3).for_each(|_| one[0].0.execute().unwrap());
        let started: Vec<_> = many.iter().map(|(session, _)| session.start().unwrap()).collect();
        let asked = one[0].0.start().unwrap();
        let before = service.started.load(Ordering::SeqCst);
        asked.wait().unwrap();
        let went_first = service.marked.load(Ordering::SeqCst).saturating_sub(before);
        started.into_iter().for_each(|execution| execution.wait().unwrap());
        went_first
    };
    let mut rounds: Vec<u64> = (0..31).map(|_| round()).collect();
    rounds.sort_unstable();
    // Some rounds are lost to a link that has gone cold, or to others who use the CPU.
    assert!(rounds[15] < u64::from(SESSIONS) / 8, "executions that went first: {rounds:?}");
}

#[test]
fn many_inline_executions_of_one_client_do_not_all_go_before_another_ones() {
    one_execution_beside_many(true);
}

#[test]
fn many_queued_executions_of_one_client_do_not_all_go_before_another_ones() {
    one_execution_beside_many(false);
}

fn loops_in_handlers(inline: bool) {
    let service = Counting { inline, ..Counting::default() };
    let (_server, connect) = serve(&service);
    let (short, nesting) = (connect(), connect());
    let (short, nesting) = (sessions(&short, b"busy", 1), sessions(&nesting, b"loop", 1));
    for _ in 0..30 {
        (0..WARM_UP).for_each(|_| short[0].0.execute().unwrap());
        // The server sleeps; both wake it up at once.
        std::thread::sleep(Duration::from_millis(10));
        let both = [short[0].0.start().unwrap(), nesting[0].0.start().unwrap()];
        both.into_iter().for_each(|execution| execution.wait().unwrap());
    }
    assert_eq!(service.early.load(Ordering::SeqCst), 0);
}

#[test]
fn an_inline_handler_may_run_a_loop_of_its_own() {
    loops_in_handlers(true);
}

#[test]
fn a_queued_handler_may_run_a_loop_of_its_own() {
    loops_in_handlers(false);
}
