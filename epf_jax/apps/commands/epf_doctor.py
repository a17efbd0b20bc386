"""`epf doctor`: installed versions, devices, precision and the compilation cache."""

import importlib.metadata
import pathlib
from typing import Any

import jax
import jax.numpy as jnp

from epf_jax.apps.commands.options import app, keep_compiled_programs, show
from epf_jax.apps.page import Table
from epf_jax.core.machine import machine
from epf_jax.core.platforms import why_no_kernels

_EXTRAS = {  # package: what it is for
    "matplotlib": "plots",
    "pyarrow": "results as Parquet",
    "xarray": "results as netCDF",
    "h5netcdf": "results as netCDF",
    "pandas": "tables of pandas",
    "polars": "tables of polars",
    "ott-jax": "transport resampling",
}


@app.command("doctor")
def doctor_command() -> None:
    """Show devices, versions, precision and the compilation cache."""
    keep_compiled_programs()
    here = machine()
    rows = [{"what": name, "is": here[name]} for name in ("epf_jax", "python", "jax", "jaxlib", "numpyro", "numpy")]
    rows += [{"what": "processor", "is": f"{here['processor']}, {here['cores']} cores"}]
    rows += [{"what": f"device {d.id}", "is": f"{d.platform}: {d.device_kind}{_memory(d)}"} for d in jax.devices()]
    show(Table("", [*rows, *_settings()]))
    show(
        Table("Packages for more", [{"what": name, "is": _version(name), "for": use} for name, use in _EXTRAS.items()])
    )


def _settings() -> list[dict[str, Any]]:
    precision = jnp.result_type(float).name
    other = "JAX_ENABLE_X64=1 gives float64" if precision == "float32" else "JAX_ENABLE_X64=0 gives float32"
    folder = pathlib.Path(jax.config.values["jax_compilation_cache_dir"] or "")
    files = [path for path in folder.glob("*") if path.is_file()] if folder.name else []
    size = sum(path.stat().st_size for path in files) / 2**20
    kept = f"{folder}: {len(files)} files, {size:.1f} MiB" if folder.name else "off"
    why_not = why_no_kernels()
    return [
        {
            "what": "kernels",
            "is": f"not used, XLA computes instead: {why_not}" if why_not else "used for small filters",
        },
        {"what": "precision", "is": f"{precision} ({other})"},
        {"what": "compilation cache", "is": f"{kept} (JAX_COMPILATION_CACHE_DIR moves it)"},
    ]


def _memory(device: Any) -> str:
    stats = device.memory_stats() or {}
    return f", {stats['bytes_limit'] / 2**30:.0f} GiB" if "bytes_limit" in stats else ""


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return f"not installed: pip install {name}"
