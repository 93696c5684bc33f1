"""The stories that every broker must agree on, played against a server over the network."""

from pathlib import Path

import pytest

from openq.client.remote import RemoteBroker
from openq.client.server_api import ServerApi
from openq.clock import VirtualClock
from openq.local.broker import LocalBroker
from tests.client.thread_server import ThreadServer
from tests.scenarios.runner import Story

STORIES = sorted((Path(__file__).parent.parent / "scenarios").glob("*.txt"))

# Stories about something that REST does not offer.
NOT_OVER_THE_NETWORK = {
    "accounts_exchanges": "the nameless exchange has no address, and each account has an address of its own",
    "ack_late": "late acks are a rule of SQS",
    "bound_lease": "a lease without an end needs a holder that the server can see go away",
    "bound_lease_restart": "the same",
    "dead_route": "messages do not show the exchange they came by",
    "exchange_chain": "messages do not show the exchange they came by",
    "exchanges": "the nameless exchange has no address",
    "limits_rate_crash": "a server that crashes before every line is a story of the journal",
    "extend_late": "extending a lease that ran out is a rule of SQS",
    "limits_extend_late": "the same",
    "purge_waiting": "a purge that leaves what is with consumers is a rule of AMQP",
    "purge_waiting_dedup": "the same",
    "replay_purged_waiting": "the same",
}


class Remote:
    """A server in this process, on the clock of the story; the broker is its client."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.server = ThreadServer(LocalBroker(clock=self.clock, seed=1))
        self.broker = RemoteBroker(ServerApi(self.server.url))
        self.broker.connect()

    def before_line(self) -> None:
        pass

    def close(self) -> None:
        self.broker.close()
        self.server.close()


@pytest.mark.parametrize("story", [path.stem for path in STORIES if path.stem not in NOT_OVER_THE_NETWORK])
def test_the_story_is_true_over_the_network(story: str) -> None:
    stage = Remote()
    try:
        Story(stage).play((STORIES[0].parent / f"{story}.txt").read_text())
    finally:
        stage.close()
