# Makes a wheel: the launcher as a script, and the Python package with the module of this architecture.
#
#   wheel.py OUTPUT VERSION ARCH SECONDS SUMMARY README LAUNCHER PYTHON LEVEL
#
# OUTPUT is a directory, LEVEL that of deflate. PYTHON has the package as hosts get it, with metadata of its own that names no version.
# Files have the time SECONDS (since 1970), so that the same files give the same wheel.
import base64
import hashlib
import os
import sys
import time
import zipfile

output, version, arch, seconds, summary, readme, launcher, python, level = sys.argv[1:]
info = f"rlaunch-{version}.dist-info"
tag = f"py3-none-manylinux_2_28_{arch}"
stamp = time.gmtime(max(int(seconds), 315532800))[:6]

metadata = f"""Metadata-Version: 2.1
Name: rlaunch
Version: {version}
Summary: {summary}
License: MIT OR Apache-2.0
Requires-Python: >=3.9
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: Python :: 3 :: Only
Classifier: Programming Language :: Rust
Classifier: Typing :: Typed
Description-Content-Type: text/markdown

"""


def read(path):
    with open(path, "rb") as file:
        return file.read()


files = {f"rlaunch-{version}.data/scripts/rlaunch": read(launcher)}
for directory, _, names in os.walk(python):
    for name in names:
        path = os.path.relpath(os.path.join(directory, name), python)
        if ".dist-info" not in path and "__pycache__" not in path:
            files[path] = read(os.path.join(python, path))
files[f"{info}/METADATA"] = metadata.encode() + read(readme)
files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
files[f"{info}/entry_points.txt"] = read(os.path.join(python, "rlaunch.dist-info/entry_points.txt"))


def line(path, content):
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(content)}\n"


record = "".join(line(path, files[path]) for path in sorted(files)) + f"{info}/RECORD,,\n"

with zipfile.ZipFile(os.path.join(output, f"rlaunch-{version}-{tag}.whl"), "w") as wheel:
    for path in [*sorted(files), f"{info}/RECORD"]:
        entry = zipfile.ZipInfo(path, stamp)
        is_program = path.endswith("/rlaunch") or path.endswith(".so")
        entry.external_attr = (0o100755 if is_program else 0o100644) << 16
        entry.create_system = 3
        wheel.writestr(entry, files.get(path, record.encode()), zipfile.ZIP_DEFLATED, int(level))
