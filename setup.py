"""Builds what runs in C where it can be built. Everything else about the package is in pyproject.toml.

Two things: the kernel (Cython), which has a twin in Python, and the modules that every request passes through (mypyc), which
are their own twins: without Cython, mypyc or a C compiler the install succeeds all the same, and the plain source does the
work, slower. `OTTLA_REQUIRE_NATIVE=1` makes it an error when something is missing: CI sets it.
"""

import os
import re
import runpy
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

REQUIRED = os.environ.get("OTTLA_REQUIRE_NATIVE", "") not in ("", "0")
BUILDING = {"bdist_wheel", "build", "build_ext", "editable_wheel"}
KERNEL = (
    "coordinator._offset_rows",
    "records._columns",
    "records._header",
    "records._kernel",
    "records._offset_map",
    "records._rows",
    "wire._codec",
    "wire._commits",
)
_COMPILED = runpy.run_path("src/ottla/compiled.py")
MODULES: tuple[str, ...] = _COMPILED["MODULES"]
LIBRARY: str = _COMPILED["LIBRARY"]


def kernel() -> list[Extension]:
    try:
        from Cython.Build import cythonize  # noqa: PLC0415  (its absence is allowed)
    except ImportError:
        if REQUIRED:
            raise
        return []
    built: list[Extension] = cythonize(
        [Extension(f"ottla.{name}", [f"src/ottla/{name.replace('.', '/')}.pyx"]) for name in KERNEL],
        language_level=3,
        include_path=["src"],
        build_dir="build/cython",
    )
    return built


_FREED_TOO_EARLY = re.compile(r"if \((\w+_free_instance) == NULL\) \{\n\s*\1 = self;(.*?)\n\s*return;\n\s*\}", re.DOTALL)


def mend(source: Path) -> None:
    """First empty, then keep.

    mypyc's code keeps a closure or generator that is thrown away for the next one, and only then empties it. Where that closes
    a file, another thread may already have begun to fill it: the rest of what it put there is then emptied too. Those that are
    thrown away meanwhile, by other threads or because this one held them, are freed as ever.
    """
    written = source.read_text()
    text, count = _FREED_TOO_EARLY.subn(
        r"static char emptying = 0;\nif (\1 == NULL && !emptying) {\nemptying = 1;\2\nemptying = 0;\n\1 = self;\nreturn;\n}",
        written,
    )
    if count != written.count("_free_instance = self;"):
        raise SystemExit("this mypyc keeps what is thrown away in a way that is not known: see `mend` in setup.py")
    source.write_text(text)


def compiled() -> list[Extension]:
    """The library first, then for each module what leads there."""
    if not BUILDING.intersection(sys.argv):
        return []  # pip runs this several times before it builds
    try:
        from mypyc.build import mypycify  # noqa: PLC0415  (its absence is allowed)

        os.environ["MYPYPATH"] = "src"
        sources = ["src/" + module.replace(".", "/") + ".py" for module in MODULES]
        # Types are checked by `make lint`, with the versions of then; here they only have to be found.
        options = ["--config-file=", "--ignore-missing-imports", "--follow-imports=silent"]
        extensions: list[Extension] = mypycify([*options, *sources], group_name="ottla", opt_level="2", debug_level="0")
        for source in {source for extension in extensions for source in extension.sources}:
            mend(Path(source))
        return extensions
    except (ImportError, SystemExit) as problem:  # mypyc ends the program where it cannot compile
        if REQUIRED:
            raise
        print(f"ottla: nothing is compiled by mypyc ({problem})", file=sys.stderr)
        return []


class AllOrNone(build_ext):
    """The modules that mypyc compiles need each other: where one cannot be built, none is kept, not even an older one."""

    def build_extensions(self) -> None:
        for extension in self.extensions:
            extension.optional = not REQUIRED
        super().build_extensions()
        if not self._complete():
            print("ottla: not everything could be compiled: the plain sources will run, slower", file=sys.stderr)
            for name in (LIBRARY, *MODULES):
                self._built(name).unlink(missing_ok=True)

    def build_extension(self, ext: Extension) -> None:
        try:
            super().build_extension(ext)
        except BaseException:
            self._built(ext.name).unlink(missing_ok=True)  # of an earlier build, which is not what the sources say now
            raise

    def _built(self, name: str) -> Path:
        return Path(self.get_ext_fullpath(name))

    def _complete(self) -> bool:
        return all(self._built(name).exists() for name in (LIBRARY, *MODULES))

    def copy_extensions_to_source(self) -> None:
        """Of an editable install: nothing that is not compiled now may stay beside its source."""
        wanted = {*MODULES, LIBRARY, *(f"ottla.{name}" for name in KERNEL)} if self._complete() else set()
        for path in Path("src").rglob("*.so"):
            if ".".join(path.relative_to("src").parts).partition(".cpython")[0] not in wanted:
                path.unlink()
        super().copy_extensions_to_source()
        for path in Path("src").glob(f"{LIBRARY}.*"):
            os.utime(path)  # newer than the sources, even where a change of theirs left nothing to compile


setup(ext_modules=kernel() + compiled(), cmdclass={"build_ext": AllOrNone})
