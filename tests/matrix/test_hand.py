"""The hand itself: whoever asks it may be killed at any moment of that."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from support.faults import points
from support.faults.hand import Hand, Reach
from support.faults.plan import Faults
from support.patience import HANG_S


def _connected(hand: Hand) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(hand.environment()[points.PORT])), timeout=HANG_S)


@pytest.mark.parametrize("said", [b"", b'{"at": "st', b'{"at": "step", "pid": 1}'])
def test_who_is_killed_while_it_asks_is_no_error(tmp_path: Path, said: bytes) -> None:
    with Hand(Faults(), Reach(mark=str(tmp_path), job="job")) as hand:
        with _connected(hand) as killed:
            killed.sendall(said)
            killed.shutdown(socket.SHUT_WR)
            assert killed.recv(1) == b""
        with _connected(hand) as lives:
            lives.sendall(json.dumps({"at": points.STRUCK_FROM_OUTSIDE, "pid": 1}).encode() + b"\n")
            assert json.loads(lives.makefile().readline())["do"] == points.GO
