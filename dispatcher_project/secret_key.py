"""SECRET_KEY of an installation that brings its own database: made once, kept 0600 in the data directory."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def load_or_create(data_dir: Path) -> str:
    """The key in `data_dir/secret_key`; made at first. Two first starts at once agree: a hard link picks the winner."""
    path = data_dir / "secret_key"
    try:
        return _read(path)
    except FileNotFoundError:
        pass
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = data_dir / f"secret_key.{os.getpid()}"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
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
