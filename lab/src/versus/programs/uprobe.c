// Makes the kernel count the entries of `leaf`, and with `UPROBE=return` its returns as well;
// prints how many it has counted when the program ends.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <linux/perf_event.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

long leaf(long a, long b);

static int counters[2] = {-1, -1};

static int probe(unsigned type, int at_return)
{
	Dl_info info;
	dladdr((void *)leaf, &info);
	struct perf_event_attr attributes;
	memset(&attributes, 0, sizeof attributes);
	attributes.size = sizeof attributes;
	attributes.type = type;
	attributes.config = at_return;
	attributes.uprobe_path = (uintptr_t)"/proc/self/exe";
	// Linkers put code at the same offset in the file as in memory, where pages are shared.
	attributes.probe_offset = (uintptr_t)leaf - (uintptr_t)info.dli_fbase;
	int counter = syscall(SYS_perf_event_open, &attributes, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
	if (counter < 0) {
		perror("perf_event_open of a uprobe");
		exit(1);
	}
	return counter;
}

__attribute__((constructor)) static void start(void)
{
	FILE *file = fopen("/sys/bus/event_source/devices/uprobe/type", "r");
	unsigned type;
	if (!file || fscanf(file, "%u", &type) != 1) {
		fprintf(stderr, "this kernel has no uprobes\n");
		exit(1);
	}
	fclose(file);
	const char *where = getenv("UPROBE");
	counters[0] = probe(type, 0);
	if (where && !strcmp(where, "return"))
		counters[1] = probe(type, 1);
}

__attribute__((destructor)) static void end(void)
{
	uint64_t all = 0;
	for (int i = 0; i < 2; i++) {
		uint64_t hits;
		if (read(counters[i], &hits, sizeof hits) == sizeof hits)
			all += hits;
	}
	printf("%lu\n", (unsigned long)all);
}
