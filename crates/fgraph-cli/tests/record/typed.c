/* Takes and gives values that a terminal or a spreadsheet would obey. */
#include <stdio.h>

enum color { RED, GREEN = 5 };

static volatile int echoes;

__attribute__((noinline, noipa)) static enum color paint(const char *name, int times)
{
	return times < 0 ? GREEN : RED;
}

__attribute__((noinline, noipa)) static const char *echo(const char *text)
{
	echoes++;
	return text;
}

int main(void)
{
	int painted = paint("red", -3);
	echo("\033[31m=1+1</script>\n");
	printf("%d\n", painted);
	return 0;
}
