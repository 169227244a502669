/* Ten calls of `take` from `first`, one from `second`. */
#include <stdio.h>

#define TRACED __attribute__((noinline, noipa))

static volatile int taken;

TRACED static int take(const char *name, long size)
{
	taken++;
	return size > 4 ? -1 : 0;
}

TRACED static void first(void)
{
	for (long size = 0; size < 10; size++)
		take(size & 1 ? "odd\033[2J" : "even", size);
	taken++;
}

TRACED static void second(void)
{
	take("large", 1000);
	taken++;
}

TRACED void never(void)
{
	taken++;
}

int main(void)
{
	first();
	second();
	printf("%d\n", taken);
	return 0;
}
