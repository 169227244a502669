// Operations named like those of Boost.Asio, which one loop completes through pointers; the handler
// of one of them blocks.

#include <deque>
#include <unistd.h>

extern "C" __attribute__((noinline)) void resize_image(int milliseconds) {
    usleep(milliseconds * 1000);
}

struct Resizes {
    void operator()() { resize_image(20); }
};

struct Counts {
    void operator()() { ++*count; }
    int *count;
};

namespace boost::asio::detail {

struct scheduler_operation {
    void (*function)(void *, scheduler_operation *);
};

template <typename Handler, typename Executor>
struct completion_handler : scheduler_operation {
    explicit completion_handler(Handler handler)
        : scheduler_operation{&do_complete}, handler(handler) {}

    static void do_complete(void *owner, scheduler_operation *base) {
        auto *operation = static_cast<completion_handler *>(base);
        Handler handler = operation->handler;
        // The memory is used again at once, as Asio does.
        delete operation;
        if (owner)
            handler();
    }

    Handler handler;
};

} // namespace boost::asio::detail

int main() {
    using namespace boost::asio::detail;
    std::deque<scheduler_operation *> queue;
    int count = 0;
    for (int round = 0; round < 5; round++) {
        queue.push_back(new completion_handler<Counts, int>(Counts{&count}));
        if (round % 2)
            queue.push_back(new completion_handler<Resizes, int>(Resizes{}));
        while (!queue.empty()) {
            scheduler_operation *operation = queue.front();
            queue.pop_front();
            operation->function(&queue, operation);
        }
    }
    return count != 5;
}
