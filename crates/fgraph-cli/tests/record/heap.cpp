// Uses the operators of C++, with a handler that frees memory when there is none.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

#define FUNCTION __attribute__((noipa))
#define COUNT 100

static void *kept;
struct alignas(128) Aligned { char bytes[256]; };

// Compilers leave out blocks that nobody uses.
template <typename T> static T *used(T *block) {
  asm volatile("" : : "r"(block) : "memory");
  return block;
}

FUNCTION void one() {
  for (int nth = 0; nth < COUNT; nth++) delete used(new int(nth));
}
FUNCTION void many() {
  for (int nth = 0; nth < COUNT; nth++) {
    char *text = used(new char[70]);
    if (nth % 2) delete[] text;
  }
}
FUNCTION void aligned() {
  for (int nth = 0; nth < COUNT; nth++) delete used(new Aligned);
}
FUNCTION void reserve() { kept = malloc(4000); }

FUNCTION void handler() {
  free(kept);
  std::set_new_handler(nullptr);
}

int main() {
  one();
  many();
  aligned();
  reserve();
  std::set_new_handler(handler);
  try {
    volatile std::size_t size = PTRDIFF_MAX;
    used(operator new(size));
  } catch (const std::bad_alloc &) {
  }
  _Exit(0);
}
