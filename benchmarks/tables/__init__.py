"""Write the tables of the README and of docs/ from benchmarks/results: `python -m benchmarks.tables`."""

import pathlib

from benchmarks.tables import breadth, headlines, judged, league, speed, streams

ROOT = pathlib.Path(__file__).resolve().parents[2]
REPOSITORY = "https://github.com/epf-jax/epf_jax/blob/main/"
MARKS = "<!-- {0} table, written by python -m benchmarks.tables -->\n", "<!-- end of {0} table -->\n"
PAGES = {
    "README.md": {
        "answer": headlines.answer,
        "errors": headlines.errors,
        "race": headlines.race,
    },
    "docs/which_filter.md": {"guide": league.guide},
    "docs/accuracy.md": {
        "accuracy": judged.accuracy,
        "breadth": breadth.breadth,
        "samplers": judged.samplers,
        "vague": judged.vague,
        "many": judged.many,
        "decomposed": judged.decomposed,
        "proposals": judged.proposals,
        "smoothing": judged.smoothing,
        "league": league.league,
        "duel": judged.duel,
        "evidence": judged.evidence,
        "calibration": judged.calibration,
        "streams": streams.streams,
        "attack": judged.attack,
    },
    "docs/paper.md": {"claims": judged.claims},
    "docs/gradients.md": {"gradient": speed.gradient},
    "docs/speed.md": {
        "startup": speed.startup,
        "gpu_steps": speed.gpu_steps,
        "speed": speed.speed,
        "growth": speed.growth,
        "defaults": speed.defaults,
        "noise": speed.noise,
        "summaries": speed.summaries,
        "generator": speed.generator,
        "capacity": speed.capacity,
    },
}


def written(page: str, text: str) -> str:
    """The page with the tables between their markers."""
    for name, table in PAGES[page].items():
        start, end = (mark.format(name) for mark in MARKS)
        before, rest = text.split(start)
        text = before + start + _seen_from(page, table()) + end + rest.split(end)[1]
    return text


def _seen_from(page: str, table: str) -> str:
    """A table, with links from the root, as the page links: whole in the README, which a package index shows, too."""
    if page == "README.md":
        return table.replace("](docs/", f"]({REPOSITORY}docs/")
    return table.replace("](benchmarks/", "](../benchmarks/").replace("](docs/", "](")
