/* Destructors of thread-local and static objects, which run when most of a thread, or of the process, is
   gone. */
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <pthread.h>
#include <thread>

#include "work.h"

static int destroyed;

KEPT static void destroys(void *) {
    if (work(40) == WORK)
        __atomic_add_fetch(&destroyed, 1, __ATOMIC_SEQ_CST);
}

struct Works {
    KEPT ~Works() {
        destroys(this);
        /* May throw and catch as well. */
        try {
            if (work(40) == WORK)
                throw 42;
        } catch (int) {
            destroys(this);
        }
    }
};

struct Says {
    const char *what;
    KEPT ~Says() {
        sink = work(40);
        std::printf("%s: %d, destroyed %d times\n", what, sink, destroyed);
    }
};

/* Keeps an object from being left out. */
KEPT static void pins(Works *works) {
    static Works *volatile used;
    used = works;
}

extern "C" int __cxa_thread_atexit_impl(void (*)(void *), void *, void *);
extern "C" void *__dso_handle;

static thread_local Works works;
static thread_local Says *says;

KEPT static bool in_thread() {
    pins(&works);
    __cxa_thread_atexit_impl(destroys, nullptr, &__dso_handle);
    return work(40) == WORK;
}

KEPT static int thread_local_objects() {
    int right = 0;
    for (int i = 0; i < 20; i++)
        std::thread([&right] { right += in_thread(); }).join();
    std::printf("%d of 20 were right, destroyed %d times\n", right, destroyed);
    return right == 20 && destroyed == 60 ? 0 : 1;
}

/* A thread that is unwound with objects in its frames, and thread-local ones. */
KEPT static int unwound(int calls) {
    Works inner;
    if (calls == 0)
        pthread_exit(nullptr);
    sink = calls;
    int result = calls < 100 ? unwound(calls - 1) : 0;
    sink = result;
    return result + 1;
}

KEPT static void *is_unwound(void *) {
    in_thread();
    sink = unwound(5);
    return nullptr;
}

KEPT static int unwound_threads() {
    for (int i = 0; i < 20; i++) {
        pthread_t thread;
        if (pthread_create(&thread, nullptr, is_unwound, nullptr) || pthread_join(thread, nullptr))
            return 1;
    }
    std::printf("destroyed %d times\n", destroyed);
    return destroyed == 20 * (3 + 2 * 6) ? 0 : 1;
}

/* The one made first is destroyed last. */
KEPT static int static_objects() {
    static Says first = {"made first"};
    static thread_local Says of_main = {"of the main thread"};
    static Works second;
    static Says third = {"made last"};
    says = &of_main;
    sink = work(40) + (first.what == third.what) + (says == nullptr);
    pins(&second);
    return in_thread() ? 0 : 1;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    int result = 2;
    if (!std::strcmp(what, "thread-local"))
        result = thread_local_objects();
    else if (!std::strcmp(what, "unwound"))
        result = unwound_threads();
    else if (!std::strcmp(what, "static"))
        result = static_objects();
    sink = result;
    return result;
}
