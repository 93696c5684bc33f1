"""aiobotocore against the server of the usual variables: every operation, and many waiting at once."""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import Any

from aiobotocore.session import get_session

POLLS = 40


async def make(sqs: Any, **attributes: str) -> str:
    name = f"aio-{uuid.uuid4().hex}{'.fifo' if 'FifoQueue' in attributes else ''}"
    url: str = (await sqs.create_queue(QueueName=name, Attributes=attributes))["QueueUrl"]
    return url


async def arn_of(sqs: Any, url: str) -> str:
    found = await sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
    arn: str = found["Attributes"]["QueueArn"]
    return arn


async def queues(sqs: Any) -> None:
    url = await make(sqs, VisibilityTimeout="11")
    name = url.rpartition("/")[2]
    assert (await sqs.get_queue_url(QueueName=name))["QueueUrl"] == url
    pages = sqs.get_paginator("list_queues").paginate(QueueNamePrefix=name, MaxResults=1)
    assert [url async for page in pages for url in page["QueueUrls"]] == [url]
    await sqs.set_queue_attributes(QueueUrl=url, Attributes={"DelaySeconds": "2"})
    shown = (await sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"]))["Attributes"]
    assert (shown["VisibilityTimeout"], shown["DelaySeconds"]) == ("11", "2"), shown
    await sqs.tag_queue(QueueUrl=url, Tags={"a": "1", "b": "2"})
    await sqs.untag_queue(QueueUrl=url, TagKeys=["a"])
    assert (await sqs.list_queue_tags(QueueUrl=url))["Tags"] == {"b": "2"}
    await sqs.add_permission(QueueUrl=url, Label="l", AWSAccountIds=["111111111111"], Actions=["SendMessage"])
    await sqs.remove_permission(QueueUrl=url, Label="l")
    await sqs.purge_queue(QueueUrl=url)
    await sqs.delete_queue(QueueUrl=url)
    try:
        await sqs.get_queue_url(QueueName=name)
    except sqs.exceptions.QueueDoesNotExist:
        return
    raise AssertionError("the queue was deleted")


async def messages(sqs: Any) -> None:
    url = await make(sqs)
    attributes = {"bytes": {"DataType": "Binary", "BinaryValue": b"\x00\xff"}}
    await sqs.send_message(QueueUrl=url, MessageBody="one", MessageAttributes=attributes)
    entries = [{"Id": str(n), "MessageBody": f"batch {n}"} for n in range(4)]
    assert len((await sqs.send_message_batch(QueueUrl=url, Entries=entries))["Successful"]) == 4
    answer = await sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, MessageAttributeNames=["All"])
    got = answer["Messages"]
    assert got[0]["MessageAttributes"] == attributes, got
    assert [each["Body"] for each in got] == ["one", *(f"batch {n}" for n in range(4))], got
    handles = [each["ReceiptHandle"] for each in got]
    await sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=handles[0], VisibilityTimeout=50)
    held = [
        {"Id": str(n), "ReceiptHandle": handle, "VisibilityTimeout": 50} for n, handle in enumerate(handles)
    ]
    changed = await sqs.change_message_visibility_batch(QueueUrl=url, Entries=held)
    assert len(changed["Successful"]) == 5, changed
    await sqs.delete_message(QueueUrl=url, ReceiptHandle=handles[0])
    rest = [{"Id": str(n), "ReceiptHandle": handle} for n, handle in enumerate(handles[1:])]
    assert len((await sqs.delete_message_batch(QueueUrl=url, Entries=rest))["Successful"]) == 4


async def dead_letters(sqs: Any) -> None:
    dead = await make(sqs)
    policy = {"deadLetterTargetArn": await arn_of(sqs, dead), "maxReceiveCount": 1}
    url = await make(sqs, RedrivePolicy=json.dumps(policy))
    await sqs.send_message(QueueUrl=url, MessageBody="poison")
    await sqs.receive_message(QueueUrl=url, VisibilityTimeout=0)
    assert "Messages" not in await sqs.receive_message(QueueUrl=url)
    assert (await sqs.list_dead_letter_source_queues(QueueUrl=dead))["queueUrls"] == [url]
    await sqs.start_message_move_task(SourceArn=await arn_of(sqs, dead))
    [task] = (await sqs.list_message_move_tasks(SourceArn=await arn_of(sqs, dead)))["Results"]
    assert task["Status"] in ("RUNNING", "COMPLETED"), task
    [back] = (await sqs.receive_message(QueueUrl=url, WaitTimeSeconds=10))["Messages"]
    assert back["Body"] == "poison"


async def many_polls(sqs: Any) -> None:
    """Each of those who wait gets one of the messages that come, and none is left without."""
    url = await make(sqs)

    async def poll() -> str:
        answer = await sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20)
        [message] = answer["Messages"]
        await sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        body: str = message["Body"]
        return body

    waiting = [asyncio.create_task(poll()) for _ in range(POLLS)]
    sends = [sqs.send_message(QueueUrl=url, MessageBody=str(n)) for n in range(POLLS)]
    await asyncio.gather(*sends)
    assert sorted(await asyncio.gather(*waiting), key=int) == [str(n) for n in range(POLLS)]


async def given_up(sqs: Any) -> None:
    """A poll that was cancelled takes no message with it."""
    url = await make(sqs)
    poll = asyncio.create_task(sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20))
    done, _ = await asyncio.wait([poll], timeout=0.3)
    assert not done
    poll.cancel()
    await asyncio.wait([poll])
    await sqs.send_message(QueueUrl=url, MessageBody="kept")
    [message] = (await sqs.receive_message(QueueUrl=url, WaitTimeSeconds=10))["Messages"]
    assert message["Body"] == "kept"


async def main() -> None:
    from aiobotocore.config import AioConfig

    config = AioConfig(max_pool_connections=2 * POLLS, retries={"total_max_attempts": 1})
    async with get_session().create_client("sqs", config=config) as sqs:
        called: set[str] = set()
        sqs.meta.events.register("before-call.sqs", lambda model, **_: called.add(model.name))
        for part in (queues, messages, dead_letters, many_polls, given_up):
            await part(sqs)
            print(part.__name__)
        missing = set(sqs.meta.service_model.operation_names) - called
        # A move of one message is over before it could be cancelled.
        assert missing == {"CancelMessageMoveTask"}, missing


if __name__ == "__main__":
    asyncio.run(main())
