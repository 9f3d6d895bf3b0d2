//! Values of one thread, for callbacks that run on it.

use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A value of the table, with its key.
type Entry = Option<(u64, Rc<dyn Any>)>;

thread_local! {
    static TABLE: RefCell<Vec<Entry>> = const { RefCell::new(Vec::new()) };
}

/// A value of this thread, in a handle that may be sent: for callbacks of an [`EventLoop`](crate::EventLoop) that own what is
/// not `Send`.
///
/// The value stays with the thread that has made it, and only that thread reaches it. Dropping the handle there drops the
/// value. Dropped on another thread, the value stays until its own thread ends.
///
/// # Examples
///
/// ```
/// use std::cell::RefCell;
/// use std::rc::Rc;
///
/// use slipring::{Address, Context, EventLoop, Local};
///
/// let (context, address) = (Context::new()?, Address::fresh());
/// let mut listener = context.listen(&address)?;
/// let client = std::thread::spawn(move || {
///     let mut client = Context::new()?.connect(&address)?;
///     client.send(b"hello")?;
///     client.close()
/// });
///
/// let mut events = EventLoop::new(&context)?;
/// let link = events.reactor().adopt(listener.accept()?)?;
/// // As the state of a user interface is.
/// let shown = Rc::new(RefCell::new(Vec::new()));
/// let window = Local::new(shown.clone());
/// link.on_message(move |_, message| window.with(|shown| shown.borrow_mut().push(message.to_vec())));
/// drop(link);
/// events.run()?;
/// assert_eq!(*shown.borrow(), [b"hello"]);
/// client.join().unwrap()?;
/// # Ok::<(), slipring::Error>(())
/// ```
pub struct Local<T> {
    index: usize,
    /// A number that no other value of this process has.
    key: u64,
    _value: PhantomData<fn() -> T>,
}

impl<T: 'static> Local<T> {
    /// Puts a value into the table of this thread.
    pub fn new(value: T) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let key = NEXT.fetch_add(1, Ordering::Relaxed);
        let value: Rc<dyn Any> = Rc::new(RefCell::new(value));
        let index = TABLE.with_borrow_mut(|table| {
            let index = table.iter().position(Option::is_none).unwrap_or_else(|| {
                table.push(None);
                table.len() - 1
            });
            table[index] = Some((key, value));
            index
        });
        Self { index, key, _value: PhantomData }
    }

    /// Calls `work` with the value.
    ///
    /// # Panics
    ///
    /// The value is another thread's, or `work` calls this again. In a callback the panic ends its link with
    /// [`ErrorKind::CallbackPanicked`](crate::ErrorKind::CallbackPanicked).
    pub fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        let found = TABLE.with_borrow(|table| match table.get(self.index) {
            Some(Some((key, value))) if *key == self.key => Some(value.clone()),
            _ => None,
        });
        let found = found.expect("the value is another thread's");
        let value = found.downcast_ref::<RefCell<T>>().expect("the key is the value's");
        work(&mut value.borrow_mut())
    }
}

impl<T> Drop for Local<T> {
    fn drop(&mut self) {
        let value = TABLE.try_with(|table| {
            let mut table = table.borrow_mut();
            table.get_mut(self.index)?.take_if(|(key, _)| *key == self.key)
        });
        // The drop of the value may use the table.
        drop(value);
    }
}

impl<T> fmt::Debug for Local<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Local")
    }
}

#[cfg(test)]
mod tests;
