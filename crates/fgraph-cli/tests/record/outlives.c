/* Ends while a child goes on to call `work`, for three seconds at most. */
#include <unistd.h>

__attribute__((noinline)) int work(int n) {
    volatile int sum = 0;
    for (int i = 0; i < 20; i++)
        sum += n;
    return sum;
}

int main(void) {
    int begun[2];
    char byte = 0;
    if (pipe(begun) != 0)
        return 1;
    if (fork() == 0) {
        alarm(3);
        /* Another process waits for the end of the output. */
        close(1);
        close(2);
        for (int n = 0;; n++) {
            work(n);
            if (n == 1000 && write(begun[1], &byte, 1) != 1)
                return 1;
        }
    }
    return read(begun[0], &byte, 1) != 1;
}
