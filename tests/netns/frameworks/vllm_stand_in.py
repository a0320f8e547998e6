#!/usr/bin/python3
"""Stand-in of vLLM's command: the options of its own parsers, and instead of a model the messages that show whether
processes have found each other. Other options are refused, as vLLM refuses them.

With STAND_IN_ENDS set, a server ends once all of its nodes have joined.
"""
import argparse
import json
import os
import socket
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

INTEGERS = """-tp/--tensor-parallel-size -pp/--pipeline-parallel-size -dp/--data-parallel-size -dpn/--data-parallel-rank
-dpr/--data-parallel-start-rank -dpl/--data-parallel-size-local -dpp/--data-parallel-rpc-port -n/--nnodes -r/--node-rank
--master-port --port --max-model-len --max-num-seqs --max-num-batched-tokens --seed --block-size"""
WORDS = """--host --master-addr -dpa/--data-parallel-address -dpb/--data-parallel-backend --distributed-executor-backend
--kv-transfer-config --gpu-memory-utilization --served-model-name --dtype --api-key -q/--quantization --load-format
--kv-cache-dtype --tokenizer --revision --config"""
FLAGS = """--headless --trust-remote-code --enforce-eager --enable-expert-parallel -ep --enable-prefix-caching
--disable-log-requests --enable-chunked-prefill"""


def parser():
    options = argparse.ArgumentParser("vllm", allow_abbrev=False)
    verbs = options.add_subparsers(dest="verb", required=True)
    serve = verbs.add_parser("serve", allow_abbrev=False)
    serve.add_argument("model_tag", nargs="?")
    for kind, names in [(int, INTEGERS), (str, WORDS)]:
        for name in names.split():
            serve.add_argument(*name.split("/"), type=kind)
    for name in FLAGS.split():
        serve.add_argument(name, action="store_true")
    serve.set_defaults(nnodes=1, node_rank=0, tensor_parallel_size=1, master_addr="127.0.0.1", master_port=29501, port=8000)
    bench = verbs.add_parser("bench", allow_abbrev=False).add_subparsers(dest="kind", required=True)
    bench = bench.add_parser("serve", allow_abbrev=False)
    for name in "--host --model --dataset-name --request-rate --random-range-ratio --backend --endpoint".split():
        bench.add_argument(name)
    for name in "--port --random-input-len --random-output-len --max-concurrency --num-prompts".split():
        bench.add_argument(name, type=int)
    bench.set_defaults(host="127.0.0.1", port=8000, num_prompts=1000, model="")
    return options


def connected(host, port):
    """Connects as soon as somebody listens, within a minute."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return socket.create_connection((host, port), timeout=5)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def call(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data), timeout=30) as answer:
        return json.loads(answer.read() or b"null")


def settings(path):
    """The lines `key: value` of an LMCache configuration."""
    pairs = (line.split(":", 1) for line in open(path) if ":" in line and not line.lstrip().startswith("#"))
    return {key.strip(): value.split(" #")[0].strip().strip("\"'") for key, value in pairs}


class Split:
    """One half of a split service, which keeps what it computes in Mooncake's store."""

    def __init__(self, config):
        self.role = json.loads(config)["kv_role"]
        if json.loads(config)["kv_connector"] != "LMCacheConnectorV1":
            sys.exit("vllm (stand-in): an unknown kv_connector")
        self.config = settings(os.environ["LMCACHE_CONFIG_FILE"])
        store = self.config["master_server_address"]
        assert self.config["remote_url"] == f"mooncakestore://{store}/", self.config
        self.store = f"http://{store}/"
        call(self.config["metadata_server"], {"segment": self.config["local_hostname"]})

    def answer(self, request):
        key = self.store + "kv/" + request["id"]
        if self.role == "kv_producer":
            call(key, {"from": self.config["local_hostname"], "prompt": request["prompt"]})
            return {"id": request["id"]}
        kept = call(key)
        return {"text": f"{kept['prompt']}, prefilled on {kept['from']}, decoded on {self.config['local_hostname']}"}


def serve(args):
    if args.node_rank:
        # Workers join the leader, and stay as long as it does.
        if not args.headless:
            sys.exit("vllm (stand-in): node rank other than 0 needs --headless")
        leader = connected(args.master_addr, args.master_port)
        leader.sendall(f"{args.node_rank}\n".encode())
        while leader.recv(100):
            pass
        return
    nodes = set()
    if args.nnodes > 1:
        listener = socket.create_server((args.master_addr, args.master_port))
        members = []
        while len(nodes) < args.nnodes - 1:
            member = listener.accept()[0]
            members.append(member)
            nodes.add(int(member.makefile().readline()))
        if nodes != set(range(1, args.nnodes)):
            sys.exit(f"vllm (stand-in): {args.nnodes} nodes, and these joined: {nodes}")
    inherited = [name for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "OMP_NUM_THREADS") if name in os.environ]
    print(f"serving {args.model_tag} on {args.nnodes} nodes, tensor parallel {args.tensor_parallel_size}", flush=True)
    print(f"inherited: {' '.join(inherited) or 'nothing'}", file=sys.stderr, flush=True)
    half = Split(args.kv_transfer_config) if args.kv_transfer_config else None

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            text = json.dumps(half.answer(request) if half else {"text": request["prompt"]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer((args.host or "", args.port), Handler)
    if "STAND_IN_ENDS" in os.environ:
        return
    server.serve_forever()


def wait_until_ready(args):
    """vLLM waits for ten minutes (--ready-check-timeout-sec)."""
    end = time.monotonic() + 600
    while time.monotonic() < end:
        try:
            return socket.create_connection((args.host, args.port)).close()
        except OSError:
            time.sleep(0.1)


def bench(args):
    wait_until_ready(args)
    done = []

    def ask(number):
        body = {"id": str(number), "prompt": f"prompt {number}", "max_tokens": 1}
        done.append(call(f"http://{args.host}:{args.port}/v1/completions", body)["text"])

    count = min(args.num_prompts, 8)
    threads = [threading.Thread(target=ask, args=[number]) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(done) < count:
        sys.exit(1)
    print(f"Successful requests: {len(done)}")
    print(sorted(done)[0], flush=True)


# vLLM takes --node_rank for --node-rank.
words = [word.replace("_", "-") if word.startswith("--") and "=" not in word else word for word in sys.argv[1:]]
args = parser().parse_args(words)
serve(args) if args.verb == "serve" else bench(args)
