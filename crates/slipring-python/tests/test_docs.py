"""The programs of the README run as they stand there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import slipring
from conftest import LONG

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("page", ["README.md", "../../docs/python.md"])
def test_two_programs_of_a_page_talk_to_each_other(page: str, name: str) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    programs = [block for block in blocks if block.startswith("import numpy")]
    assert len(programs) == 2
    started = []
    for program in programs:
        text = re.sub(r'(listen|connect)\("\w+"', rf'\1("{name}"', program).replace("1000", "20")
        text = text.replace("retry=5.0", f"retry={LONG}").replace("retry=10.0", f"retry={LONG}")
        started.append(subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True))
    try:
        outputs = [process.communicate(timeout=LONG)[0] for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert [process.returncode for process in started] == [0, 0]
    assert sum(len(output.splitlines()) for output in outputs) >= 20


def test_the_demo_runs(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    import slipring.demo

    monkeypatch.setattr(slipring.demo, "SECONDS", 0.2)
    assert slipring.demo.main() == 0
    assert "handed over untouched" in capfd.readouterr().out


def test_every_exception_is_an_error() -> None:
    names = [name for name in dir(slipring._errors) if name[0].isupper()]
    assert len(names) > 15
    for name in names:
        assert issubclass(getattr(slipring, name), slipring.Error)
        assert getattr(slipring, name).__doc__


def test_everything_public_is_documented() -> None:
    missing = []
    for name in slipring.__all__:
        item = getattr(slipring, name)
        if name == "__version__" or not hasattr(item, "__doc__"):
            continue
        if not item.__doc__:
            missing.append(name)
        for member in vars(item) if isinstance(item, type) else ():
            if not member.startswith("_") and not issubclass(item, BaseException) and not getattr(item, member).__doc__:
                missing.append(f"{name}.{member}")
    assert missing == []
