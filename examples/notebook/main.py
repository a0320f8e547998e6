import numpy
import rlaunch

comm = rlaunch.init()  # all ranks of the job; alone without rlaunch

# Every rank has its own points, near y = 3 x - 2.
random = numpy.random.default_rng(comm.rank)
x = random.uniform(-1, 1, 100_000)
y = 3 * x - 2 + random.normal(0, 0.1, x.size)

# The line through all of them: sums over all ranks, in the array's own memory.
sums = numpy.array([x.size, x.sum(), y.sum(), (x * x).sum(), (x * y).sum()])
comm.all_reduce(sums)
n, sx, sy, sxx, sxy = sums
slope = (n * sxy - sx * sy) / (n * sxx - sx * sx)
offset = (sy - slope * sx) / n
if comm.rank == 0:
    print(f"{n:.0f} points on {comm.size} ranks: y = {slope:.4f} x {offset:+.4f}")

# How far each rank's points are from it.
errors = numpy.empty(comm.size)
comm.all_gather(numpy.array([abs(y - slope * x - offset).max()]), out=errors)
if comm.rank == 0:
    print("largest error by rank:", errors.round(3))

# Pass the points around a ring, and meanwhile find the median of our own.
right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
theirs = numpy.empty_like(x)
requests = [comm.irecv(theirs, left), comm.isend(x, right)]
own_median = numpy.median(x)
received = requests[0].wait()
requests[1].wait()
if comm.rank == 0:
    print(f"{received.length} numbers from rank {received.source}")

# The ranks of each host among themselves.
host = comm.split(color=(comm.rank - comm.local_rank))
most = numpy.array([own_median])
host.all_reduce(most, "max")
if host.rank == 0:
    print(f"{host.size} ranks on the host of rank {comm.rank}")

# An error says what to do instead.
if comm.rank == 0:
    try:
        comm.all_reduce([1.0, 2.0])
    except TypeError as error:
        print(error)
