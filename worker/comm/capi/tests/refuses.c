/* Invalid arguments are refused with an error text. */
#include "rlaunch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(int line, rl_result got, rl_result wanted, const char *word)
{
    if (got == wanted && strstr(rl_error(), word) != NULL)
        return;
    fprintf(stderr, "line %d: %s instead of %s, text: %s\n", line, rl_result_name(got),
            rl_result_name(wanted), rl_error());
    exit(1);
}

#define FAILS(call, result, word) check(__LINE__, call, result, word)
#define INVALID(call, word) FAILS(call, RL_INVALID, word)

static void null(rl_comm *comm)
{
    float data[4] = {0};
    size_t number;
    rl_comm *part = comm;
    rl_request *request = NULL;
    int done;
    INVALID(rl_init(NULL), "comm is NULL");
    INVALID(rl_finalize(NULL), "comm is NULL");
    INVALID(rl_rank(NULL, &number), "comm is NULL");
    INVALID(rl_rank(comm, NULL), "rank is NULL");
    INVALID(rl_size(comm, NULL), "size is NULL");
    INVALID(rl_split(NULL, 0, 0, &part), "comm is NULL");
    check(__LINE__, part == NULL ? RL_OK : RL_INVALID, RL_OK, "");
    INVALID(rl_split(comm, 0, 0, NULL), "part is NULL");
    INVALID(rl_barrier(NULL), "comm is NULL");
    INVALID(rl_send(NULL, data, 1, RL_F32, 0, 0), "comm is NULL");
    INVALID(rl_send(comm, NULL, 1, RL_F32, 0, 0), "data is NULL");
    INVALID(rl_recv(comm, NULL, 1, RL_F32, 0, 0, NULL), "data is NULL");
    INVALID(rl_recv_any(comm, NULL, 1, RL_F32, 0, NULL), "data is NULL");
    INVALID(rl_sendrecv(comm, data, 1, 0, 0, NULL, 1, 0, 0, RL_F32, NULL), "into is NULL");
    INVALID(rl_isend(comm, data, 1, RL_F32, 0, 0, NULL), "request is NULL");
    INVALID(rl_irecv(comm, NULL, 1, RL_F32, 0, 0, &request), "data is NULL");
    INVALID(rl_ibarrier(NULL, &request), "comm is NULL");
    INVALID(rl_abort(comm, NULL), "why is NULL");
    INVALID(rl_abort(NULL, "no data"), "comm is NULL");
    INVALID(rl_wait(NULL, NULL), "request is NULL");
    INVALID(rl_wait(&request, NULL), "completed already");
    INVALID(rl_test(&request, &done, NULL), "completed already");
    INVALID(rl_test(&request, NULL, NULL), "done is NULL");
    INVALID(rl_cancel(&request), "completed already");
    INVALID(rl_broadcast(comm, NULL, 1, RL_F32, 0), "output is NULL");
    INVALID(rl_all_reduce(comm, NULL, data, 1, RL_F32, RL_SUM), "input is NULL");
    INVALID(rl_all_reduce(comm, RL_IN_PLACE, NULL, 1, RL_F32, RL_SUM), "output is NULL");
    INVALID(rl_iall_reduce(comm, data, NULL, 1, RL_F32, RL_SUM, &request), "output is NULL");
    INVALID(rl_iall_reduce(comm, data, data + 1, 1, RL_F32, RL_SUM, NULL), "request is NULL");
}

static void senseless(rl_comm *comm)
{
    float data[4] = {0}, out[1];
    rl_request *request;
    INVALID(rl_send(comm, data, 1, 8, 0, 0), "rl_type 8");
    INVALID(rl_send(comm, data, 1, -1, 0, 0), "rl_type -1");
    INVALID(rl_all_reduce(comm, data, out, 1, RL_F32, 4), "rl_op 4");
    INVALID(rl_send(comm, data, (size_t)-1 / 2, RL_F32, 0, 0), "exceed the address space");
    INVALID(rl_send(comm, RL_IN_PLACE, 1, RL_F32, 0, 0), "not a valid address");
    INVALID(rl_all_reduce(comm, data, data, 4, RL_F32, RL_SUM), "RL_IN_PLACE");
    INVALID(rl_all_reduce(comm, data, data + 1, 2, RL_F32, RL_SUM), "overlap");
    INVALID(rl_sendrecv(comm, data, 1, 0, 0, data, 1, 0, 0, RL_F32, NULL), "overlap");
    FAILS(rl_abort(comm, "no data"), RL_ABORTED, "abort: no data");
    FAILS(rl_send(comm, data, 1, RL_F32, 1, 0), RL_NO_SUCH_RANK, "no rank 1 in a communicator of 1");
    FAILS(rl_recv(comm, data, 1, RL_F32, 1, 0, NULL), RL_NO_SUCH_RANK, "no rank 1");
    FAILS(rl_irecv(comm, data, 1, RL_F32, 1, 0, &request), RL_NO_SUCH_RANK, "no rank 1");
    FAILS(rl_broadcast(comm, data, 1, RL_F32, 3), RL_NO_SUCH_RANK, "no rank 3");
    FAILS(rl_igather(comm, data, NULL, 1, RL_F32, 3, &request), RL_NO_SUCH_RANK, "no rank 3");
}

static void lengths(rl_comm *comm)
{
    float data[4] = {0};
    rl_request *request;
    check(__LINE__, rl_send(comm, data, 4, RL_F32, 0, 0), RL_OK, "");
    FAILS(rl_recv(comm, data, 3, RL_F32, 0, 0, NULL), RL_TRUNCATED, "16 bytes from rank 0");
    check(__LINE__, rl_send(comm, data, 7, RL_U8, 0, 0), RL_OK, "");
    FAILS(rl_recv(comm, data, 4, RL_F32, 0, 0, NULL), RL_LENGTH, "whole number");
    check(__LINE__, rl_send(comm, data, 4, RL_F32, 0, 1), RL_OK, "");
    check(__LINE__, rl_irecv(comm, data, 3, RL_F32, 0, 1, &request), RL_OK, "");
    FAILS(rl_wait(&request, NULL), RL_TRUNCATED, "16 bytes from rank 0");
}

int main(void)
{
    rl_comm *comm;
    if (rl_init(&comm) != RL_OK)
        return 1;
    null(comm);
    senseless(comm);
    lengths(comm);
    check(__LINE__, rl_finalize(comm), RL_OK, "");
    if (strcmp(rl_result_name(5000), "RL_UNKNOWN") != 0)
        return 1;
    puts("ok");
    return 0;
}
