/* Requests that two threads handle one after the other. Some are slow for the reason in the first
   word: the second thread sleeps while it handles them ("sleep"), does something else before
   ("other"), or handles another slow request before ("turn"). With a second word there are
   requests without end. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { REQUESTS = 60, SLOW = 3, DELAY = 100000, BEFORE = 1 << 30 };

static int queue[2], done[2];
static const char *reason;
static volatile long sum;
static long long planted;

static int is_slow(long request) {
    return request % (REQUESTS / SLOW) == 7 && request < BEFORE;
}

static int has_reason(const char *name) { return !strcmp(reason, name); }

static void put(int descriptor, long request) {
    if (write(descriptor, &request, sizeof request) != sizeof request)
        abort();
}

static long get(int descriptor) {
    long request;
    if (read(descriptor, &request, sizeof request) != sizeof request)
        abort();
    return request;
}

static long long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

__attribute__((noinline)) void store(void) {
    planted -= now();
    usleep(DELAY);
    planted += now();
}

__attribute__((noinline)) void clean_up(void) {
    planted -= now();
    usleep(DELAY);
    planted += now();
}

__attribute__((noinline)) void handle(long request, int is_second) {
    for (int i = 0; i < 1000; i++)
        sum += i;
    if (request >= BEFORE || (is_second && is_slow(request) && has_reason("sleep")))
        store();
}

static void *worker(void *unused) {
    for (long request = get(queue[0]); request >= 0; request = get(queue[0])) {
        if (is_slow(request) && has_reason("other"))
            clean_up();
        handle(request, 1);
        put(done[1], request);
    }
    return unused;
}

int main(int count, char **words) {
    pthread_t thread;
    alarm(60);
    reason = count > 1 ? words[1] : "sleep";
    if (pipe(queue) || pipe(done))
        return 1;
    pthread_create(&thread, 0, worker, 0);
    for (long request = 0; count > 2 || request < REQUESTS; request++) {
        int is_behind = is_slow(request) && has_reason("turn");
        if (is_behind)
            put(queue[1], BEFORE + request);
        handle(request, 0);
        put(queue[1], request);
        for (int i = 0; i <= is_behind; i++)
            get(done[0]);
    }
    put(queue[1], -1);
    pthread_join(thread, 0);
    printf("%lld\n", planted / SLOW);
    return 0;
}
