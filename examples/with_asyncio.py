"""The same queue in an event loop: every verb is a coroutine, and waiting blocks nobody."""

import asyncio

from openq.aio import OpenQ


async def main() -> None:
    async with OpenQ("jobs") as queue:

        async def worker(name: str) -> int:
            done = 0
            while (message := await queue.receive(timeout=0.2)) is not None:
                await asyncio.sleep(0.01)
                print(name, "did", message.body)
                await message.ack()
                done += 1
            return done

        workers = [asyncio.create_task(worker(name)) for name in ("ann", "bob")]
        for number in range(6):
            await queue.publish({"job": number})
        print("done in all:", sum(await asyncio.gather(*workers)))


asyncio.run(main())
