// A pool of workers behind one epoll loop: workers.c in C++. Each has one job at a time, and the job of one that dies goes to another.
//
//     ./workers [WORKERS] [JOBS]      kills one worker in the middle, and prints "done: 1000 jobs, 1 worker died"
#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <optional>
#include <string>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "slipring.hpp"

using slipring::timeout;
using namespace std::chrono_literals;

static slipring::bytes bytes_of(const std::uint64_t &number) {
    return slipring::bytes(reinterpret_cast<const std::byte *>(&number), sizeof number);
}

static std::uint64_t number_of(slipring::bytes bytes) {
    std::uint64_t number = 0;
    std::memcpy(&number, bytes.data(), std::min(bytes.size(), sizeof number));
    return number;
}

// In a worker: the answer to a job is its square.
static void work(const std::string &address) {
    auto context = slipring::context::make().value();
    auto link = context.connect(address, 10s).value();
    for (;;) {
        auto request = link.recv_request();
        if (request.ended()) {
            return;
        }
        auto job = number_of(slipring::bytes(static_cast<const std::byte *>(request.value().data), request->len));
        link.respond(request->id, bytes_of(job * job)).value();
    }
}

// The jobs that are to be done: those that came back, and then those that follow.
class jobs {
  public:
    explicit jobs(std::uint64_t count) : count_(count) {}
    std::optional<std::uint64_t> take() {
        if (!back_.empty()) {
            auto job = back_.back();
            back_.pop_back();
            return job;
        }
        return next_ < count_ ? std::optional(next_++) : std::nullopt;
    }
    void give_back(std::uint64_t job) { back_.push_back(job); }
    bool have_come_back() const { return !back_.empty(); }

  private:
    std::vector<std::uint64_t> back_;
    std::uint64_t next_ = 0, count_;
};

class worker {
  public:
    explicit worker(slipring::connection link) : link_(std::move(link)) {}
    bool is_idle() const { return link_ && !job_; }
    int descriptor() { return link_->descriptor().value(); }
    // Gives it its next job, if there is one. One that is gone shows it at its next event.
    void give(jobs &all) {
        job_ = all.take();
        if (!job_) {
            return;
        }
        auto call = link_->submit(bytes_of(*job_));
        if (call) {
            call_ = *call;
        } else {
            all.give_back(*job_);
            job_.reset();
        }
    }
    // Takes all that has come. Returns how many jobs are done.
    std::uint64_t take(jobs &all) {
        std::uint64_t done = 0;
        while (link_ && job_) {
            auto answer = link_->wait(call_, timeout::none());
            if (!answer) {
                leave_unless(answer.would_block(), all);
                return done;
            }
            if (number_of(*answer) != *job_ * *job_) {
                std::cerr << "workers: a wrong answer" << std::endl;
                std::exit(1);
            }
            done++;
            give(all);
        }
        if (link_) { // idle, or gone
            leave_unless(link_->peek(timeout::none()).would_block(), all);
        }
        return done;
    }
    bool is_gone() const { return !link_; }

  private:
    void leave_unless(bool lives, jobs &all) {
        if (lives) {
            return;
        }
        std::cerr << "a worker is gone: " << slipring_last_error() << std::endl;
        if (job_) {
            all.give_back(*job_);
            job_.reset();
        }
        link_.reset(); // and its descriptor leaves the loop
    }
    std::optional<slipring::connection> link_;
    std::optional<std::uint64_t> job_;
    std::uint64_t call_ = 0;
};

int main(int count, char **words) {
    int size = count > 1 ? std::atoi(words[1]) : 4;
    std::uint64_t wanted = count > 2 ? std::strtoull(words[2], nullptr, 10) : 1000, done = 0;
    if (size < 2 || size > 64) {
        std::cerr << "workers: from 2 to 64 workers" << std::endl;
        return 2;
    }
    std::string address = "@workers-cpp-" + std::to_string(getpid());
    std::vector<pid_t> processes;
    for (int at = 0; at < size; at++) { // before the context, which is of one process
        pid_t child = fork();
        if (child == 0) {
            work(address);
            return 0;
        }
        processes.push_back(child);
    }
    int loop = epoll_create1(EPOLL_CLOEXEC);
    auto context = slipring::context::make().value();
    auto listener = context.listen(address).value();
    jobs all(wanted);
    std::vector<worker> workers;
    for (int at = 0; at < size; at++) {
        worker &worker = workers.emplace_back(listener.accept().value());
        epoll_event event = {};
        event.events = EPOLLIN;
        epoll_ctl(loop, EPOLL_CTL_ADD, worker.descriptor(), &event); // before the first receive
        worker.give(all);
    }
    while (done < wanted) {
        if (done >= wanted / 2 && processes[0] != 0) {
            kill(processes[0], SIGKILL);
            waitpid(processes[0], nullptr, 0);
            processes[0] = 0;
        }
        for (worker &worker : workers) { // before each sleep: the descriptor tells of what comes after that
            done += worker.take(all);
        }
        for (worker &worker : workers) {
            if (all.have_come_back() && worker.is_idle()) {
                worker.give(all);
            }
        }
        epoll_event event;
        if (done < wanted && epoll_wait(loop, &event, 1, -1) < 0) {
            std::perror("epoll_wait");
            return 1;
        }
    }
    int died = 0;
    for (const worker &worker : workers) {
        died += worker.is_gone() ? 1 : 0;
    }
    workers.clear(); // they see the end, and leave
    close(loop);
    for (pid_t process : processes) {
        if (process != 0) {
            waitpid(process, nullptr, 0);
        }
    }
    std::cout << "done: " << done << " jobs, " << died << " worker" << (died == 1 ? "" : "s") << " died" << std::endl;
    return 0;
}
