"""SECRET_KEY of an installation that brings its own database: made once, kept 0600 in the data directory."""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path


def load_or_create(data_dir: Path) -> str:
    """The key in `data_dir/secret_key`; made at first. Two first starts at once agree: a hard link picks the winner."""
    path = data_dir / "secret_key"
    try:
        return _read(path)
    except FileNotFoundError:
        pass
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Not named after our pid: it is 1 in each of several containers that share the directory.
    descriptor, name = tempfile.mkstemp(prefix="secret_key.", dir=data_dir)  # 0600
    draft = Path(name)
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_urlsafe(48))
    try:
        os.link(draft, path)  # atomic and never over an existing file, so that no half-written key is read
    except FileExistsError:
        pass
    finally:
        draft.unlink()
    return _read(path)


def _read(path: Path) -> str:
    key = path.read_text().strip()
    if not key:
        raise ValueError(f"{path} is empty: remove it and start again (sessions of signed-in people end).")
    return key
