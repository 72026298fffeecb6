"""Figures, their targets, and how every bench shows and keeps them: a table on the terminal, two CSV files.

    rows = [Row(case="decode, batch 8", ours=900.0, unit="tok/s", beside=580.0, target=1.4)]
    show("Engine", rows, beside="transformers")
    write("engine", rows, samples)

`bench/results/NAME.csv` holds the table, `NAME.samples.csv` every single measurement behind its medians.
"""

import csv
import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernels.threads import usable_cores

RESULTS = Path(__file__).parent / "results"
BUSY = 0.3  # load of others, in cores, above which a run is told to be noise


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure: what it is measured beside, and what it should be."""

    case: str
    ours: float
    unit: str
    beside: float | None = None  # the peer's figure, or the machine's limit, in the same unit
    target: float | None = None  # of ours / beside, or of ours where there is nothing beside it
    at_least: bool = True  # False: the target is an upper bound
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Ours by what is beside it."""
        return self.ours / self.beside if self.beside else None

    @property
    def verdict(self) -> str:
        """`met`, `missed`, or nothing where there is no target."""
        if self.target is None:
            return ""
        value = self.ours if self.beside is None else self.ours / self.beside
        return "met" if (value >= self.target if self.at_least else value <= self.target) else "missed"

    def goal(self) -> str:
        """Return the target as people write it."""
        if self.target is None:
            return ""
        sign = "≥" if self.at_least else "≤"
        return f"{sign} {self.target:.3g}{'' if self.beside is None else ' ×'}"


def show(title: str, rows: Sequence[Row], *, beside: str = "beside") -> None:
    """Print a table; columns that would be empty are left out."""
    compared, aimed = any(row.beside for row in rows), any(row.target is not None for row in rows)
    noted = any(row.note for row in rows)
    head = ["case", "ours", *([beside, "ratio"] if compared else []), *(["target", ""] if aimed else [])]
    lines = [[*head, *([""] if noted else [])]]
    for row in rows:
        line = [row.case, f"{_short(row.ours)} {row.unit}"]
        if compared:
            line += [_short(row.beside), f"{row.ratio:.3g} ×" if row.ratio is not None else ""]
        line += [row.goal(), row.verdict] if aimed else []
        lines.append([*line, *([row.note] if noted else [])])
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    print(f"\n{title}")
    for line in lines:
        cells = [
            line[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)),
        ]
        if noted:
            cells[-1] = line[-1]
        print("  ".join(cells).rstrip(), flush=True)


def write(name: str, rows: Sequence[Row], samples: Iterable[Mapping[str, object]] = ()) -> None:
    """Write the table, and every measurement where there are several a row; say where."""
    table = [
        {
            "case": row.case,
            "ours": f"{row.ours:.6g}",
            "unit": row.unit,
            "beside": "" if row.beside is None else f"{row.beside:.6g}",
            "ratio": "" if row.ratio is None else f"{row.ratio:.4g}",
            "target": row.goal(),
            "verdict": row.verdict,
            "note": row.note,
        }
        for row in rows
    ]
    paths = [_write(f"{name}.csv", table)]
    if kept := list(samples):
        paths.append(_write(f"{name}.samples.csv", kept))
    print(f"written: {', '.join(map(str, paths))}", flush=True)


def take_turns(sides: Mapping[str, Callable[[], float]], *, repeats: int, warm_up: int = 1) -> dict[str, list[float]]:
    """Measure the sides alternately, each first in every other turn, after `warm_up` unkept turns."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for repeat in range(-warm_up, repeats):
        order = list(sides) if repeat % 2 == 0 else list(reversed(tuple(sides)))
        for name in order:
            value = sides[name]()
            if repeat >= 0:
                found[name].append(value)
    return found


def samples_of(case: str, found: Mapping[str, Sequence[float]], unit: str) -> list[dict[str, object]]:
    """Return the CSV lines of what `take_turns` found."""
    return [
        {"case": case, "side": side, "repeat": repeat, "value": f"{value:.6g}", "unit": unit}
        for side, values in found.items()
        for repeat, value in enumerate(values)
    ]


def medians(found: Mapping[str, Sequence[float]]) -> tuple[float, ...]:
    """Return each side's median, in the sides' order."""
    return tuple(statistics.median(values) for values in found.values())


def machine() -> str:
    """Describe the machine and what else it is doing: figures of a busy one are noise."""
    model = "unknown CPU"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    cores, busy = usable_cores(), busy_cores()
    state = "quiet" if busy < BUSY else f"NOT QUIET ({busy:.1f} cores are busy with other work): figures are noise"
    return f"{model}, {cores} cores to use, {state}"


def busy_cores(seconds: float = 1.0) -> float:
    """Watch the whole machine while this process sleeps, and return how many cores are busy."""
    before = _busy_seconds()
    time.sleep(seconds)
    return (_busy_seconds() - before) / seconds


def _busy_seconds() -> float:
    user, nice, system, _idle, _wait, *others = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:])
    return (user + nice + system + sum(others[:3])) / os.sysconf("SC_CLK_TCK")  # interrupts, and what the host took


def _short(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _write(name: str, lines: Sequence[Mapping[str, object]]) -> Path:
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / name
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, fieldnames=list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)
    return path
