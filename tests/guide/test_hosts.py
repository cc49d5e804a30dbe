"""The table of hosts says what is there: `tools/hosts.py` counts it, and writes it."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tools.hosts import (
    HOME,
    HOSTS,
    PAGE,
    ROOT,
    Host,
    count_lines,
    count_tests,
    outcomes,
    rounded,
    stated_of,
    written,
)

if not (ROOT / "redis_state").is_dir():
    pytest.skip("adapters are counted in a checkout", allow_module_level=True)

PAGE_NOW = PAGE.read_text(encoding="utf-8")
# Until someone writes it again: each commit changes some lines.
OFF = 0.1


@pytest.mark.parametrize("host", HOSTS, ids=lambda host: host.adapter[0])
def test_a_row_has_the_adapters_lines_and_tests(host: Host) -> None:
    counted = count_lines(host), count_tests(host)
    assert all(counted)
    for stated, count in zip(stated_of(host, PAGE_NOW), counted, strict=True):
        assert abs(stated - count) <= max(1, OFF * count), "write it with tools/hosts.py --write"


def test_each_adapter_has_a_row() -> None:
    packages = HOME.glob("*/__init__.py")
    assert {path.parent.name for path in packages} == {
        folder for host in HOSTS for folder in host.adapter
    }


def test_what_a_count_leaves_out_is_there() -> None:
    for host in HOSTS:
        assert all((HOME / host.adapter[0] / folder).is_dir() for folder in host.without)


def test_counts_are_written_and_nothing_else() -> None:
    wrong = PAGE_NOW
    for line in PAGE_NOW.splitlines():
        if any(line.startswith(f"| {host.row}") for host in HOSTS) and line.count("|") == 8:
            cells = line.split("|")
            cells[5:7] = (re.sub(r"\d(?:[\d,]*\d)?", "7", cell) for cell in cells[5:7])
            wrong = wrong.replace(line, "|".join(cells))
    made = written(wrong)
    for host in HOSTS:
        assert stated_of(host, wrong) == (7, 7)
        assert stated_of(host, made) == (rounded(count_lines(host)), count_tests(host))
    numbers = re.compile(r"\d(?:[\d,]*\d)?")
    assert numbers.sub("", made) == numbers.sub("", PAGE_NOW)


def test_a_report_is_read_by_host(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        "<testsuites><testsuite>"
        '<testcase classname="tests.hosts.test_crewai" name="a"><properties>'
        '<property name="processes" value="2" /><property name="killed" value="1" />'
        "</properties></testcase>"
        '<testcase classname="tests.hosts.test_crewai" name="b"><properties>'
        '<property name="processes" value="3" /></properties><failure /></testcase>'
        '<testcase classname="tests.hosts.test_crewai_example" name="c"><skipped /></testcase>'
        '<testcase classname="tests.integration.conformance.test_conformance" name="d"><properties>'
        '<property name="host [LangGraph]" value="12 of 12, 17 processes, 5 killed" />'
        "</properties></testcase></testsuite></testsuites>",
        encoding="utf-8",
    )
    found, recorded = outcomes([report])
    assert found["[CrewAI]"] == Counter(passed=1, failed=1, skipped=1, processes=5, killed=1)
    assert not found["[ASAP]"]
    assert recorded == {"[LangGraph]": "12 of 12, 17 processes, 5 killed"}
