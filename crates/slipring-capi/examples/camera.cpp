// One camera, any number of viewers, and each frame in memory once: camera.c in C++. Each may run beside the other.
//
//     ./camera publish NAME [FRAMES]      in one terminal: 60 frames a second, of 1080 x 1920 x 3 bytes
//     ./camera view NAME [FRAMES]         in another, or in several
//
// A viewer prints a line each second. Kill the camera and start it again: the viewers go on.
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>
#include <thread>

#include "slipring.hpp"

using namespace std::chrono_literals;

static void publish(slipring::context &context, const std::string &name, long frames) {
    slipring_publisher_options options = {};
    options.slots = 64;
    auto camera = context.publish(name, options).value();
    for (long number = 0; number < frames; number++) {
        auto frame = context.make_tensor<std::uint8_t>({1080, 1920, 3}).value();
        for (std::uint8_t &pixel : frame.writable_elements<std::uint8_t>().value()) { // in the memory that all viewers read
            pixel = static_cast<std::uint8_t>(number);
        }
        camera.send(std::move(frame)).value(); // the frame is theirs now
        while (auto event = camera.next_event()) {
            static const char *const WHAT[] = {"has come", "has left", "has died", "was evicted"};
            std::cout << "viewer with pid " << event->pid << " " << (event->kind < 4 ? WHAT[event->kind] : "changed") << std::endl;
        }
        std::this_thread::sleep_for(1s / 60.0);
    }
}

static void view(slipring::context &context, const std::string &name, long frames) {
    // The newest frame, and those that come until it is looked at are missed. Wait for a camera that is not there yet.
    auto camera = context.subscribe(name, SLIPRING_LATEST, slipring::timeout::forever()).value();
    auto last = std::chrono::steady_clock::now();
    std::uint64_t seen = 0, missed = 0;
    slipring_tensor_view shape = {};
    while (frames-- > 0) {
        auto sample = camera.next();
        if (sample.ended()) {
            break;
        }
        missed += sample.value().missed;
        auto frame = camera.take_tensors().value().take(0).value();
        shape = frame.view().value();
        auto pixels = frame.elements<std::uint8_t>().value();
        unsigned first = pixels[0], last_byte = pixels[pixels.size() - 1];
        frame.check().value(); // what was read is what the camera sent
        if (first != last_byte) {
            std::cerr << "a frame of two: " << first << " and " << last_byte << std::endl;
            std::exit(1);
        }
        seen++;
        if (auto now = std::chrono::steady_clock::now(); now - last >= 1s) {
            std::cout << seen << " frames, " << missed << " missed" << std::endl;
            last = now;
        }
    }
    std::cout << "done, " << seen << " frames of " << shape.shape[0] << " x " << shape.shape[1] << " x " << shape.shape[2] << std::endl;
}

int main(int count, char **words) {
    std::string what = count > 1 ? words[1] : "";
    if (count < 3 || (what != "publish" && what != "view")) {
        std::cerr << "usage: camera publish|view NAME [FRAMES]" << std::endl;
        return 2;
    }
    auto context = slipring::context::make().value();
    (what == "publish" ? publish : view)(context, words[2], count > 3 ? std::atol(words[3]) : 1000000000);
    return 0;
}
