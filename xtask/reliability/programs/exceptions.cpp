/* C++ exceptions. The first argument says what is done, the second how many frames lie between the throw and
 * the catch. -DUNWINDER says which library has to do the unwinding. */
#include <dlfcn.h>
#include <unwind.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <thread>

#include "throws.h"

KEPT static int leaf(int n) {
    sink = sink + n;
    return n;
}

static int wrong(const char *what) {
    printf("wrong: %s\n", what);
    return 1;
}

/* --- caught: thrown at the bottom, caught at the top */

KEPT static int handled(int frames) {
    try {
        return dive(frames);
    } catch (int thrown) {
        return thrown + leaf(1);
    }
}

/* --- again: the same many times, which must not use anything up */

KEPT static int again(int frames) {
    int sum = 0;
    for (int round = 0; round < 1000; round++)
        sum += handled(frames) == 43;
    return sum;
}

/* --- rethrown: every frame catches and throws again */

KEPT static int relay(int frames) {
    try {
        if (frames == 0)
            throw std::runtime_error("bottom");
        int result = relay(frames - 1);
        sink = sink + 1;
        return result;
    } catch (const std::exception &) {
        leaf(frames);
        throw;
    }
}

KEPT static int rethrown(int frames) {
    sink = 0;
    try {
        return relay(frames);
    } catch (const std::runtime_error &error) {
        printf("rethrown: %s\n", error.what());
        return sink;
    }
}

/* --- destructors: that call functions, and throw and catch for themselves */

struct Guard {
    int number;
    explicit Guard(int number) : number(number) {}
    KEPT ~Guard() {
        leaf(1);
        if (number % 5 == 0)
            leaf(handled(2) == 43);
    }
};

KEPT static int guarded(int frames) {
    Guard guard(frames);
    if (frames == 0)
        throw std::string("bottom");
    int result = guarded(frames - 1);
    sink = sink + 1;
    return result;
}

KEPT static int destructors(int frames) {
    sink = 0;
    try {
        return guarded(frames);
    } catch (const std::string &) {
        return sink;
    }
}

/* --- half: caught half way up, and the frames above return as usual */

KEPT static int half(int frames, int level) {
    if (frames == 0)
        throw 42;
    int result;
    if (frames == level) {
        try {
            result = half(frames - 1, level);
        } catch (int) {
            result = 100;
        }
    } else {
        result = half(frames - 1, level);
    }
    sink = sink + 1;
    return result + 1;
}

/* --- terminate: a function that must not throw lies between */

KEPT static int quiet(int frames) noexcept {
    int result = dive(frames);
    sink = sink + 1;
    return result;
}

KEPT static int tries(int frames) {
    try {
        int result = quiet(frames);
        sink = sink + 1;
        return result;
    } catch (int) {
        return wrong("a noexcept function has thrown");
    }
}

static void last_words() {
    printf("terminated\n");
    fflush(stdout);
    abort();
}

/* --- handed: to another thread, which throws it again */

KEPT static std::exception_ptr keep(int frames) {
    try {
        dive(frames);
    } catch (...) {
        return std::current_exception();
    }
    return nullptr;
}

KEPT static int throw_kept(std::exception_ptr kept, int frames) {
    if (frames == 0)
        std::rethrow_exception(kept);
    int result = throw_kept(kept, frames - 1);
    sink = sink + 1;
    return result;
}

KEPT static void take(std::exception_ptr kept, int frames, int *taken) {
    try {
        throw_kept(kept, frames);
    } catch (int thrown) {
        *taken = thrown;
    }
}

KEPT static int handed(int frames) {
    std::exception_ptr kept;
    std::thread thrower([&] { kept = keep(frames); });
    thrower.join();
    int taken[2] = {0, 0};
    std::thread first(take, kept, frames, &taken[0]);
    std::thread second(take, kept, frames, &taken[1]);
    first.join();
    second.join();
    return taken[0] == 42 && taken[1] == 42;
}

/* --- sorted: through the C library's frames */

KEPT static int compare(const void *, const void *b) {
    if (*static_cast<const int *>(b) == 7)
        dive(2);
    return leaf(0) - 1;
}

KEPT static int sorted() {
    int numbers[10] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    try {
        qsort(numbers, 10, sizeof numbers[0], compare);
    } catch (int thrown) {
        return thrown;
    }
    return 0;
}

/* --- relayed: through functions in C, compiled by themselves */

#ifdef WITH_C
extern "C" int c_relay(int frames, int (*bottom)(int));

KEPT static int relayed(int frames) {
    try {
        return c_relay(frames, dive);
    } catch (int thrown) {
        return thrown;
    }
}
#else
static int relayed(int) { return 0; }
#endif

int main(int argc, char **argv) {
    if (argc != 3)
        return 2;
#ifdef UNWINDER
    Dl_info info;
    if (!dladdr(reinterpret_cast<void *>(_Unwind_RaiseException), &info) ||
        !strstr(info.dli_fname, UNWINDER))
        return wrong(info.dli_fname);
#endif
    const std::string what = argv[1];
    const int frames = atoi(argv[2]);
    int result, expected;
    if (what == "caught") {
        result = handled(frames), expected = 43;
    } else if (what == "again") {
        result = again(frames), expected = 1000;
    } else if (what == "rethrown") {
        result = rethrown(frames), expected = frames * (frames + 1) / 2;
    } else if (what == "destructors") {
        result = destructors(frames), expected = frames + 1 + frames / 5 + 1;
        /* Each call of handled in them adds one. */
        expected += frames / 5 + 1;
    } else if (what == "half") {
        result = half(frames, frames / 2), expected = 101 + frames - frames / 2;
    } else if (what == "terminate") {
        std::set_terminate(last_words);
        return tries(frames);
    } else if (what == "uncaught") {
        return dive(frames);
    } else if (what == "handed") {
        result = handed(frames), expected = 1;
    } else if (what == "sorted") {
        result = sorted(), expected = 42;
    } else if (what == "relayed") {
        result = relayed(frames), expected = 42;
    } else {
        return 2;
    }
    printf("%s: %d\n", argv[1], result);
    return result == expected ? 0 : wrong("another number was expected");
}
