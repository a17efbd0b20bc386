"""`epf stream`: observations in, one a line; posterior summaries out, one a line."""

import contextlib
import enum
import os
import pathlib
import sys
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple, TextIO

import jax.numpy as jnp
import typer

from epf_jax.apps.commands import options
from epf_jax.apps.commands.data_file import Reading, reading
from epf_jax.apps.commands.model_file import filter_for, target_of
from epf_jax.apps.commands.options import app, fail, in_options, keep_compiled_programs, note, refusals
from epf_jax.core.files import held
from epf_jax.data.series import STEP
from epf_jax.data.tables import count_of
from epf_jax.data.text_lines import LONGEST, HeaderError, LineError, LineReader, Observation
from epf_jax.data.timestamps import time_steps
from epf_jax.running.alarms import ABSURD
from epf_jax.running.checkpoints import check_path, kept_in
from epf_jax.running.streaming import FullError, Line, Stream, as_json


class OnError(enum.StrEnum):
    """What happens at a line that cannot be read."""

    stop = "stop"
    skip = "skip"


@app.command("stream")
def stream_command(
    model: options.Target,
    method: options.Method = None,
    particles: options.Particles = None,
    columns: Annotated[
        str | None, typer.Option(help="Columns that are observed, by name, or by position from 1 without a header.")
    ] = None,
    time: options.Time = None,
    unit: options.Unit = None,
    start: options.Start = None,
    inputs: options.Inputs = None,
    seed: options.Seed = 0,
    checkpoint: Annotated[pathlib.Path | None, typer.Option(help="File that the state is kept in.")] = None,
    checkpoint_every: Annotated[
        int, typer.Option(help="Write the checkpoint, and then the lines, of so many observations at once.", min=1)
    ] = 1,
    replay: Annotated[
        bool, typer.Option("--replay", help="The input begins at its first observation again: pass over those counted.")
    ] = False,
    sequence: Annotated[
        str | None,
        typer.Option(help="Column of increasing whole numbers: one counted before is not counted again."),
    ] = None,
    on_error: Annotated[OnError, typer.Option(help="What a line that cannot be read does.")] = OnError.stop,
) -> None:
    """Learn from observations as they come: one a line in, one JSON summary of the posterior a line out, each flushed.

    A line is a number, CSV (the first line may be a header) or JSON: a number, a list, or an object with named columns.
    The observation of an object is its "y", unless --columns names others. null, NaN and empty cells are missing; blank
    lines are skipped. --inputs names the columns that the model reads as u[name]. --time names the column of time
    stamps, whose steps the model reads as u["dt"]; --start is the time of the initial state. A line that cannot be read
    is reported on standard error with its number and the reason; --on-error says whether the stream stops. What the
    model's file prints goes to standard error, too.

    With --checkpoint FILE, an observation is saved before its output line is written. You can kill the process at any
    moment: no answered observation is lost. After a restart with the same FILE, the first output line is the saved
    posterior; its "t" is the number of observations counted (0 for a new FILE). Some of these may not have been
    answered. To count none twice, go on with observation t + 1, or give the whole input again with --replay, or number
    the lines (--sequence NAME) and send again what was not answered: repeated numbers get a line with "repeated": true
    and change nothing. A last line without a line end is not counted, because it may be incomplete. Only one process
    at a time may use FILE.
    """
    keep_compiled_programs()
    how = reading(columns, time, unit, start, inputs)
    with contextlib.ExitStack() as stack, refusals():
        answers = sys.stdout
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))  # what a model prints is no answer
        if checkpoint is not None:
            checkpoint = check_path(checkpoint)
            stack.enter_context(held(checkpoint))
        elif replay or checkpoint_every > 1:
            raise ValueError("--checkpoint: --replay and --checkpoint-every need a checkpoint. Name its file.")
        steps = _Steps.of(how, kept_in(checkpoint).notes.get("stamp"))
        example = {name: jnp.ones(()) for name in (*how.inputs, *([STEP] if steps.wanted else ()))} or None
        filter_ = filter_for(target_of(model), method, particles, example)
        if filter_.waiting is not None:
            raise ValueError("--inputs: the model reads inputs; name their columns.")
        shape = filter_.model.shapes.y.shape
        stream = Stream(filter_, seed, checkpoint)
        kept = stream.notes.get("header")
        reader = LineReader(shape, how.columns, how.inputs, sequence, jnp.result_type(float), kept, time)
        if checkpoint is not None:
            held_so_far = f"{checkpoint} holds {count_of(stream.t, 'observation')}."
            note(held_so_far if stream.resumed else f"{checkpoint} is new.")
            _write(answers, [{**stream.line, "resumed": stream.resumed}])
        whole_lines = checkpoint is not None
        _Loop(stream, reader, steps, answers, checkpoint_every, on_error, replay, whole_lines=whole_lines).run()


class _Steps(NamedTuple):
    """How the time before an observation is found.

    Attributes:
        wanted: whether the model reads it; otherwise stamps are labels.
        how: the options.
    """

    wanted: bool
    how: Reading

    @classmethod
    def of(cls, how: Reading, last: Any) -> "_Steps":
        """As in a table: dates without a unit are labels. `last` is the last stamp counted before."""
        if how.time is None and (how.unit is not None or how.start is not None):
            raise ValueError("--time: --unit and --start speak of a column of time stamps. Name it.")
        wanted = how.time is not None and (how.unit, how.start, last) != (None, None, None)
        if wanted and how.start is None and last is None:
            raise ValueError(
                "--start: the first line's step begins at the time of the initial state. Write that, as stamps are "
                "written."
            )
        return cls(wanted, how)

    def added(self, observation: Observation, last: Any) -> Observation:
        """The observation with its time step, since the last one counted, among its inputs."""
        if not self.wanted:
            return observation
        _, column, unit, start, _ = self.how
        since = start if last is None else last
        try:
            steps: Any = time_steps([observation.stamp], str(column), lambda _: "this line", unit, since)
        except ValueError as error:
            raise LineError(in_options(str(error)).rstrip(".")) from error
        return observation._replace(u={STEP: float(steps[0]), **(observation.u or {})})


class _Loop:
    """Reads each line, counts it, saves it, and then answers it."""

    def __init__(
        self,
        stream: Stream,
        reader: LineReader,
        steps: _Steps,
        answers: TextIO,
        every: int,
        on_error: OnError,
        replay: bool,
        *,
        whole_lines: bool,
    ):
        self._stream, self._reader, self._every, self._on_error = stream, reader, every, on_error
        self._steps, self._answers = steps, answers
        self._whole_lines = whole_lines
        self._num_read = stream.notes.get("read", stream.t)  # those counted, and those before them that were refused
        self._num_before = self._num_read
        self._to_pass_over = self._num_read if replay else 0
        self._replay = replay
        self._waiting: list[Line] = []

    def run(self) -> None:
        for number, line in enumerate(_lines(), 1):
            try:
                if self._whole_lines and not line.endswith(b"\n") and len(line) <= LONGEST:
                    # A producer that died in the middle of -1.94 leaves -1, which the checkpoint would hold for ever.
                    raise LineError("it does not end, and may be a part of one: send it again, whole")
                observation = self._reader.read(line)
                if observation is not None:
                    self._count(observation, number)
            except LineError as error:
                if self._on_error is OnError.stop or isinstance(error, HeaderError | FullError):
                    self._answer()
                    fail(f"line {number}: {error}. Stopped, with {count_of(self._stream.t, 'observation')} counted.", 1)
                note(f"line {number}: {error}. Skipped.")
        self._answer()
        if self._num_read == self._num_before:
            passed = self._num_before - self._to_pass_over if self._replay else 0
            before = f"The input had nothing new: its {count_of(passed, 'observation')} were counted before."
            note(before if passed else "The input had no observation.")

    def _count(self, observation: Observation, line_number: int) -> None:
        if self._to_pass_over:
            self._to_pass_over -= 1
            return
        number, last = observation.sequence, self._stream.sequence
        if number is not None and last is not None and number <= last:
            self._answer()
            _write(self._answers, [{"t": self._stream.t, "sequence": number, "repeated": True}])
            return
        self._num_read += 1
        observation = self._steps.added(observation, self._stream.notes.get("stamp"))
        answer = self._stream.take(observation)
        if answer["collapsed"] or (answer["log_score"] or 0.0) < ABSURD:
            what = "no particle could explain it, and it was passed over" if answer["collapsed"] else "it was counted"
            note(
                f"line {line_number}: the model all but rules it out; {what}. Is it an outlier, in other units, or a "
                "code such as -999 for a missing value (write NaN)?"
            )
        self._waiting.append(answer)
        if self._steps.wanted:
            self._stream.notes["stamp"] = observation.stamp
        self._stream.notes["read"] = self._num_read  # no further: a line that stops the stream may be mended
        if len(self._waiting) >= self._every:
            self._answer()

    def _answer(self) -> None:
        """Save what was counted, then answer it."""
        if self._waiting:
            self._stream.notes["header"] = self._reader.header
            self._stream.save()
            _write(self._answers, self._waiting)
            self._waiting = []


def _lines() -> Iterator[bytes]:
    """The lines of standard input; a line that is too long is cut."""
    source: Any = sys.stdin.buffer
    while line := source.readline(LONGEST + 2):
        rest = line
        while not rest.endswith(b"\n") and len(line) > LONGEST and (rest := source.readline(LONGEST)):
            pass
        yield line


def _write(answers: TextIO, lines: list[Line]) -> None:
    try:
        answers.write("".join(f"{as_json(line)}\n" for line in lines))
        answers.flush()
    except BrokenPipeError:
        # Nobody reads any more, as after `| head`. Python would try to flush what is left once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), answers.fileno())
        raise typer.Exit(0) from None
