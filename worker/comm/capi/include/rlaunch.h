// rlaunch's communicator: messages and collectives between the ranks of a job.
//
//     rlaunch -H a,b,c ./program
//
// Every function says how it ended; rl_error() says it in words. Counts are elements. A buffer of
// no elements may be NULL; no other pointer may, but where it is said. Functions may be called by
// several threads at once; collectives must be called in the same order in every rank. `count` of a
// collective is the same in every rank. Buffers do not overlap.
//
// What rl_i... begins goes on until rl_wait or rl_test says that it is over. Until then nobody else
// writes to its input or touches its output. rl_wait, rl_test once it is over, and rl_cancel free a
// request; it belongs to one thread at a time.
//
// This file is written from the functions of worker/comm/capi and compared with them in a test.


#ifndef RLAUNCH_H
#define RLAUNCH_H

#include <stddef.h>
#include <stdint.h>

// As the input of a collective: the output has the input in it, and the result takes its place. A
// rank that gives or gets the parts of all has them all in the output, each in its place; any other
// has its own part there.
#define RL_IN_PLACE ((const void *)(intptr_t)-1)


// The ranks of a job, or some of them.
typedef struct rl_comm rl_comm;

// Memory that devices were told of.
typedef struct rl_registration rl_registration;

// Something that goes on.
typedef struct rl_request rl_request;

// How a call ended: RL_OK, or why it failed.
typedef int32_t rl_result;

// What elements are.
typedef int32_t rl_type;

// What a receive has got.
typedef struct {
  // The rank that sent it.
  size_t from;
  // How many elements it has.
  size_t length;
} rl_received;

// How elements are reduced to one. Integers wrap around.
typedef int32_t rl_op;

// It did what it says.
#define RL_OK 0

// An argument that makes no sense, as NULL where something is wanted.
#define RL_INVALID 1

// The communicator has no such rank.
#define RL_NO_SUCH_RANK 2

// Buffers that do not fit to each other, in this rank or among the ranks.
#define RL_LENGTH 3

// A message that is longer than the buffer.
#define RL_TRUNCATED 4

// A rank is dead, or the way to it is.
#define RL_LOST 16

// A rank has finalized its communicator.
#define RL_LEFT 17

// RLAUNCH_COMM_TIMEOUT has passed.
#define RL_TIMED_OUT 18

// The job is at its end.
#define RL_ABORTED 19

// The request was given up before it was done, here or by another rank.
#define RL_GIVEN_UP 20

// This process could not join the others.
#define RL_START 32

// A mistake in rlaunch itself.
#define RL_INTERNAL 64

// IEEE 754 half precision.
#define RL_F16 0

// The upper half of RL_F32.
#define RL_BF16 1

// float
#define RL_F32 2

// double
#define RL_F64 3

// int32_t
#define RL_I32 4

// int64_t
#define RL_I64 5

// uint8_t, and plain bytes.
#define RL_U8 6

// uint64_t
#define RL_U64 7

// a + b
#define RL_SUM 0

// a * b
#define RL_PROD 1

// The lesser; not a number if either is none.
#define RL_MIN 2

// The greater; not a number if either is none.
#define RL_MAX 3

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// What went wrong in this thread's latest call that failed, in a sentence, and in a second line
// what to do about it, if that is known; "" if none has failed. It stays until the thread's next
// call that fails.
const char *rl_error(void);

// The name of a result, as "RL_OK"; "RL_UNKNOWN" if there is none.
const char *rl_result_name(rl_result result);

// Makes a communicator of all ranks of the job, or of this process alone if nobody launched it.
// Waits until all ranks have called it.
rl_result rl_init(rl_comm **comm);

// Gives the communicator up, and with it what was begun and is not over. Its requests, which rl_wait
// still takes, end with RL_GIVEN_UP. No other thread may use the communicator meanwhile.
rl_result rl_finalize(rl_comm *comm);

// Ends the job: rlaunch says `why`, in UTF-8, and ends all ranks, this one included. The end takes
// a moment, so it returns: RL_ABORTED.
rl_result rl_abort(const rl_comm *comm, const char *why);

// Makes a communicator of those ranks that give the same colour, ordered by key and then by their
// rank here. Every rank has to call it. It is finalized like the first.
rl_result rl_split(const rl_comm *comm, uint32_t colour, int64_t key, rl_comm **part);

// This process's number, from 0.
rl_result rl_rank(const rl_comm *comm, size_t *rank);

// How many ranks there are.
rl_result rl_size(const rl_comm *comm, size_t *size);

// This process's number among the ranks of its node.
rl_result rl_local_rank(const rl_comm *comm, size_t *rank);

// How many ranks its node has.
rl_result rl_local_size(const rl_comm *comm, size_t *size);

// Sends to a rank; returns when the data may be used again. Messages between two ranks with one tag
// arrive in the order in which they were sent. A long message waits until it is received.
rl_result rl_send(const rl_comm *comm,
                  const void *data,
                  size_t count,
                  rl_type type_of,
                  size_t to,
                  uint32_t tag);

// Receives a message of a rank, which may be shorter than there is room for. `received` may be NULL.
rl_result rl_recv(const rl_comm *comm,
                  void *data,
                  size_t count,
                  rl_type type_of,
                  size_t from,
                  uint32_t tag,
                  rl_received *received);

// Receives a message of whichever rank sends one with this tag first. `received` may be NULL.
rl_result rl_recv_any(const rl_comm *comm,
                      void *data,
                      size_t count,
                      rl_type type_of,
                      uint32_t tag,
                      rl_received *received);

// Sends one message and receives another at the same time, so that two ranks may do it with each
// other. `received` may be NULL.
rl_result rl_sendrecv(const rl_comm *comm,
                      const void *data,
                      size_t count,
                      size_t to,
                      uint32_t tag,
                      void *into,
                      size_t room,
                      size_t from,
                      uint32_t from_tag,
                      rl_type type_of,
                      rl_received *received);

// Begins rl_send.
rl_result rl_isend(const rl_comm *comm,
                   const void *data,
                   size_t count,
                   rl_type type_of,
                   size_t to,
                   uint32_t tag,
                   rl_request **request);

// Begins rl_recv.
rl_result rl_irecv(const rl_comm *comm,
                   void *data,
                   size_t count,
                   rl_type type_of,
                   size_t from,
                   uint32_t tag,
                   rl_request **request);

// Begins rl_recv_any.
rl_result rl_irecv_any(const rl_comm *comm,
                       void *data,
                       size_t count,
                       rl_type type_of,
                       uint32_t tag,
                       rl_request **request);

// Returns when every rank has called it.
rl_result rl_barrier(const rl_comm *comm);

// Gives every rank what `root` has in `data`, `count` elements.
rl_result rl_broadcast(const rl_comm *comm, void *data, size_t count, rl_type type_of, size_t root);

// Reduces `count` elements of each rank to `output` of `root`; the others' may be NULL.
rl_result rl_reduce(const rl_comm *comm,
                    const void *input,
                    void *output,
                    size_t count,
                    rl_type type_of,
                    rl_op op,
                    size_t root);

// Reduces `count` elements of each rank, for all. The results are equal to the bit.
rl_result rl_all_reduce(const rl_comm *comm,
                        const void *input,
                        void *output,
                        size_t count,
                        rl_type type_of,
                        rl_op op);

// Puts `count` elements of each rank, by rank, to `output` of `root`; the others' may be NULL.
rl_result rl_gather(const rl_comm *comm,
                    const void *input,
                    void *output,
                    size_t count,
                    rl_type type_of,
                    size_t root);

// Gives each rank its `count` elements of what `root` has, by rank; the others' `input` may be
// NULL.
rl_result rl_scatter(const rl_comm *comm,
                     const void *input,
                     void *output,
                     size_t count,
                     rl_type type_of,
                     size_t root);

// Puts `count` elements of each rank, by rank, to everyone's `output`.
rl_result rl_all_gather(const rl_comm *comm,
                        const void *input,
                        void *output,
                        size_t count,
                        rl_type type_of);

// Reduces `count` elements for each rank from each rank, and gives each its part, by rank. In
// place, the part is at the front of `output` afterwards, and anything behind it.
rl_result rl_reduce_scatter(const rl_comm *comm,
                            const void *input,
                            void *output,
                            size_t count,
                            rl_type type_of,
                            rl_op op);

// Sends `count` elements of `input` to each rank and gets as many from each, by rank.
rl_result rl_all_to_all(const rl_comm *comm,
                        const void *input,
                        void *output,
                        size_t count,
                        rl_type type_of);

// Begins rl_barrier.
rl_result rl_ibarrier(const rl_comm *comm, rl_request **request);

// Begins rl_broadcast.
rl_result rl_ibroadcast(const rl_comm *comm,
                        void *data,
                        size_t count,
                        rl_type type_of,
                        size_t root,
                        rl_request **request);

// Begins rl_reduce.
rl_result rl_ireduce(const rl_comm *comm,
                     const void *input,
                     void *output,
                     size_t count,
                     rl_type type_of,
                     rl_op op,
                     size_t root,
                     rl_request **request);

// Begins rl_all_reduce.
rl_result rl_iall_reduce(const rl_comm *comm,
                         const void *input,
                         void *output,
                         size_t count,
                         rl_type type_of,
                         rl_op op,
                         rl_request **request);

// Begins rl_gather.
rl_result rl_igather(const rl_comm *comm,
                     const void *input,
                     void *output,
                     size_t count,
                     rl_type type_of,
                     size_t root,
                     rl_request **request);

// Begins rl_scatter.
rl_result rl_iscatter(const rl_comm *comm,
                      const void *input,
                      void *output,
                      size_t count,
                      rl_type type_of,
                      size_t root,
                      rl_request **request);

// Begins rl_all_gather.
rl_result rl_iall_gather(const rl_comm *comm,
                         const void *input,
                         void *output,
                         size_t count,
                         rl_type type_of,
                         rl_request **request);

// Begins rl_reduce_scatter.
rl_result rl_ireduce_scatter(const rl_comm *comm,
                             const void *input,
                             void *output,
                             size_t count,
                             rl_type type_of,
                             rl_op op,
                             rl_request **request);

// Begins rl_all_to_all.
rl_result rl_iall_to_all(const rl_comm *comm,
                         const void *input,
                         void *output,
                         size_t count,
                         rl_type type_of,
                         rl_request **request);

// Waits until the request is over, and sets it to NULL, however it ends. `received` may be NULL;
// it says what a receive has got, and of anything else nothing that means anything.
rl_result rl_wait(rl_request **request, rl_received *received);

// Goes on with everything, and says whether the request is over; `done` is 1 then and the request
// NULL, however it ended. `received` may be NULL, and is written to when it is over.
rl_result rl_test(rl_request **request, int *done, rl_received *received);

// Gives the request up and sets it to NULL: its memory is not touched any more. A message to be sent
// arrives whole or not at all, one to be received waits for the next receive, and the communicator of
// a collective is of no more use for collectives, at any of its ranks.
rl_result rl_cancel(rl_request **request);

// Tells all RDMA devices of memory that will be sent from and received into again and again, so that
// they need not be told for each long message. The memory may be read and written, and is not freed
// or mapped anew before rl_unregister. It is as fast as before where there is no RDMA.
//
// On Linux before 5.12, forked processes do not have the pages that the memory lies on, not even
// parts of them that are not registered: there it should begin and end at pages.
rl_result rl_register(const rl_comm *comm,
                      void *data,
                      size_t bytes,
                      rl_registration **registration);

// Has devices forget the memory, which may be freed then, and sets the registration to NULL. Fails with
// RL_INVALID, and changes nothing, while something that was begun sends from or receives into it.
rl_result rl_unregister(rl_registration **registration);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* RLAUNCH_H */
