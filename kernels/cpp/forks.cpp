#include "forks.hpp"

#include <pthread.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <vector>

namespace fw {
namespace {

struct Forks {
    std::shared_mutex passes;  // shared by all NoForks
    std::mutex mutex;          // of what follows
    std::vector<const std::function<void()>*> repairs;
};

// Never destroyed: threads may still run when a process ends.
Forks& forks() {
    static Forks* const all = new Forks;
    return *all;
}

void before_fork() {
    forks().passes.lock();
    forks().mutex.lock();
}

void in_parent() {
    forks().mutex.unlock();
    forks().passes.unlock();
}

void in_child() {
    for (const std::function<void()>* repair : forks().repairs) (*repair)();
    forks().mutex.unlock();
    std::construct_at(&forks().passes);  // it knows its owner by a number that the child does not share, so it is made anew
}

void register_once() {
    static std::once_flag once;
    std::call_once(once, [] { ::pthread_atfork(before_fork, in_parent, in_child); });
}

}  // namespace

NoFork::NoFork() { forks().passes.lock_shared(); }
NoFork::~NoFork() { forks().passes.unlock_shared(); }

InEveryChild::InEveryChild(std::function<void()> repair) : repair_(std::move(repair)) {
    register_once();
    const std::lock_guard lock(forks().mutex);
    forks().repairs.push_back(&repair_);
}

InEveryChild::~InEveryChild() {
    const std::lock_guard lock(forks().mutex);
    std::erase(forks().repairs, &repair_);
}

}  // namespace fw
