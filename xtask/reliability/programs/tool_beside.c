/* Runs itself under a tool and looks at what the tool says:
 *   gdb      breakpoints are hit, with every caller
 *   early    the same, set before the program starts
 *   patched  the same while somebody patches functions
 *   attach   gdb comes while it runs, sets a breakpoint, and goes
 *   perf-fp, perf-dwarf  samples with their callers
 *   valgrind, strace
 *   work N   what is run: N calls of `outer`; without N until standard input ends */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kept.h"

enum { SKIPPED = 77, OUTPUT = 8 << 20 };

#define SPIN_LINE "31"

static volatile long sink;

KEPT static long beside_inner(long n) {
    sink = sink + n;
    for (volatile int spin = 0; spin < 20000; spin++)
        sink = sink + 1; /* SPIN_LINE */
    return n + 1;
}

KEPT static long beside_middle(long n) {
    long result = beside_inner(n);
    sink = sink + 1;
    return result + 1;
}

KEPT static long beside_outer(long n) {
    long result = beside_middle(n);
    sink = sink + 1;
    return result + 1;
}

KEPT static long toggled(long n) {
    sink = sink + n;
    return n + 1;
}

KEPT static int work(int calls) {
    struct pollfd input = {.fd = 0, .events = POLLIN};
    for (int n = 0; calls ? n < calls : poll(&input, 1, 0) == 0; n++)
        for (int again = 0; again < 3; again++) {
            if (beside_outer(n) != n + 3)
                return 1;
            for (int more = 0; more < 100; more++)
                if (toggled(n) != n + 1)
                    return 1;
        }
    printf("work done\n");
    return 0;
}

/* --- the tools */

static char output[OUTPUT];
static int status;

/* Starts a program; its output, that for errors too, goes to the file. */
KEPT static pid_t start(int file, int input, char **arguments) {
    extern char **environ;
    posix_spawn_file_actions_t actions;
    pid_t pid;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, input, 0);
    posix_spawn_file_actions_adddup2(&actions, file, 1);
    posix_spawn_file_actions_adddup2(&actions, file, 2);
    int error = posix_spawnp(&pid, arguments[0], &actions, NULL, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (error != 0) {
        fprintf(stderr, "%s cannot be run: %s\n", arguments[0], strerror(error));
        exit(SKIPPED);
    }
    return pid;
}

static int open_output(void) {
    return open("tool-output", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
}

/* Runs a tool, and reads what it says. */
static void run(const char *first, ...) {
    char *arguments[64] = {(char *)first};
    va_list list;
    va_start(list, first);
    for (int n = 1; (arguments[n] = va_arg(list, char *)) != NULL; n++)
        ;
    va_end(list);
    int file = open_output();
    int input = open("/dev/null", O_RDWR | O_CLOEXEC);
    pid_t pid = start(file, input, arguments);
    waitpid(pid, &status, 0);
    output[pread(file, output, OUTPUT - 1, 0)] = 0;
    close(file);
    close(input);
}

/* Counts how often the words appear, in their order, each time behind the one before. */
static int times(const char *text, ...) {
    for (int count = 0;; count++) {
        const char *word;
        va_list words;
        va_start(words, text);
        while ((word = va_arg(words, const char *)) != NULL) {
            text = strstr(text, word);
            if (text == NULL)
                break;
            text += strlen(word);
        }
        va_end(words);
        if (text == NULL)
            return count;
    }
}

static int says(const char *text) { return strstr(output, text) != NULL; }

static int failed(void) {
    printf("%s says:\n%s", "the tool", output);
    return 1;
}

/* Where the kernel does not let one process look at another. */
static void need_ptrace(void) {
    if (says("ptrace: Operation not permitted") || says("PTRACE_TRACEME")) {
        fprintf(stderr, "processes may not be traced here\n");
        exit(SKIPPED);
    }
}

#define GDB                                                                    \
    "gdb", "-nx", "-batch", "-ex", "set debuginfod enabled off", "-ex",        \
        "set startup-with-shell off"

/* Breakpoints on the first instruction and far within: one between would change the jump that may be there. */
#define SPIN "break tool_beside.c:" SPIN_LINE

/* Where it stops first there is no breakpoint in the program yet, but whatever is preloaded has begun. */
#define BEGIN "-ex", "set breakpoint pending on", "-ex", "tbreak __libc_start_main", "-ex", "run"

static int gdb(char *self) {
    run(GDB, BEGIN, "-ex", "break *beside_outer", "-ex", SPIN, "-ex", "continue", "-ex", "bt", "-ex",
        "continue", "-ex", "bt", "-ex", "clear tool_beside.c:" SPIN_LINE, "-ex", "continue", "-ex",
        "bt", "-ex", "finish", "-ex", "delete", "-ex", "continue", "--args", self, "work", "20", NULL);
    need_ptrace();
    if (times(output, ", beside_outer (", "#0 ", "beside_outer (", "work (", "main (", NULL) != 2 ||
        times(output, ", beside_inner (", "#0 ", "beside_inner (", "beside_middle (", "beside_outer (",
              "work (", "main (", NULL) != 1 ||
        !says("Value returned is") || !says("work done") || !says("exited normally") ||
        says("corrupt"))
        return failed();
    printf("breakpoints are hit\n");
    return 0;
}

static int early(char *self) {
    run(GDB, "-ex", "break *beside_outer", "-ex", "run", "-ex", "bt", "-ex", "continue", "-ex", "bt",
        "-ex", "ignore 1 1000", "-ex", "continue", "--args", self, "work", "20", NULL);
    need_ptrace();
    if (times(output, ", beside_outer (", "#0 ", "beside_outer (", "work (", "main (", NULL) != 2 ||
        !says("work done") || !says("exited normally") || says("corrupt"))
        return failed();
    printf("breakpoints are hit\n");
    return 0;
}

/* A trap that is no breakpoint of gdb's belongs to the program. */
static int patched(char *self) {
    FILE *script = fopen("gdb-script", "we");
    fputs("set pagination off\nset confirm off\nset $hit = 0\nset $hits = 0\n"
          "break *beside_outer if ($hit = 1)\n"
          "continue\n"
          "while $_isvoid($_exitcode)\n"
          "  if $hit\n"
          "    bt\n    set $hit = 0\n    set $hits = $hits + 1\n"
          "    if $hits == 50\n      delete\n    end\n"
          "    continue\n"
          "  else\n"
          "    signal SIGTRAP\n"
          "  end\nend\n",
          script);
    fclose(script);
    run(GDB, BEGIN, "-x", "gdb-script", "--args", self, "work", "100", NULL);
    need_ptrace();
    if (times(output, "#0 ", "beside_outer (", "work (", "main (", NULL) < 50 || !says("work done") ||
        says("corrupt"))
        return failed();
    printf("breakpoints are hit\n");
    return 0;
}

static int attach(char *self) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        return 1;
    int file = open("work-output", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    char *work[] = {self, "work", NULL};
    pid_t pid = start(file, ends[0], work);
    usleep(500000);
    char number[32];
    snprintf(number, sizeof number, "%d", (int)pid);
    run(GDB, "-p", number, "-ex", "bt", "-ex", "break *beside_middle", "-ex",
        SPIN, "-ex", "continue", "-ex", "bt", "-ex", "continue", "-ex",
        "bt", "-ex", "clear tool_beside.c:" SPIN_LINE, "-ex", "finish", "-ex", "continue", "-ex", "bt", "-ex", "delete",
        "-ex", "detach", NULL);
    close(ends[1]);
    int end, code = 0;
    waitpid(pid, &end, 0);
    need_ptrace();
    if (times(output, "#0 ", "work (", "main (", NULL) < 4 ||
        times(output, "Breakpoint 1, ", "beside_middle (", "beside_outer (", "work (", "main (", NULL) < 1 ||
        times(output, "Breakpoint 2, ", "beside_inner (", "beside_middle (", "beside_outer (", "work (", "main (",
              NULL) < 1 ||
        !says("detached") || says("corrupt"))
        code = failed();
    output[pread(file, output, OUTPUT - 1, 0)] = 0;
    if (end != 0 || !says("work done"))
        code = failed();
    if (code == 0)
        printf("breakpoints are hit, and it goes on\n");
    return code;
}

static int perf(char *self, const char *how) {
    run("perf", "record", "-q", "-F", "2000", "-e", "cpu-clock:u", "--call-graph", how, "-o",
        "perf.data", self, "work", "1000", NULL);
    if (says("perf_event_open") || says("No permission") || says("not supported")) {
        fprintf(stderr, "perf may not record here: %s", output);
        exit(SKIPPED);
    }
    if (status != 0 || !says("work done"))
        return failed();
    run("perf", "script", "-i", "perf.data", "-F", "ip,sym", NULL);
    /* Samples are apart by empty lines. */
    int samples = 0, complete = 0;
    for (char *sample = output, *end; (end = strstr(sample, "\n\n")); sample = end + 2) {
        *end = 0;
        char *eol = strchr(sample + 1, '\n');
        char *name = strstr(sample, " beside_inner\n");
        if (eol == NULL || name == NULL || name > eol)
            continue;
        samples++;
        /* beside_inner, beside_middle, beside_outer, work, main, and who calls that. A return point of fgraph may stand
         * for each but the first. */
        int frames = 1;
        for (char *line = sample; (line = strchr(line + 1, '\n'));)
            frames++;
        complete += frames >= 6;
    }
    fprintf(stderr, "%d samples, %d of them complete\n", samples, complete);
    if (samples < 10) {
        printf("only %d samples\n", samples);
        return 1;
    }
    /* The first and the last instructions have no frame pointer yet. The part of the stack that perf copies is not
     * all that DWARF needs where somebody traces: perf only has to find functions. */
    if (*how == 'f' && complete < samples * 9 / 10) {
        printf("%d of %d samples have all callers\n", complete, samples);
        return 1;
    }
    printf("samples are right\n");
    return 0;
}

static int valgrind(char *self) {
    run("valgrind", "--error-exitcode=9", self, "work", "20", NULL);
    if (status != 0 || !says("work done") || !says("ERROR SUMMARY: 0 errors"))
        return failed();
    printf("no errors\n");
    return 0;
}

static int strace(char *self) {
    run("strace", "-f", self, "work", "20", NULL);
    need_ptrace();
    if (status != 0 || !says("execve(") || !says("work done") || !says("exited with 0"))
        return failed();
    printf("system calls are shown\n");
    return 0;
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    char self[4096] = "";
    if (argc >= 2 && !strcmp(argv[1], "work")) {
        int code = work(argc > 2 ? atoi(argv[2]) : 0);
        /* Not a tail call. */
        sink = sink + 1;
        return code;
    }
    if (argc != 2 || readlink("/proc/self/exe", self, sizeof self - 1) < 0)
        return 2;
    if (!strcmp(argv[1], "gdb"))
        return gdb(self);
    if (!strcmp(argv[1], "early"))
        return early(self);
    if (!strcmp(argv[1], "patched"))
        return patched(self);
    if (!strcmp(argv[1], "attach"))
        return attach(self);
    if (!strcmp(argv[1], "perf-fp"))
        return perf(self, "fp");
    if (!strcmp(argv[1], "perf-dwarf"))
        return perf(self, "dwarf,4096");
    if (!strcmp(argv[1], "valgrind"))
        return valgrind(self);
    if (!strcmp(argv[1], "strace"))
        return strace(self);
    return 2;
}
