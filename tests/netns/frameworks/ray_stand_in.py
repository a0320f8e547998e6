#!/usr/bin/python3
"""Stand-in of Ray's command: the options of `ray start` and `ray symmetric-run`, and in place of a cluster the
connections that its nodes would make."""
import argparse
import os
import socket
import subprocess
import sys
import time

options = argparse.ArgumentParser("ray", allow_abbrev=False)
verbs = options.add_subparsers(dest="verb", required=True)
start = verbs.add_parser("start", allow_abbrev=False)
start.add_argument("--head", action="store_true")
start.add_argument("--block", action="store_true")
both = [start, verbs.add_parser("symmetric-run", allow_abbrev=False)]
both[1].add_argument("--min-nodes", type=int, default=1)
both[1].add_argument("entry", nargs=argparse.REMAINDER)
for verb in both:
    verb.add_argument("--address")
    for name in ["--num-cpus", "--num-gpus", "--object-store-memory", "--dashboard-port"]:
        verb.add_argument(name, type=int)
    for name in ["--node-ip-address", "--temp-dir", "--resources", "--dashboard-host", "--include-dashboard"]:
        verb.add_argument(name)
start.add_argument("--port", type=int, default=6379)


def is_here(host):
    with socket.socket() as probe:
        try:
            probe.bind((host, 0))
            return True
        except OSError:
            return False


def head(port, others):
    listener = socket.create_server(("", port))
    return listener, [listener.accept()[0] for _ in range(others)]


def follow(address):
    """Stays as long as the head does."""
    host, port = address.rsplit(":", 1)
    deadline = time.monotonic() + 60
    while True:
        try:
            leader = socket.create_connection((host, int(port)), timeout=60)
            break
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
    leader.settimeout(None)
    while leader.recv(100):
        pass


args = options.parse_args()
if args.verb == "start":
    assert args.block, "ray start returns without --block, and the job with it"
    if args.head:
        listener, _ = head(args.port, 0)
        while True:
            listener.accept()
    follow(args.address)
else:
    address = socket.gethostbyname(args.address.rsplit(":", 1)[0])
    if is_here(address):
        members = head(int(args.address.rsplit(":", 1)[1]), args.min_nodes - 1)
        entry = args.entry[1:] if args.entry[:1] == ["--"] else args.entry
        sys.exit(subprocess.call(entry, env=os.environ | {"RAY_ADDRESS": args.address}))
    follow(args.address)
