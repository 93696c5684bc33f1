"""Backups of data directories and servers: a repository of pieces, incremental and optionally encrypted.

    from openq.backup import Repository, create, open_source, restore

    repository = Repository.open("./backups", create=True)
    with open_source("./openq-data") as source:
        create(source, repository)
    restore(repository, repository.latest(), "./restored")

docs/BACKUP.md is the guide, docs/decisions/0024-backup.md says why it is made this way.
"""

from .create import BackupReport as BackupReport
from .create import create as create
from .encryption import Secret as Secret
from .encryption import WrongKey as WrongKey
from .repository import BackupError as BackupError
from .repository import BackupManifest as BackupManifest
from .repository import Repository as Repository
from .restore import RestoreReport as RestoreReport
from .restore import restore as restore
from .sources import open_source as open_source
from .verify import prune as prune
from .verify import verify as verify
