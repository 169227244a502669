/* For functions that are traced: calls of them stay calls. */
#ifdef __clang__
#define KEPT __attribute__((noinline, unused))
#else
#define KEPT __attribute__((noinline, noclone, unused))
#endif
