"""Alerts: rules over the counts of the server, evaluated all the time, and notifications of what is wrong.

service.py     the thread that evaluates; which server does it; what REST and the metrics ask for
sources.py     the values of signals now; `history.py`: those of the last hours
evaluator.py   pending, firing, resolved; pure. `model.py`: the alert as it is stored, `store.py`: where
notifier.py    a thread for each destination: grouping, rate, retries
messages.py    what each kind of destination gets; `smtp.py`, `http_sender.py`: how
"""
