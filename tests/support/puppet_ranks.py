"""The ranks of one simulated agent: they report in lockstep, bring checkpoints, and hold the library to its promises.

For `Member` they are its `RankServer`. A promise that is not kept ends the run (`World.broken`): an answer before all had
called, a saved checkpoint that does not lie on every worker's disk or (SYNC) not on storage, a restart that does not go on
at the newest checkpoint that there is, an end record before everything is stored.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from trainjob.agent.attempts import beginning
from trainjob.agent.wire.from_leader import Joined
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob_api import contract, wire
from trainjob_api.rank_messages import TO_RANK, Collective, Failed, Offer, Released, ToRank

if TYPE_CHECKING:
    from support.puppet_agent import PuppetAgent

WAIT_LOOK_S = 0.2
OF_PEERS = (contract.FAIL_RANK_GONE, contract.FAIL_TIMEOUT)
OF_STORING = (contract.FAIL_STAGING, contract.FAIL_FULL, contract.FAIL_STORAGE)


class Ranks:
    """Of one agent, for one attempt after the other."""

    def __init__(self, agent: PuppetAgent) -> None:
        self._agent = agent
        self._tasks: dict[int, asyncio.Task[None]] = {}
        """By local rank."""
        self._answers: dict[int, asyncio.Future[ToRank]] = {}
        """By rank."""

    # --- What `Member` does with its server ---------------------------------------------------------------------------

    def send(self, rank: int, word: ToRank) -> None:
        answer = self._answers.get(rank)
        if answer is not None and not answer.done():
            answer.set_result(word)

    def send_frame(self, rank: int, frame: bytes) -> None:
        ((message, blob),) = wire.Decoder().feed(frame)
        self.send(rank, TO_RANK.parse(message, blob))

    def pid_of(self, rank: int) -> int | None:
        return None

    # --- Training -----------------------------------------------------------------------------------------------------

    def start(self, answer: Joined) -> None:
        """From the checkpoint that the join chose."""
        chosen = answer.resume.checkpoint
        base = 0 if chosen is None else int(chosen.note["position"])
        for local in range(self._agent.processes):
            self._tasks[local] = asyncio.ensure_future(self._train(local, base))
            self._agent.world.tasks.add(self._tasks[local])

    def stop(self) -> None:
        """The processes are gone."""
        for local in list(self._tasks):
            self.ended(local)

    def ended(self, local: int) -> None:
        task = self._tasks.pop(local, None)
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    async def _train(self, local: int, position: int) -> None:
        agent = self._agent
        group, training, rank = agent.group, agent.training, agent.ranks[local]["rank"]
        assert group is not None
        n = 0
        while position < training.length:
            await asyncio.sleep(agent.world.pace.report)
            while group.is_broken and group.waits:  # noqa: ASYNC110 (looked at from many places)
                await asyncio.sleep(WAIT_LOOK_S)
            if group.is_broken:
                return  # it hangs in its step
            n, position = n + 1, position + 1
            agent.beginning.note(beginning.FIRST_STEP)
            if rank == 0:
                training.steps.append(position)
            saves = position % training.every == 0 or position == training.length
            offer = Offer(f"out/{rank}", training.mode) if saves else None
            call = Collective(
                n, contract.KIND_REPORT, metrics={"loss": 1.0 / position}, step=position, checkpoint=offer
            )
            answer = await self._call(rank, call)
            if isinstance(answer, Failed):
                self._refused(local, answer)
                return
            assert isinstance(answer, Released)
            self._check(answer, saves)
            if rank == 0:
                training.position = position
        await asyncio.sleep(0.1 * (1 + agent.index))
        agent.end_rank(local, contract.END_OK, exit_code=0)

    async def _call(self, rank: int, call: Collective) -> ToRank:
        agent = self._agent
        assert agent.group is not None and agent.member is not None
        agent.group.calls[rank] = call.n
        answer: asyncio.Future[ToRank] = asyncio.get_running_loop().create_future()
        self._answers[rank] = answer
        agent.member.called(rank, call)
        return await answer

    def _refused(self, local: int, answer: Failed) -> None:
        agent = self._agent
        assert agent.group is not None
        if answer.reason not in (*OF_PEERS, *OF_STORING):
            agent.world.broken(AssertionError(f"all ranks call alike, and are refused: {answer.message}"))
        if answer.reason in OF_STORING and not agent.group.failing:
            agent.group.failing = True
            agent.world.incidents += 1
        error = {
            "type": answer.reason,
            "message": answer.message,
            "traceback": "",
            "communication": answer.reason in OF_PEERS,
        }
        agent.end_rank(local, contract.END_EXCEPTION, exit_code=1, error=error)

    # --- Promises -----------------------------------------------------------------------------------------------------

    def _check(self, answer: Released, saves: bool) -> None:
        agent = self._agent
        group, world = agent.group, agent.world
        assert group is not None
        late = [rank for rank in range(group.workers * agent.processes) if group.calls.get(rank, 0) < answer.n]
        self._hold(not late, f"call {answer.n} was answered before ranks {late} had made it")
        self._hold(saves == (answer.checkpoint is not None), f"call {answer.n} brought a checkpoint: {saves}")
        if answer.checkpoint is None:
            return
        id_ = CheckpointId.parse(answer.checkpoint.id)
        for other in group.members.values():
            if group.is_in(other):
                held = world.disk(other.pod_uid).held(id_)
                self._hold(held is not None, f"checkpoint {id_} is said to be saved, and {other.pod_name} has no note")
                if held is not None:
                    agent.training.acknowledged[str(id_)] = held.note
        if answer.checkpoint.level == contract.DURABLE:
            stored = agent.training.storage.manifests
            self._hold(str(id_) in stored, f"checkpoint {id_} is said to be durable, and is not")

    def check_choice(self, answer: Joined) -> None:
        """Everybody has joined: nothing newer lies on storage, or whole among the members."""
        agent = self._agent
        if agent.index != 0 or answer.completed:
            return
        assert agent.group is not None
        training = agent.training
        chosen = answer.resume.checkpoint
        newest = None if chosen is None else CheckpointId.parse(chosen.id)
        safe = [id_ for id_ in (training.storage.newest_at_settle,) if id_ is not None]
        for id_, note in training.acknowledged.items():
            held = [agent.world.disk(one.pod_uid).held(note.id) for one in agent.group.members.values()]
            paths = {path for one in held if one is not None for path in one.paths}
            paths |= {f.path for f in note.files if (id_, f.rank) in training.storage.shares}
            if any(held) and paths.issuperset(f.path for f in note.files):
                safe.append(note.id)
        lost = [str(id_) for id_ in safe if newest is None or id_ > newest]
        self._hold(not lost, f"attempt {agent.attempt} goes on at {newest}, and {lost} are there")

    def check_end(self) -> None:
        """The run is told to be complete."""
        agent = self._agent
        training = agent.training
        storage = training.storage
        self._hold(storage.ended is not None, "the run is told to be complete without an end record")
        self._hold((storage.ended or {}).get("position", 0) >= training.length, "the run ended before its last report")
        behind = [
            id_
            for id_, note in training.acknowledged.items()
            if note.id.attempt == agent.attempt and id_ not in storage.manifests and id_ not in training.dropped
        ]
        self._hold(not behind, f"the run is complete, and acknowledged checkpoints {behind} are not on storage")

    def _hold(self, kept: bool, broken: str) -> None:
        if not kept:
            self._agent.world.broken(AssertionError(broken))
