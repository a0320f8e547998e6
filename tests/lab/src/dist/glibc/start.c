#include <stddef.h>
#define HIDDEN __attribute__((visibility("hidden")))
typedef void constructor(int count, char **words, char **environment);
extern constructor *__init_array_start[] HIDDEN, *__init_array_end[] HIDDEN;
void _init(void) HIDDEN;
int __real___libc_start_main(int (*main)(int, char **, char **), int count, char **words,
    constructor *init, void (*fini)(void), void (*loader)(void), void *stack);
static void construct(int count, char **words, char **environment)
{
    size_t at, all = (size_t)(__init_array_end - __init_array_start);
    _init();
    for (at = 0; at < all; at++)
        __init_array_start[at](count, words, environment);
}
HIDDEN int __wrap___libc_start_main(int (*main)(int, char **, char **), int count, char **words,
    constructor *init, void (*fini)(void), void (*loader)(void), void *stack)
{
    return __real___libc_start_main(main, count, words, init ? init : construct, fini, loader, stack);
}
