"""Level sets: read from Boxoban files, made by reverse play, or those that ship with the package; and the solver."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from threading import Lock
from weakref import WeakValueDictionary

import numpy as np

from parl_like.data.storage.safe_files import names_in, read_named
from parl_like.envs.sokoban import _sokoban
from parl_like.values.spec import Array

CHARS = "# $!@%.^&*"
"""Tile code → character: wall, floor, box, box on target, player, player on target, target, danger, box and player on danger."""


MAX_TEXT = 128 << 20
"""Bytes of text in one set; Boxoban's 900,000 levels have 105 million."""
MAX_FILES = 10_000
"""Names in a folder of level files."""


class LevelError(ValueError):
    """A level file cannot be used; the message says file, line, level and what is wrong."""


class Levels:
    """Levels of one size in a compact read-only array that all boards share.

    Args:
        packed: [n, (size² + 1) // 2] uint8, two tile codes a byte, low half first. Made read-only, not copied.
        size: Cells along a side, 3 to 10.
        source: Where they come from, for messages.

    Raises:
        ValueError: packed has another shape or dtype, or no level.
    """

    def __init__(self, packed: Array, size: int, source: str = "") -> None:
        if packed.ndim != 2 or packed.shape[1] != (size * size + 1) // 2 or packed.dtype != np.uint8 or len(packed) == 0:
            raise ValueError(f"Levels: packed is {packed.shape} {packed.dtype}; expected (n ≥ 1, {(size * size + 1) // 2}) uint8")
        self.packed = np.ascontiguousarray(packed)
        self.packed.flags.writeable = False
        self.size = size
        self.source = source

    def __len__(self) -> int:
        return len(self.packed)

    def __getitem__(self, i: int) -> Array:
        """[size, size] uint8 tile codes of level `i`, newly allocated."""
        if not 0 <= i < len(self):
            raise IndexError(f"there is no level {i}; there are {len(self)}")
        return _sokoban.unpack(self.packed[i], self.size)

    def __repr__(self) -> str:
        return f"Levels({len(self)} of {self.size}×{self.size} from {self.source or 'memory'})"

    @classmethod
    def of(cls, tiles: Iterable[Array], n_boxes: int = 0, source: str = "") -> Levels:
        """From [size, size] arrays of tile codes, all of one size.

        Raises:
            LevelError: a level cannot be played, or has not `n_boxes` boxes (0: any number).
        """
        rows, size = [], 0
        for i, level in enumerate(tiles):
            codes = np.ascontiguousarray(level, np.uint8)
            wrong = _sokoban.fault(codes, n_boxes)
            if not wrong and size not in (0, len(codes)):
                wrong = f"it is {len(codes)}×{len(codes)}; those before are {size}×{size}"
            if wrong:
                raise LevelError(f"{source or 'levels'}, level {i}: {wrong}")
            size = len(codes)
            flat = np.append(codes.reshape(-1), np.zeros(codes.size % 2, np.uint8))
            rows.append(flat[::2] | flat[1::2] << 4)
        if not rows:
            raise LevelError(f"{source or 'levels'}: no level")
        return cls(np.stack(rows), size, source)

    @classmethod
    def parse(cls, text: bytes | str, size: int = 0, n_boxes: int = 0, source: str = "text") -> Levels:
        """From Boxoban's text: for each level a line that begins with ';' and `size` rows of characters; blank lines between
        levels.

        Args:
            size: 0: as many as the first row has characters.
            n_boxes: Boxes of every level; 0: any number.

        Raises:
            LevelError: with line (from 1), level (from 0) and what is wrong. Characters that mean nothing are walls.
        """
        raw = text.encode() if isinstance(text, str) else text
        first, second, wrong = _sokoban.parse(raw, size, n_boxes)
        if wrong is not None:
            level = f", level {second}" if second >= 0 else ""
            raise LevelError(f"{source}, line {first}{level}: {wrong}")
        return cls(second, first, source)

    @classmethod
    def load(cls, path: str | os.PathLike[str], size: int = 0, n_boxes: int = 0) -> Levels:
        """Reads a file, or the level files of a folder (`*.txt`, `*.txt.gz`) in the order of their names.

        Read once: while a set is in use, the same call returns the same object.

        Raises:
            FileNotFoundError: no such path, or no level file in the folder.
            LevelError: a file cannot be used, or the set has over `MAX_FILES` files or `MAX_TEXT` bytes.
        """
        root = Path(path).resolve()
        files = level_files(root) if root.is_dir() else [root]
        if not files:
            raise FileNotFoundError(f"no level file (*.txt, *.txt.gz) in {path}")
        stats = [file.stat() for file in files]
        key = (tuple((str(file), stat.st_size, stat.st_mtime_ns) for file, stat in zip(files, stats, strict=True)), size, n_boxes)
        with _loading:
            known = _loaded.get(key)
            if known is None:
                parts: list[Levels] = []
                left = MAX_TEXT
                for file in files:
                    try:
                        text = read_named(file, limit=left, unpacked=left if file.suffix == ".gz" else None)
                    except OSError as error:
                        raise LevelError(f"{file}: {error.strerror}; a set of levels is plain files with at most {MAX_TEXT:,} "
                                         "bytes of text together") from None
                    left -= len(text)
                    parts.append(cls.parse(text, parts[0].size if parts else size, n_boxes, str(file)))
                packed = np.concatenate([part.packed for part in parts])
                known = _loaded[key] = cls(packed, parts[0].size, str(path))
        return known

    @classmethod
    def generate(cls, n: int, size: int, n_boxes: int, seed: int = 0, *, first: int = 0, min_pushes: int | None = None) -> Levels:
        """Makes solvable levels by reverse play. Level i depends on (seed, size, n_boxes, min_pushes, i) only, on every platform.

        Args:
            size: 5 to 10, the outer wall included.
            n_boxes: 1 to 4.
            seed: 0 ≤ seed < 2⁶⁴.
            first: Index of the first level in the endless sequence.
            min_pushes: Least pushes by a lower bound, the distances of boxes to targets; None: n_boxes · size // 3.

        Raises:
            ValueError: numbers out of range, or no such level found.
        """
        if n < 1 or not 5 <= size <= 10 or not 1 <= n_boxes <= 4:
            raise ValueError(f"Levels.generate: n={n}, size={size}, n_boxes={n_boxes}; expected n ≥ 1, size 5 to 10, n_boxes 1 "
                             "to 4")
        if not 0 <= seed < 2**64 or first < 0:
            raise ValueError(f"Levels.generate: seed={seed}, first={first}; expected 0 ≤ seed < 2⁶⁴, first ≥ 0")
        least = default_min_pushes(size, n_boxes) if min_pushes is None else min_pushes
        packed, made = _sokoban.make(size, n_boxes, n, seed, first, least)
        if made < n:
            raise ValueError(f"Levels.generate: no {size}×{size} level with {n_boxes} boxes and {least} pushes found for level "
                             f"{first + made} of seed {seed}; ask for fewer boxes or pushes, or a larger board")
        return cls(packed, size, f"generate(size={size}, n_boxes={n_boxes}, seed={seed})")

    @classmethod
    def shipped(cls, size: int, n_boxes: int, kind: str = "train") -> Levels:
        """A set that ships with the package, made by `python -m parl_like.envs.sokoban.make_levels`.

        Args:
            kind: "train" for every size and number of boxes; of 10×10 with 4 boxes also "test", "medium" and "hard".

        Raises:
            FileNotFoundError: there is no such set; `Levels.generate` makes others.
        """
        name = f"{size}x{size}-{n_boxes}-{kind}.txt.gz"
        with resources.as_file(resources.files("parl_like.envs.sokoban") / "level_sets" / name) as path:
            if not path.exists():
                raise FileNotFoundError(f"no {kind!r} levels of {size}×{size} with {n_boxes} boxes ship with the package; "
                                        "Levels.generate makes some")
            return cls.load(path, size, n_boxes)

    def text(self) -> str:
        """All levels in Boxoban's format."""
        return "".join(f"; {i}\n{to_text(self[i])}\n" for i in range(len(self)))


_loading = Lock()
_loaded: WeakValueDictionary[object, Levels] = WeakValueDictionary()


def level_files(folder: Path) -> list[Path]:
    """The level files of a folder, by name. Raises LevelError: it cannot be read, or has over `MAX_FILES` names."""
    try:
        names = names_in(folder, limit=MAX_FILES)
    except OSError as error:
        raise LevelError(f"{folder}: {error.strerror}; give a level file, or a folder of level files") from None
    return [folder / name for name in names if name.endswith((".txt", ".txt.gz")) and not name.startswith(("LICENSE", "README"))]


def default_min_pushes(size: int, n_boxes: int) -> int:
    """Return the pushes that `Levels.generate` asks for at least. A room crowded with boxes has no space for more than a push
    each."""
    return n_boxes if (size - 2) ** 2 < 9 * n_boxes else n_boxes * size // 3


def to_text(tiles: Array) -> str:
    """[size, size] tile codes as lines of characters."""
    return "".join("".join(CHARS[code] for code in row) + "\n" for row in tiles)


def from_text(text: str) -> Array:
    """[rows, columns] uint8 tile codes of lines of equal length. Characters that mean nothing are walls."""
    return np.array([[max(CHARS.find(char), 0) for char in line] for line in text.split("\n") if line], np.uint8)


@dataclass(frozen=True, kw_only=True)
class Solution:
    """The solver's result.

    Attributes:
        solvable: None: the limit was reached before it was known.
        actions: [n] int64, the whole game, moves between pushes included; empty unless solvable.
        pushes: As few as can be; 0 unless solvable.
        expanded: Positions looked at.
    """

    solvable: bool | None
    actions: Array
    pushes: int
    expanded: int


def solve(tiles: Array, limit: int = 1_000_000) -> Solution:
    """Solves a level by A* with the fewest pushes.

    Args:
        tiles: [size, size] tile codes, at most 7 boxes. Danger counts as floor.
        limit: Positions to look at, at most; each takes about 100 bytes.

    Raises:
        ValueError: no playable level.
    """
    status, expanded, pushes, actions = _sokoban.solve(np.ascontiguousarray(tiles, np.uint8), limit)
    return Solution(solvable=None if status < 0 else bool(status), actions=np.frombuffer(actions, np.uint8).astype(np.int64),
                    pushes=pushes, expanded=expanded)
