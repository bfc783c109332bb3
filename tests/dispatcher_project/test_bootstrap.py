"""The bootstrap in checkouts of its own, which pin nothing: no network is needed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dispatcher_project import bootstrap

ROOT = Path(__file__).resolve().parents[2]
FILES = ("__init__.py", "__main__.py", "bootstrap.py", "supervisor.py", "child.py")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with our bootstrap whose project builds with a back end of its own."""
    checkout = tmp_path / "checkout"
    (checkout / "dispatcher_project").mkdir(parents=True)
    for name in FILES:
        shutil.copy(ROOT / "dispatcher_project" / name, checkout / "dispatcher_project")
    package = "dispatcher_project/embedded_postgres"
    shutil.copytree(ROOT / package, checkout / package)
    for name in ("requirements.lock", "requirements-dev.lock"):
        (checkout / name).write_text("# nothing\n")
    (checkout / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "tiny"\nversion = "1"\n'
    )
    (checkout / "backend.py").write_text(BACKEND)
    # What `test` enters: a module that says where it runs.
    (checkout / "pytest.py").write_text("import sys; print('entered', sys.prefix, *sys.argv[1:]); sys.exit(7)\n")
    return checkout


BACKEND = """
import zipfile
def build_editable(directory, config_settings=None, metadata_directory=None):
    name = "tiny-1-py3-none-any.whl"
    with zipfile.ZipFile(f"{directory}/{name}", "w") as wheel:
        wheel.writestr("tiny-1.dist-info/METADATA", "Metadata-Version: 2.1\\nName: tiny\\nVersion: 1\\n")
        wheel.writestr("tiny-1.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("tiny-1.dist-info/RECORD", "")
    return name
"""


def start(checkout: Path, *arguments: str, python: str = sys.executable, **environment: str) -> tuple[int, str]:
    """Exit code and output of `python -m dispatcher_project ...` there."""
    answer = subprocess.run(
        [python, "-m", "dispatcher_project", *arguments],
        cwd=checkout, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        check=False,
    )  # fmt: skip
    return answer.returncode, answer.stdout


def test_first_start_installs_and_the_second_goes_straight_in(checkout: Path) -> None:
    code, output = start(checkout, "test", "-n0", "some test")
    assert code == 7, output
    assert "[setup] Making .venv" in output
    assert f"entered {checkout / '.venv'} -n0 some test" in output
    assert start(checkout, "test", "-n0") == (7, f"entered {checkout / '.venv'} -n0\n")


def test_changed_pins_are_installed_into_the_same_venv(checkout: Path) -> None:
    start(checkout, "test")
    (checkout / "requirements-dev.lock").write_text("# changed\n")
    _, output = start(checkout, "test")
    assert "Installing requirements-dev.lock" in output
    assert "Making" not in output


def test_half_made_venv_is_made_again(checkout: Path) -> None:
    start(checkout, "test")
    state = checkout / ".venv" / "bootstrap.json"
    content = json.loads(state.read_text())
    del content["digest"]  # as it is while something is being installed
    state.write_text(json.dumps(content))
    (checkout / ".venv" / "leftover").touch()
    code, output = start(checkout, "test")
    assert (code, "[setup] Making .venv" in output) == (7, True)
    assert not (checkout / ".venv" / "leftover").exists()


@pytest.mark.parametrize("rubbish", ["file", "directory", "dangling link"])
def test_rubbish_in_place_of_the_venv_is_replaced(checkout: Path, rubbish: str) -> None:
    venv = checkout / ".venv"
    if rubbish == "file":
        venv.touch()
    elif rubbish == "directory":
        (venv / "bin").mkdir(parents=True)
        (venv / "bin" / "python").symlink_to("/nowhere/python")
    else:
        venv.symlink_to("/nowhere/venv")
    code, output = start(checkout, "test")
    assert code == 7, output


def test_venv_of_a_moved_checkout_or_of_another_python_is_made_again(checkout: Path) -> None:
    start(checkout, "test")
    moved = checkout.rename(checkout.with_name("moved"))
    code, output = start(moved, "test")
    assert (code, "[setup] Making .venv" in output) == (7, True)
    state = moved / ".venv" / "bootstrap.json"
    state.write_text(state.read_text().replace(bootstrap.VERSION, "cpython 3.9").replace('"digest": "', '"digest": "x'))
    assert "[setup] Making .venv" in start(moved, "test")[1]


def test_starts_from_inside_the_venv_that_must_be_made_again(checkout: Path) -> None:
    start(checkout, "test")
    (checkout / ".venv" / "bootstrap.json").write_text('{"digest": ""}')
    code, output = start(checkout, "test", python=str(checkout / ".venv" / "bin" / "python"))
    assert (code, "[setup] Making .venv" in output) == (7, True)


def test_two_first_starts_at_once_both_arrive(checkout: Path) -> None:
    command = [sys.executable, "-m", "dispatcher_project", "test"]
    both = [subprocess.Popen(command, cwd=checkout, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [7, 7]
    assert sum("Making .venv" in output for output in outputs) == 1


def test_environment_does_not_lead_pip_out_of_the_venv(checkout: Path) -> None:
    code, output = start(
        checkout,
        "test",
        PIP_USER="1",
        PIP_TARGET="/nowhere",
        PIP_PREFIX="/nowhere",
        PYTHONHOME="",
        PYTHONPATH="/nowhere",
    )
    assert code == 7, output


def test_failing_installation_shows_why_and_is_tried_again(checkout: Path) -> None:
    (checkout / "requirements-dev.lock").write_text("surely-there-is-no-such-package==1 --hash=sha256:" + "0" * 64)
    code, output = start(checkout, "test", PIP_NO_INDEX="1")
    assert code == 1
    assert "surely-there-is-no-such-package" in output
    assert "Traceback" not in output
    (checkout / "requirements-dev.lock").write_text("# nothing\n")
    assert start(checkout, "test")[0] == 7


def test_python_without_ensurepip_gets_the_hint(checkout: Path) -> None:
    broken = checkout / "ensurepip.py"  # found before the real one: -m puts the current directory first
    broken.write_text("raise ModuleNotFoundError('ensurepip is not available')\n")
    (checkout / "venv.py").write_text("import ensurepip\n")
    code, output = start(checkout, "test")
    assert code == 1
    assert "apt install python3-venv" in output


def test_wrong_options_are_refused_before_anything_is_installed(checkout: Path) -> None:
    assert start(checkout, "up", "--port", "0")[0] == 2
    assert "loopback" in start(checkout, "up", "--host", "0.0.0.0", "--anonymous-loopback")[1]
    assert start(checkout, "nonsense")[0] == 1
    assert start(checkout, "help")[0] == 0
    assert start(checkout)[0] == 0
    assert not (checkout / ".venv").exists()


def test_tests_run_in_parallel_unless_the_caller_decides() -> None:
    assert bootstrap.test_arguments(["tests/x.py"]) == ["-n", "auto", "--dist", "loadgroup", "tests/x.py"]
    for decided in (["-n0"], ["-n", "3"], ["-p", "no:xdist"], ["--pdb"]):
        assert bootstrap.test_arguments(decided) == decided


def test_packages_for_tests_are_enough_for_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bootstrap, "PYTHON", Path(sys.executable))
    monkeypatch.setattr(bootstrap, "STATE", tmp_path / "bootstrap.json")
    bootstrap.write_state(packages="dev", digest=bootstrap.digest("dev"))
    monkeypatch.setattr(bootstrap, "run", None)  # would be called to install
    bootstrap.prepare("run")


def test_old_python_is_told_in_one_sentence() -> None:
    code = (ROOT / "dispatcher_project" / "__main__.py").read_text()
    told = code.replace("sys.version_info < (3, 11)", "sys.version_info < (99,)")
    answer = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=False)
    assert answer.returncode == 1
    assert answer.stderr.startswith("Workflow Dispatcher needs Python 3.11 or newer; this is Python ")
    assert len(answer.stderr.splitlines()) == 1


def test_bootstrap_needs_nothing_but_the_standard_library() -> None:
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import dispatcher_project.bootstrap"
    alone = [sys.executable, "-I", "-S", "-c", code]
    answer = subprocess.run(alone, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
