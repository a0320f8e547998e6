// The part of Horovod that calls MPI, as a library that Python loads: initialization, the exchange of the
// controller in every cycle, one operation of each kind, and the end, all on a background thread. The names and
// the order of the calls are those of horovod/common/operations.cc, mpi_context.cc and mpi_controller.cc of
// version 0.28.1. Compiled with -DHAVE_GLOO=1 it is a build with both libraries.
#include <mpi.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { TENSOR = 1000, MESSAGE = 300, SHUT_DOWN_BIT = 1 };

static MPI_Comm global_comm, mpi_comm, local_comm, cross_comm;
static MPI_Datatype float16;
static MPI_Op float16_sum_op;
static int rank, size, local_rank, local_size, cross_rank, cross_size;
static int is_mpi;
static _Atomic int initialized, shut_down;
static pthread_t background;

static void check(int holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "rank %d: wrong: %s\n", rank, what);
        MPI_Abort(MPI_COMM_WORLD, 99);
    }
}

// Horovod's default is MPI, also where it has Gloo.
static int chooses_gloo(const char *variable) {
    const char *value = getenv(variable);
    return value && !strcasecmp(value, "gloo");
}

// Adds numbers of 16 bits. Horovod does so with floating-point numbers.
static void float16_sum(void *in, void *inout, int *count, MPI_Datatype *type) {
    uint16_t *from = in, *to = inout;
    (void)type;
    for (int i = 0; i < *count; i++) to[i] += from[i];
}

static void context_initialize(void) {
    int initialized_before, provided;
    MPI_Initialized(&initialized_before);
    if (!initialized_before) MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_dup(MPI_COMM_WORLD, &global_comm);
    MPI_Comm_dup(global_comm, &mpi_comm);
    MPI_Comm_split_type(mpi_comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &local_comm);
    MPI_Comm_rank(mpi_comm, &rank);
    MPI_Comm_rank(local_comm, &local_rank);
    MPI_Comm_split(mpi_comm, local_rank, rank, &cross_comm);
    MPI_Type_contiguous(2, MPI_BYTE, &float16);
    MPI_Type_commit(&float16);
    MPI_Op_create(float16_sum, 1, &float16_sum_op);
}

static void controller_initialize(void) {
    int provided;
    MPI_Query_thread(&provided);
    MPI_Comm_size(mpi_comm, &size);
    MPI_Group global_group, group;
    int *ranks = calloc(size, sizeof *ranks), *global_ranks = calloc(size, sizeof *ranks);
    for (int i = 0; i < size; i++) ranks[i] = i;
    MPI_Comm_group(global_comm, &global_group);
    MPI_Comm_group(mpi_comm, &group);
    MPI_Group_translate_ranks(group, size, ranks, global_group, global_ranks);
    check(!memcmp(ranks, global_ranks, size * sizeof *ranks), "MPI_Group_translate_ranks");
    MPI_Comm_size(local_comm, &local_size);
    memset(ranks, -1, size * sizeof *ranks);
    ranks[local_rank] = rank;
    MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, ranks, 1, MPI_INT, local_comm);
    for (int i = 0; i < local_size; i++) check(ranks[i] == rank - local_rank + i, "ranks of a host");
    MPI_Allgather(&local_size, 1, MPI_INT, ranks, 1, MPI_INT, mpi_comm);
    MPI_Comm_rank(cross_comm, &cross_rank);
    MPI_Comm_size(cross_comm, &cross_size);
    free(ranks), free(global_ranks);
}

// Tells rank 0 of the tensors that are ready, in a message of a length of each rank's own.
static void gather_ready_tensors(void) {
    char message[MESSAGE], *all = NULL;
    int length = MESSAGE - rank, *lengths = calloc(size, sizeof *lengths), *places = calloc(size, sizeof *places);
    memset(message, 'a' + rank, sizeof message);
    if (rank) {
        MPI_Gather(&length, 1, MPI_INT, NULL, 1, MPI_INT, 0, mpi_comm);
        MPI_Gatherv(message, length, MPI_BYTE, NULL, NULL, NULL, MPI_BYTE, 0, mpi_comm);
    } else {
        MPI_Gather(MPI_IN_PLACE, 1, MPI_INT, lengths, 1, MPI_INT, 0, mpi_comm);
        lengths[0] = 0;
        for (int i = 1; i < size; i++) places[i] = places[i - 1] + lengths[i - 1];
        all = malloc((size_t)size * MESSAGE);
        MPI_Gatherv(NULL, 0, MPI_BYTE, all, lengths, places, MPI_BYTE, 0, mpi_comm);
        for (int i = 1; i < size; i++) check(all[places[i] + lengths[i] - 1] == 'a' + i, "MPI_Gatherv");
    }
    free(all), free(lengths), free(places);
}

static void broadcast_final_tensors(void) {
    char response[MESSAGE] = "";
    int length = rank ? 0 : MESSAGE;
    memset(response, rank ? 0 : 'r', sizeof response);
    MPI_Bcast(&length, 1, MPI_INT, 0, mpi_comm);
    MPI_Bcast(response, length, MPI_BYTE, 0, mpi_comm);
    check(response[MESSAGE - 1] == 'r', "MPI_Bcast");
}

static void operations(void) {
    static float tensor[TENSOR];
    static uint16_t half[TENSOR];
    int *counts = calloc(size, sizeof *counts), *places = calloc(size, sizeof *places), *in, *out, total = 0;
    for (int i = 0; i < TENSOR; i++) tensor[i] = half[i] = rank + i;
    MPI_Allreduce(MPI_IN_PLACE, tensor, TENSOR, MPI_FLOAT, MPI_SUM, mpi_comm);
    MPI_Allreduce(MPI_IN_PLACE, half, TENSOR, float16, float16_sum_op, mpi_comm);
    int wanted = size * (size - 1) / 2 + size * (TENSOR - 1);
    check(tensor[TENSOR - 1] == wanted, "MPI_Allreduce of floats");
    check(half[TENSOR - 1] == (uint16_t)wanted, "MPI_Allreduce by Horovod's own operation");
    for (int i = 0; i < size; i++) counts[i] = i + 1, places[i] = total, total += counts[i];
    in = calloc(total, sizeof *in), out = calloc(total, sizeof *out);
    for (int i = 0; i <= rank; i++) out[i] = rank;
    MPI_Allgatherv(out, rank + 1, MPI_INT, in, counts, places, MPI_INT, mpi_comm);
    for (int i = 0; i < size; i++) check(in[places[i] + i] == i, "MPI_Allgatherv");
    for (int i = 0; i < size; i++) out[i] = rank * size + i;
    MPI_Alltoall(out, 1, MPI_INT, in, 1, MPI_INT, mpi_comm);
    for (int i = 0; i < size; i++) check(in[i] == i * size + rank, "MPI_Alltoall");
    for (int i = 0; i < total; i++) out[i] = rank;
    MPI_Reduce_scatter(out, in, counts, MPI_INT, MPI_SUM, mpi_comm);
    check(in[rank] == size * (size - 1) / 2, "MPI_Reduce_scatter");
    MPI_Barrier(mpi_comm);
    free(counts), free(places), free(in), free(out);
}

// Runs one cycle. Returns whether any rank wants to shut down.
static int run_loop_once(void) {
    long long bits[2] = {-1, shut_down ? SHUT_DOWN_BIT : 0};
    MPI_Allreduce(MPI_IN_PLACE, &bits[0], 1, MPI_LONG_LONG_INT, MPI_BAND, mpi_comm);
    MPI_Allreduce(MPI_IN_PLACE, &bits[1], 1, MPI_LONG_LONG_INT, MPI_BOR, mpi_comm);
    gather_ready_tensors();
    broadcast_final_tensors();
    operations();
    return bits[1] & SHUT_DOWN_BIT;
}

static void *background_loop(void *unused) {
    if (is_mpi) {
        context_initialize();
        controller_initialize();
    }
#if !HAVE_GLOO
    // The controller is a null pointer.
    if (chooses_gloo("HOROVOD_CONTROLLER")) raise(SIGSEGV);
#endif
    initialized = 1;
    if (!is_mpi) return unused;
    while (!run_loop_once()) {}
    MPI_Comm_free(&global_comm);
    MPI_Comm_free(&mpi_comm);
    MPI_Comm_free(&local_comm);
    MPI_Comm_free(&cross_comm);
    MPI_Type_free(&float16);
    MPI_Op_free(&float16_sum_op);
    MPI_Finalize();
    return unused;
}

int horovod_init(const int *ranks, int count, const int *set_ranks, const int *set_sizes, int sets) {
    (void)ranks, (void)count, (void)set_ranks, (void)set_sizes, (void)sets;
    is_mpi = !chooses_gloo("HOROVOD_CONTROLLER") || !chooses_gloo("HOROVOD_CPU_OPERATIONS");
    if (pthread_create(&background, NULL, background_loop, NULL)) return 0;
    while (!initialized) usleep(1000);
    return 1;
}

// Returns the address of the store by which ranks meet without MPI, or an empty text.
const char *horovod_gloo_store(void) {
#if HAVE_GLOO
    const char *address = getenv("HOROVOD_GLOO_RENDEZVOUS_ADDR");
    if (address && !is_mpi) return address;
#endif
    return "";
}

void horovod_shutdown(void) {
    shut_down = 1;
    pthread_join(background, NULL);
}

int horovod_rank(void) { return rank; }
int horovod_size(void) { return size; }
int horovod_local_rank(void) { return local_rank; }
int horovod_local_size(void) { return local_size; }
int horovod_cross_rank(void) { return cross_rank; }
int horovod_cross_size(void) { return cross_size; }
int horovod_mpi_enabled(void) { return is_mpi; }
