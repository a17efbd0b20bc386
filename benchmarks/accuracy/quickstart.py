"""What the README's example prints: `python -m benchmarks.accuracy.quickstart`."""

import re

import jax

from benchmarks.report import RESULTS, save


def main() -> None:
    """Run the README's blocks up to `learn`, and store what `print(learned)` shows."""
    page = (RESULTS.parents[1] / "README.md").read_text()
    namespace: dict = {}
    for block in re.findall(r"```python[^\n]*\n(.*?)```", page, flags=re.DOTALL):
        exec(block, namespace)
        if "learned" in namespace:
            break
    printed = repr(namespace["learned"]).splitlines()
    save("quickstart", {"key": 1, "device": jax.default_backend()}, [{"line": line} for line in printed])


if __name__ == "__main__":
    main()
