"""The app of `openq worker bench.worker_app_openq:app`, on the target that the environment names."""

from __future__ import annotations

import os

from openq.worker import App

from .worker_stamps import OPENQ_URL, QUEUE, stamp

app = App(url=os.environ[OPENQ_URL])
task = app.task(queue=QUEUE)(stamp)
