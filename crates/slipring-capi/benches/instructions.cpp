// Sends messages of 64 bytes in place from one end of a link to the other, in one thread: instructions.c in C++.
//
//     ./cpp MESSAGES
#include <cstdlib>
#include <cstring>
#include <utility>

#include "slipring.hpp"

constexpr std::size_t LEN = 64;

int main(int count, char **arguments) {
    auto context = slipring::context::make().value();
    auto [near, far] = context.pair().value();
    for (long left = count > 1 ? std::atol(arguments[1]) : 0; left > 0; left--) {
        auto room = near.reserve(LEN).value();
        std::memset(room.data().data(), 1, LEN);
        std::move(room).publish().value();
        auto message = far.peek(slipring::timeout::forever()).value();
        asm volatile("" : : "r"(message.data().data()) : "memory");
        std::move(message).release().value();
    }
    std::move(near).close().value();
    std::move(far).close().value();
    return 0;
}
