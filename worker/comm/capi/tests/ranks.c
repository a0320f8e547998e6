/* Calls every function among all ranks of a job, with values that show their source and their place:
 * rlaunch -H localhost:4 -np 4 ./ranks */
#include "rlaunch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Elements in one part: one packet, and more than one packet. */
static const size_t counts[] = {3, 100000};

static size_t me, size;
static rl_comm *comm;

static void fail(int line, const char *what)
{
    fprintf(stderr, "rank %lu: line %d: %s: %s\n", (unsigned long)me, line, what, rl_error());
    exit(1);
}

#define CHECK(condition) do { if (!(condition)) fail(__LINE__, #condition); } while (0)
#define OK(call) CHECK((call) == RL_OK)

/* Returns element i of the part that rank `from` has for rank `to`. */
static int64_t value(size_t from, size_t to, size_t i)
{
    return (int64_t)(1000000000000 * (from + 1) + 1000000 * to + i);
}

/* Returns the sum over all ranks of element i of the part for rank `to`. */
static int64_t sum(size_t to, size_t i)
{
    int64_t all = 0;
    size_t from;
    for (from = 0; from < size; from++)
        all += value(from, to, i);
    return all;
}

static int64_t *memory(size_t count)
{
    int64_t *data = (int64_t *)malloc(count * sizeof *data);
    CHECK(data != NULL);
    memset(data, 0xaa, count * sizeof *data);
    return data;
}

/* Fills in this rank's parts for all ranks. */
static void fill(int64_t *data, size_t count)
{
    size_t to, i;
    for (to = 0; to < size; to++)
        for (i = 0; i < count; i++)
            data[to * count + i] = value(me, to, i);
}

static void messages(size_t count)
{
    size_t right = (me + 1) % size, left = (me + size - 1) % size, i;
    int64_t *own = memory(count * size), *into = memory(count);
    rl_received received;
    rl_request *sends, *receives;
    fill(own, count);
    OK(rl_sendrecv(comm, own + right * count, count, right, 1, into, count, left, 1, RL_I64,
                   &received));
    CHECK(received.from == left && received.length == count);
    for (i = 0; i < count; i++)
        CHECK(into[i] == value(left, me, i));
    memset(into, 0, count * sizeof *into);
    OK(rl_irecv(comm, into, count, RL_I64, left, 2, &receives));
    OK(rl_isend(comm, own + right * count, count, RL_I64, right, 2, &sends));
    while (receives != NULL) {
        int done;
        OK(rl_test(&receives, &done, &received));
    }
    OK(rl_wait(&sends, NULL));
    CHECK(received.from == left && received.length == count);
    for (i = 0; i < count; i++)
        CHECK(into[i] == value(left, me, i));
    if (me == 0) {
        size_t received_count;
        for (received_count = 1; received_count < size; received_count++) {
            OK(rl_recv_any(comm, into, count, RL_I64, 3, &received));
            for (i = 0; i < count; i++)
                CHECK(into[i] == value(received.from, 0, i));
        }
    } else {
        OK(rl_send(comm, own, count, RL_I64, 0, 3));
    }
    free(own);
    free(into);
}

/* Calls a collective, blocking or nonblocking. */
#define RUN(nonblocking, name, ...) \
    do { \
        if (nonblocking) { \
            rl_request *request; \
            OK(rl_i##name(comm, __VA_ARGS__, &request)); \
            OK(rl_wait(&request, NULL)); \
        } else { \
            OK(rl_##name(comm, __VA_ARGS__)); \
        } \
    } while (0)

static void reductions(size_t count, size_t root, int nonblocking)
{
    size_t all = count * size, i;
    int64_t *in = memory(all), *out = memory(all);
    fill(in, count);
    RUN(nonblocking, all_reduce, in, out, count, RL_I64, RL_SUM);
    for (i = 0; i < count; i++)
        CHECK(out[i] == sum(0, i));
    RUN(nonblocking, reduce, in, me == root ? out : NULL, count, RL_I64, RL_MAX, root);
    for (i = 0; i < count && me == root; i++)
        CHECK(out[i] == value(size - 1, 0, i));
    RUN(nonblocking, reduce_scatter, in, out, count, RL_I64, RL_SUM);
    for (i = 0; i < count; i++)
        CHECK(out[i] == sum(me, i));
    RUN(nonblocking, reduce_scatter, RL_IN_PLACE, in, count, RL_I64, RL_SUM);
    for (i = 0; i < count; i++)
        CHECK(in[i] == sum(me, i));
    fill(in, count);
    RUN(nonblocking, reduce, RL_IN_PLACE, in, count, RL_I64, RL_MIN, root);
    for (i = 0; i < count; i++)
        CHECK(in[i] == (me == root ? value(0, 0, i) : value(me, 0, i)));
    fill(in, count);
    RUN(nonblocking, all_reduce, RL_IN_PLACE, in, count, RL_I64, RL_SUM);
    for (i = 0; i < count; i++)
        CHECK(in[i] == sum(0, i));
    free(in);
    free(out);
}

static void moves(size_t count, size_t root, int nonblocking)
{
    size_t all = count * size, from, i;
    int64_t *in = memory(all), *out = memory(all);
    fill(in, count);
    memcpy(out, in, count * sizeof *in);
    RUN(nonblocking, broadcast, out, count, RL_I64, root);
    for (i = 0; i < count; i++)
        CHECK(out[i] == value(root, 0, i));
    RUN(nonblocking, gather, in, me == root ? out : NULL, count, RL_I64, root);
    for (from = 0; from < size && me == root; from++)
        for (i = 0; i < count; i++)
            CHECK(out[from * count + i] == value(from, 0, i));
    RUN(nonblocking, scatter, me == root ? in : NULL, out, count, RL_I64, root);
    for (i = 0; i < count; i++)
        CHECK(out[i] == value(root, me, i));
    RUN(nonblocking, all_gather, in, out, count, RL_I64);
    for (from = 0; from < size; from++)
        for (i = 0; i < count; i++)
            CHECK(out[from * count + i] == value(from, 0, i));
    RUN(nonblocking, all_to_all, in, out, count, RL_I64);
    for (from = 0; from < size; from++)
        for (i = 0; i < count; i++)
            CHECK(out[from * count + i] == value(from, me, i));
    free(in);
    free(out);
}

static void moves_in_place(size_t count, size_t root, int nonblocking)
{
    size_t all = count * size, from, i;
    int64_t *data = memory(all);
    int64_t *own = me == root ? data + root * count : data;
    for (i = 0; i < count; i++)
        own[i] = value(me, 0, i);
    RUN(nonblocking, gather, RL_IN_PLACE, data, count, RL_I64, root);
    for (from = 0; from < size && me == root; from++)
        for (i = 0; i < count; i++)
            CHECK(data[from * count + i] == value(from, 0, i));
    fill(data, count);
    RUN(nonblocking, scatter, RL_IN_PLACE, data, count, RL_I64, root);
    for (i = 0; i < count; i++)
        CHECK(own[i] == value(root, me, i));
    for (i = 0; i < count; i++)
        data[me * count + i] = value(me, 0, i);
    RUN(nonblocking, all_gather, RL_IN_PLACE, data, count, RL_I64);
    for (from = 0; from < size; from++)
        for (i = 0; i < count; i++)
            CHECK(data[from * count + i] == value(from, 0, i));
    fill(data, count);
    RUN(nonblocking, all_to_all, RL_IN_PLACE, data, count, RL_I64);
    for (from = 0; from < size; from++)
        for (i = 0; i < count; i++)
            CHECK(data[from * count + i] == value(from, me, i));
    free(data);
}

static void everything(void)
{
    size_t c, root;
    int nonblocking;
    OK(rl_rank(comm, &me));
    OK(rl_size(comm, &size));
    for (c = 0; c < sizeof counts / sizeof *counts; c++) {
        messages(counts[c]);
        for (nonblocking = 0; nonblocking < 2; nonblocking++) {
            for (root = 0; root < size; root++) {
                reductions(counts[c], root, nonblocking);
                moves(counts[c], root, nonblocking);
                moves_in_place(counts[c], root, nonblocking);
            }
        }
    }
    OK(rl_barrier(comm));
}

int main(void)
{
    rl_comm *world, *part;
    size_t rank;
    OK(rl_init(&world));
    comm = world;
    everything();
    rank = me;
    /* Even and odd ranks, in reverse order. */
    OK(rl_split(world, (uint32_t)(rank % 2), -(int64_t)rank, &part));
    comm = part;
    everything();
    OK(rl_finalize(part));
    OK(rl_size(world, &size));
    OK(rl_barrier(world));
    if (rank == 0)
        printf("%lu ranks: all as it should be\n", (unsigned long)size);
    OK(rl_finalize(world));
    return 0;
}
