/* A program that uses much of the C library, in parts, and prints what comes of it. It does not
 * print what is not the same every time. */
#define _GNU_SOURCE
#include <aio.h>
#include <argz.h>
#include <arpa/inet.h>
#include <assert.h>
#include <ctype.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <fenv.h>
#include <fnmatch.h>
#include <ftw.h>
#include <getopt.h>
#include <gnu/libc-version.h>
#include <glob.h>
#include <iconv.h>
#include <inttypes.h>
#include <langinfo.h>
#include <libgen.h>
#include <limits.h>
#include <link.h>
#include <locale.h>
#include <malloc.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <obstack.h>
#include <poll.h>
#include <pthread.h>
#include <pwd.h>
#include <regex.h>
#include <sched.h>
#include <search.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <threads.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>
#include <wchar.h>
#include <wctype.h>
#include <wordexp.h>

#define obstack_chunk_alloc malloc
#define obstack_chunk_free free

#if !__GLIBC_PREREQ(2, 32)
#define strerrordesc_np(error) "Operation not permitted"
#endif

static const char *directory;

static const char *in_directory(const char *name) {
    static __thread char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return path;
}

/* --- memory */

static void memory(void) {
    unsigned char *blocks[200];
    unsigned long sum = 0;
    for (int i = 0; i < 200; i++) {
        blocks[i] = malloc(1 + i * i);
        memset(blocks[i], i, 1 + i * i);
    }
    for (int i = 0; i < 200; i += 2) {
        blocks[i] = realloc(blocks[i], 1 + i * 3);
        blocks[i][0] ^= 0xff;
    }
    for (int i = 0; i < 200; i++) {
        sum = sum * 31 + blocks[i][0];
        free(blocks[i]);
    }
    void *aligned;
    int result = posix_memalign(&aligned, 4096, 10000);
    unsigned *zeros = calloc(1000, sizeof *zeros);
    for (int i = 0; i < 1000; i++)
        sum += zeros[i];
    printf("%lu %d %d %d\n", sum, result, (int)((unsigned long)aligned % 4096),
           malloc_usable_size(aligned) >= 10000);
    errno = 0;
    void *volatile none = malloc(PTRDIFF_MAX);
    printf("%d %d\n", none == NULL, errno == ENOMEM);
    void *block = reallocarray(NULL, 100, 100);
    free(block);
    free(aligned);
    free(zeros);
    struct obstack stack;
    obstack_init(&stack);
    for (int i = 0; i < 1000; i++)
        obstack_1grow(&stack, 'a' + i % 26);
    obstack_1grow(&stack, 0);
    printf("%zu\n", strlen(obstack_finish(&stack)));
    obstack_free(&stack, NULL);
    malloc_trim(0);
}

/* --- strings */

static int compare_strings(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void strings(void) {
    char buffer[1000], other[1000];
    for (int length = 0; length < 300; length += 7) {
        memset(buffer, 'x', length);
        buffer[length] = 0;
        strcpy(other, buffer);
        strcat(other, "y");
        if (strlen(other) != (size_t)length + 1 || strchr(other, 'y') != other + length ||
            strcmp(buffer, other) >= 0 || memcmp(buffer, other, length) ||
            strncmp(buffer, other, length) || strrchr(other, 'y') != other + length ||
            memchr(other, 'y', length + 1) != other + length ||
            strstr(other, "y") != other + length || strcspn(other, "yz") != (size_t)length)
            printf("wrong at %d\n", length);
        memmove(other + 3, other, length + 2);
        if (strlen(other + 3) != (size_t)length + 1)
            printf("moved wrong at %d\n", length);
    }
    char list[] = "one, two,three ,, four";
    char *rest = NULL;
    for (char *word = strtok_r(list, ", ", &rest); word; word = strtok_r(NULL, ", ", &rest))
        printf("[%s]", word);
    char *copy = strdup("to be cut in pieces"), *pieces = copy, *piece;
    while ((piece = strsep(&pieces, " ")))
        printf("<%s>", piece);
    free(copy);
    printf("\n%s %s %s\n", strerror(ENOENT), strsignal(SIGSEGV), strerrordesc_np(EPERM));
    printf("%d %d %s %s\n", strcasecmp("HeLLo", "hEllO"), strverscmp("a10", "a9") > 0,
           (char *)memmem("haystack with needle", 20, "need", 4), strcasestr("Some TEXT", "text"));
    printf("%s %s %s\n", basename("/a/b/c"), strchrnul("abc", 'z'), strpbrk("abcdef", "xde"));
    const char *words[] = {"pear", "apple", "fig", "date", "cherry", "banana"};
    qsort(words, 6, sizeof *words, compare_strings);
    const char *key = "date";
    const char **found = bsearch(&key, words, 6, sizeof *words, compare_strings);
    for (int i = 0; i < 6; i++)
        printf("%s ", words[i]);
    printf("%td\n", found - words);
    char *argz = NULL;
    size_t length = 0;
    argz_create_sep("a:b:c", ':', &argz, &length);
    argz_add(&argz, &length, "d");
    argz_stringify(argz, length, '+');
    puts(argz);
    free(argz);
    swab("badc", buffer, 4);
    memfrob(other, 1);
    printf("%.4s %d %s\n", buffer, ffsl(0x100), strfry(strdup("a")));
    printf("%s\n", l64a(a64l("xyz")));
}

/* --- printf */

static int print_with(char *to, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int result = vsprintf(to, format, arguments);
    va_end(arguments);
    return result;
}

static void printf_(void) {
    char buffer[2000];
    int so_far = 0;
    printf("%d %5d %-5d| %05d %+d %x %X %#x %o %u %c %s %10s %-10s| %.3s %%\n", -1, 2, 3, 4, 5, 254,
           254, 254, 8, 4000000000u, 'c', "text", "right", "left", "truncated");
    printf("%ld %lld %hhd %hd %zu %jd %td%n", LONG_MIN, LLONG_MAX, (signed char)-3, (short)-4,
           (size_t)5, (intmax_t)-6, (ptrdiff_t)7, &so_far);
    printf(" %d\n", so_far);
    printf("%f %e %g %a %.0f %.10f %10.2f %-10.2f| %+g %G %E\n", 1.5, 1e100, 1e-5, 0.1, 2.5, M_PI,
           3.14159, 2.71828, 1.0, 1e-10, 12345.678);
    printf("%Lf %Lg %La\n", 1.25L, 1e4000L, 0.5L);
    printf("%f %f %f %f %f %f %f %f %f %f %f %f\n", 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0,
           10.0, 11.0, 12.0);
    printf("%2$s %1$s %3$*4$d\n", "world", "hello", 42, 6);
    printf("%*d %.*f %-*d|\n", 6, 1, 3, 2.0, 4, 3);
    printf("%f %f %f %F\n", INFINITY, -INFINITY, NAN, -NAN);
    printf("%p %m\n", (void *)0x1234);
    printf("%'d %ls %lc\n", 1234567, L"wide", L'w');
    printf("%d ", print_with(buffer, "%s-%d-%f", "x", 7, 0.25));
    puts(buffer);
    char *allocated;
    printf("%d\n", asprintf(&allocated, "%0100d", 5));
    puts(allocated);
    free(allocated);
    printf("%d ", snprintf(buffer, 5, "%s", "longer than that"));
    puts(buffer);
    dprintf(STDOUT_FILENO, "%s", "");
    fprintf(stdout, "%.100f\n", 1.0 / 3);
    printf("%100s|\n", "padded");
    for (int i = 0; i < 100; i++)
        printf("%d,%g;", i * i, i / 7.0);
    putchar('\n');
}

/* --- scanf */

static void scanf_(void) {
    int a, b, used;
    unsigned x;
    double d;
    float f;
    char word[20], set[20], *made;
    long double l;
    printf("%d\n", sscanf("12 -7 ff 2.5 1e3 word [abc] 0x1p3", "%d %d %x %lf %f %19s [%19[a-c]] %Lf%n", &a,
                          &b, &x, &d, &f, word, set, &l, &used));
    printf("%d %d %u %g %g %s %s %Lg %d\n", a, b, x, d, (double)f, word, set, l, used);
    printf("%d ", sscanf("allocated text", "%ms", &made));
    puts(made);
    free(made);
    printf("%d\n", sscanf("no number", "%d", &a));
    FILE *memory = fmemopen("1 2 3 4\nrest of it\n", 19, "r");
    int sum = 0;
    while (fscanf(memory, "%d", &a) == 1)
        sum += a;
    char *line = NULL;
    size_t size = 0;
    ssize_t length = getline(&line, &size, memory);
    printf("%d %zd %s", sum, length, line);
    free(line);
    fclose(memory);
}

/* --- wide */

static void wide(void) {
    setlocale(LC_ALL, "C.UTF-8");
    wchar_t text[100];
    char bytes[400];
    size_t length = mbstowcs(text, "gr\xc3\xbc\xc3\x9f dich \xe2\x82\xac", 100);
    printf("%zu %zu %d\n", length, wcslen(text), wcwidth(text[2]));
    for (wchar_t *c = text; *c; c++)
        *c = towupper(*c);
    wcstombs(bytes, text, sizeof bytes);
    puts(bytes);
    swprintf(text, 100, L"%ls %d %.2f %s", L"wide", 7, 2.5, "narrow");
    printf("%ls %ld %g\n", text, wcstol(L"77", NULL, 8), wcstod(L"1.5e3", NULL));
    wchar_t *rest;
    wchar_t list[] = L"a b c";
    for (wchar_t *w = wcstok(list, L" ", &rest); w; w = wcstok(NULL, L" ", &rest))
        printf("%ls;", w);
    printf("%d %d %d\n", iswalpha(L'\u00fc'), wcscmp(L"a", L"b"), wmemcmp(L"ab", L"ab", 2));
    iconv_t convert = iconv_open("UTF-16LE", "UTF-8");
    char in[] = "h\xc3\xa9llo", *from = in, *to = bytes;
    size_t in_left = strlen(in), out_left = sizeof bytes;
    printf("%zd ", iconv(convert, &from, &in_left, &to, &out_left));
    printf("%zu\n", sizeof bytes - out_left);
    iconv_close(convert);
    FILE *file = fopen(in_directory("wide"), "w+");
    fwprintf(file, L"%ls\n", L"\u00fcber");
    rewind(file);
    fgetws(text, 100, file);
    printf("%zu %x\n", wcslen(text), text[0]);
    fclose(file);
}

/* --- locale */

static void locale_(void) {
    printf("%s\n", setlocale(LC_ALL, "C.UTF-8"));
    struct lconv *conventions = localeconv();
    printf("%s %s %s\n", conventions->decimal_point, nl_langinfo(CODESET), nl_langinfo(DAY_1));
    locale_t c = newlocale(LC_ALL_MASK, "C", NULL), before = uselocale(c);
    printf("%d %d %g\n", toupper_l('a', c), isalpha_l('1', c), strtod_l("1,5", NULL, c));
    uselocale(before);
    freelocale(c);
    char transformed[100];
    printf("%d %zu\n", strcoll("a", "b") < 0, strxfrm(transformed, "text", sizeof transformed));
    for (int i = 0; i < 128; i++)
        putchar('0' + !!isalnum(i) + 2 * !!ispunct(i) + 4 * !!isspace(i));
    putchar('\n');
    printf("%s\n", setlocale(LC_NUMERIC, "no_such") ? "set" : "not set");
}

/* --- files */

static int visits;

static void files(void) {
    FILE *file = fopen(in_directory("file"), "w+");
    for (int i = 0; i < 2000; i++)
        fprintf(file, "line %d of the file\n", i);
    fflush(file);
    printf("%ld\n", ftell(file));
    fseek(file, 100, SEEK_SET);
    char line[100];
    printf("%s", fgets(line, sizeof line, file));
    rewind(file);
    int lines = 0, c;
    while ((c = getc(file)) != EOF)
        lines += c == '\n';
    printf("%d %d %d\n", lines, feof(file), ferror(file));
    ungetc('u', file);
    printf("%c\n", fgetc(file));
    fseeko(file, -20, SEEK_END);
    printf("%zu\n", fread(line, 1, sizeof line, file));
    setvbuf(file, NULL, _IONBF, 0);
    fwrite("end", 3, 1, file);
    fputs("!", file);
    fclose(file);
    struct stat status;
    printf("%d ", stat(in_directory("file"), &status));
    printf("%ld\n", (long)status.st_size);
    int fd = open(in_directory("file"), O_RDWR);
    printf("%zd ", pread(fd, line, 10, 5));
    printf("%zd\n", pwrite(fd, "XX", 2, 0));
    struct iovec vectors[2] = {{line, 3}, {line + 10, 4}};
    printf("%zd ", readv(fd, vectors, 2));
    printf("%.3s\n", line);
    printf("%d ", ftruncate(fd, 50));
    printf("%ld\n", (long)lseek(fd, 0, SEEK_END));
    printf("%d %d\n", fcntl(fd, F_GETFL) & O_ACCMODE, isatty(fd));
    printf("%d\n", fsync(fd));
    close(fd);
    char *memory;
    size_t size;
    FILE *stream = open_memstream(&memory, &size);
    fprintf(stream, "%0500d", 1);
    fclose(stream);
    printf("%zu\n", size);
    free(memory);
    printf("%d %d\n", rename(in_directory("file"), strdupa(in_directory("renamed"))), access(in_directory("file"), F_OK));
    printf("%d %s\n", unlink(in_directory("renamed")), fopen(in_directory("none"), "r") ? "?" : strerror(errno));
    FILE *temporary = tmpfile();
    fputs("text", temporary);
    fclose(temporary);
    char name[] = "/tmp/fgraph-XXXXXX";
    fd = mkstemp(name);
    printf("%d %zu\n", fd >= 0, strlen(name));
    close(fd);
    unlink(name);
    perror("");
}

static int visit(const char *path, const struct stat *status, int type, struct FTW *walk) {
    (void)path, (void)status;
    visits += 1 + type + 10 * walk->level;
    return 0;
}

static int by_name(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

static void directories(void) {
    char path[PATH_MAX];
    for (int i = 0; i < 5; i++) {
        snprintf(path, sizeof path, "%s/dir%d", directory, i);
        printf("%d", mkdir(path, 0755));
        strcat(path, "/file");
        fclose(fopen(path, "w"));
    }
    visits = 0;
    printf("\n%d", nftw(directory, visit, 10, FTW_PHYS));
    printf(" %d\n", visits);
    struct dirent **names;
    int count = scandir(directory, &names, NULL, by_name);
    for (int i = 0; i < count; i++) {
        printf("%s ", names[i]->d_name);
        free(names[i]);
    }
    free(names);
    glob_t found;
    snprintf(path, sizeof path, "%s/dir[0-2]/f*", directory);
    printf("\n%d ", glob(path, 0, NULL, &found));
    printf("%zu\n", found.gl_pathc);
    globfree(&found);
    DIR *stream = opendir(directory);
    count = 0;
    while (readdir(stream))
        count++;
    closedir(stream);
    printf("%d %d %s\n", count, fnmatch("*.[ch]", "file.c", 0), realpath(directory, path) ? "real" : "?");
    wordexp_t words;
    printf("%d", wordexp("a 'b c' $((1+2))", &words, WRDE_NOCMD));
    for (size_t i = 0; i < words.we_wordc; i++)
        printf("[%s]", words.we_wordv[i]);
    wordfree(&words);
    int here = open(".", O_RDONLY);
    printf("\n%d %d\n", chdir(directory), access("dir0", F_OK));
    for (int i = 0; i < 5; i++) {
        snprintf(path, sizeof path, "dir%d/file", i);
        printf("%d", unlink(path));
        printf("%d", rmdir(dirname(path)));
    }
    printf("%d\n", fchdir(here));
    close(here);
}

/* --- regex, searching */

static void regex(void) {
    regex_t pattern;
    regmatch_t matches[5];
    const char *patterns[] = {"^([a-z]+)([0-9]*)$", "(a|ab)(c|bcd)(d*)", "\\bword\\b", "[[:upper:]]{2,3}", "x*(yz)+?"};
    const char *texts[] = {"abc123", "abcd", "a word here", "some ABC text", "xxxyzyz", ""};
    for (int i = 0; i < 5; i++) {
        int result = regcomp(&pattern, patterns[i], REG_EXTENDED);
        printf("%d:", result);
        for (int j = 0; !result && j < 6; j++) {
            int match = regexec(&pattern, texts[j], 5, matches, 0);
            printf(" %d", match);
            for (int k = 0; !match && k < 3; k++)
                printf("(%d,%d)", matches[k].rm_so, matches[k].rm_eo);
        }
        putchar('\n');
        regfree(&pattern);
    }
    char message[100];
    int result = regcomp(&pattern, "(", REG_EXTENDED);
    regerror(result, &pattern, message, sizeof message);
    puts(message);
}

static int compare_ints(const void *a, const void *b) {
    return (*(const int *)a > *(const int *)b) - (*(const int *)a < *(const int *)b);
}

static int compare_with(const void *a, const void *b, void *count) {
    ++*(int *)count;
    return compare_ints(a, b);
}

static int walked;
static void walk(const void *node, VISIT order, int depth) {
    if (order == postorder || order == leaf)
        walked = walked * 7 + **(int *const *)node + depth;
}

static void search(void) {
    int numbers[1000], comparisons = 0;
    unsigned state = 1;
    for (int i = 0; i < 1000; i++)
        numbers[i] = (state = state * 1103515245 + 12345) >> 16 & 0xfff;
    int copy[1000];
    memcpy(copy, numbers, sizeof copy);
    qsort(numbers, 1000, sizeof *numbers, compare_ints);
    qsort_r(copy, 1000, sizeof *copy, compare_with, &comparisons);
    printf("%d %d %d %d\n", numbers[0], numbers[999], memcmp(copy, numbers, sizeof copy), comparisons);
    void *root = NULL;
    for (int i = 0; i < 100; i++)
        tsearch(&copy[i * 7], &root, compare_ints);
    int key = copy[70];
    walked = 0;
    twalk(root, walk);
    printf("%d %d\n", walked, tfind(&key, &root, compare_ints) != NULL);
    for (int i = 0; i < 100; i++)
        tdelete(&copy[i * 7], &root, compare_ints);
    hcreate(100);
    ENTRY entry = {"key", "value"};
    hsearch(entry, ENTER);
    printf("%s\n", (char *)hsearch((ENTRY){"key", NULL}, FIND)->data);
    hdestroy();
    size_t count = 1000;
    printf("%d\n", lfind(&key, copy, &count, sizeof key, compare_ints) != NULL);
    srand(7);
    srandom(7);
    srand48(7);
    printf("%d %ld %ld %.6f %ld\n", rand(), random(), lrand48(), drand48(), mrand48());
}

/* --- numbers */

static void numbers(void) {
    const char *texts[] = {"1.5", "1e308", "1e309", "0x1.8p3", "nan", "-inf", "2.2250738585072011e-308", "junk",
                           "9007199254740993", "123456789012345678901234567890.5"};
    for (int i = 0; i < 10; i++) {
        char *end;
        errno = 0;
        double value = strtod(texts[i], &end);
        printf("%a %td %d; %a %La\n", value, end - texts[i], errno, (double)strtof(texts[i], NULL), strtold(texts[i], NULL));
    }
    printf("%ld %lu %lld %d %ld\n", strtol("-0x7f", NULL, 0), strtoul("777", NULL, 8), strtoll("zz", NULL, 36), atoi("42"), atol("x"));
    div_t d = div(-17, 5);
    ldiv_t l = ldiv(100000000000, 7);
    printf("%d %d %ld %ld %d %jd\n", d.quot, d.rem, l.quot, l.rem, abs(-3), imaxabs(-9));
    int exponent;
    double whole;
    printf("%g %g %g %g ", frexp(80, &exponent), modf(3.75, &whole), ldexp(0.5, 4), copysign(2, -0.0));
    printf("%d %g\n", exponent, whole);
    fesetround(FE_UPWARD);
    printf("%.20g %ld\n", strtod("0.1", NULL), lrint(2.1));
    fesetround(FE_TONEAREST);
    printf("%d %d\n", isinf(INFINITY), finite(1.0));
    char buffer[50];
    int sign;
    printf("%s\n", ecvt(123.456, 5, &exponent, &sign));
    gcvt(1.0 / 3, 10, buffer);
    puts(buffer);
    printf("%s\n", inet_ntoa((struct in_addr){htonl(0x7f000001)}));
}

/* --- time */

static void time_(void) {
    time_t moment = 1700000000;
    struct tm broken;
    char text[200];
    gmtime_r(&moment, &broken);
    strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S %j %a %B %U %p %Z", &broken);
    puts(text);
    printf("%ld %ld\n", (long)mktime(&broken), (long)timegm(&broken));
    fputs(ctime_r(&moment, text), stdout);
    memset(&broken, 0, sizeof broken);
    printf("%zu|", strlen(strptime("2024-02-29 12:30", "%Y-%m-%d %H:%M", &broken)));
    printf("%d %d\n", broken.tm_yday, broken.tm_min);
    setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3", 1);
    tzset();
    localtime_r(&moment, &broken);
    printf("%d %s %s %ld\n", broken.tm_hour, tzname[0], tzname[1], timezone);
    setenv("TZ", "Europe/Berlin", 1);
    localtime_r(&moment, &broken);
    struct timespec a, b, nap = {0, 1000000};
    struct timeval now;
    clock_gettime(CLOCK_MONOTONIC, &a);
    printf("%d", nanosleep(&nap, NULL));
    usleep(1000);
    clock_gettime(CLOCK_MONOTONIC, &b);
    printf(" %d", (b.tv_sec - a.tv_sec) * 1000000000 + b.tv_nsec - a.tv_nsec >= 2000000);
    printf(" %d", gettimeofday(&now, NULL));
    /* The clock of `time` is coarse: it may be a second behind that of `gettimeofday`. */
    printf(" %d %d %d\n", now.tv_sec > moment, time(NULL) > moment, clock() != -1);
    clock_getres(CLOCK_REALTIME, &a);
    printf("%.1f\n", difftime(10, 7));
}

/* --- environment */

static void environment(void) {
    setenv("FGRAPH_ONE", "first", 1);
    putenv("FGRAPH_TWO=second");
    unsetenv("FGRAPH_ONE");
    printf("%s %s %s\n", getenv("FGRAPH_TWO"), getenv("FGRAPH_ONE"), secure_getenv("TZ"));
    char *arguments[] = {"program", "-a", "-b", "value", "--long=5", "rest", NULL};
    struct option options[] = {{"long", required_argument, NULL, 'l'}, {0}};
    optind = 1;
    int option;
    while ((option = getopt_long(6, arguments, "ab:", options, NULL)) != -1)
        printf("%c=%s ", option, optarg);
    printf("%s\n", arguments[optind]);
    struct utsname system;
    struct rlimit limit;
    struct rusage usage;
    printf("%d %d %d %ld %d\n", uname(&system), getrlimit(RLIMIT_NOFILE, &limit), getrusage(RUSAGE_SELF, &usage),
           sysconf(_SC_PAGESIZE), getpagesize());
    printf("%d %d %d %d\n", getpid() > 0, getppid() > 0, getuid() == geteuid(), gethostname(system.nodename, 10) != 1);
    printf("%d %d\n", gnu_get_libc_version() != NULL, getauxval(AT_PAGESZ) == 4096);
    struct passwd *root = getpwuid(0);
    printf("%s\n", root ? root->pw_name : "?");
    cpu_set_t set;
    printf("%d %d\n", sched_getaffinity(0, sizeof set, &set), get_nprocs() > 0);
}

/* --- jumps */

static jmp_buf buffer;
static sigjmp_buf signal_buffer;

static __attribute__((noinline)) void dive(int depth) {
    char local[100];
    snprintf(local, sizeof local, "%d", depth);
    if (depth == 0)
        longjmp(buffer, 5);
    dive(depth - 1);
    puts(local);
}

static int compare_and_jump(const void *a, const void *b) {
    static int count;
    if (++count % 20 == 0)
        longjmp(buffer, count);
    return compare_ints(a, b);
}

static void jump_from_handler(int signal) { siglongjmp(signal_buffer, signal); }

static void jumps(void) {
    for (int i = 0; i < 20; i++) {
        volatile int kept = i;
        int result = setjmp(buffer);
        if (result == 0)
            dive(i);
        printf("%d %d;", result, kept);
    }
    putchar('\n');
    for (int i = 0; i < 5; i++) {
        int numbers[100];
        for (int j = 0; j < 100; j++)
            numbers[j] = j * 37 % 100;
        int result = _setjmp(buffer);
        if (result == 0)
            qsort(numbers, 100, sizeof *numbers, compare_and_jump);
        printf("%d;", result);
    }
    putchar('\n');
    signal(SIGUSR1, jump_from_handler);
    for (int i = 0; i < 5; i++) {
        int result = sigsetjmp(signal_buffer, 1);
        if (result == 0)
            raise(SIGUSR1);
        printf("%d;", result);
    }
    putchar('\n');
    /* Twice around before it is used. */
    volatile int rounds = 0;
    int result = setjmp(buffer);
    printf("%d,", result);
    if (++rounds < 5)
        longjmp(buffer, rounds);
    putchar('\n');
}

/* --- signals */

static volatile sig_atomic_t caught, level;

static void on_signal(int signal, siginfo_t *info, void *context) {
    (void)context;
    char text[50];
    caught = caught * 3 + signal + (info->si_code == SI_USER);
    snprintf(text, sizeof text, "%d", signal);
    if (level++ < 3)
        raise(signal);
    level--;
}

static void on_fault(int signal) {
    (void)signal;
    siglongjmp(signal_buffer, 7);
}

static char alternate[65536];

static void signals(void) {
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGUSR1, &action, NULL);
    sigaction(SIGRTMIN, &action, NULL);
    raise(SIGUSR1);
    kill(getpid(), SIGUSR1);
    printf("%d\n", caught);
    sigset_t set, pending;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, NULL);
    raise(SIGUSR1);
    sigpending(&pending);
    printf("%d %d\n", sigismember(&pending, SIGUSR1), caught);
    int signal_;
    printf("%d ", sigwait(&set, &signal_));
    printf("%d\n", signal_);
    sigprocmask(SIG_UNBLOCK, &set, NULL);
    stack_t stack = {.ss_sp = alternate, .ss_size = sizeof alternate}, none = {.ss_flags = SS_DISABLE};
    sigaltstack(&stack, NULL);
    action.sa_flags |= SA_ONSTACK;
    sigaction(SIGUSR2, &action, NULL);
    raise(SIGUSR2);
    printf("%d\n", caught);
    sigaltstack(&none, NULL);
    sigqueue(getpid(), SIGRTMIN, (union sigval){.sival_int = 3});
    printf("%d\n", caught);
    signal(SIGSEGV, on_fault);
    int result = sigsetjmp(signal_buffer, 1);
    if (result == 0)
        *(volatile int *)16 = 1;
    printf("%d\n", result);
    /* Reads in the C library that fault. */
    result = sigsetjmp(signal_buffer, 1);
    if (result == 0)
        printf("%zu\n", strlen((char *)(volatile long)16));
    printf("%d\n", result);
    signal(SIGFPE, on_fault);
    result = sigsetjmp(signal_buffer, 1);
    if (result == 0)
        raise(SIGFPE);
    printf("%d\n", result);
    psignal(SIGINT, "");
}

static volatile sig_atomic_t ticks;

static void on_tick(int signal) {
    (void)signal;
    char text[100];
    snprintf(text, sizeof text, "%d %g", (int)ticks, ticks / 3.0);
    ticks++;
}

static void timers(void) {
    struct sigaction action = {.sa_handler = on_tick, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval timer = {{0, 500}, {0, 500}};
    setitimer(ITIMER_REAL, &timer, NULL);
    /* Interrupts everything that goes on meanwhile. */
    unsigned long sum = 0;
    for (int i = 0; ticks < 200; i++) {
        char text[100], *copy;
        snprintf(text, sizeof text, "%d %f", i, i / 7.0);
        copy = strdup(text);
        sum += strtol(copy, NULL, 10) == i;
        sum -= strtod(strchr(copy, ' '), NULL) < 0;
        free(copy);
        sum -= 1;
    }
    timer = (struct itimerval){0};
    setitimer(ITIMER_REAL, &timer, NULL);
    printf("%lu %d\n", sum, ticks >= 200);
    int fd = timerfd_create(CLOCK_MONOTONIC, 0);
    struct itimerspec soon = {.it_value = {0, 1000000}};
    timerfd_settime(fd, 0, &soon, NULL);
    uint64_t expired;
    printf("%zd ", read(fd, &expired, sizeof expired));
    printf("%" PRIu64 "\n", expired);
    close(fd);
}

/* --- contexts */

static ucontext_t main_context, contexts[3];
static char stacks[3][65536];

static void coroutine(int index) {
    for (int i = 0; i < 5; i++) {
        printf("%d.%d ", index, i);
        swapcontext(&contexts[index], &contexts[(index + 1) % 3]);
    }
    if (index == 0)
        swapcontext(&contexts[0], &main_context);
}

static void contexts_(void) {
    for (int i = 0; i < 3; i++) {
        getcontext(&contexts[i]);
        contexts[i].uc_stack.ss_sp = stacks[i];
        contexts[i].uc_stack.ss_size = sizeof stacks[i];
        contexts[i].uc_link = &main_context;
        makecontext(&contexts[i], (void (*)(void))coroutine, 1, i);
    }
    swapcontext(&main_context, &contexts[0]);
    puts("back");
    volatile int rounds = 0;
    getcontext(&main_context);
    printf("%d,", rounds);
    if (rounds++ < 3)
        setcontext(&main_context);
    putchar('\n');
}

/* --- threads */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static long counter, destroyed;
static __thread long own;

static void destroy(void *value) { __sync_fetch_and_add(&destroyed, (long)value); }
static void make_key(void) { pthread_key_create(&key, destroy); }

static void *count_up(void *argument) {
    pthread_once(&once, make_key);
    pthread_setspecific(key, argument);
    for (int i = 0; i < 500; i++) {
        char text[50];
        snprintf(text, sizeof text, "%ld %g", (long)argument, i / 3.0);
        void *block = malloc(100 + i);
        own += strlen(text) > 0;
        pthread_mutex_lock(&mutex);
        counter++;
        pthread_mutex_unlock(&mutex);
        free(block);
        if (i % 100 == 0)
            sched_yield();
    }
    if ((long)argument % 2)
        pthread_exit((void *)own);
    return (void *)own;
}

static void threads_(void) {
    pthread_t ids[16];
    long sum = 0;
    for (int round = 0; round < 3; round++) {
        for (long i = 0; i < 16; i++)
            pthread_create(&ids[i], NULL, count_up, (void *)(i + 1));
        for (int i = 0; i < 16; i++) {
            void *result;
            pthread_join(ids[i], &result);
            sum += (long)result;
        }
    }
    printf("%ld %ld %ld\n", counter, sum, destroyed);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 1 << 20);
    pthread_create(&ids[0], &attributes, count_up, NULL);
    pthread_join(ids[0], NULL);
    size_t size;
    pthread_getattr_np(pthread_self(), &attributes);
    pthread_attr_getstacksize(&attributes, &size);
    printf("%ld %d\n", counter, size > 65536);
    pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
    printf("%d %d\n", pthread_rwlock_rdlock(&lock), pthread_rwlock_trywrlock(&lock));
}

static volatile int cleaned;
static void clean(void *argument) { cleaned += (int)(long)argument; }

static void *wait_forever(void *kind) {
    pthread_cleanup_push(clean, (void *)1);
    pthread_cleanup_push(clean, (void *)10);
    char byte;
    int pipes[2];
    switch ((long)kind) {
    case 0: pause(); break;
    case 1: if (pipe(pipes) == 0) (void)!read(pipes[0], &byte, 1); break;
    case 2: sleep(1000); break;
    case 3: pthread_mutex_lock(&mutex); pthread_cleanup_push((void (*)(void *))pthread_mutex_unlock, &mutex);
            for (;;) pthread_cond_wait(&condition, &mutex);
            pthread_cleanup_pop(0); break;
    case 4: for (;;) { pthread_testcancel(); free(malloc(10)); }
    case 5: pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL); for (;;) ;
    }
    pthread_cleanup_pop(1);
    pthread_cleanup_pop(1);
    return NULL;
}

static void cancel(void) {
    for (long kind = 0; kind < 6; kind++)
        for (int round = 0; round < 3; round++) {
            pthread_t id;
            void *result;
            pthread_create(&id, NULL, wait_forever, (void *)kind);
            usleep(2000);
            pthread_cancel(id);
            pthread_join(id, &result);
            /* Where it was interrupted cannot be unwound from. */
            if (kind == 5)
                cleaned = 0;
            printf("%ld %d %d\n", kind, result == PTHREAD_CANCELED, cleaned);
        }
}

static int items, taken;
static void *produce(void *argument) {
    for (long i = 0; i < (long)argument; i++) {
        pthread_mutex_lock(&mutex);
        items++;
        pthread_cond_signal(&condition);
        pthread_mutex_unlock(&mutex);
    }
    return NULL;
}

static void *consume(void *argument) {
    for (long i = 0; i < (long)argument; i++) {
        pthread_mutex_lock(&mutex);
        while (items == 0)
            pthread_cond_wait(&condition, &mutex);
        items--;
        taken++;
        pthread_mutex_unlock(&mutex);
    }
    return NULL;
}

static sem_t semaphore;
static pthread_barrier_t barrier;
static void *meet(void *argument) {
    (void)argument;
    sem_wait(&semaphore);
    return (void *)(long)(pthread_barrier_wait(&barrier) == PTHREAD_BARRIER_SERIAL_THREAD);
}

static void conditions(void) {
    pthread_t ids[6];
    for (int i = 0; i < 6; i++)
        pthread_create(&ids[i], NULL, i % 2 ? produce : consume, (void *)300);
    for (int i = 0; i < 6; i++)
        pthread_join(ids[i], NULL);
    printf("%d %d\n", items, taken);
    sem_init(&semaphore, 0, 0);
    pthread_barrier_init(&barrier, NULL, 4);
    long serial = 0;
    for (int i = 0; i < 4; i++)
        pthread_create(&ids[i], NULL, meet, NULL);
    for (int i = 0; i < 4; i++)
        sem_post(&semaphore);
    for (int i = 0; i < 4; i++) {
        void *result;
        pthread_join(ids[i], &result);
        serial += (long)result;
    }
    struct timespec soon;
    clock_gettime(CLOCK_REALTIME, &soon);
    soon.tv_nsec = (soon.tv_nsec + 2000000) % 1000000000;
    pthread_mutex_lock(&mutex);
    int result = pthread_cond_timedwait(&condition, &mutex, &soon);
    pthread_mutex_unlock(&mutex);
    printf("%ld %d %d\n", serial, result == ETIMEDOUT || result == 0, sem_trywait(&semaphore));
}

static int c11(void *argument) {
    if ((long)argument == 3)
        thrd_exit(30);
    return (int)(long)argument * 2;
}

static void c11_threads(void) {
    thrd_t ids[4];
    for (long i = 0; i < 4; i++)
        thrd_create(&ids[i], c11, (void *)i);
    for (int i = 0; i < 4; i++) {
        int result;
        thrd_join(ids[i], &result);
        printf("%d ", result);
    }
    mtx_t m;
    printf("%d ", mtx_init(&m, mtx_plain));
    printf("%d\n", mtx_lock(&m));
    mtx_unlock(&m);
    struct aiocb request = {.aio_buf = "text", .aio_nbytes = 4};
    request.aio_fildes = open(in_directory("aio"), O_CREAT | O_RDWR, 0600);
    aio_write(&request);
    const struct aiocb *list[] = {&request};
    while (aio_error(&request) == EINPROGRESS)
        aio_suspend(list, 1, NULL);
    printf("%zd\n", aio_return(&request));
    close(request.aio_fildes);
}

/* --- processes */

static void prepare(void) { counter += 1; }
static void in_parent(void) { counter += 10; }
static void in_child(void) { counter += 100; }

static void processes(void) {
    int status;
    pthread_atfork(prepare, in_parent, in_child);
    fflush(stdout);
    for (int i = 0; i < 5; i++) {
        pid_t child = fork();
        if (child == 0) {
            char *text = malloc(100);
            sprintf(text, "child %d: %ld\n", i, counter);
            (void)!write(STDOUT_FILENO, text, strlen(text));
            free(text);
            if (i == 4)
                abort();
            _exit(i);
        }
        waitpid(child, &status, 0);
        printf("%x %ld\n", status & ~0x80, counter);
        fflush(stdout);
    }
    pid_t child = vfork();
    if (child == 0) {
        execl("/bin/sh", "sh", "-c", "echo from the shell; exit 7", (char *)NULL);
        _exit(127);
    }
    waitpid(child, &status, 0);
    printf("%d\n", WEXITSTATUS(status));
    child = vfork();
    if (child == 0)
        _exit(9);
    waitpid(child, &status, 0);
    printf("%d\n", WEXITSTATUS(status));
    fflush(stdout);
    printf("%d\n", system("echo by system; exit 3") >> 8);
    /* A child that forks, and has threads. */
    fflush(stdout);
    child = fork();
    if (child == 0) {
        pthread_t id;
        void *result;
        pthread_create(&id, NULL, count_up, (void *)2);
        pthread_join(id, &result);
        pid_t grandchild = fork();
        if (grandchild == 0)
            exit(5);
        waitpid(grandchild, &status, 0);
        _exit(WEXITSTATUS(status) + ((long)result == 500));
    }
    waitpid(child, &status, 0);
    printf("%d\n", WEXITSTATUS(status));
}

extern char **environ;

static void spawn(void) {
    for (int i = 0; i < 5; i++) {
        pid_t child;
        int status;
        char *arguments[] = {"true", NULL};
        printf("%d", posix_spawn(&child, "/bin/true", NULL, NULL, arguments, environ));
        waitpid(child, &status, 0);
        char *others[] = {"sh", "-c", "exit 4", NULL};
        posix_spawn_file_actions_t actions;
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
        posix_spawnattr_t attributes;
        posix_spawnattr_init(&attributes);
        printf(" %d", posix_spawnp(&child, "sh", &actions, &attributes, others, environ));
        waitpid(child, &status, 0);
        printf(" %d", WEXITSTATUS(status));
        printf(" %d\n", posix_spawn(&child, "/no/such/program", NULL, NULL, arguments, environ));
    }
    char line[100];
    FILE *pipe = popen("echo one; echo two", "r");
    while (fgets(line, sizeof line, pipe))
        fputs(line, stdout);
    printf("%d\n", pclose(pipe));
    fflush(stdout);
    pipe = popen("cat", "w");
    fputs("to a filter\n", pipe);
    printf("%d\n", pclose(pipe));
}

static void pipes(void) {
    int ends[2];
    char text[100] = {0};
    (void)!pipe(ends);
    printf("%zd\n", write(ends[1], "hello", 5));
    struct pollfd polled = {ends[0], POLLIN, 0};
    fd_set set;
    FD_ZERO(&set);
    FD_SET(ends[0], &set);
    struct timeval none = {0, 0};
    printf("%d %d\n", poll(&polled, 1, 1000), select(ends[0] + 1, &set, NULL, NULL, &none));
    printf("%zd ", read(ends[0], text, sizeof text));
    puts(text);
    int epoll = epoll_create1(0), event = eventfd(3, 0);
    struct epoll_event interest = {.events = EPOLLIN, .data.u32 = 9}, ready;
    epoll_ctl(epoll, EPOLL_CTL_ADD, event, &interest);
    printf("%d ", epoll_wait(epoll, &ready, 1, 1000));
    printf("%u\n", ready.data.u32);
    uint64_t value;
    printf("%d ", eventfd_read(event, &value));
    printf("%" PRIu64 "\n", value);
    int copy = dup(ends[1]);
    printf("%d %d\n", dup2(copy, copy) == copy, fcntl(copy, F_GETFD));
    close(copy), close(epoll), close(event), close(ends[0]), close(ends[1]);
}

static void *serve(void *argument) {
    int fd = *(int *)argument, client = accept(fd, NULL, NULL);
    char text[100];
    ssize_t length = recv(client, text, sizeof text, 0);
    for (ssize_t i = 0; i < length; i++)
        text[i] = toupper(text[i]);
    send(client, text, length, 0);
    close(client);
    return NULL;
}

static void sockets(void) {
    int pair[2];
    char text[100] = {0};
    printf("%d\n", socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    struct iovec vector = {"message", 7};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
    printf("%zd ", sendmsg(pair[0], &message, 0));
    printf("%zd ", recv(pair[1], text, sizeof text, 0));
    puts(text);
    close(pair[0]), close(pair[1]);
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 1)) {
        puts("no network");
        return;
    }
    getsockname(fd, (struct sockaddr *)&address, &length);
    pthread_t id;
    pthread_create(&id, NULL, serve, &fd);
    int client = socket(AF_INET, SOCK_STREAM, 0);
    printf("%d\n", connect(client, (struct sockaddr *)&address, sizeof address));
    send(client, "shout", 5, 0);
    memset(text, 0, sizeof text);
    printf("%zd ", recv(client, text, sizeof text, 0));
    puts(text);
    pthread_join(id, NULL);
    close(client), close(fd);
}

static void names(void) {
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM}, *found;
    const char *hosts[] = {"127.0.0.1", "::1", "10.20.30.40", "no number"};
    for (int i = 0; i < 4; i++) {
        int result = getaddrinfo(hosts[i], "80", &hints, &found);
        printf("%d %s", result, result ? gai_strerror(result) : "");
        if (result == 0) {
            char host[100], port[10];
            getnameinfo(found->ai_addr, found->ai_addrlen, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
            printf("%s %s", host, port);
            freeaddrinfo(found);
        }
        putchar('\n');
    }
    unsigned char address[16];
    char text[100];
    printf("%d ", inet_pton(AF_INET6, "fe80::1", address));
    puts(inet_ntop(AF_INET6, address, text, sizeof text));
    struct servent *service = getservbyname("no-such-service", "tcp");
    printf("%d\n", service == NULL);
}

/* --- loading */

static int module(struct dl_phdr_info *info, size_t size, void *count) {
    (void)size;
    *(int *)count += info->dlpi_phnum > 0;
    return 0;
}

static void loading(void) {
    void *library = dlopen("libm.so.6", RTLD_NOW);
    double (*cosine)(double) = (double (*)(double))dlsym(library, "cos");
    printf("%.6f\n", cosine(0.5));
    Dl_info info;
    printf("%d ", dladdr((void *)cosine, &info) != 0);
    puts(strrchr(info.dli_fname, '/') ? "path" : "?");
    printf("%d\n", dlclose(library));
    printf("%d %d\n", dlopen("no-such-library.so", RTLD_LAZY) == NULL, dlerror() != NULL);
    printf("%d %d\n", dlsym(RTLD_DEFAULT, "malloc") != NULL, dlsym(RTLD_DEFAULT, "no_such_symbol") == NULL);
    void *next = dlsym(RTLD_NEXT, "printf");
    void *versioned = dlvsym(RTLD_DEFAULT, "memcpy", "GLIBC_2.14");
    printf("%d %d\n", next != NULL, versioned != NULL);
    for (int i = 0; i < 10; i++) {
        library = dlopen("libutil.so.1", RTLD_LAZY | RTLD_LOCAL);
        if (library)
            dlclose(library);
        library = dlopen("libsqlite3.so.0", RTLD_LAZY | RTLD_LOCAL);
        if (library) {
            int (*number)(void) = (int (*)(void))dlsym(library, "sqlite3_libversion_number");
            int (*threadsafe)(void) = (int (*)(void))dlsym(library, "sqlite3_threadsafe");
            if (number() < 3000000 || threadsafe() < 0)
                puts("wrong");
            dlclose(library);
        }
    }
    int count = 0;
    dl_iterate_phdr(module, &count);
    printf("%d\n", count > 3);
}

/* --- unwinding */

static __attribute__((noinline)) int deep(int depth, void **addresses, int size) {
    if (depth == 0)
        return backtrace(addresses, size);
    int result = deep(depth - 1, addresses, size);
    __asm__ volatile("");
    return result;
}

static int found_frames;
static int compare_and_unwind(const void *a, const void *b) {
    void *addresses[100];
    if (found_frames == 0)
        found_frames = backtrace(addresses, 100);
    return compare_ints(a, b);
}

static void unwind(void) {
    void *addresses[100];
    int few = deep(3, addresses, 100), many = deep(13, addresses, 100);
    /* A traced call has a frame more. */
    printf("%d\n", many - few >= 10);
    int numbers[] = {3, 1, 2};
    qsort(numbers, 3, sizeof *numbers, compare_and_unwind);
    printf("%d %d\n", found_frames > 4, numbers[0]);
    char **symbols = backtrace_symbols(addresses, 2);
    printf("%d\n", symbols != NULL);
    free(symbols);
}

static void mappings(void) {
    char *pages = mmap(NULL, 10 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    strcpy(pages + 4096, "text in a page");
    printf("%s %d\n", pages + 4096, mprotect(pages, 4096, PROT_NONE));
    pages = mremap(pages + 4096, 4096, 20 * 4096, MREMAP_MAYMOVE);
    puts(pages);
    printf("%d ", madvise(pages, 4096, MADV_WILLNEED));
    printf("%d\n", munmap(pages, 20 * 4096));
    void *before = sbrk(0);
    printf("%d\n", sbrk(4096) == before);
    int fd = memfd_create("name", 0);
    printf("%d %d\n", ftruncate(fd, 4096), posix_fallocate(fd, 0, 8192));
    close(fd);
}

static void last(void) { puts("last"); }
static void first(int status, void *argument) { printf("first %d %s\n", status, (char *)argument); }

static void exit_handlers(void) {
    atexit(last);
    on_exit(first, "argument");
    puts("to come");
}

static const struct {
    const char *name;
    void (*run)(void);
} parts[] = {
    {"memory", memory}, {"strings", strings}, {"printf", printf_}, {"scanf", scanf_}, {"wide", wide},
    {"locale", locale_}, {"files", files}, {"directories", directories}, {"regex", regex}, {"search", search},
    {"numbers", numbers}, {"time", time_}, {"environment", environment}, {"jumps", jumps}, {"signals", signals},
    {"timers", timers}, {"contexts", contexts_}, {"threads", threads_}, {"cancel", cancel},
    {"conditions", conditions}, {"c11_threads", c11_threads}, {"processes", processes}, {"spawn", spawn},
    {"pipes", pipes}, {"sockets", sockets}, {"names", names}, {"loading", loading}, {"unwind", unwind},
    {"mappings", mappings}, {"exit_handlers", exit_handlers},
};

int program(const char *where, const char *part) {
    directory = where;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strcmp(parts[i].name, part) == 0) {
            parts[i].run();
            fflush(stdout);
            return 0;
        }
    return 3;
}
