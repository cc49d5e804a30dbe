"""nginx with TLS before a gateway, set up as its documents show."""

from __future__ import annotations

import shutil
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.processes import children
from tests.support.servers.faults import certificate
from tests.support.servers.ports import free_port, listens

_START_S = 60.0
_CONFIG = """
daemon off;
pid {folder}/pid;
error_log {folder}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port} ssl;
        ssl_certificate {cert};
        ssl_certificate_key {key};
        location {path}/ {{
            proxy_pass http://127.0.0.1:{to}{cut};
            proxy_set_header Host $http_host;
            proxy_set_header X-Forwarded-Proto $scheme;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
            proxy_http_version 1.1;
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection $http_connection;
        }}
    }}
}}
"""


@contextmanager
def nginx(folder: Path, to: int, *, path: str, cuts_path: bool) -> Generator[tuple[str, Path]]:
    """Serve a port of this machine below a path, by TLS; yield the address and the certificate."""
    program = shutil.which("nginx") or shutil.which("/usr/sbin/nginx")
    if program is None:
        pytest.skip("no nginx here: apt-get install nginx-light")
    cert, key = certificate(folder, "DNS:localhost")
    port = free_port()
    config = folder / "nginx.conf"
    config.write_text(
        _CONFIG.format(
            folder=folder,
            port=port,
            cert=cert,
            key=key,
            path=path,
            to=to,
            cut="/" if cuts_path else "",
        )
    )
    command: list[str | Path] = [program, "-c", config, "-p", folder, "-e", folder / "error.log"]
    with children.popen(command) as process:
        try:
            deadline = time.monotonic() + _START_S
            while not listens(port):
                assert process.poll() is None, (folder / "error.log").read_text()[-300:]
                assert time.monotonic() < deadline, "nginx did not start"
                time.sleep(0.02)
            yield f"https://localhost:{port}", cert
        finally:
            process.terminate()
            process.wait()
