"""What every operator has: schema, documentation, samples, and the callables made from them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from tensorplay import _dtype
from tensorplay._methods import attach
from tensorplay._tensor import Tensor
from tensorplay.autograd import grad_mode
from tensorplay.ops.arguments import SCALARS, converter, reject
from tensorplay.ops.dispatch import protocol, redirect
from tensorplay.ops.documentation import docstring
from tensorplay.ops.late import late_function
from tensorplay.ops.schema import Argument, DtypeName, FunctionSchema, parse_schema
from tensorplay.ops.special import make_special

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["OPERATORS", "Composite", "Operator", "Sample"]

OPERATORS: Final[dict[str, Operator]] = {}

# The words that the text of a function has for what is no argument.
_WORDS: Final = (
    *("operator", "short", "defaults", "result"),
    *("protocol", "refused", "problem", "this"),
)
# What the texts of defaults without a literal mean: ``tensorplay.float32``.
_DTYPES: Final = SimpleNamespace(**{d.name: d for d in _dtype.DTYPES})


@dataclass(frozen=True)
class Sample:
    """One call of an operator, for its tests: arguments, and the name of the situation."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    name: str = ""


def _resolved(default: Any) -> Any:
    """Return a default with types in place of their names, also in lists."""
    if isinstance(default, DtypeName):
        return _dtype.named(default.name)
    return [_resolved(d) for d in default] if isinstance(default, list) else default


class Operator:
    """Schema, documentation, and the Python callables made from them."""

    schema: FunctionSchema
    doc: str
    samples: Callable[[Any], Iterable[Sample]] | None

    def __init__(
        self,
        schema: str,
        doc: str,
        *,
        samples: Callable[[Any], Iterable[Sample]] | None = None,
        method: bool = True,
        function: bool = True,
        dunders: Sequence[str] = (),
        inplace: bool = False,
        varargs: bool = False,
        out: bool = False,
        aliases: Sequence[str] = (),
        raises: str = "",
    ) -> None:
        self.schema = parse_schema(schema)
        self.doc = doc
        #: Of what types of result elements of arguments may be an error, which no rule sees:
        #: ``"integers"``, ``"all"`` or none. Compilers keep such a step though nobody uses it.
        self.raises = raises
        self.samples = samples
        self.name = self.schema.name
        self.varargs = varargs
        self.inplace = inplace
        self.out = out
        self.public_function = function
        self.public_method = method
        self.dunders = tuple(dunders)
        self.aliases = tuple(aliases)
        self.names = tuple(a.name for a in self.schema.arguments)
        self._defaults = {
            a.name: _resolved(a.default) for a in self.schema.arguments if a.has_default
        }
        self._short = self.short_way()
        self.function = self._make_function(self.name, varargs=False)
        if self.schema.namespace is None:
            self._publish()

    # The short way of the in-place form, which takes all arguments.
    _short_write: Callable[..., Any] | None = None
    # Whether the short way takes all arguments; otherwise it is for calls with the defaults only.
    _short_takes_all = False

    def short_way(self) -> Callable[..., Any] | None:
        """Return a function for the commonest calls, if any, which returns None for others."""
        return None

    def apply(self, args: tuple[Any, ...]) -> Any:
        """Run the operator on a complete tuple of arguments in the order of the schema."""
        raise NotImplementedError

    def apply_inplace(self, args: tuple[Any, ...]) -> Tensor:
        """Run the operator and write the result into the first argument."""
        raise NotImplementedError

    def apply_out(self, args: tuple[Any, ...], out: Any) -> Tensor:
        """Run the operator and write the result into `out`, which is returned.

        Raises
        ------
        RuntimeError
            `out` has another shape or a lower kind than the result, or something requires grad.
        NotImplementedError
            An argument has a tangent.
        """
        where = self.schema.qualname
        if not isinstance(out, Tensor):
            reject(where, "out", "Tensor", out)
        lists = (x if isinstance(x, (list, tuple)) else (x,) for x in (*args, out))
        tensors = [x for members in lists for x in members if isinstance(x, Tensor)]
        if any(x._tangent is not None for x in tensors):
            raise NotImplementedError(
                f"[{where}] no forward mode because it is an out= function. Leave out= away."
            )
        if grad_mode.is_grad_enabled() and any(x.requires_grad for x in tensors):
            raise RuntimeError(
                f"[{where}] functions with out=... arguments don't support automatic "
                "differentiation, but one of the arguments requires grad. Leave out= away, or "
                "write `with tensorplay.no_grad():` around it."
            )
        result = self.apply(args)
        if result.shape != out.shape:
            raise RuntimeError(
                f"[{where}] argument 'out': expected the shape of the result {list(result.shape)}, "
                f"got {list(out.shape)}."
            )
        if not _dtype.can_cast(result.dtype, out.dtype):
            raise RuntimeError(
                f"[{where}] argument 'out': result type {result.dtype!r} can't be cast to the "
                f"desired output type {out.dtype!r}."
            )
        written: Tensor = out.copy_(result)
        return written

    # --- other answers ----------------------------------------------------------------------

    def _call_of(self, values: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return all arguments as args and kwargs of a call."""
        arguments = self.schema.arguments
        args = tuple(v for v, a in zip(values, arguments, strict=True) if not a.has_default)
        named = {
            a.name: v
            for v, a in zip(values, arguments, strict=True)
            if a.has_default and v is not self._defaults[a.name]
        }
        return args, named

    def redirect(
        self,
        public: Any,
        run: Callable[[tuple[Any, ...]], Any],
        values: tuple[Any, ...],
        problem: Exception | None = None,
    ) -> Any:
        """Return what modes and types of arguments make of the call, or ``run(values)``."""
        args, kwargs = self._call_of(values)
        return redirect(public, lambda: run(values), values, args, kwargs, problem)

    def redirect_out(self, public: Any, values: tuple[Any, ...], out: Any) -> Any:
        """Return the same for a call with ``out=``."""
        args, kwargs = self._call_of(values)
        kwargs["out"] = out
        return redirect(public, lambda: self.apply_out(values, out), (*values, out), args, kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function of the operator."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.schema}>"

    # --- the callables ----------------------------------------------------------------------

    def parameters(
        self, *, first: str | None = None, varargs: bool = False, out: bool = False
    ) -> str:
        """Return the Python parameter list, the first parameter renamed to `first` if given."""
        parts: list[str] = []
        starred = False
        for number, argument in enumerate(self.schema.arguments):
            name = first if number == 0 and first is not None else argument.name
            if varargs and argument.type.is_list and not argument.type.is_tensor and not starred:
                # One by one, as one sequence, or by name.
                parts += ["*args", f"{name}=None"]
                starred = True
                continue
            if argument.kwarg_only and not starred:
                parts.append("*")
                starred = True
            default = self._defaults.get(argument.name, parts) if argument.has_default else parts
            parts.append(name if default is parts else f"{name}={default!r}")
        if out:
            parts += [*([] if starred else ["*"]), "out=None"]
        return ", ".join(parts)

    def _make_function(self, name: str, *, varargs: bool, method: bool = False) -> Any:
        """Return a function with the signature of the schema that calls the operator."""
        inplace = name == f"{self.name}_"
        # An argument of a custom operator may have any name, also one of the text's own.
        taken = [*self.names, "out", "self"]
        words = {word: _unlike(word, taken) for word in _WORDS}
        namespace: dict[str, Any] = {
            "inf": math.inf,
            "nan": math.nan,
            "tensorplay": _DTYPES,
            words["operator"]: self,
            words["short"]: self._short_write if inplace else self._short,
            words["defaults"]: self._defaults,
            words["protocol"]: protocol,
            words["refused"]: TypeError,  # also of an argument before the one that answers
        }
        made = late_function(
            name,
            f"<tensorplay operator {self.schema.qualname}{name[len(self.name) :]}>",
            lambda: self._text(name, words, varargs=varargs, method=method),
            namespace,
            now=self.schema.namespace is not None,  # whose errors are told apart by their frames
        )
        made.__doc__ = docstring(
            self.schema,
            self.doc,
            name,
            gradients=self.differentiable_in(),
            method=method,
            writes=self.out and not method,
        )
        made.__module__ = "tensorplay"
        made.__qualname__ = f"Tensor.{name}" if method else name
        made.operator = self
        made.overridable = True
        namespace[words["this"]] = made
        return made

    def _text(self, name: str, words: dict[str, str], *, varargs: bool, method: bool) -> str:
        """Return the text of a function of the operator, in the given words."""
        writes = self.out and not method
        parameters = self.parameters(first="self" if method else None, varargs=varargs, out=writes)
        names = list(self.names)
        if method:
            names[0] = "self"
        spread = ""
        if varargs:
            star = parameters.split("*args, ")[1].split("=")[0]
            twice = f"[{name}] argument '{star}' is given twice: by position and by name."
            spread = (
                f"    if {star} is None:\n"
                f"        one = len(args) == 1 and isinstance(args[0], (tuple, list))\n"
                f"        {star} = args[0] if one else args\n"
                f"    elif args:\n"
                f"        raise TypeError({twice!r})\n"
            )
        values = ", ".join(names) + ("," if names else "")
        call = "apply_inplace" if name == f"{self.name}_" else "apply"
        operator, short, defaults, result, protocol_, refused, problem, this = (
            words[word] for word in _WORDS
        )
        attempt = ""
        if call == "apply_inplace" and self._short_write is not None:
            attempt = (
                f"    if ({result} := {short}({', '.join(names)})) is not None:\n"
                f"        return {result}\n"
            )
        elif self._short is not None and call == "apply":
            left_out = () if self._short_takes_all else self._defaults
            taken = ", ".join(n for n in names if n not in left_out)
            given = "".join(f"{n} is {defaults}[{n!r}] and " for n in names if n in left_out)
            attempt = (
                f"    if {given}({result} := {short}({taken})) is not None:\n"
                f"        return {result}\n"
            )
        last = (
            f"    {problem} = None\n"
            f"    if not {protocol_}.on:\n"
            f"        try:\n"
            f"            return {operator}.{call}(({values}))\n"
            f"        except {refused} as error:\n"
            f"            {problem} = error\n"
            f"    return {operator}.redirect({this}, {operator}.{call}, ({values}), {problem})\n"
        )
        if writes:
            spread += (
                f"    if out is not None:\n"
                f"        return {operator}.redirect_out({this}, ({values}), out)\n"
            )
        return f"def {name}({parameters}):\n{spread}{attempt}{last}"

    def differentiable_in(self) -> list[str] | None:
        """Return the names of the arguments that have a derivative; None where the body says it."""
        return None

    def _publish(self) -> None:
        if self.name in OPERATORS:
            message = f"operator {self.name} is defined twice"
            raise RuntimeError(message)
        OPERATORS[self.name] = self
        if self.public_method:
            method = self._make_function(self.name, varargs=self.varargs, method=True)
            for name in (self.name, *self.aliases):
                attach(name, method)
            if self.inplace:
                attach(
                    f"{self.name}_",
                    self._make_function(f"{self.name}_", varargs=False, method=True),
                )
        for name in self.dunders:
            attach(name, make_special(self, name))


def _unlike(word: str, names: Sequence[str]) -> str:
    """Return `word`, with underscores before it until it is none of `names`."""
    while word in names:
        word = f"_{word}"
    return word


class Composite(Operator):
    """An operator written in terms of others: it is differentiated and traced through its body.

    `scalars` says, as for a primitive, whether Python numbers may stand for tensor arguments.
    `short` may answer the commonest calls; it returns None from others.
    """

    def __init__(
        self,
        schema: str,
        doc: str,
        body: Callable[..., Any],
        *,
        scalars: bool = False,
        short: Callable[..., Any] | None = None,
        **options: Any,
    ) -> None:
        self.body = body
        self._given_short = short
        super().__init__(schema, doc, **options)
        self._converters = [
            _tensor_check(self.name, a, scalars=scalars)
            if a.type.is_tensor
            else converter(self.name, a)
            for a in self.schema.arguments
        ]

    def short_way(self) -> Callable[..., Any] | None:
        """Return the function given for the commonest calls, which takes all arguments."""
        self._short_takes_all = True
        return self._given_short

    def apply(self, args: tuple[Any, ...]) -> Any:
        """Run the body."""
        return self.body(*[c(v) for v, c in zip(args, self._converters, strict=True)])

    def apply_inplace(self, args: tuple[Any, ...]) -> Tensor:
        """Run the body and copy the result into the first argument."""
        target: Tensor = args[0]
        result: Tensor = target.copy_(self.apply(args))
        return result


def _tensor_check(where: str, argument: Argument, *, scalars: bool) -> Callable[[Any], Any]:
    """Return the function that lets tensors, or lists of them, pass as `argument` says."""
    kind = argument.type

    def check(value: Any) -> Any:  # noqa: RET503 - reject raises
        if kind.is_list:
            if isinstance(value, (list, tuple)) and all(
                isinstance(t, Tensor) or (t is None and kind.list_of_optional) for t in value
            ):
                return value
            if isinstance(value, Tensor):
                return list(value)
        elif isinstance(value, (Tensor, *SCALARS) if scalars else Tensor):
            return value
        if value is None and kind.optional:
            return None
        reject(where, argument.name, kind, value)

    return check
