// Allocates and frees in many ways, and writes each act to the file of the first argument: the
// oracle of `fgraph heap`. A lock keeps the acts and their lines in one order.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define SLOTS 512
#define STEPS 6000
#define PAGE 4096

static int log_file;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *slots[SLOTS];
static __thread char path[256];

static void line(const char *format, ...) {
  char text[512];
  int len = snprintf(text, sizeof text, "%d ", getpid());
  va_list rest;
  va_start(rest, format);
  len += vsnprintf(text + len, sizeof text - len, format, rest);
  va_end(rest);
  text[len++] = '\n';
  if (write(log_file, text, len) != len) abort();
}

// The functions on the stack, the innermost first.
struct within { char before[sizeof path]; };
static void enter(struct within *within, const char *name) {
  memcpy(within->before, path, sizeof path);
  snprintf(path, sizeof path, "%s%s%s", name, within->before[0] ? ";" : "", within->before);
}
static void leave(struct within *within) { memcpy(path, within->before, sizeof path); }
#define WITHIN                                                                                     \
  __attribute__((cleanup(leave))) struct within within;                                            \
  enter(&within, __func__)
#define FUNCTION __attribute__((noipa)) static

static void *made(void *block, size_t size) {
  if (block) line("made %p %zu %s", block, size, path);
  return block;
}
static void gone(void *block) {
  if (block) line("gone %p", block);
}

FUNCTION void *by_malloc(size_t size) { WITHIN; return made(malloc(size), size); }
FUNCTION void *by_calloc(size_t size) { WITHIN; return made(calloc(3, size), 3 * size); }
FUNCTION void *by_posix_memalign(size_t size) {
  WITHIN;
  void *block = NULL;
  // No alignment.
  if (posix_memalign(&block, 3, size) != EINVAL) abort();
  return posix_memalign(&block, 64, size) ? NULL : made(block, size);
}
FUNCTION void *by_aligned_alloc(size_t size) {
  WITHIN;
  return made(aligned_alloc(256, size / 256 * 256), size / 256 * 256);
}
FUNCTION void *by_memalign(size_t size) { WITHIN; return made(memalign(128, size), size); }
FUNCTION void *by_valloc(size_t size) { WITHIN; return made(valloc(size), size); }
FUNCTION void *by_pvalloc(size_t size) { WITHIN; return made(pvalloc(size), size); }
FUNCTION void *by_strdup(size_t size) {
  WITHIN;
  char text[64];
  memset(text, 'a', sizeof text);
  text[size % sizeof text] = 0;
  return made(strdup(text), strlen(text) + 1);
}
FUNCTION void *by_failing(size_t size) {
  WITHIN;
  if (malloc(PTRDIFF_MAX - size)) abort();
  return made(malloc(0), 0);
}
FUNCTION void *by_realloc(void *block, size_t size) {
  WITHIN;
  // A failure leaves the block.
  if (realloc(block, PTRDIFF_MAX)) abort();
  void *moved = realloc(block, size);
  gone(block);
  return size || !block ? made(moved, size) : NULL;
}
FUNCTION void *by_reallocarray(void *block, size_t size) {
  WITHIN;
  void *moved = reallocarray(block, size + 1, 2);
  gone(block);
  return made(moved, 2 * (size + 1));
}
FUNCTION void by_free(void *block) {
  gone(block);
  free(block);
}

FUNCTION void *allocate(unsigned way, size_t size) {
  WITHIN;
  switch (way % 9) {
  case 0: return by_calloc(size);
  case 1: return by_posix_memalign(size);
  case 2: return by_aligned_alloc(size);
  case 3: return by_memalign(size);
  case 4: return by_valloc(size);
  case 5: return by_pvalloc(size);
  case 6: return by_strdup(size);
  case 7: return by_failing(size);
  default: return by_malloc(size);
  }
}
FUNCTION void *otherwise(unsigned way, size_t size) {
  WITHIN;
  return way % 2 ? by_malloc(size) : allocate(way / 2, size);
}

FUNCTION void work(unsigned seed) {
  WITHIN;
  for (int step = 0; step < STEPS; step++) {
    seed = seed * 1103515245 + 12345;
    unsigned chance = seed >> 8;
    // Some are so large that malloc maps them.
    size_t size = chance % 400 == 0 ? 300000 : chance % 1000;
    void **slot = &slots[chance / 7 % SLOTS];
    pthread_mutex_lock(&lock);
    switch (chance / 3 % 8) {
    case 0: *slot = by_realloc(*slot, size); break;
    case 1: *slot = by_reallocarray(*slot, size); break;
    case 2:
    case 3: by_free(*slot); *slot = NULL; break;
    case 4: by_free(*slot); *slot = otherwise(chance / 11, size); break;
    default: by_free(*slot); *slot = allocate(chance / 11, size); break;
    }
    pthread_mutex_unlock(&lock);
  }
}
static void *start(void *seed) {
  WITHIN;
  work((uintptr_t)seed);
  return NULL;
}

FUNCTION void mappings(void) {
  WITHIN;
  int flags = MAP_PRIVATE | MAP_ANONYMOUS;
  char *map = mmap(NULL, 16 * PAGE, PROT_READ, flags, -1, 0);
  line("mapped %p %d %s", (void *)map, 16 * PAGE, path);
  // In the middle.
  munmap(map + 4 * PAGE, 2 * PAGE + 1);
  line("unmapped %p %d", (void *)(map + 4 * PAGE), 3 * PAGE);
  // Over it.
  mmap(map, PAGE, PROT_READ, flags | MAP_FIXED, -1, 0);
  line("unmapped %p %d", (void *)map, PAGE);
  line("mapped %p %d %s", (void *)map, PAGE, path);
  char *moved = mremap(map + 8 * PAGE, 8 * PAGE, 100 * PAGE, MREMAP_MAYMOVE);
  line("unmapped %p %d", (void *)(map + 8 * PAGE), 8 * PAGE);
  line("mapped %p %d %s", (void *)moved, 100 * PAGE, path);
  if (munmap(map + 1, PAGE) == 0) abort();
}

int main(int count, char **words) {
  if (count < 2) return 2;
  log_file = open(words[1], O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);
  WITHIN;
  pthread_t threads[3];
  for (uintptr_t nth = 0; nth < 3; nth++) {
    pthread_create(&threads[nth], NULL, start, (void *)(nth + 1));
  }
  for (int nth = 0; nth < 3; nth++) pthread_join(threads[nth], NULL);
  mappings();
  if (fork() == 0) {
    work(7);
    _exit(0);
  }
  wait(NULL);
  work(8);
  _exit(0);
}
