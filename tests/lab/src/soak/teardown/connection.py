"""ProxyCommand of a connection that fails: HOST PORT WAY BYTES THEN MARK.

Passes BYTES bytes `up` to the server or `down` from it. `stalls` passes nothing more in either
direction, `closes` ends. A byte in the file MARK says that it has come to that."""

import os
import select
import socket
import sys

host, port, way, left, then, mark = sys.argv[1:]
server = socket.create_connection((host, int(port)))
down = server.fileno()
to = {0: down, down: 1}
counted, left = 0 if way == "up" else down, int(left)
while True:
    for source in select.select(list(to), [], [])[0]:
        data = os.read(source, 65536)
        if not data:
            sys.exit()
        passed = data[:left] if source == counted else data
        while passed and left >= 0:
            passed = passed[os.write(to[source], passed):]
        if source == counted and left >= 0:
            left -= len(data)
            if left < 0:
                open(mark, "a").write("x")
                if then == "closes":
                    sys.exit()
