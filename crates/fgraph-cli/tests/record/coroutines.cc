// Coroutines of C++20 that one loop resumes; `slow_handler` blocks in its second part.

#include <coroutine>
#include <deque>
#include <exception>
#include <unistd.h>

static std::deque<std::coroutine_handle<>> ready;

struct Job {
    struct promise_type {
        Job get_return_object() {
            ready.push_back(std::coroutine_handle<promise_type>::from_promise(*this));
            return {};
        }
        std::suspend_always initial_suspend() noexcept { return {}; }
        std::suspend_never final_suspend() noexcept { return {}; }
        void return_void() {}
        void unhandled_exception() { std::terminate(); }
    };
};

struct Yield {
    bool await_ready() { return false; }
    void await_suspend(std::coroutine_handle<> handle) { ready.push_back(handle); }
    void await_resume() {}
};

extern "C" __attribute__((noinline)) void resize_image(int milliseconds) {
    usleep(milliseconds * 1000);
}

static Job slow_handler() {
    co_await Yield{};
    resize_image(20);
    co_await Yield{};
}

static Job quick_handler(int parts) {
    for (int part = 0; part < parts; part++)
        co_await Yield{};
}

int main() {
    for (int i = 0; i < 2; i++) {
        slow_handler();
        quick_handler(4);
    }
    while (!ready.empty()) {
        auto handle = ready.front();
        ready.pop_front();
        handle.resume();
    }
}
