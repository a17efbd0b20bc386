"""Pages of Markdown as tests: every Python block runs, in order, and errors that a page shows are those that come."""

import pathlib
import re
import warnings

from epf_jax.core.checks import in_full

ROOT = pathlib.Path(__file__).resolve().parents[1]
_BLOCK = re.compile(r"```python( raises| slow)?\n(.*?)```(?:\s*```text\n(.*?)```)?", flags=re.DOTALL)


def run_page(path, *, slow=False):
    """The names that the page's blocks leave, run one after the other.

    A block marked `python raises` raises, or warns; the text block after it shows what, `...` standing for any words.
    One marked `python slow` compiles for long, and is run only where slow tests are.
    """
    namespace, num = {}, 0
    for mark, code, shown in _BLOCK.findall((ROOT / path).read_text()):
        num += 1
        program = compile(code, str(path), "exec")
        if mark == " slow" and not slow:
            continue
        if mark != " raises":
            exec(program, namespace)
            continue
        told = _trouble(program, namespace)
        pattern = ".*".join(re.escape(_one_line(part)) for part in shown.split("..."))
        assert re.fullmatch(pattern, _one_line(told), flags=re.DOTALL), f"{path} shows\n{shown}\nbut it is\n{told}"
    return namespace, num


def _trouble(program, namespace):
    """What the block raises, or warns of, with its kind."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "The Pallas Triton backend is deprecated")  # jax 0.11 on a GPU
        try:
            exec(program, namespace)
        except Exception as error:
            return in_full(error)
    raise AssertionError("a block marked `raises` raised nothing")


def _one_line(text):
    return " ".join(text.split())
