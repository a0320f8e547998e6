// Parts of osu_latency, osu_bw and osu_allreduce of OSU's micro-benchmarks, with their calls of MPI and their
// output, in the form of version 7.4. The program is what it is called. Options: -m FIRST:LAST sizes, -i ITERATIONS,
// -f full format.
#define _GNU_SOURCE
#include <errno.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WINDOW = 16 };

static int rank, ranks, full, iterations = 20;
static char *in, *out;

#define PRINT(...) ((void)(rank == 0 && printf(__VA_ARGS__)))

static double ping_pong(int size) {
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    for (int i = 0; i < iterations; i++) {
        if (rank == 0) MPI_Send(in, size, MPI_CHAR, 1, 1, MPI_COMM_WORLD);
        MPI_Recv(out, size, MPI_CHAR, !rank, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (rank == 1) MPI_Send(in, size, MPI_CHAR, 0, 1, MPI_COMM_WORLD);
    }
    return (MPI_Wtime() - start) * 1e6 / iterations / 2;
}

static double stream(int size) {
    MPI_Request requests[WINDOW];
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    for (int i = 0; i < iterations; i++) {
        for (int j = 0; j < WINDOW; j++) {
            if (rank == 0) MPI_Isend(in, size, MPI_CHAR, 1, 100, MPI_COMM_WORLD, requests + j);
            else MPI_Irecv(out, size, MPI_CHAR, 0, 100, MPI_COMM_WORLD, requests + j);
        }
        MPI_Waitall(WINDOW, requests, MPI_STATUSES_IGNORE);
        if (rank == 1) MPI_Send(in, 4, MPI_CHAR, 0, 101, MPI_COMM_WORLD);
        else MPI_Recv(out, 4, MPI_CHAR, 1, 101, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    return size / 1e6 * iterations * WINDOW / (MPI_Wtime() - start);
}

static void print_reduction(int size) {
    double least, most, sum;
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    for (int i = 0; i < iterations; i++) MPI_Allreduce(in, out, size / 4, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    double own = (MPI_Wtime() - start) * 1e6 / iterations;
    MPI_Reduce(&own, &least, 1, MPI_DOUBLE, MPI_MIN, 0, MPI_COMM_WORLD);
    MPI_Reduce(&own, &most, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    MPI_Reduce(&own, &sum, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    PRINT("%-10d%18.2f", size, sum / ranks);
    if (full) PRINT("%18.2f%18.2f%12d", least, most, iterations);
    PRINT("\n");
}

int main(int argc, char **argv) {
    int first = 1, last = 1 << 16, option;
    while ((option = getopt(argc, argv, "m:i:f")) != -1) {
        if (option == 'm') sscanf(optarg, "%d:%d", &first, &last);
        if (option == 'i') iterations = atoi(optarg);
        if (option == 'f') full = 1;
    }
    const char *name = program_invocation_short_name;
    int is_bw = strstr(name, "osu_bw") != NULL, is_reduction = strstr(name, "osu_allreduce") != NULL;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (is_reduction ? ranks < 2 : ranks != 2) {
        if (!rank) fprintf(stderr, "This test requires %s processes\n", is_reduction ? "at least two" : "exactly two");
        MPI_Finalize();
        return EXIT_FAILURE;
    }
    in = calloc(1, last + 4), out = calloc(1, last + 4);
    PRINT("\n# OSU MPI %s Test v7.4\n", is_bw ? "Bandwidth" : is_reduction ? "Allreduce Latency" : "Latency");
    PRINT("# Datatype: %s.\n", is_reduction ? "MPI_INT" : "MPI_CHAR");
    PRINT(is_bw ? "# Size      Bandwidth (MB/s)" : "# Size       Avg Latency(us)");
    if (is_reduction && full) PRINT("   Min Latency(us)   Max Latency(us)  Iterations");
    PRINT("\n");
    for (int size = is_reduction && first < 4 ? 4 : first; size <= last; size *= 2) {
        if (is_reduction) {
            print_reduction(size);
        } else {
            double result = is_bw ? stream(size) : ping_pong(size);
            PRINT("%-10d%18.2f\n", size, result);
        }
        fflush(stdout);
    }
    MPI_Finalize();
    free(in), free(out);
    return EXIT_SUCCESS;
}
