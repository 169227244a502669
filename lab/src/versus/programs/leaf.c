// The called function, and all that is compiled anew for each peer.

long leaf(long a, long b)
{
	return 3 * a + b + 1;
}
