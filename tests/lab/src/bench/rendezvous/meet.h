/* Rounds and their times, for both programs of this directory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LARGEST = 4096 };
static const int BLOBS[] = {64, LARGEST};

static void check(int good, const char *what) {
    if (!good) {
        fprintf(stderr, "cannot %s\n", what);
        exit(1);
    }
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

static int ascending(const void *a, const void *b) {
    double difference = *(const double *)a - *(const double *)b;
    return (difference > 0) - (difference < 0);
}

/* Calls `call(bytes, round)` in every round; rank 0 prints median, minimum and maximum in microseconds. */
static void measure(int rank, const char *what, int rounds, void (*call)(int, int), int bytes) {
    double *times = malloc(rounds * sizeof *times);
    for (int round = 0; round < rounds; round++) {
        double start = now();
        call(bytes, round);
        times[round] = now() - start;
    }
    qsort(times, rounds, sizeof *times, ascending);
    if (rank == 0)
        printf("%s %.0f %.0f %.0f\n", what, times[rounds / 2], times[0], times[rounds - 1]);
    free(times);
}
