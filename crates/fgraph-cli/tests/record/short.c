// Calls a function that is too short for a jump, and says so.
#include <stdio.h>

void tiny(void);
__asm__(".globl tiny, behind\n"
        ".type tiny, @function\n"
        ".type behind, @function\n"
        "tiny: ret\n"
        ".size tiny, 1\n"
        "behind: ret\n"
        ".size behind, 1\n");

__attribute__((noinline, used)) int unused(int n) { return n * n + 3; }

int main(void) {
    tiny();
    puts("tiny");
    return 0;
}
