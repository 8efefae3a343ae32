"""The structs and enums of public headers, as lists of members, for the scripts of this folder."""
import pathlib
import re


def plain(text):
    """The text without comments, preprocessor lines and repeated white space."""
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    text = re.sub(r"\\\n", " ", text)
    text = re.sub(r"^[ \t]*#.*$", "", text, flags=re.M)
    return re.sub(r"\s+", " ", text)


def read(folder):
    """name -> ("struct" or "enum", list of members) of all types that are defined in the headers of a folder."""
    types = {}
    for path in sorted(pathlib.Path(folder).glob("*.h")):
        text = plain(path.read_text())
        for kind, name, body in re.findall(r"typedef (struct|enum) (\w+) \{([^{}]*)\} \2;", text):
            members = [member.strip() for member in body.split(";" if kind == "struct" else ",")]
            types[name] = (kind, [member for member in members if member])
    return types


def functions(folder):
    """The names of all functions that the headers of a folder export."""
    names = set()
    for path in pathlib.Path(folder).glob("*.h"):
        for declaration in re.findall(r"DSC_API[^;]*;", plain(path.read_text())):
            names.update(re.findall(r"\b(dsc_\w+) ?\(", declaration)[:1])
    return names


def sized(types):
    """The structs that start with their size: options, and results that the caller provides."""
    return {name: members for name, (kind, members) in types.items() if kind == "struct" and members[0] == "size_t size"}
