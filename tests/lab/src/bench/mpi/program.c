/* Initializes MPI, meets the other ranks in a barrier, and finalizes. Each rank prints how long it was in
 * MPI_Init, in microseconds, and the number of ranks. With an argument all ranks sleep for so many seconds
 * before MPI_Finalize. */
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
    double start = now();
    MPI_Init(NULL, NULL);
    double inside = now() - start;
    int size;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
#ifndef MPICH_VERSION
    /* MPICH 4.0 with UCX often hangs in MPI_Finalize, under every launcher, if ranks of several hosts have
     * just exchanged their first messages. Its ranks meet in MPI_Finalize only. */
    MPI_Barrier(MPI_COMM_WORLD);
#endif
    if (argc > 1) sleep(atoi(argv[1]));
    printf("init %.0f %d\n", inside, size);
    fflush(stdout);
    return MPI_Finalize();
}
