// What fork() does to passes and threads: a child has only the thread that forked, and every lock as it was at that moment.
#pragma once

#include <functional>

namespace fw {

// While one of these lives fork() waits, in whatever thread: a pass holds locks that nobody in the child would ever release.
class NoFork {
public:
    NoFork();
    ~NoFork();
    NoFork(const NoFork&) = delete;
    NoFork& operator=(const NoFork&) = delete;
};

// Calls `repair` in every child for as long as this lives. No NoFork lives at that moment.
class InEveryChild {
public:
    explicit InEveryChild(std::function<void()> repair);
    ~InEveryChild();
    InEveryChild(const InEveryChild&) = delete;
    InEveryChild& operator=(const InEveryChild&) = delete;

private:
    std::function<void()> repair_;
};

}  // namespace fw
