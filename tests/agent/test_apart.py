"""Who cannot reach whom, as agents tell it: processes for real."""

from __future__ import annotations

import socket
from pathlib import Path

from support.agent_rig import Rig
from support.cut_proxy import CutProxy
from support.tuned_agent import entry

FOREVER = "import time\nprint('up', flush=True)\ntime.sleep(3600)\n"


def test_a_member_says_for_how_long_it_has_not_reached_rank_0s_agent(tmp_path: Path) -> None:
    with Rig(tmp_path, script=FOREVER) as rig, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens there
        rig.wait(lambda: len(rig.coordinator.reports) == 2)
        rig.run_one(0, 1, 0, [0, 1])
        rig.run_one(1, 1, 1, [0, 1], leader=f"127.0.0.1:{taken.getsockname()[1]}")
        rig.wait(lambda: rig.report(1).get("unreached_s", 0) >= 1.0, "it says for how long")
        assert rig.report(1)["lost_peers"] == [0] and not rig.report(1)["joined"]
        rig.run_one(1, 1, 1, [0, 1])
        rig.wait(lambda: rig.running(0, 1), "the way is there, and the attempt begins")
        rig.wait(lambda: rig.report(1)["unreached_s"] == 0.0 and rig.report(1)["lost_peers"] == [])


def test_rank_0s_agent_names_those_that_do_not_come_to_the_join(tmp_path: Path) -> None:
    tuned = entry(attempts__leader__AWAITED_S=0.3)
    with Rig(tmp_path, script=FOREVER, agents=3, entry=tuned) as rig:
        rig.wait(lambda: len(rig.coordinator.reports) == 3)
        proxy = CutProxy(rig.coordinator.reports[0]["address"])
        rig.run_one(0, 1, 0, [0, 1, 2])
        rig.run_one(1, 1, 1, [0, 1, 2], leader=proxy.address)
        rig.wait(lambda: b'{"op":"hello"}' in proxy.answers, "one has come")
        rig.wait(lambda: rig.report(0)["lost_peers"] == [2] and rig.report(0)["unreached_s"] > 0)
        rig.run_one(2, 1, 2, [0, 1, 2])
        rig.wait(lambda: rig.running(0, 1, 2), "all have come")
        rig.wait(lambda: rig.report(0)["lost_peers"] == [] and rig.report(0)["unreached_s"] == 0.0)
        proxy.close()
