"""Every call, among several ranks.

    rlaunch -H localhost:4 -np 4 -x PYTHONPATH=DIR python3 ranks.py

Prints `N ranks: all as it should be` if all calls work.
"""

import array
import sys
import threading

import rlaunch

comm = rlaunch.init()
me, size = comm.rank, comm.size
EVERYONE = range(size)


def expect(value, expected, what):
    if value != expected:
        sys.exit(f"rank {me}: {what}: {value!r}, and should be {expected!r}")


def longs(*values):
    return array.array("q", values)


def rows(count, of):
    """Returns the parts that rank `of` has for all ranks, `count` numbers each."""
    return longs(*(1000 * of + 10 * to + i for to in EVERYONE for i in range(count)))


def part(row, rank, count):
    return row[rank * count : (rank + 1) * count]


def joined(parts):
    return sum(parts, longs())


def messages():
    right, left = (me + 1) % size, (me - 1) % size
    for count in (1, 200_000):
        out = longs(0) * count
        received = comm.sendrecv(longs(me) * count, right, out, left, tag=1)
        expect((received.source, received.length), (left, count), "sendrecv")
        expect(out, longs(left) * count, "sendrecv")
    if me == 0:
        seen = set()
        for _ in range(size - 1):
            out = longs(0)
            received = comm.recv(out, tag=2)
            expect(out[0], received.source, "recv from any")
            seen.add(received.source)
        expect(seen, set(range(1, size)), "recv from any")
    else:
        comm.send(longs(me), 0, tag=2)


def reductions():
    for count in (1, 100_000):
        for op, expected in (("sum", sum(EVERYONE)), ("max", size - 1), ("min", 0), ("prod", 0)):
            x = longs(me) * count
            comm.all_reduce(x, op)
            expect(x, longs(expected) * count, f"all_reduce {op}")
        out = longs(0) * count
        comm.all_reduce(longs(me) * count, out=out)
        expect(out, longs(sum(EVERYONE)) * count, "all_reduce to out")
        root = size - 1
        x = longs(me) * count
        comm.reduce(x, root=root)
        expect(x, longs(sum(EVERYONE) if me == root else me) * count, "reduce")
        out = longs(0) * count if me == root else None
        comm.reduce(bytes(longs(me) * count), root=root, out=bytearray(8 * count))
        comm.reduce(longs(me) * count, root=root, out=out)
        if me == root:
            expect(out, longs(sum(EVERYONE)) * count, "reduce to out")
        mine = longs(*(sum(rows(1, of)[me] for of in EVERYONE),)) * count
        x = joined([longs(n) * count for n in rows(1, me)])
        out = longs(0) * count
        comm.reduce_scatter(x, out=out)
        expect(out, mine, "reduce_scatter to out")
        comm.reduce_scatter(x)
        expect(x[:count], mine, "reduce_scatter")


def movements():
    for count in (1, 30_000):
        for root in {0, size - 1}:
            x = rows(count, me)
            comm.broadcast(x, root)
            expect(x, rows(count, root), "broadcast")

            own, all_ = part(rows(count, root), me, count), rows(count, root)
            out = longs(0) * count
            comm.scatter(all_ if me == root else None, root, out=out)
            expect(out, own, "scatter to out")
            x = rows(count, root) if me == root else longs(0) * count
            comm.scatter(x, root)
            expect(part(x, me, count) if me == root else x, own, "scatter")

            out = longs(0) * (count * size) if me == root else None
            comm.gather(own, root, out=out)
            expect(out, all_ if me == root else None, "gather to out")
            x = own
            if me == root:
                x = longs(0) * (count * size)
                x[root * count : (root + 1) * count] = own
            comm.gather(x, root)
            expect(x, all_ if me == root else own, "gather")

        own = part(rows(count, 7), me, count)
        out = longs(0) * (count * size)
        comm.all_gather(own, out=out)
        expect(out, rows(count, 7), "all_gather to out")
        x = longs(0) * (count * size)
        x[me * count : (me + 1) * count] = own
        comm.all_gather(x)
        expect(x, rows(count, 7), "all_gather")

        expected = joined([part(rows(count, of), me, count) for of in EVERYONE])
        out = longs(0) * (count * size)
        comm.all_to_all(rows(count, me), out=out)
        expect(out, expected, "all_to_all to out")
        x = rows(count, me)
        comm.all_to_all(x)
        expect(x, expected, "all_to_all")


def types_that_only_move():
    x = array.array("h", [me] * size * 3)
    comm.all_to_all(x)
    expect(x.tolist(), [of for of in EVERYONE for _ in range(3)], "all_to_all of int16")
    if size > 1:
        try:
            comm.all_to_all(array.array("h", [1] * (size + 1)))
        except ValueError as error:
            wrong = f"all_to_all: {size + 1} elements of int16 for {size} ranks"
            expect(str(error), wrong, "int16")
        else:
            sys.exit("elements were cut")


def requests():
    """Every rank starts messages to every other rank, and waits for them in any order."""
    inputs = [longs(me, to) * 50_000 for to in EVERYONE]
    outputs = [longs(0, 0) * 50_000 for _ in EVERYONE]
    receives = [comm.irecv(out, of, tag=3) for of, out in enumerate(outputs)]
    sends = [comm.isend(x, to, tag=3) for to, x in enumerate(inputs)]
    sums = [longs(me) * count for count in (1, 1000, 100_000)]
    reduces = [comm.iall_reduce(x) for x in sums]
    for request in reversed(reduces + sends):
        request.wait()
    while not all(request.test() for request in receives):
        pass
    expect([r.wait().source for r in receives], list(EVERYONE), "irecv")
    expect(outputs, [longs(of, me) * 50_000 for of in EVERYONE], "irecv")
    expect([set(x) for x in sums], [{sum(EVERYONE)}] * 3, "iall_reduce")


def parts():
    half = comm.split(me % 2, key=-me)
    members = sorted((rank for rank in EVERYONE if rank % 2 == me % 2), reverse=True)
    expect((half.rank, half.size), (members.index(me), len(members)), "split")
    x = longs(me)
    half.all_reduce(x)
    expect(x, longs(sum(members)), "all_reduce of a part")


def threads():
    """Two threads, each with a communicator of its own."""
    both = [comm.split(0), comm.split(0)]
    results = [longs(me) * 1000 for _ in both]

    def works(part, x):
        for _ in range(20):
            part.all_reduce(x, "max")

    running = [threading.Thread(target=works, args=pair) for pair in zip(both, results)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    expect(results, [longs(size - 1) * 1000] * 2, "two threads")


for test in (messages, reductions, movements, types_that_only_move, requests, parts, threads):
    test()
    comm.barrier()
if me == 0:
    print(f"{size} ranks: all as it should be")
