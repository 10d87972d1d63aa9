"""Makes the level sets that ship with the package: `python -m parl_like.envs.sokoban.make_levels` writes them, `--check`
compares.

Every set comes from `Levels.generate` with a seed of its own, without doubles, so the text is the same bit for bit on every
platform. (The compressed files may differ where another zlib packs them; `--check` therefore compares the text.) "medium" and
"hard" are levels that the A* solver finds harder, by positions that it has to look at.
"""

from __future__ import annotations

import argparse
import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from parl_like.envs.sokoban.levels import Levels, solve, to_text

BLOCK, LIMIT = 4000, 20_000


@dataclass(frozen=True, kw_only=True)
class Set:
    """A level set.

    Attributes:
        n: Levels; fewer where so many different ones are not found in `most` tries.
        seed: Of the generator. Sets of one size and number of boxes have different seeds.
        most: Levels to generate at most.
        min_pushes: As in `Levels.generate`.
        hardness: Least positions that the solver looks at.
        held_out: None of the levels is in the "train" set of that size.
    """

    size: int
    n_boxes: int
    kind: str = "train"
    n: int = 2000
    seed: int = 1
    most: int = 100_000
    min_pushes: int | None = None
    hardness: int = 0
    held_out: bool = False

    @property
    def name(self) -> str:
        """The name of the file that the set is kept in."""
        return f"{self.size}x{self.size}-{self.n_boxes}-{self.kind}.txt.gz"

    def text(self) -> str:
        """Return all levels as Boxoban writes them: a line with a number, then rows of characters."""
        return "".join(f"; {i}\n{rows}\n" for i, rows in enumerate(self.rows()))

    def rows(self) -> Iterator[str]:
        """The levels without their numbers, one by one."""
        seen: set[bytes] = set()
        if self.held_out:
            seen |= {row.tobytes() for row in Levels.shipped(self.size, self.n_boxes).packed}
        found = 0
        for first in range(0, self.most, BLOCK):
            levels = Levels.generate(BLOCK, self.size, self.n_boxes, self.seed, first=first, min_pushes=self.min_pushes)
            for i in range(len(levels)):
                key = levels.packed[i].tobytes()
                if key in seen:
                    continue
                seen.add(key)
                if self.hardness and not self.hardness <= solve(levels[i], LIMIT).expanded < LIMIT:
                    continue
                yield to_text(levels[i])
                found += 1
                if found == self.n:
                    return


SETS = [
    *(Set(size=size, n_boxes=n_boxes) for size in range(5, 10) for n_boxes in range(1, 5) if (size, n_boxes) not in ((5, 3),
                                                                                                                     (5, 4))),
    *(Set(size=size, n_boxes=n_boxes, kind="test", n=500, seed=2, held_out=True)
      for size in range(6, 10) for n_boxes in range(1, 5)),  # 5×5: the training sets are all there are
    *(Set(size=10, n_boxes=n_boxes) for n_boxes in range(1, 4)),
    Set(size=10, n_boxes=4, n=5000),
    Set(size=10, n_boxes=4, kind="test", n=1000, seed=2),
    Set(size=10, n_boxes=4, kind="medium", n=2000, seed=3, min_pushes=16, hardness=50),
    Set(size=10, n_boxes=4, kind="hard", n=1000, seed=4, min_pushes=18, hardness=250),
]


def main(argv: list[str] | None = None) -> int:
    """Writes the sets, or with `--check` returns 1 if one is not what would be written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the files instead of writing them")
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent / "level_sets")
    parser.add_argument("--only", default="", help="sets whose name begins so, for instance 7x7-2")
    options = parser.parse_args(argv)
    options.folder.mkdir(exist_ok=True)
    differ = 0
    for one in SETS:
        if not one.name.startswith(options.only):
            continue
        text = one.text().encode()
        path = options.folder / one.name
        if options.check:
            same = path.exists() and gzip.decompress(path.read_bytes()) == text
            differ += not same
            print(f"{one.name}: {'as made' if same else 'differs'}")
        else:
            packed = gzip.compress(text, 9, mtime=0)
            path.write_bytes(packed)
            print(f"{one.name}: {text.count(b';')} levels, {len(packed):,} bytes")
    return int(differ > 0)


if __name__ == "__main__":
    raise SystemExit(main())
