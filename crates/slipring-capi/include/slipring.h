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

#ifndef SLIPRING_H
#define SLIPRING_H

#include <stddef.h>
#include <stdint.h>

#define SLIPRING_VERSION_MAJOR 0
#define SLIPRING_VERSION_MINOR 1
#define SLIPRING_VERSION_PATCH 0


// Every message: the publisher waits for the subscriber.
#define SLIPRING_EVERY (-1)

// The newest message, and never one that a later one follows.
#define SLIPRING_LATEST (-2)

// For slipring_subscriber_new(): the end of the publisher is SLIPRING_END or SLIPRING_PEER_DIED. Otherwise a receive waits for the
// next publisher of the address.
#define SLIPRING_NO_RECONNECT 1

// In a sample: it is the first one of another publisher.
#define SLIPRING_SAMPLE_RESTARTED 1

// The most dimensions of a tensor.
#define SLIPRING_MAX_RANK 8

// For slipring_tensor_new(): the memory is sealed when it is shared. After that nobody can write it, not even this process,
// and every receiver reads it as memory that cannot change: model weights.
#define SLIPRING_TENSOR_FROZEN 1

// For slipring_tensor_new(): all bytes are 0.
#define SLIPRING_TENSOR_ZEROED 2

// In a view: the memory may be written.
#define SLIPRING_TENSOR_WRITABLE 4

// In a view: the memory is a peer's, which can write it: an honest peer does not. slipring_tensor_check() says whether
// the peer has taken it back.
#define SLIPRING_TENSOR_ON_LOAN 8

// In a view: the elements are on a GPU, and `data` is NULL.
#define SLIPRING_TENSOR_ON_GPU 16

// Do not wait.
#define SLIPRING_NONBLOCK 0

// Wait as long as it takes. A peer that dies ends the wait.
#define SLIPRING_FOREVER 9223372036854775807

// Wait as the options of the context say: to send, SLIPRING_OPTION_SEND_TIMEOUT; to connect,
// SLIPRING_OPTION_HANDSHAKE_TIMEOUT; to receive or to accept, as long as it takes.
#define SLIPRING_DEFAULT (-1)

// What a function has done. The numbers stay.
typedef enum {
  // Done.
  SLIPRING_OK = 0,
  // With SLIPRING_NONBLOCK: nothing has arrived, or there is no room now. No error.
  SLIPRING_WOULD_BLOCK = 1,
  // The peer has closed in order, and every message that it sent was received. No error.
  SLIPRING_END = 2,
  // The time is over. Nothing was sent or received.
  SLIPRING_TIMED_OUT = 3,
  // The message is longer than the buffer. It stays the next one.
  SLIPRING_BUFFER_TOO_SHORT = 4,
  // The next message is of another kind than the function receives. It stays the next one.
  SLIPRING_OTHER_KIND = 5,
  // The peer has closed the connection, and receives no more.
  SLIPRING_PEER_CLOSED = 6,
  // The peer's process ended without closing. The text names it.
  SLIPRING_PEER_DIED = 7,
  // The peer broke the protocol. This connection is over, and all others go on.
  SLIPRING_PEER_FAULT = 8,
  // One side's policy does not admit the other, or the two sides do not fit.
  SLIPRING_REFUSED = 9,
  // Nobody listens on the address.
  SLIPRING_NOBODY_LISTENS = 10,
  // Another listener has the address.
  SLIPRING_ADDRESS_IN_USE = 11,
  // The message or the batch is longer than the connection takes.
  SLIPRING_TOO_LARGE = 12,
  // A limit is reached, which the text names with the option that raises it.
  SLIPRING_RESOURCE_LIMIT = 13,
  // There is no memory.
  SLIPRING_OUT_OF_MEMORY = 14,
  // The peer has taken back the memory of the message: what was read there may be other data.
  SLIPRING_LOAN_REVOKED = 15,
  // This side has closed the connection.
  SLIPRING_CLOSED = 16,
  // The handle belongs to the parent of this forked process.
  SLIPRING_FORKED = 17,
  // The kernel refused a call: slipring_last_error_number() is its errno.
  SLIPRING_OS = 18,
  // An argument is impossible: a null pointer, an address, an option, a time.
  SLIPRING_INVALID_ARGUMENT = 19,
  // The handle is null, was freed, or is of another kind.
  SLIPRING_INVALID_HANDLE = 20,
  // The call does not fit what is open: a message reserved twice, a release without a peek.
  SLIPRING_WRONG_STATE = 21,
  // Another thread is in this half of the connection, or in this listener.
  SLIPRING_BUSY = 22,
  // The library has an error: a panic ended the call. The handle can only be freed.
  SLIPRING_PANIC = 23,
  // An error that has no status of its own. The text says which.
  SLIPRING_OTHER = 24,
  // A data type, a shape or a tensor that cannot be, or not for this.
  SLIPRING_INVALID_TENSOR = 25,
  // The publisher has given up waiting for this subscriber.
  SLIPRING_EVICTED = 26,
} slipring_status;

// The kind of a received message.
typedef enum {
  // A plain message.
  SLIPRING_KIND_MESSAGE = 0,
  // A request, which the peer waits for a response to: slipring_recv_request().
  SLIPRING_KIND_REQUEST = 1,
  // The response to a request: slipring_wait().
  SLIPRING_KIND_RESPONSE = 2,
  // Tensors: slipring_recv_tensors() receives them. The bytes in place are internal.
  SLIPRING_KIND_TENSORS = 3,
  // A request with tensors: slipring_recv_tensor_request().
  SLIPRING_KIND_TENSOR_REQUEST = 4,
  // A response with tensors: slipring_wait_tensors().
  SLIPRING_KIND_TENSOR_RESPONSE = 5,
  // A kind that this version does not know.
  SLIPRING_KIND_OTHER = 255,
} slipring_kind;

// What happened to a subscriber.
typedef enum {
  // It has joined.
  SLIPRING_EVENT_JOINED = 0,
  // It has left in order.
  SLIPRING_EVENT_LEFT = 1,
  // Its process has died.
  SLIPRING_EVENT_DIED = 2,
  // The publisher has evicted it.
  SLIPRING_EVENT_EVICTED = 3,
  // A kind that this version does not know.
  SLIPRING_EVENT_OTHER = 255,
} slipring_event_kind;

// What slipring_options_set() sets.
typedef enum {
  // Bytes of the ring that this side writes: a power of two from one page to 1 GiB. 1 MiB, of which a link begins with 16 KiB.
  SLIPRING_OPTION_RING_CAPACITY = 1,
  // The longest message in bytes; the smaller value of both sides counts. 1 GiB.
  SLIPRING_OPTION_MAX_MESSAGE = 2,
  // The longest message in bytes that travels in the ring itself, at most a quarter of the ring. 4 KiB.
  SLIPRING_OPTION_INLINE_MAX = 3,
  // Blocks that one peer may lend this side at once: 1 to 65536. 256.
  SLIPRING_OPTION_LOAN_SLOTS = 4,
  // Bytes that the pool of this context may hold. 2 GiB.
  SLIPRING_OPTION_POOL_QUOTA = 5,
  // Bytes of each block size that rotate between CPUs that share a cache. 2 MiB on AMD's processors, otherwise 512 KiB.
  SLIPRING_OPTION_POOL_FOOTPRINT = 6,
  // As SLIPRING_OPTION_POOL_FOOTPRINT, between CPUs that share none. 32 MiB on AMD's processors, otherwise the same.
  SLIPRING_OPTION_POOL_FAR_FOOTPRINT = 7,
  // Bytes of one peer's pool that this side is ready to map. 4 GiB.
  SLIPRING_OPTION_PEER_POOL_LIMIT = 8,
  // Bytes of messages that may be set aside while a call waits for something else. 1 MiB.
  SLIPRING_OPTION_BACKLOG_LIMIT = 9,
  // Peers of one listener that have not said Hello. 64.
  SLIPRING_OPTION_HALF_OPEN_LIMIT = 10,
  // Nanoseconds that a peer may take for its Hello. 1 s.
  SLIPRING_OPTION_HANDSHAKE_TIMEOUT = 11,
  // Nanoseconds that SLIPRING_DEFAULT waits for room. 30 s.
  SLIPRING_OPTION_SEND_TIMEOUT = 12,
  // Nanoseconds that a peer may keep this side's blocks after the end; SLIPRING_FOREVER: as long as it lives. 1 s.
  SLIPRING_OPTION_RELEASE_GRACE = 13,
  // Nanoseconds that a waiting thread polls at most before it sleeps, rarely where polling finds nothing. 0: it
  // sleeps at once. SLIPRING_FOREVER: it never sleeps. 400 µs.
  SLIPRING_OPTION_SPIN = 14,
  // Who may connect, and to whose listeners this side connects: a slipring_peer_policy.
  // SLIPRING_PEERS_OF_SAME_USER.
  SLIPRING_OPTION_PEER_POLICY = 15,
  // Whether rings and pool ask for huge pages: 0 or 1. 0.
  SLIPRING_OPTION_HUGE_PAGES = 16,
  // Whether all pages are mapped at once rather than on first touch: 0 or 1. 0.
  SLIPRING_OPTION_PREFAULT = 17,
  // The NUMA node of this side's rings. The node of the thread that connects or accepts.
  SLIPRING_OPTION_NUMA_NODE = 18,
  // Whether this side's rings lie on the receiver's NUMA node: 0 or 1. 0.
  SLIPRING_OPTION_NUMA_OF_RECEIVER = 19,
  // Bytes of writes of one slipring_link that may wait for room. 64 MiB.
  SLIPRING_OPTION_WRITE_LIMIT = 20,
} slipring_option;

// The values of SLIPRING_OPTION_PEER_POLICY.
typedef enum {
  // Processes with the effective user id of this one.
  SLIPRING_PEERS_OF_SAME_USER = 0,
  // Every process that can reach the socket.
  SLIPRING_PEERS_OF_ANYONE = 1,
} slipring_peer_policy;

// The type of an element.
typedef enum {
  // One byte: 1 is true, 0 is false.
  SLIPRING_DTYPE_BOOL = 1,
  // uint8_t.
  SLIPRING_DTYPE_UINT8 = 2,
  // uint16_t.
  SLIPRING_DTYPE_UINT16 = 3,
  // uint32_t.
  SLIPRING_DTYPE_UINT32 = 4,
  // uint64_t.
  SLIPRING_DTYPE_UINT64 = 5,
  // int8_t.
  SLIPRING_DTYPE_INT8 = 6,
  // int16_t.
  SLIPRING_DTYPE_INT16 = 7,
  // int32_t.
  SLIPRING_DTYPE_INT32 = 8,
  // int64_t.
  SLIPRING_DTYPE_INT64 = 9,
  // IEEE 754 binary16.
  SLIPRING_DTYPE_FLOAT16 = 10,
  // float.
  SLIPRING_DTYPE_FLOAT32 = 11,
  // double.
  SLIPRING_DTYPE_FLOAT64 = 12,
  // Strings: each is a uint32_t length and as many bytes.
  SLIPRING_DTYPE_BYTES = 13,
  // The upper half of a float.
  SLIPRING_DTYPE_BFLOAT16 = 14,
  // float8_e4m3fn.
  SLIPRING_DTYPE_FLOAT8_E4M3FN = 15,
  // float8_e5m2.
  SLIPRING_DTYPE_FLOAT8_E5M2 = 16,
} slipring_dtype;

// Whether a subscriber reads.
typedef enum {
  // It is awake.
  SLIPRING_SUBSCRIBER_AWAKE = 0,
  // It sleeps, because there is nothing to read.
  SLIPRING_SUBSCRIBER_ASLEEP = 1,
  // Its process is stopped.
  SLIPRING_SUBSCRIBER_STOPPED = 2,
  // It has left, and still holds messages.
  SLIPRING_SUBSCRIBER_LEFT = 3,
} slipring_subscriber_state;

// The structure of dlpack.h, version 1, which declares it: include that header to look inside.
typedef struct DLManagedTensorVersioned DLManagedTensorVersioned;

// A connection to another process: messages with boundaries, in order, both ways. One thread at a time uses the
// sending half, and one the receiving half. These may be two threads at once.
typedef struct slipring_connection slipring_connection;

// What all connections of a program share: the options, and the pool of memory for long messages. Most programs have
// one. Any number of threads may use it at a time.
typedef struct slipring_context slipring_context;

// A connection that a reactor serves. Any thread may use it.
typedef struct slipring_link slipring_link;

// Accepts connections on an address. One thread uses it at a time. No peer can end it.
typedef struct slipring_listener slipring_listener;

// The options of a context. One thread uses them at a time.
typedef struct slipring_options slipring_options;

// The writer of a topic. Any number of subscribers read the same memory. One thread uses it at a time.
typedef struct slipring_publisher slipring_publisher;

// A thread that serves any number of links by callbacks. Any thread may use it.
typedef struct slipring_reactor slipring_reactor;

// A reader of a topic. One thread uses it at a time.
typedef struct slipring_subscriber slipring_subscriber;

// A tensor: row-major, little-endian, contiguous elements of one type. A new one is written by its maker. From its send or
// from slipring_tensor_share() on it is only read. One thread at a time uses a tensor: slipring_tensor_clone() makes another
// handle of the same memory for another thread.
typedef struct slipring_tensor slipring_tensor;

// Tensors that travel in one message, in order and with names, such as the inputs of a model. One thread uses a set at a time.
typedef struct slipring_tensors slipring_tensors;

// A request of the peer, or a response of it.
typedef struct {
  // The number that the response carries.
  uint64_t id;
  // Its bytes, in private memory. They may be read until the next function that uses the receiving half. Do not free them.
  const void *data;
  // Its length in bytes.
  size_t len;
} slipring_call;

// The process on the other side, for which the kernel vouches.
typedef struct {
  // The process id, or -1 if the process is outside of this process's pid namespace.
  int64_t pid;
  // The effective user id.
  uint32_t uid;
  // The effective group id.
  uint32_t gid;
  // A pidfd of the process, or -1. It belongs to the connection: do not close it.
  int32_t pidfd;
} slipring_peer;

// Counts of one half of a connection.
typedef struct {
  // Messages published, or received.
  uint64_t messages;
  // Bytes of these messages.
  uint64_t bytes;
  // Messages that went through the pool. `messages` counts them, too.
  uint64_t pooled;
  // Messages with tensors. `messages` does not count them.
  uint64_t tensors;
  // Tokens triggered.
  uint64_t triggers;
  // Triggers of the peer whose token is not registered here.
  uint64_t stale_tokens;
  // System calls that woke the other side.
  uint64_t wakes;
  // Times that this half slept.
  uint64_t sleeps;
} slipring_half_stats;

// Counts of a connection, and how much is queued, lent and held now.
typedef struct {
  // The sending half.
  slipring_half_stats sent;
  // The receiving half.
  slipring_half_stats received;
  // Bytes of this side's ring that the peer has not given back.
  uint64_t send_queue;
  // Bytes of the peer's ring that wait to be received.
  uint64_t recv_queue;
  // Blocks of this side's pool that the peer has not returned.
  uint64_t loans_out;
  // Blocks of the peer's pool that this side holds.
  uint64_t loans_held;
  // Bytes of the context's pool in use.
  uint64_t pool_bytes;
} slipring_stats;

// Counts of the peers that a listener has met.
typedef struct {
  // Peers that became connections.
  uint64_t accepted;
  // Peers that were refused, or broke the protocol.
  uint64_t refused;
  // Peers whose Hello did not come in time.
  uint64_t silent;
} slipring_listener_stats;

// A received message in the peer's memory.
typedef struct {
  // Its bytes. An honest peer does not write them. A hostile one may at any moment: copy what you check and then
  // use.
  const void *data;
  // Its length in bytes.
  size_t len;
  // Its kind.
  slipring_kind kind;
} slipring_message;

// The options of a publisher. A field that is 0 has its default: `slipring_publisher_options options = {0};`
typedef struct {
  // The messages that the topic has places for: a power of two from 2 to 65536. A subscriber that wants every message may be one
  // less behind before the publisher waits for it. 256.
  uint32_t slots;
  // Bytes of a slot: a power of two from 64 to 2 MiB. A message of at most 16 bytes less lies in its slot, a longer one in the
  // pool. 256.
  uint32_t slot_len;
  // The messages before its join that a new subscriber gets. 0.
  uint32_t history;
  // The most messages that a subscriber may ask for as the newest ones. 64.
  uint32_t newest_limit;
  // The messages in the pool that one subscriber may hold at a time: 1 to 64. 4.
  uint32_t hold_limit;
  // The most subscribers. 1024.
  uint32_t subscriber_limit;
  // The bytes of the pool that one subscriber may hold at a time. No limit.
  uint64_t hold_bytes;
  // How long the publisher waits for a subscriber that wants every message and reads nothing, in nanoseconds. Then it evicts the
  // subscriber. 1 s.
  int64_t stall_after;
  // Not 0: subscribers may not ask for every message.
  uint64_t without_every;
} slipring_publisher_options;

// What happened to a subscriber.
typedef struct {
  // The subscriber's number on this topic.
  uint64_t subscriber;
  // Its process, or -1 if that is outside of this process's pid namespace.
  int64_t pid;
  // The user of its process.
  uint32_t uid;
  // What happened.
  slipring_event_kind kind;
} slipring_event;

// A subscriber of a topic.
typedef struct {
  // Its number on this topic.
  uint64_t id;
  // Its process, or -1 if that is outside of this process's pid namespace.
  int64_t pid;
  // What it asked for: SLIPRING_EVERY, SLIPRING_LATEST, or how many of the newest messages.
  int64_t policy;
  // Messages that it is behind.
  uint64_t lag;
  // Messages in the pool that it holds.
  uint64_t held;
  // The user of its process.
  uint32_t uid;
  // A slipring_subscriber_state.
  uint32_t state;
} slipring_subscriber_info;

// Counts of a publisher.
typedef struct {
  // Messages published.
  uint64_t sent;
  // Bytes of the pool that are kept for subscribers.
  uint64_t kept_bytes;
  // Subscribers now.
  uint64_t subscribers;
} slipring_publisher_stats;

// What a reactor calls, on its thread. Any of them may be NULL: without `on_message` or `on_tensors` such messages wait in the ring,
// and the peer with them. A callback may call any function but those that wait. It may not throw: that ends the program.
//
// Once the reactor has stopped, `on_closed` and `drop` are called inside of the function that finds that out: hold no lock there that
// they take.
//
// `link` is valid during the callback, and is not freed there. `slipring_callbacks callbacks = {0};`
typedef struct {
  // The first argument of each.
  void *user;
  // A message, or a request, which slipring_link_respond() answers by its `id`. Its bytes may be read until the callback returns. Those of a long one lie in the peer's memory: a peer that ends the link
  // meanwhile may change them, and `on_closed` gets SLIPRING_LOAN_REVOKED behind the callback.
  void (*on_message)(void *user, slipring_link *link, const slipring_message *message, uint64_t id);
  // A message with tensors, or a request with tensors (SLIPRING_KIND_TENSOR_REQUEST), which slipring_link_respond_tensors()
  // answers by its `id`. The callback has the set: slipring_tensors_free().
  void (*on_tensors)(void *user,
                     slipring_link *link,
                     slipring_tensors *tensors,
                     slipring_kind kind,
                     uint64_t id);
  // The link has ended: SLIPRING_OK in order, or why, with a text. No other callback of the link follows.
  void (*on_closed)(void *user, slipring_link *link, slipring_status status, const char *text);
  // `user` is not used any more: free it.
  void (*drop)(void *user);
} slipring_callbacks;

// What a peer triggers. It may not throw, and `link` is valid during the call.
typedef void (*slipring_token_function)(void *user, slipring_link *link);

// Frees what a caller gave.
typedef void (*slipring_drop_function)(void *user);

// A message of a topic.
typedef struct {
  // Its bytes, or NULL if it has tensors. They may be read until the next function of this subscriber but
  // slipring_subscriber_check() and slipring_subscriber_copy().
  const void *data;
  // Its length in bytes.
  size_t len;
  // Its number on the topic: the first one of a publisher has 1.
  uint64_t sequence;
  // The messages before it that this subscriber did not get.
  uint64_t missed;
  // SLIPRING_KIND_MESSAGE or SLIPRING_KIND_TENSORS.
  slipring_kind kind;
  // SLIPRING_SAMPLE_RESTARTED.
  uint32_t flags;
} slipring_sample;

// Counts of a subscriber.
typedef struct {
  // Messages received.
  uint64_t received;
  // Messages missed.
  uint64_t missed;
  // Messages in the publisher's pool that this subscriber holds.
  uint64_t held;
} slipring_subscriber_stats;

// What a tensor is.
typedef struct {
  // The first element, or NULL if there are no bytes. Valid until the tensor is sent or freed; of one that is to be frozen until
  // slipring_tensor_share(), or a send, also one that fails. Write it only with SLIPRING_TENSOR_WRITABLE.
  void *data;
  // The length in bytes.
  size_t len;
  // The lengths of the dimensions, the outermost first.
  size_t shape[SLIPRING_MAX_RANK];
  // The number of dimensions.
  size_t rank;
  // The type of an element: a slipring_dtype.
  uint32_t dtype;
  // SLIPRING_TENSOR_FROZEN, SLIPRING_TENSOR_WRITABLE, SLIPRING_TENSOR_ON_LOAN, SLIPRING_TENSOR_ON_GPU.
  uint32_t flags;
} slipring_tensor_view;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Starts a batch: messages that become visible together, at the cost of one publication. slipring_publish() sends
// it, and slipring_discard() drops it. The first batch of a connection takes the ring's whole length.
//
// SLIPRING_WRONG_STATE: a message is reserved, or a batch is open. SLIPRING_PEER_CLOSED, SLIPRING_PEER_DIED,
// SLIPRING_PEER_FAULT, SLIPRING_FORKED.
slipring_status slipring_batch_begin(slipring_connection *connection);

// Adds a message of at most SLIPRING_OPTION_INLINE_MAX bytes to the batch.
//
// SLIPRING_WOULD_BLOCK, SLIPRING_TIMED_OUT: there was no room. SLIPRING_TOO_LARGE: the message, or the batch with
// it. The batch stays as it was. SLIPRING_WRONG_STATE: no batch is open. SLIPRING_PEER_CLOSED, SLIPRING_PEER_DIED,
// SLIPRING_PEER_FAULT, SLIPRING_FORKED.
//
// The descriptor of the connection does not tell when there is room for a batch: publish it, and wait with
// slipring_send().
slipring_status slipring_batch_push(slipring_connection *connection,
                                    const void *message,
                                    size_t len,
                                    int64_t timeout);

// Adds a message of `len` bytes, which the caller writes in place before slipring_publish(), and writes its address
// to `data`. Its bytes have arbitrary values. Do not free them.
//
// The statuses of slipring_batch_push().
slipring_status slipring_batch_reserve(slipring_connection *connection,
                                       size_t len,
                                       int64_t timeout,
                                       void **data);

// Sends a request, and writes the number that its response will carry. Up to 4096 requests may be open.
// `request` may be NULL if `len` is 0.
//
// Uses both halves. SLIPRING_TIMED_OUT: there was no room (also with SLIPRING_NONBLOCK). SLIPRING_RESOURCE_LIMIT: too many are
// open. Otherwise as slipring_send().
slipring_status slipring_submit(slipring_connection *connection,
                                const void *request,
                                size_t len,
                                int64_t timeout,
                                uint64_t *id);

// Waits for the response to a request. Other messages that come meanwhile are set aside, and received later. With
// SLIPRING_WOULD_BLOCK and SLIPRING_TIMED_OUT the request stays open.
//
// SLIPRING_PEER_CLOSED: the peer has left without a response.
// SLIPRING_INVALID_ARGUMENT: no open request has this number. Otherwise as slipring_recv(). A peek ends.
slipring_status slipring_wait(slipring_connection *connection,
                              uint64_t id,
                              int64_t timeout,
                              slipring_call *response);

// Forgets a request: its response is dropped when it comes. No effect on a number that is not open.
//
// SLIPRING_FORKED.
slipring_status slipring_abandon(slipring_connection *connection, uint64_t id);

// Receives the next message if it is a request with bytes. Answer it with slipring_respond() or slipring_respond_tensors(), in any
// order.
//
// SLIPRING_OTHER_KIND: the next message is of another kind, and stays the next one. Otherwise as slipring_recv(). A peek ends.
slipring_status slipring_recv_request(slipring_connection *connection,
                                      int64_t timeout,
                                      slipring_call *request);

// Answers a request of the peer. `response` may be NULL if `len` is 0. A number that is not open at the peer is the end of the
// connection there.
//
// The statuses of slipring_send().
slipring_status slipring_respond(slipring_connection *connection,
                                 uint64_t id,
                                 const void *response,
                                 size_t len,
                                 int64_t timeout);

// Sends a request with tensors. With SLIPRING_OK the set and its tensors are gone. With any other status they stay yours.
//
// Otherwise as slipring_submit() and slipring_send_tensors().
slipring_status slipring_submit_tensors(slipring_connection *connection,
                                        slipring_tensors *tensors,
                                        int64_t timeout,
                                        uint64_t *id);

// Waits for a response with tensors, as slipring_wait() does for one with bytes. Free the set with slipring_tensors_free(), unless
// a send took it.
//
// SLIPRING_OTHER_KIND: the response has bytes, and slipring_wait() returns it. Otherwise as slipring_wait().
slipring_status slipring_wait_tensors(slipring_connection *connection,
                                      uint64_t id,
                                      int64_t timeout,
                                      slipring_tensors **tensors);

// Receives the next message if it is a request with tensors. Free the set with slipring_tensors_free(), unless a send took it.
//
// SLIPRING_OTHER_KIND: the next message is of another kind, and stays the next one. Otherwise as slipring_recv(). A peek ends.
slipring_status slipring_recv_tensor_request(slipring_connection *connection,
                                             int64_t timeout,
                                             uint64_t *id,
                                             slipring_tensors **tensors);

// Answers a request with tensors. With SLIPRING_OK the set and its tensors are gone. With any other status they stay yours.
//
// The statuses of slipring_send_tensors().
slipring_status slipring_respond_tensors(slipring_connection *connection,
                                         uint64_t id,
                                         slipring_tensors *tensors,
                                         int64_t timeout);

// Ends a connection in order and frees it. The peer receives all that was sent before. What is reserved is not sent,
// and what was peeked at is not there any more. NULL has no effect.
//
// SLIPRING_PEER_DIED, SLIPRING_PEER_FAULT: the peer may not have received the last messages. The handle is freed.
// SLIPRING_FORKED: the handle is freed here, and the parent's connection goes on. SLIPRING_BUSY: another thread uses
// the connection. It is not freed.
slipring_status slipring_connection_close(slipring_connection *connection);

// Ends a connection, takes back at once all memory that the peer holds of it, and frees it. NULL has no effect.
//
// SLIPRING_BUSY: another thread uses the connection. It is not freed.
slipring_status slipring_connection_abort(slipring_connection *connection);

// Returns a descriptor for epoll or poll. It belongs to the connection: do not close it, and do not read from it.
//
// Ask for it before the first receive. Before each sleep call slipring_recv() or slipring_peek() with
// SLIPRING_NONBLOCK until they return SLIPRING_WOULD_BLOCK, and likewise slipring_send() if a message had no room.
// The descriptor then becomes readable when there is a message, room in the ring, or the end of the connection. It
// never becomes writable, and tells of no room for a batch, nor in a pool that other peers have filled.
//
// Uses both halves. SLIPRING_WRONG_STATE: a message is reserved or peeked at, or a batch is open. SLIPRING_FORKED.
slipring_status slipring_connection_descriptor(slipring_connection *connection,
                                               int *descriptor);

// Notes that the calling thread serves several peers: from now on the peer of this connection has a bounded share of
// its time. A receive with SLIPRING_NONBLOCK then returns SLIPRING_WOULD_BLOCK although something is left, and
// slipring_connection_rest() says when to go on. A long message is still received whole. A peek ends.
// SLIPRING_FORKED.
slipring_status slipring_connection_take_turns(slipring_connection *connection);

// Writes when to receive again after SLIPRING_WOULD_BLOCK, in nanoseconds from now: 0 for the next turn of the loop,
// or SLIPRING_FOREVER, at the next event of the descriptor. Only after slipring_connection_take_turns(). A peek ends.
// SLIPRING_FORKED.
slipring_status slipring_connection_rest(slipring_connection *connection,
                                         int64_t *nanoseconds);

// Writes who the peer is. Any thread may ask at any time.
slipring_status slipring_connection_peer(slipring_connection *connection, slipring_peer *peer);

// Writes the counts of a connection. `size` is `sizeof *stats`, so that a program can run with an older or newer
// library.
//
// Uses both halves. SLIPRING_WRONG_STATE: a message is reserved or peeked at, or a batch is open. SLIPRING_FORKED.
slipring_status slipring_connection_get_stats(slipring_connection *connection,
                                              slipring_stats *stats,
                                              size_t size);

// Makes a context. `options` may be NULL, for the defaults. Free it with slipring_context_free().
//
// SLIPRING_INVALID_ARGUMENT: an option has a value that it may not have. SLIPRING_OS: the kernel is older than Linux
// 5.1.
slipring_status slipring_context_new(const slipring_options *options,
                                     slipring_context **context);

// Frees a context. Its listeners and connections live on. NULL has no effect.
slipring_status slipring_context_free(slipring_context *context);

// Returns unused memory of the context's pool to the system.
slipring_status slipring_context_trim(slipring_context *context);

// Connects to a listener, and retries every few milliseconds while nobody listens: after `timeout` the status is
// SLIPRING_NOBODY_LISTENS. With SLIPRING_NONBLOCK and SLIPRING_DEFAULT it does not retry. In each case it waits for the
// answer of a listener that is there, for at most SLIPRING_OPTION_HANDSHAKE_TIMEOUT: it may block.
//
// `address`: "camera" or "@camera" is an abstract name; a text with a slash is a path. Close the connection with
// slipring_connection_close().
//
// SLIPRING_NOBODY_LISTENS, SLIPRING_TIMED_OUT, SLIPRING_REFUSED, SLIPRING_INVALID_ARGUMENT (the address),
// SLIPRING_PEER_CLOSED, SLIPRING_PEER_DIED, SLIPRING_PEER_FAULT, SLIPRING_RESOURCE_LIMIT, SLIPRING_OUT_OF_MEMORY,
// SLIPRING_FORKED, SLIPRING_OS.
slipring_status slipring_connect(slipring_context *context,
                                 const char *address,
                                 int64_t timeout,
                                 slipring_connection **connection);

// Connects over a connected SOCK_SEQPACKET Unix socket, such as one end of a socketpair. The other end uses
// slipring_accept_socket(). The function takes the descriptor in every case: do not close it.
//
// It waits for the other end, and its statuses are those of slipring_connect() with SLIPRING_DEFAULT.
slipring_status slipring_connect_socket(slipring_context *context,
                                        int socket,
                                        slipring_connection **connection);

// Accepts over a connected SOCK_SEQPACKET Unix socket. The other end uses slipring_connect_socket(). The function
// takes the descriptor in every case: do not close it.
//
// As slipring_connect().
slipring_status slipring_accept_socket(slipring_context *context,
                                       int socket,
                                       slipring_connection **connection);

// Makes two connections with each other in this process, for tests.
//
// SLIPRING_RESOURCE_LIMIT, SLIPRING_OUT_OF_MEMORY, SLIPRING_FORKED, SLIPRING_OS.
slipring_status slipring_pair(slipring_context *context,
                              slipring_connection **one,
                              slipring_connection **other);

// Hands a tensor to another library, read-only and without a copy. With SLIPRING_OK the structure has the tensor, whose handle is
// gone: the library that takes it calls its deleter, on any thread. With any other status the handle stays yours, and the tensor is
// shared; its memory may be gone with SLIPRING_LOAN_REVOKED, SLIPRING_OS, and for a shape without elements.
//
// Of a tensor on loan the library reads the peer's memory, which a hostile peer can write meanwhile: slipring_tensor_copy() first,
// unless you vouch for the peer.
//
// SLIPRING_INVALID_TENSOR: dlpack.h has no strings; a bool is neither 0 nor 1; the tensor is on a GPU. SLIPRING_LOAN_REVOKED,
// SLIPRING_WRONG_STATE, SLIPRING_OS, SLIPRING_FORKED.
slipring_status slipring_tensor_to_dlpack(slipring_tensor *tensor,
                                          DLManagedTensorVersioned **managed);

// Copies a tensor of another library into the context's pool, to be written further or sent. The structure is the library's:
// its deleter is called before this function returns, whatever the status. NULL is SLIPRING_INVALID_TENSOR. `timeout` as for
// slipring_tensor_new().
//
// SLIPRING_INVALID_TENSOR: another version than 1, a device other than the host's memory, elements that are not contiguous and
// row-major, a type that slipring lacks, a bool that is neither 0 nor 1. Otherwise as slipring_tensor_new().
slipring_status slipring_tensor_from_dlpack(slipring_context *context,
                                            DLManagedTensorVersioned *managed,
                                            int64_t timeout,
                                            slipring_tensor **tensor);

// Returns the text of the last error of this thread: what happened, with the numbers, the remedy, and the option
// that raises a limit. Empty, never NULL, before the first error.
//
// Only a status that is an error changes it: not SLIPRING_OK, SLIPRING_WOULD_BLOCK or SLIPRING_END. The text stays
// until the next error of this thread, or the thread's end. Do not free it.
const char *slipring_last_error(void);

// Returns the kind of the last error of this thread, as Rust names it: "PoolExhausted". Several kinds share one
// status. Empty for errors that only this interface has. As long as the text.
const char *slipring_last_error_kind(void);

// Returns the errno of the last error of this thread, or 0 if the kernel had no part in it.
int32_t slipring_last_error_number(void);

// Returns the name of a status, or NULL if there is no such status. Do not free it.
const char *slipring_status_name(int32_t status);

// Returns the version of the library that runs: "0.1.0". Do not free it.
const char *slipring_version(void);

// Listens on an address: "camera" or "@camera" is an abstract name, a text with a slash is a path. Free the listener
// with slipring_listener_free().
//
// SLIPRING_ADDRESS_IN_USE, SLIPRING_INVALID_ARGUMENT (the address), SLIPRING_RESOURCE_LIMIT, SLIPRING_FORKED,
// SLIPRING_OS.
slipring_status slipring_listen(slipring_context *context,
                                const char *address,
                                slipring_listener **listener);

// Waits for a peer and connects with it. Close the connection with slipring_connection_close().
//
// SLIPRING_WOULD_BLOCK, SLIPRING_TIMED_OUT, SLIPRING_FORKED. SLIPRING_RESOURCE_LIMIT, SLIPRING_OUT_OF_MEMORY and
// SLIPRING_OS say what this process lacks for the peer, which was turned away. The listener goes on.
slipring_status slipring_accept(slipring_listener *listener,
                                int64_t timeout,
                                slipring_connection **connection);

// Returns a descriptor that is readable when slipring_accept() with SLIPRING_NONBLOCK has something to do. It
// belongs to the listener: do not close it.
slipring_status slipring_listener_descriptor(slipring_listener *listener,
                                             int *descriptor);

// Writes the counts of a listener. `size` is `sizeof *stats`.
slipring_status slipring_listener_get_stats(slipring_listener *listener,
                                            slipring_listener_stats *stats,
                                            size_t size);

// Ends a listener and frees it. Its connections live on. NULL has no effect.
//
// SLIPRING_BUSY: another thread accepts. The listener is not freed.
slipring_status slipring_listener_free(slipring_listener *listener);

// Sends a message: copies it, and wakes the receiver if it sleeps. `message` may be NULL if `len` is 0.
//
// SLIPRING_WOULD_BLOCK, SLIPRING_TIMED_OUT: there was no room, and nothing was sent. SLIPRING_TOO_LARGE,
// SLIPRING_RESOURCE_LIMIT, SLIPRING_OUT_OF_MEMORY: nothing was sent. SLIPRING_PEER_CLOSED, SLIPRING_PEER_DIED,
// SLIPRING_PEER_FAULT: the connection is over. SLIPRING_WRONG_STATE: a message is reserved, or a batch is open.
// SLIPRING_FORKED.
slipring_status slipring_send(slipring_connection *connection,
                              const void *message,
                              size_t len,
                              int64_t timeout);

// Receives the next message into a buffer of `capacity` bytes, and writes its length to `len`.
//
// SLIPRING_BUFFER_TOO_SHORT: `len` is the length that is needed, and the message stays the next one. After every
// other status but SLIPRING_OK it is 0. SLIPRING_WOULD_BLOCK, SLIPRING_TIMED_OUT: nothing has arrived. SLIPRING_END:
// nothing follows. SLIPRING_OTHER_KIND: slipring_peek() and slipring_release() pass over the message.
// SLIPRING_PEER_DIED, SLIPRING_PEER_FAULT: the connection is over, and each message that came before was received.
// SLIPRING_LOAN_REVOKED, SLIPRING_RESOURCE_LIMIT, SLIPRING_OUT_OF_MEMORY: the message cannot be read. Whether the
// connection is over the next call tells. SLIPRING_FORKED.
//
// A peek ends: its message is the one that is received.
slipring_status slipring_recv(slipring_connection *connection,
                              void *buffer,
                              size_t capacity,
                              size_t *len,
                              int64_t timeout);

// Reserves room for a message of `len` bytes, which the caller writes in place, and writes its address to `data`.
// Its bytes start at a multiple of 8, and have arbitrary values. They may be written until slipring_publish() or
// slipring_discard(). Do not free them.
//
// The statuses of slipring_send().
slipring_status slipring_reserve(slipring_connection *connection,
                                 size_t len,
                                 int64_t timeout,
                                 void **data);

// Makes the reserved message, or all messages of the batch, visible to the receiver, and wakes it if it sleeps. Does
// not wait. Nothing is open afterwards, whatever the status.
//
// SLIPRING_WRONG_STATE: nothing is reserved, and no batch is open. SLIPRING_PEER_FAULT, SLIPRING_PEER_CLOSED,
// SLIPRING_PEER_DIED: the connection is over. SLIPRING_FORKED.
slipring_status slipring_publish(slipring_connection *connection);

// Publishes the first `len` bytes of the reserved message.
//
// SLIPRING_INVALID_ARGUMENT: `len` is more than was reserved. The message stays reserved. Otherwise as
// slipring_publish().
slipring_status slipring_publish_first(slipring_connection *connection,
                                       size_t len);

// Drops the reserved message or the batch. Nothing is sent.
//
// SLIPRING_WRONG_STATE: nothing is reserved, and no batch is open. SLIPRING_FORKED.
slipring_status slipring_discard(slipring_connection *connection);

// Returns the next message, of any kind, in place. It stays the next one until slipring_release(). Its bytes may be
// read until then, or until another function that uses the receiving half, slipring_connection_rest() included. Do not
// free them. Those of an honest peer are aligned to 8 bytes.
//
// Do not hand them to slipring_send() if the peer may be hostile: it can write them meanwhile. Copy them first.
//
// SLIPRING_WOULD_BLOCK, SLIPRING_TIMED_OUT: nothing has arrived. SLIPRING_END: nothing follows. SLIPRING_PEER_DIED,
// SLIPRING_PEER_FAULT: the connection is over. SLIPRING_LOAN_REVOKED, SLIPRING_RESOURCE_LIMIT,
// SLIPRING_OUT_OF_MEMORY: the message cannot be read. SLIPRING_FORKED. After all but SLIPRING_OK `message` is as it was.
slipring_status slipring_peek(slipring_connection *connection,
                              int64_t timeout,
                              slipring_message *message);

// Returns the memory of the peeked message to the peer. Its bytes may not be read after that.
//
// SLIPRING_WRONG_STATE: no message is peeked at. SLIPRING_LOAN_REVOKED: the peer had taken the memory back, so what
// was read of it may be other data, and the connection is over. SLIPRING_PEER_FAULT, SLIPRING_RESOURCE_LIMIT,
// SLIPRING_OUT_OF_MEMORY: of a message with tensors. SLIPRING_FORKED.
slipring_status slipring_release(slipring_connection *connection);

// Makes options with their defaults. Free them with slipring_options_free(), at the earliest after
// slipring_context_new(), which copies them.
slipring_status slipring_options_new(slipring_options **options);

// Sets an option, a slipring_option. slipring_context_new() checks the value.
//
// SLIPRING_INVALID_ARGUMENT: there is no such option, or it cannot have this value.
slipring_status slipring_options_set(slipring_options *options, uint32_t option, uint64_t value);

// Sets how many blocks and bytes of the context's pool one connection's peer may hold. 1024 and a quarter of the
// quota.
slipring_status slipring_options_set_loan_limit(slipring_options *options,
                                                uint32_t blocks,
                                                uint64_t bytes);

// Frees options. NULL has no effect.
slipring_status slipring_options_free(slipring_options *options);

// Makes a topic at an address, and its publisher. Subscribers come and go by themselves. `options` may be NULL, for the defaults;
// `size` is `sizeof *options`. Free it with slipring_publisher_free(), which ends the topic in order.
//
// SLIPRING_ADDRESS_IN_USE, SLIPRING_INVALID_ARGUMENT (an option, the address), SLIPRING_RESOURCE_LIMIT, SLIPRING_OUT_OF_MEMORY,
// SLIPRING_FORKED, SLIPRING_OS.
slipring_status slipring_publisher_new(slipring_context *context,
                                       const char *address,
                                       const slipring_publisher_options *options,
                                       size_t size,
                                       slipring_publisher **publisher);

// Publishes a message: copies it once, and wakes the subscribers that sleep. `message` may be NULL if `len` is 0. It waits only
// for subscribers that want every message and are behind: SLIPRING_DEFAULT until they have read or are evicted.
//
// SLIPRING_WOULD_BLOCK, SLIPRING_TIMED_OUT: a subscriber is too far behind, or the pool is full; nothing was published.
// SLIPRING_TOO_LARGE, SLIPRING_RESOURCE_LIMIT, SLIPRING_OUT_OF_MEMORY. SLIPRING_WRONG_STATE: a message is reserved. SLIPRING_FORKED.
slipring_status slipring_publisher_send(slipring_publisher *publisher,
                                        const void *message,
                                        size_t len,
                                        int64_t timeout);

// Reserves room for a message of `len` bytes, which the caller writes in place, and writes its address to `data`. Its bytes have
// arbitrary values. They may be written until slipring_publisher_publish() or slipring_publisher_discard(). It waits as
// slipring_publisher_send() with SLIPRING_DEFAULT does.
//
// The statuses of slipring_publisher_send().
slipring_status slipring_publisher_reserve(slipring_publisher *publisher,
                                           size_t len,
                                           void **data);

// Publishes the reserved message. Nothing is reserved afterwards, whatever the status.
//
// SLIPRING_WRONG_STATE: nothing is reserved. SLIPRING_RESOURCE_LIMIT, SLIPRING_FORKED.
slipring_status slipring_publisher_publish(slipring_publisher *publisher);

// Drops the reserved message. Nothing is published.
//
// SLIPRING_WRONG_STATE: nothing is reserved. SLIPRING_FORKED.
slipring_status slipring_publisher_discard(slipring_publisher *publisher);

// Publishes a tensor, which all subscribers read in place. With SLIPRING_OK the tensor is gone: do not use the handle again. With
// any other status it stays yours, shared. SLIPRING_NONBLOCK is SLIPRING_TIMED_OUT if it would wait.
//
// Otherwise as slipring_publisher_send() and slipring_send_tensor().
slipring_status slipring_publisher_send_tensor(slipring_publisher *publisher,
                                               slipring_tensor *tensor,
                                               int64_t timeout);

// Publishes a set of tensors in one message. With SLIPRING_OK the set and its tensors are gone. With any other status they stay
// yours. SLIPRING_NONBLOCK is SLIPRING_TIMED_OUT if it would wait.
//
// Otherwise as slipring_publisher_send() and slipring_send_tensors().
slipring_status slipring_publisher_send_tensors(slipring_publisher *publisher,
                                                slipring_tensors *tensors,
                                                int64_t timeout);

// Writes the next thing that happened to a subscriber. SLIPRING_WOULD_BLOCK: nothing more. The publisher keeps the latest ones
// until they are asked for.
//
// SLIPRING_WRONG_STATE: a message is reserved. SLIPRING_FORKED.
slipring_status slipring_publisher_next_event(slipring_publisher *publisher,
                                              slipring_event *event);

// Writes the subscribers of now: at most `capacity` of them to `infos`, and their count to `count`, which may be higher. `infos`
// may be NULL if `capacity` is 0.
//
// SLIPRING_WRONG_STATE: a message is reserved. SLIPRING_FORKED.
slipring_status slipring_publisher_subscribers(slipring_publisher *publisher,
                                               slipring_subscriber_info *infos,
                                               size_t capacity,
                                               size_t *count);

// Evicts a subscriber by its number: its next receive is SLIPRING_EVICTED. SLIPRING_INVALID_ARGUMENT: there is none.
//
// SLIPRING_WRONG_STATE: a message is reserved. SLIPRING_FORKED.
slipring_status slipring_publisher_evict(slipring_publisher *publisher,
                                         uint64_t subscriber);

// Writes the counts of a publisher. `size` is `sizeof *stats`.
//
// SLIPRING_WRONG_STATE: a message is reserved. SLIPRING_FORKED.
slipring_status slipring_publisher_get_stats(slipring_publisher *publisher,
                                             slipring_publisher_stats *stats,
                                             size_t size);

// Ends a topic in order, and frees its publisher: subscribers get what was published before. What is reserved is not published.
// NULL has no effect.
//
// SLIPRING_BUSY: another thread uses the publisher. It is not freed.
slipring_status slipring_publisher_free(slipring_publisher *publisher);

// Starts a reactor and its thread. Free it with slipring_reactor_free().
//
// SLIPRING_RESOURCE_LIMIT, SLIPRING_OUT_OF_MEMORY, SLIPRING_FORKED, SLIPRING_OS.
slipring_status slipring_reactor_new(slipring_context *context, slipring_reactor **reactor);

// Ends a reactor: its thread ends all links in order, calls their callbacks, and stops. It does not wait for that: the `drop` of the
// last link tells. NULL has no effect. Also a callback may call it.
slipring_status slipring_reactor_free(slipring_reactor *reactor);

// Gives a connection to a reactor, which calls the callbacks from now on, perhaps before this function returns. `size` is
// `sizeof *callbacks`. Free the link's handle with slipring_link_free(): the link lives on without one. If the reactor has stopped,
// `on_closed` tells.
//
// SLIPRING_INVALID_HANDLE, SLIPRING_INVALID_ARGUMENT, SLIPRING_PANIC, SLIPRING_BUSY (another thread uses the connection): the
// connection stays yours. With any other status its handle is gone: SLIPRING_OK, SLIPRING_RESOURCE_LIMIT, SLIPRING_OUT_OF_MEMORY,
// SLIPRING_FORKED, SLIPRING_OS. `drop` is called if the status is not SLIPRING_OK, unless `callbacks` or `size` is wrong.
slipring_status slipring_reactor_adopt(slipring_reactor *reactor,
                                       slipring_connection *connection,
                                       const slipring_callbacks *callbacks,
                                       size_t size,
                                       slipring_link **link);

// Sends a message at once, or not at all.
//
// SLIPRING_WOULD_BLOCK: there is no room now, or writes wait. Otherwise as slipring_send().
slipring_status slipring_link_send(slipring_link *link, const void *message, size_t len);

// Sends a message at once or as soon as there is room, and copies it meanwhile. Writes leave in order. One that fails, or that is
// more than SLIPRING_OPTION_WRITE_LIMIT allows, ends the link, and `on_closed` tells. After the end a write has no effect.
//
// SLIPRING_FORKED.
slipring_status slipring_link_write(slipring_link *link,
                                    const void *message,
                                    size_t len);

// Sends a tensor, as slipring_link_write() does a message. With SLIPRING_OK the tensor is gone. With any other status it stays yours.
//
// SLIPRING_WRONG_STATE, SLIPRING_OS, SLIPRING_FORKED.
slipring_status slipring_link_write_tensor(slipring_link *link,
                                           slipring_tensor *tensor);

// Sends a set of tensors, as slipring_link_write() does a message. With SLIPRING_OK the set is gone. With any other status it stays
// yours.
//
// SLIPRING_WRONG_STATE: a tensor of the set was taken. SLIPRING_FORKED.
slipring_status slipring_link_write_tensors(slipring_link *link,
                                            slipring_tensors *tensors);

// Answers a request that `on_message` or `on_tensors` got, as slipring_link_write() sends a message.
slipring_status slipring_link_respond(slipring_link *link,
                                      uint64_t id,
                                      const void *response,
                                      size_t len);

// Answers a request with tensors, as slipring_link_write_tensors() sends a set.
slipring_status slipring_link_respond_tensors(slipring_link *link,
                                              uint64_t id,
                                              slipring_tensors *tensors);

// Registers a function that the peer can trigger, in order with its messages, and writes its token. Send the peer the token in a
// message. `drop` is called with `user` after the last call, or at once if the status is not SLIPRING_OK; it may be NULL.
//
// SLIPRING_RESOURCE_LIMIT: 65536 tokens of this link are registered or spent. SLIPRING_INVALID_ARGUMENT: no function. After the
// link's end, what it ended with. SLIPRING_FORKED.
slipring_status slipring_link_register(slipring_link *link,
                                       slipring_token_function function,
                                       void *user,
                                       slipring_drop_function drop,
                                       uint32_t *token);

// Makes a token name nothing. No effect if it named nothing.
slipring_status slipring_link_unregister(slipring_link *link, uint32_t token);

// Has the peer run the function that it registered under a token, in order with the writes.
slipring_status slipring_link_trigger(slipring_link *link, uint32_t token);

// Has the peer of a connection run the function that it registered under a token, in order with the messages.
//
// The statuses of slipring_send().
slipring_status slipring_trigger(slipring_connection *connection,
                                 uint32_t token,
                                 int64_t timeout);

// Ends a link in order, after the writes that wait. `on_closed` tells when it has ended.
slipring_status slipring_link_close(slipring_link *link);

// Ends a link at once, and takes back all memory that the peer holds of it.
slipring_status slipring_link_abort(slipring_link *link);

// Frees a handle of a link. The link goes on. NULL has no effect.
slipring_status slipring_link_free(slipring_link *link);

// Joins a topic. `policy` is SLIPRING_EVERY, SLIPRING_LATEST, or how many of the newest messages are wanted. `flags` are
// SLIPRING_NO_RECONNECT or 0. `timeout` is for a publisher that is not there yet: with SLIPRING_NONBLOCK and SLIPRING_DEFAULT it
// does not wait. Free it with slipring_subscriber_free().
//
// SLIPRING_NOBODY_LISTENS: there is no publisher. SLIPRING_REFUSED: the publisher does not offer the policy, or has as many
// subscribers as it may. SLIPRING_INVALID_ARGUMENT, SLIPRING_RESOURCE_LIMIT, SLIPRING_OUT_OF_MEMORY, SLIPRING_FORKED, SLIPRING_OS.
slipring_status slipring_subscriber_new(slipring_context *context,
                                        const char *address,
                                        int64_t policy,
                                        uint32_t flags,
                                        int64_t timeout,
                                        slipring_subscriber **subscriber);

// Takes the next message, which is the current one until the next function of this subscriber but slipring_subscriber_check() and
// slipring_subscriber_copy(), and looks at it in place. A
// subscriber that wants every message reads long ones in the publisher's slot, which the publisher writes again only after that.
//
// What is read is what was sent if slipring_subscriber_check() says so behind the last read. slipring_subscriber_copy() does both.
//
// SLIPRING_WOULD_BLOCK, SLIPRING_TIMED_OUT: nothing has come. SLIPRING_END, SLIPRING_PEER_DIED: the topic has ended, with
// SLIPRING_NO_RECONNECT. SLIPRING_EVICTED: the publisher has given up waiting for this subscriber. SLIPRING_PEER_FAULT,
// SLIPRING_LOAN_REVOKED, SLIPRING_RESOURCE_LIMIT, SLIPRING_OUT_OF_MEMORY, SLIPRING_FORKED.
slipring_status slipring_subscriber_next(slipring_subscriber *subscriber,
                                         int64_t timeout,
                                         slipring_sample *sample);

// Copies the bytes of the current message, and writes its length to `len`. The copy is what was sent.
//
// SLIPRING_BUFFER_TOO_SHORT: `len` is the length that is needed. SLIPRING_LOAN_REVOKED: the publisher has written over it.
// SLIPRING_WRONG_STATE: no message is current. SLIPRING_FORKED.
slipring_status slipring_subscriber_copy(slipring_subscriber *subscriber,
                                         void *buffer,
                                         size_t capacity,
                                         size_t *len);

// Checks that the publisher has not written over the current message. Call it behind the last read of its bytes.
//
// SLIPRING_LOAN_REVOKED: what was read may be other data. SLIPRING_WRONG_STATE: no message is current. SLIPRING_FORKED.
slipring_status slipring_subscriber_check(slipring_subscriber *subscriber);

// Takes the tensors of the current message. Free the set with slipring_tensors_free(), unless a send took it. The memory goes back
// to the publisher when its tensors are freed.
//
// SLIPRING_OTHER_KIND: the message has bytes. SLIPRING_WRONG_STATE: no message is current. SLIPRING_FORKED.
slipring_status slipring_subscriber_take_tensors(slipring_subscriber *subscriber,
                                                 slipring_tensors **tensors);

// Gives the current message back before the next one is wanted: its bytes may not be read after that. No effect if none is
// current.
//
// SLIPRING_FORKED.
slipring_status slipring_subscriber_release(slipring_subscriber *subscriber);

// Writes the counts of a subscriber. `size` is `sizeof *stats`.
//
// SLIPRING_FORKED.
slipring_status slipring_subscriber_get_stats(slipring_subscriber *subscriber,
                                              slipring_subscriber_stats *stats,
                                              size_t size);

// Returns a descriptor for epoll or poll, which becomes readable when there is a message or the topic ends. Before each sleep call
// slipring_subscriber_next() with SLIPRING_NONBLOCK until it returns SLIPRING_WOULD_BLOCK. It belongs to the subscriber: do not
// close it. After a sample with SLIPRING_SAMPLE_RESTARTED ask for it again: another publisher has another one.
//
// SLIPRING_WOULD_BLOCK: no publisher is there now. SLIPRING_FORKED.
slipring_status slipring_subscriber_descriptor(slipring_subscriber *subscriber,
                                               int *descriptor);

// As slipring_connection_take_turns(), for a thread that serves several peers.
//
// SLIPRING_FORKED.
slipring_status slipring_subscriber_take_turns(slipring_subscriber *subscriber);

// As slipring_connection_rest(), for a subscriber.
//
// SLIPRING_FORKED.
slipring_status slipring_subscriber_rest(slipring_subscriber *subscriber, int64_t *nanoseconds);

// Leaves a topic, and frees the subscriber. Tensors that were taken stay readable. NULL has no effect.
//
// SLIPRING_BUSY: another thread uses the subscriber. It is not freed.
slipring_status slipring_subscriber_free(slipring_subscriber *subscriber);

// Makes a tensor in the context's pool, to be written and sent. `shape` has `rank` lengths, and may be NULL if `rank` is 0:
// one element. `flags` are SLIPRING_TENSOR_FROZEN, SLIPRING_TENSOR_ZEROED, or 0. Its memory starts at a multiple of the page
// size, and has old bytes of this process. `timeout` is for a full pool, whose memory peers hold: SLIPRING_DEFAULT and
// SLIPRING_NONBLOCK do not wait. Free it with slipring_tensor_free(), unless a send took it.
//
// SLIPRING_INVALID_TENSOR: the data type, the shape, or their size is impossible. SLIPRING_RESOURCE_LIMIT,
// SLIPRING_TIMED_OUT: the pool is full. SLIPRING_INVALID_ARGUMENT: other flags, or strings, which slipring_tensor_new_encoded()
// makes. SLIPRING_OUT_OF_MEMORY, SLIPRING_FORKED.
slipring_status slipring_tensor_new(slipring_context *context,
                                    uint32_t dtype,
                                    const size_t *shape,
                                    size_t rank,
                                    uint32_t flags,
                                    int64_t timeout,
                                    slipring_tensor **tensor);

// As slipring_tensor_new(), for strings: `len` bytes, in which each element is a uint32_t length and as many bytes. A receiver
// checks them.
slipring_status slipring_tensor_new_encoded(slipring_context *context,
                                            size_t len,
                                            const size_t *shape,
                                            size_t rank,
                                            uint32_t flags,
                                            int64_t timeout,
                                            slipring_tensor **tensor);

// Writes what a tensor is. `size` is `sizeof *view`. Also of a tensor that is being written.
//
// SLIPRING_LOAN_REVOKED: the peer has taken the memory back. SLIPRING_WRONG_STATE: the memory is gone. SLIPRING_INVALID_TENSOR: it
// lies in a region of the peer. SLIPRING_FORKED.
slipring_status slipring_tensor_get_view(const slipring_tensor *tensor,
                                         slipring_tensor_view *view,
                                         size_t size);

// Ends the writing: the tensor is only read from now on, and can be cloned. One with SLIPRING_TENSOR_FROZEN is sealed here.
// No effect on one that is shared already.
//
// SLIPRING_OS: it could not be sealed, and its memory is gone: free the handle. SLIPRING_WRONG_STATE: the memory is gone.
// SLIPRING_FORKED.
slipring_status slipring_tensor_share(slipring_tensor *tensor);

// Makes another handle of the same memory, to send a tensor to several peers or to use it on another thread. Free it with
// slipring_tensor_free(), unless a send took it.
//
// SLIPRING_WRONG_STATE: the tensor is being written (slipring_tensor_share() first), or it is a peer's (slipring_tensor_copy()).
// SLIPRING_FORKED.
slipring_status slipring_tensor_clone(const slipring_tensor *tensor,
                                      slipring_tensor **clone);

// Makes a copy in private memory, which no peer can write. Free it with slipring_tensor_free(), unless a send took it.
//
// SLIPRING_WRONG_STATE: the tensor is being written. SLIPRING_LOAN_REVOKED: the peer has taken the memory back.
// SLIPRING_OUT_OF_MEMORY, SLIPRING_INVALID_TENSOR (a tensor on a GPU), SLIPRING_FORKED.
slipring_status slipring_tensor_copy(const slipring_tensor *tensor,
                                     slipring_tensor **copy);

// Checks that the peer has not taken the memory back. Call it behind the last read: then what was read is what the peer
// has sent. Always SLIPRING_OK for memory that is not on loan, and for that of a GPU.
//
// SLIPRING_LOAN_REVOKED, SLIPRING_WRONG_STATE (the memory is gone), SLIPRING_FORKED.
slipring_status slipring_tensor_check(const slipring_tensor *tensor);

// Frees a tensor. A peer's memory goes back to the peer. NULL has no effect.
//
// SLIPRING_BUSY: another thread uses the tensor. It is not freed.
slipring_status slipring_tensor_free(slipring_tensor *tensor);

// Sends a tensor: hands its memory over, and wakes the receiver if it sleeps. With SLIPRING_OK the tensor is gone: do not use the
// handle again. With any other status it stays yours, though a connection that ends in the middle may keep its memory: then each function
// on it is SLIPRING_WRONG_STATE, and it is to be freed. To send a tensor to several peers, clone it.
//
// A tensor of a pool is handed over without a copy. One that is on loan from a peer, private, or of another context's pool is
// copied.
//
// SLIPRING_WOULD_BLOCK, SLIPRING_TIMED_OUT: there was no room. SLIPRING_INVALID_TENSOR: this kind of memory cannot be sent.
// Otherwise as slipring_send().
slipring_status slipring_send_tensor(slipring_connection *connection,
                                     slipring_tensor *tensor,
                                     int64_t timeout);

// Sends a set of tensors in one message, as slipring_send_tensor() does. With SLIPRING_OK the set and its tensors are gone. With
// any other status they stay yours.
//
// SLIPRING_WRONG_STATE: a tensor of the set was taken. SLIPRING_INVALID_TENSOR: more than 32,768 tensors, or more than 255 in pools.
// SLIPRING_TOO_LARGE: names and shapes take more than 4 MiB. Otherwise as slipring_send_tensor().
slipring_status slipring_send_tensors(slipring_connection *connection,
                                      slipring_tensors *tensors,
                                      int64_t timeout);

// Receives the next message if it is one tensor, and makes a handle for it. Its memory is the peer's, and goes back with
// slipring_tensor_free(). It stays readable when the peer dies.
//
// SLIPRING_OTHER_KIND: the next message has no tensors, and stays the next one. SLIPRING_INVALID_TENSOR: it has another number
// of tensors, and is dropped. Otherwise as slipring_recv(). A peek ends: its message is the one that is received.
slipring_status slipring_recv_tensor(slipring_connection *connection,
                                     int64_t timeout,
                                     slipring_tensor **tensor);

// Receives the next message if it has tensors, and makes a set of them. Free it with slipring_tensors_free(), unless a send took
// it.
//
// SLIPRING_OTHER_KIND: the next message has no tensors, and stays the next one. Otherwise as slipring_recv(). A peek ends: its
// message is the one that is received.
slipring_status slipring_recv_tensors(slipring_connection *connection,
                                      int64_t timeout,
                                      slipring_tensors **tensors);

// Makes an empty set. Free it with slipring_tensors_free(), unless a send took it.
slipring_status slipring_tensors_new(slipring_tensors **set);

// Adds a tensor to a set, behind the others. `name` may be NULL or empty: then it has an index alone. With SLIPRING_OK the set
// has the tensor: do not use the handle again. With any other status it stays yours. A tensor that is being written is shared.
//
// SLIPRING_INVALID_ARGUMENT: another tensor has the name, or the name is no UTF-8 or longer than 255 bytes.
// SLIPRING_WRONG_STATE: the tensor's memory is gone. SLIPRING_OS, SLIPRING_FORKED.
slipring_status slipring_tensors_add(slipring_tensors *set,
                                     const char *name,
                                     slipring_tensor *tensor);

// Writes the count of tensors, also of those that were taken.
//
// SLIPRING_FORKED.
slipring_status slipring_tensors_count(const slipring_tensors *set, size_t *count);

// Writes the name of a tensor: empty, never NULL, if it has none. Of a peer's name with a NUL in it, it is the part before that. It stays valid until the set is sent or freed. Do not free it.
//
// SLIPRING_INVALID_ARGUMENT: there is no such index. SLIPRING_FORKED.
slipring_status slipring_tensors_name(const slipring_tensors *set,
                                      size_t index,
                                      const char **name);

// Writes the index of the tensor with a name.
//
// SLIPRING_INVALID_ARGUMENT: no tensor has this name. SLIPRING_FORKED.
slipring_status slipring_tensors_find(const slipring_tensors *set, const char *name, size_t *index);

// Takes a tensor out of a set, and makes a handle of its own for it. The other tensors keep their indices. Free it with
// slipring_tensor_free(), unless a send took it.
//
// SLIPRING_INVALID_ARGUMENT: there is no such index. SLIPRING_WRONG_STATE: it was taken before. SLIPRING_FORKED.
slipring_status slipring_tensors_take(slipring_tensors *set,
                                      size_t index,
                                      slipring_tensor **tensor);

// Frees a set with the tensors that are in it. NULL has no effect.
//
// SLIPRING_BUSY: another thread uses the set. It is not freed.
slipring_status slipring_tensors_free(slipring_tensors *set);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SLIPRING_H */
