"""``results.csv``: one row for each run that has ended. Tables are made only from this file."""

import csv
import io
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from filelock import FileLock
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from repgraph import files
from repgraph.errors import UsageError
from repgraph.evaluation.segmentation import SUMMARY

NAME, LOCK = "results.csv", ".lock"
OK, DIVERGED, FAILED = "ok", "diverged", "failed"
Score = Annotated[float, Field(ge=0, le=1)] | None


class Record(BaseModel):
    """The outcome of a run; a row of ``results.csv``.

    A run is "diverged" if losses, weights or logits were not finite, which is a result and is not repeated, and
    "failed" for any other reason. Scores are fractions, ``settings`` the differences from the base recipe, ``reason``
    is why there are no scores, and ``seconds`` the time of all sessions that were not killed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    key: str
    dataset: str
    seed: int
    status: Literal["ok", "diverged", "failed"]
    miou: Score
    pixel_accuracy: Score
    mean_accuracy: Score
    iterations: int
    seconds: float
    settings: str
    weights: str
    device: str
    repgraph: str
    torch: str
    python: str
    finished: str
    reason: str

    @property
    def done(self) -> bool:
        """Whether the run has a result and is not repeated."""
        return self.status in (OK, DIVERGED)

    @field_validator(*SUMMARY, mode="before")
    @classmethod
    def _read_score(cls, value: Any, info: ValidationInfo) -> Any:
        if value in ("", None) and info.data.get("status") == OK:
            raise ValueError("a score is missing")
        return None if value == "" else value


COLUMNS = list(Record.model_fields)


class Results:
    """The results in a folder; several processes may add to them at the same time."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / NAME

    def read(self) -> dict[str, Record]:
        """Return all records by key. Of several records with the same key, the first that is done counts."""
        records: dict[str, Record] = {}
        for place, row in read_csv(self.path, COLUMNS) if os.path.exists(self.path) else ():
            record = files.validate(Record, row, f"{place} is damaged; remove the line to repeat its run")
            if record.key not in records or not records[record.key].done:
                records[record.key] = record
        return records

    def add(self, new: Iterable[Record]) -> None:
        """Add records; a run that has scores is not replaced."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self.folder / LOCK):
            records = self.read()
            for record in new:
                if record.key not in records or records[record.key].status != OK:
                    records[record.key] = record
            rows = (list(record.model_dump().values()) for record in records.values())
            files.write(self.path, files.to_csv(COLUMNS, rows))


def read_csv(path: Path, columns: list[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each row of a CSV file with its place, such as "results.csv, line 3"; the header may be repeated."""
    try:
        files.check_regular(path)
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        if next(reader, []) != columns:
            raise UsageError(f"{path} was written by another version: expected the columns {', '.join(columns)}")
        for row in (row for row in reader if row and row != columns):
            if len(row) != len(columns):
                raise csv.Error(f"{len(row)} values, expected {len(columns)}")
            yield f"{path}, line {reader.line_num}", dict(zip(columns, row, strict=True))
    except csv.Error as error:
        raise UsageError(f"{path}, line {reader.line_num} is damaged ({error}); remove the line") from error
