/* Times PMIx of mpirun: fences, and all-gathers that consist of a put, a fence that collects data and a
 * get of every other rank's value, as Open MPI exchanges endpoints. */
#include "meet.h"
#include <pmix.h>

static pmix_proc_t self;
static int ranks;

static void fence(int collect, int round) {
    pmix_info_t info;
    bool yes = true;
    (void)round;
    PMIX_INFO_CONSTRUCT(&info);
    PMIX_INFO_LOAD(&info, PMIX_COLLECT_DATA, &yes, PMIX_BOOL);
    check(PMIx_Fence(NULL, 0, collect ? &info : NULL, collect ? 1 : 0) == PMIX_SUCCESS, "fence");
}

static void all_gather(int bytes, int round) {
    char key[64], blob[LARGEST];
    pmix_value_t value, *got;
    snprintf(key, sizeof key, "%d-%d", bytes, round);
    memset(blob, self.rank % 251, bytes);
    value.type = PMIX_BYTE_OBJECT;
    value.data.bo.bytes = blob;
    value.data.bo.size = bytes;
    check(PMIx_Put(PMIX_GLOBAL, key, &value) == PMIX_SUCCESS, "put");
    check(PMIx_Commit() == PMIX_SUCCESS, "commit");
    fence(1, round);
    for (int other = 0; other < ranks; other++) {
        pmix_proc_t peer = self;
        peer.rank = other;
        check(PMIx_Get(&peer, key, NULL, 0, &got) == PMIX_SUCCESS, "get");
        check((unsigned char)got->data.bo.bytes[0] == other % 251, "get what was put");
        PMIX_VALUE_RELEASE(got);
    }
}

int main(int count, char **words) {
    int rounds = count > 1 ? atoi(words[1]) : 20;
    pmix_value_t *size;
    check(PMIx_Init(&self, NULL, 0) == PMIX_SUCCESS, "connect to the PMIx server");
    pmix_proc_t job = self;
    job.rank = PMIX_RANK_WILDCARD;
    check(PMIx_Get(&job, PMIX_JOB_SIZE, NULL, 0, &size) == PMIX_SUCCESS, "get the size");
    ranks = size->data.uint32;
    fence(0, 0);
    measure(self.rank, "barrier", rounds, fence, 0);
    for (int i = 0; i < 2; i++) {
        char what[32];
        snprintf(what, sizeof what, "gather-%d", BLOBS[i]);
        measure(self.rank, what, rounds, all_gather, BLOBS[i]);
    }
    return PMIx_Finalize(NULL, 0) != PMIX_SUCCESS;
}
