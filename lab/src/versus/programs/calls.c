// Calls `leaf` so often as the first argument says, and prints nanoseconds per call: the shortest
// of many measurements. With a second argument it waits for a line of input before.

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

// As many as are not interrupted mostly, and enough to fill the buffers of those who record.
#define BATCH 10000

long leaf(long a, long b);

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1e9 + time.tv_nsec;
}

int main(int count, char **arguments)
{
	if (count < 2)
		return 2;
	long calls = atol(arguments[1]);
	if (count > 2)
		getchar();
	// Nothing is known of what is called, so that the call is one in all programs.
	long (*volatile function)(long, long) = leaf;
	double shortest = 1e300;
	// The result is kept, so that no compiler leaves the calls out.
	volatile long result;
	long value = 0;
	for (; calls > 0; calls -= BATCH) {
		long (*call)(long, long) = function;
		double start = now();
		// Each call waits for the result of the one before, as calls mostly do.
		for (int i = 0; i < BATCH; i++)
			value = call(value, 1);
		double taken = now() - start;
		if (taken < shortest)
			shortest = taken;
	}
	result = value;
	(void)result;
	printf("%.3f\n", shortest / BATCH);
	// Before those who watch print anything as the program ends.
	fflush(stdout);
	return 0;
}
