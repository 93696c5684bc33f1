"""The standard library's queue, with the import changed: the same program, and its queue can be durable."""

import tempfile
import threading

from openq import Queue

with tempfile.TemporaryDirectory() as folder:
    work = Queue("work", path=folder)

    def worker() -> None:
        while True:
            item = work.get()
            if item is None:
                work.task_done()
                return
            print("working on", item)
            work.task_done()

    thread = threading.Thread(target=worker)
    thread.start()
    for item in ("one", "two", {"number": 3}):
        work.put(item)
    work.put(None)
    work.join()
    thread.join()
    print("unfinished:", work.unfinished_tasks)
    work.close()
