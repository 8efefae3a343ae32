"""The binding: structs as the compiler lays them out, functions, errors, versions."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from conftest import ROOT

import descent
from descent import _library


def header_text():
    folder = os.path.join(ROOT, "include", "descent")
    return "\n".join(open(os.path.join(folder, name)).read() for name in os.listdir(folder))


def test_structs(tmp_path):
    """Sizes and offsets of all structs are the compiler's."""
    lines = []
    for name, struct in _library.STRUCTS.items():
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        for field, *_ in struct._fields_:
            lines.append(f'printf("{name}.{field} %zu\\n", offsetof({name}, {field}));')
    source = tmp_path / "layout.c"
    body = "\n".join(lines)
    source.write_text(
        "#include <descent/descent.h>\n#include <stddef.h>\n#include <stdio.h>\n"
        "int main(void) {\n" + body + "\nreturn 0;\n}\n"
    )
    program = tmp_path / "layout"
    built = os.environ.get("DESCENT_BINARY_DIR")
    if not built:
        pytest.skip("needs a build folder (DESCENT_BINARY_DIR)")
    compiler = os.environ.get("CC", "cc")
    subprocess.run(
        [compiler, "-I", f"{ROOT}/include", "-I", f"{built}/include", str(source), "-o", str(program)],
        check=True,
    )
    printed = dict(line.split() for line in subprocess.check_output([program], text=True).split("\n") if line)
    for name, struct in _library.STRUCTS.items():
        assert int(printed[name]) == _library.ctypes.sizeof(struct), name
        for field, *_ in struct._fields_:
            assert int(printed[f"{name}.{field}"]) == getattr(struct, field).offset, (name, field)


def test_functions():
    """Every declared function is in the headers, with as many arguments."""
    text = re.sub(r"/\*.*?\*/", "", header_text(), flags=re.S)
    for name, (_, arguments) in _library._FUNCTIONS.items():
        match = re.search(rf"\b{name}\(([^;{{]*?)\)\s*(?:DSC_MUST_CHECK|__attribute__.*?)?;", text, re.S)
        assert match, f"{name} is not in the headers"
        inside = match.group(1).strip()
        depth, count = 0, 0 if inside in ("", "void") else 1
        for char in inside:
            depth += (char in "([") - (char in ")]")
            count += char == "," and depth == 0
        assert count == len(arguments), name


def test_status_names():
    text = header_text()
    listed = re.findall(r"X\((DSC_\w+), \"", text.split("DSC_STATUS_LIST(X)")[1].split("typedef")[0])
    assert listed == descent.errors.STATUS_NAMES


def test_version():
    assert descent.__version__ == _library.lib.dsc_version().decode()
    assert descent.__version__ in descent.library_info()
    cmake = open(os.path.join(ROOT, "CMakeLists.txt")).read()
    assert f"VERSION {descent.__version__} " in cmake


def python(code, **environment):
    path = os.environ.get("PYTHONPATH", "")
    if not os.environ.get("DESCENT_TEST_INSTALLED"):
        path = os.path.join(ROOT, "python") + os.pathsep + path
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
    )


def test_library_not_found():
    result = python("import descent._library", DESCENT_LIBRARY="/nowhere/libdescent.so")
    assert result.returncode != 0
    assert "/nowhere/libdescent.so" in result.stderr and "LibraryError" in result.stderr


def test_other_version():
    code = (
        "import descent._version as v; v.__version__ = '9.9.9'\n"
        "import sys; sys.modules['descent'].__version__ = '9.9.9'\n"
        "import descent._library"
    )
    result = python(code, DESCENT_LIBRARY=_library.lib._name)
    assert result.returncode != 0
    assert "9.9.9" in result.stderr and "install both from the same source" in result.stderr


def test_errors_have_classes_and_messages():
    from ctypes import byref, c_void_p

    options = _library.initialised(_library.DeviceOptions, "device_options")
    options.name = b"abacus"
    with pytest.raises(descent.InvalidError, match="abacus") as caught:
        _library.lib.dsc_device_create(byref(options), byref(c_void_p()))
    assert caught.value.status_name == "DSC_E_INVALID"
    assert isinstance(caught.value, ValueError) and isinstance(caught.value, descent.Error)


def test_libraries_of_nvidia_packages(tmp_path, monkeypatch):
    """A library that a module misses is loaded from site-packages/nvidia, and the call repeated."""
    from descent._nvidia import with_libraries

    folder = tmp_path / "nvidia" / "part" / "lib"
    folder.mkdir(parents=True)
    source = tmp_path / "part.c"
    source.write_text("int descent_test_part(void) { return 42; }\n")
    compiler = os.environ.get("CC", "cc")
    name = "libdescent_test_part.so.7"
    subprocess.run([compiler, "-shared", "-fPIC", str(source), "-o", str(folder / name)], check=True)
    monkeypatch.syspath_prepend(str(tmp_path))
    calls = []

    def call(missing):
        calls.append(1)
        if not hasattr(_library.ctypes.CDLL(None), "descent_test_part"):
            raise descent.UnsupportedError(f"{missing}: cannot open shared object file: No such file")

    with pytest.raises(descent.UnsupportedError):
        with_libraries(lambda: call("libnowhere.so.1"))
    assert len(calls) == 1
    with_libraries(lambda: call(name))
    assert len(calls) == 3
