"""Builds the native kernel where it can be built. Everything else about the package is in pyproject.toml.

Without Cython or a C compiler the install succeeds all the same, and the pure twin does the kernel's work, slowly.
`OTTLA_REQUIRE_NATIVE=1` makes a missing extension an error: CI sets it.
"""

import os

from setuptools import Extension, setup

REQUIRED = os.environ.get("OTTLA_REQUIRE_NATIVE", "") not in ("", "0")
SOURCE = "src/ottla/records/_kernel.pyx"


def extensions() -> list[Extension]:
    try:
        from Cython.Build import cythonize  # noqa: PLC0415  (its absence is allowed)
    except ImportError:
        if REQUIRED:
            raise
        return []
    built: list[Extension] = cythonize(
        [Extension("ottla.records._kernel", [SOURCE])], language_level=3, build_dir="build/cython"
    )
    for extension in built:
        extension.optional = not REQUIRED  # set here, because cythonize makes new objects and forgets it
    return built


setup(ext_modules=extensions())
