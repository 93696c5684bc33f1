"""AMQPStorm, which fills frames beyond the limit of AMQP by their own overhead, as RabbitMQ lets it."""

from __future__ import annotations

import json
import os

from tests.real_clients.celery_amqp import PROGRAMS
from tests.real_clients.environments import python_with, run_program
from tests.serving import served_amqp


def test_bodies_of_every_size_around_the_frame_limit_go_there_and_back() -> None:
    python = python_with("amqpstorm", "amqpstorm>=3.1")
    with served_amqp() as (_, port):
        environment = {**os.environ, "AMQP_PORT": str(port)}
        said = json.loads(run_program([python, PROGRAMS / "amqpstorm_client.py"], environment))

    assert said["returned"] == said["sent"]
