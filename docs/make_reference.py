"""Write `docs/reference`, every public name under the room that defines it: `python docs/make_reference.py`."""

import inspect
import pathlib

import epf_jax as epf

FOLDER = pathlib.Path(__file__).resolve().parent / "reference"
ROOMS = {  # in the order in which a user meets them
    "learning": "The front door",
    "models": "Models",
    "data": "Data",
    "filters": "Filters",
    "statistics": "Statistics",
    "samplers": "Samplers",
    "particles": "Proposals and resamplers",
    "running": "Running, results, forecasts",
    "offline": "Chains, fits and smoothing",
    "exact": "Exact answers",
    "plots": "Plots",
    "core": "Findings and compilation",
}


def names_by_room() -> dict[str, list[str]]:
    """Every public name with its namespace, such as `plots.plot_theta`, by room."""
    rooms: dict[str, list[str]] = {room: [] for room in ROOMS}
    for name in epf.__all__:
        thing = getattr(epf, name)
        if inspect.ismodule(thing):
            rooms[name] += [f"{name}.{inner}" for inner in thing.__all__]
        elif name != "__version__":
            rooms[thing.__module__.split(".")[1]].append(name)
    return rooms


def entry(name: str) -> str:
    """The directive that reads one name's docstring."""
    thing = epf
    for part in name.split("."):
        thing = getattr(thing, part)
    if inspect.isclass(thing):
        return f".. autoclass:: epf_jax.{name}\n   :members:\n"
    return f".. autofunction:: epf_jax.{name}\n"


def main() -> None:
    """A page for each room, and one that lists them all."""
    FOLDER.mkdir(exist_ok=True)
    rows = []
    for room, names in names_by_room().items():
        head = f"# {ROOMS[room]}\n\n{getattr(epf, room).__doc__ or ''}\n"
        entries = "\n".join(map(entry, names))
        (FOLDER / f"{room}.md").write_text(f"{head}\n```{{eval-rst}}\n{entries}```\n")
        links = ", ".join(f"{{py:obj}}`{name} <epf_jax.{name}>`" for name in names)
        rows.append(f"| [{ROOMS[room]}]({room}.md) | {links} |")
    table = "\n".join(["| | `epf.` |", "|---|---|", *rows])
    listed = "\n".join(ROOMS)
    head = "# Every name\n\nAll of these are imported with `import epf_jax as epf`.\n"
    (FOLDER / "index.md").write_text(f"{head}\n{table}\n\n```{{toctree}}\n:hidden:\n\n{listed}\n```\n")


if __name__ == "__main__":
    main()
