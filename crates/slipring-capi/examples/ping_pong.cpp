// How fast two processes answer each other, and how fast one streams to the other in place: ping_pong.c in C++.
//
//     g++ -std=c++17 -O2 -I crates/slipring-capi/include crates/slipring-capi/examples/ping_pong.cpp -o ping_pong
//         -L target/release -lslipring_capi -Wl,-rpath,"$PWD/target/release"
//     ./ping_pong [ROUNDS]
//
// Prints one line a row: its name, and nanoseconds a round trip or a message.
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "slipring.hpp"

using slipring::timeout;
using short_message = std::array<std::byte, 8>;
constexpr std::size_t LONG = 64;

// Each process on a CPU of its own.
static void pin(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof set, &set);
}

static void echo(slipring::connection &link, long rounds) {
    short_message bytes;
    for (long round = 0; round < rounds; round++) {
        link.recv(bytes).value();
        link.send(bytes).value();
    }
}

static void ask(slipring::connection &link, long rounds) {
    short_message bytes = {};
    for (long round = 0; round < rounds; round++) {
        link.send(bytes).value();
        link.recv(bytes).value();
    }
}

// Reads `messages` in place and answers the last one.
static void drain(slipring::connection &link, long count) {
    std::array<std::byte, LONG> line = {};
    auto messages = link.messages();
    for (const slipring::message &message : messages) {
        std::memcpy(line.data(), message.data().data(), LONG);
        asm volatile("" : : "r"(line.data()) : "memory");
        if (--count == 0) {
            break;
        }
    }
    messages.why().value();
    link.send(slipring::bytes(line.data(), 8)).value();
}

static void pour(slipring::connection &link, long count) {
    short_message bytes;
    for (long at = 0; at < count; at++) {
        auto room = link.reserve(LONG).value();
        std::memset(room.data().data(), static_cast<int>(at), LONG);
        std::move(room).publish().value();
    }
    link.recv(bytes).value();
}

template <typename F> static void measure(const char *name, long rounds, F &&run) {
    run(rounds / 10); // warm
    auto start = std::chrono::steady_clock::now();
    run(rounds);
    std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
    std::printf("%s: %.1f ns\n", name, took.count() / static_cast<double>(rounds));
}

int main(int count, char **arguments) {
    long rounds = count > 1 ? std::atol(arguments[1]) : 1000000;
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0) {
        return 1;
    }
    pid_t child = fork(); // before the context, which is of one process
    pin(child == 0);
    close(ends[child == 0]);
    auto context = slipring::context::make().value();
    if (child == 0) {
        auto link = context.accept_socket(ends[0]).value();
        echo(link, rounds / 10);
        echo(link, rounds);
        drain(link, rounds / 10);
        drain(link, rounds);
        std::move(link).close().value();
        return 0;
    }
    auto link = context.connect_socket(ends[1]).value();
    measure("copied 8 B, there and back", rounds, [&](long times) { ask(link, times); });
    measure("64 B in place, one way", rounds, [&](long times) { pour(link, times); });
    std::move(link).close().value();
    return waitpid(child, nullptr, 0) == child ? 0 : 1;
}
