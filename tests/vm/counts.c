/* Counts what a program asks of its RDMA device, to be preloaded. At the end it writes a line to the
 * file that COUNTS names, and a second one:
 *
 *   posts N calls N doorbells N signalled N completions N copies N writes N
 *   registrations N
 *
 * posts: requests; calls: how often some were handed to libibverbs; doorbells: how often the provider
 * rang the device's, which with soft RoCE is a system call; signalled: requests that want a
 * completion; completions: what polls have found; copies: of messages, by requests that carry their
 * bytes themselves and by memcpy and memmove of 64 KiB or more after the first post; writes: requests
 * to write to the peer's memory; registrations: of memory, by programs that load libibverbs themselves.
 *
 * libibverbs' data path is pointers in the context, and in queue pairs of the newer interface. They
 * are exchanged when the device is opened. Programs that load libibverbs themselves are given ours
 * when they look for ibv_open_device.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <rdma/ib_user_verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LARGE 65536

static unsigned long posts, calls, doorbells, signalled, completions, copies, writes, registrations;
static int device = -1;

static struct ibv_context *(*open_device)(struct ibv_device *);
static struct ibv_mr *(*reg_mr)(struct ibv_pd *, void *, size_t, int);
static int (*post_send)(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **);
static int (*poll_cq)(struct ibv_cq *, int, struct ibv_wc *);
static struct ibv_qp *(*create_qp_ex)(struct ibv_context *, struct ibv_qp_init_attr_ex *);
static void (*rdma_write)(struct ibv_qp_ex *, uint32_t, uint64_t);
static void (*rdma_read)(struct ibv_qp_ex *, uint32_t, uint64_t);
static void (*send_message)(struct ibv_qp_ex *);
static void (*set_inline_data)(struct ibv_qp_ex *, void *, size_t);
static int (*complete)(struct ibv_qp_ex *);

#pragma weak ibv_qp_to_qp_ex

static int counted_post_send(struct ibv_qp *qp, struct ibv_send_wr *first, struct ibv_send_wr **bad)
{
	calls++;
	for (struct ibv_send_wr *wr = first; wr; wr = wr->next) {
		posts++;
		signalled += !!(wr->send_flags & IBV_SEND_SIGNALED);
		copies += !!(wr->send_flags & IBV_SEND_INLINE);
		writes += wr->opcode == IBV_WR_RDMA_WRITE;
	}
	return post_send(qp, first, bad);
}

static int counted_poll_cq(struct ibv_cq *cq, int most, struct ibv_wc *wc)
{
	int found = poll_cq(cq, most, wc);
	if (found > 0)
		completions += found;
	return found;
}

static void counted_rdma_write(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t address)
{
	posts++;
	writes++;
	signalled += !!(qp->wr_flags & IBV_SEND_SIGNALED);
	rdma_write(qp, rkey, address);
}

static void counted_rdma_read(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t address)
{
	posts++;
	signalled += !!(qp->wr_flags & IBV_SEND_SIGNALED);
	rdma_read(qp, rkey, address);
}

static void counted_send_message(struct ibv_qp_ex *qp)
{
	posts++;
	signalled += !!(qp->wr_flags & IBV_SEND_SIGNALED);
	send_message(qp);
}

static void counted_set_inline_data(struct ibv_qp_ex *qp, void *data, size_t length)
{
	copies++;
	set_inline_data(qp, data, length);
}

static int counted_complete(struct ibv_qp_ex *qp)
{
	calls++;
	return complete(qp);
}

static struct ibv_qp *counted_create_qp_ex(struct ibv_context *context,
					   struct ibv_qp_init_attr_ex *wanted)
{
	struct ibv_qp *made = create_qp_ex(context, wanted);
	if (!made || !(wanted->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS))
		return made;
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(made);
	rdma_write = qp->wr_rdma_write;
	qp->wr_rdma_write = counted_rdma_write;
	rdma_read = qp->wr_rdma_read;
	qp->wr_rdma_read = counted_rdma_read;
	send_message = qp->wr_send;
	qp->wr_send = counted_send_message;
	set_inline_data = qp->wr_set_inline_data;
	qp->wr_set_inline_data = counted_set_inline_data;
	complete = qp->wr_complete;
	qp->wr_complete = counted_complete;
	return made;
}

static struct ibv_context *counted_open_device(struct ibv_device *wanted)
{
	struct ibv_context *context = open_device(wanted);
	if (!context)
		return NULL;
	device = context->cmd_fd;
	post_send = context->ops.post_send;
	context->ops.post_send = counted_post_send;
	poll_cq = context->ops.poll_cq;
	context->ops.poll_cq = counted_poll_cq;
	struct verbs_context *extended = verbs_get_ctx_op(context, create_qp_ex);
	if (extended) {
		create_qp_ex = extended->create_qp_ex;
		extended->create_qp_ex = counted_create_qp_ex;
	}
	return context;
}

static struct ibv_mr *counted_reg_mr(struct ibv_pd *domain, void *first, size_t length, int access)
{
	registrations++;
	return reg_mr(domain, first, length, access);
}

/* The C library's, by any of the versions that it has had. */
static void *find(void *where, const char *name)
{
	static void *(*real)(void *, const char *);
	const char *versions[] = { "GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5" };
	for (int i = 0; !real && i < 3; i++)
		real = dlvsym(RTLD_NEXT, "dlsym", versions[i]);
	return real ? real(where, name) : NULL;
}

void *dlsym(void *restrict where, const char *restrict name)
{
	void *found = find(where, name);
	if (found && !strcmp(name, "ibv_reg_mr")) {
		reg_mr = found;
		return counted_reg_mr;
	}
	if (!found || strcmp(name, "ibv_open_device"))
		return found;
	open_device = found;
	return counted_open_device;
}

struct ibv_context *ibv_open_device(struct ibv_device *wanted)
{
	open_device = find(RTLD_NEXT, "ibv_open_device");
	return counted_open_device(wanted);
}

ssize_t write(int fd, const void *bytes, size_t length)
{
	const struct ib_uverbs_cmd_hdr *command = bytes;
	if (fd == device && length >= sizeof *command &&
	    command->command == IB_USER_VERBS_CMD_POST_SEND)
		doorbells++;
	return syscall(SYS_write, fd, bytes, length);
}

void *memmove(void *to, const void *from, size_t length)
{
	volatile char *target = to;
	const char *source = from;
	copies += posts && length >= LARGE;
	if ((char *)to <= source)
		for (size_t i = 0; i < length; i++)
			target[i] = source[i];
	else
		for (size_t i = length; i > 0; i--)
			target[i - 1] = source[i - 1];
	return to;
}

void *memcpy(void *restrict to, const void *restrict from, size_t length)
{
	return memmove(to, from, length);
}

__attribute__((destructor)) static void report(void)
{
	const char *name = getenv("COUNTS");
	FILE *file = name ? fopen(name, "w") : NULL;
	if (!file)
		return;
	fprintf(file,
		"posts %lu calls %lu doorbells %lu signalled %lu completions %lu copies %lu writes %lu\n",
		posts, calls, doorbells, signalled, completions, copies, writes);
	fprintf(file, "registrations %lu\n", registrations);
	fclose(file);
}
