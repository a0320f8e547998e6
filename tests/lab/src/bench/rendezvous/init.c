/* Prints how long MPI_Init takes each rank, in microseconds: there an MPI library exchanges what rlaunch
 * gives every rank in a table. With an argument all ranks begin at that time, in seconds since 1970. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int main(int argc, char **argv) {
    struct timespec before, after;
    if (argc > 1) {
        double begin = atof(argv[1]);
        struct timespec moment = {(time_t)begin, (long)((begin - (time_t)begin) * 1e9)};
        clock_gettime(CLOCK_REALTIME, &before);
        if (before.tv_sec + before.tv_nsec / 1e9 > begin) {
            fprintf(stderr, "this rank started too late to begin with the others\n");
            return 1;
        }
        clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &moment, NULL);
    }
    clock_gettime(CLOCK_MONOTONIC, &before);
    MPI_Init(NULL, NULL);
    clock_gettime(CLOCK_MONOTONIC, &after);
    printf("ready %.0f\n", (after.tv_sec - before.tv_sec) * 1e6 +
                               (after.tv_nsec - before.tv_nsec) / 1e3);
    return MPI_Finalize();
}
