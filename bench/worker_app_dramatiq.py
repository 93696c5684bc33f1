"""The app of `dramatiq bench.worker_app_dramatiq`, on the Redis that the environment names."""

from __future__ import annotations

import os

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from .worker_stamps import QUEUE, REDIS_PORT, stamp

broker = RedisBroker(host="127.0.0.1", port=int(os.environ[REDIS_PORT]))
dramatiq.set_broker(broker)
task = dramatiq.actor(stamp, queue_name=QUEUE)
