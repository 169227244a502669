// A library that is loaded and unloaded all the time.
int loaded(void)
{
    return 7;
}
