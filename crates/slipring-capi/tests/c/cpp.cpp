// slipring.hpp: results, owners and views; with and without exceptions.
#include <array>
#include <atomic>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "slipring.hpp"

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            std::cerr << __FILE__ << ":" << __LINE__ << ": " << #condition << ": " << slipring_last_error() << std::endl; \
            std::exit(1); \
        } \
    } while (0)

using slipring::timeout;
using namespace std::chrono_literals;

static const timeout HANG = 60s;

static_assert(!std::is_copy_constructible_v<slipring::connection> && std::is_nothrow_move_constructible_v<slipring::connection>);
static_assert(!std::is_copy_constructible_v<slipring::tensor> && std::is_nothrow_move_assignable_v<slipring::tensor>);
struct base {
    int first;
};
struct derived : base {
    int second;
};
static_assert(!std::is_constructible_v<slipring::span<base>, std::vector<derived> &>);
static_assert(std::is_constructible_v<slipring::span<const base>, std::vector<base> &>);
static_assert(timeout(1ms).nanoseconds() == 1000000 && timeout(-1ms).nanoseconds() == SLIPRING_NONBLOCK);
static_assert(timeout(std::chrono::duration<int>(1)).nanoseconds() == 1000000000);
static_assert(timeout(std::chrono::duration<int, std::nano>(1)).nanoseconds() == 1);
static_assert(timeout(std::chrono::hours::max()).nanoseconds() == SLIPRING_FOREVER && timeout().nanoseconds() == SLIPRING_DEFAULT);
static_assert(timeout::none().nanoseconds() == 0 && timeout::forever().nanoseconds() == SLIPRING_FOREVER);

static void messages(slipring::context &context) {
    auto [near, far] = context.pair().value();
    std::array<std::byte, 16> room;
    CHECK(far.recv(room, timeout::none()).would_block());
    CHECK(std::strcmp(far.recv(room, timeout::none()).failure().what(), "SLIPRING_WOULD_BLOCK") == 0);
    CHECK(far.recv(room, 1ms).status() == SLIPRING_TIMED_OUT);
    near.send("one", HANG).value();
    near.send(std::vector<std::byte>(20), HANG).value();
    CHECK(far.recv(room, HANG).value() == 3);
    CHECK(slipring::as_text(slipring::bytes(room.data(), 3)) == "one");
    CHECK(far.recv(room, HANG).status() == SLIPRING_BUFFER_TOO_SHORT);
    {
        auto message = far.peek(HANG).value();
        CHECK(message.data().size() == 20 && message.kind() == SLIPRING_KIND_MESSAGE);
        std::move(message).leave();
    }
    {
        auto first = far.peek(HANG).value();
        auto message = std::move(first); // the last owner alone releases it
        CHECK(message.data().size() == 20);
    }
    {
        auto dropped = near.reserve(8).value();
        dropped.data()[0] = std::byte(1);
    }
    auto reservation = near.reserve(2, HANG).value();
    reservation.data()[0] = std::byte('o');
    reservation.data()[1] = std::byte('k');
    std::move(reservation).publish().value();
    near.send("stop").value();
    int seen = 0;
    auto over = far.for_each(
        [&](const slipring::message &message) { CHECK(message.text() == (seen++ == 0 ? "ok" : "stop")); }, timeout::none());
    CHECK(over.would_block() && seen == 2);
    std::move(near).close().value();
    CHECK(far.for_each([](const slipring::message &) { std::abort(); }, HANG));
    CHECK(far.peek(HANG).ended());
}

static void loops_and_batches(slipring::context &context) {
    auto [near, far] = context.pair().value();
    {
        auto dropped = near.batch().value();
        dropped.push("dropped", HANG).value();
    }
    auto batch = near.batch().value();
    batch.push("a", HANG).value();
    auto room = batch.reserve(2, HANG).value();
    std::memcpy(room.data(), "bc", 2);
    CHECK(near.send("between", timeout::none()).status() == SLIPRING_WRONG_STATE);
    CHECK(far.peek(timeout::none()).would_block());
    auto moved = std::move(batch);
    std::move(moved).publish().value();
    auto shortened = near.reserve(10).value();
    std::memcpy(shortened.data().data(), "d", 1);
    std::move(shortened).publish_first(1).value();
    near.send("e", HANG).value();
    CHECK(near.reserve(1).value().data().size() == 1); // nothing is open
    std::string all;
    {
        auto messages = far.messages(timeout::none());
        for (const slipring::message &message : messages) {
            all += message.text();
            if (message.text() == "bc") {
                break;
            }
        }
        CHECK(all == "abc" && messages.why());
        for (const slipring::message &message : messages) {
            all += message.text();
            break; // it is released with the range
        }
        CHECK(all == "abcd");
    }
    auto messages = far.messages(timeout::none());
    for (const slipring::message &message : messages) {
        all += message.text();
    }
    CHECK(all == "abcde" && messages.why().would_block());
    for (const slipring::message &message : messages) {
        CHECK(message.data().empty());
    }
    CHECK(near.stats().value().sent.messages == 4 && far.stats().value().received.messages == 4);
    far.take_turns().value();
    CHECK(far.rest().value() == std::chrono::nanoseconds::max());
    std::move(near).abort().value();
    auto last = far.messages(HANG);
    for (const slipring::message &message : last) {
        CHECK(message.data().empty());
    }
    CHECK(!last.why().would_block());
}

static void errors(slipring::context &context) {
    auto refused = context.connect("slipring-cpp-nobody", timeout::none());
    CHECK(!refused && refused.status() == SLIPRING_NOBODY_LISTENS);
    slipring::error failure = refused.failure();
    CHECK(failure.status() == SLIPRING_NOBODY_LISTENS && std::strstr(failure.what(), "slipring-cpp-nobody"));
#ifdef SLIPRING_EXCEPTIONS
    try {
        (void)std::move(refused).value();
        std::abort();
    } catch (const slipring::error &caught) {
        CHECK(caught.status() == SLIPRING_NOBODY_LISTENS);
    }
    try {
        slipring::options().set(SLIPRING_OPTION_SEND_TIMEOUT, 1000000000).set(static_cast<slipring_option>(999), 1);
        std::abort();
    } catch (const std::runtime_error &caught) {
        CHECK(std::strlen(caught.what()) > 0);
    }
#endif
}

static void tensors(slipring::context &context) {
    auto [near, far] = context.pair().value();
    auto made = context.make_tensor<float>({2, 3}).value();
    float next = 0;
    for (float &element : made.writable_elements<float>().value()) {
        element = next++;
    }
    CHECK(made.elements<double>().status() == SLIPRING_INVALID_TENSOR);
    CHECK(std::strstr(made.elements<double>().failure().what(), "another type"));
    CHECK(made.clone().status() == SLIPRING_WRONG_STATE);
    made.share().value();
    CHECK(made.writable_elements<float>().status() == SLIPRING_WRONG_STATE);
    near.send(made.clone().value(), HANG).value();
    auto received = far.recv_tensor(HANG).value();
    auto view = received.view().value();
    CHECK(view.rank == 2 && view.shape[0] == 2 && view.shape[1] == 3 && (view.flags & SLIPRING_TENSOR_ON_LOAN) != 0);
    CHECK(received.elements<float>().value()[5] == 5);
    received.check().value();
    slipring::tensors set;
    set.add("kept", received.copy().value()).value();
    set.add("made", std::move(made)).value();
    auto again = context.make_tensor<bool>({1}, SLIPRING_TENSOR_ZEROED).value();
    CHECK(set.add("made", std::move(again)).status() == SLIPRING_INVALID_ARGUMENT);
    CHECK(again.view()); // what was not taken is still there
    near.send(std::move(set), HANG).value();
    auto all = far.recv_tensors(HANG).value();
    CHECK(all.size() == 2 && all.take("kept").value().elements<float>().value()[4] == 4);
    CHECK(all.take(1).value().elements<float>().value().size() == 6);
    CHECK(all.take(1).status() == SLIPRING_WRONG_STATE && all.take("none").status() == SLIPRING_INVALID_ARGUMENT);
}

static void calls(slipring::context &context) {
    auto [near, far] = context.pair().value();
    std::thread server([&far = far] {
        auto request = far.recv_request(HANG).value();
        std::string text(static_cast<const char *>(request.data), request.len);
        far.respond(request.id, slipring::as_bytes(text + "!"), HANG).value();
        CHECK(far.recv_request(HANG).value().len == 7); // nobody waits for its response
        CHECK(far.recv_request(HANG).ended());
    });
    CHECK(slipring::as_text(near.call(slipring::as_bytes("hello"), HANG).value()) == "hello!");
    CHECK(near.call(slipring::as_bytes("unheard"), timeout::none()).would_block());
    near = context.pair().value().first; // the old one closes
    server.join();
}

static slipring::tensors set_of(slipring::context &context, std::int32_t value) {
    slipring::tensors set;
    auto made = context.make_tensor<std::int32_t>({1}).value();
    made.writable_elements<std::int32_t>().value()[0] = value;
    set.add("value", std::move(made)).value();
    return set;
}

static void calls_with_tensors(slipring::context &context) {
    auto [near, far] = context.pair().value();
    auto first = near.submit(set_of(context, 7), HANG).value();
    auto second = near.submit(slipring::as_bytes("bytes"), HANG).value();
    auto request = far.recv_tensor_request(HANG).value();
    CHECK(request.id == first && request.tensors.name(0).value() == "value");
    CHECK(request.tensors.take("value").value().elements<std::int32_t>().value()[0] == 7);
    auto other = far.recv_request(HANG).value();
    far.respond(other.id, slipring::as_bytes("late"), HANG).value();
    far.respond(request.id, set_of(context, 8), HANG).value();
    CHECK(near.wait_tensors(first, HANG).value().take(0).value().elements<std::int32_t>().value()[0] == 8);
    CHECK(slipring::as_text(near.wait(second, HANG).value()) == "late");
    CHECK(near.wait(second, HANG).status() == SLIPRING_INVALID_ARGUMENT);
    auto unwanted = near.submit(slipring::as_bytes("unwanted"), HANG).value();
    near.abandon(unwanted).value();
}

// A peer in a reactor: it echoes messages, answers requests, and its functions are triggered.
static void reactors(slipring::context &context) {
    auto [near, far] = context.pair().value();
    auto reactor = context.make_reactor().value();
    std::atomic<int> triggered{0}, dropped{0};
    std::atomic<bool> closed{false};
    std::shared_ptr<int> counted(new int, [&dropped](int *gone) {
        delete gone;
        ++dropped;
    });
    std::optional<slipring::callbacks> given(std::in_place);
    slipring::callbacks &callbacks = *given;
    callbacks.on_message = [counted](slipring::link_ref link, const slipring::received &message) {
        if (message.kind == SLIPRING_KIND_REQUEST) {
            (void)link.respond(message.id, message.data);
        } else {
            (void)link.write(message.data);
        }
    };
    callbacks.on_tensors = [](slipring::link_ref link, slipring::tensors set, slipring_kind kind, std::uint64_t id) {
        if (kind == SLIPRING_KIND_TENSOR_REQUEST) {
            (void)link.respond(id, std::move(set));
        } else {
            (void)link.write(set.take(0).value());
        }
    };
    callbacks.on_closed = [&closed](slipring::link_ref, slipring_status status, std::string_view) {
        CHECK(status == SLIPRING_OK);
        closed = true;
    };
    auto link = reactor.adopt(std::move(far), std::move(callbacks)).value();
    given.reset(); // what was moved from may have copies
    CHECK(far.get() == nullptr);
    near.send("echo", HANG).value();
    CHECK(near.peek(HANG).value().text() == "echo");
    CHECK(slipring::as_text(near.call(slipring::as_bytes("call"), HANG).value()) == "call");
    near.send(set_of(context, 3), HANG).value();
    CHECK(near.recv_tensor(HANG).value().elements<std::int32_t>().value()[0] == 3);
    auto id = near.submit(set_of(context, 4), HANG).value();
    CHECK(near.wait_tensors(id, HANG).value().size() == 1);
    auto token = link.register_function([&triggered, counted](slipring::link_ref link) {
        ++triggered;
        (void)link.write("triggered");
    });
    near.trigger(token.value(), HANG).value();
    CHECK(near.peek(HANG).value().text() == "triggered" && triggered == 1);
    link.unregister(*token).value();
    near.trigger(*token, HANG).value();
    auto other = std::move(link);
    other.send("last").value();
    CHECK(near.peek(HANG).value().text() == "last" && triggered == 1);
    counted.reset();
    other.close().value();
    CHECK(near.peek(HANG).ended());
    std::move(near).close().value();
    auto late = std::chrono::steady_clock::now() + 60s;
    while (!closed || dropped == 0) {
        CHECK(std::chrono::steady_clock::now() < late);
        std::this_thread::yield();
    }
    CHECK(other.write("after the end")); // no effect
}

static void topics(slipring::context &context) {
    std::string address = "slipring-cpp-" + std::to_string(std::rand()) + "-" + std::to_string(reinterpret_cast<std::uintptr_t>(&context));
    slipring_publisher_options options = {};
    options.slots = 16;
    auto publisher = context.publish(address, options).value();
    auto subscriber = context.subscribe(address, SLIPRING_EVERY, {}, SLIPRING_NO_RECONNECT).value();
    CHECK(publisher.next_event().value().kind == SLIPRING_EVENT_JOINED && publisher.next_event().would_block());
    publisher.send("tick").value();
    publisher.send(context.make_tensor<std::int16_t>({7}).value()).value();
    auto sample = subscriber.next(HANG).value();
    CHECK(sample.len == 4 && std::memcmp(sample.data, "tick", 4) == 0);
    subscriber.check().value();
    subscriber.next(HANG).value();
    CHECK(subscriber.take_tensors().value().take(0).value().view().value().len == 14);
    CHECK(subscriber.next(timeout::none()).would_block());
    auto room = publisher.reserve(3).value();
    std::memcpy(room.data().data(), "toc", 3);
    std::move(room).publish().value();
    { auto dropped = publisher.reserve(3).value(); }
    sample = subscriber.next(HANG).value();
    std::array<std::byte, 3> copy;
    CHECK(sample.len == 3 && subscriber.copy(copy).value() == 3 && slipring::as_text(copy) == "toc");
    subscriber.release().value();
    CHECK(subscriber.copy(copy).status() == SLIPRING_WRONG_STATE);
    auto subscribers = publisher.subscribers().value();
    CHECK(subscribers.size() == 1 && subscribers[0].policy == SLIPRING_EVERY);
    CHECK(publisher.stats().value().sent == 3 && subscriber.stats().value().received == 3);
    auto late = context.subscribe(address, SLIPRING_LATEST, {}, SLIPRING_NO_RECONNECT).value();
    CHECK(publisher.subscribers().value().size() == 2);
    for (const auto &info : publisher.subscribers().value()) {
        if (info.policy == SLIPRING_LATEST) {
            publisher.evict(info.id).value();
        }
    }
    CHECK(late.next(HANG).status() == SLIPRING_EVICTED);
    { auto gone = std::move(publisher); }
    CHECK(subscriber.next(HANG).ended());
}

int main() {
    slipring::options options;
    options.set(SLIPRING_OPTION_HANDSHAKE_TIMEOUT, 60000000000);
    auto context = slipring::context::make(options).value();
    CHECK(slipring::version() == slipring_version());
    messages(context);
    loops_and_batches(context);
    errors(context);
    tensors(context);
    calls(context);
    calls_with_tensors(context);
    reactors(context);
    topics(context);
    return 0;
}
