"""A TCP proxy whose connections a test can cut: what a broken network between two agents looks like."""

from __future__ import annotations

import contextlib
import socket
import threading


class CutProxy:
    """Forwards to `target` (host:port) until `close`."""

    def __init__(self, target: str) -> None:
        host, port = target.rsplit(":", 1)
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self.accepted = 0
        self._targets: set[socket.socket] = set()
        self.answers = bytearray()
        """What the target has said, over all connections."""
        self._hushed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def hush(self) -> None:
        """From now on what the target says goes no further; what is said to it does."""
        self._hushed = True

    def cut(self) -> bool:
        """Break all connections now; whether there was one."""
        with self._lock:
            broken, self._open = self._open, []
        for sock in broken:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        return bool(broken)

    def close(self) -> None:
        """No more connections."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
            except OSError:
                return
            self.accepted += 1
            with self._lock:
                self._open += [near, far]
                self._targets.add(far)
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if source in self._targets:
                    self.answers += data
                    if self._hushed:
                        continue
                sink.sendall(data)
        for sock in (source, sink):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
