/* Prints the functions of this program that a backtrace shows, from the innermost to main. The first argument
 * says how the backtrace is taken, the second how many frames deep, a third one that the innermost of them are
 * tail calls. To be linked with -rdynamic, and with -DNONGNU to libunwind.so.8. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <execinfo.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unwind.h>

#include "kept.h"

static volatile int sink;
static const char *program;
static int reached;

/* Prints nothing of other modules: neither of the C library, nor of a tracer. */
static void show(void *address) {
    Dl_info info;
    if (!dladdr((char *)address - 1, &info) || strcmp(info.dli_fname, program) || !info.dli_sname)
        return;
    printf("%s\n", info.dli_sname);
    reached |= !strcmp(info.dli_sname, "main");
}

static _Unwind_Reason_Code step(struct _Unwind_Context *context, void *count) {
    show((void *)_Unwind_GetIP(context));
    return ++*(int *)count < 1000 ? _URC_NO_REASON : _URC_NORMAL_STOP;
}

KEPT void by_unwinder(void) {
    int count = 0;
    int code = _Unwind_Backtrace(step, &count);
    printf("code %d\n", code);
}

KEPT void by_library(void) {
    void *addresses[1000];
    int count = backtrace(addresses, 1000);
    for (int i = 0; i < count; i++)
        show(addresses[i]);
    sink = count;
}

#ifdef NONGNU
#include <ucontext.h>

/* As libunwind.h has them, which LLVM's header of that name keeps from being installed. */
enum { IP = 16 };
int _Ux86_64_getcontext(ucontext_t *context);
int _ULx86_64_init_local(unsigned long *cursor, ucontext_t *context);
int _ULx86_64_step(unsigned long *cursor);
int _ULx86_64_get_reg(unsigned long *cursor, int number, unsigned long *value);

KEPT void by_nongnu(void) {
    ucontext_t context;
    unsigned long cursor[127], address;
    int steps = 0;
    if (_Ux86_64_getcontext(&context) || _ULx86_64_init_local(cursor, &context))
        exit(4);
    while (_ULx86_64_step(cursor) > 0 && steps++ < 1000) {
        if (_ULx86_64_get_reg(cursor, IP, &address))
            exit(5);
        show((void *)address);
    }
    sink = steps;
}
#endif

static void (*bottom_of_tails)(void);

/* Not a tail call: it is to be seen. */
KEPT void last_of_tails(void) {
    bottom_of_tails();
    sink = sink + 1;
}

KEPT void third_of_tails(void) {
    last_of_tails();
}

KEPT void second_of_tails(void) {
    third_of_tails();
}

KEPT void first_of_tails(void) {
    second_of_tails();
}

KEPT void tails(void) {
    third_of_tails();
    second_of_tails();
    first_of_tails();
    sink = sink + 1;
}

KEPT int odd(int frames, void (*bottom)(void));

KEPT int even(int frames, void (*bottom)(void)) {
    int result = 0;
    if (frames == 0)
        bottom();
    else
        result = odd(frames - 1, bottom);
    sink = sink + 1;
    return result + 1;
}

KEPT int odd(int frames, void (*bottom)(void)) {
    int result = 0;
    if (frames == 0)
        bottom();
    else
        result = even(frames - 1, bottom);
    sink = sink + 1;
    return result + 1;
}

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    Dl_info info;
    if (!dladdr((void *)main, &info))
        return 3;
    program = info.dli_fname;
    void (*bottom)(void) = strcmp(argv[1], "unwinder") ? by_library : by_unwinder;
#ifdef NONGNU
    bottom = by_nongnu;
#endif
    if (argc > 3) {
        bottom_of_tails = bottom;
        bottom = tails;
    }
    int frames = atoi(argv[2]);
    int result = even(frames, bottom);
    return reached && result == frames + 1 ? 0 : 1;
}
