"""SDKs from before November 2023 speak the Query protocol, and always will."""

from __future__ import annotations

from pathlib import Path

from tests.real_clients.environments import aws_environment, python_with, run_program
from tests.serving import Served

PROGRAMS = Path(__file__).parent / "programs"
# The last botocore that spoke Query to SQS.
LAST_OF_QUERY = ("boto3==1.28.80", "botocore==1.31.80")


def test_every_operation_works_with_the_last_boto3_that_speaks_query(server: Served) -> None:
    python = python_with("boto3-query", *LAST_OF_QUERY)

    said = run_program([python, PROGRAMS / "every_operation.py"], aws_environment(server.url))

    assert said.split() == ["query", "23"]
