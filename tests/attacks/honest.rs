//! Honest clients: one that makes round trips all the time, one that comes newly, and the benign one that an attacker is
//! compared with.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Makes one round trip and checks what comes back. An error says what went wrong.
pub type Trip = Box<dyn FnMut() -> Result<(), String> + Send>;

/// Connects a client.
pub type Dial = dyn Fn() -> Result<Trip, String> + Send + Sync;

/// The time within which a new client must be connected and answered, on a machine with nothing else to do.
pub const CONNECTED: Duration = Duration::from_secs(1);

/// The time within which a new client must be connected and answered, whatever else the machine does.
const STUCK: Duration = Duration::from_secs(5);

/// Between two round trips. Without a pause the honest client would compete with the attacker for the processors.
const PAUSE: Duration = Duration::from_micros(300);

/// How long the benign client works and rests by turns.
const PERIOD: Duration = Duration::from_millis(5);

#[derive(Debug, Default)]
struct State {
    over: AtomicBool,
    trips: AtomicU64,
    /// The longest round trip, in microseconds.
    longest: AtomicU64,
    failed: Mutex<Option<String>>,
}

/// A client on a thread of its own, which ends on drop.
#[derive(Debug)]
pub struct Honest {
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

impl Honest {
    /// Makes round trips with a pause between two of them.
    pub fn start(dial: &Dial) -> Result<Self, String> {
        Self::run(dial()?, |_| PAUSE)
    }

    /// Makes round trips without a pause, in this share of the time.
    pub fn benign(dial: &Dial, share: f64) -> Result<Self, String> {
        let mut since = Instant::now();
        Self::run(dial()?, move |now| {
            if now.duration_since(since) < PERIOD.mul_f64(share) {
                return Duration::ZERO;
            }
            since = now + PERIOD.mul_f64(1.0 - share);
            PERIOD.mul_f64(1.0 - share)
        })
    }

    fn run(
        mut trip: Trip,
        mut pause: impl FnMut(Instant) -> Duration + Send + 'static,
    ) -> Result<Self, String> {
        trip()?;
        let state = Arc::new(State::default());
        let own = state.clone();
        let thread = thread::spawn(move || {
            while !own.over.load(Ordering::Relaxed) {
                let began = Instant::now();
                if let Err(error) = trip() {
                    *own.failed.lock().unwrap() = Some(error);
                    return;
                }
                let now = Instant::now();
                let took = now.duration_since(began).as_micros() as u64;
                own.longest.fetch_max(took, Ordering::Relaxed);
                own.trips.fetch_add(1, Ordering::Relaxed);
                let rest = pause(now);
                if !rest.is_zero() {
                    thread::sleep(rest);
                }
            }
        });
        Ok(Self { state, thread: Some(thread) })
    }

    /// Returns the round trips so far.
    pub fn trips(&self) -> Result<u64, String> {
        if let Some(error) = &*self.state.failed.lock().unwrap() {
            return Err(format!("an honest client fails: {error}"));
        }
        Ok(self.state.trips.load(Ordering::Relaxed))
    }

    pub fn longest(&self) -> Duration {
        Duration::from_micros(self.state.longest.load(Ordering::Relaxed))
    }
}

impl Drop for Honest {
    fn drop(&mut self) {
        self.state.over.store(true, Ordering::Relaxed);
        let _ = self.thread.take().unwrap().join();
    }
}

/// Connects, makes one round trip and leaves. Returns how long that took.
pub fn visit(dial: &Dial) -> Result<Duration, String> {
    let start = Instant::now();
    let done = dial().and_then(|mut trip| trip());
    let took = start.elapsed();
    done.map_err(|error| format!("a new client fails after {took:?}: {error}"))?;
    if took > STUCK {
        return Err(format!("a new client waits for {took:?}"));
    }
    Ok(took)
}
