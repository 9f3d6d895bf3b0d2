//! A context: the options and the pool of memory that its connections share.

#![allow(unsafe_code)]

use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyString;
use slipring::broadcast::{PublishOptions, SubscribeOptions};
use slipring::options::{PeerPolicy, Spin};
use slipring::{Connection as Link, Error, Options};

use crate::connection::{Connection, Waits, allocate};
use crate::deadline::{SLICE, Timeout};
use crate::error::{exception, raise};
use crate::listener::Listener;
use crate::process::Owner;
use crate::publisher::Publisher;
use crate::subscriber::{Subscriber, options_of};
use crate::tensor::Tensor;

/// How long a send waits for room by default: the library's `Options::send_timeout`.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a connect waits for the listener by default: the library's `Options::handshake_timeout`.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(1);

/// The options and the pool of shared memory of its connections. A tensor of one of them goes over the others without a copy.
///
/// `ring_capacity`, `max_message`, `inline_max`, `pool_quota` and `peer_pool_limit` are bytes; `send_timeout`,
/// `handshake_timeout` and `release_grace` seconds. `spin` is how long a waiting thread polls before it sleeps: "adaptive",
/// "never", "forever", or seconds. `peers` is who may connect: "same-user" or "anyone".
#[pyclass(frozen, module = "slipring", weakref)]
pub struct Context {
    context: slipring::Context,
    waits: Waits,
    handshake_timeout: Duration,
    owner: Owner,
}

/// The context of the functions that get none, and the process that it belongs to.
static DEFAULT: Mutex<Option<(Owner, Py<Context>)>> = Mutex::new(None);

impl Context {
    fn with(options: Options, waits: Waits, handshake: Duration) -> PyResult<Self> {
        let context = slipring::Context::with_options(options).map_err(raise)?;
        Ok(Self { context, waits, handshake_timeout: handshake, owner: Owner::here() })
    }

    /// Runs a handshake on a thread of its own, so that signals are handled meanwhile.
    fn handshake<T: Send + 'static>(
        &self,
        py: Python<'_>,
        shake: impl FnOnce(&slipring::Context) -> Result<T, Error> + Send + 'static,
    ) -> PyResult<T> {
        self.owner.check()?;
        let context = self.context.clone();
        let (sender, mut done) = mpsc::channel();
        let work = move || drop(sender.send(shake(&context)));
        let spawned = thread::Builder::new().name("slipring-handshake".into()).spawn(work);
        spawned.map_err(|error| exception("ResourceLimit", format!("no thread: {error}")))?;
        loop {
            let done = &mut done;
            match py.detach(move || done.recv_timeout(SLICE)) {
                Ok(done) => return done.map_err(raise),
                Err(mpsc::RecvTimeoutError::Timeout) => py.check_signals()?,
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    return Err(exception("Error", "the handshake panicked".into()));
                }
            }
        }
    }

    fn connection(&self, connection: Link, trust: bool) -> Connection {
        let connection = if trust { trusted(connection) } else { connection };
        Connection::new(connection, self.context.clone(), self.waits)
    }
}

#[pymethods]
impl Context {
    #[new]
    #[pyo3(signature = (*, ring_capacity = None, max_message = None, inline_max = None, loan_slots = None, pool_quota = None, peer_pool_limit = None, send_timeout = None, handshake_timeout = None, release_grace = None, spin = None, peers = None, huge_pages = false, prefault = false))]
    #[expect(clippy::too_many_arguments, reason = "each is an option that has a name in Python")]
    fn new(
        ring_capacity: Option<u64>,
        max_message: Option<u64>,
        inline_max: Option<u64>,
        loan_slots: Option<u32>,
        pool_quota: Option<u64>,
        peer_pool_limit: Option<u64>,
        send_timeout: Option<Timeout>,
        handshake_timeout: Option<Timeout>,
        release_grace: Option<Timeout>,
        spin: Option<&Bound<'_, PyAny>>,
        peers: Option<&str>,
        huge_pages: bool,
        prefault: bool,
    ) -> PyResult<Self> {
        let mut options = Options::new().huge_pages(huge_pages).prefault(prefault);
        options = given(options, ring_capacity, Options::ring_capacity);
        options = given(options, max_message, Options::max_message);
        options = given(options, inline_max, Options::inline_max);
        options = given(options, loan_slots, Options::loan_slots);
        options = given(options, pool_quota, Options::pool_quota);
        options = given(options, peer_pool_limit, Options::peer_pool_limit);
        options = given(options, release_grace.map(Timeout::duration), Options::release_grace);
        let mut polls = true;
        if let Some(spin) = spin {
            let spin = spin_of(spin)?;
            options = options.spin(spin);
            polls = spin != Spin::Never;
        }
        if let Some(peers) = peers {
            options = options.peer_policy(policy_of(peers)?);
        }
        let send_timeout = send_timeout.map_or(SEND_TIMEOUT, Timeout::duration);
        let handshake = handshake_timeout.map_or(HANDSHAKE_TIMEOUT, Timeout::duration);
        let options = options.send_timeout(send_timeout).handshake_timeout(handshake);
        Self::with(options, Waits { send_timeout, polls }, handshake)
    }

    /// Returns the context that functions of the module use if they get none. A forked child gets one of its own.
    #[staticmethod]
    fn default(py: Python<'_>) -> PyResult<Py<Self>> {
        let here = Owner::here();
        if let Some((owner, context)) = &*DEFAULT.lock()
            && *owner == here
        {
            return Ok(context.clone_ref(py));
        }
        let waits = Waits { send_timeout: SEND_TIMEOUT, polls: true };
        let made = Py::new(py, Self::with(Options::new(), waits, HANDSHAKE_TIMEOUT)?)?;
        let kept = made.clone_ref(py);
        let replaced = DEFAULT.lock().replace((here, made));
        // The drop may run other Python code, so the lock is free.
        drop(replaced);
        Ok(kept)
    }

    /// Listens on an address: a name, or a path with a slash in it. `trust=True` vouches for all peers that connect.
    ///
    /// Raises `AddressInUse`, `InvalidAddress`, `ResourceLimit`, `Forked`.
    #[pyo3(signature = (address, *, trust = false))]
    fn listen(&self, address: &str, trust: bool) -> PyResult<Listener> {
        self.owner.check()?;
        let listener = self.context.listen(address).map_err(raise)?;
        Ok(Listener::new(listener, self.context.clone(), self.waits, trust))
    }

    /// Connects to a listener, and waits `timeout` seconds for its answer, by default the context's `handshake_timeout`.
    /// `retry`: tries for so many seconds while nobody listens. `trust=True` vouches for the peer.
    ///
    /// Raises `NobodyListens`, `TimedOut`, `Refused`, `InvalidAddress`, `PeerClosed`, `PeerDied`, `ResourceLimit`, `Forked`.
    #[pyo3(signature = (address, *, retry = None, timeout = None, trust = false))]
    fn connect(
        &self,
        py: Python<'_>,
        address: String,
        retry: Option<Timeout>,
        timeout: Option<Timeout>,
        trust: bool,
    ) -> PyResult<Connection> {
        let time = timeout.map_or(self.handshake_timeout, Timeout::duration);
        let far = Duration::from_secs(60 * 60 * 24 * 365);
        let after = move |time: Duration| Instant::now() + time.min(far);
        let connection = self.handshake(py, move |context| match retry {
            Some(retry) => context.connect_retry(&*address, after(retry.duration().max(time))),
            None => context.connect_deadline(&*address, after(time)),
        })?;
        Ok(self.connection(connection, trust))
    }

    /// Connects over a connected `SOCK_SEQPACKET` socket, which the connection takes: a descriptor of `socket.detach()`. The
    /// other end accepts.
    ///
    /// Raises as `connect`.
    #[pyo3(signature = (descriptor, *, trust = false))]
    fn connect_socket(
        &self,
        py: Python<'_>,
        descriptor: RawFd,
        trust: bool,
    ) -> PyResult<Connection> {
        let socket = owned(descriptor)?;
        let connection = self.handshake(py, |context| context.connect_socket(socket))?;
        Ok(self.connection(connection, trust))
    }

    /// Accepts over a connected `SOCK_SEQPACKET` socket, which the connection takes: a descriptor of `socket.detach()`. The
    /// other end connects.
    ///
    /// Raises as `connect`.
    #[pyo3(signature = (descriptor, *, trust = false))]
    fn accept_socket(
        &self,
        py: Python<'_>,
        descriptor: RawFd,
        trust: bool,
    ) -> PyResult<Connection> {
        let socket = owned(descriptor)?;
        let connection = self.handshake(py, |context| context.accept_socket(socket))?;
        Ok(self.connection(connection, trust))
    }

    /// Publishes a topic under an address. `slots` is how many messages it has places for, `history` how many a new subscriber
    /// gets of those before, `hold_limit` how many in the pool one may hold, `every` whether subscribers may ask for every
    /// message, and `stall_after` for how many seconds such a one is waited for.
    ///
    /// Raises `AddressInUse`, `InvalidAddress`, `InvalidOption`, `ResourceLimit`, `Forked`.
    #[pyo3(signature = (address, *, slots = None, slot_len = None, history = None, every = true, newest_limit = None, hold_limit = None, subscriber_limit = None, stall_after = None))]
    #[expect(clippy::too_many_arguments, reason = "each is an option that has a name in Python")]
    fn publish(
        &self,
        address: &str,
        slots: Option<u32>,
        slot_len: Option<u32>,
        history: Option<u32>,
        every: bool,
        newest_limit: Option<u32>,
        hold_limit: Option<u32>,
        subscriber_limit: Option<usize>,
        stall_after: Option<Timeout>,
    ) -> PyResult<Publisher> {
        self.owner.check()?;
        let mut options = PublishOptions::new().every(every);
        options = given(options, slots, PublishOptions::slots);
        options = given(options, slot_len, PublishOptions::slot_len);
        options = given(options, history, PublishOptions::history);
        options = given(options, newest_limit, PublishOptions::newest_limit);
        options = given(options, hold_limit, PublishOptions::hold_limit);
        options = given(options, subscriber_limit, PublishOptions::subscriber_limit);
        options = given(options, stall_after.map(Timeout::duration), PublishOptions::stall_after);
        let publisher = self.context.publish(address, options).map_err(raise)?;
        Ok(Publisher::new(publisher, self.context.clone(), self.waits.send_timeout))
    }

    /// Subscribes to a topic. `policy` is "every" message, the "latest" one, or the newest so many. Waits `wait` seconds for a
    /// publisher. One that `reconnect`s looks for another publisher after the end of the first.
    ///
    /// Raises `NobodyListens`, `Refused`, `TimedOut`, `InvalidAddress`, `ResourceLimit`, `Forked`.
    #[pyo3(signature = (address, policy = None, *, reconnect = true, wait = None))]
    fn subscribe(
        &self,
        py: Python<'_>,
        address: String,
        policy: Option<&Bound<'_, PyAny>>,
        reconnect: bool,
        wait: Option<Timeout>,
    ) -> PyResult<Subscriber> {
        let policy = policy.map_or(Ok(SubscribeOptions::every()), options_of)?;
        let mut options = policy.reconnect(reconnect);
        if let Some(wait) = wait {
            options = options.wait_for_publisher(wait.duration());
        }
        let join = move |context: &slipring::Context| context.subscribe(&*address, options);
        self.handshake(py, join).map(Subscriber::new)
    }

    /// Returns memory for a tensor, as `Connection.empty` does.
    ///
    /// Raises `ResourceLimit`, `TimedOut`, `InvalidTensor`, `Forked`.
    #[pyo3(signature = (shape, dtype = None, *, zeroed = false, frozen = false, timeout = None))]
    fn empty(
        &self,
        py: Python<'_>,
        shape: &Bound<'_, PyAny>,
        dtype: Option<&Bound<'_, PyAny>>,
        zeroed: bool,
        frozen: bool,
        timeout: Option<Timeout>,
    ) -> PyResult<Tensor> {
        self.owner.check()?;
        allocate(py, &self.context, (shape, dtype), (zeroed, frozen), timeout)
    }
}

/// Returns the connection to a peer for which the caller of Python vouches.
pub fn trusted(connection: Link) -> Link {
    // SAFETY: this package forms no slice of what a peer has lent: it passes addresses on. What `trust=True` vouches for is
    // the content, to the code that reads there.
    unsafe { connection.trust() }
}

/// Returns options with one of them set, if the caller has given it.
fn given<O, T>(options: O, value: Option<T>, set: impl FnOnce(O, T) -> O) -> O {
    match value {
        Some(value) => set(options, value),
        None => options,
    }
}

/// Takes a descriptor.
fn owned(descriptor: RawFd) -> PyResult<OwnedFd> {
    if descriptor < 0 {
        return Err(PyValueError::new_err(format!(
            "descriptor is {descriptor}, must be 0 or more"
        )));
    }
    // SAFETY: the caller has detached it from its socket, and gives it away. A descriptor is a number to the kernel, so a
    // wrong one is an error of a call.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

fn spin_of(spin: &Bound<'_, PyAny>) -> PyResult<Spin> {
    let Ok(name) = spin.cast::<PyString>() else {
        return Ok(Spin::For(spin.extract::<Timeout>()?.duration()));
    };
    match &*name.to_cow()? {
        "adaptive" => Ok(Spin::Adaptive { max: Duration::from_micros(400) }),
        "never" => Ok(Spin::Never),
        "forever" => Ok(Spin::Forever),
        other => {
            let text = format!(
                "spin is {other:?}, must be adaptive, never, forever, or a number of seconds"
            );
            Err(PyValueError::new_err(text))
        }
    }
}

fn policy_of(peers: &str) -> PyResult<PeerPolicy> {
    match peers {
        "same-user" => Ok(PeerPolicy::SameUser),
        "anyone" => Ok(PeerPolicy::Anyone),
        other => {
            let text = format!("peers is {other:?}, must be same-user or anyone");
            Err(PyValueError::new_err(text))
        }
    }
}
