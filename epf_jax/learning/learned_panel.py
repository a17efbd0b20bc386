"""What `learn` returns for a panel: an answer for each of its series, and one table of them."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from epf_jax.learning.learned import Learned
from epf_jax.learning.learned_table import table_of
from epf_jax.running.export import library


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class LearnedPanel:
    """A posterior for each series of a panel, `panel["name"]`.

    Attributes:
        by_name: the `Learned` of each series.
    """

    by_name: dict[str, Learned]

    def __getitem__(self, name: str) -> Learned:
        return self.by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.by_name)

    def __len__(self) -> int:
        return len(self.by_name)

    def __repr__(self) -> str:
        """One table, a row for each number of theta of each series."""
        width = max(len(name) for name in self.by_name)
        lines: list[str] = []
        for name, learned in self.by_name.items():
            head, *rows = table_of(learned)
            lines = lines or [f"{'':{width}} {head}  trusted"]
            lines += [f"{name:{width}} {row}  {'yes' if learned.trusted else 'NO'}" for row in rows]
        return "\n".join(lines)

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame` with a row for each number of theta of each series: that of `Learned`, and `trusted`."""
        tables = {name: learned.to_pandas().assign(trusted=learned.trusted) for name, learned in self.by_name.items()}
        return library("pandas").concat(tables, names=["series", "parameter"])
