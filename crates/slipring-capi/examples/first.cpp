// Two processes: one listens and answers, the other connects and asks. Prints "answer: HELLO".
#include <algorithm>
#include <cctype>
#include <iostream>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

#include "slipring.hpp"

static void serve(slipring::context &context, const std::string &address) {
    auto link = context.listen(address).value().accept().value();
    link.for_each([&](const slipring::message &question) {
            auto answer = link.reserve(question.data().size()).value(); // in this process, where the peer will read it
            auto text = question.text();                               // in the memory of the peer
            std::transform(text.begin(), text.end(), answer.data().begin(),
                           [](unsigned char letter) { return std::byte(std::toupper(letter)); });
            std::move(answer).publish().value();
        })
        .value(); // until the peer closes
}

static void ask(slipring::context &context, const std::string &address) {
    auto link = context.connect(address, std::chrono::seconds(10)).value(); // until somebody listens
    link.send("hello").value();
    auto answer = link.peek().value();
    std::cout << "answer: " << answer.text() << std::endl;
}

int main() {
    std::string address = "@first-cpp-" + std::to_string(getpid());
    pid_t child = fork(); // before the context, which is of one process
    auto context = slipring::context::make().value();
    (child == 0 ? serve : ask)(context, address);
    return child == 0 || waitpid(child, nullptr, 0) == child ? 0 : 1;
}
