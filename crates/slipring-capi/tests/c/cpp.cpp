// slipring.hpp: results, owners and views; with and without exceptions.
#include <array>
#include <cstdlib>
#include <iostream>
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
    { auto gone = std::move(publisher); }
    CHECK(subscriber.next(HANG).ended());
}

int main() {
    slipring::options options;
    options.set(SLIPRING_OPTION_HANDSHAKE_TIMEOUT, 60000000000);
    auto context = slipring::context::make(options).value();
    messages(context);
    errors(context);
    tensors(context);
    calls(context);
    topics(context);
    return 0;
}
