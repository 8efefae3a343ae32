"""Builds the Python package `descent`: the C library, its modules and the program are built with
CMake and put into the package.

`pip install .` needs CMake, a C compiler and the libraries that the build needs (docs/install.md);
CMAKE_ARGS holds further arguments for CMake, such as -DDESCENT_CUDA=OFF; DESCENT_BUILD names a build
folder of CMake whose files are taken instead of building. The result uses the system's libraries;
scripts/wheel makes a wheel that carries them.
"""

import os
import pathlib
import re
import shlex
import shutil
import subprocess

from setuptools import Command, Distribution, find_packages, setup

try:
    from setuptools.command.build import build
except ImportError:  # before setuptools 62.4
    from distutils.command.build import build
try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # before setuptools 70.1
    from wheel.bdist_wheel import bdist_wheel

ROOT = pathlib.Path(__file__).resolve().parent


def version() -> str:
    text = (ROOT / "CMakeLists.txt").read_text()
    return re.search(r"project\(descent VERSION ([0-9.]+)", text).group(1)


def run(*command: str) -> None:
    print("+", " ".join(shlex.quote(word) for word in command), flush=True)
    subprocess.run(command, check=True)


class BuildLibrary(Command):
    """Builds and installs the component `runtime` into descent/lib and descent/bin."""

    description = "build libdescent, its modules and the program with CMake"
    user_options = []

    def initialize_options(self):
        self.build_lib = None
        self.build_temp = None

    def finalize_options(self):
        self.set_undefined_options("build", ("build_lib", "build_lib"), ("build_temp", "build_temp"))

    def run(self):
        if shutil.which("cmake") is None:
            raise SystemExit("setup.py: cmake was not found: install CMake 3.22 or newer")
        prefix = pathlib.Path(self.build_temp).resolve() / "prefix"
        shutil.rmtree(prefix, ignore_errors=True)
        folder = os.environ.get("DESCENT_BUILD") or self.build_with_cmake()
        run("cmake", "--install", folder, "--prefix", str(prefix), "--component", "runtime", "--strip")
        self.copy(prefix, pathlib.Path(self.build_lib) / "descent")

    def build_with_cmake(self) -> str:
        folder = str(pathlib.Path(self.build_temp).resolve() / "cmake")
        generator = ["-G", "Ninja"] if shutil.which("ninja") else []
        more = shlex.split(os.environ.get("CMAKE_ARGS", ""))
        settings = ["-DCMAKE_BUILD_TYPE=Release", "-DDESCENT_TESTS=OFF", "-DCMAKE_INSTALL_LIBDIR=lib"]
        run("cmake", "-S", str(ROOT), "-B", folder, *generator, *settings, *more)
        run("cmake", "--build", folder, "--target", "descent", "--parallel", str(os.cpu_count()))
        return folder

    @staticmethod
    def copy(prefix: pathlib.Path, package: pathlib.Path) -> None:
        """The files under the names by which they are loaded: wheels have no links."""
        for name in ("lib", "bin"):
            shutil.rmtree(package / name, ignore_errors=True)
        soname = min(prefix.rglob("libdescent.so.*.*"), key=lambda path: len(path.name))
        (package / "lib").mkdir(parents=True)
        shutil.copy2(soname.resolve(), package / "lib" / soname.name)
        for modules in soname.parent.glob("descent-*"):
            shutil.copytree(modules, package / "lib" / modules.name)
        shutil.copytree(prefix / "bin", package / "bin")

    def get_source_files(self):
        return []

    def get_outputs(self):
        package = pathlib.Path(self.build_lib) / "descent"
        return [str(path) for name in ("lib", "bin") for path in (package / name).rglob("*") if path.is_file()]

    def get_output_mapping(self):
        return {}


class Build(build):
    sub_commands = [*build.sub_commands, ("build_library", None)]


class Wheel(bdist_wheel):
    """A wheel for every Python 3 of this platform: nothing is compiled against Python."""

    def get_tag(self):
        return ("py3", "none", super().get_tag()[2])


class BinaryDistribution(Distribution):
    def has_ext_modules(self):
        return True


setup(
    name="descent",
    version=version(),
    description="Distributed K-FAC and gossip training for PyTorch, over the C library libdescent",
    long_description=(ROOT / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license="MIT",
    license_files=["LICENSE"],
    python_requires=">=3.8",
    packages=find_packages("python"),
    package_dir={"": "python"},
    package_data={"descent": ["py.typed"]},
    entry_points={"console_scripts": ["descent = descent.__main__:main"]},
    extras_require={"torch": ["torch>=1.13"]},
    cmdclass={"build": Build, "build_library": BuildLibrary, "bdist_wheel": Wheel},
    distclass=BinaryDistribution,
    zip_safe=False,
)
