// The part of all_reduce_perf of nccl-tests (built with MPI=1) that calls MPI, and its output, in the form of
// version 2.18. The reduction is MPI's. Options: -b SIZE, -e SIZE, -f FACTOR, -n ITERATIONS; a size may end in K or
// M. -g, the number of GPUs of a process, has no effect. With WRONG=N in the environment N values of each row are wrong.
#define _GNU_SOURCE
#include <errno.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LINE = 2048, UNIQUE_ID = 128 };

static int proc, procs, iterations = 4;
static double busbw_sum;
static long timings, wrong_values;

#define PRINT(...) ((void)(proc == 0 && printf(__VA_ARGS__)))

static size_t bytes(const char *text) {
    char *end;
    size_t number = strtoul(text, &end, 10);
    return number << (*end == 'K' ? 10 : *end == 'M' ? 20 : 0);
}

static uint64_t host_hash(const char *name) {
    uint64_t hash = 5381;
    for (; *name; name++) hash = hash * 33 ^ (unsigned char)*name;
    return hash;
}

static void report_devices(const char *host, int local_rank, int color) {
    char line[LINE] = "", *lines = proc ? NULL : malloc((size_t)procs * LINE);
    long memory = 80L << 30;
    snprintf(line, LINE, "#  Rank %2d Group %2d Pid %6d on %10s device %2d [%04x:%02x:%02x] %s\n", proc, color, getpid(),
             host, local_rank, 0, 0x19 + local_rank, 0, "stand-in");
    MPI_Gather(line, LINE, MPI_BYTE, lines, LINE, MPI_BYTE, 0, MPI_COMM_WORLD);
    for (int i = 0; i < procs; i++) PRINT("%s", lines + (size_t)i * LINE);
    free(lines);
    MPI_Allreduce(MPI_IN_PLACE, &memory, 1, MPI_LONG, MPI_MIN, MPI_COMM_WORLD);
}

// Prints the time of a reduction, averaged over the ranks.
static void time_reduction(float *in, float *out, int count) {
    long long wrong = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime(), seconds;
    for (int i = 0; i < iterations; i++) {
        for (int at = 0; at < count; at++) in[at] = proc;
        MPI_Allreduce(in == out ? MPI_IN_PLACE : in, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    }
    seconds = (MPI_Wtime() - start) / iterations;
    MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    seconds /= procs;
    for (int at = 0; at < count; at++) wrong += out[at] != procs * (procs - 1) / 2;
    const char *forced = getenv("WRONG");
    if (forced && !proc) wrong += atol(forced);
    MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
    double algbw = count * sizeof(float) / seconds / 1e9, busbw = algbw * 2 * (procs - 1) / procs;
    PRINT("  %7.2f  %6.2f  %6.2f  %6g", seconds * 1e6, algbw, busbw, (double)wrong);
    wrong_values += wrong, busbw_sum += busbw, timings++;
}

static void print_head(void) {
    const char *sides = "# %10s  %12s  %8s  %6s  %6s           out-of-place                       in-place          \n";
    const char *names = "# %10s  %12s  %8s  %6s  %6s  %7s  %6s  %6s  %6s  %7s  %6s  %6s  %6s %*s\n";
    PRINT("#\n");
    PRINT(sides, "", "", "", "", "");
    PRINT(names, "size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "time", "algbw", "busbw",
          "#wrong", 0, "");
    PRINT(names, "(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(GB/s)", "(GB/s)", "", 0, "");
}

int main(int argc, char **argv) {
    size_t least = 32 << 20, most = 32 << 20, factor = 2;
    char host[256] = "", unique_id[UNIQUE_ID] = "";
    int option, local_rank = 0, color = 0, group_rank, architecture = 900;
    while ((option = getopt(argc, argv, "b:e:f:g:n:")) != -1) {
        if (option == 'b') least = bytes(optarg);
        if (option == 'e') most = bytes(optarg);
        if (option == 'f') factor = strtoul(optarg, NULL, 10);
        if (option == 'n') iterations = atoi(optarg);
    }
    MPI_Init(&argc, &argv);
    MPI_Comm_size(MPI_COMM_WORLD, &procs);
    MPI_Comm_rank(MPI_COMM_WORLD, &proc);
    gethostname(host, sizeof host - 1);
    uint64_t *hashes = calloc(procs, sizeof *hashes);
    hashes[proc] = host_hash(host);
    MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, hashes, sizeof *hashes, MPI_BYTE, MPI_COMM_WORLD);
    for (int i = 0; i < proc; i++) local_rank += hashes[i] == hashes[proc];
    MPI_Comm group;
    MPI_Comm_split(MPI_COMM_WORLD, color, proc, &group);
    MPI_Comm_rank(group, &group_rank);

    PRINT("# nccl-tests version 2.18.3 nccl-headers=23005 nccl-library=23005\n");
    PRINT("# Collective test starting: %s\n", program_invocation_short_name);
    PRINT("# nThread 1 nGpus 1 minBytes %zu maxBytes %zu step: %zu(factor) warmup iters: 1 iters: %d agg iters: 1 "
          "validation: 1 graph: 0 unalign: 0\n#\n# Using devices\n", least, most, factor, iterations);
    report_devices(host, local_rank, color);
    if (group_rank == 0) memset(unique_id, 'u', sizeof unique_id);
    MPI_Bcast(unique_id, sizeof unique_id, MPI_BYTE, 0, group);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Allreduce(MPI_IN_PLACE, &architecture, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    wrong_values += unique_id[UNIQUE_ID - 1] != 'u';

    float *in = calloc(1, most), *out = calloc(1, most);
    print_head();
    for (size_t size = least; size <= most; size *= factor) {
        int count = (int)(size / sizeof(float));
        PRINT("%12zu  %12d  %8s  %6s  %6i", size, count, "float", "sum", -1);
        time_reduction(in, out, count);
        time_reduction(in, in, count);
        PRINT("\n");
    }
    int errors = (int)wrong_values;
    MPI_Allreduce(MPI_IN_PLACE, &errors, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    PRINT("# %-20s : %d %s\n", "Out of bounds values", errors, errors ? "FAILED" : "OK");
    PRINT("# %-20s : %g \n", "Avg bus bandwidth", busbw_sum / timings);
    PRINT("#\n# Collective test concluded: %s\n", program_invocation_short_name);
    MPI_Comm_free(&group);
    // The first rank that ends with an error ends the others too.
    fflush(stdout);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    free(hashes), free(in), free(out);
    return errors != 0;
}
