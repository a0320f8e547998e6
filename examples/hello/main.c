/*
 * The first thing to run: who is there, in C:
 *
 *     cc -std=c99 -O2 main.c -o hello $(pkg-config --cflags --libs rlaunch)
 *     rlaunch -H a,b -np 4 --copy hello ./hello
 */
#include <rlaunch.h>

#include <stdio.h>
#include <stdlib.h>

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
    size_t rank, size, local_rank, local_size;
    const char *host = getenv("RLAUNCH_HOST");

    CHECK(rl_init(&comm));
    CHECK(rl_rank(comm, &rank));
    CHECK(rl_size(comm, &size));
    CHECK(rl_local_rank(comm, &local_rank));
    CHECK(rl_local_size(comm, &local_size));
    printf("rank %zu of %zu, %zu of %zu on %s\n", rank, size, local_rank, local_size,
           host ? host : "this host");
    CHECK(rl_barrier(comm));
    CHECK(rl_finalize(comm));
    return 0;
}
