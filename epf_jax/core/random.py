r"""Random numbers: the generator of all draws inside a filter.

`jax.random` uses threefry, with twenty rounds for every word. `stream(key)` gives a key of another kind for the same
`jax.random` functions, and so for every distribution's `sample`. It differs in two ways. Its bits are a hash of the
counter with two keys,

.. math:: a = A(i \oplus k_0), \qquad b_i = B(a + k_1 + c) \oplus a

where A and B are bijections of 32-bit words by Wellons (lowbias32) and Appleby (murmur3's finaliser), and c is a
constant so that a key of zeros does not give zeros. Because of the last term b is not a bijection, so that words repeat
as often as random ones do. And keys are split by threefry, as in jax, but written as one expression: XLA runs jax's
version as a loop of tiny kernels on a CPU.

`normal(key, shape)` is what `jax.random.normal` is, the quantile of a uniform.

The tests compare moments, independence across keys and counters, and distributions of a million draws with the law.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import define_prng_impl
from jaxtyping import Array, Float, PRNGKeyArray, UInt32

Words = UInt32[Array, "..."]

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))  # of threefry-2x32 (Salmon et al. 2011)
_PARITY = 0x1BD11BDA


def stream(key: PRNGKeyArray) -> PRNGKeyArray:
    """The key that a filter draws with, of this module's generator, from a user's key of any kind."""
    return key if jax.random.key_impl(key) == _HASHED else jax.random.wrap_key_data(_two_words(key), impl=_HASHED)


def threefry(key: PRNGKeyArray) -> PRNGKeyArray:
    """A key of jax's own generator, which a few of its functions need."""
    return jax.random.wrap_key_data(_two_words(key), impl="threefry2x32")


def normal(key: PRNGKeyArray, shape: tuple[int, ...] = (), dtype: Any = float) -> Float[Array, "..."]:
    """Standard normals, float32 or float64."""
    digits = jnp.finfo(jax.dtypes.canonicalize_dtype(dtype)).nmant
    return normal_at(uniform(key, shape, dtype) * 2.0 + (2.0**-digits - 1.0))  # between -1 and 1, ends excluded


def uniform(key: PRNGKeyArray, shape: tuple[int, ...] = (), dtype: Any = float) -> Float[Array, "..."]:
    """Uniform numbers in [0, 1), float32 or float64: those of `jax.random.uniform`, in fewer equations."""
    dtype = jax.dtypes.canonicalize_dtype(dtype)
    size = 8 * dtype.itemsize
    one = dtype.type(1.0).view(f"uint{size}")  # the random digits are those of a number from 1 to 2
    digits = jax.random.bits(key, shape, one.dtype) >> (size - jnp.finfo(dtype).nmant)
    return jax.lax.bitcast_convert_type(digits | one, dtype) - 1.0


def normal_at(u: Float[Array, "..."]) -> Float[Array, "..."]:
    """Standard normals from uniform numbers between -1 and 1."""
    return math.sqrt(2.0) * jax.lax.erf_inv(u)


def between_ones(key: PRNGKeyArray, counters: Words, dtype: Any) -> Float[Array, "..."]:
    """A number between -1 and 1, ends excluded, at each counter of a filter's key."""
    words, digits = _two_words(key), jnp.finfo(dtype).nmant
    word = hashed_words(words[0], words[1], counters)
    if dtype == jnp.float64:
        other = words ^ jnp.uint32(_PARITY)
        word = (word.astype(jnp.uint64) << 32) | hashed_words(other[0], other[1], counters).astype(jnp.uint64)
    bits = word >> (32 * (1 + (dtype == jnp.float64)) - digits)
    return (bits.astype(dtype) + 0.5) * 2.0 ** (1 - digits) - 1.0


def places(shape: tuple[int, ...]) -> Words:
    """The place of every number of an array, counted row by row."""
    strides = np.cumprod([1, *shape[:0:-1]])[::-1]
    along = (jax.lax.broadcasted_iota(jnp.uint32, shape, axis) for axis in range(len(shape)))
    return sum((i * jnp.uint32(n) for i, n in zip(along, strides, strict=False)), jnp.zeros(shape, jnp.uint32))


def side_by_side(
    draw: Callable[..., Array], key: PRNGKeyArray, batch: tuple[int, ...], each: tuple[int, ...], dtype: Any
) -> Float[Array, "..."]:
    """Numbers by `draw(key, shape, dtype)` of the shape (*batch, *each), with the particles adjacent in memory.

    Otherwise the few numbers of one particle would be adjacent, in loops too short to vectorise.
    """
    drawn = draw(key, (*each, *batch), dtype)
    return jnp.moveaxis(drawn, range(len(each), drawn.ndim), range(len(batch)))


def _two_words(key: PRNGKeyArray) -> Words:
    words = jax.random.key_data(key)
    if words.shape[key.ndim :] != (2,):  # a generator with longer keys
        words = jax.random.bits(key, (2,), jnp.uint32)
    return words


def _random_bits(key: UInt32[Array, "2"], bit_width: int, shape: tuple[int, ...]) -> Array:
    size = math.prod(shape)
    if size >= 2**32:
        raise ValueError(f"shape {shape}: a key gives at most 2^32 random numbers. Split the key.")
    if bit_width == 64:
        high, low = (_hash(key ^ jnp.uint32(half), size).astype(jnp.uint64) for half in (0, _PARITY))
        return ((high << 32) | low).reshape(shape)
    words = _hash(key, size).reshape(shape)
    return words if bit_width == 32 else (words >> (32 - bit_width)).astype(f"uint{bit_width}")


def _hash(key: UInt32[Array, "2"], size: int) -> Words:
    return hashed_words(key[0], key[1], jax.lax.iota(jnp.uint32, size))


def hashed_words(key_0: Words, key_1: Words, counters: Words) -> Words:
    """The random word at each counter."""
    a = _mix(counters ^ key_0, (16, 0x7FEB352D, 15, 0x846CA68B, 16))
    return _mix(a + key_1 + jnp.uint32(_PARITY), (16, 0x85EBCA6B, 13, 0xC2B2AE35, 16)) ^ a


def threefry_words(key_0: Words, key_1: Words, counters: Words) -> Words:
    """The random word that jax's own generator gives at each counter."""
    x, y = _threefry((key_0, key_1), jnp.uint32(0), counters)
    return x ^ y


WORDS = {"key<epf>": hashed_words, "key<fry>": threefry_words}
"""What kernels know to draw, by the kind of key; both kinds are split alike."""


def _mix(word: Words, constants: tuple[int, int, int, int, int]) -> Words:
    first, times, second, times_again, last = constants
    word = (word ^ (word >> jnp.uint32(first))) * jnp.uint32(times)
    word = (word ^ (word >> jnp.uint32(second))) * jnp.uint32(times_again)
    return word ^ (word >> jnp.uint32(last))


def _split(key: UInt32[Array, "2"], shape: tuple[int, ...]) -> Words:
    numbers, which = (jax.lax.broadcasted_iota(jnp.uint32, (math.prod(shape), 2), axis) for axis in (0, 1))
    return _pair(which, *split_words(key[0], key[1], numbers)).reshape(*shape, 2)


def _pair(which: Words, first: Words, second: Words) -> Words:
    """The two words of a key side by side, each where `which` says.

    If they were stacked, XLA would unroll all rounds twice, and LLVM could take minutes on a single key in a loop.
    """
    return jnp.where(which == 0, first, second)


def split_words(key_0: Words, key_1: Words, numbers: Words) -> tuple[Words, Words]:
    """The two words of each numbered child of a key."""
    return _threefry((key_0, key_1), jnp.uint32(0), numbers)


def _fold_in(key: UInt32[Array, "2"], data: Any) -> UInt32[Array, "2"]:
    low = jnp.broadcast_to(jnp.asarray(data).astype(jnp.uint32), 2)
    return _pair(jax.lax.iota(jnp.uint32, 2), *_threefry((key[0], key[1]), jnp.uint32(1), low))


def _seed(seed: Any) -> UInt32[Array, "2"]:
    return jax.random.key_data(jax.random.key(seed, impl="threefry2x32"))


def _threefry(key: tuple[Words, Words], high: Words, low: Words) -> tuple[Words, Words]:
    """Twenty rounds of threefry on the pair of counters (high, low)."""
    schedule = (key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(_PARITY))
    x, y = high + schedule[0], low + schedule[1]
    for block in range(5):
        for rotation in _ROTATIONS[block % 2]:
            x = x + y
            y = ((y << jnp.uint32(rotation)) | (y >> jnp.uint32(32 - rotation))) ^ x
        x = x + schedule[(block + 1) % 3]
        y = y + schedule[(block + 2) % 3] + jnp.uint32(block + 1)
    x, y = jnp.broadcast_arrays(x, y)
    return x, y


_HASHED = define_prng_impl(
    key_shape=(2,),
    seed=_seed,
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,
    name="epf_hashed",
    tag="epf",
)
