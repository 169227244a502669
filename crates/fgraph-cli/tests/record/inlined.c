/* `get` is inlined at three places, and called twice through a pointer. `hidden` is inlined only. */
static inline __attribute__((always_inline)) int hidden(int key)
{
	return key ^ (key >> 3);
}

static inline __attribute__((always_inline)) int get(int key)
{
	return key * 7 + (key >> 2);
}

__attribute__((noinline)) int one(int key)
{
	return get(key) +
	       get(key + hidden(5 * key));
}

__attribute__((noinline)) int two(int key)
{
	return get(key * 3) - 1;
}

int (*volatile through)(int) = get;

int main(int count, char **words)
{
	(void)words;
	return (one(count) + two(count) + through(count) + through(count + 1)) & 0;
}
