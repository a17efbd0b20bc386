"""`python -m benchmarks.tables`."""

from benchmarks.tables import PAGES, ROOT, written

for page in PAGES:
    path = ROOT / page
    path.write_text(written(page, path.read_text()))
