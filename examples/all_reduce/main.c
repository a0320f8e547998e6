/*
 * Adds up one vector per rank, in C:
 *
 *     cc -std=c99 -O2 main.c -o all_reduce $(pkg-config --cflags --libs rlaunch)
 *     rlaunch -H a,b -np 4 --copy all_reduce ./all_reduce
 */
#include <rlaunch.h>

#include <stdio.h>
#include <stdlib.h>

#define ELEMENTS ((size_t)1 << 20)

/* Ends the program with the library's own words for what went wrong. */
static void check(rl_result result, const char *call)
{
    if (result == RL_OK)
        return;
    fprintf(stderr, "%s: %s: %s\n", call, rl_result_name(result), rl_error());
    exit(1);
}

#define CHECK(call) check(call, #call)

int main(void)
{
    rl_comm *comm;
    size_t rank, size, i;
    float *data, sum;

    CHECK(rl_init(&comm));
    CHECK(rl_rank(comm, &rank));
    CHECK(rl_size(comm, &size));

    data = (float *)malloc(ELEMENTS * sizeof *data);
    if (data == NULL) {
        fprintf(stderr, "no memory for %zu elements\n", ELEMENTS);
        return 1;
    }
    for (i = 0; i < ELEMENTS; i++)
        data[i] = (float)(rank + 1);

    CHECK(rl_all_reduce(comm, RL_IN_PLACE, data, ELEMENTS, RL_F32, RL_SUM));

    sum = (float)(size * (size + 1) / 2);
    for (i = 0; i < ELEMENTS; i++) {
        if (data[i] != sum) {
            fprintf(stderr, "rank %zu: element %zu is %g instead of %g\n", rank, i, data[i], sum);
            return 1;
        }
    }
    if (rank == 0)
        printf("%zu ranks: %zu elements, sum %g everywhere\n", size, ELEMENTS, sum);
    free(data);
    CHECK(rl_finalize(comm));
    return 0;
}
