// Starts processes with two threads until CHILDREN have ended, or for SECONDS.

import java.util.concurrent.atomic.AtomicInteger;

class Program {
    static final AtomicInteger left = new AtomicInteger();
    static final AtomicInteger children = new AtomicInteger();
    static final AtomicInteger bad = new AtomicInteger();

    public static void main(String[] arguments) throws Exception {
        left.set(Integer.parseInt(arguments[0]));
        long end = System.nanoTime() + Long.parseLong(arguments[1]) * 1_000_000_000L;
        System.out.println("begun");
        Thread[] threads = new Thread[2];
        for (int number = 0; number < threads.length; number++) {
            threads[number] = new Thread(() -> {
                while (left.getAndDecrement() > 0 && System.nanoTime() < end) {
                    try {
                        int status = new ProcessBuilder("/bin/true").start().waitFor();
                        if (status != 0) {
                            bad.incrementAndGet();
                            System.err.println("a child has ended with " + status);
                        }
                    } catch (Exception error) {
                        bad.incrementAndGet();
                        System.err.println(error);
                    }
                    children.incrementAndGet();
                }
            });
            threads[number].start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        System.out.println("ended " + children + " " + bad);
    }
}
