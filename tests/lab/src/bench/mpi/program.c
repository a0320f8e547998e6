/* Initializes MPI, meets the other ranks in a barrier, and finalizes. Rank 0 prints how long the slowest
 * rank was in MPI_Init, in microseconds, and the number of ranks. With an argument all ranks sleep for so
 * many seconds after the barrier. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

int main(int argc, char **argv) {
    double start = now(), slowest;
    MPI_Init(NULL, NULL);
    double inside = now() - start;
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Reduce(&inside, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
#ifdef MPICH_VERSION
    /* MPICH 4.0 with UCX hangs in MPI_Finalize, under every launcher, if ranks of several hosts have just
     * exchanged their first messages: those that finalize early no longer answer. */
    usleep(500000);
#endif
    if (argc > 1) sleep(atoi(argv[1]));
    if (rank == 0) printf("init %.0f %d\n", slowest, size);
    fflush(stdout);
    return MPI_Finalize();
}
