// rlaunch's communicator: messages and collectives between the ranks of a job.
//
//     rlaunch -H a,b,c ./program
//
// Results: every function but rl_error and rl_result_name returns RL_OK or the kind of error, and
// rl_error() returns its text.
//
// Buffers: counts are numbers of elements, not bytes. Input and output buffers must not overlap
// (but see RL_IN_PLACE). A buffer of 0 elements may be NULL. Other pointers must not be NULL unless
// stated.
//
// Collectives (rl_barrier to rl_all_to_all, their rl_i... forms, rl_split): all ranks of the
// communicator have to call them, in the same order, with the same count, type, operation and root.
// `size` below is the number of ranks.
//
// Nonblocking operations: the functions rl_i... start an operation and return a request. Until the
// request completes, its input buffer must not be modified and its output buffer must not be
// accessed. A request is freed by rl_wait, by rl_test when it has completed, or by rl_cancel.
// Operations make progress only during calls into the library.
//
// Threads: all functions may be called from several threads at the same time, but a request may be
// used by only one thread at a time. A forked child cannot use its parent's communicators
// (RL_START).
//
// This file is generated from worker/comm/capi.


#ifndef RLAUNCH_H
#define RLAUNCH_H

#include <stddef.h>
#include <stdint.h>

// In-place operation, like MPI_IN_PLACE: passed as the input of a collective, it means that
// `output` holds the input and is overwritten by the result. `output` then has
//
// - size * count elements at every rank for rl_all_gather (with the rank's own part at its place),
//   rl_reduce_scatter and rl_all_to_all, and at the root for rl_gather (with the root's own part at
//   its place) and rl_scatter (which leaves the root's part where it is);
// - count elements otherwise: the rank's own input for rl_reduce, rl_all_reduce and rl_gather, or
//   the part that rl_scatter delivers.
#define RL_IN_PLACE ((const void *)(intptr_t)-1)


// A communicator: a group of ranks that exchange messages. Messages of different communicators
// never match.
typedef struct rl_comm rl_comm;

// Memory that is registered with the RDMA devices of a communicator.
typedef struct rl_registration rl_registration;

// A nonblocking operation in progress. Freed by rl_wait, rl_cancel, or rl_test when it has
// completed.
typedef struct rl_request rl_request;

// Result of a call: RL_OK, or the kind of error. rl_error() returns the text of the error.
typedef int32_t rl_result;

// Type of elements.
typedef int32_t rl_type;

// Source and length of a received message.
typedef struct {
  // Rank that sent the message.
  size_t from;
  // Length of the message, in elements of the receive's type.
  size_t length;
} rl_received;

// Reduction operation. Integers wrap around on overflow.
typedef int32_t rl_op;

// Success.
#define RL_OK 0

// An argument is invalid: NULL, an unknown type or operation, overlapping buffers, a request that
// has completed already.
#define RL_INVALID 1

// A rank is not less than the size of the communicator.
#define RL_NO_SUCH_RANK 2

// Counts differ between the ranks of a collective, or a message is not a whole number of elements.
#define RL_LENGTH 3

// A message is longer than the receive buffer.
#define RL_TRUNCATED 4

// A rank has died, or the connection to it has failed.
#define RL_LOST 16

// A rank has finalized its communicator, so it will not answer.
#define RL_LEFT 17

// The call has waited for RLAUNCH_COMM_TIMEOUT seconds.
#define RL_TIMED_OUT 18

// The job is ending.
#define RL_ABORTED 19

// The operation was cancelled before it completed: by this process, by the rank that sent the
// message, or because another rank has cancelled a collective of the communicator.
#define RL_GIVEN_UP 20

// This process could not join the job, or was forked from a process that has.
#define RL_START 32

// A bug in rlaunch.
#define RL_INTERNAL 64

// IEEE 754 half precision, 2 bytes.
#define RL_F16 0

// bfloat16, 2 bytes: the upper half of an RL_F32.
#define RL_BF16 1

// float, 4 bytes.
#define RL_F32 2

// double, 8 bytes.
#define RL_F64 3

// int32_t
#define RL_I32 4

// int64_t
#define RL_I64 5

// uint8_t; also for plain bytes.
#define RL_U8 6

// uint64_t
#define RL_U64 7

// Sum.
#define RL_SUM 0

// Product.
#define RL_PROD 1

// Minimum; NaN if any operand is NaN.
#define RL_MIN 2

// Maximum; NaN if any operand is NaN.
#define RL_MAX 3

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Returns the error text of the calling thread's latest failed call, in UTF-8: one line, followed
// by a line "hint: ..." if there is a usual remedy; "" if no call has failed in this thread. The
// text is valid until the next call of this thread that fails, and must not be freed.
const char *rl_error(void);

// Returns the name of a result, like "RL_OK"; "RL_UNKNOWN" for other numbers. The string is
// static.
const char *rl_result_name(rl_result result);

// Creates the communicator of all ranks of the job, and waits until all ranks have called it. In a
// process that rlaunch has not started, the communicator has one rank. On failure *comm is NULL.
rl_result rl_init(rl_comm **comm);

// Frees a communicator and cancels its requests in progress: rl_wait, rl_test and rl_cancel still
// accept their handles, and rl_wait and rl_test return RL_GIVEN_UP for them. No other thread may
// use the communicator during or after the call.
rl_result rl_finalize(rl_comm *comm);

// Ends the job: rlaunch prints `why` (UTF-8) as the cause, and terminates all ranks, this one
// included. The call returns RL_ABORTED, because the termination takes a moment.
rl_result rl_abort(const rl_comm *comm, const char *why);

// Creates a communicator of the ranks that pass the same `colour`, like MPI_Comm_split. Its ranks
// are ordered by `key`, and among equal keys by their rank in `comm`. Collective over `comm`. The
// new communicator has to be freed by rl_finalize; on failure *part is NULL.
rl_result rl_split(const rl_comm *comm, uint32_t colour, int64_t key, rl_comm **part);

// Stores the rank of this process, from 0 to size - 1.
rl_result rl_rank(const rl_comm *comm, size_t *rank);

// Stores the number of ranks.
rl_result rl_size(const rl_comm *comm, size_t *size);

// Stores the rank of this process among the communicator's ranks on its node, from 0.
rl_result rl_local_rank(const rl_comm *comm, size_t *rank);

// Stores the number of the communicator's ranks on the node of this process.
rl_result rl_local_size(const rl_comm *comm, size_t *size);

// Registers `bytes` bytes at `data` with all RDMA devices of `comm`. This speeds up long messages
// from and to any part of the memory, which otherwise register it for each message. It has no
// effect without RDMA. The memory must be readable and writable, and must not be freed or remapped
// before rl_unregister. On failure *registration is NULL.
//
// On Linux before 5.12, the whole pages that contain the memory are missing in forked children, so
// the memory should begin and end at page boundaries.
rl_result rl_register(const rl_comm *comm,
                      void *data,
                      size_t bytes,
                      rl_registration **registration);

// Deregisters the memory, which may be freed afterwards, frees the registration, and sets
// *registration to NULL. Fails with RL_INVALID, without any effect, while a request in progress
// uses the memory.
rl_result rl_unregister(rl_registration **registration);

// Sends `count` elements to rank `to`, like MPI_Send; returns when `data` may be reused. The tag
// may be any number. Messages with the same tag from one rank to another are received in the order
// in which they were sent. Short messages are buffered; a long one blocks until the receiver has
// posted a matching receive.
rl_result rl_send(const rl_comm *comm,
                  const void *data,
                  size_t count,
                  rl_type datatype,
                  size_t to,
                  uint32_t tag);

// Receives a message with this tag from rank `from`, of up to `count` elements, like MPI_Recv.
// Fails with RL_TRUNCATED if the message is longer. `received` may be NULL.
rl_result rl_recv(const rl_comm *comm,
                  void *data,
                  size_t count,
                  rl_type datatype,
                  size_t from,
                  uint32_t tag,
                  rl_received *received);

// Receives a message with this tag from any rank, of up to `count` elements. `received` may be
// NULL.
rl_result rl_recv_any(const rl_comm *comm,
                      void *data,
                      size_t count,
                      rl_type datatype,
                      uint32_t tag,
                      rl_received *received);

// Sends one message and receives another at the same time, like MPI_Sendrecv, so that ranks can
// exchange messages without deadlock: sends `count` elements of `data` to rank `to` with `tag`,
// and receives up to `room` elements into `into` from rank `from` with `from_tag`. Both have the
// same element type. `received` may be NULL.
rl_result rl_sendrecv(const rl_comm *comm,
                      const void *data,
                      size_t count,
                      size_t to,
                      uint32_t tag,
                      void *into,
                      size_t room,
                      size_t from,
                      uint32_t from_tag,
                      rl_type datatype,
                      rl_received *received);

// Starts rl_send. `data` must not be modified before the request completes.
rl_result rl_isend(const rl_comm *comm,
                   const void *data,
                   size_t count,
                   rl_type datatype,
                   size_t to,
                   uint32_t tag,
                   rl_request **request);

// Starts rl_recv. `data` must not be accessed before the request completes.
rl_result rl_irecv(const rl_comm *comm,
                   void *data,
                   size_t count,
                   rl_type datatype,
                   size_t from,
                   uint32_t tag,
                   rl_request **request);

// Starts rl_recv_any. `data` must not be accessed before the request completes.
rl_result rl_irecv_any(const rl_comm *comm,
                       void *data,
                       size_t count,
                       rl_type datatype,
                       uint32_t tag,
                       rl_request **request);

// Waits until the request completes, like MPI_Wait. Frees the request and sets *request to NULL,
// whether or not it succeeds. `received` may be NULL; it is meaningful only for receives.
rl_result rl_wait(rl_request **request, rl_received *received);

// Tests whether the request has completed, without waiting, like MPI_Test. If it has, *done is 1,
// the request is freed and *request is NULL, whether or not it succeeded; else *done is 0. The
// call also makes progress on all other operations of this process. `received` may be NULL; it is
// meaningful only for receives that have completed.
rl_result rl_test(rl_request **request, int *done, rl_received *received);

// Cancels the request, frees it and sets *request to NULL; its buffers are not accessed any more.
// A message that was being sent arrives whole or not at all. A message that was being received
// goes to the next matching receive. After a collective is cancelled, no rank can use its
// communicator for collectives any more.
rl_result rl_cancel(rl_request **request);

// Returns once every rank has called it.
rl_result rl_barrier(const rl_comm *comm);

// Copies `count` elements of `data` from rank `root` to `data` of all ranks.
rl_result rl_broadcast(const rl_comm *comm,
                       void *data,
                       size_t count,
                       rl_type datatype,
                       size_t root);

// Reduces `count` elements of `input` of all ranks, element by element, into `output` of rank
// `root`. `output` of the other ranks may be NULL.
rl_result rl_reduce(const rl_comm *comm,
                    const void *input,
                    void *output,
                    size_t count,
                    rl_type datatype,
                    rl_op op,
                    size_t root);

// Reduces `count` elements of `input` of all ranks, element by element, into `output` of every
// rank. All ranks get bitwise equal results.
rl_result rl_all_reduce(const rl_comm *comm,
                        const void *input,
                        void *output,
                        size_t count,
                        rl_type datatype,
                        rl_op op);

// Concatenates the `count` elements of `input` of all ranks, in rank order, into the size * count
// elements of `output` of rank `root`. `output` of the other ranks may be NULL.
rl_result rl_gather(const rl_comm *comm,
                    const void *input,
                    void *output,
                    size_t count,
                    rl_type datatype,
                    size_t root);

// Splits the size * count elements of `input` of rank `root` into parts of `count`, in rank order,
// and copies each rank's part to its `output`. `input` of the other ranks may be NULL.
rl_result rl_scatter(const rl_comm *comm,
                     const void *input,
                     void *output,
                     size_t count,
                     rl_type datatype,
                     size_t root);

// Concatenates the `count` elements of `input` of all ranks, in rank order, into the size * count
// elements of `output` of every rank.
rl_result rl_all_gather(const rl_comm *comm,
                        const void *input,
                        void *output,
                        size_t count,
                        rl_type datatype);

// Reduces the size * count elements of `input` of all ranks, element by element, and gives each
// rank its part of `count`, in rank order, in `output`. In place, `output` has size * count
// elements; its first `count` are the result, and the rest is undefined.
rl_result rl_reduce_scatter(const rl_comm *comm,
                            const void *input,
                            void *output,
                            size_t count,
                            rl_type datatype,
                            rl_op op);

// Sends `count` elements of `input` to each rank and receives as many from each: part j of `input`
// of rank i becomes part i of `output` of rank j. `input` and `output` have size * count elements.
rl_result rl_all_to_all(const rl_comm *comm,
                        const void *input,
                        void *output,
                        size_t count,
                        rl_type datatype);

// Starts rl_barrier.
rl_result rl_ibarrier(const rl_comm *comm, rl_request **request);

// Starts rl_broadcast.
rl_result rl_ibroadcast(const rl_comm *comm,
                        void *data,
                        size_t count,
                        rl_type datatype,
                        size_t root,
                        rl_request **request);

// Starts rl_reduce.
rl_result rl_ireduce(const rl_comm *comm,
                     const void *input,
                     void *output,
                     size_t count,
                     rl_type datatype,
                     rl_op op,
                     size_t root,
                     rl_request **request);

// Starts rl_all_reduce.
rl_result rl_iall_reduce(const rl_comm *comm,
                         const void *input,
                         void *output,
                         size_t count,
                         rl_type datatype,
                         rl_op op,
                         rl_request **request);

// Starts rl_gather.
rl_result rl_igather(const rl_comm *comm,
                     const void *input,
                     void *output,
                     size_t count,
                     rl_type datatype,
                     size_t root,
                     rl_request **request);

// Starts rl_scatter.
rl_result rl_iscatter(const rl_comm *comm,
                      const void *input,
                      void *output,
                      size_t count,
                      rl_type datatype,
                      size_t root,
                      rl_request **request);

// Starts rl_all_gather.
rl_result rl_iall_gather(const rl_comm *comm,
                         const void *input,
                         void *output,
                         size_t count,
                         rl_type datatype,
                         rl_request **request);

// Starts rl_reduce_scatter.
rl_result rl_ireduce_scatter(const rl_comm *comm,
                             const void *input,
                             void *output,
                             size_t count,
                             rl_type datatype,
                             rl_op op,
                             rl_request **request);

// Starts rl_all_to_all.
rl_result rl_iall_to_all(const rl_comm *comm,
                         const void *input,
                         void *output,
                         size_t count,
                         rl_type datatype,
                         rl_request **request);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* RLAUNCH_H */
