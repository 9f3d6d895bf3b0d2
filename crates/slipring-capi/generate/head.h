/* slipring: messages and tensors between processes of one Linux machine.
 *
 * Made from crates/slipring-capi/src by its generate/. docs/c.md has the first program.
 *
 * Handles. A slipring_context, slipring_options, slipring_listener, slipring_connection, slipring_tensor,
 * slipring_tensors, slipring_publisher, slipring_subscriber, slipring_reactor and slipring_link is made by the function
 * that writes its address, and freed by the one that this function's text names, once. A function that takes a handle
 * with SLIPRING_OK frees it. A function that fails writes no address. Nothing else is freed: a text, a descriptor, and
 * the bytes of a message belong to the library.
 *
 * Threads. Any number of threads use a context, a reactor and a link, and each thread has its own last error. One
 * thread at a time uses options, a listener, a tensor, a set of tensors, a publisher, a subscriber, the sending half of
 * a connection (send, reserve, publish, discard, batch, respond, trigger) and the receiving half (recv, peek, release,
 * wait, abandon, rest, take_turns); two threads may use the two halves at once. A submit, the descriptor and the counts
 * need both halves. No thread uses a handle while or after another frees it.
 *
 * Waiting. A timeout is in nanoseconds, or SLIPRING_NONBLOCK, SLIPRING_FOREVER, SLIPRING_DEFAULT.
 *
 * Answers. SLIPRING_OK, SLIPRING_WOULD_BLOCK and SLIPRING_END are no errors. After every other status,
 * slipring_last_error() has the text. No call unwinds into C. A call aborts only where the allocator has no memory
 * for a small object of the library, as Rust does. Signals do not end a wait, and no function is for signal handlers.
 *
 * Fork. In the child, what would use the parent's connections returns SLIPRING_FORKED, and freeing a handle frees
 * only what is the child's. The child must not touch the bytes of a reserved or peeked message, of a sample or of a
 * tensor: it does not have that memory. It makes a context of its own.
 *
 * Misuse. A status tells of a null pointer where one is not allowed, a handle that is of another kind, a handle that
 * was freed (of each kind, the last 64 of each thread that runs), a handle of the parent, a call that does not fit
 * what is open, and a second thread in a half while another waits there. No status tells of a pointer that never was
 * a handle, a handle freed before those 64, one freed while another thread uses it, two threads that send or receive
 * short messages through one half at once, a signal handler that uses the half, the handle or the thread's last error
 * that it has interrupted, bytes that are used after their release, a buffer shorter than its length, and memory of
 * the message that changes while it is sent: all of these are undefined behaviour, as everywhere in C.
 */
