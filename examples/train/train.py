#!/usr/bin/env python3
"""Data-parallel training in miniature, with nothing but the standard library.

Every rank holds the same small network (one layer of tanh units) and its own shard of the data.

1. In each step, each rank computes the gradient of the loss over its shard;
2. all ranks get the mean of the gradients ("all-reduce"): by rlaunch's communicator where rlaunch
   has started them, otherwise by TCP to rank 0 and back;
3. each rank moves its weights by that same mean.

So all hold the same weights after each step, to the last bit, although none has seen the
others' data. The end of the run proves it: the ranks compare SHA-256 sums. With --checkpoint FILE
rank 0 writes down how far it has come, and a run that finds the file goes on from there.

The launcher sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; without them, a world of one.
LOCAL_RANK, by which real training picks its GPU, has no use here.
"""

import argparse
import array
import hashlib
import math
import os
import random
import socket
import struct
import sys
import time

HIDDEN, SAMPLES = 12, 320  # Units of the hidden layer; points in each rank's shard.
RATE, MOMENTUM = 0.05, 0.9
PATIENCE = 30.0  # Seconds to wait for another rank, in whatever it is doing.


def fail(message):
    """Ends this rank with a sentence for the user."""
    sys.exit(f"train.py: rank {os.environ.get('RANK', 0)}: {message}")


def send(sock, payload, peer):
    """Sends a frame: the payload's length in four bytes, then the payload."""
    try:
        sock.sendall(struct.pack("!I", len(payload)) + payload)
    except OSError as error:
        fail(f"cannot send {len(payload)} bytes to {peer}: {error}")


def receive(sock, length, peer):
    """Receives one frame, whose payload must have this length."""
    frame, header = bytearray(), struct.pack("!I", length)
    while len(frame) < 4 + length:
        try:
            part = sock.recv(4 + length - len(frame))
        except OSError as error:
            fail(f"nothing came from {peer}: {error}")
        if not part:
            fail(f"{peer} closed the connection")
        frame += part
        if not header.startswith(frame[:4]):
            fail(f"{peer} did not send a frame of {length} bytes")
    return bytes(frame[4:])


class Communicator:
    """All ranks of rlaunch's job."""

    def __init__(self, rlaunch):
        # No call waits longer.
        os.environ.setdefault("RLAUNCH_COMM_TIMEOUT", str(PATIENCE))
        self.comm = rlaunch.init()
        self.rank, self.size = self.comm.rank, self.comm.size

    def mean(self, values):
        """The element-wise mean over all ranks: the same bits everywhere."""
        sums = array.array("d", values)
        self.comm.all_reduce(sums)
        return [sum / self.size for sum in sums]

    def share(self, values):
        """What rank 0 gave, on every rank."""
        shared = array.array("d", values)
        self.comm.broadcast(shared)
        return list(shared)

    def is_equal(self, payload):
        """Whether every rank has given the same."""
        all_ = bytearray(len(payload) * self.size)
        self.comm.all_gather(payload, out=all_)
        return all_ == payload * self.size


class Star:
    """The same without rlaunch: connects rank 0 to every other rank."""

    def __init__(self, rank, size, address, port):
        self.rank, self.size, self.peers = rank, size, {}
        if size > 1:
            (self._connect if rank else self._accept)(address, port)
        for sock in self.peers.values():
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def _accept(self, address, port):  # Rank 0; the others introduce themselves.
        try:
            family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
            listener = socket.create_server((address, port), family=family, backlog=self.size)
        except OSError as error:
            fail(f"cannot listen on {address} port {port}: {error}")
        missing = list(range(1, self.size))
        while missing:
            try:
                sock, (host, *_) = listener.accept()
            except OSError as error:
                fail(f"no connection from ranks {missing}: {error}")
            (rank,) = struct.unpack("!I", receive(sock, 4, f"a new peer at {host}"))
            if rank not in missing:
                fail(f"{host} calls itself rank {rank}; only {missing} are missing")
            self.peers[missing.pop(missing.index(rank))] = sock
        listener.close()

    def _connect(self, address, port):  # To rank 0, which may not be listening yet.
        deadline = time.monotonic() + PATIENCE
        while 0 not in self.peers:
            try:
                self.peers[0] = socket.create_connection((address, port))
            except OSError as error:
                if time.monotonic() > deadline:
                    fail(f"no rank 0 at {address} port {port}: {error}")
                time.sleep(0.05)
        send(self.peers[0], struct.pack("!I", self.rank), "rank 0")

    def gather(self, payload):
        """On rank 0 what every rank gave, in the order of ranks; elsewhere nothing."""
        if self.rank:
            send(self.peers[0], payload, "rank 0")
            return None
        peers = sorted(self.peers.items())
        return [payload, *(receive(sock, len(payload), f"rank {r}") for r, sock in peers)]

    def broadcast(self, payload, length):
        """What rank 0 gave, on every rank."""
        if self.rank:
            return receive(self.peers[0], length, "rank 0")
        for rank, sock in self.peers.items():
            send(sock, payload, f"rank {rank}")
        return payload

    def mean(self, values):
        """The element-wise mean over all ranks: the same bits everywhere."""
        form = f"!{len(values)}d"
        parts = self.gather(struct.pack(form, *values))
        if parts is not None:
            columns = zip(*(struct.unpack(form, part) for part in parts))
            parts = struct.pack(form, *(sum(column) / self.size for column in columns))
        return struct.unpack(form, self.broadcast(parts, struct.calcsize(form)))

    def share(self, values):
        """What rank 0 gave, on every rank."""
        form = f"!{len(values)}d"
        shared = self.broadcast(struct.pack(form, *values), struct.calcsize(form))
        return list(struct.unpack(form, shared))

    def is_equal(self, payload):
        """Whether every rank has given the same."""
        equal = len(set(self.gather(payload) or ())) == 1
        return self.broadcast(bytes([equal]), 1) == b"\1"


def make_shard(seed, rank):
    """This rank's points of a sine with a little noise."""
    draw = random.Random(f"{seed} shard {rank}")
    inputs = (draw.uniform(-1, 1) for _ in range(SAMPLES))
    return [(x, math.sin(3 * x) + draw.gauss(0, 0.05)) for x in inputs]


def loss_and_gradient(weights, shard):
    """The mean squared error over the shard, and its derivative by each weight."""
    w_in, bias, w_out = (weights[i * HIDDEN:(i + 1) * HIDDEN] for i in range(3))
    loss, gradient = 0.0, [0.0] * len(weights)
    for x, wanted in shard:
        active = [math.tanh(w * x + b) for w, b in zip(w_in, bias)]
        error = sum(w * a for w, a in zip(w_out, active)) + weights[-1] - wanted
        loss += error * error / len(shard)
        slope = 2 * error / len(shard)
        for i, a in enumerate(active):
            back = slope * w_out[i] * (1 - a * a)
            gradient[i] += back * x
            gradient[HIDDEN + i] += back
            gradient[2 * HIDDEN + i] += slope * a
        gradient[-1] += slope
    return loss, gradient


def save(path, values):
    """Writes a file at once: a run that is killed meanwhile leaves the one before."""
    try:
        with open(f"{path}.new", "wb") as file:
            file.write(struct.pack(f"!{len(values)}d", *values))
        os.replace(f"{path}.new", path)
    except OSError as error:
        fail(f"cannot write {path}: {error}")


def load(path, values):
    """What such a file holds; these values if there is none yet."""
    form = f"!{len(values)}d"
    try:
        with open(path, "rb") as file:
            return struct.unpack(form, file.read())
    except FileNotFoundError:
        return values
    except (OSError, struct.error) as error:
        fail(f"cannot go on from {path}: {error}")


def train(ranks, steps, seed, checkpoint):
    """Trains; returns the weights and the loss over all shards."""
    shard = make_shard(seed, ranks.rank)
    draw = random.Random(f"{seed} weights")  # The same on every rank, whatever its libm.
    weights = [draw.uniform(-3, 3) for _ in range(2 * HIDDEN)] + [0.0] * (HIDDEN + 1)
    speed, done = [0.0] * len(weights), 0
    if checkpoint:
        state = [done, *weights, *speed]
        done, *state = ranks.share(state if ranks.rank else load(checkpoint, state))
        weights, speed, done = state[:len(weights)], state[len(weights):], int(done)
    if ranks.rank == 0 and done:
        print(f"going on after step {done}", flush=True)
    for step in range(done + 1, steps + 1):
        loss, gradient = loss_and_gradient(weights, shard)
        loss, *gradient = ranks.mean([loss] + gradient)
        speed = [MOMENTUM * v - RATE * g for v, g in zip(speed, gradient)]
        weights = [w + v for w, v in zip(weights, speed)]
        if ranks.rank == 0 and step % 10 == 0:
            if checkpoint:
                save(checkpoint, [step, *weights, *speed])
            print(f"step {step} loss {loss:.6f}", flush=True)
    (loss,) = ranks.mean([loss_and_gradient(weights, shard)[0]])
    return weights, loss


def number(name, default, most=2**31):
    """A whole number from the environment."""
    text = os.environ.get(name, str(default))
    if not text.isdecimal() or int(text) > most:
        fail(f"{name} is no number up to {most}: {text!r}")
    return int(text)


def meet(rank, size):
    """Finds the other ranks."""
    if "RLAUNCH_SOCKET" in os.environ:
        try:
            import rlaunch  # On the path of every rank that rlaunch starts.
            return Communicator(rlaunch)
        except ImportError:
            pass
    address = os.environ.get("MASTER_ADDR", "127.0.0.1").strip("[]")
    return Star(rank, size, address, number("MASTER_PORT", 29500, most=65535))


def run(steps, seed, checkpoint):
    rank, size = number("RANK", 0), number("WORLD_SIZE", 1)
    if rank >= size:
        fail(f"there is no such rank in a world of {size}")
    print(f"rank {rank} of {size} on {socket.gethostname()}", flush=True)
    ranks = meet(rank, size)
    weights, loss = train(ranks, steps, seed, checkpoint)
    # The proof: everybody's sum of the weights is the same, or everybody fails.
    digest = hashlib.sha256(struct.pack(f"!{len(weights)}d", *weights)).hexdigest()
    if not ranks.is_equal(digest.encode()):
        fail(f"the weights differ between ranks; here: sha256 {digest[:12]}")
    if rank == 0:
        all_ = f"{size} rank{'s' if size > 1 else ''}"
        print(f"final loss {loss:.6f}, weights equal on {all_} (sha256 {digest:.12})", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Data-parallel training in miniature.")
    parser.add_argument("--steps", type=int, default=60, help="how many steps (60)")
    parser.add_argument("--seed", type=int, default=1, help="other data, other weights (1)")
    parser.add_argument("--checkpoint", metavar="FILE", help="where rank 0 writes how far it is")
    socket.setdefaulttimeout(PATIENCE)  # No operation on a socket waits longer.
    try:
        run(**vars(parser.parse_args()))
    except RuntimeError as error:  # Of the communicator: it names the peer.
        fail(error)
