/* Calls every function of the library once, in a job of one rank. Compiles as C and as C++. */
#include "rlaunch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N 5
#define LONG (1 << 18)

static int line_failed(int line, const char *what)
{
    fprintf(stderr, "line %d: %s: %s\n", line, what, rl_error());
    exit(1);
    return 0;
}

#define CHECK(condition) ((void)((condition) || line_failed(__LINE__, #condition)))
#define OK(call) CHECK((call) == RL_OK)

static const float ones[N] = {1, 2, 3, 4, 5};

static int is_ones(const float *data)
{
    return memcmp(data, ones, sizeof ones) == 0;
}

static void ranks_and_sizes(rl_comm *comm)
{
    size_t rank = 9, size = 9, local_rank = 9, local_size = 9;
    OK(rl_rank(comm, &rank));
    OK(rl_size(comm, &size));
    OK(rl_local_rank(comm, &local_rank));
    OK(rl_local_size(comm, &local_size));
    CHECK(rank == 0 && size == 1 && local_rank == 0 && local_size == 1);
}

static void registrations(rl_comm *comm)
{
    float *data = (float *)calloc(LONG, sizeof *data);
    float *into = (float *)calloc(LONG, sizeof *into);
    rl_registration *one = NULL, *other = NULL;
    rl_request *request = NULL;
    data[LONG - 1] = 7;
    OK(rl_register(comm, data, LONG * sizeof *data, &one));
    OK(rl_register(comm, into, LONG * sizeof *into, &other));
    OK(rl_irecv(comm, into, LONG, RL_F32, 0, 9, &request));
    OK(rl_send(comm, data, LONG, RL_F32, 0, 9));
    OK(rl_wait(&request, NULL));
    CHECK(into[LONG - 1] == 7);
    OK(rl_unregister(&one));
    CHECK(one == NULL);
    CHECK(rl_unregister(&one) == RL_INVALID);
    OK(rl_unregister(&other));
    free(data);
    free(into);
}

static void messages(rl_comm *comm)
{
    float into[2 * N] = {0};
    rl_received received = {9, 9};
    OK(rl_send(comm, ones, N, RL_F32, 0, 7));
    OK(rl_recv(comm, into, 2 * N, RL_F32, 0, 7, &received));
    CHECK(is_ones(into) && received.from == 0 && received.length == N);
    memset(into, 0, sizeof into);
    OK(rl_send(comm, ones, N, RL_F32, 0, 8));
    OK(rl_recv_any(comm, into, N, RL_F32, 8, NULL));
    CHECK(is_ones(into));
    memset(into, 0, sizeof into);
    OK(rl_sendrecv(comm, ones, N, 0, 1, into, 2 * N, 0, 1, RL_F32, &received));
    CHECK(is_ones(into) && received.length == N);
    OK(rl_send(comm, NULL, 0, RL_U8, 0, 2));
    OK(rl_recv(comm, NULL, 0, RL_U8, 0, 2, &received));
    CHECK(received.length == 0);
}

static void nonblocking_messages(rl_comm *comm)
{
    unsigned char *data = (unsigned char *)malloc(LONG), *into = (unsigned char *)calloc(LONG, 1);
    rl_request *sends, *receives, *other;
    rl_received received = {9, 9};
    int done = 9;
    CHECK(data && into);
    memset(data, 3, LONG);
    OK(rl_irecv(comm, into, LONG / 4, RL_I32, 0, 1, &receives));
    OK(rl_test(&receives, &done, NULL));
    CHECK(done == 0 && receives != NULL);
    OK(rl_isend(comm, data, LONG / 8, RL_U64, 0, 1, &sends));
    OK(rl_wait(&sends, NULL));
    CHECK(sends == NULL);
    while (receives != NULL) {
        OK(rl_test(&receives, &done, &received));
        CHECK(done == (receives == NULL));
    }
    CHECK(received.from == 0 && received.length == LONG / 4);
    CHECK(memcmp(data, into, LONG) == 0);
    OK(rl_irecv_any(comm, into, 1, RL_U8, 5, &other));
    OK(rl_cancel(&other));
    CHECK(other == NULL);
    OK(rl_irecv_any(comm, into, 1, RL_U8, 6, &other));
    OK(rl_send(comm, data, 1, RL_U8, 0, 6));
    OK(rl_wait(&other, &received));
    CHECK(received.length == 1);
    free(data);
    free(into);
}

static void collectives(rl_comm *comm)
{
    float out[N] = {0};
    float data[N];
#define CLEARED(call) \
    memset(out, 0, sizeof out); \
    OK(call); \
    CHECK(is_ones(out))
#define IN_PLACE(call) \
    memcpy(data, ones, sizeof ones); \
    OK(call); \
    CHECK(is_ones(data))
    OK(rl_barrier(comm));
    IN_PLACE(rl_broadcast(comm, data, N, RL_F32, 0));
    CLEARED(rl_reduce(comm, ones, out, N, RL_F32, RL_SUM, 0));
    IN_PLACE(rl_reduce(comm, RL_IN_PLACE, data, N, RL_F32, RL_MIN, 0));
    CLEARED(rl_all_reduce(comm, ones, out, N, RL_F32, RL_PROD));
    IN_PLACE(rl_all_reduce(comm, RL_IN_PLACE, data, N, RL_F32, RL_MAX));
    CLEARED(rl_gather(comm, ones, out, N, RL_F32, 0));
    IN_PLACE(rl_gather(comm, RL_IN_PLACE, data, N, RL_F32, 0));
    CLEARED(rl_scatter(comm, ones, out, N, RL_F32, 0));
    IN_PLACE(rl_scatter(comm, RL_IN_PLACE, data, N, RL_F32, 0));
    CLEARED(rl_all_gather(comm, ones, out, N, RL_F32));
    IN_PLACE(rl_all_gather(comm, RL_IN_PLACE, data, N, RL_F32));
    CLEARED(rl_reduce_scatter(comm, ones, out, N, RL_F32, RL_SUM));
    IN_PLACE(rl_reduce_scatter(comm, RL_IN_PLACE, data, N, RL_F32, RL_SUM));
    CLEARED(rl_all_to_all(comm, ones, out, N, RL_F32));
    IN_PLACE(rl_all_to_all(comm, RL_IN_PLACE, data, N, RL_F32));
    OK(rl_all_reduce(comm, NULL, NULL, 0, RL_F64, RL_SUM));
#undef CLEARED
#undef IN_PLACE
}

static void nonblocking_collectives(rl_comm *comm)
{
    float out[N] = {0};
    float data[N];
    rl_request *request;
#define CLEARED(call) \
    memset(out, 0, sizeof out); \
    OK(call); \
    OK(rl_wait(&request, NULL)); \
    CHECK(is_ones(out) && request == NULL)
#define IN_PLACE(call) \
    memcpy(data, ones, sizeof ones); \
    OK(call); \
    OK(rl_wait(&request, NULL)); \
    CHECK(is_ones(data) && request == NULL)
    OK(rl_ibarrier(comm, &request));
    OK(rl_wait(&request, NULL));
    IN_PLACE(rl_ibroadcast(comm, data, N, RL_F32, 0, &request));
    CLEARED(rl_ireduce(comm, ones, out, N, RL_F32, RL_SUM, 0, &request));
    IN_PLACE(rl_ireduce(comm, RL_IN_PLACE, data, N, RL_F32, RL_MIN, 0, &request));
    CLEARED(rl_iall_reduce(comm, ones, out, N, RL_F32, RL_PROD, &request));
    IN_PLACE(rl_iall_reduce(comm, RL_IN_PLACE, data, N, RL_F32, RL_MAX, &request));
    CLEARED(rl_igather(comm, ones, out, N, RL_F32, 0, &request));
    IN_PLACE(rl_igather(comm, RL_IN_PLACE, data, N, RL_F32, 0, &request));
    CLEARED(rl_iscatter(comm, ones, out, N, RL_F32, 0, &request));
    IN_PLACE(rl_iscatter(comm, RL_IN_PLACE, data, N, RL_F32, 0, &request));
    CLEARED(rl_iall_gather(comm, ones, out, N, RL_F32, &request));
    IN_PLACE(rl_iall_gather(comm, RL_IN_PLACE, data, N, RL_F32, &request));
    CLEARED(rl_ireduce_scatter(comm, ones, out, N, RL_F32, RL_SUM, &request));
    IN_PLACE(rl_ireduce_scatter(comm, RL_IN_PLACE, data, N, RL_F32, RL_SUM, &request));
    CLEARED(rl_iall_to_all(comm, ones, out, N, RL_F32, &request));
    IN_PLACE(rl_iall_to_all(comm, RL_IN_PLACE, data, N, RL_F32, &request));
}

/* rl_finalize cancels requests: their buffers are not written any more, and waiting fails. */
static void cancelled_requests(void)
{
    rl_comm *comm;
    rl_request *requests[40];
    char into = 1;
    size_t i;
    OK(rl_init(&comm));
    for (i = 0; i < 40; i++)
        OK(rl_irecv(comm, &into, 1, RL_U8, 0, (uint32_t)i, &requests[i]));
    OK(rl_cancel(&requests[0]));
    OK(rl_finalize(comm));
    for (i = 1; i < 40; i++) {
        CHECK(rl_wait(&requests[i], NULL) == RL_GIVEN_UP);
        CHECK(requests[i] == NULL);
    }
    CHECK(strstr(rl_error(), "cancelled") != NULL);
    CHECK(into == 1);
}

int main(void)
{
    rl_comm *comm, *part;
    CHECK(strcmp(rl_error(), "") == 0);
    OK(rl_init(&comm));
    ranks_and_sizes(comm);
    messages(comm);
    registrations(comm);
    nonblocking_messages(comm);
    collectives(comm);
    nonblocking_collectives(comm);
    OK(rl_split(comm, 1, -1, &part));
    OK(rl_finalize(comm));
    ranks_and_sizes(part);
    messages(part);
    collectives(part);
    OK(rl_finalize(part));
    cancelled_requests();
    CHECK(strcmp(rl_result_name(RL_OK), "RL_OK") == 0);
    puts("ok");
    return 0;
}
