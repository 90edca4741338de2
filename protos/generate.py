"""Generates Python from the .proto files, as part of every build and by `python -m protos.generate`."""

from pathlib import Path

from setuptools.command.build_py import build_py


def generate(root: Path) -> None:
    """Write `protos/*_pb2.py`, `*_pb2.pyi` and `*_pb2_grpc.py` beside the .proto files under `root`.

    Raises RuntimeError when protoc refuses a file; its own message is on stderr.
    """
    from grpc_tools import protoc  # only a build needs it

    sources = sorted(str(path) for path in (root / "protos").glob("*.proto"))
    options = [f"-I{root}", f"--python_out={root}", f"--pyi_out={root}", f"--grpc_python_out={root}"]
    status = protoc.main(["protoc", *options, *sources])
    if status != 0:
        raise RuntimeError(f"protoc ended with status {status}")


class BuildWithProtos(build_py):
    """`build_py` that generates first, so that editable installs and wheels both hold the code."""

    def run(self) -> None:
        generate(Path.cwd())
        super().run()


if __name__ == "__main__":
    generate(Path.cwd())
