"""Several modules of one shape as one: their tensors get a leading member axis, which their code never sees.

``torch.func.vmap`` runs the code of one module on the tensors of all of them, so networks, losses and samplers are
written for one member. The few operations that must see all members at once, such as the step of an optimiser, use
``all_members`` inside ``outside_members``.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch._C import _functorch

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def has_member_axis(value: object) -> bool:
    """Return whether a value belongs to several members, each of which sees only its own part."""
    return isinstance(value, Tensor) and _functorch.is_batchedtensor(value)


def all_members(tensor: Tensor) -> Tensor:
    """Return a member's tensor as that of all members, ``[members, ...]``; a tensor without members as it is."""
    return _functorch.get_unwrapped(tensor) if has_member_axis(tensor) else tensor


@contextlib.contextmanager
def outside_members() -> Iterator[None]:
    """Run code on the tensors of all members, where ``MemberStack.call`` runs that of one."""
    from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack

    with temporarily_pop_interpreter_stack():
        yield


class MemberStack(Generic[ModuleT]):
    """Modules whose parameters and buffers are parts of common tensors ``[members, ...]``.

    The modules stay usable one by one: each of their tensors becomes a view of its part.

    Attributes:
        members: the modules.
        pattern: a copy of the first module; its tensors have the member axis.
    """

    def __init__(self, members: Sequence[ModuleT]) -> None:
        self.members, self.pattern = list(members), copy.deepcopy(members[0])
        own = [_tensors(member) for member in self.members]
        for name, whole in _tensors(self.pattern).items():
            parts = [tensors[name] for tensors in own]
            whole.data = torch.stack([part.data for part in parts])
            for part, view in zip(parts, whole.data.unbind(), strict=True):
                part.data = view
        self._tensors, self._places = _tensors(self.pattern), _places(self.pattern)

    def __len__(self) -> int:
        return len(self.members)

    def call(self, function: Callable[..., Any], *inputs: Any) -> Any:
        """Return ``function(pattern, *inputs)`` for all members at once.

        ``inputs`` are tensors with a member axis, or tuples and dictionaries of them. The function sees the pattern and
        the inputs of one member. What it draws at random differs from member to member.
        """
        return torch.func.vmap(self._call_one, in_dims=(None, 0, 0), randomness="different")(
            function, list(self._tensors.values()), inputs
        )

    def _call_one(self, function: Callable[..., Any], tensors: Sequence[Tensor], inputs: tuple[Any, ...]) -> Any:
        before = [place[leaf] for place, leaf in self._places]
        self._use(tensors)
        try:
            return function(self.pattern, *inputs)
        finally:
            self._use(before)

    def _use(self, tensors: Sequence[Tensor]) -> None:
        for (place, leaf), tensor in zip(self._places, tensors, strict=True):
            place[leaf] = tensor


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _places(module: nn.Module) -> list[tuple[dict[str, Any], str]]:
    """Return where the module keeps each of its ``_tensors``: a dictionary and the name in it."""
    places = []
    for name in _tensors(module):
        path, _, leaf = name.rpartition(".")
        owner = module.get_submodule(path)
        place: dict[str, Any] = owner._parameters if leaf in owner._parameters else owner._buffers
        places.append((place, leaf))
    return places
