//! Executions that a client asks for in one message, and that one message answers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::commit::server::client_session::{ClientSession, Committed};
use crate::commit::server::host::guarded;
use crate::commit::server::service::{Execute, Service};
use crate::commit::wire::message::Answer;
use crate::error::CommitFault;

/// Executions under way that one message answers.
pub(super) struct Batch<S: Service> {
    session: Arc<ClientSession<S>>,
    ticket: u64,
    commits: Vec<Arc<Committed<S>>>,
    /// Positions among `commits`, and why these executions failed.
    failures: Mutex<Vec<(u32, CommitFault)>>,
    /// Executions that have not ended.
    left: AtomicUsize,
}

impl<S: Service> Batch<S> {
    /// Queues executions of commits that are marked as in use: one job for each, or one for all if the service takes
    /// batches.
    pub(super) fn start(
        session: &Arc<ClientSession<S>>,
        ticket: u64,
        commits: Vec<Arc<Committed<S>>>,
    ) {
        let (session, left) = (session.clone(), AtomicUsize::new(commits.len()));
        let batch = Arc::new(Self { session, ticket, commits, failures: Mutex::default(), left });
        if batch.session.host().service().takes_batches() {
            let together = batch.clone();
            return batch.session.queue(move || together.run_together());
        }
        for at in 0..batch.commits.len() {
            let one = batch.clone();
            batch.session.queue(move || one.run_one(at));
        }
    }

    fn run_one(&self, at: usize) {
        let outcome = self.commits[at].execute();
        self.commits[at].finish();
        if let Err(fault) = outcome {
            self.fail(at, fault);
        }
        // Release: the failure is noted before. Acquire: the last one sees all failures, and answers.
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.answer();
        }
    }

    fn run_together(&self) {
        if self.session.is_gone() {
            return self.commits.iter().for_each(|_| self.session.host().tally().executed(false));
        }
        let mut held: Vec<_> = self.commits.iter().map(|commit| commit.held()).collect();
        let pairs = self.commits.iter().zip(&mut held);
        let mut executes: Vec<Execute<'_, S>> = pairs
            .filter_map(|(commit, held)| {
                let (held, model) = (held.as_mut()?, commit.model().kept()?);
                Some(Execute { model, commit: &mut held.kept, buffers: &held.buffers })
            })
            .collect();
        let (host, count) = (self.session.host(), self.commits.len());
        let outcomes = guarded(|| {
            let outcomes = host.service().execute_batch(&mut executes);
            if outcomes.len() == count {
                return Ok(outcomes);
            }
            Err(format!("{} answers for {count} executions", outcomes.len()).into())
        });
        drop(executes);
        drop(held);
        let outcomes: Vec<Result<(), CommitFault>> = match outcomes {
            Ok(outcomes) => {
                outcomes.into_iter().map(|outcome| outcome.map_err(CommitFault::from)).collect()
            }
            Err(fault) => vec![Err(fault); count],
        };
        for (at, outcome) in outcomes.into_iter().enumerate() {
            host.tally().executed(outcome.is_ok());
            if let Err(fault) = outcome {
                self.fail(at, fault);
            }
        }
        self.commits.iter().for_each(|commit| commit.finish());
        self.answer();
    }

    fn fail(&self, at: usize, fault: CommitFault) {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.push((at as u32, fault));
    }

    fn answer(&self) {
        let failures = &mut *self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let mut failures = std::mem::take(failures);
        failures.sort_by_key(|(at, _)| *at);
        self.session.answer(self.ticket, &Answer::Executed { failures });
    }
}
