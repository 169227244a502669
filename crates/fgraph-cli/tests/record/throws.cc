// Throws through calls on several threads.
#include <cstdio>
#include <stdexcept>
#include <thread>
#include <vector>

__attribute__((noinline)) int leaf(int n) {
    if (n % 3 == 0)
        throw std::runtime_error("three");
    return n;
}

__attribute__((noinline)) int middle(int n) { return leaf(n) + 1; }

int main() {
    std::vector<std::thread> threads;
    int caught[4] = {};
    for (int &count : caught)
        threads.emplace_back([&count] {
            for (int n = 0; n < 300; n++)
                try {
                    middle(n);
                } catch (const std::exception &) {
                    count++;
                }
        });
    for (auto &thread : threads)
        thread.join();
    std::printf("%d %d %d %d\n", caught[0], caught[1], caught[2], caught[3]);
}
