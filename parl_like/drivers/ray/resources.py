"""The resources that an actor of a Ray cluster asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from parl_like.values.errors import unknown

Amount = Annotated[float, Meta(ge=0)]


class ActorResources(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Resources by which Ray places an actor; what is left out, Ray decides. There is nothing here of what the actor's process
    runs (`runtime_env`): whoever wants that connects with `ray.init(runtime_env=…)` before the robot is made.

    Attributes:
        num_cpus: Cores; None: 1.
        num_gpus: GPUs, or a share of one.
        memory: Bytes.
        resources: Names of the cluster's own resources → how much of each.
        accelerator_type: Such as `A100`.
    """

    num_cpus: Amount | None = None
    num_gpus: Amount | None = None
    memory: Annotated[int, Meta(gt=0)] | None = None
    resources: dict[str, Amount] = {}
    accelerator_type: str = ""

    def asked(self) -> dict[str, Any]:
        """As options of `ray.remote`."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value not in (None, {}, "")}


def resources_of(given: ActorResources | Mapping[str, object]) -> ActorResources:
    """`{"num_gpus": 1}` as a struct. Raises ValueError for what is no resource, or has another type."""
    plain = msgspec.to_builtins(given)  # a Struct's own constructor checks nothing
    for name in plain:
        if name not in ActorResources.__struct_fields__:
            raise ValueError(unknown("resource", name, ActorResources.__struct_fields__))
    try:
        return msgspec.convert(plain, ActorResources)
    except msgspec.ValidationError as error:
        raise ValueError(str(error).replace("`$.", "`")) from None
