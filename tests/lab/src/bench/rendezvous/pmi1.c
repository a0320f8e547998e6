/* Times the PMI-1 wire protocol of mpiexec.hydra: barriers, and all-gathers that consist of a put, a
 * barrier and a get of every other rank's value, as MPI libraries exchange endpoints. */
#include "meet.h"
#include <unistd.h>

/* Maximum length of a value for Hydra, without the final zero; and of a line. */
enum { PIECE = 1000, LINE = 2048 };
static int fd, rank, ranks;
static char name[256];

/* Sends a line and reads the answer to it. */
static void ask(const char *line, char *answer) {
    size_t length = strlen(line), received = 0;
    check(write(fd, line, length) == (ssize_t)length, "write to PMI_FD");
    while (received == 0 || answer[received - 1] != '\n') {
        ssize_t more = read(fd, answer + received, LINE - 1 - received);
        check(more > 0, "read from PMI_FD");
        received += more;
    }
    answer[received] = 0;
}

static void barrier(int bytes, int round) {
    char answer[LINE];
    (void)bytes, (void)round;
    ask("cmd=barrier_in\n", answer);
    check(strncmp(answer, "cmd=barrier_out", 15) == 0, "meet in a barrier");
}

/* Values are text: each byte takes two digits. */
static void all_gather(int bytes, int round) {
    char line[LINE], answer[LINE];
    int digits = 2 * bytes;
    for (int piece = 0; piece * PIECE < digits; piece++) {
        int length = digits - piece * PIECE < PIECE ? digits - piece * PIECE : PIECE;
        int end = snprintf(line, LINE, "cmd=put kvsname=%s key=%d-%d-%d-%d value=", name, bytes,
                           round, rank, piece);
        memset(line + end, '0' + rank % 10, length);
        strcpy(line + end + length, "\n");
        ask(line, answer);
    }
    barrier(0, round);
    for (int other = 0; other < ranks; other++)
        for (int piece = 0; piece * PIECE < digits; piece++) {
            snprintf(line, LINE, "cmd=get kvsname=%s key=%d-%d-%d-%d\n", name, bytes, round, other,
                     piece);
            ask(line, answer);
            const char *value = strstr(answer, "value=");
            check(value && value[6] == '0' + other % 10, "get what another rank has put");
        }
}

int main(int count, char **words) {
    char answer[LINE];
    int rounds = count > 1 ? atoi(words[1]) : 20;
    fd = atoi(getenv("PMI_FD"));
    rank = atoi(getenv("PMI_RANK"));
    ranks = atoi(getenv("PMI_SIZE"));
    ask("cmd=init pmi_version=1 pmi_subversion=1\n", answer);
    ask("cmd=get_my_kvsname\n", answer);
    check(sscanf(answer, "cmd=my_kvsname kvsname=%255s", name) == 1, "read the name of the key-value store");
    barrier(0, 0);
    measure(rank, "barrier", rounds, barrier, 0);
    for (int i = 0; i < 2; i++) {
        char what[32];
        snprintf(what, sizeof what, "gather-%d", BLOBS[i]);
        measure(rank, what, rounds, all_gather, BLOBS[i]);
    }
    ask("cmd=finalize\n", answer);
    return 0;
}
