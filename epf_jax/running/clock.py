"""How much time is left, and a line that tells what it is spent on."""

import time
from typing import Any

from tqdm.auto import tqdm


class Clock:
    """Seconds that may be spent, counted from when it is made.

    Args:
        seconds: how many.
        progress: whether to show a bar of them, with what is being done.
    """

    def __init__(self, seconds: float, progress: bool = False):
        self._start, self.seconds, self.stopped = time.monotonic(), seconds, False
        self._bar: Any = None
        self._expected: float | None = None
        if progress:
            form = "{desc}: {bar} {n:.0f} of at most {total:.0f} s"
            self._bar = tqdm(total=seconds, desc="learning", bar_format=form)

    def spent(self) -> float:
        """Seconds since it was made."""
        return time.monotonic() - self._start

    def left(self) -> float:
        """Seconds that are left, below zero when there are none."""
        return self.seconds - self.spent()

    def is_up(self) -> bool:
        """Whether none are left, or the user has pressed Ctrl-C."""
        return self.stopped or self.left() <= 0

    def expect(self, more: float) -> None:
        """That it takes about so many seconds from now on."""
        self._expected = min(self.spent() + more, self.seconds)

    def tell(self, what: str, share: float | None = None) -> None:
        """Show what is being done, and how much of it is."""
        if self._bar is not None:
            what = what if share is None else f"{what} ({share:.0%})"
            in_all = "" if self._expected is None else f", about {self._expected:.0f} s in all"
            self._bar.set_description_str(what + in_all)
            self._bar.n = min(self.spent(), self.seconds)
            self._bar.refresh()

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()
