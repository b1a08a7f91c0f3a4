"""A cluster's own authority is believed as it is: some clusters' makers leave out of its certificate what newer Pythons
ask for by themselves.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from support.s3_authority import Authority
from support.strict_tls import as_from_python_3_13
from trainjob.launch.cluster import api as of_commands
from trainjob_operator.k8s import kubeapi as of_the_operator
from trainjob_operator.k8s.kubeapi import Unavailable

VERSION = {"major": "1", "minor": "35"}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        text = json.dumps(VERSION).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Authority]]:
    authority = Authority(tmp_path / "authority")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.certificate, authority.key)
    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.socket = context.wrap_socket(made.socket, server_side=True)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield f"https://127.0.0.1:{made.server_address[1]}", authority
    made.shutdown()
    made.server_close()


def kubeconfig(folder: Path, url: str, authority: Path) -> Path:
    """JSON is YAML."""
    content = {
        "current-context": "it",
        "clusters": [{"name": "it", "cluster": {"server": url, "certificate-authority": str(authority)}}],
        "users": [{"name": "it", "user": {"token": "t"}}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(content))
    return path


def asked_by_a_command(path: Path) -> object:
    return of_commands.Api.connect(kubeconfig=str(path)).document("/version")


def asked_by_the_operator(path: Path) -> object:
    async def main() -> object:
        api = await of_the_operator.Api.connect(kubeconfig=str(path))
        try:
            return await api.document("/version")
        finally:
            await api.close()

    return asyncio.run(main())


@pytest.mark.parametrize("ask", [asked_by_a_command, asked_by_the_operator])
def test_it_needs_no_more_than_to_have_signed(
    tmp_path: Path, server: tuple[str, Authority], ask: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    as_from_python_3_13(monkeypatch)
    url, authority = server
    assert ask(kubeconfig(tmp_path, url, authority.bundle)) == VERSION


@pytest.mark.parametrize(
    ("ask", "refusal"), [(asked_by_a_command, of_commands.ApiError), (asked_by_the_operator, Unavailable)]
)
@pytest.mark.parametrize("wrong", ["authority", "name"])
def test_who_has_not_signed_or_has_another_name_is_not_believed(
    tmp_path: Path, server: tuple[str, Authority], ask: Callable[[Path], object], refusal: type[Exception], wrong: str
) -> None:
    url, authority = server
    bundle = authority.bundle if wrong == "name" else Authority(tmp_path / "another").bundle
    path = kubeconfig(tmp_path, url.replace("127.0.0.1", "localhost") if wrong == "name" else url, bundle)
    with pytest.raises(refusal, match=r"(?i)certificate"):
        ask(path)
