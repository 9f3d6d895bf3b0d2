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
#include <functional>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>
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
        // A hundred years, which `Rep` may be too short for.
        if (std::chrono::duration<double>(time).count() >= 3153600000.0) {
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

// The version of the library that runs: "0.1.0".
inline std::string_view version() noexcept { return slipring_version(); }

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

// Calls a function that writes an `R`, and makes a `T` of it.
template <typename T, typename R = T, typename F> result<T> got(F &&call) {
    R found;
    slipring_status status = call(&found);
    if (status != SLIPRING_OK) {
        return status;
    }
    return T(found);
}

// Passes the handle of an owner to a function that takes it if it returns SLIPRING_OK.
template <typename O, typename F> slipring_status give(O &owner, F &&call) {
    slipring_status status = call(owner.get());
    if (status == SLIPRING_OK) {
        (void)owner.release();
    }
    return status;
}

// A time to rest, as slipring_connection_rest() writes it.
inline std::chrono::nanoseconds rest_of(std::int64_t nanoseconds) noexcept {
    return nanoseconds == SLIPRING_FOREVER ? std::chrono::nanoseconds::max() : std::chrono::nanoseconds(nanoseconds);
}

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
    // Throws what is wrong with the limit.
    options &set_loan_limit(std::uint32_t blocks, std::uint64_t bytes) {
        result<void>(slipring_options_set_loan_limit(handle_.get(), blocks, bytes)).value();
        return *this;
    }
    slipring_options *get() const noexcept { return handle_.get(); }

  private:
    detail::owner<slipring_options, slipring_options_free> handle_;
};

class connection;
class listener;
class publisher;
class reactor;
class subscriber;
class tensor;

// What all connections of a program share.
class context {
  public:
    static result<context> make() { return make(nullptr); }
    static result<context> make(const options &options) { return make(options.get()); }
    result<listener> listen(const std::string &address);
    result<connection> connect(const std::string &address, timeout wait = {});
    // A connection over a connected SOCK_SEQPACKET Unix socket, which it takes in any case. One side connects, the other accepts.
    result<connection> connect_socket(int socket);
    result<connection> accept_socket(int socket);
    // Two connections with each other, for tests.
    result<std::pair<connection, connection>> pair();
    // A tensor to be written and sent. SLIPRING_TENSOR_FROZEN and SLIPRING_TENSOR_ZEROED are flags.
    result<tensor> make_tensor(std::uint32_t dtype, span<const std::size_t> shape, std::uint32_t flags = 0, timeout wait = {});
    template <typename T>
    result<tensor> make_tensor(std::initializer_list<std::size_t> shape, std::uint32_t flags = 0, timeout wait = {});
    // A tensor of strings: `len` bytes, in which each is a std::uint32_t length and as many bytes.
    result<tensor> make_encoded(std::size_t len, span<const std::size_t> shape, std::uint32_t flags = 0, timeout wait = {});
    // A copy of another library's tensor, which it takes in any case.
    result<tensor> from_dlpack(DLManagedTensorVersioned *managed, timeout wait = {});
    result<publisher> publish(const std::string &address, const slipring_publisher_options &options = {});
    // `policy` is SLIPRING_EVERY, SLIPRING_LATEST, or how many of the newest messages.
    result<subscriber> subscribe(const std::string &address, std::int64_t policy, timeout wait = {}, std::uint32_t flags = 0);
    result<reactor> make_reactor();
    // Returns unused memory of the pool to the system.
    result<void> trim() { return slipring_context_trim(get()); }
    slipring_context *get() const noexcept { return handle_.get(); }

  private:
    explicit context(slipring_context *handle) noexcept : handle_(handle) {}
    template <typename T, typename R, typename F> friend result<T> detail::got(F &&);
    static result<context> make(const slipring_options *options) {
        return detail::got<context, slipring_context *>([&](auto made) { return slipring_context_new(options, made); });
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
        return detail::got<slipring_tensor_view>([&](auto view) { return slipring_tensor_get_view(get(), view, sizeof *view); });
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
    result<void> share() { return slipring_tensor_share(get()); }
    // Another handle of the same memory.
    result<tensor> clone() const {
        return detail::got<tensor, slipring_tensor *>([&](auto made) { return slipring_tensor_clone(get(), made); });
    }
    // A copy in private memory.
    result<tensor> copy() const {
        return detail::got<tensor, slipring_tensor *>([&](auto made) { return slipring_tensor_copy(get(), made); });
    }
    // Behind the last read: whether what was read is what the peer has sent.
    result<void> check() const { return slipring_tensor_check(get()); }
    // Hands the memory to another library. Include dlpack.h to look inside.
    result<DLManagedTensorVersioned *> to_dlpack() && {
        auto managed =
            detail::got<DLManagedTensorVersioned *>([&](auto made) { return slipring_tensor_to_dlpack(get(), made); });
        if (managed) {
            (void)release();
        }
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
        return detail::give(tensor, [&](auto handle) { return slipring_tensors_add(get(), name.c_str(), handle); });
    }
    std::size_t size() const noexcept {
        std::size_t count = 0;
        (void)slipring_tensors_count(get(), &count);
        return count;
    }
    // The name of a tensor, as long as the set lives.
    result<std::string_view> name(std::size_t index) const {
        return detail::got<std::string_view, const char *>([&](auto name) { return slipring_tensors_name(get(), index, name); });
    }
    // Takes a tensor out.
    result<tensor> take(std::size_t index) {
        return detail::got<tensor, slipring_tensor *>([&](auto taken) { return slipring_tensors_take(get(), index, taken); });
    }
    result<tensor> take(const std::string &name) {
        std::size_t index;
        slipring_status status = slipring_tensors_find(get(), name.c_str(), &index);
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

// A request with tensors: `connection::respond()` answers it by its number.
struct tensor_request {
    std::uint64_t id;
    slipring::tensors tensors;
};

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
    // Publishes the first `len` bytes. SLIPRING_INVALID_ARGUMENT: there are fewer, and nothing is published.
    result<void> publish_first(std::size_t len) && {
        slipring_status status = slipring_publish_first(link_, len);
        if (status != SLIPRING_INVALID_ARGUMENT) {
            link_ = nullptr;
        }
        return status;
    }

  private:
    slipring_connection *link_;
    std::byte *room_;
    std::size_t len_;
};

// Messages that become visible together. Nothing is sent if it goes out of scope before `publish()`. It does not outlive its
// connection, which sends nothing else meanwhile.
class batch {
  public:
    explicit batch(slipring_connection *link) noexcept : link_(link) {}
    batch(batch &&other) noexcept : link_(std::exchange(other.link_, nullptr)) {}
    batch &operator=(batch &&) = delete;
    ~batch() {
        if (link_ != nullptr) {
            (void)slipring_discard(link_);
        }
    }
    result<void> push(bytes message, timeout wait = {}) {
        return slipring_batch_push(link_, message.data(), message.size(), wait.nanoseconds());
    }
    result<void> push(std::string_view message, timeout wait = {}) { return push(as_bytes(message), wait); }
    // Room for one more message, to be written before `publish()`.
    result<writable_bytes> reserve(std::size_t len, timeout wait = {}) {
        void *room;
        slipring_status status = slipring_batch_reserve(link_, len, wait.nanoseconds(), &room);
        if (status != SLIPRING_OK) {
            return status;
        }
        return writable_bytes(static_cast<std::byte *>(room), len);
    }
    result<void> publish() && { return slipring_publish(std::exchange(link_, nullptr)); }

  private:
    slipring_connection *link_;
};

// The messages of a connection, for a range-based `for`: until the peer closes, the wait for one is over, or an error. `why()` tells
// behind the loop. Each message may be read until the next one is taken. After a `break` the message stays with the range: no other
// function that receives is called before the next loop or the end of the range.
class message_range {
  public:
    struct sentinel {};
    class iterator {
      public:
        using iterator_category = std::input_iterator_tag;
        using value_type = message;
        using difference_type = std::ptrdiff_t;
        using pointer = const message *;
        using reference = const message &;
        explicit iterator(message_range *range) noexcept : range_(range) {}
        reference operator*() const noexcept { return *range_->next_; }
        pointer operator->() const noexcept { return &*range_->next_; }
        iterator &operator++() {
            range_->step();
            return *this;
        }
        void operator++(int) { range_->step(); }
        friend bool operator==(const iterator &at, sentinel) noexcept { return at.is_over(); }
        friend bool operator!=(const iterator &at, sentinel) noexcept { return !at.is_over(); }

      private:
        bool is_over() const noexcept { return !range_->next_; }
        message_range *range_;
    };
    message_range(slipring_connection *link, timeout wait) noexcept : link_(link), wait_(wait) {}
    message_range(const message_range &) = delete;
    message_range &operator=(const message_range &) = delete;
    // After a `break` a second loop goes on behind the message of the first.
    iterator begin() {
        next_ ? step() : take();
        return iterator(this);
    }
    sentinel end() const noexcept { return {}; }
    // Why the loop has ended: a value once the peer has closed.
    result<void> why() const { return why_ == SLIPRING_END ? SLIPRING_OK : why_; }

  private:
    void take() {
        slipring_message found;
        why_ = slipring_peek(link_, wait_.nanoseconds(), &found);
        if (why_ == SLIPRING_OK) {
            next_.emplace(link_, found);
        }
    }
    void step() {
        why_ = std::move(*next_).release().status();
        next_.reset();
        if (why_ == SLIPRING_OK || why_ == SLIPRING_WRONG_STATE) { // the latter: another function has received it
            take();
        }
    }
    slipring_connection *link_;
    timeout wait_;
    slipring_status why_ = SLIPRING_OK;
    std::optional<message> next_;
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
        return detail::got<std::size_t>(
            [&](auto len) { return slipring_recv(get(), room.data(), room.size(), len, wait.nanoseconds()); });
    }
    result<reservation> reserve(std::size_t len, timeout wait = {}) & {
        void *room;
        slipring_status status = slipring_reserve(get(), len, wait.nanoseconds(), &room);
        if (status != SLIPRING_OK) {
            return status;
        }
        return reservation(get(), room, len);
    }
    result<slipring::batch> batch() & {
        slipring_status status = slipring_batch_begin(get());
        if (status != SLIPRING_OK) {
            return status;
        }
        return slipring::batch(get());
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
    // The messages that come: `for (const slipring::message &message : messages)`. `wait` is for each of them.
    message_range messages(timeout wait = {}) & noexcept { return message_range(get(), wait); }
    // Calls `act(const message &)` with each message until the peer closes, the wait is over, or an error: that status.
    template <typename F> result<void> for_each(F &&act, timeout wait = {}) & {
        auto all = messages(wait);
        for (const message &next : all) {
            act(next);
        }
        return all.why();
    }
    // Takes the tensor if it returns a value.
    result<void> send(tensor &&tensor, timeout wait = {}) {
        return detail::give(tensor, [&](auto handle) { return slipring_send_tensor(get(), handle, wait.nanoseconds()); });
    }
    result<void> send(tensors &&tensors, timeout wait = {}) {
        return detail::give(tensors, [&](auto handle) { return slipring_send_tensors(get(), handle, wait.nanoseconds()); });
    }
    result<tensor> recv_tensor(timeout wait = {}) {
        return detail::got<tensor, slipring_tensor *>(
            [&](auto received) { return slipring_recv_tensor(get(), wait.nanoseconds(), received); });
    }
    result<tensors> recv_tensors(timeout wait = {}) {
        return detail::got<tensors, slipring_tensors *>(
            [&](auto received) { return slipring_recv_tensors(get(), wait.nanoseconds(), received); });
    }
    // Sends a request. Its number is for `wait()` or `wait_tensors()`. Any number of them may be open, in any order.
    result<std::uint64_t> submit(bytes request, timeout wait = {}) {
        return detail::got<std::uint64_t>(
            [&](auto id) { return slipring_submit(get(), request.data(), request.size(), wait.nanoseconds(), id); });
    }
    // Takes the tensors if it returns a value.
    result<std::uint64_t> submit(tensors &&tensors, timeout wait = {}) {
        return detail::got<std::uint64_t>([&](auto id) {
            return detail::give(
                tensors, [&](auto handle) { return slipring_submit_tensors(get(), handle, wait.nanoseconds(), id); });
        });
    }
    // A response, whose bytes may be read until the next function that receives.
    result<bytes> wait(std::uint64_t id, timeout wait = {}) & {
        slipring_call response;
        slipring_status status = slipring_wait(get(), id, wait.nanoseconds(), &response);
        if (status != SLIPRING_OK) {
            return status;
        }
        return bytes(static_cast<const std::byte *>(response.data), response.len);
    }
    result<tensors> wait_tensors(std::uint64_t id, timeout wait = {}) {
        return detail::got<tensors, slipring_tensors *>(
            [&](auto received) { return slipring_wait_tensors(get(), id, wait.nanoseconds(), received); });
    }
    // Wants no response to a request any more.
    result<void> abandon(std::uint64_t id) { return slipring_abandon(get(), id); }
    // A request and its response, whose bytes may be read until the next function that receives.
    result<bytes> call(bytes request, timeout wait = {}) & {
        auto id = submit(request, wait);
        if (!id) {
            return id.status();
        }
        auto response = this->wait(*id, wait);
        if (!response) {
            (void)abandon(*id);
        }
        return response;
    }
    result<slipring_call> recv_request(timeout wait = {}) & {
        return detail::got<slipring_call>(
            [&](auto request) { return slipring_recv_request(get(), wait.nanoseconds(), request); });
    }
    result<tensor_request> recv_tensor_request(timeout wait = {}) {
        std::uint64_t id;
        slipring_tensors *received;
        slipring_status status = slipring_recv_tensor_request(get(), wait.nanoseconds(), &id, &received);
        if (status != SLIPRING_OK) {
            return status;
        }
        return tensor_request{id, tensors(received)};
    }
    result<void> respond(std::uint64_t id, bytes response, timeout wait = {}) {
        return slipring_respond(get(), id, response.data(), response.size(), wait.nanoseconds());
    }
    result<void> respond(std::uint64_t id, tensors &&response, timeout wait = {}) {
        return detail::give(
            response, [&](auto handle) { return slipring_respond_tensors(get(), id, handle, wait.nanoseconds()); });
    }
    // Runs the function that the peer's reactor has registered under a token.
    result<void> trigger(std::uint32_t token, timeout wait = {}) { return slipring_trigger(get(), token, wait.nanoseconds()); }
    // For epoll: as slipring_connection_descriptor().
    result<int> descriptor() {
        return detail::got<int>([&](auto found) { return slipring_connection_descriptor(get(), found); });
    }
    // For a thread that serves several peers: as slipring_connection_take_turns().
    result<void> take_turns() { return slipring_connection_take_turns(get()); }
    // When to receive again after `would_block()`. The longest time: at the next event of the descriptor.
    result<std::chrono::nanoseconds> rest() {
        std::int64_t nanoseconds;
        slipring_status status = slipring_connection_rest(get(), &nanoseconds);
        if (status != SLIPRING_OK) {
            return status;
        }
        return detail::rest_of(nanoseconds);
    }
    slipring_peer peer() const noexcept {
        slipring_peer found = {};
        (void)slipring_connection_peer(get(), &found);
        return found;
    }
    result<slipring_stats> stats() {
        return detail::got<slipring_stats>([&](auto stats) { return slipring_connection_get_stats(get(), stats, sizeof *stats); });
    }
    // Ends it in order, and tells whether the peer could get the last messages. The destructor does so without a word.
    result<void> close() && { return end(slipring_connection_close(get())); }
    // Ends it at once, and takes back all memory that the peer holds.
    result<void> abort() && { return end(slipring_connection_abort(get())); }
    slipring_connection *get() const noexcept { return handle_.get(); }
    slipring_connection *release() noexcept { return handle_.release(); }

  private:
    slipring_status end(slipring_status status) noexcept {
        if (status != SLIPRING_BUSY) {
            (void)release();
        }
        return status;
    }
    detail::owner<slipring_connection, slipring_connection_close> handle_;
};

// An address that others connect to.
class listener {
  public:
    explicit listener(slipring_listener *handle) noexcept : handle_(handle) {}
    result<connection> accept(timeout wait = {}) {
        return detail::got<connection, slipring_connection *>(
            [&](auto accepted) { return slipring_accept(get(), wait.nanoseconds(), accepted); });
    }
    // For epoll: as slipring_listener_descriptor().
    result<int> descriptor() {
        return detail::got<int>([&](auto found) { return slipring_listener_descriptor(get(), found); });
    }
    result<slipring_listener_stats> stats() {
        return detail::got<slipring_listener_stats>(
            [&](auto stats) { return slipring_listener_get_stats(get(), stats, sizeof *stats); });
    }
    slipring_listener *get() const noexcept { return handle_.get(); }

  private:
    detail::owner<slipring_listener, slipring_listener_free> handle_;
};

// ---- topics ---------------------------------------------------------------------------------------------------------------

// Room for a message of a topic. Nothing is sent if it goes out of scope before `publish()`. It does not outlive its publisher, which
// does nothing else meanwhile.
class topic_reservation {
  public:
    topic_reservation(slipring_publisher *topic, void *room, std::size_t len) noexcept
        : topic_(topic), room_(static_cast<std::byte *>(room)), len_(len) {}
    topic_reservation(topic_reservation &&other) noexcept
        : topic_(std::exchange(other.topic_, nullptr)), room_(other.room_), len_(other.len_) {}
    topic_reservation &operator=(topic_reservation &&) = delete;
    ~topic_reservation() {
        if (topic_ != nullptr) {
            (void)slipring_publisher_discard(topic_);
        }
    }
    writable_bytes data() const noexcept { return writable_bytes(room_, len_); }
    result<void> publish() && { return slipring_publisher_publish(std::exchange(topic_, nullptr)); }

  private:
    slipring_publisher *topic_;
    std::byte *room_;
    std::size_t len_;
};

// The writer of a topic.
class publisher {
  public:
    explicit publisher(slipring_publisher *handle) noexcept : handle_(handle) {}
    result<void> send(bytes message, timeout wait = {}) {
        return slipring_publisher_send(get(), message.data(), message.size(), wait.nanoseconds());
    }
    result<void> send(std::string_view message, timeout wait = {}) { return send(as_bytes(message), wait); }
    result<void> send(tensor &&tensor, timeout wait = {}) {
        return detail::give(
            tensor, [&](auto handle) { return slipring_publisher_send_tensor(get(), handle, wait.nanoseconds()); });
    }
    result<void> send(tensors &&tensors, timeout wait = {}) {
        return detail::give(
            tensors, [&](auto handle) { return slipring_publisher_send_tensors(get(), handle, wait.nanoseconds()); });
    }
    // Room for a message, which is written where the subscribers read it.
    result<topic_reservation> reserve(std::size_t len) & {
        void *room;
        slipring_status status = slipring_publisher_reserve(get(), len, &room);
        if (status != SLIPRING_OK) {
            return status;
        }
        return topic_reservation(get(), room, len);
    }
    // What happened to a subscriber, or `would_block()`.
    result<slipring_event> next_event() {
        return detail::got<slipring_event>([&](auto event) { return slipring_publisher_next_event(get(), event); });
    }
    // The subscribers of now.
    result<std::vector<slipring_subscriber_info>> subscribers() {
        std::vector<slipring_subscriber_info> infos;
        std::size_t count = 0;
        do {
            infos.resize(count);
            slipring_status status = slipring_publisher_subscribers(get(), infos.data(), infos.size(), &count);
            if (status != SLIPRING_OK) {
                return status;
            }
        } while (count > infos.size());
        infos.resize(count);
        return infos;
    }
    result<void> evict(std::uint64_t subscriber) { return slipring_publisher_evict(get(), subscriber); }
    result<slipring_publisher_stats> stats() {
        return detail::got<slipring_publisher_stats>(
            [&](auto stats) { return slipring_publisher_get_stats(get(), stats, sizeof *stats); });
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
        return detail::got<slipring_sample>(
            [&](auto sample) { return slipring_subscriber_next(get(), wait.nanoseconds(), sample); });
    }
    // Behind the last read of a sample's bytes: whether they were what the publisher sent.
    result<void> check() { return slipring_subscriber_check(get()); }
    // Copies the current message, and returns its length. The copy is what was sent.
    result<std::size_t> copy(writable_bytes room) {
        return detail::got<std::size_t>([&](auto len) { return slipring_subscriber_copy(get(), room.data(), room.size(), len); });
    }
    // The tensors of the current message.
    result<tensors> take_tensors() {
        return detail::got<tensors, slipring_tensors *>(
            [&](auto taken) { return slipring_subscriber_take_tensors(get(), taken); });
    }
    // Gives the current message back before the next one is wanted.
    result<void> release() { return slipring_subscriber_release(get()); }
    result<int> descriptor() {
        return detail::got<int>([&](auto found) { return slipring_subscriber_descriptor(get(), found); });
    }
    // For a thread that serves several peers: as those of a connection.
    result<void> take_turns() { return slipring_subscriber_take_turns(get()); }
    result<std::chrono::nanoseconds> rest() {
        std::int64_t nanoseconds;
        slipring_status status = slipring_subscriber_rest(get(), &nanoseconds);
        if (status != SLIPRING_OK) {
            return status;
        }
        return detail::rest_of(nanoseconds);
    }
    result<slipring_subscriber_stats> stats() {
        return detail::got<slipring_subscriber_stats>(
            [&](auto stats) { return slipring_subscriber_get_stats(get(), stats, sizeof *stats); });
    }
    slipring_subscriber *get() const noexcept { return handle_.get(); }

  private:
    detail::owner<slipring_subscriber, slipring_subscriber_free> handle_;
};

// ---- reactors -------------------------------------------------------------------------------------------------------------

// A link of a reactor, which somebody else owns: inside of a callback the reactor.
class link_ref {
  public:
    explicit link_ref(slipring_link *handle) noexcept : handle_(handle) {}
    // At once, or `would_block()`.
    result<void> send(bytes message) { return slipring_link_send(get(), message.data(), message.size()); }
    result<void> send(std::string_view message) { return send(as_bytes(message)); }
    // At once, or as soon as there is room.
    result<void> write(bytes message) { return slipring_link_write(get(), message.data(), message.size()); }
    result<void> write(std::string_view message) { return write(as_bytes(message)); }
    result<void> write(tensor &&tensor) {
        return detail::give(tensor, [&](auto handle) { return slipring_link_write_tensor(get(), handle); });
    }
    result<void> write(tensors &&tensors) {
        return detail::give(tensors, [&](auto handle) { return slipring_link_write_tensors(get(), handle); });
    }
    result<void> respond(std::uint64_t id, bytes response) {
        return slipring_link_respond(get(), id, response.data(), response.size());
    }
    result<void> respond(std::uint64_t id, tensors &&response) {
        return detail::give(response, [&](auto handle) { return slipring_link_respond_tensors(get(), id, handle); });
    }
    // Registers a function that the peer can trigger. Its token is to be sent to the peer. The function may not throw.
    result<std::uint32_t> register_function(std::function<void(link_ref)> function) {
        auto user = std::make_unique<std::function<void(link_ref)>>(std::move(function));
        auto run = [](void *user, slipring_link *link) noexcept {
            (*static_cast<std::function<void(link_ref)> *>(user))(link_ref(link));
        };
        auto drop = [](void *user) noexcept { delete static_cast<std::function<void(link_ref)> *>(user); };
        return detail::got<std::uint32_t>(
            [&](auto token) { return slipring_link_register(get(), run, user.release(), drop, token); });
    }
    result<void> unregister(std::uint32_t token) { return slipring_link_unregister(get(), token); }
    // Runs the function that the peer has registered under a token, in order with the writes.
    result<void> trigger(std::uint32_t token) { return slipring_link_trigger(get(), token); }
    // Ends it in order, after the writes that wait.
    result<void> close() { return slipring_link_close(get()); }
    // Ends it at once, and takes back all memory that the peer holds of it.
    result<void> abort() { return slipring_link_abort(get()); }
    slipring_link *get() const noexcept { return handle_; }

  private:
    slipring_link *handle_;
};

// A handle of a link of a reactor. The link goes on without it.
class link : public link_ref {
  public:
    explicit link(slipring_link *handle) noexcept : link_ref(handle), handle_(handle) {}
    link(link &&other) noexcept : link_ref(other), handle_(std::move(other.handle_)) {}
    link &operator=(link &&other) noexcept {
        link_ref::operator=(other);
        handle_ = std::move(other.handle_);
        return *this;
    }

  private:
    detail::owner<slipring_link, slipring_link_free> handle_;
};

// A message or a request of a reactor's link. Its bytes may be read until the callback returns.
struct received {
    bytes data;
    slipring_kind kind;
    // Of a request.
    std::uint64_t id;
};

// What a reactor calls, on its thread. Any of them may be empty: without `on_message` or `on_tensors` such messages wait in the ring,
// and the peer with them. A callback may call any function but those that wait. It may not throw: that ends the program. The
// functions are destroyed after the last call.
struct callbacks {
    std::function<void(link_ref, const received &)> on_message;
    // The kind is SLIPRING_KIND_TENSORS or SLIPRING_KIND_TENSOR_REQUEST, which has the number.
    std::function<void(link_ref, tensors, slipring_kind, std::uint64_t)> on_tensors;
    // The end: SLIPRING_OK in order, or why.
    std::function<void(link_ref, slipring_status, std::string_view)> on_closed;
};

// A thread that serves any number of links. It ends them when it is destroyed, and does not wait for that.
class reactor {
  public:
    explicit reactor(slipring_reactor *handle) noexcept : handle_(handle) {}
    // Takes the connection, unless it returns SLIPRING_INVALID_HANDLE, SLIPRING_INVALID_ARGUMENT, SLIPRING_PANIC or SLIPRING_BUSY. The callbacks are called from
    // now on.
    result<link> adopt(connection &&connection, callbacks functions) {
        auto user = std::make_unique<callbacks>(std::move(functions));
        slipring_callbacks calls = {};
        if (user->on_message) {
            calls.on_message = [](void *user, slipring_link *link, const slipring_message *message, std::uint64_t id) noexcept {
                bytes data(static_cast<const std::byte *>(message->data), message->len);
                static_cast<callbacks *>(user)->on_message(link_ref(link), received{data, message->kind, id});
            };
        }
        if (user->on_tensors) {
            calls.on_tensors = [](void *user, slipring_link *link, slipring_tensors *set, slipring_kind kind,
                                  std::uint64_t id) noexcept {
                static_cast<callbacks *>(user)->on_tensors(link_ref(link), tensors(set), kind, id);
            };
        }
        if (user->on_closed) {
            calls.on_closed = [](void *user, slipring_link *link, slipring_status status, const char *text) noexcept {
                static_cast<callbacks *>(user)->on_closed(link_ref(link), status, text == nullptr ? "" : text);
            };
        }
        calls.drop = [](void *user) noexcept { delete static_cast<callbacks *>(user); };
        calls.user = user.release();
        slipring_link *made;
        slipring_status status = slipring_reactor_adopt(handle_.get(), connection.get(), &calls, sizeof calls, &made);
        if (status != SLIPRING_INVALID_HANDLE && status != SLIPRING_INVALID_ARGUMENT && status != SLIPRING_PANIC &&
            status != SLIPRING_BUSY) {
            (void)connection.release();
        }
        if (status != SLIPRING_OK) {
            return status;
        }
        return link(made);
    }
    slipring_reactor *get() const noexcept { return handle_.get(); }

  private:
    detail::owner<slipring_reactor, slipring_reactor_free> handle_;
};

// ---- what a context makes -------------------------------------------------------------------------------------------------

template <typename T>
result<tensor> context::make_tensor(std::initializer_list<std::size_t> shape, std::uint32_t flags, timeout wait) {
    return make_tensor(detail::dtype_of<T>(), span<const std::size_t>(shape.begin(), shape.size()), flags, wait);
}

inline result<tensor> context::make_tensor(std::uint32_t dtype, span<const std::size_t> shape, std::uint32_t flags, timeout wait) {
    return detail::got<tensor, slipring_tensor *>([&](auto made) {
        return slipring_tensor_new(get(), dtype, shape.data(), shape.size(), flags, wait.nanoseconds(), made);
    });
}

inline result<tensor> context::make_encoded(std::size_t len, span<const std::size_t> shape, std::uint32_t flags, timeout wait) {
    return detail::got<tensor, slipring_tensor *>([&](auto made) {
        return slipring_tensor_new_encoded(get(), len, shape.data(), shape.size(), flags, wait.nanoseconds(), made);
    });
}

inline result<tensor> context::from_dlpack(DLManagedTensorVersioned *managed, timeout wait) {
    return detail::got<tensor, slipring_tensor *>(
        [&](auto made) { return slipring_tensor_from_dlpack(get(), managed, wait.nanoseconds(), made); });
}

inline result<listener> context::listen(const std::string &address) {
    return detail::got<listener, slipring_listener *>([&](auto made) { return slipring_listen(get(), address.c_str(), made); });
}

inline result<connection> context::connect(const std::string &address, timeout wait) {
    return detail::got<connection, slipring_connection *>(
        [&](auto made) { return slipring_connect(get(), address.c_str(), wait.nanoseconds(), made); });
}

inline result<connection> context::connect_socket(int socket) {
    return detail::got<connection, slipring_connection *>([&](auto made) { return slipring_connect_socket(get(), socket, made); });
}

inline result<connection> context::accept_socket(int socket) {
    return detail::got<connection, slipring_connection *>([&](auto made) { return slipring_accept_socket(get(), socket, made); });
}

inline result<std::pair<connection, connection>> context::pair() {
    slipring_connection *one, *other;
    slipring_status status = slipring_pair(get(), &one, &other);
    if (status != SLIPRING_OK) {
        return status;
    }
    return std::pair<connection, connection>(connection(one), connection(other));
}

inline result<publisher> context::publish(const std::string &address, const slipring_publisher_options &options) {
    return detail::got<publisher, slipring_publisher *>(
        [&](auto made) { return slipring_publisher_new(get(), address.c_str(), &options, sizeof options, made); });
}

inline result<subscriber> context::subscribe(const std::string &address, std::int64_t policy, timeout wait, std::uint32_t flags) {
    return detail::got<subscriber, slipring_subscriber *>([&](auto made) {
        return slipring_subscriber_new(get(), address.c_str(), policy, flags, wait.nanoseconds(), made);
    });
}

inline result<reactor> context::make_reactor() {
    return detail::got<reactor, slipring_reactor *>([&](auto made) { return slipring_reactor_new(get(), made); });
}

} // inline namespace
} // namespace slipring

#endif
