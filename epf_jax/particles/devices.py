r"""One filter whose particles are spread over many devices.

    mesh = jax.make_mesh((8,), ("particles",))
    filter_ = epf.extended_parameter_filter(model, 8_000_000, resample=epf.across_devices(mesh))
    results = epf.run(key, filter_, y)

A filter works on each particle or sums over particles, and XLA divides both over the devices. Only resampling needs
particles of other devices. So the resampling scheme says where the particles are:

- `across_devices(mesh)`: systematic resampling of all particles together. Each device counts the offspring of its own
  particles, given the total weights of the others. Blocks of particles then go round in a ring, and each device keeps
  the ancestors of its own places. No device ever holds all particles.
- `islands(mesh)`: each device resamples its own particles and keeps its share of the weight. Only sums are exchanged.
If
  few devices hold the weight, one step resamples across all.

Both leave the evidence unbiased. The mesh may span several processes (`jax.distributed`).
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int, PRNGKeyArray

from epf_jax.particles.resampling import (
    Resampler,
    Selection,
    ancestors_of_counts,
    check_resampler,
    is_share,
    layers,
    offspring_up_to,
    replaced,
    running_sum,
    systematic,
    warn_of_coarse_positions,
    whole_weights,
)
from epf_jax.particles.weights import Weighing, uniform_log_weights, where_rows


@dataclasses.dataclass(frozen=True)
class across_devices:  # noqa: N801  used as a function, as `when_ess_below` is
    """Systematic resampling of particles spread over the devices of a mesh, exactly as on one device.

    Args:
        mesh: a mesh of one axis, `jax.make_mesh((8,), ("particles",))`; it must divide the number of particles.
    """

    mesh: Mesh

    def __post_init__(self):
        object.__setattr__(self, "mesh", _divided_by_xla(self.mesh))

    def select(self, key: PRNGKeyArray, weighing: Weighing, particles: Any, place: Any) -> Selection:
        """Fill each device's places with their ancestors from any device."""
        axis, num = _axis(self.mesh), self.mesh.size
        u = jax.random.uniform(key, dtype=weighing.log_weights.dtype)
        n = weighing.log_weights.shape[0]

        def on_each(u, w, particles):
            counts = _offspring(u, w, n, axis)
            return _fetch(counts, particles, n // num, axis, num)

        w = jax.lax.stop_gradient(weighing.weights)  # ancestors are whole numbers
        fetched, ancestors = _on_each(self.mesh, on_each)(u, w, particles)
        return replaced(weighing, particles, fetched, uniform_log_weights(n), ancestors)

    def check(self, num_particles: int) -> None:
        """Refuse a mesh that does not divide the particles."""
        _check_mesh(self.mesh, num_particles)
        warn_of_coarse_positions(num_particles)

    @property
    def name(self) -> str:
        """For descriptions."""
        return f"systematic across {self.mesh.size} devices"


@dataclasses.dataclass(frozen=True)
class islands:  # noqa: N801
    """Each device of a mesh resamples its own particles; all are mixed when few devices hold the weight.

    Args:
        mesh: a mesh of one axis; it must divide the number of particles.
        exchange_below: resample across all devices if the effective number of islands, 1 / sum of squared shares of the
            weight, is below this fraction of them; with 0, never.
        scheme: how each island resamples; `epf.systematic` by default.
    """

    mesh: Mesh
    exchange_below: float = 0.5
    scheme: Resampler = systematic

    def __post_init__(self):
        object.__setattr__(self, "mesh", _divided_by_xla(self.mesh))

    def select(self, key: PRNGKeyArray, weighing: Weighing, particles: Any, place: Any) -> Selection:
        """Particles resampled island by island, or across all of them."""
        shares = jnp.sum(weighing.weights.reshape(self.mesh.size, -1), axis=1)
        uneven = 1.0 / jnp.sum(shares**2) < self.exchange_below * self.mesh.size
        everywhere = partial(across_devices(self.mesh).select, key, weighing, particles, place)
        here = partial(self._island_by_island, key, weighing, particles)
        return jax.lax.cond(uneven, everywhere, here) if self.exchange_below > 0 else here()

    def _island_by_island(self, key: PRNGKeyArray, weighing: Weighing, particles: Any) -> Selection:
        axis, num = _axis(self.mesh), self.mesh.size
        local = weighing.log_weights.shape[0] // num

        def on_each(key, log_weights, particles):
            island = jax.lax.axis_index(axis)
            dead = jnp.max(log_weights) == -jnp.inf  # an island without weight stays so; its numbers must not be NaN
            alive = jnp.where(dead, 0.0, log_weights)
            ancestors = self.scheme(jax.random.fold_in(key, island), alive)
            share = jnp.where(dead, -jnp.inf, jax.nn.logsumexp(alive))
            gathered = jax.tree.map(lambda leaf: leaf[ancestors], particles)
            return gathered, jnp.full(local, share - jnp.log(local)), ancestors + island * local

        gathered, log_weights, ancestors = _on_each(self.mesh, on_each)(key, weighing.log_weights, particles)
        return replaced(weighing, particles, gathered, log_weights, ancestors)

    def check(self, num_particles: int) -> None:
        """Refuse a mesh that does not divide the particles, and a scheme that does more than name ancestors."""
        _check_mesh(self.mesh, num_particles)
        if not is_share(self.exchange_below):
            raise ValueError(f"exchange_below: expected a share of the islands, 0 to 1, got {self.exchange_below!r}.")
        check_resampler(self.scheme, num_particles // self.mesh.size)
        if self.exchange_below > 0:
            warn_of_coarse_positions(num_particles)
        if hasattr(self.scheme, "select"):
            raise TypeError(
                f"scheme: islands resample by a plain scheme such as epf.systematic, got {self.scheme!r}. To resample "
                "now and then: epf.when_ess_below(0.5, epf.islands(mesh))."
            )

    @property
    def name(self) -> str:
        """For descriptions."""
        return f"on {self.mesh.size} islands, mixed below {self.exchange_below:g} of them"


def mesh_of(resample: Any) -> Mesh | None:
    """The mesh over which a resampler, or the scheme inside it, spreads particles; None if it does not."""
    return next((layer.mesh for layer in layers(resample) if getattr(layer, "mesh", None) is not None), None)


def spread_particles(mesh: Mesh | None, tree: Any, by_particle: Any) -> Any:
    """The tree, its leaves marked as spread over the mesh where `by_particle`, a prefix of it, says so."""
    if mesh is None:
        return tree
    rows, shared = (NamedSharding(mesh, spec) for spec in (PartitionSpec(_axis(mesh)), PartitionSpec()))

    def mark(flag, part):
        return jax.tree.map(lambda leaf: jax.lax.with_sharding_constraint(leaf, rows if flag else shared), part)

    return jax.tree.map(mark, by_particle, tree)


def _offspring(u: Array, w: Float[Array, " n"], total: int, axis: str) -> Int[Array, " n"]:
    """The cumulative number of offspring up to each particle, over this device and those before it."""
    counts = running_sum(whole_weights(w))
    sums = jax.lax.all_gather(counts[-1], axis)
    before = jnp.sum(jnp.where(jnp.arange(sums.shape[0]) < jax.lax.axis_index(axis), sums, 0), dtype=counts.dtype)
    return offspring_up_to(counts + before, jnp.sum(sums, dtype=counts.dtype), total, u)


def _fetch(counts: Int[Array, " n"], particles: Any, local: int, axis: str, num: int) -> tuple[Any, Int[Array, " n"]]:
    """The ancestors of this device's places, and their numbers, collected while all blocks go round the ring."""
    here = jax.lax.axis_index(axis)
    first_place = here * local
    ring = [(d, (d + 1) % num) for d in range(num)]

    def pass_by(turn, carry):
        block, kept, ancestors = carry
        counts, particles = block
        at = ancestors_of_counts(jnp.clip(counts - first_place, 0, local))
        # The last particle whose offspring do not reach a place stands for none: the place descends from a later block.
        reached = counts[-1] - first_place > jnp.arange(local)
        owner = (here - turn) % num
        # Blocks pass in the order here, here - 1, ..., wrapping round: of those that reach a place, the one of lowest
        # number holds its ancestor.
        better = reached & ((ancestors < 0) | (owner * local + at < ancestors))
        kept = jax.tree.map(lambda old, new: where_rows(better, new[at], old), kept, particles)
        ancestors = jnp.where(better, owner * local + at, ancestors)
        block = jax.tree.map(lambda leaf: jax.lax.ppermute(leaf, axis, ring), block)
        return block, kept, ancestors

    start = ((counts, particles), particles, jnp.full(local, -1, jnp.int32))
    _, kept, ancestors = jax.lax.fori_loop(0, num, pass_by, start)
    return kept, ancestors


def _on_each(mesh: Mesh, function: Callable) -> Callable:
    """`function`, run by every device on its own rows; the first argument is the same for all."""
    rows, shared = PartitionSpec(_axis(mesh)), PartitionSpec()
    # Without checks of what varies over the mesh: `jet` has no rules for them, and Pallas' kernels neither.
    return jax.shard_map(function, mesh=mesh, in_specs=(shared, rows, rows), out_specs=rows, check_vma=False)


def _axis(mesh: Mesh) -> str:
    return mesh.axis_names[0]


def _divided_by_xla(mesh: Any) -> Any:
    """The mesh with automatic sharding by XLA; that of `jax.make_mesh` needs explicit sharding of every operation."""
    return Mesh(mesh.devices, mesh.axis_names) if isinstance(mesh, Mesh) else mesh


def _check_mesh(mesh: Any, num_particles: int) -> None:
    if not isinstance(mesh, Mesh) or len(mesh.axis_names) != 1:
        raise TypeError(
            f"mesh: expected a mesh of one axis, jax.make_mesh(({jax.device_count()},), ('particles',)), got {mesh!r}."
        )
    if num_particles % mesh.size:
        raise ValueError(
            f"num_particles: {num_particles} particles cannot be divided over the {mesh.size} devices of the mesh; "
            f"take {-(-num_particles // mesh.size) * mesh.size}."
        )
