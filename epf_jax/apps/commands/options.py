"""Shared by the commands: the application, its console, its options, and how errors are shown."""

import contextlib
import pathlib
import re
import sys
from collections.abc import Iterator
from typing import Annotated, Any, NoReturn

import jax
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table as Printed

from epf_jax._version import __version__
from epf_jax.apps.commands.method_names import METHODS, in_words
from epf_jax.apps.page import Table
from epf_jax.core.checks import in_full, notes_of
from epf_jax.core.compilation_cache import cache_compiled_programs
from epf_jax.core.files import BusyError

app = typer.Typer(add_completion=False, help="Static parameters of state-space models, online.")
console = Console()
_WIDTH = 160  # characters of a table that goes to a file or a pipe

Target = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="path/to/model.py:name, a StateSpaceModel in a Python file, or a filter built there; the only one of a "
        "file needs no name. The file is run.",
    ),
]
Data = Annotated[pathlib.Path, typer.Argument(metavar="DATA", help="A CSV file with its column names in line 1.")]
Method = Annotated[str | None, typer.Option(help=f"One of {in_words()}; by default what `epf.learn` takes.")]
Seconds = Annotated[float, typer.Option(help="The most seconds that learning may take; an answer comes before.")]
Particles = Annotated[
    int | None,
    typer.Option(
        help="Number of particles of --method (of `node`, at each node; of `window`, thetas in each group); by default "
        "what suits it.",
        min=1,
    ),
]
Columns = Annotated[str | None, typer.Option(help="Columns that are observed, such as high,low. The rest by default.")]
Inputs = Annotated[str | None, typer.Option(help="Columns that the model reads as u[name].")]
Time = Annotated[str | None, typer.Option(help='Column of time stamps; the model reads their steps as u["dt"].')]
Unit = Annotated[
    str | None,
    typer.Option(
        help="Unit of u[dt] where stamps are dates: seconds, minutes, hours, days, weeks, months, quarters, years; "
        "without one they are labels."
    ),
]
Start = Annotated[
    str | None,
    typer.Option(
        help="Time of the initial state. A stream with time steps needs it. A table's first step is otherwise as long "
        "as its second."
    ),
]
Seed = Annotated[int, typer.Option(help="Seed of the random numbers.", min=0, max=2**31 - 1)]
Output = Annotated[pathlib.Path, typer.Option(help="Folder of the report, the plots and the numbers.")]


@app.callback(invoke_without_command=True)
def _main(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    """Static parameters of state-space models, learned online."""
    if version:
        console.print(f"epf_jax {__version__}", highlight=False)
    elif context.invoked_subcommand is None:
        console.print(context.get_help())


def fail(message: str, code: int = 2) -> NoReturn:
    """End the command with a message on standard error."""
    typer.secho(f"epf: {message}", err=True, fg="red")
    raise typer.Exit(code)


def note(message: str) -> None:
    """Print a note on standard error."""
    typer.echo(f"epf: {message}", err=True)


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """End the command with the reason if an argument, a file or the data raise an error."""
    try:
        yield
    except (ValueError, TypeError, ImportError, BusyError, LookupError, NameError, AttributeError) as error:
        if notes_of(error):  # it came from a function of the model
            fail(_of_a_function(error))
        if isinstance(error, LookupError | NameError | AttributeError):
            raise
        fail(in_options(str(error)))
    except OSError as error:
        fail(f"{error.filename or 'a file'}: {error.strerror or error}")
    except KeyboardInterrupt:
        fail("interrupted.", 130)


def _of_a_function(error: BaseException) -> str:
    """What a function of the model raised; where it reads inputs that are missing, how they are named."""
    notes = " ".join(notes_of(error))
    where = re.search(r"This came from (\w+)", notes)
    if where is None or "reads inputs" not in notes:
        return in_options(in_full(error))
    return (
        f"--inputs: {where[1]} reads inputs, and failed without them: {type(error).__name__}: {error}. Name the "
        'columns that the model reads, --inputs NAME,NAME; --time NAME --unit days makes u["dt"].'
    )


_OPTIONS = "columns|time|unit|start|inputs|seconds|num_particles"
_FILTERS = {method.build.__name__: name for name, method in METHODS.items()}


def in_options(text: str) -> str:
    """A message of the library with its arguments and filters spelled as options: `--unit days`, `--method smc2`."""

    def option(found: re.Match[str]) -> str:
        value = found[2].strip("[]()'\"").replace("', '", ",")
        return f"--{found[1].replace('num_', '')} {'N' if value == '...' else value}"

    text = re.sub(rf"\b({_OPTIONS})=(\.\.\.|\[[^]]*\]|'[^']*'|[\w.]+)", option, text)
    text = re.sub(rf"(^|: )({_OPTIONS}): ", lambda found: f"{found[1]}--{found[2].replace('num_', '')}: ", text)
    return re.sub(
        r"epf\.(\w+)(\([^()]*\))?", lambda f: f"--method {_FILTERS[f[1]]}" if f[1] in _FILTERS else f[0], text
    )


def keep_compiled_programs() -> None:
    """Switch on the compilation cache, unless its folder is already set."""
    if jax.config.values["jax_compilation_cache_dir"] is None:
        try:
            cache_compiled_programs()
        except OSError as error:
            note(f"compiled programs are not kept ({error.strerror or error}); every start compiles.")


def progress_bar(on: Console | None = None) -> Progress:
    """A progress bar, on standard error unless another console is given."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=Console(file=sys.stderr) if on is None else on)


def show(table: Table) -> None:
    """Print a table."""
    columns = list(dict.fromkeys(key for row in table.rows for key in row))
    printed = Printed(title=table.title or None, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for i, column in enumerate(columns):
        printed.add_column(column, justify="left" if i == 0 else "right", overflow="fold")
    for row in table.rows:
        printed.add_row(*(str(row.get(column, "")) for column in columns))
    console.print(printed, width=None if console.is_terminal else _WIDTH)
    if table.note:
        console.print(table.note, style="dim", highlight=False)


def written(value: Any, digits: int = 4) -> str:
    """A number as text for a table."""
    return f"{float(value):.{digits}g}"
