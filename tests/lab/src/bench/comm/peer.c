/* Measures messages and collectives of an MPI library, with the same operations, buffers and batches
 * as worker/comm/src/api/measure.rs.
 *
 * Arguments: SECONDS BATCHES KIND/BYTES/COUNT... For each row rank 0 prints KIND/BYTES, the seconds
 * of one operation (the median of the batches), and the number of operations in a batch: at least
 * COUNT, and enough that no batch takes less than SECONDS. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW = 8, MOST_BATCHES = 64, TAG = 1 };

struct row {
    char kind[16];
    size_t bytes;
    long count;
};

static int rank, size;
static char *out, *in;

static void fail(const char *what) {
    fprintf(stderr, "rank %d: %s\n", rank, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* Returns the partner: 0 with 1, 2 with 3; -1 for a last rank without one. */
static int partner(void) { return (rank ^ 1) < size ? rank ^ 1 : -1; }

static void ping_pong(size_t bytes, long count) {
    int other = partner();
    for (long i = 0; other >= 0 && i < count; i++) {
        if (rank < other) {
            MPI_Send(out, bytes, MPI_BYTE, other, TAG, MPI_COMM_WORLD);
            MPI_Recv(in, bytes, MPI_BYTE, other, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            MPI_Recv(in, bytes, MPI_BYTE, other, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(out, bytes, MPI_BYTE, other, TAG, MPI_COMM_WORLD);
        }
    }
}

/* Sends windows of messages, each answered by an empty message. */
static void stream(size_t bytes, long count) {
    int other = partner();
    MPI_Request requests[WINDOW];
    for (long i = 0; other >= 0 && i < count; i++) {
        for (int w = 0; w < WINDOW; w++) {
            if (rank < other)
                MPI_Isend(out + w * bytes, bytes, MPI_BYTE, other, TAG, MPI_COMM_WORLD, requests + w);
            else
                MPI_Irecv(in + w * bytes, bytes, MPI_BYTE, other, TAG, MPI_COMM_WORLD, requests + w);
        }
        MPI_Waitall(WINDOW, requests, MPI_STATUSES_IGNORE);
        if (rank < other)
            MPI_Recv(in, 0, MPI_BYTE, other, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        else
            MPI_Send(out, 0, MPI_BYTE, other, TAG, MPI_COMM_WORLD);
    }
}

static void act(const struct row *row, long count) {
    if (!strcmp(row->kind, "latency"))
        ping_pong(row->bytes, count);
    else if (!strcmp(row->kind, "bandwidth"))
        stream(row->bytes, count);
    else if (!strcmp(row->kind, "barrier"))
        for (long i = 0; i < count; i++) MPI_Barrier(MPI_COMM_WORLD);
    else if (!strcmp(row->kind, "allreduce"))
        for (long i = 0; i < count; i++)
            MPI_Allreduce(out, in, row->bytes / 4, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    else
        fail("no such kind of row");
}

/* Returns the number of operations of one iteration. */
static double acts(const struct row *row) {
    if (!strcmp(row->kind, "latency")) return 2;
    if (!strcmp(row->kind, "bandwidth")) return WINDOW;
    return 1;
}

static size_t buffer_bytes(const struct row *row) {
    return (strcmp(row->kind, "bandwidth") ? 1 : WINDOW) * row->bytes + 8;
}

static void fill(const struct row *row) {
    size_t bytes = buffer_bytes(row);
    memset(in, 0, bytes);
    if (!strcmp(row->kind, "allreduce"))
        for (size_t i = 0; i < row->bytes / 4; i++) ((float *)out)[i] = rank + i % 7;
    else
        for (size_t i = 0; i < bytes; i++) out[i] = i % 251;
}

static void check(const struct row *row) {
    int is_stream = !strcmp(row->kind, "bandwidth");
    size_t bytes = row->bytes * (is_stream ? WINDOW : 1);
    if (!strcmp(row->kind, "allreduce")) {
        for (size_t i = 0; i < row->bytes / 4; i++)
            if (((float *)in)[i] != size * (size - 1) / 2 + size * (i % 7)) fail("a wrong sum");
    } else if (partner() >= 0 && !(is_stream && rank < partner())) {
        for (size_t i = 0; i < bytes; i++)
            if (in[i] != (char)(i % 251)) fail("a wrong message");
    }
}

static double timed(const struct row *row, long count) {
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    act(row, count);
    return MPI_Wtime() - start;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Times the batches of a row, after one to warm up. A batch that is too short shows how many operations
 * are needed; all batches then start again with 1.6 times as many, so that slow batches are not
 * preferred. Rank 0's clock decides for all ranks. */
static void measure(const struct row *row, double seconds, int batches) {
    double times[MOST_BATCHES + 1];
    long count = row->count > 0 ? row->count : 1;
    for (int measured = 0; measured <= batches;) {
        double time = timed(row, count);
        long next = count;
        if (rank == 0 && time < seconds) {
            double factor = 1.6 * seconds / (time > 1e-9 ? time : 1e-9);
            next = count * (factor < 100 ? factor : 100) + 1;
        }
        MPI_Bcast(&next, 1, MPI_LONG, 0, MPI_COMM_WORLD);
        times[measured] = time;
        measured = next == count ? measured + 1 : 0;
        count = next;
    }
    check(row);
    if (rank == 0) {
        qsort(times + 1, batches, sizeof *times, ascending);
        double median = (times[1 + batches / 2] + times[1 + (batches - 1) / 2]) / 2;
        printf("%s/%zu %.4e %ld\n", row->kind, row->bytes, median / count / acts(row), count);
        fflush(stdout);
    }
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc < 4) fail("too few arguments");
    double seconds = atof(argv[1]);
    int batches = atoi(argv[2]);
    if (batches < 1 || batches > MOST_BATCHES) fail("BATCHES is out of range");
    for (int i = 3; i < argc; i++) {
        struct row row;
        if (sscanf(argv[i], "%15[a-z]/%zu/%ld", row.kind, &row.bytes, &row.count) != 3)
            fail("a row is KIND/BYTES/COUNT");
        if (size < 2) fail("at least two ranks are needed");
        out = calloc(buffer_bytes(&row), 1);
        in = calloc(buffer_bytes(&row), 1);
        if (!out || !in) fail("no memory");
        fill(&row);
        measure(&row, seconds, batches);
        free(out);
        free(in);
    }
    return MPI_Finalize();
}
