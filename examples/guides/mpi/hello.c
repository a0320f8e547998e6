// A small MPI program. Its argument names a part:
//
//   (none)      every rank prints where it runs, the sum of all ranks, and its MPI library
//   abort       rank 1 calls MPI_Abort with code 7
//   spawn       rank 0 asks MPI for one more process
//
// Any other argument is printed with the number of the rank's program.
#include <mpi.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv) {
    const char *part = argc > 1 ? argv[1] : "";
    int rank, size, sum, length;
    char host[MPI_MAX_PROCESSOR_NAME], library[MPI_MAX_LIBRARY_VERSION_STRING];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Get_processor_name(host, &length);
    MPI_Get_library_version(library, &length);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (!strcmp(part, "abort")) {
        if (rank == 1) MPI_Abort(MPI_COMM_WORLD, 7);
        MPI_Barrier(MPI_COMM_WORLD);
    } else if (!strcmp(part, "spawn")) {
        MPI_Comm child;
        MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
        if (rank == 0 && MPI_Comm_spawn("hostname", MPI_ARGV_NULL, 1, MPI_INFO_NULL, 0, MPI_COMM_SELF, &child,
                                        MPI_ERRCODES_IGNORE) != MPI_SUCCESS)
            printf("MPI_Comm_spawn has failed\n");
    } else if (*part) {
        int *program, found;
        MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_APPNUM, &program, &found);
        printf("rank %d of %d on %s: program %d, %s\n", rank, size, host, *program, part);
    } else {
        // The version ends at a comma or a line break.
        printf("rank %d of %d on %s, sum %d: %.*s\n", rank, size, host, sum, (int)strcspn(library, ",\n"), library);
    }
    MPI_Finalize();
    return 0;
}
