// slipring for C++17: slipring.h with owners, results and views. Header-only; it needs libslipring.
//
// Results. A function that can fail returns a `slipring::result<T>`: its value, or a `slipring::error`. Two outcomes are no errors
// and have no value: `would_block()` and `ended()`. `value()` returns the value, and throws what `failure()` has where the compiler
// has exceptions. Without them (`-fno-exceptions`, or SLIPRING_NO_EXCEPTIONS defined before the include) it ends the program.
//
// Ownership. Each class owns one handle, moves, and frees it. A moved-from object may be destroyed or assigned to.
//
// Threads, forks, and what a peer may do: as slipring.h says.
#ifndef SLIPRING_HPP
#define SLIPRING_HPP

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <new>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#if __has_include(<span>) && __cplusplus >= 202002L
#include <span>
#endif
#if defined(__cpp_exceptions) && !defined(SLIPRING_NO_EXCEPTIONS)
#define SLIPRING_EXCEPTIONS 1
#include <stdexcept>
#endif

#include "slipring.h"

namespace slipring {
// Object files that were compiled with and without exceptions, or for C++17 and C++20, may be parts of one program: their types differ.
#if defined(SLIPRING_EXCEPTIONS) && __has_include(<span>) && __cplusplus >= 202002L
inline namespace with_exceptions_and_span {
#elif defined(SLIPRING_EXCEPTIONS)
inline namespace with_exceptions {
#elif __has_include(<span>) && __cplusplus >= 202002L
inline namespace with_span {
#else
inline namespace plain {
#endif

// The bytes or the elements at an address: `std::span` where there is one.
#if __has_include(<span>) && __cplusplus >= 202002L
template <typename T> using span = std::span<T>;
#else
template <typename T> class span {
  public:
    constexpr span() noexcept = default;
    constexpr span(T *data, std::size_t size) noexcept : data_(data), size_(size) {}
    template <std::size_t N> constexpr span(T (&array)[N]) noexcept : data_(array), size_(N) {}
    // From a container of contiguous elements, and from a span of elements that may be written.
    template <typename C, typename E = std::remove_pointer_t<decltype(std::declval<C &>().data())>,
              typename = std::enable_if_t<std::is_convertible_v<E (*)[], T (*)[]>>>
    constexpr span(C &&container) noexcept : data_(container.data()), size_(container.size()) {}
    constexpr T *data() const noexcept { return data_; }
    constexpr std::size_t size() const noexcept { return size_; }
    constexpr bool empty() const noexcept { return size_ == 0; }
    constexpr T &operator[](std::size_t index) const noexcept { return data_[index]; }
    constexpr T *begin() const noexcept { return data_; }
    constexpr T *end() const noexcept { return data_ + size_; }

  private:
    T *data_ = nullptr;
    std::size_t size_ = 0;
};
#endif

using bytes = span<const std::byte>;
using writable_bytes = span<std::byte>;

// The bytes of a text.
inline bytes as_bytes(std::string_view text) noexcept {
    return bytes(reinterpret_cast<const std::byte *>(text.data()), text.size());
}

// The text of bytes.
inline std::string_view as_text(bytes data) noexcept {
    return std::string_view(reinterpret_cast<const char *>(data.data()), data.size());
}

// A time to wait.
class timeout {
  public:
    // As the options of the context say to send and to connect; to receive and to accept, as long as it takes.
    constexpr timeout() noexcept = default;
    template <typename Rep, typename Period>
    constexpr timeout(std::chrono::duration<Rep, Period> time) noexcept : nanoseconds_(nanoseconds_of(time)) {}
    // Do not wait.
    static constexpr timeout none() noexcept { return timeout(SLIPRING_NONBLOCK); }
    // As long as it takes.
    static constexpr timeout forever() noexcept { return timeout(SLIPRING_FOREVER); }
    constexpr std::int64_t nanoseconds() const noexcept { return nanoseconds_; }

  private:
    explicit constexpr timeout(std::int64_t nanoseconds) noexcept : nanoseconds_(nanoseconds) {}
    template <typename Rep, typename Period>
    static constexpr std::int64_t nanoseconds_of(std::chrono::duration<Rep, Period> time) noexcept {
        using std::chrono::duration_cast;
        if (time >= duration_cast<std::chrono::duration<Rep, Period>>(std::chrono::hours(24 * 365 * 100))) {
            return SLIPRING_FOREVER;
        }
        // A time that is over does not wait.
        return time.count() > 0 ? duration_cast<std::chrono::nanoseconds>(time).count() : SLIPRING_NONBLOCK;
    }
    std::int64_t nanoseconds_ = SLIPRING_DEFAULT;
};

// What went wrong: the status, and the text of slipring_last_error().
#ifdef SLIPRING_EXCEPTIONS
class error : public std::runtime_error {
  public:
    error(slipring_status status, const char *text) : std::runtime_error(text), status_(status) {}
    slipring_status status() const noexcept { return status_; }

  private:
    slipring_status status_;
};
#else
class error {
  public:
    error(slipring_status status, const char *text) : text_(text), status_(status) {}
    const char *what() const noexcept { return text_.c_str(); }
    slipring_status status() const noexcept { return status_; }

  private:
    std::string text_;
    slipring_status status_;
};
#endif

namespace detail {

// The text of a status: its own, that of the thread's last error, or its name if it is no error.
inline const char *text_of(slipring_status status, const char *own) noexcept {
    if (own != nullptr) {
        return own;
    }
    bool is_error = status != SLIPRING_OK && status != SLIPRING_WOULD_BLOCK && status != SLIPRING_END;
    return is_error ? slipring_last_error() : slipring_status_name(status);
}

[[noreturn]] inline void fail(slipring_status status, const char *own) {
    const char *text = text_of(status, own);
#ifdef SLIPRING_EXCEPTIONS
    throw error(status, text);
#else
    std::fprintf(stderr, "slipring: %s: %s\n", slipring_status_name(status), text);
    std::abort();
#endif
}

} // namespace detail

// A value, or why there is none. The text of an error is that of the thread's last one: ask for it before the next call that fails.
template <typename T> class [[nodiscard]] result {
  public:
    result(T value) noexcept(std::is_nothrow_move_constructible_v<T>) : status_(SLIPRING_OK) { new (&value_) T(std::move(value)); }
    // Why there is no value, which SLIPRING_OK does not say. `text` is a literal: for a status that no function of slipring.h returned.
    result(slipring_status status, const char *text = nullptr) noexcept
        : status_(status == SLIPRING_OK ? SLIPRING_OTHER : status), text_(text) {}
    result(result &&other) noexcept(std::is_nothrow_move_constructible_v<T>) : status_(other.status_), text_(other.text_) {
        if (has_value()) {
            new (&value_) T(std::move(other.value_));
        }
    }
    result(const result &) = delete;
    result &operator=(const result &) = delete;
    result &operator=(result &&) = delete;
    ~result() {
        if (has_value()) {
            value_.~T();
        }
    }
    bool has_value() const noexcept { return status_ == SLIPRING_OK; }
    explicit operator bool() const noexcept { return has_value(); }
    slipring_status status() const noexcept { return status_; }
    // It would have to wait.
    bool would_block() const noexcept { return status_ == SLIPRING_WOULD_BLOCK; }
    // Nothing follows: the peer has closed.
    bool ended() const noexcept { return status_ == SLIPRING_END; }
    error failure() const { return error(status_, detail::text_of(status_, text_)); }
    T &value() & {
        check();
        return value_;
    }
    T value() && {
        check();
        return std::move(value_);
    }
    // Without a check.
    T &operator*() & noexcept { return value_; }
    T &&operator*() && noexcept { return std::move(value_); }
    T *operator->() noexcept { return &value_; }

  private:
    void check() const {
        if (!has_value()) {
            detail::fail(status_, text_);
        }
    }
    union {
        T value_;
    };
    slipring_status status_;
    const char *text_ = nullptr;
};

template <> class [[nodiscard]] result<void> {
  public:
    result(slipring_status status) noexcept : status_(status) {}
    bool has_value() const noexcept { return status_ == SLIPRING_OK; }
    explicit operator bool() const noexcept { return has_value(); }
    slipring_status status() const noexcept { return status_; }
    bool would_block() const noexcept { return status_ == SLIPRING_WOULD_BLOCK; }
    bool ended() const noexcept { return status_ == SLIPRING_END; }
    error failure() const { return error(status_, detail::text_of(status_, nullptr)); }
    void value() const {
        if (!has_value()) {
            detail::fail(status_, nullptr);
        }
    }

  private:
    slipring_status status_;
};

namespace detail {

// A handle and the function that frees it.
template <typename H, slipring_status (*Free)(H *)> class owner {
  public:
    owner() noexcept = default;
    explicit owner(H *handle) noexcept : handle_(handle) {}
    owner(owner &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    owner &operator=(owner &&other) noexcept {
        if (this != &other) {
            (void)Free(std::exchange(handle_, std::exchange(other.handle_, nullptr)));
        }
        return *this;
    }
    ~owner() {
        if (handle_ != nullptr) {
            (void)Free(handle_);
        }
    }
    H *get() const noexcept { return handle_; }
    H *release() noexcept { return std::exchange(handle_, nullptr); }

  private:
    H *handle_ = nullptr;
};

// The element type of a C++ type.
template <typename T> constexpr std::uint32_t dtype_of() noexcept {
    if constexpr (std::is_same_v<T, bool>) {
        return SLIPRING_DTYPE_BOOL;
    } else if constexpr (std::is_same_v<T, float>) {
        return SLIPRING_DTYPE_FLOAT32;
    } else if constexpr (std::is_same_v<T, double>) {
        return SLIPRING_DTYPE_FLOAT64;
    } else {
        static_assert(std::is_integral_v<T> && sizeof(T) <= 8, "no data type has such elements");
        constexpr std::uint32_t first = std::is_signed_v<T> ? SLIPRING_DTYPE_INT8 : SLIPRING_DTYPE_UINT8;
        return first + (sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3);
    }
}

} // namespace detail

// ---- contexts -------------------------------------------------------------------------------------------------------------

// The options of a context: `slipring::options().set(SLIPRING_OPTION_SEND_TIMEOUT, 1000000000)`.
class options {
  public:
    options() {
        slipring_options *handle;
        result<void>(slipring_options_new(&handle)).value();
        handle_ = detail::owner<slipring_options, slipring_options_free>(handle);
    }
    // Throws what is wrong with the option.
    options &set(slipring_option option, std::uint64_t value) {
        result<void>(slipring_options_set(handle_.get(), option, value)).value();
        return *this;
    }
    slipring_options *get() const noexcept { return handle_.get(); }

  private:
    detail::owner<slipring_options, slipring_options_free> handle_;
};

class connection;
class listener;
class publisher;
class subscriber;
class tensor;

// What all connections of a program share.
class context {
  public:
    static result<context> make() { return make(nullptr); }
    static result<context> make(const options &options) { return make(options.get()); }
    result<listener> listen(const std::string &address);
    result<connection> connect(const std::string &address, timeout wait = {});
    // Two connections with each other, for tests.
    result<std::pair<connection, connection>> pair();
    // A tensor to be written and sent. SLIPRING_TENSOR_FROZEN and SLIPRING_TENSOR_ZEROED are flags.
    result<tensor> make_tensor(std::uint32_t dtype, span<const std::size_t> shape, std::uint32_t flags = 0, timeout wait = {});
    template <typename T>
    result<tensor> make_tensor(std::initializer_list<std::size_t> shape, std::uint32_t flags = 0, timeout wait = {});
    result<publisher> publish(const std::string &address, const slipring_publisher_options &options = {});
    // `policy` is SLIPRING_EVERY, SLIPRING_LATEST, or how many of the newest messages.
    result<subscriber> subscribe(const std::string &address, std::int64_t policy, timeout wait = {}, std::uint32_t flags = 0);
    slipring_context *get() const noexcept { return handle_.get(); }

  private:
    explicit context(slipring_context *handle) noexcept : handle_(handle) {}
    static result<context> make(const slipring_options *options) {
        slipring_context *handle;
        slipring_status status = slipring_context_new(options, &handle);
        if (status != SLIPRING_OK) {
            return status;
        }
        return context(handle);
    }
    detail::owner<slipring_context, slipring_context_free> handle_;
};

// ---- tensors --------------------------------------------------------------------------------------------------------------

// A tensor: written by its maker until it is shared or sent, and only read after that.
class tensor {
  public:
    explicit tensor(slipring_tensor *handle) noexcept : handle_(handle) {}
    // What it is. Fails if its peer has taken the memory back.
    result<slipring_tensor_view> view() const {
        slipring_tensor_view found;
        slipring_status status = slipring_tensor_get_view(handle_.get(), &found, sizeof found);
        if (status != SLIPRING_OK) {
            return status;
        }
        return found;
    }
    // Its elements. SLIPRING_INVALID_TENSOR: it has elements of another type, or lies on a GPU.
    template <typename T> result<span<const T>> elements() const {
        auto found = view();
        if (!found) {
            return found.status();
        }
        if (auto wrong = other_elements<T>(*found)) {
            return {SLIPRING_INVALID_TENSOR, wrong};
        }
        return span<const T>(static_cast<const T *>(found->data), found->len / sizeof(T));
    }
    // Its elements, to write them. SLIPRING_WRONG_STATE: it is shared.
    template <typename T> result<span<T>> writable_elements() {
        auto found = view();
        if (!found) {
            return found.status();
        }
        if (auto wrong = other_elements<T>(*found)) {
            return {SLIPRING_INVALID_TENSOR, wrong};
        }
        if ((found->flags & SLIPRING_TENSOR_WRITABLE) == 0) {
            return {SLIPRING_WRONG_STATE, "the tensor is shared or a peer's: it is only read"};
        }
        return span<T>(static_cast<T *>(found->data), found->len / sizeof(T));
    }
    // Ends the writing.
    result<void> share() { return slipring_tensor_share(handle_.get()); }
    // Another handle of the same memory.
    result<tensor> clone() const { return another(slipring_tensor_clone); }
    // A copy in private memory.
    result<tensor> copy() const { return another(slipring_tensor_copy); }
    // Behind the last read: whether what was read is what the peer has sent.
    result<void> check() const { return slipring_tensor_check(handle_.get()); }
    // Hands the memory to another library. Include dlpack.h to look inside.
    result<DLManagedTensorVersioned *> to_dlpack() && {
        DLManagedTensorVersioned *managed;
        slipring_status status = slipring_tensor_to_dlpack(handle_.get(), &managed);
        if (status != SLIPRING_OK) {
            return status;
        }
        (void)handle_.release();
        return managed;
    }
    slipring_tensor *get() const noexcept { return handle_.get(); }
    slipring_tensor *release() noexcept { return handle_.release(); }

  private:
    // Why its elements are not of this type, or null.
    template <typename T> static const char *other_elements(const slipring_tensor_view &view) noexcept {
        if ((view.flags & SLIPRING_TENSOR_ON_GPU) != 0) {
            return "the tensor lies on a GPU";
        }
        return view.dtype == detail::dtype_of<T>() ? nullptr : "the tensor has elements of another type";
    }
    result<tensor> another(slipring_status (*make)(const slipring_tensor *, slipring_tensor **)) const {
        slipring_tensor *other;
        slipring_status status = make(handle_.get(), &other);
        if (status != SLIPRING_OK) {
            return status;
        }
        return tensor(other);
    }
    detail::owner<slipring_tensor, slipring_tensor_free> handle_;
};

// Tensors that travel in one message, with names.
class tensors {
  public:
    tensors() {
        slipring_tensors *handle;
        result<void>(slipring_tensors_new(&handle)).value();
        handle_ = detail::owner<slipring_tensors, slipring_tensors_free>(handle);
    }
    explicit tensors(slipring_tensors *handle) noexcept : handle_(handle) {}
    // Takes the tensor if it returns a value.
    result<void> add(const std::string &name, tensor &&tensor) {
        slipring_status status = slipring_tensors_add(handle_.get(), name.c_str(), tensor.get());
        if (status == SLIPRING_OK) {
            (void)tensor.release();
        }
        return status;
    }
    std::size_t size() const noexcept {
        std::size_t count = 0;
        (void)slipring_tensors_count(handle_.get(), &count);
        return count;
    }
    // Takes a tensor out.
    result<tensor> take(std::size_t index) {
        slipring_tensor *taken;
        slipring_status status = slipring_tensors_take(handle_.get(), index, &taken);
        if (status != SLIPRING_OK) {
            return status;
        }
        return tensor(taken);
    }
    result<tensor> take(const std::string &name) {
        std::size_t index;
        slipring_status status = slipring_tensors_find(handle_.get(), name.c_str(), &index);
        if (status != SLIPRING_OK) {
            return status;
        }
        return take(index);
    }
    slipring_tensors *get() const noexcept { return handle_.get(); }
    slipring_tensors *release() noexcept { return handle_.release(); }

  private:
    detail::owner<slipring_tensors, slipring_tensors_free> handle_;
};

template <typename T>
result<tensor> context::make_tensor(std::initializer_list<std::size_t> shape, std::uint32_t flags, timeout wait) {
    return make_tensor(detail::dtype_of<T>(), span<const std::size_t>(shape.begin(), shape.size()), flags, wait);
}

inline result<tensor> context::make_tensor(std::uint32_t dtype, span<const std::size_t> shape, std::uint32_t flags, timeout wait) {
    slipring_tensor *made;
    slipring_status status =
        slipring_tensor_new(get(), dtype, shape.data(), shape.size(), flags, wait.nanoseconds(), &made);
    if (status != SLIPRING_OK) {
        return status;
    }
    return tensor(made);
}

// ---- connections ----------------------------------------------------------------------------------------------------------

// A received message in the peer's memory. It is released when it goes out of scope: `release()` tells whether its bytes were those
// that the peer sent. It does not outlive its connection, and no other function that receives is called meanwhile.
class message {
  public:
    message(slipring_connection *link, slipring_message found) noexcept : link_(link), found_(found) {}
    message(message &&other) noexcept : link_(std::exchange(other.link_, nullptr)), found_(other.found_) {}
    message &operator=(message &&) = delete;
    ~message() {
        if (link_ != nullptr) {
            (void)slipring_release(link_);
        }
    }
    bytes data() const noexcept { return bytes(static_cast<const std::byte *>(found_.data), found_.len); }
    std::string_view text() const noexcept { return as_text(data()); }
    slipring_kind kind() const noexcept { return found_.kind; }
    result<void> release() && { return slipring_release(std::exchange(link_, nullptr)); }
    // Leaves it the next message.
    void leave() && noexcept { link_ = nullptr; }

  private:
    slipring_connection *link_;
    slipring_message found_;
};

// Room for a message. Nothing is sent if it goes out of scope before `publish()`. It does not outlive its connection, which sends
// nothing else meanwhile.
class reservation {
  public:
    reservation(slipring_connection *link, void *room, std::size_t len) noexcept
        : link_(link), room_(static_cast<std::byte *>(room)), len_(len) {}
    reservation(reservation &&other) noexcept : link_(std::exchange(other.link_, nullptr)), room_(other.room_), len_(other.len_) {}
    reservation &operator=(reservation &&) = delete;
    ~reservation() {
        if (link_ != nullptr) {
            (void)slipring_discard(link_);
        }
    }
    writable_bytes data() const noexcept { return writable_bytes(room_, len_); }
    result<void> publish() && { return slipring_publish(std::exchange(link_, nullptr)); }

  private:
    slipring_connection *link_;
    std::byte *room_;
    std::size_t len_;
};

// A connection to another process. One thread at a time sends, and one receives.
class connection {
  public:
    explicit connection(slipring_connection *handle) noexcept : handle_(handle) {}
    result<void> send(bytes message, timeout wait = {}) {
        return slipring_send(get(), message.data(), message.size(), wait.nanoseconds());
    }
    result<void> send(std::string_view message, timeout wait = {}) { return send(as_bytes(message), wait); }
    // The length of the message. SLIPRING_BUFFER_TOO_SHORT leaves it the next one.
    result<std::size_t> recv(writable_bytes room, timeout wait = {}) {
        std::size_t len;
        slipring_status status = slipring_recv(get(), room.data(), room.size(), &len, wait.nanoseconds());
        if (status != SLIPRING_OK) {
            return status;
        }
        return len;
    }
    result<reservation> reserve(std::size_t len, timeout wait = {}) & {
        void *room;
        slipring_status status = slipring_reserve(get(), len, wait.nanoseconds(), &room);
        if (status != SLIPRING_OK) {
            return status;
        }
        return reservation(get(), room, len);
    }
    // The next message, in place.
    result<message> peek(timeout wait = {}) & {
        slipring_message found;
        slipring_status status = slipring_peek(get(), wait.nanoseconds(), &found);
        if (status != SLIPRING_OK) {
            return status;
        }
        return message(get(), found);
    }
    // Calls `act(const message &)` with each message until the peer closes, the wait is over, or an error: that status.
    template <typename F> result<void> for_each(F &&act, timeout wait = {}) & {
        for (;;) {
            auto next = peek(wait);
            if (!next) {
                return next.ended() ? SLIPRING_OK : next.status();
            }
            act(static_cast<const message &>(*next));
            if (auto released = std::move(*next).release(); !released) {
                return released;
            }
        }
    }
    // Takes the tensor if it returns a value.
    result<void> send(tensor &&tensor, timeout wait = {}) {
        slipring_status status = slipring_send_tensor(get(), tensor.get(), wait.nanoseconds());
        if (status == SLIPRING_OK) {
            (void)tensor.release();
        }
        return status;
    }
    result<void> send(tensors &&tensors, timeout wait = {}) {
        slipring_status status = slipring_send_tensors(get(), tensors.get(), wait.nanoseconds());
        if (status == SLIPRING_OK) {
            (void)tensors.release();
        }
        return status;
    }
    result<tensor> recv_tensor(timeout wait = {}) {
        slipring_tensor *received;
        slipring_status status = slipring_recv_tensor(get(), wait.nanoseconds(), &received);
        if (status != SLIPRING_OK) {
            return status;
        }
        return tensor(received);
    }
    result<tensors> recv_tensors(timeout wait = {}) {
        slipring_tensors *received;
        slipring_status status = slipring_recv_tensors(get(), wait.nanoseconds(), &received);
        if (status != SLIPRING_OK) {
            return status;
        }
        return tensors(received);
    }
    // A request and its response, whose bytes may be read until the next function that receives.
    result<bytes> call(bytes request, timeout wait = {}) & {
        std::uint64_t id;
        slipring_call response;
        slipring_status status = slipring_submit(get(), request.data(), request.size(), wait.nanoseconds(), &id);
        if (status != SLIPRING_OK) {
            return status;
        }
        status = slipring_wait(get(), id, wait.nanoseconds(), &response);
        if (status != SLIPRING_OK) {
            (void)slipring_abandon(get(), id);
            return status;
        }
        return bytes(static_cast<const std::byte *>(response.data), response.len);
    }
    result<slipring_call> recv_request(timeout wait = {}) & {
        slipring_call request;
        slipring_status status = slipring_recv_request(get(), wait.nanoseconds(), &request);
        if (status != SLIPRING_OK) {
            return status;
        }
        return request;
    }
    result<void> respond(std::uint64_t id, bytes response, timeout wait = {}) {
        return slipring_respond(get(), id, response.data(), response.size(), wait.nanoseconds());
    }
    // For epoll: as slipring_connection_descriptor().
    result<int> descriptor() {
        int found;
        slipring_status status = slipring_connection_descriptor(get(), &found);
        if (status != SLIPRING_OK) {
            return status;
        }
        return found;
    }
    slipring_peer peer() const noexcept {
        slipring_peer found = {};
        (void)slipring_connection_peer(get(), &found);
        return found;
    }
    // Ends it in order, and tells whether the peer could get the last messages. The destructor does so without a word.
    result<void> close() && { return slipring_connection_close(handle_.release()); }
    slipring_connection *get() const noexcept { return handle_.get(); }

  private:
    detail::owner<slipring_connection, slipring_connection_close> handle_;
};

// An address that others connect to.
class listener {
  public:
    explicit listener(slipring_listener *handle) noexcept : handle_(handle) {}
    result<connection> accept(timeout wait = {}) {
        slipring_connection *accepted;
        slipring_status status = slipring_accept(handle_.get(), wait.nanoseconds(), &accepted);
        if (status != SLIPRING_OK) {
            return status;
        }
        return connection(accepted);
    }
    // For epoll: as slipring_listener_descriptor().
    result<int> descriptor() {
        int found;
        slipring_status status = slipring_listener_descriptor(handle_.get(), &found);
        if (status != SLIPRING_OK) {
            return status;
        }
        return found;
    }
    slipring_listener *get() const noexcept { return handle_.get(); }

  private:
    detail::owner<slipring_listener, slipring_listener_free> handle_;
};

inline result<listener> context::listen(const std::string &address) {
    slipring_listener *made;
    slipring_status status = slipring_listen(get(), address.c_str(), &made);
    if (status != SLIPRING_OK) {
        return status;
    }
    return listener(made);
}

inline result<connection> context::connect(const std::string &address, timeout wait) {
    slipring_connection *made;
    slipring_status status = slipring_connect(get(), address.c_str(), wait.nanoseconds(), &made);
    if (status != SLIPRING_OK) {
        return status;
    }
    return connection(made);
}

inline result<std::pair<connection, connection>> context::pair() {
    slipring_connection *one, *other;
    slipring_status status = slipring_pair(get(), &one, &other);
    if (status != SLIPRING_OK) {
        return status;
    }
    return std::pair<connection, connection>(connection(one), connection(other));
}

// ---- topics ---------------------------------------------------------------------------------------------------------------

// The writer of a topic.
class publisher {
  public:
    explicit publisher(slipring_publisher *handle) noexcept : handle_(handle) {}
    result<void> send(bytes message, timeout wait = {}) {
        return slipring_publisher_send(get(), message.data(), message.size(), wait.nanoseconds());
    }
    result<void> send(std::string_view message, timeout wait = {}) { return send(as_bytes(message), wait); }
    result<void> send(tensor &&tensor, timeout wait = {}) {
        slipring_status status = slipring_publisher_send_tensor(get(), tensor.get(), wait.nanoseconds());
        if (status == SLIPRING_OK) {
            (void)tensor.release();
        }
        return status;
    }
    result<void> send(tensors &&tensors, timeout wait = {}) {
        slipring_status status = slipring_publisher_send_tensors(get(), tensors.get(), wait.nanoseconds());
        if (status == SLIPRING_OK) {
            (void)tensors.release();
        }
        return status;
    }
    // What happened to a subscriber, or `would_block()`.
    result<slipring_event> next_event() {
        slipring_event event;
        slipring_status status = slipring_publisher_next_event(get(), &event);
        if (status != SLIPRING_OK) {
            return status;
        }
        return event;
    }
    slipring_publisher *get() const noexcept { return handle_.get(); }

  private:
    detail::owner<slipring_publisher, slipring_publisher_free> handle_;
};

// A reader of a topic.
class subscriber {
  public:
    explicit subscriber(slipring_subscriber *handle) noexcept : handle_(handle) {}
    // The next message. Its bytes may be read until the next function of this subscriber.
    result<slipring_sample> next(timeout wait = {}) & {
        slipring_sample sample;
        slipring_status status = slipring_subscriber_next(get(), wait.nanoseconds(), &sample);
        if (status != SLIPRING_OK) {
            return status;
        }
        return sample;
    }
    // Behind the last read of a sample's bytes: whether they were what the publisher sent.
    result<void> check() { return slipring_subscriber_check(get()); }
    // The tensors of the current message.
    result<tensors> take_tensors() {
        slipring_tensors *taken;
        slipring_status status = slipring_subscriber_take_tensors(get(), &taken);
        if (status != SLIPRING_OK) {
            return status;
        }
        return tensors(taken);
    }
    result<int> descriptor() {
        int found;
        slipring_status status = slipring_subscriber_descriptor(get(), &found);
        if (status != SLIPRING_OK) {
            return status;
        }
        return found;
    }
    slipring_subscriber *get() const noexcept { return handle_.get(); }

  private:
    detail::owner<slipring_subscriber, slipring_subscriber_free> handle_;
};

inline result<publisher> context::publish(const std::string &address, const slipring_publisher_options &options) {
    slipring_publisher *made;
    slipring_status status = slipring_publisher_new(get(), address.c_str(), &options, sizeof options, &made);
    if (status != SLIPRING_OK) {
        return status;
    }
    return publisher(made);
}

inline result<subscriber> context::subscribe(const std::string &address, std::int64_t policy, timeout wait, std::uint32_t flags) {
    slipring_subscriber *made;
    slipring_status status = slipring_subscriber_new(get(), address.c_str(), policy, flags, wait.nanoseconds(), &made);
    if (status != SLIPRING_OK) {
        return status;
    }
    return subscriber(made);
}

} // inline namespace
} // namespace slipring

#endif
