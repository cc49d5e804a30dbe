"""Stand for an interpreter, whose command line is forked by a fork server.

``python -I -S stand_in.py <socket> -u -c <code>`` has the server of the socket run the code. xdist
starts this, and speaks over its standard streams with the process that is forked. It imports
little, so that it costs little.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys


def main(address: str, _unbuffered: str, *command: str) -> int:
    """Request a process, hand on the first interrupt, and end as the process ends."""
    document = {"command": command, "environment": dict(os.environ), "folder": os.getcwd()}  # noqa: PTH109
    data = json.dumps(document).encode()
    with socket.socket(socket.AF_UNIX) as request:
        request.connect(address)
        whole = len(data).to_bytes(4, "big") + data
        sent = socket.send_fds(request, [whole], [0, 1, 2])
        request.sendall(whole[sent:])
        for number in (0, 1):
            os.close(number)
        with request.makefile("rb") as status:
            pid = int(status.readline())
            try:
                ended = status.readline()
            except KeyboardInterrupt:
                os.kill(pid, signal.SIGINT)
                ended = status.readline()
            # Nothing, if the server has ended: then it has killed the process.
            return int(ended.split()[0]) if ended else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
