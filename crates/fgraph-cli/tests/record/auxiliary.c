/* Looks for the auxiliary vector as Go's runtime does: behind the list of the environment, unless a
   null is there. */
#define _GNU_SOURCE
#include <elf.h>
#include <stdio.h>
#include <unistd.h>

int main(int argc, char **argv) {
    (void)argc;
    (void)argv;
    char **end = environ;
    while (*end)
        end++;
    Elf64_auxv_t *entry = (Elf64_auxv_t *)(end + 1);
    int is_there = entry->a_type != AT_NULL;
    int has_page_size = 0;
    for (; entry->a_type != AT_NULL; entry++)
        has_page_size |= entry->a_type == AT_PAGESZ;
    puts(has_page_size || !is_there ? "good" : "garbage");
}
