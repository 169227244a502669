/* Spends its time in the C library, which a command line may leave out. */
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define TRACED __attribute__((noinline, noipa))

TRACED static void *search(const char *text, size_t len)
{
	for (int i = 0; i < 20; i++)
		if (memchr(text, 1, len))
			return NULL;
	__asm__ volatile("");
	return memchr(text, 1, len);
}

/* Milliseconds outside the kernel. */
TRACED static long used(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return usage.ru_utime.tv_sec * 1000 + usage.ru_utime.tv_usec / 1000;
}

int main(void)
{
	size_t len = 1 << 20;
	char *text = calloc(len, 1);

	memset(text, 2, len);
	while (used() < 1000)
		search(text, len);
	return 0;
}
