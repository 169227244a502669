/* Libraries that come and go.
 *
 * library_loading WHAT: loop, moving, drifting, threads, leaves, waits, constructors, tls, namespaces, deepbind,
 * interposed, chosen, replaced, removed or early. The libraries are libpart.so and libother.so, of the same source. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kept.h"

static long failures;

static void expect(long is, long right, const char *what) {
    if (is != right && failures++ < 20) printf("%s: %ld, not %ld\n", what, is, right);
}

static int telling;

void part_event(const char *name) {
    if (telling) printf("%s\n", name);
}

KEPT static void *open_library(const char *name, int flags) {
    void *library = dlopen(name, flags);
    if (!library) {
        printf("%s\n", dlerror());
        exit(1);
    }
    return library;
}

KEPT static void *find(void *library, const char *name) {
    void *found = dlsym(library, name);
    if (!found) {
        printf("%s\n", dlerror());
        exit(1);
    }
    return found;
}

typedef long function(long);

KEPT static long call(void *library, const char *name, long n) { return ((function *)find(library, name))(n); }

/* The result of part_sum: the constructors leave 2 * 3 + VALUE. */
static long sum(long value, long n) { return 6 + value + n * (n - 1) / 2 * 3 + n * value; }

/* ---- memory ---- */

static long field(const char *name) {
    char line[256];
    long kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, name, strlen(name))) kib = atol(line + strlen(name));
    if (file) fclose(file);
    return kib;
}

static long mappings(void) {
    long lines = 0;
    int c;
    FILE *file = fopen("/proc/self/maps", "r");
    while (file && (c = getc(file)) != EOF) lines += c == '\n';
    if (file) fclose(file);
    return lines;
}

static void bounded(long before, long after, long more, const char *what) {
    if (after - before > more && failures++ < 20) printf("%s: %ld more, from %ld\n", what, after - before, before);
}

/* ---- what happens ---- */

#define PLACES 64

/* With `moves`, the library is never where it was the last 64 times, or ever. */
static void loop(int rounds, int moves) {
    long resident = 0, lines = 0;
    static void *taken[PLACES];
    for (int i = 0; i < rounds; i++) {
        void *library = open_library("libpart.so", RTLD_NOW);
        expect(call(library, "part_sum", 4), sum(1, 4), "part_sum");
        void *other = i % 4 ? NULL : open_library("libother.so", RTLD_LAZY);
        if (other) {
            expect(call(other, "part_sum", 5), sum(2, 5), "part_sum of the other");
            if (i % 8) dlclose(other), other = NULL;
        }
        Dl_info info;
        dladdr(find(library, "part_sum"), &info);
        dlclose(library);
        if (other) dlclose(other);
        if (moves) {
            void *place = mmap(info.dli_fbase, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
            expect(place == info.dli_fbase, 1, "its place is free");
            if (moves == 1 && taken[i % PLACES]) munmap(taken[i % PLACES], 4096);
            taken[i % PLACES] = place;
        }
        if (i == rounds / 2) resident = field("VmRSS:"), lines = mappings();
    }
    /* A library that never comes to the same place again costs something each time. */
    bounded(resident, field("VmRSS:"), moves == 2 ? 64 * rounds : 4 << 10, "resident KiB");
    bounded(lines, mappings(), moves == 2 ? 8 * rounds : 100, "mappings");
}

static void *load_and_call(void *argument) {
    long number = (long)(intptr_t)argument;
    for (int i = 0; i < 100; i++) {
        void *library = open_library(number % 2 ? "libpart.so" : "libother.so", RTLD_NOW);
        long value = number % 2 ? 1 : 2;
        expect(call(library, "part_sum", i), sum(value, i), "part_sum in a thread");
        long is = call(library, "part_calls_chosen", i);
        expect(is, i * 3 + value + 1001, "part_calls_chosen in a thread");
        dlclose(library);
    }
    return NULL;
}

static void threads(void) {
    pthread_t all[4];
    for (intptr_t i = 0; i < 4; i++) pthread_create(&all[i], NULL, load_and_call, (void *)i);
    for (int i = 0; i < 4; i++) pthread_join(all[i], NULL);
}

static void *loaded;

/* The library has jumped here: it may go. */
KEPT static long unloads(long n) {
    dlclose(loaded);
    int is_gone = !dlopen("libpart.so", RTLD_NOW | RTLD_NOLOAD);
    return n * 2 + is_gone;
}

static void leaves(void) {
    for (int i = 0; i < 200; i++) {
        loaded = open_library("libpart.so", RTLD_NOW);
        long (*part_leaves)(long (*)(long), long) = (long (*)(long (*)(long), long))find(loaded, "part_leaves");
        expect(part_leaves(unloads, i), (i + 1) * 2 + 1, "part_leaves");
        /* Something else is where it was. */
        void *other = open_library("libother.so", RTLD_NOW);
        expect(call(other, "part_sum", 5), sum(2, 5), "part_sum of the other");
        dlclose(other);
    }
}

static sem_t arrived, go;

KEPT static void wait_inside(void) {
    sem_post(&arrived);
    sem_wait(&go);
}

static void *waits_inside(void *library) {
    long (*part_waits)(void (*)(void), long) = (long (*)(void (*)(void), long))find(library, "part_waits");
    expect(part_waits(wait_inside, 5), 16 + 7, "part_waits");
    dlclose(library);
    return NULL;
}

/* The thread that is in the library has a handle of its own: the library goes when it is back. */
static void waits(void) {
    sem_init(&arrived, 0, 0);
    sem_init(&go, 0, 0);
    for (int i = 0; i < 50; i++) {
        void *library = open_library("libpart.so", RTLD_NOW);
        pthread_t thread;
        pthread_create(&thread, NULL, waits_inside, open_library("libpart.so", RTLD_NOW));
        sem_wait(&arrived);
        dlclose(library);
        void *other = open_library("libother.so", RTLD_NOW);
        dlclose(other);
        sem_post(&go);
        pthread_join(thread, NULL);
        if (dlopen("libpart.so", RTLD_NOW | RTLD_NOLOAD)) expect(1, 0, "still loaded");
    }
}

static void constructors(void) {
    telling = 1;
    for (int i = 0; i < 2; i++) {
        void *library = open_library("libpart.so", RTLD_NOW);
        printf("sum %ld\n", call(library, "part_sum", 4));
        dlclose(library);
    }
    /* Its destructors run when the program exits. */
    open_library("libother.so", RTLD_NOW);
}

__attribute__((constructor(101))) static void early(void) { part_event("the program's constructor 101"); }
__attribute__((constructor)) static void late(void) { part_event("the program's constructor"); }
__attribute__((destructor)) static void ends(void) { part_event("the program's destructor"); }

static pthread_barrier_t barrier;
static void *shared[2];

static void *uses_tls(void *argument) {
    long value = 1;
    for (int round = 0; round < 20; round++) {
        pthread_barrier_wait(&barrier);
        for (int which = 0; which < 2; which++) {
            value = which + 1;
            long tls = 100 * value, local = 7 * value, initial = 3 * value;
            for (long n = 0; n < 5; n++) {
                tls += n * 8, local += 0, initial += n * 8 * 3 + value;
                if (!n) local += 0;
                expect(call(shared[which], "part_thread", n * 8), tls * 1000000 + (local + n * (n + 1) / 2 * 8) * 1000 + initial,
                       "part_thread");
            }
        }
        pthread_barrier_wait(&barrier);
    }
    return argument;
}

/* Threads that are there before the libraries come, which come anew each round. */
static void tls(void) {
    pthread_t all[4];
    pthread_barrier_init(&barrier, NULL, 5);
    for (int i = 0; i < 4; i++) pthread_create(&all[i], NULL, uses_tls, NULL);
    for (int round = 0; round < 20; round++) {
        shared[0] = open_library("libpart.so", RTLD_NOW);
        shared[1] = open_library("libother.so", RTLD_NOW);
        pthread_barrier_wait(&barrier);
        pthread_barrier_wait(&barrier);
        /* In this order their static storage, if they have any, is used again. */
        dlclose(shared[1]);
        dlclose(shared[0]);
    }
    for (int i = 0; i < 4; i++) pthread_join(all[i], NULL);
}

static void namespaces(void) {
    for (int i = 0; i < 20; i++) {
        void *library = dlmopen(LM_ID_NEWLM, "libpart.so", RTLD_NOW);
        void *same = open_library("libpart.so", RTLD_NOW);
        if (!library) {
            printf("%s\n", dlerror());
            exit(1);
        }
        expect(find(library, "part_sum") != find(same, "part_sum"), 1, "two of the library");
        expect(call(library, "part_sum", 4), sum(1, 4), "part_sum in another namespace");
        expect(call(same, "part_sum", 4), sum(1, 4), "part_sum");
        expect(call(library, "part_thread", 0), 100 * 1000000 + 7000 + 3 + 1, "part_thread in another namespace");
        dlclose(library);
        dlclose(same);
    }
}

static void binding(int flag, long right) {
    void *first = open_library("libpart.so", RTLD_NOW | RTLD_GLOBAL);
    void *second = open_library("libother.so", RTLD_NOW | flag);
    expect(call(first, "part_calls_name", 0), 11, "part_calls_name of the first");
    expect(call(second, "part_calls_name", 0), right, "part_calls_name of the second");
    /* Its part_leaf is the first one's, as well for its constructor. */
    expect(call(second, "part_sum", 3), sum(flag ? 2 : 1, 3), "part_sum of the second");
    dlclose(second);
    dlclose(first);
}

static void chosen(void) {
    for (int i = 0; i < 50; i++) {
        void *library = open_library("libpart.so", i % 2 ? RTLD_NOW : RTLD_LAZY);
        expect(call(library, "part_chosen", i), i * 3 + 1001, "part_chosen");
        expect(call(library, "part_calls_chosen", i), i * 3 + 1002, "part_calls_chosen");
        dlclose(library);
    }
}

/* The library's file as `name` in the working directory. */
static void copy(const char *from, const char *name) {
    void *library = open_library(from, RTLD_NOW);
    Dl_info info;
    dladdr(find(library, "part_sum"), &info);
    static char buffer[1 << 20];
    int file = open(info.dli_fname, O_RDONLY), to = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0755);
    for (ssize_t count; (count = read(file, buffer, sizeof buffer)) > 0;)
        if (write(to, buffer, count) != count) exit(1);
    close(file);
    close(to);
    dlclose(library);
}

static void gone(int replaced) {
    copy("libpart.so", "./copied.so");
    copy("libother.so", "./instead.so");
    for (int i = 0; i < 20; i++) {
        copy("libpart.so", "./copied.so");
        void *library = open_library("./copied.so", RTLD_NOW);
        if (replaced) rename("./instead.so", "./copied.so"), copy("libother.so", "./instead.so");
        else unlink("./copied.so");
        expect(call(library, "part_sum", 4), sum(1, 4), "part_sum");
        /* The filters are looked at again. */
        void *other = open_library("libother.so", RTLD_NOW);
        expect(call(library, "part_calls_chosen", 4), 12 + 1002, "part_calls_chosen");
        expect(call(other, "part_sum", 4), sum(2, 4), "part_sum of the other");
        dlclose(other);
        dlclose(library);
        if (replaced) {
            library = open_library("./copied.so", RTLD_NOW);
            expect(call(library, "part_sum", 4), sum(2, 4), "part_sum of what has replaced it");
            dlclose(library);
        }
    }
}

/* Symbols of library_early.c, if that is linked to the program. */
extern __attribute__((weak)) void *early_removed, *early_replaced;
extern __attribute__((weak)) unsigned char early_text[2][16];

/* Nobody who reads files knows where the functions of these are: their text is as it was. */
static void gone_early(void) {
    expect(call(early_removed, "part_sum", 4), sum(1, 4), "part_sum of what is removed");
    expect(call(early_replaced, "part_sum", 4), sum(2, 4), "part_sum of what is replaced");
    expect(memcmp(find(early_removed, "part_sum"), early_text[0], sizeof early_text[0]), 0, "the text of what is removed");
    expect(memcmp(find(early_replaced, "part_sum"), early_text[1], sizeof early_text[1]), 0, "the text of what is replaced");
    dlclose(early_removed);
    dlclose(early_replaced);
    void *library = open_library("./replaced.so", RTLD_NOW);
    expect(call(library, "part_sum", 4), sum(1, 4), "part_sum of what has replaced it");
    dlclose(library);
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    if (!strcmp(what, "loop")) loop(argc > 2 ? atoi(argv[2]) : 1000, 0);
    else if (!strcmp(what, "moving")) loop(argc > 2 ? atoi(argv[2]) : 1000, 1);
    else if (!strcmp(what, "drifting")) loop(argc > 2 ? atoi(argv[2]) : 1000, 2);
    else if (!strcmp(what, "threads")) threads();
    else if (!strcmp(what, "leaves")) leaves();
    else if (!strcmp(what, "waits")) waits();
    else if (!strcmp(what, "constructors")) constructors();
    else if (!strcmp(what, "tls")) tls();
    else if (!strcmp(what, "namespaces")) namespaces();
    else if (!strcmp(what, "deepbind")) binding(RTLD_DEEPBIND, 22);
    else if (!strcmp(what, "interposed")) binding(0, 12);
    else if (!strcmp(what, "chosen")) chosen();
    else if (!strcmp(what, "removed")) gone(0);
    else if (!strcmp(what, "replaced")) gone(1);
    else if (!strcmp(what, "early")) gone_early();
    else return 2;
    printf("%ld failures\n", failures);
    return failures != 0;
}
