/* Linked to a program, and so initialised before what is preloaded. It loads copies of the libraries, and removes
 * the file of the one and replaces that of the other, before anybody has looked at them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The libraries, and what part_sum of each begins with. */
void *early_removed, *early_replaced;
unsigned char early_text[2][16];

static void *load(const char *name) {
    void *library = dlopen(name, RTLD_NOW);
    if (!library) {
        printf("%s\n", dlerror());
        exit(1);
    }
    return library;
}

static void copy(const char *from, const char *name) {
    void *library = load(from);
    Dl_info info;
    dladdr(dlsym(library, "part_sum"), &info);
    static char buffer[1 << 20];
    int file = open(info.dli_fname, O_RDONLY), to = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0755);
    for (ssize_t count; (count = read(file, buffer, sizeof buffer)) > 0;)
        if (write(to, buffer, count) != count) exit(1);
    close(file);
    close(to);
    dlclose(library);
}

__attribute__((constructor)) static void first(void) {
    copy("libpart.so", "./removed.so");
    copy("libother.so", "./replaced.so");
    copy("libpart.so", "./instead.so");
    early_removed = load("./removed.so");
    early_replaced = load("./replaced.so");
    unlink("./removed.so");
    rename("./instead.so", "./replaced.so");
    memcpy(early_text[0], dlsym(early_removed, "part_sum"), sizeof early_text[0]);
    memcpy(early_text[1], dlsym(early_replaced, "part_sum"), sizeof early_text[1]);
}
