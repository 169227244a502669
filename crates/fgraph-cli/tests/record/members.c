/* Calls with addresses of structures; some addresses lead nowhere. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRACED __attribute__((noinline, noipa))

struct owner {
	char name[16];
	const char *town;
	struct {
		short age;
	};
};

struct account;

struct opaque *nothing;

typedef struct account {
	unsigned flags : 3;
	long balance;
	struct owner owner;
	struct account *next;
	double rate;
} account_t;

static volatile long total;

TRACED void deposit(const account_t *account, int *count, struct opaque *hidden, long amount)
{
	total += amount;
}

int main(void)
{
	account_t second = { .balance = 70, .owner = { "second", "Rome", { 33 } } };
	account_t first = { .balance = -5, .owner = { "first", "Oslo", { 44 } }, .next = &second };
	int count = 3;

	deposit(&first, &count, NULL, 10);
	deposit(&second, NULL, NULL, 20);
	deposit(NULL, (int *)8, NULL, 30);
	deposit((account_t *)0xdead00000000, (int *)-1, NULL, 40);
	printf("%ld\n", total);
	return total == 100 ? 0 : 1;
}
