//! Reactors: a thread that serves any number of links by callbacks.
//!
//! 1. A link's callbacks have one `user` value, whose `drop` is called once, after the last of them.
//! 2. A callback gets a handle of its link that lives as long as the callbacks. The caller has another one.

#![allow(unsafe_code)]

use std::ffi::{CString, c_char, c_void};
use std::sync::Arc;
use std::thread::LocalKey;

use slipring::message::{MessageKind, TensorRequest, Token};
use slipring::seam::{Generation, halves};
use slipring::{ErrorKind, Link, Message, Reactor, Tensor, TensorSet};

use crate::connection::{Connection, slipring_connection, take_connection};
use crate::context::{context_of, slipring_context};
use crate::failure::{Answer, Failure, guard};
use crate::handle::{self, Handle, Kind, Lately};
use crate::messages::{slipring_kind, slipring_message};
use crate::pointers::{Out, bytes, get_sized};
use crate::receiving::kind_of;
use crate::status::slipring_status::{self, SLIPRING_OK};
use crate::tensor::{free_sent, slipring_tensor, tensor_of};
use crate::tensor_set::{Set, free_sent_set, set_of, slipring_tensors};

/// A thread that serves any number of links by callbacks. Any thread may use it.
pub struct slipring_reactor(());

/// A connection that a reactor serves. Any thread may use it.
pub struct slipring_link(());

/// What a reactor calls, on its thread. Any of them may be NULL: without `on_message` or `on_tensors` such messages wait in the ring,
/// and the peer with them. A callback may call any function but those that wait. It may not throw: that ends the program.
///
/// Once the reactor has stopped, `on_closed` and `drop` are called inside of the function that finds that out: hold no lock there that
/// they take.
///
/// `link` is valid during the callback, and is not freed there. `slipring_callbacks callbacks = {0};`
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct slipring_callbacks {
    /// The first argument of each.
    pub user: *mut c_void,
    /// A message, or a request, which slipring_link_respond() answers by its `id`. Its bytes may be read until the callback returns. Those of a long one lie in the peer's memory: a peer that ends the link
    /// meanwhile may change them, and `on_closed` gets SLIPRING_LOAN_REVOKED behind the callback.
    pub on_message: Option<
        // SAFETY: the caller of slipring_reactor_adopt() vouches for it.
        unsafe extern "C" fn(
            user: *mut c_void,
            link: *mut slipring_link,
            message: *const slipring_message,
            id: u64,
        ),
    >,
    /// A message with tensors, or a request with tensors (SLIPRING_KIND_TENSOR_REQUEST), which slipring_link_respond_tensors()
    /// answers by its `id`. The callback has the set: slipring_tensors_free().
    pub on_tensors: Option<
        // SAFETY: the caller of slipring_reactor_adopt() vouches for it.
        unsafe extern "C" fn(
            user: *mut c_void,
            link: *mut slipring_link,
            tensors: *mut slipring_tensors,
            kind: slipring_kind,
            id: u64,
        ),
    >,
    /// The link has ended: SLIPRING_OK in order, or why, with a text. No other callback of the link follows.
    pub on_closed: Option<
        // SAFETY: the caller of slipring_reactor_adopt() vouches for it.
        unsafe extern "C" fn(
            user: *mut c_void,
            link: *mut slipring_link,
            status: slipring_status,
            text: *const c_char,
        ),
    >,
    /// `user` is not used any more: free it.
    // SAFETY: as above.
    pub drop: Option<unsafe extern "C" fn(user: *mut c_void)>,
}

/// What a peer triggers. It may not throw, and `link` is valid during the call.
// SAFETY: the caller of slipring_link_register() vouches for it.
pub type slipring_token_function =
    Option<unsafe extern "C" fn(user: *mut c_void, link: *mut slipring_link)>;

/// Frees what a caller gave.
// SAFETY: as above.
pub type slipring_drop_function = Option<unsafe extern "C" fn(user: *mut c_void)>;

thread_local! {
    static REACTORS: Lately<Reactor> = const { Lately::new() };
    static LINKS: Lately<Linked> = const { Lately::new() };
}

impl Kind for Reactor {
    const MAGIC: u64 = 0x7d33_6601_c5ae_0009;
    const WRONG: &'static str = "the handle is no slipring_reactor";

    fn lately() -> &'static LocalKey<Lately<Self>> {
        &REACTORS
    }
}

/// A link, and the process that it belongs to.
struct Linked {
    link: Link,
    generation: Generation,
}

impl Linked {
    fn handle(link: &Link) -> Answer<*mut slipring_link> {
        let generation = Generation::current()?;
        Ok(Handle::make(Self { link: link.clone(), generation }))
    }
}

impl Kind for Linked {
    const MAGIC: u64 = 0x7d33_6601_c5ae_000a;
    const WRONG: &'static str = "the handle is no slipring_link";

    fn lately() -> &'static LocalKey<Lately<Self>> {
        &LINKS
    }
}

/// The caller's value, and the handle that its callbacks get.
struct User {
    user: *mut c_void,
    drop: slipring_drop_function,
    link: *mut slipring_link,
}

// SAFETY: the header demands callbacks that run on the reactor's thread.
unsafe impl Send for User {}
// SAFETY: it is not changed.
unsafe impl Sync for User {}

impl User {
    /// Takes the caller's value. If that fails, `unused` drops it.
    fn new(unused: &mut Unused, link: &Link) -> Answer<Arc<Self>> {
        let link = Linked::handle(link)?;
        Ok(Arc::new(Self { user: unused.0.user, drop: unused.0.drop.take(), link }))
    }
}

impl Drop for User {
    fn drop(&mut self) {
        // SAFETY: this value has made the handle, and callbacks have it no more.
        let _ = unsafe { handle::free::<Linked, _>(self.link) };
        if let Some(drop) = self.drop {
            // SAFETY: the header demands a function that takes the value, and this is the only call.
            unsafe { drop(self.user) };
        }
    }
}

/// Returns the link behind a pointer.
///
/// # Safety
///
/// No other thread frees the handle meanwhile.
unsafe fn link_of<'a>(link: *const slipring_link) -> Answer<&'a Link> {
    // SAFETY: as the caller vouches.
    let found = unsafe { Handle::<Linked>::of(link) }?;
    if found.generation.is_current() { Ok(&found.link) } else { Err(ErrorKind::Forked.into()) }
}

/// Starts a reactor and its thread. Free it with slipring_reactor_free().
///
/// SLIPRING_RESOURCE_LIMIT, SLIPRING_OUT_OF_MEMORY, SLIPRING_FORKED, SLIPRING_OS.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_reactor_new(
    context: *mut slipring_context,
    reactor: *mut *mut slipring_reactor,
) -> slipring_status {
    guard(|| {
        // SAFETY: the header demands a place for the answer.
        let mut out = unsafe { Out::new(reactor) }?;
        // SAFETY: the header demands that nobody frees the handle meanwhile.
        let context = unsafe { context_of(context) }?;
        out.set(Handle::make(Reactor::spawn(context)?));
        Ok(())
    })
}

/// Ends a reactor: its thread ends all links in order, calls their callbacks, and stops. It does not wait for that: the `drop` of the
/// last link tells. NULL has no effect. Also a callback may call it.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_reactor_free(reactor: *mut slipring_reactor) -> slipring_status {
    guard(|| {
        // SAFETY: the header demands that no other thread uses the handle.
        if let Some(reactor) = unsafe { Handle::<Reactor>::free(reactor) }? {
            reactor.shutdown();
        }
        Ok(())
    })
}

/// Gives a connection to a reactor, which calls the callbacks from now on, perhaps before this function returns. `size` is
/// `sizeof *callbacks`. Free the link's handle with slipring_link_free(): the link lives on without one. If the reactor has stopped,
/// `on_closed` tells.
///
/// SLIPRING_INVALID_HANDLE, SLIPRING_INVALID_ARGUMENT, SLIPRING_PANIC, SLIPRING_BUSY (another thread uses the connection): the
/// connection stays yours. With any other status its handle is gone: SLIPRING_OK, SLIPRING_RESOURCE_LIMIT, SLIPRING_OUT_OF_MEMORY,
/// SLIPRING_FORKED, SLIPRING_OS. `drop` is called if the status is not SLIPRING_OK, unless `callbacks` or `size` is wrong.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_reactor_adopt(
    reactor: *mut slipring_reactor,
    connection: *mut slipring_connection,
    callbacks: *const slipring_callbacks,
    size: usize,
    link: *mut *mut slipring_link,
) -> slipring_status {
    guard(|| {
        let mut known = slipring_callbacks {
            user: std::ptr::null_mut(),
            on_message: None,
            on_tensors: None,
            on_closed: None,
            drop: None,
        };
        if !size.is_multiple_of(size_of::<usize>()) {
            let text = "the size is not that of slipring_callbacks";
            return Err(Failure::Border(slipring_status::SLIPRING_INVALID_ARGUMENT, text));
        }
        // SAFETY: the header demands `size` readable bytes, in which each function is one or null.
        let read = unsafe { get_sized(callbacks, size, &mut known) };
        let mut unused = Unused(known);
        read?;
        // SAFETY: the header demands a place for the answer.
        let mut out = unsafe { Out::new(link) }?;
        // SAFETY: the header demands that nobody frees the handle meanwhile.
        let reactor = unsafe { Handle::<Reactor>::of(reactor) }?;
        // SAFETY: the header demands that no other thread uses the handle.
        let connection = unsafe { take_connection(connection) }?;
        let adopted = reactor.adopt(connection)?;
        let user = User::new(&mut unused, &adopted)?;
        out.set(Linked::handle(&adopted)?);
        attach(&adopted, &user, known);
        Ok(())
    })
}

/// Callbacks that no link has: their user is dropped.
struct Unused(slipring_callbacks);

impl Drop for Unused {
    fn drop(&mut self) {
        if let Some(drop) = self.0.drop {
            // SAFETY: the header demands a function that takes the value, and no link has it.
            unsafe { drop(self.0.user) };
        }
    }
}

/// Has a link call the callbacks.
fn attach(link: &Link, user: &Arc<User>, callbacks: slipring_callbacks) {
    let closer = user.clone();
    let on_closed = callbacks.on_closed;
    link.on_closed(move |_, result| {
        let Some(call) = on_closed else { return };
        let failure = result.err().map(Failure::from);
        let status = failure.as_ref().map_or(SLIPRING_OK, Failure::status);
        let text = failure.as_ref().map(Failure::text).unwrap_or_default();
        let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
        // SAFETY: the header demands such a function.
        unsafe { call(closer.user, closer.link, status, text.as_ptr()) };
    });
    if let Some(call) = callbacks.on_message {
        let user = user.clone();
        link.on_message(move |_, message: Message<'_>| {
            let bytes = message.bytes();
            let found = slipring_message {
                data: bytes.as_ptr().cast(),
                len: bytes.len(),
                kind: kind_of(message.kind()),
            };
            let id = match message.kind() {
                MessageKind::Request(id) => halves::number(id),
                _ => 0,
            };
            // SAFETY: the header demands such a function.
            unsafe { call(user.user, user.link, &found, id) };
        });
    }
    if let Some(call) = callbacks.on_tensors {
        let (plain, asked) = (user.clone(), user.clone());
        link.on_tensors(move |link, tensors| {
            let kind = slipring_kind::SLIPRING_KIND_TENSORS;
            give(link, tensors, |set| {
                // SAFETY: the header demands such a function.
                unsafe { call(plain.user, plain.link, set, kind, 0) };
            });
        });
        link.on_tensor_request(move |link, TensorRequest { id, tensors, .. }| {
            let kind = slipring_kind::SLIPRING_KIND_TENSOR_REQUEST;
            give(link, tensors, |set| {
                // SAFETY: the header demands such a function.
                unsafe { call(asked.user, asked.link, set, kind, halves::number(id)) };
            });
        });
    }
}

/// Gives a set to a callback. A process that was forked has none.
fn give(link: &Link, tensors: TensorSet, call: impl FnOnce(*mut slipring_tensors)) {
    match Set::handle(tensors) {
        Ok(set) => call(set),
        Err(_) => link.abort(),
    }
}

/// Sends a message at once, or not at all.
///
/// SLIPRING_WOULD_BLOCK: there is no room now, or writes wait. Otherwise as slipring_send().
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_link_send(
    link: *mut slipring_link,
    message: *const c_void,
    len: usize,
) -> slipring_status {
    guard(|| {
        // SAFETY: the header demands that the bytes are readable and stay as they are.
        let message = unsafe { bytes(message, len) }?;
        // SAFETY: the header demands that nobody frees the handle meanwhile.
        Ok(unsafe { link_of(link) }?.try_send(message)?)
    })
}

/// Sends a message at once or as soon as there is room, and copies it meanwhile. Writes leave in order. One that fails, or that is
/// more than SLIPRING_OPTION_WRITE_LIMIT allows, ends the link, and `on_closed` tells. After the end a write has no effect.
///
/// SLIPRING_FORKED.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_link_write(
    link: *mut slipring_link,
    message: *const c_void,
    len: usize,
) -> slipring_status {
    guard(|| {
        // SAFETY: the header demands that the bytes are readable and stay as they are.
        let message = unsafe { bytes(message, len) }?;
        // SAFETY: the header demands that nobody frees the handle meanwhile.
        unsafe { link_of(link) }?.write(message);
        Ok(())
    })
}

/// Sends a tensor, as slipring_link_write() does a message. With SLIPRING_OK the tensor is gone. With any other status it stays yours.
///
/// SLIPRING_WRONG_STATE, SLIPRING_OS, SLIPRING_FORKED.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_link_write_tensor(
    link: *mut slipring_link,
    tensor: *mut slipring_tensor,
) -> slipring_status {
    guard(|| {
        // SAFETY: the header demands that nobody frees the handle meanwhile.
        let found = unsafe { link_of(link) }?;
        // SAFETY: as above.
        let taken: Tensor =
            unsafe { tensor_of(tensor) }?.enter(crate::tensor::Held::take_shared)?;
        found.write_tensor(taken);
        // SAFETY: the header demands that no other thread uses the handle.
        unsafe { free_sent(tensor) };
        Ok(())
    })
}

/// Sends a set of tensors, as slipring_link_write() does a message. With SLIPRING_OK the set is gone. With any other status it stays
/// yours.
///
/// SLIPRING_WRONG_STATE: a tensor of the set was taken. SLIPRING_FORKED.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_link_write_tensors(
    link: *mut slipring_link,
    tensors: *mut slipring_tensors,
) -> slipring_status {
    guard(|| {
        // SAFETY: the header demands that nobody frees the handle meanwhile.
        let found = unsafe { link_of(link) }?;
        // SAFETY: as above.
        found.write_tensors(unsafe { set_of(tensors) }?.enter(Set::take_all)?);
        // SAFETY: the header demands that no other thread uses the handle.
        unsafe { free_sent_set(tensors) };
        Ok(())
    })
}

/// Answers a request that `on_message` or `on_tensors` got, as slipring_link_write() sends a message.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_link_respond(
    link: *mut slipring_link,
    id: u64,
    response: *const c_void,
    len: usize,
) -> slipring_status {
    guard(|| {
        // SAFETY: the header demands that the bytes are readable and stay as they are.
        let response = unsafe { bytes(response, len) }?;
        // SAFETY: the header demands that nobody frees the handle meanwhile.
        unsafe { link_of(link) }?.respond(halves::id(id), response);
        Ok(())
    })
}

/// Answers a request with tensors, as slipring_link_write_tensors() sends a set.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_link_respond_tensors(
    link: *mut slipring_link,
    id: u64,
    tensors: *mut slipring_tensors,
) -> slipring_status {
    guard(|| {
        // SAFETY: the header demands that nobody frees the handle meanwhile.
        let found = unsafe { link_of(link) }?;
        // SAFETY: as above.
        let set = unsafe { set_of(tensors) }?.enter(Set::take_all)?;
        found.respond_tensors(halves::id(id), set);
        // SAFETY: the header demands that no other thread uses the handle.
        unsafe { free_sent_set(tensors) };
        Ok(())
    })
}

/// Registers a function that the peer can trigger, in order with its messages, and writes its token. Send the peer the token in a
/// message. `drop` is called with `user` after the last call, or at once if the status is not SLIPRING_OK; it may be NULL.
///
/// SLIPRING_RESOURCE_LIMIT: 65536 tokens of this link are registered or spent. SLIPRING_INVALID_ARGUMENT: no function. After the
/// link's end, what it ended with. SLIPRING_FORKED.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_link_register(
    link: *mut slipring_link,
    function: slipring_token_function,
    user: *mut c_void,
    drop: slipring_drop_function,
    token: *mut u32,
) -> slipring_status {
    guard(|| {
        let none =
            slipring_callbacks { user, on_message: None, on_tensors: None, on_closed: None, drop };
        let mut unused = Unused(none);
        // SAFETY: the header demands a place for the answer.
        let mut out = unsafe { Out::new(token) }?;
        // SAFETY: the header demands that nobody frees the handle meanwhile.
        let link = unsafe { link_of(link) }?;
        let Some(call) = function else {
            let text = "the function is a null pointer";
            return Err(Failure::Border(slipring_status::SLIPRING_INVALID_ARGUMENT, text));
        };
        let user = User::new(&mut unused, link)?;
        let made = link.register(move |_| {
            // SAFETY: the header demands such a function.
            unsafe { call(user.user, user.link) };
        })?;
        out.set(made.into());
        Ok(())
    })
}

/// Makes a token name nothing. No effect if it named nothing.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_link_unregister(
    link: *mut slipring_link,
    token: u32,
) -> slipring_status {
    guard(|| {
        // SAFETY: the header demands that nobody frees the handle meanwhile.
        unsafe { link_of(link) }?.unregister(Token::from(token));
        Ok(())
    })
}

/// Has the peer run the function that it registered under a token, in order with the writes.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_link_trigger(
    link: *mut slipring_link,
    token: u32,
) -> slipring_status {
    guard(|| {
        // SAFETY: the header demands that nobody frees the handle meanwhile.
        unsafe { link_of(link) }?.trigger(Token::from(token));
        Ok(())
    })
}

/// Has the peer of a connection run the function that it registered under a token, in order with the messages.
///
/// The statuses of slipring_send().
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_trigger(
    connection: *mut slipring_connection,
    token: u32,
    timeout: i64,
) -> slipring_status {
    // SAFETY: the header demands that nobody frees the handle or uses this half meanwhile.
    unsafe { Connection::sending(connection, move |sending| sending.trigger(token, timeout)) }
}

/// Ends a link in order, after the writes that wait. `on_closed` tells when it has ended.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_link_close(link: *mut slipring_link) -> slipring_status {
    guard(|| {
        // SAFETY: the header demands that nobody frees the handle meanwhile.
        unsafe { link_of(link) }?.close();
        Ok(())
    })
}

/// Ends a link at once, and takes back all memory that the peer holds of it.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_link_abort(link: *mut slipring_link) -> slipring_status {
    guard(|| {
        // SAFETY: the header demands that nobody frees the handle meanwhile.
        unsafe { link_of(link) }?.abort();
        Ok(())
    })
}

/// Frees a handle of a link. The link goes on. NULL has no effect.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_link_free(link: *mut slipring_link) -> slipring_status {
    // SAFETY: the header demands that no other thread uses the handle.
    unsafe { handle::free::<Linked, _>(link) }
}
