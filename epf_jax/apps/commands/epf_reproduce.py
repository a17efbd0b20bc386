"""`epf reproduce`: repeats the paper's experiments."""

import pathlib
from collections.abc import Iterator
from typing import Annotated

import typer

from epf_jax.apps.commands.options import app, console, fail, progress_bar
from epf_jax.apps.reproduce import DEMO, EXPERIMENTS, FULL, Size, StoreError, reproduce
from epf_jax.apps.reproduce.store import Unit


@app.command("reproduce")
def reproduce_command(
    experiments: Annotated[
        list[str] | None, typer.Argument(help=f"Which parts of the paper: {', '.join(EXPERIMENTS)}. All by default.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Twenty data sets per model, with error bars.")] = False,
    output: Annotated[
        pathlib.Path | None, typer.Option(help="Folder of the report and its results: results, or results/full.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Observations per series, instead of 1000.", min=10)] = None,
    fewer: Annotated[int, typer.Option(help="Divide every number of particles by this, for a quick look.", min=1)] = 1,
) -> None:
    """Run the paper's experiments again and write a report: figures, tables, and a verdict on every claim.

    Results are kept: you can interrupt a run and start it again.
    """
    unknown = [name for name in experiments or () if name not in EXPERIMENTS]
    if unknown:
        fail(f"unknown experiment {', '.join(map(repr, unknown))}. There are: {', '.join(EXPERIMENTS)}.")
    chosen = [EXPERIMENTS[name] for name in (dict.fromkeys(experiments) if experiments else EXPERIMENTS)]
    base = FULL if full else DEMO
    output = output or pathlib.Path("results/full" if full else "results")
    size = Size(base.name, base.num_series, steps or base.num_steps, fewer)
    try:
        path = reproduce(chosen, size, output, _progress, note=console.print, whole=len(chosen) == len(EXPERIMENTS))
    except StoreError as error:
        fail(str(error))
    except KeyboardInterrupt:
        fail(f"interrupted. What was finished is kept in {output / 'data'}; the same command goes on from there.", 130)
    console.print(f"report: [bold]{path}[/bold]", highlight=False, soft_wrap=True)


def _progress(units: list[Unit]) -> Iterator[Unit]:
    """The units in turn, under a progress bar that names the one being computed."""
    if not units:
        return
    with progress_bar(console) as bar:
        task = bar.add_task("", total=len(units))
        for unit in units:
            bar.update(task, description=unit.name)
            if not console.is_terminal:
                console.print(f"computing {unit.name}")
            yield unit
            bar.advance(task)
        bar.update(task, description="writing the report")
