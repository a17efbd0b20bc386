"""Write the README's tables from benchmarks/results: `python -m benchmarks.readme`."""

import pathlib

from benchmarks.readme import judged, league, speed

README = pathlib.Path(__file__).resolve().parents[2] / "README.md"
MARKS = "<!-- {0} table, written by python -m benchmarks.readme -->\n", "<!-- end of {0} table -->\n"
TABLES = {
    "accuracy": judged.accuracy,
    "league": league.league,
    "duel": judged.duel,
    "samplers": judged.samplers,
    "vague": judged.vague,
    "many": judged.many,
    "proposals": judged.proposals,
    "calibration": judged.calibration,
    "claims": judged.claims,
    "speed": speed.speed,
    "summaries": speed.summaries,
    "gradient": speed.gradient,
    "capacity": speed.capacity,
    "generator": speed.generator,
    "startup": speed.startup,
}


def written(text: str) -> str:
    """The README with the tables between their markers."""
    for name, table in TABLES.items():
        start, end = (mark.format(name) for mark in MARKS)
        before, rest = text.split(start)
        text = before + start + table() + end + rest.split(end)[1]
    return text
