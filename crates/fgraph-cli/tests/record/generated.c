/* Generates functions that call malloc, and names them in a map for perf or in a jitdump file in
 * the working directory. Waits until another process has opened that file. Argument: map or dump. */

#include <elf.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <unistd.h>

enum { FUNCTIONS = 2, LENGTH = 64, BLOCKS = 5 };

static void *(*allocate)(size_t) = malloc;

/* Writes a function with a frame that returns allocate(bytes). */
static void generate(unsigned char *code, uint32_t bytes)
{
    static const unsigned char text[] = {
        0x55,                   /* push rbp */
        0x48, 0x89, 0xe5,       /* mov rbp, rsp */
        0xbf, 0, 0, 0, 0,       /* mov edi, bytes */
        0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, /* mov rax, allocate */
        0xff, 0xd0,             /* call rax */
        0x5d,                   /* pop rbp */
        0xc3,                   /* ret */
    };
    memcpy(code, text, sizeof text);
    memcpy(code + 5, &bytes, sizeof bytes);
    memcpy(code + 11, &allocate, sizeof allocate);
}

/* Returns a descriptor that can be read once another process opens a file, which is open here. */
static int watch(const char *path)
{
    int watched = inotify_init1(IN_CLOEXEC);
    if (inotify_add_watch(watched, path, IN_OPEN) < 0)
        abort();
    return watched;
}

static int write_map(const unsigned char *code, const char *const *names)
{
    char path[64];
    snprintf(path, sizeof path, "/tmp/perf-%d.map", getpid());
    FILE *map = fopen(path, "w");
    if (!map)
        abort();
    int opened = watch(path);
    for (int nth = 0; nth < FUNCTIONS; nth++)
        fprintf(map, "%lx %x %s\n", (unsigned long)(code + nth * LENGTH), LENGTH, names[nth]);
    fclose(map);
    return opened;
}

static int write_dump(const unsigned char *code, const char *const *names)
{
    char path[64];
    snprintf(path, sizeof path, "jit-%d.dump", getpid());
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    int opened = watch(path);
    struct {
        uint32_t magic, version, length, machine, padding, process;
        uint64_t time, flags;
    } header = {0x4a695444, 1, 40, EM_X86_64, 0, (uint32_t)getpid(), 1, 0};
    if (write(file, &header, sizeof header) != sizeof header)
        abort();
    for (int nth = 0; nth < FUNCTIONS; nth++) {
        struct {
            uint32_t kind, length;
            uint64_t time;
            uint32_t process, thread;
            uint64_t memory, address, size, number;
        } record = {0, 0, 1, (uint32_t)getpid(), (uint32_t)getpid(), 0, 0, LENGTH, (uint64_t)nth};
        size_t name = strlen(names[nth]) + 1;
        record.memory = record.address = (uint64_t)(code + nth * LENGTH);
        record.length = (uint32_t)(sizeof record + name + LENGTH);
        if (write(file, &record, sizeof record) < 0 || write(file, names[nth], name) < 0
            || write(file, code + nth * LENGTH, LENGTH) < 0)
            abort();
    }
    /* A profiler finds the file by this mapping. */
    if (mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0) == MAP_FAILED)
        abort();
    return opened;
}

int main(int argc, char **argv)
{
    static const char *const names[FUNCTIONS] = {"LazyCompile:~load /app/a b.js:1", "evil\33[31m"};
    unsigned char *code = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC,
                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (argc != 2 || code == MAP_FAILED)
        return 2;
    for (int nth = 0; nth < FUNCTIONS; nth++)
        generate(code + nth * LENGTH, 1000u * (uint32_t)(nth + 1));
    int opened = strcmp(argv[1], "map") == 0 ? write_map(code, names) : write_dump(code, names);
    for (int nth = 0; nth < FUNCTIONS * BLOCKS; nth++)
        ((void *(*)(void))(code + nth % FUNCTIONS * LENGTH))();
    if (poll(&(struct pollfd){.fd = opened, .events = POLLIN}, 1, 60 * 1000) != 1)
        return 3;
    char path[64];
    snprintf(path, sizeof path, "/tmp/perf-%d.map", getpid());
    unlink(path);
    return 0;
}
