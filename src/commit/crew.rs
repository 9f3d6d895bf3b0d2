//! The threads of a server: one of them turns the loop, the others do what came of it.
//!
//! ```text
//!   leader: loop ──▶ a job came ──▶ leaves the loop behind, does the job, comes back
//!                                   │
//!            short job: nobody is woken, so that it costs no more than the call
//!            long job, or more than one: the next thread is woken and leads
//! ```
//!
//! Whether a job is short is known from its earlier runs. One that turns out long is caught by a watcher, which looks
//! every few milliseconds whether the loop was left alone since its last look. It sleeps while there is nothing to do.
//!
//! The leader may leave in two ways. With nothing else to do for anybody it *steps aside*: it lays the loop down where
//! others can take it, and takes it up again, without a lock. Else it goes through the queue like all the others.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crossbeam_utils::atomic::AtomicCell;

use crate::reactor::{Attendance, EventLoop};

/// How often the watcher looks: after it has caught somebody, and when it has not for long.
const LOOK: Duration = Duration::from_millis(1);
const LOOK_RARELY: Duration = Duration::from_millis(16);

/// Something to do.
pub(super) trait Job {
    /// Whether it may take longer than waking a thread does.
    fn is_long(&self) -> bool;
}

/// What a thread does next.
pub(super) enum Task<J> {
    Do(J),
    Lead(Box<EventLoop>),
    Stop,
}

pub(super) struct Crew<J> {
    state: Mutex<State<J>>,
    work: Condvar,
    watch: Condvar,
    /// A thread may take a job: the leader leaves the loop.
    ready: AtomicBool,
    /// Nothing is to be done, and nothing is being done.
    quiet: AtomicBool,
    /// The loop, while its leader has stepped aside.
    aside: AtomicCell<Option<Box<EventLoop>>>,
    attendance: Attendance,
    /// How often the watcher has found the loop left alone.
    caught: AtomicU64,
}

struct State<J> {
    jobs: VecDeque<J>,
    /// The loop, while nobody turns it.
    lead: Option<Box<EventLoop>>,
    /// Jobs that are being done, and how many may be: one thread is always left to lead.
    running: usize,
    workers: usize,
    /// Threads that wait for work.
    idle: usize,
    stopping: bool,
}

impl<J> State<J> {
    fn is_ready(&self) -> bool {
        !self.jobs.is_empty() && self.running < self.workers
    }
}

impl<J: Job> Crew<J> {
    /// For `workers` jobs at a time, by one thread more.
    pub(super) fn new(events: EventLoop, workers: usize) -> Self {
        let state = State {
            jobs: VecDeque::new(),
            lead: Some(Box::new(events)),
            running: 0,
            workers,
            idle: 0,
            stopping: false,
        };
        Self {
            state: Mutex::new(state),
            work: Condvar::new(),
            watch: Condvar::new(),
            ready: AtomicBool::new(false),
            quiet: AtomicBool::new(true),
            aside: AtomicCell::new(None),
            attendance: Attendance::new(),
            caught: AtomicU64::new(0),
        }
    }

    fn state(&self) -> MutexGuard<'_, State<J>> {
        // Jobs are done without the lock, and every step under it leaves the state whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes what is known without the lock.
    fn publish(&self, state: &State<J>) {
        self.ready.store(state.is_ready(), Ordering::Relaxed);
        let quiet = state.jobs.is_empty() && state.running == 0 && !state.stopping;
        self.quiet.store(quiet, Ordering::Relaxed);
    }

    /// Something to do. Called by the leader, or by whoever does a job: either looks for the next one.
    pub(super) fn push(&self, job: J) {
        let mut state = self.state();
        state.jobs.push_back(job);
        self.publish(&state);
    }

    /// The leader is about to do something short. It keeps the loop if it has to go through the queue.
    #[inline]
    pub(super) fn step_aside(&self, events: Box<EventLoop>) -> Result<(), Box<EventLoop>> {
        if !self.quiet.load(Ordering::Relaxed) {
            return Err(events);
        }
        // First: from the store on another thread may have the loop, and say so.
        let asleep = self.attendance.leave();
        self.aside.store(Some(events));
        if asleep {
            self.wake_watcher();
        }
        Ok(())
    }

    /// The leader has done it: takes up the loop. `None`: another thread has, and counts this one among those that do
    /// jobs.
    #[inline]
    pub(super) fn step_back(&self) -> Option<Box<EventLoop>> {
        let events = self.aside.take()?;
        self.attendance.take();
        Some(events)
    }

    #[cold]
    fn wake_watcher(&self) {
        // With the lock: the watcher sleeps by now.
        let _state = self.state();
        self.watch.notify_one();
    }

    /// Whether the leader leaves the loop.
    #[inline]
    pub(super) fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }

    /// How often the loop was found left alone. Who sees it change during a job has taken long.
    #[inline]
    pub(super) fn caught(&self) -> u64 {
        self.caught.load(Ordering::Relaxed)
    }

    /// A job is done, or the loop is left: what comes next.
    #[inline]
    pub(super) fn next(&self, was: Was) -> Task<J> {
        let mut state = self.state();
        let mut left = false;
        match was {
            Was::Fresh => {}
            Was::Working => state.running -= 1,
            Was::Leading(events) => {
                state.lead = Some(events);
                left = self.attendance.leave();
            }
        }
        loop {
            if state.is_ready()
                && let Some(job) = state.jobs.pop_front()
            {
                state.running += 1;
                let more = state.is_ready();
                self.publish(&state);
                let (alone, idle) = (state.lead.is_some(), state.idle > 0);
                drop(state);
                if (more || alone && job.is_long()) && idle {
                    self.work.notify_one();
                }
                if left {
                    self.watch.notify_one();
                }
                return Task::Do(job);
            }
            if state.stopping {
                if state.jobs.is_empty() {
                    // Others may have waited for the last jobs to be taken.
                    self.work.notify_all();
                    return Task::Stop;
                }
            } else if let Some(events) = self.take_lead(&mut state) {
                self.publish(&state);
                return Task::Lead(events);
            }
            self.publish(&state);
            state.idle += 1;
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
    }

    fn take_lead(&self, state: &mut State<J>) -> Option<Box<EventLoop>> {
        let events = state.lead.take().or_else(|| {
            let events = self.aside.take()?;
            // Whoever has stepped aside will find it gone.
            state.running += 1;
            Some(events)
        })?;
        self.attendance.take();
        Some(events)
    }

    /// The loop is over: every thread ends once nothing is left to do.
    pub(super) fn stop(&self) {
        let mut state = self.state();
        state.stopping = true;
        self.publish(&state);
        drop(state);
        self.work.notify_all();
        self.watch.notify_all();
    }

    /// Sees to it that the loop is not left alone for long.
    pub(super) fn watch(&self) {
        let (mut seen, mut tick) = (self.attendance.look(), LOOK);
        let mut state = self.state();
        while !state.stopping {
            let look = self.attendance.look();
            let unchanged = look == seen;
            seen = look;
            if unchanged && !Attendance::is_left(look) {
                // Somebody leads, and nothing has come for a while.
                if self.attendance.doze(look) {
                    state = self.watch.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                self.attendance.rise();
                continue;
            }
            if unchanged {
                tick = LOOK;
                self.caught.fetch_add(1, Ordering::Relaxed);
                self.work.notify_one();
            }
            (state, _) =
                self.watch.wait_timeout(state, tick).unwrap_or_else(PoisonError::into_inner);
            tick = (tick + tick / 8).min(LOOK_RARELY);
        }
    }
}

/// What a thread did before it asks for more.
pub(super) enum Was {
    Fresh,
    Working,
    Leading(Box<EventLoop>),
}
