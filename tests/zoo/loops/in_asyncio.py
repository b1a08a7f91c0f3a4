"""asyncio.run around the loop: report() blocks it, a heartbeat task runs beside, subprocesses are awaited."""

import asyncio

from tiny import STEPS, Net

import trainjob


async def heartbeat():
    while True:
        await asyncio.sleep(0.01)


async def main():
    beating = asyncio.create_task(heartbeat())
    net = Net()
    if checkpoint := trainjob.get_checkpoint():
        net.load(checkpoint.to_dict())
    for step in range(net.done, STEPS):
        loss = await asyncio.to_thread(net.train_step, step)
        process = await asyncio.create_subprocess_exec("true")
        await process.wait()
        trainjob.report({"loss": loss}, checkpoint=trainjob.Checkpoint.from_dict(net.state()), step=step + 1)
    beating.cancel()
    net.finish()


asyncio.run(main())
