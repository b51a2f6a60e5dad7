"""Installs the wheels of a directory into /opt/volplane. Runs in the build stage of deploy/Containerfile, alone.

The package `kubernetes` has 120 MB of models and calls of the API, of which volplane imports a handful of modules, and
pygments 10 MB of languages. They go into archives that Python imports from (zipimport), so that all of it is there for
backends and takes a tenth. Everything is compiled here: nothing can be written where the image runs.
"""

import compileall
import os
import py_compile
import shutil
import sys
import venv
import zipfile
from pathlib import Path

PREFIX = Path("/opt/volplane")
SITE = PREFIX / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
ARCHIVED = ("kubernetes", "pygments")
SOURCES = (".c", ".cpp", ".h", ".pxd", ".pyx")
"""Of extension modules, which the wheels have beside what was built from them."""
STANDARD = Path(os.__file__).parent
EPOCH = (1980, 1, 1, 0, 0, 0)
"""The first time that an archive can hold."""
UNCHECKED = py_compile.PycInvalidationMode.UNCHECKED_HASH
"""No time is in what is compiled, and no source is looked at when it is imported."""
COMMAND = f"""\
#!{PREFIX}/bin/python
import sys
from volplane.__main__ import main
sys.exit(main())
"""


def main(wheels: Path) -> None:
    venv.EnvBuilder(with_pip=False, symlinks=True).create(PREFIX)
    for script in (PREFIX / "bin").glob("[aA]ctivate*"):
        script.unlink()
    for path in sorted(wheels.glob("*.whl")):
        _install(path)
    for name in ARCHIVED:
        _archive(SITE / name, SITE.parent / f"{name}.zip")
        (SITE / f"{name}.pth").write_text(f"{SITE.parent / name}.zip\n")
    command = PREFIX / "bin" / "volplane"
    command.write_text(COMMAND)
    command.chmod(0o755)
    for directory in (STANDARD, SITE):
        if not compileall.compile_dir(directory, quiet=1, invalidation_mode=UNCHECKED, workers=1):
            raise SystemExit(f"{directory} cannot be compiled")


def _install(path: Path) -> None:
    """Unpack a wheel, whose files all belong into one directory. Source: PyPA, binary distribution format."""
    with zipfile.ZipFile(path) as wheel:
        # Commands of others stay out.
        names = [name for name in wheel.namelist() if ".data/scripts/" not in name and not name.endswith(SOURCES)]
        if any(".data/" in name for name in names):
            raise SystemExit(f"{path.name} has files for other directories, which this image has no place for")
        wheel.extractall(SITE, names)


def _archive(package: Path, archive: Path) -> None:
    """Compiled modules of a package, and its other files, with the same bytes each time."""
    compileall.compile_dir(
        package,
        quiet=1,
        legacy=True,
        stripdir=str(package.parent),
        prependdir=str(archive),
        invalidation_mode=UNCHECKED,
        workers=1,
    )
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as out:
        for path in sorted(path for path in package.rglob("*") if path.is_file() and path.suffix != ".py"):
            entry = zipfile.ZipInfo(str(path.relative_to(package.parent)), EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            out.writestr(entry, path.read_bytes())
    shutil.rmtree(package)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
