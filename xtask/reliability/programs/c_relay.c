/* Functions in C that exceptions go through: with -fexceptions, and with something to clean up. */
static volatile int cleaned;

static __attribute__((noinline)) void clean(int *number) { cleaned = cleaned + *number; }

__attribute__((noinline)) int c_relay(int frames, int (*bottom)(int)) {
    __attribute__((cleanup(clean))) int number = frames;
    int result = frames == 0 ? bottom(1) : c_relay(frames - 1, bottom);
    cleaned = cleaned + 1;
    return result + number;
}
