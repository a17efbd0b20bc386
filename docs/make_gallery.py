"""Execute the notebooks for the site, in quick mode, unless they have not changed: `python docs/make_gallery.py`.

Each becomes `docs/gallery/NAME.ipynb` with its outputs, and `NAME.png`, its first picture.
"""

import base64
import hashlib
import os
import pathlib

import jupytext
from nbclient import NotebookClient

DOCS = pathlib.Path(__file__).resolve().parent
NOTEBOOKS = DOCS.parent / "notebooks"
GALLERY = DOCS / "gallery"


def execute(path: pathlib.Path) -> None:
    """Write one notebook with its outputs, and its thumbnail, unless they are there."""
    code = path.read_text()
    stamp, file = hashlib.sha256(code.encode()).hexdigest(), GALLERY / f"{path.stem}.ipynb"
    if file.exists() and jupytext.read(file).metadata.get("source") == stamp:
        return
    print(f"executing {path.name}", flush=True)
    notebook = jupytext.reads(code, fmt="py:percent")
    NotebookClient(notebook, timeout=1800, kernel_name="python3", resources={"metadata": {"path": NOTEBOOKS}}).execute()
    notebook.metadata["source"] = stamp
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    pictures = [output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    file.with_suffix(".png").write_bytes(base64.b64decode(pictures[0]))
    jupytext.write(notebook, file)


def title(path: pathlib.Path) -> str:
    """The notebook's first heading."""
    return next(line.removeprefix("# # ") for line in path.read_text().splitlines() if line.startswith("# # "))


def card(path: pathlib.Path) -> str:
    """The notebook in the gallery: its picture and its question."""
    return f":::{{grid-item-card}} {title(path)}\n:img-top: {path.stem}.png\n:link: {path.stem}\n:link-type: doc\n:::\n"


def main() -> None:
    """Every notebook, and the page that shows them."""
    os.environ.setdefault("EPF_QUICK", "1")
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(DOCS.parent / ".jax_cache"))
    os.environ.setdefault("PYTHONWARNINGS", "ignore:IProgress")  # tqdm would like widgets
    GALLERY.mkdir(exist_ok=True)
    paths = sorted(NOTEBOOKS.glob("*.py"))
    for path in paths:
        execute(path)
    cards, names = "\n".join(map(card, paths)), "\n".join(path.stem for path in paths)
    page = f"""# Notebooks

Each notebook asks one question and ends with its answer. Here they run with small numbers of particles.

::::{{grid}} 1 2 2 3
:gutter: 3

{cards}
::::

```{{toctree}}
:hidden:

{names}
```
"""
    (GALLERY / "index.md").write_text(page)


if __name__ == "__main__":
    main()
