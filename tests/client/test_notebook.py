"""How notebooks show queues and messages."""

import asyncio

from openq import Message, OpenQ, VirtualClock, aio

HOSTILE = "<script>alert('x')</script>"


def test_a_queue_is_shown_with_its_counts_and_settings() -> None:
    with OpenQ("orders", visibility_timeout=1.5, dlq="dead", clock=VirtualClock()) as orders:
        orders.publish_many(["a", "b", "c"])
        orders.receive()
        orders.publish("later", delay=60)

        html = orders._repr_html_()

    for name, value in (("ready", 2), ("delayed", 1), ("in flight", 1), ("visibility timeout", "1.5 s")):
        assert f">{name}</th>" in html
        assert f">{value}</td>" in html
    assert ">dead</td>" in html
    assert "closed" in orders._repr_html_()


def test_names_bodies_and_attributes_are_escaped() -> None:
    with OpenQ(HOSTILE) as queue:
        queue.publish(HOSTILE, attributes={HOSTILE: HOSTILE}, message_type=HOSTILE, group=HOSTILE)
        received = queue.receive()
        assert received is not None

        shown = [queue._repr_html_(), received._repr_html_(), Message("1", {"a": HOSTILE})._repr_html_()]

    assert not any("<script>" in html for html in shown)
    assert all("&lt;script&gt;" in html for html in shown)


def test_a_long_body_is_cut() -> None:
    assert len(Message("1", "x" * 100_000)._repr_html_()) < 5_000


def test_a_queue_of_asyncio_is_shown_too() -> None:
    async def main() -> None:
        async with aio.OpenQ("orders") as orders:
            await orders.publish("a")
            assert ">ready</th>" in orders._repr_html_()
            message = await orders.receive()
            assert message is not None
            assert ">a</td>" in message._repr_html_()

    asyncio.run(main())
