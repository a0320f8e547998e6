# The parts of program.c with mpi4py, in parts named by the arguments:
#
#   all BYTES     communicators, collectives, one-sided communication; alltoall of BYTES to each rank
#   abort CODE [PIPE]  rank 1 calls MPI_Abort, after it has read a line from PIPE; the others wait for it in
#                 a barrier
#   leave         rank 1 exits with 0 in place of MPI_Finalize, the others go on to it
#   wait          all ranks wait in a barrier that rank 0 never enters
#   programs      prints the number of each rank's program, and tries to spawn another
import array
import os
import signal
import sys

from mpi4py import MPI

WORLD = MPI.COMM_WORLD
rank, size = WORLD.Get_rank(), WORLD.Get_size()


def check(holds, what):
    if not holds:
        print(f"rank {rank}: wrong: {what}", flush=True)
        WORLD.Abort(99)


def communicators():
    parity = WORLD.Split(rank % 2, rank)
    check(parity.Get_size() == (size + 1 - rank % 2) // 2, "size after MPI_Comm_split")
    parity.Free()
    # Ranks of one node, and no others, share memory. The host is in a variable of the launcher's.
    node = WORLD.Split_type(MPI.COMM_TYPE_SHARED, rank)
    members = node.Get_size()
    check(members == int(os.environ["LOCAL_WORLD_SIZE"]), "size after MPI_Comm_split_type")
    host = os.environ["RLAUNCH_HOST"]
    check(node.bcast(host, 0) == host, "host after MPI_Comm_split_type")
    check(node.allreduce(members, MPI.MAX) == members, "ranks of a node")
    return node


def collectives(count):
    check(WORLD.allreduce(rank + 1) == size * (size + 1) // 2, "sum of MPI_Allreduce")
    out = bytearray().join(bytes([(rank * 16 + to) % 256]) * count for to in range(size))
    into = bytearray(count * size)
    WORLD.Alltoall([out, count, MPI.BYTE], [into, count, MPI.BYTE])
    wanted = bytearray().join(bytes([(of * 16 + rank) % 256]) * count for of in range(size))
    check(into == wanted, "MPI_Alltoall")


def window(comm, memory):
    """Returns None if the library has no one-sided communication among the ranks of `comm`."""
    try:
        made = MPI.Win.Create(memory, memory.itemsize, comm=comm)
    except MPI.Exception:
        made = None
    all_made = comm.allreduce(int(made is not None), MPI.MIN)
    if made is not None and not all_made:
        made.Free()
    return made if all_made else None


def one_sided(node):
    for comm, ranks in (WORLD, "all ranks"), (node, "ranks of a node"):
        memory, value = array.array("i", [-1]), array.array("i", [comm.Get_rank() + 100])
        made = window(comm, memory)
        if made is None:
            continue
        mine, count = comm.Get_rank(), comm.Get_size()
        made.Fence()
        made.Put([value, MPI.INT], (mine + 1) % count)
        made.Fence()
        check(memory[0] == (mine + count - 1) % count + 100, "MPI_Put")
        made.Free()
        return ranks
    return "no ranks"


def spawn():
    try:
        MPI.COMM_SELF.Spawn("true", maxprocs=1)
        return "spawned another"
    except MPI.Exception:
        return "spawned none"


part = sys.argv[1] if len(sys.argv) > 1 else "all"
number = int(sys.argv[2]) if len(sys.argv) > 2 else 1024
check((rank, size) == (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])), "rank")
WORLD.Barrier()
if part == "all":
    node = communicators()
    collectives(number)
    reached = one_sided(node)
    WORLD.Barrier()
    if rank == 0:
        print(f"right on {size} ranks, one-sided among {reached}")
elif part == "abort":
    if rank == 1:
        if len(sys.argv) > 3:
            with open(sys.argv[3]) as pipe:
                pipe.readline()
        WORLD.Abort(number)
    WORLD.Barrier()
elif part == "leave":
    if rank == 1:
        os._exit(0)
elif part == "wait":
    print(f"rank {rank} waits in process {os.getpid()}", flush=True)
    if rank == 0:
        signal.pause()
    WORLD.Barrier()
elif part == "programs":
    spawned = spawn()
    WORLD.Barrier()
    print(f"rank {rank} of program {WORLD.Get_attr(MPI.APPNUM)} {spawned}")
sys.stdout.flush()
