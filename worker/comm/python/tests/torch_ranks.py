"""Every collective of the backend, among three or more ranks, in a script that imports only torch."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("rlaunch")
me, ranks = dist.get_rank(), dist.get_world_size()
assert dist.get_backend() == "rlaunch" and ranks > 2
last, total = ranks - 1, sum(range(ranks))


def mine(count=2):
    return torch.full((count,), float(me))


def empty(count=2):
    return [torch.empty(count) for _ in range(ranks)]


def firsts(tensors):
    return [int(tensor[0]) for tensor in tensors]


def refuses(kind, words, call, *arguments, **named):
    try:
        call(*arguments, **named)
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"{call.__name__} is not refused")


def reductions():
    x = torch.arange(6.0).reshape(2, 3) + me
    address = x.data_ptr()
    dist.all_reduce(x)
    assert torch.equal(x, torch.arange(6.0).reshape(2, 3) * ranks + total), x
    assert x.data_ptr() == address
    across = (torch.arange(12.0).reshape(3, 4) + me).t()
    dist.all_reduce(across, op=dist.ReduceOp.AVG)
    assert torch.allclose(across, torch.arange(12.0).reshape(3, 4).t() + total / ranks), across
    for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.int64):
        x = torch.full((5,), me + 1).to(dtype)
        dist.all_reduce(x, op=dist.ReduceOp.MAX)
        assert (x == ranks).all(), x
    x = torch.ones(3)
    dist.reduce(x, last)
    assert me != last or (x == ranks).all(), x
    x = torch.empty(2)
    dist.reduce_scatter_tensor(x, torch.arange(2.0 * ranks))
    assert torch.equal(x, torch.arange(2.0 * ranks)[2 * me : 2 * me + 2] * ranks), x
    dist.reduce_scatter(x, [torch.full((2,), float(i)) for i in range(ranks)], dist.ReduceOp.MAX)
    assert (x == me).all(), x


def movements():
    x = mine()
    dist.broadcast(x, 1)
    assert (x == 1).all(), x
    x = torch.tensor([me == 0])
    dist.broadcast(x, 0)
    assert x.item() is True
    of_all = empty()
    dist.all_gather(of_all, mine())
    assert firsts(of_all) == list(range(ranks)), of_all
    whole = torch.empty(2 * ranks)
    dist.all_gather_into_tensor(whole, mine())
    assert torch.equal(whole, torch.cat(of_all)), whole
    of_all = empty() if me == 0 else None
    dist.gather(mine(), of_all, dst=0)
    assert me or firsts(of_all) == list(range(ranks)), of_all
    x = torch.empty(2)
    parts = [torch.full((2,), float(i)) for i in range(ranks)] if me == 1 else None
    dist.scatter(x, parts, src=1)
    assert (x == me).all(), x
    x = torch.empty(ranks)
    dist.all_to_all_single(x, torch.arange(float(ranks)) + 10 * me)
    assert x.tolist() == [me + 10.0 * i for i in range(ranks)], x
    uneven = [torch.empty(i + 1) for i in range(ranks)]
    dist.all_to_all(uneven, [mine(me + 1) for _ in range(ranks)])
    assert firsts(uneven) == list(range(ranks)), uneven
    of_all = [None] * ranks
    dist.all_gather_object(of_all, {"rank": me})
    assert of_all[last] == {"rank": last}, of_all


def messages():
    # More than a connection buffers: sends must not wait until the peer receives.
    sent, into = mine(1 << 20), torch.empty(1 << 20)
    right, left = (me + 1) % ranks, (me - 1) % ranks
    for works in (
        lambda: [dist.isend(sent, right), dist.irecv(into, left)],
        lambda: dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, sent, right), dist.P2POp(dist.irecv, into, left)]
        ),
    ):
        into.zero_()
        for work in works():
            work.wait()
        assert (into == left).all()
    if me == 0:
        assert dist.recv(torch.empty(1)) == 1
    elif me == 1:
        dist.send(torch.ones(1), 0)


def later():
    works = [dist.all_reduce(torch.full((1 << i,), 1.0), async_op=True) for i in range(12)]
    for work in reversed(works):
        (sums,) = work.get_future().wait()
        assert (sums == ranks).all() and work.is_completed()
    dist.barrier()


def gradients():
    torch.manual_seed(me)
    parts = torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1)
    net = DistributedDataParallel(torch.nn.Sequential(*parts))
    net(torch.randn(5, 4)).sum().backward()
    gradient = next(net.parameters()).grad
    of_first = gradient.clone()
    dist.broadcast(of_first, 0)
    assert torch.equal(gradient, of_first) and gradient.any()


def refusals():
    refuses(TypeError, "int16 cannot be reduced", dist.all_reduce, torch.ones(3, dtype=torch.int16))
    words = "does not support BOR, only SUM, AVG"
    bits = torch.ones(3, dtype=torch.int32)
    refuses(ValueError, words, dist.all_reduce, bits, op=dist.ReduceOp.BOR)
    words = f"needs all {ranks} ranks of the job, but this group has 2"
    if me < 2:
        refuses(ValueError, words, dist.new_group, [0, 1])
    else:
        dist.new_group([0, 1])
    everybody = dist.new_group()
    x = torch.ones(1)
    dist.all_reduce(x, group=everybody)
    assert x.item() == ranks


for part in (reductions, movements, messages, later, gradients, refusals):
    part()
dist.destroy_process_group()
print("as it should be")
