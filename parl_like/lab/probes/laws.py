"""The laws of a probe, and what was found of each: it holds, is broken, or does not apply."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from parl_like.lab.text import for_page
from parl_like.values.errors import without_trace

HOLDS, BROKEN, APART = "holds", "BROKEN", "does not apply"


class Broken(Exception):
    """A law is broken: what was expected, and what came."""


class DoesNotApply(Exception):
    """A law is not about this algorithm, environment or buffer: why."""


@dataclass(frozen=True)
class Law:
    """A law: `check` raises `Broken` or `DoesNotApply`, or returns. `look`: where its mistakes usually are."""

    name: str
    look: str
    check: Callable[[], None]


@dataclass(frozen=True)
class Finding:
    """Outcome of one law: `state` is 'holds', 'BROKEN' or 'does not apply'; `reason` and `look` are empty if it holds."""

    law: str
    state: str
    reason: str = ""
    look: str = ""


@dataclass(frozen=True)
class Findings:
    """Findings of a probe about each law; printed, a table of at most 80 columns."""

    subject: str
    findings: tuple[Finding, ...]

    @property
    def broken(self) -> list[str]:
        """The names of the laws that are broken."""
        return [one.law for one in self.findings if one.state == BROKEN]

    def plain(self) -> Mapping[str, object]:
        """Return the same as plain values."""
        return {"subject": self.subject, "broken": self.broken, "laws": [vars(one) for one in self.findings]}

    def lines(self) -> list[str]:
        """Return the lines of the table."""
        width = max(len(one.law) for one in self.findings)
        out = []
        for one in self.findings:
            out.append(f"{one.law:{width}}  {one.state}")
            said = [one.reason, f"look at {one.look}" if one.state == BROKEN else ""]
            out += [line for part in said for line in textwrap.wrap(part, 80, initial_indent="    ", subsequent_indent="    ")]
        held = sum(one.state == HOLDS for one in self.findings)
        return [*out, f"{held} laws hold, {len(self.broken)} broken, {sum(one.state == APART for one in self.findings)} "
                      "do not apply"]

    def __str__(self) -> str:
        return "\n".join(self.lines())


def tried(subject: str, laws: list[Law]) -> Findings:
    """Try each law. An error that a law's check raises counts as this law broken, with the error's text."""
    found = []
    for law in laws:
        try:
            law.check()
            found.append(Finding(law.name, HOLDS))
        except DoesNotApply as why:
            found.append(Finding(law.name, APART, for_page(str(why))))
        except Broken as why:
            found.append(Finding(law.name, BROKEN, for_page(str(why)), law.look))
        except Exception as error:  # noqa: BLE001  whatever is probed is another's code
            found.append(Finding(law.name, BROKEN, for_page(f"{type(error).__name__}: {without_trace(error)}"), law.look))
    return Findings(subject, tuple(found))
