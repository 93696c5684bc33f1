"""`openq backup` and `openq restore`."""

from __future__ import annotations

from ..spec import Command, Option
from ..values import positive
from .options import JSON, JSON_LINES, SERVER

_REPOSITORY = Option("repository", metavar="REPO", help="directory with the backups")
_KEY_FILE = Option(
    "--key-file", metavar="FILE", help="key of an encrypted repository (OPENQ_BACKUP_KEY_FILE)"
)
_ID = Option("--backup", metavar="ID", help="which backup (default: the newest)")

COMMANDS = {
    "backup": Command(
        default="create",
        examples=(
            ("openq backup ./backups", "of the server at OPENQ_URL; short for `openq backup create`"),
            ("openq backup ./backups --data ./openq-data", "of a data directory that no process uses"),
            ("openq backup ls ./backups", "the backups in a repository"),
            ("openq backup verify ./backups", "read every piece and compare it with its digest"),
            ("openq backup prune ./backups --keep 14", "remove old backups and what only they need"),
        ),
        details=(
            "A backup is consistent: every change that was acknowledged before it began is in it. It is "
            "incremental: a repository stores each piece once, and files that an earlier backup has are not "
            "read again. The permission admin is needed."
        ),
        commands={
            "create": Command(
                help="back up a running server, or a data directory that no process uses",
                run="backup:create",
                examples=(
                    ("openq backup create ./backups --url http://10.0.0.5:9324", "over the network"),
                    ("openq backup ./backups", "the same for the server at OPENQ_URL"),
                    ("openq backup ./backups --data /var/lib/openq", "while no server runs"),
                    ("openq backup ./backups --encrypt", "begin an encrypted repository, by passphrase"),
                    ("openq backup ./backups --key-file backup.key", "or by a key file"),
                ),
                details=(
                    "An interrupted backup leaves all earlier ones as they were; the next one uses the "
                    "pieces that it stored. The passphrase is OPENQ_BACKUP_PASSPHRASE, or in the file that "
                    "OPENQ_BACKUP_PASSPHRASE_FILE names, or asked for. For Redis see docs/BACKUP.md."
                ),
                options=(
                    _REPOSITORY,
                    Option("--data", metavar="DIR", help="a data directory that no process uses"),
                    Option("--full", action="store_true", help="read every file, also unchanged ones"),
                    Option(
                        "--encrypt", action="store_true", help="encrypt a new repository with a passphrase"
                    ),
                    _KEY_FILE,
                    JSON,
                    *SERVER,
                ),
            ),
            "ls": Command(
                help="list the backups in a repository",
                run="backup:ls",
                examples=(
                    ("openq backup ls ./backups", "the newest last"),
                    ("openq backup ls ./backups --json", "one JSON object per line"),
                ),
                details="Exit code 5 if there is none.",
                options=(_REPOSITORY, _KEY_FILE, JSON_LINES),
            ),
            "verify": Command(
                help="read every piece of the backups and compare it with its digest",
                run="backup:verify",
                examples=(
                    ("openq backup verify ./backups", "all backups"),
                    ("openq backup verify ./backups --backup ID", "one of them"),
                ),
                details="Exit code 1 if anything is missing or damaged. Changes nothing.",
                options=(
                    _REPOSITORY,
                    Option("--backup", metavar="ID", help="only this backup"),
                    _KEY_FILE,
                    JSON,
                ),
            ),
            "prune": Command(
                help="remove old backups, and the pieces that no other backup needs",
                run="backup:prune",
                examples=(("openq backup prune ./backups --keep 14", "the newest 14 stay"),),
                options=(
                    _REPOSITORY,
                    Option(
                        "--keep",
                        metavar="N",
                        type=positive,
                        required=True,
                        help="how many of the newest stay",
                    ),
                    _KEY_FILE,
                    JSON,
                ),
            ),
            "key": Command(
                help="write a new key file for an encrypted repository",
                run="backup:key",
                examples=(("openq backup key backup.key", "keep a copy elsewhere: without it all is lost"),),
                options=(Option("file", metavar="FILE", help="file to write; it must not exist"), JSON),
            ),
        },
    ),
    "restore": Command(
        run="backup:restore",
        examples=(
            ("openq restore ./backups ./openq-data", "the newest backup into a new or empty directory"),
            (
                "openq restore ./backups ./openq-data --backup ID",
                "another one, as `openq backup ls` shows it",
            ),
            ("openq restore ./backups ./openq-data --replace", "moves what is there to DIR/replaced-TIME"),
        ),
        details=(
            "Data in the directory is never overwritten. Until the restore has ended no process can open the "
            "directory; after an interruption the same command goes on. At the end the journal is checked "
            "and replayed, and what it holds is printed. Stop the server of the directory first."
        ),
        options=(
            _REPOSITORY,
            Option("directory", metavar="DIR", help="the data directory to fill"),
            _ID,
            Option("--replace", action="store_true", help="move the content of DIR aside first"),
            _KEY_FILE,
            JSON,
        ),
    ),
}
