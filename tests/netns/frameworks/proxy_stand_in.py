"""Stand-in of LMCache's disagg_proxy_server.py: its options, and requests go to the prefiller, then to the decoder."""
import argparse
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

options = argparse.ArgumentParser()
options.add_argument("--port", type=int, default=8000)
options.add_argument("--host", default="localhost")
for half, port in [("prefiller", 8100), ("decoder", 8200)]:
    options.add_argument(f"--{half}-host", default="localhost")
    options.add_argument(f"--{half}-port", type=int, default=port)
    options.add_argument(f"--num-{half}s", type=int, default=1)
options.add_argument("--decoder-init-port", default="8300")
options.add_argument("--decoder-alloc-port", default="8400")
options.add_argument("--proxy-host", default="localhost")
options.add_argument("--proxy-port", type=int, default=8500)
args = options.parse_args()


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        for host, port in [(args.prefiller_host, args.prefiller_port), (args.decoder_host, args.decoder_port)]:
            request = urllib.request.Request(f"http://{host}:{port}{self.path}", body)
            with urllib.request.urlopen(request, timeout=30) as answer:
                text = answer.read()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


ThreadingHTTPServer((args.host, args.port), Handler).serve_forever()
