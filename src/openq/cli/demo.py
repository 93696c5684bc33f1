from .parsing import Verbs


def add(name: str, verbs: Verbs, help: str) -> None:
    verbs.add(name, None, help, [])
