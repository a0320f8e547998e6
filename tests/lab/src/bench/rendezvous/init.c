/* How long MPI_Init takes each rank, in microseconds: what an MPI library does where rlaunch hands
 * every rank a table. */
#include <mpi.h>
#include <stdio.h>
#include <time.h>

int main(void) {
    struct timespec before, after;
    clock_gettime(CLOCK_MONOTONIC, &before);
    MPI_Init(NULL, NULL);
    clock_gettime(CLOCK_MONOTONIC, &after);
    printf("ready %.0f\n", (after.tv_sec - before.tv_sec) * 1e6 +
                               (after.tv_nsec - before.tv_nsec) / 1e3);
    return MPI_Finalize();
}
