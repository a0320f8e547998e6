// An MPI program that checks its results, in parts named by its arguments:
//
//   all BYTES     communicators, collectives, one-sided communication; alltoall of BYTES to each rank
//   abort CODE [PIPE]  rank 1 calls MPI_Abort, after it has read a line from PIPE; the others wait for it in
//                 a barrier
//   leave         rank 1 exits with 0 in place of MPI_Finalize, the others go on to it
//   wait          all ranks wait in a barrier that rank 0 never enters
//   programs      prints the number of each rank's program, and tries to spawn another
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int rank, size;

static void check(int holds, const char *what) {
    if (!holds) {
        printf("rank %d: wrong: %s\n", rank, what);
        fflush(stdout);
        MPI_Abort(MPI_COMM_WORLD, 99);
    }
}

// Returns the communicator of the ranks of this node.
static MPI_Comm communicators(void) {
    MPI_Comm parity, node;
    int members, local, most = 0;
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &parity);
    MPI_Comm_size(parity, &members);
    check(members == (size + 1 - rank % 2) / 2, "size after MPI_Comm_split");
    MPI_Comm_free(&parity);
    // Ranks of one node, and no others, share memory. The host is in a variable of the launcher's.
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node);
    MPI_Comm_size(node, &members);
    check(members == atoi(getenv("LOCAL_WORLD_SIZE")), "size after MPI_Comm_split_type");
    char host[256] = "", root[256] = "";
    snprintf(host, sizeof host, "%s", getenv("RLAUNCH_HOST"));
    memcpy(root, host, sizeof root);
    MPI_Bcast(root, sizeof root, MPI_CHAR, 0, node);
    check(strcmp(host, root) == 0, "host after MPI_Comm_split_type");
    MPI_Comm_rank(node, &local);
    MPI_Allreduce(&members, &most, 1, MPI_INT, MPI_MAX, node);
    check(most == members && local < members, "ranks of a node");
    return node;
}

static void collectives(int bytes) {
    long long sum = 0, mine = rank + 1;
    MPI_Allreduce(&mine, &sum, 1, MPI_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
    check(sum == (long long)size * (size + 1) / 2, "sum of MPI_Allreduce");
    unsigned char *out = malloc((size_t)bytes * size), *in = malloc((size_t)bytes * size);
    for (int to = 0; to < size; to++) memset(out + (size_t)to * bytes, rank * 16 + to, bytes);
    MPI_Alltoall(out, bytes, MPI_BYTE, in, bytes, MPI_BYTE, MPI_COMM_WORLD);
    for (int from = 0; from < size; from++)
        for (int at = 0; at < bytes; at++)
            check(in[(size_t)from * bytes + at] == (unsigned char)(from * 16 + rank), "MPI_Alltoall");
    free(out), free(in);
}

// Returns 0 if the library has no one-sided communication among the ranks of the communicator. The
// window is memory of the program's heap: from a window of MPI_Win_allocate or on the stack, MPICH 4.0
// reads stale values under its own mpiexec too.
static int put_to_next(MPI_Comm comm) {
    int *window = malloc(sizeof *window), mine, count, made, all_made;
    MPI_Win win;
    MPI_Comm_rank(comm, &mine);
    MPI_Comm_size(comm, &count);
    int value = mine + 100;
    *window = -1;
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    made = MPI_Win_create(window, sizeof *window, sizeof *window, MPI_INFO_NULL, comm, &win) == MPI_SUCCESS;
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_ARE_FATAL);
    MPI_Allreduce(&made, &all_made, 1, MPI_INT, MPI_MIN, comm);
    if (all_made) {
        MPI_Win_fence(0, win);
        MPI_Put(&value, 1, MPI_INT, (mine + 1) % count, 0, 1, MPI_INT, win);
        MPI_Win_fence(0, win);
        check(*window == (mine + count - 1) % count + 100, "MPI_Put");
    }
    if (made) MPI_Win_free(&win);
    free(window);
    return all_made;
}

// Returns among which ranks the library has one-sided communication.
static const char *one_sided(MPI_Comm node) {
    if (put_to_next(MPI_COMM_WORLD)) return "all ranks";
    return put_to_next(node) ? "ranks of a node" : "no ranks";
}

#if defined(MPICH_NUMVERSION) && MPICH_NUMVERSION < 40100000
// Exchanges a message with every rank.
static void meet_each(void) {
    char *in = calloc(size, 1), out = 0;
    MPI_Request *requests = malloc(2 * size * sizeof *requests);
    MPI_Status *statuses = malloc(2 * size * sizeof *statuses);
    for (int other = 0; other < size; other++) {
        MPI_Irecv(in + other, 1, MPI_CHAR, other, 1, MPI_COMM_WORLD, &requests[other]);
        MPI_Isend(&out, 1, MPI_CHAR, other, 1, MPI_COMM_WORLD, &requests[size + other]);
    }
    MPI_Waitall(2 * size, requests, statuses);
    free(statuses), free(requests), free(in);
}
#endif

// Finishes MPI. MPICH 4.0 over UCX often hangs there between hosts, under its own mpiexec too: a rank asks
// each rank that it has sent to for a last answer, then waits in a barrier of PMI, where it answers no
// longer. All are answered if each rank has sent to all, and none asks before all have come to rest: then
// every rank has asked before it answers, so its answer comes after its question.
static void finalize(void) {
#if defined(MPICH_NUMVERSION) && MPICH_NUMVERSION < 40100000
    meet_each();
    meet_each();
    MPI_Barrier(MPI_COMM_WORLD);
    usleep(500000);
#endif
    MPI_Finalize();
}

static void read_line(const char *path) {
    char line[64];
    FILE *pipe = fopen(path, "r");
    check(pipe && fgets(line, sizeof line, pipe), "pipe");
    fclose(pipe);
}

int main(int argc, char **argv) {
    const char *part = argc > 1 ? argv[1] : "all";
    int number = argc > 2 ? atoi(argv[2]) : 1024;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    check(rank == atoi(getenv("RANK")) && size == atoi(getenv("WORLD_SIZE")), "rank");
    MPI_Barrier(MPI_COMM_WORLD);
    if (!strcmp(part, "all")) {
        MPI_Comm node = communicators();
        collectives(number);
        const char *reached = one_sided(node);
        MPI_Comm_free(&node);
        MPI_Barrier(MPI_COMM_WORLD);
        if (rank == 0) printf("right on %d ranks, one-sided among %s\n", size, reached);
    } else if (!strcmp(part, "abort")) {
        if (rank == 1 && argc > 3) read_line(argv[3]);
        if (rank == 1) MPI_Abort(MPI_COMM_WORLD, number);
        MPI_Barrier(MPI_COMM_WORLD);
    } else if (!strcmp(part, "leave")) {
        if (rank == 1) _exit(0);
    } else if (!strcmp(part, "wait")) {
        printf("rank %d waits in process %d\n", rank, getpid());
        fflush(stdout);
        if (rank == 0) pause();
        MPI_Barrier(MPI_COMM_WORLD);
    } else if (!strcmp(part, "programs")) {
        int *appnum, found;
        MPI_Comm child;
        MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_APPNUM, &appnum, &found);
        MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
        int error = MPI_Comm_spawn("true", MPI_ARGV_NULL, 1, MPI_INFO_NULL, 0, MPI_COMM_SELF, &child,
                                   MPI_ERRCODES_IGNORE);
        const char *spawned = error == MPI_SUCCESS ? "spawned another" : "spawned none";
        MPI_Barrier(MPI_COMM_WORLD);
        printf("rank %d of program %d %s\n", rank, found ? *appnum : -1, spawned);
    }
    fflush(stdout);
    finalize();
    return 0;
}
