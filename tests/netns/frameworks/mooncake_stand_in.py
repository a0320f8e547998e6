#!/usr/bin/python3
"""Stand-in of mooncake_master: its flags, by gflags' rules, and its store and metadata server over HTTP."""
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FLAGS = {
    "port": "50051", "rpc_port": "0", "max_threads": "4", "rpc_thread_num": "0", "rpc_address": "0.0.0.0",
    "metrics_port": "9003", "enable_metric_reporting": "true", "enable_http_metadata_server": "false",
    "http_metadata_server_host": "0.0.0.0", "http_metadata_server_port": "8080", "client_ttl": "10",
    "memory_allocator": "offset", "eviction_ratio": "0.05", "default_kv_lease_ttl": "5000", "root_fs_dir": "",
}


def parse(words):
    words = iter(words)
    for word in words:
        name, has_value, value = word.lstrip("-").partition("=")
        if not word.startswith("-") or name not in FLAGS:
            sys.exit(f"ERROR: unknown command line flag '{name}'")
        FLAGS[name] = value if has_value else next(words)


class Handler(BaseHTTPRequestHandler):
    kept = {}

    def do_GET(self):
        self.answer(404 if self.path not in self.kept else 200, self.kept.get(self.path))

    def do_POST(self):
        self.kept[self.path] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.answer(200, None)

    def answer(self, status, body):
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


parse(sys.argv[1:])
if FLAGS["enable_http_metadata_server"] == "true":
    address = FLAGS["http_metadata_server_host"], int(FLAGS["http_metadata_server_port"])
    threading.Thread(target=ThreadingHTTPServer(address, Handler).serve_forever, daemon=True).start()
ThreadingHTTPServer((FLAGS["rpc_address"], int(FLAGS["rpc_port"]) or int(FLAGS["port"])), Handler).serve_forever()
