// Keeps a block each millisecond, and frees one from before it said that it is ready.
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define COUNT 60000
static void *before[COUNT], *kept[COUNT];

__attribute__((noinline)) static void keep(int nth) { kept[nth] = malloc(100); }
__attribute__((noinline)) static void use(void) { free(calloc(1, 30)); }

int main(void) {
  for (int nth = 0; nth < COUNT; nth++) before[nth] = malloc(10);
  puts("ready");
  fflush(stdout);
  for (int nth = 0; nth < COUNT; nth++) {
    keep(nth);
    use();
    free(before[nth]);
    usleep(1000);
  }
  return 0;
}
