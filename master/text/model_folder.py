"""The small JSON files of a model's folder, as Hugging Face lays them out."""

import json
from pathlib import Path


class ModelFolderError(ValueError):
    """A file of the model's folder is missing, malformed, or of a kind that is not supported."""


class ModelFolder:
    """Reads the optional JSON objects of a folder; a file that is not there reads as an empty object."""

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            raise ModelFolderError(f"{path} is not a folder")
        self.path = path

    def json_object(self, name: str) -> dict[str, object]:
        """Raises ModelFolderError if the file is there and is not a JSON object."""
        text = self.text(name)
        if text is None:
            return {}
        try:
            parsed: object = json.loads(text)
        except ValueError as error:
            raise ModelFolderError(f"{self.path / name}: not JSON: {error}") from error
        if not isinstance(parsed, dict):
            raise ModelFolderError(f"{self.path / name}: expected a JSON object, found {type(parsed).__name__}")
        return parsed

    def text(self, name: str) -> str | None:
        """The file as UTF-8 text, or None if it is not there."""
        try:
            return (self.path / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise ModelFolderError(f"{self.path / name}: {error}") from error
