"""The kernels of one operator: which runs for the device of a call's tensors."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

from tensorplay import _device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tensorplay.ops.schema import FunctionSchema

__all__ = ["COMPOSITE", "DEFAULT", "DEVICE_TYPES", "Kernels", "NoFakeKernelError", "kernel_key"]

#: The key of a kernel for all devices.
DEFAULT: Final = None
#: The key of a body in other operators, which are recorded in its place.
COMPOSITE: Final = "composite"

DEVICE_TYPES: Final = ("cpu", "cuda", "meta")
_SPELLINGS: Final = {
    "": DEFAULT,
    "default": DEFAULT,
    "compositeexplicitautograd": DEFAULT,
    "compositeimplicitautograd": COMPOSITE,
    **{d: d for d in DEVICE_TYPES},
}


def kernel_key(where: str, spelling: Any, argument: str = "types") -> str | None:
    """Return the key of a kernel from a device type or a composite spelling.

    Parameters
    ----------
    where, argument
        The function that was called and its argument, for messages.
    spelling
        What it was given.

    Raises
    ------
    TypeError, ValueError
        It is no string, or names neither.
    """
    if not isinstance(spelling, str):
        message = (
            f"[{where}] argument '{argument}': expected a device type or a composite spelling, got "
            f"{spelling!r}."
        )
        raise TypeError(message)
    found = _SPELLINGS.get(spelling.lower(), "unknown")
    if found == "unknown":
        advice = ""
        if spelling.lower().startswith("autograd"):
            advice = " Gradients are set by tensorplay.library.register_autograd."
        message = (
            f"[{where}] argument '{argument}': expected one of {', '.join(DEVICE_TYPES)}, default, "
            "CompositeExplicitAutograd (a kernel for all devices) or CompositeImplicitAutograd "
            f"(a body in other operators), got {spelling!r}.{advice}"
        )
        raise ValueError(message)
    return found


class NoFakeKernelError(NotImplementedError):
    """An operator was called without data, and nothing says what it gives then."""


class Kernels:
    """Kernels by device type, the fake kernel, and which are switched off.

    Attributes
    ----------
    by_key : mapping
        A function for each of ``"cpu"``, ``"cuda"``, ``"meta"``, `DEFAULT` and `COMPOSITE` that
        was registered.
    disabled : frozenset
        Keys that are switched off.
    fake : callable or None
        Gives results without data.
    on_cpu : callable or None
        The kernel that runs for tensors on the CPU.
    """

    def __init__(self, schema: FunctionSchema) -> None:
        self._schema = schema
        self._lock = threading.Lock()
        self.by_key: Mapping[str | None, Callable[..., Any]] = {}
        self.disabled: frozenset[str | None] = frozenset()
        self.fake: Callable[..., Any] | None = None
        self.on_cpu: Callable[..., Any] | None = None

    def add(self, keys: Iterable[str | None], function: Callable[..., Any]) -> None:
        """Add, or replace, the kernel under some keys."""
        with self._lock:
            self.by_key = {**self.by_key, **dict.fromkeys(keys, function)}
            self._choose()

    def drop(self, key: str | None) -> None:
        """Take away the kernel under a key."""
        with self._lock:
            self.by_key = {k: f for k, f in self.by_key.items() if k != key}
            self._choose()

    def _choose(self) -> None:
        self.on_cpu = self.get("cpu") or self.get(DEFAULT)

    def get(self, key: str | None) -> Callable[..., Any] | None:
        """Return the kernel under a key, None if there is none or it is switched off."""
        return None if key in self.disabled else self.by_key.get(key)

    def switch(self, key: str | None, *, enabled: bool) -> None:
        """Switch a kernel on or off."""
        with self._lock:
            self.disabled = self.disabled - {key} if enabled else self.disabled | {key}
            self._choose()

    def composite(self, device: str) -> Callable[..., Any] | None:
        """Return the body in other operators, if no kernel or fake kernel takes its place."""
        found = self.by_key.get(COMPOSITE)
        if found is None or self.get(device) is not None or self.get(DEFAULT) is not None:
            return None
        return None if device == "meta" and self.fake is not None else found

    def concrete(
        self, device: str, given: tuple[str, _device.device] | None = None
    ) -> Callable[..., Any]:
        """Return the kernel for a device, on which the argument lies that is `given` by name.

        Raises
        ------
        NotImplementedError
            There is none.
        """
        kernel = self.get(device) or self.get(DEFAULT)
        if kernel is None:
            schema = self._schema
            known = ", ".join(sorted(k for k in self.by_key if k in DEVICE_TYPES)) or "none"
            off = ", ".join(sorted(str(k) for k in self.disabled))
            state = f" (switched off: {off})" if off else ""
            advice = ""
            if device == "cpu" and self.get("cuda") is not None:
                advice = "Pass tensors on a GPU, tensorplay.from_dlpack(cupy.asarray(x)), or write "
            elif device == "cuda" and self.get("cpu") is not None:
                advice = "Write x.detach().cpu(), or "
                if given is not None:
                    name, place = given
                    advice = (
                        f"Argument '{name}': expected a tensor on cpu, got one on {place}. Write "
                        f"{name}.detach().cpu(), or "
                    )
            message = (
                f"[{schema.full_name}] no kernel for device {device}; registered: {known}{state}. "
                f"{advice or 'Write '}"
                f"@tensorplay.library.register_kernel('{schema.full_name}', '{device}')."
            )
            raise NotImplementedError(message)
        return kernel

    def abstract(self) -> Callable[..., Any]:
        """Return the function that gives results without data.

        Raises
        ------
        NotImplementedError
            None was registered, and the schema alone does not say what comes.
        """
        fake = self.fake or self.get("meta")
        if fake is None:
            fake = self._written_back()
        if fake is None:
            name = self._schema.full_name
            message = (
                f"[{name}] no fake kernel was registered, so shapes cannot be computed without "
                f"data. Write @tensorplay.library.register_fake('{name}')."
            )
            raise NoFakeKernelError(message)

        def on_meta(*args: Any, **kwargs: Any) -> Any:
            with _device.META:  # what the fake kernel makes has no data either
                return fake(*args, **kwargs)

        return on_meta

    def _written_back(self) -> Callable[..., Any] | None:
        """Return the fake kernel of an operator that returns what it writes, or nothing."""
        schema = self._schema
        by_set = {a.alias.before: i for i, a in enumerate(schema.arguments) if a.alias is not None}
        if any(r.alias is None for r in schema.returns):
            return None
        places = [by_set[r.alias.before] for r in schema.returns if r.alias is not None]
        names = [a.name for a in schema.arguments]

        def returned(*args: Any, **kwargs: Any) -> Any:
            found = [args[p] if p < len(args) else kwargs[names[p]] for p in places]
            return found[0] if len(found) == 1 else tuple(found) or None

        return returned
