"""Jobs sent one by one from one thread, each on disk when `send` returns: against Celery on RabbitMQ.

RabbitMQ and OpenQ sync the disk once for each job that is sent this way, so much of the time is the same. The
coroutines of one thread that send at once share a sync, and so do the jobs of one `send_many`; Celery has no
such call.

Celery waits for the confirm of each job (`confirm_publish`). Its queue is durable, its messages persistent.
"""

from __future__ import annotations

from .amqp_processes import RabbitMq
from .harness import BenchTarget, ChildProcess, Run, alternate, faster_by
from .server_processes import NotAvailable, OpenQ
from .server_rounds import started
from .worker_common import BENCH, obtain_rivals
from .worker_ours import OpenQAsyncSender, OpenQBatchSender, OpenQSender
from .worker_rivals import CeleryOnRabbitMq

TARGET = BenchTarget(floor=3, aim=6)


def run(run: Run) -> None:
    try:
        rivals = obtain_rivals()
        RabbitMq.obtain()
    except NotAvailable as absent:
        run.log(f"{BENCH}: NOT COMPARED WITH Celery on RabbitMQ: {absent}. Left out: jobs sent")
        return
    ours, theirs = (500, 250) if run.quick else (5_000, 2_000)
    openq, rabbit = OpenQ(run.folder("openq"), durable=True), RabbitMq(run.folder("rabbitmq"))
    with started(openq, rabbit):
        server = {"url": f"http://127.0.0.1:{openq.port}"}
        for how, sender, target, bar in (
            ("one by one, durable server", OpenQSender, server, TARGET),
            ("100 at a time, durable server", OpenQBatchSender, server, None),
            ("50 coroutines, durable server", OpenQAsyncSender, server, None),
            ("one by one, embedded on a path", OpenQSender, {"path": run.folder("path")}, None),
        ):
            match = alternate(
                ChildProcess(sender, ours, target),
                ChildProcess(CeleryOnRabbitMq, rivals, rabbit.port, theirs),
                run.rounds(5),
            )
            what = f"jobs sent from one thread, {how}"
            run.emit(faster_by(BENCH, what, "Celery on RabbitMQ, with confirms", match, bar))
