"""The user's modules that register agents: imported once, by name or by file.

Invariant: a file becomes a module under the name of the file, as if its folder were the current one, so that its
classes have the same names in every process; only where that name is taken does it get another.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.machinery
import importlib.util
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import CodeType, ModuleType

from ..models.errors import SettingError
from . import loading, tracebacks


def load(entries: Iterable[str]) -> None:
    """Import every module or file; one that is loaded already stays as it is. Raises SettingError naming it."""
    for entry in entries:
        try:
            with loading.app(entry):
                _load(entry)
        except (Exception, SystemExit) as error:  # the user's code runs here; whatever it raises is told
            raise SettingError(f"app {entry!r} cannot be loaded: {_cause(error)}") from error


def _load(entry: str) -> None:
    if entry.endswith(".py"):
        _load_file(Path(entry))
    else:
        _find_beside(Path.cwd())
        importlib.import_module(entry)


class _FromSource(importlib.machinery.SourceFileLoader):
    """Compiles the file as it is. Bytecode is believed by whole second and size: `version=1` made `version=2` soon
    after a load would run as version 1, and be replayed against the wrong code."""

    def get_code(self, fullname: str) -> CodeType | None:
        """The code of the file, never of a cache."""
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


def _load_file(file: Path) -> None:
    file = file.resolve()
    name = _name_for(file)
    if name in sys.modules:
        return
    _find_beside(file.parent)
    spec = importlib.util.spec_from_file_location(name, file, loader=_FromSource(name, str(file)))
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


def _name_for(file: Path) -> str:
    taken = file.stem in sys.stdlib_module_names or not _is_from(sys.modules.get(file.stem), file)
    if not taken and file.stem.isidentifier():
        return file.stem
    return f"{file.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"


def _is_from(module: ModuleType | None, file: Path) -> bool:
    """Whether a name is free or is this file's already."""
    there = getattr(module, "__file__", None)
    return module is None or (there is not None and Path(there).resolve() == file)


def _find_beside(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _cause(error: BaseException) -> str:
    """Say what was raised and where in the user's code."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "importlib" not in frame.filename and not tracebacks.is_ours(frame.filename)
    ]
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    if isinstance(error, SystemExit):
        return f"it ends the process: sys.exit({error.code!r}){where}"
    return f"{type(error).__name__}: {error}{where}"
