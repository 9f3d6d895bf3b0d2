//! The end of a server: what runs and waits is answered before the links end, for as long as the shutdown may take.

use std::thread;
use std::time::Duration;

use slipring::commit::{
    Buffers, Caller, Client, CommitFault, Description, Execute, ModelSource, Refused, Server,
    ServerOptions, Service,
};
use slipring::{Context, ErrorKind, Options};

use crate::support::service::{Calculator, Stage};
use crate::support::{unique_name, wait_until};
use crate::workers::four;

#[test]
fn a_dropped_server_finishes_what_is_queued() {
    let stage = Stage::with(ServerOptions::new().workers(1));
    let client = stage.client();
    let sessions = four(&client);
    let inline = client.load(b"inline").unwrap().session(0).unwrap();
    let _buffers = inline.allocate_all().unwrap();
    inline.commit().unwrap();
    sessions[0].1[0].write_at(0, &[255; 8]).unwrap();
    let executions: Vec<_> = sessions.iter().map(|(session, _)| session.start().unwrap()).collect();
    // The server has received what stands before it.
    inline.execute().unwrap();
    let counts = stage.counts.clone();
    let dropping = thread::spawn(move || drop(stage));
    counts.let_go();
    dropping.join().unwrap();
    // The server has told the service of each end.
    assert_eq!(["release", "unload", "gone"].map(|end| counts.of(end)), [5, 2, 1]);
    // Every client has its results before the end of its link.
    executions.into_iter().for_each(|execution| execution.wait().unwrap());
    assert!(sessions.iter().all(|(session, _)| session.execute().unwrap_err().is_disconnected()));
}

#[test]
fn a_dropped_server_waits_no_longer_than_it_may() {
    let patience = Duration::from_millis(50);
    let stage = Stage::with(ServerOptions::new().workers(1).shutdown_timeout(patience));
    let sessions = four(&stage.client());
    sessions[0].1[0].write_at(0, &[255; 8]).unwrap();
    let executions: Vec<_> = sessions.iter().map(|(session, _)| session.start().unwrap()).collect();
    wait_until("the first one", || stage.counts.of("execute") == 1);
    let counts = stage.counts.clone();
    let dropping = thread::spawn(move || drop(stage));
    // The clients hear of the end while the handler is stuck.
    for execution in executions {
        assert!(execution.wait().unwrap_err().is_disconnected());
    }
    assert!(!dropping.is_finished());
    counts.let_go();
    dropping.join().unwrap();
    assert_eq!(["release", "unload", "gone"].map(|end| counts.of(end)), [4, 1, 1]);
    // Those that waited never began.
    assert_eq!(counts.of("execute"), 1);
}

/// A service that runs all executions of a request in one call.
struct Together(Calculator);

impl Service for Together {
    type Model = String;
    type Commit = u64;

    fn load(
        &self,
        caller: &Caller,
        source: ModelSource<'_>,
    ) -> Result<(String, Description), Refused> {
        self.0.load(caller, source)
    }

    fn commit(&self, model: &String, buffers: &Buffers) -> Result<u64, Refused> {
        self.0.commit(model, buffers)
    }

    fn execute(&self, model: &String, runs: &mut u64, buffers: &Buffers) -> Result<(), Refused> {
        self.0.execute(model, runs, buffers)
    }

    fn takes_batches(&self) -> bool {
        true
    }

    fn execute_batch(&self, batch: &mut [Execute<'_, Self>]) -> Vec<Result<(), Refused>> {
        batch.iter_mut().map(|one| self.execute(one.model, one.commit, one.buffers)).collect()
    }
}

#[test]
fn a_batch_that_waits_for_longer_than_the_shutdown_may_take_never_begins() {
    let (context, name, calculator) =
        (Context::new().unwrap(), unique_name(), Calculator::default());
    let counts = calculator.counts.clone();
    let options = ServerOptions::new().workers(1).shutdown_timeout(Duration::from_millis(50));
    let listener = context.listen(&name).unwrap();
    let server = Server::with_options(&context, listener, Together(calculator), options).unwrap();
    let client = Client::connect(&context, &name).unwrap();
    let (held, together) = (four(&client), client.load(b"echo").unwrap());
    let sessions = together.sessions(2).unwrap();
    let _buffers: Vec<_> = sessions.iter().map(|session| session.allocate_all().unwrap()).collect();
    for session in &sessions {
        session.commit().unwrap();
    }
    held[0].1[0].write_at(0, &[255; 8]).unwrap();
    let running = held[0].0.start().unwrap();
    wait_until("the only worker to be held", || counts.of("execute") == 1);
    let batch = together.start_all().unwrap();
    let dropping = thread::spawn(move || drop(server));
    assert!(running.wait().unwrap_err().is_disconnected());
    assert!(batch.wait().unwrap_err().is_disconnected());
    counts.let_go();
    dropping.join().unwrap();
    assert_eq!(counts.of("execute"), 1);
}

#[test]
fn answers_that_wait_for_room_are_sent_before_the_links_end() {
    let context = Context::with_options(Options::new().ring_capacity(4096)).unwrap();
    let stage = Stage::of(context, &unique_name(), ServerOptions::new());
    let client = stage.client();
    let models: Vec<_> = (0..8).map(|_| client.load(b"fail 200").unwrap()).collect();
    let sessions: Vec<_> = models.iter().flat_map(|model| model.sessions(16).unwrap()).collect();
    let mut buffers = Vec::new();
    for session in &sessions {
        buffers.push(session.allocate_all().unwrap());
        session.commit().unwrap();
    }
    let executions: Vec<_> = sessions.iter().map(|session| session.start().unwrap()).collect();
    // Their answers are longer than the client's ring.
    wait_until("the last handler", || stage.server.stats().failures == 128);
    let dropping = thread::spawn(move || drop(stage));
    // A server that waits for no answer has ended by then.
    thread::sleep(Duration::from_millis(100));
    for execution in executions {
        let error = execution.wait().unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::Commit(CommitFault::Refused { code: 5, .. })),
            "{error:?}"
        );
    }
    dropping.join().unwrap();
}

#[test]
fn a_request_that_meets_the_end_of_the_server_takes_no_answer_from_others() {
    let stage = Stage::with(ServerOptions::new().workers(1));
    let client = stage.client();
    let sessions = four(&client);
    let executed: Vec<_> =
        sessions[..3].iter().map(|(session, _)| session.start().unwrap()).collect();
    wait_until("all of them", || stage.server.stats().executions == 3);
    drop(stage);
    assert!(sessions[3].0.execute().unwrap_err().is_disconnected());
    assert!(client.load(b"echo").unwrap_err().is_disconnected());
    executed.into_iter().for_each(|execution| execution.wait().unwrap());
}

#[test]
fn a_client_that_leaves_is_served_to_the_end_of_what_it_has_sent() {
    let stage = Stage::new();
    let client = stage.client();
    let model = client.load(b"inline 1").unwrap();
    let sessions = model.sessions(16).unwrap();
    let mut buffers = Vec::new();
    for session in &sessions {
        buffers.push(session.allocate_all().unwrap());
        session.commit().unwrap();
    }
    let executions: Vec<_> = sessions.iter().map(|session| session.start().unwrap()).collect();
    // All handles of the client go, so its link closes before the server has answered.
    drop((executions, sessions, model, client));
    wait_until("the end of the client", || stage.counts.of("gone") == 1);
    assert_eq!(stage.counts.of("execute"), 16);
    assert_eq!(*stage.counts.ends.lock().unwrap(), [None]);
}
