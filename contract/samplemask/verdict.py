"""What one verify response says about its own reward.

Source of the fields: NeMo Gym 0.7.0, `nemo_gym/base_resources_server.py` (`BaseVerifyResponse`)
and `nemo_gym/judge.py` (`_ng_failure_class`).
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, cast

from pydantic import AliasChoices, BaseModel
from pydantic_core import from_json

from samplemask.errors import ContractError
from samplemask.failure_kinds import (
    FAILURE_KINDS,
    MAX_KIND_LENGTH,
    REWARD_MISSING,
    REWARD_NOT_FINITE,
    check_kind,
    warn_once,
)

MAX_REASON_LENGTH: Final = 2000
"""Longest failure_reason that is kept, in characters."""

FAILURE_CLASS: Final = "_ng_failure_class"
_NESTED: Final = "instance_config.mask_sample"
_FLAG_WORDS: Final = {"true": True, "1": True, "false": False, "0": False}
_ACCEPTED_FLAGS: Final = 'a bool, 0 or 1, a 0-d array or tensor of these, or "true"/"false"/"1"/"0"'
_WANTED: Final = ("reward", "mask_sample", "failure_kind", "failure_reason", "instance_config", "metrics")
_SET_A_FLAG: Final = "Set it to True (masked), False (scored) or leave it out."


@dataclass(frozen=True, slots=True)
class Verdict:
    """The reading of one verify response.

    Attributes:
        reward: The reward, or None when it is missing or not finite. Never a stand-in zero.
        mask_sample: The decision: True when the reward is not a valid measurement.
        failure_kind: What went wrong, or None.
        failure_reason: Free text, at most 2,000 characters, or None.
        sources: The places that asked to mask: "mask_sample", "instance_config.mask_sample",
            "reward", "_ng_failure_class". Empty when `mask_sample` is False.
        conflict: True when both flags speak and disagree.
    """

    reward: float | None
    mask_sample: bool
    failure_kind: str | None = None
    failure_reason: str | None = None
    sources: tuple[str, ...] = ()
    conflict: bool = False


def read_verdict(
    response: Mapping[str, Any] | BaseModel | bytes | bytearray | str,
    *,
    failures_as_zero: Collection[str] = (),
) -> Verdict:
    """Read the verdict of one verify response.

    A row is masked when the top level **or** `instance_config` says so: producers that set only
    the nested flag serialise the top-level default `False`. A row with `_ng_failure_class` is
    masked whatever its flags. An unmasked row without a finite reward is masked. `failure_kind`
    alone never masks.

    Args:
        response: A mapping, a pydantic model, or one JSON object as bytes or str.
        failures_as_zero: Failure classes (`_ng_failure_class`) that count as a measured zero; a
            collection, not one string.

    Raises:
        ContractError: The response or one of its fields cannot be read.
    """
    if isinstance(failures_as_zero, str):
        raise ContractError.of(
            "failures_as_zero", "a collection of failure classes", failures_as_zero, "Put it into a list."
        )
    fields = _fields(response)
    reward, reward_kind = _reward(fields.get("reward"))
    failure_class = _text(fields.get(FAILURE_CLASS), FAILURE_CLASS, MAX_KIND_LENGTH)
    kind = _text(fields.get("failure_kind"), "failure_kind", MAX_KIND_LENGTH) or None
    reason = _text(fields.get("failure_reason"), "failure_reason", MAX_REASON_LENGTH) or None
    if failure_class is not None and failure_class in failures_as_zero:
        return Verdict(0.0, False, _checked(kind or failure_class or None), reason)

    top = read_flag(fields.get("mask_sample"), "mask_sample")
    nested = _nested_flag(fields.get("instance_config"))
    if top is None and nested is None:
        _report_undeclared_flag(fields.get("metrics"))
    sources = _sources(top, nested, failure_class)
    conflict = top is not None and nested is not None and top != nested
    if failure_class is not None:
        kind = kind or failure_class or None
    elif not sources and reward_kind is not None:
        _check_readable(fields.get("reward"), reward_kind)
        reason = reason or (f"the environment said failure_kind={kind!r}" if kind else None)
        sources, kind = ("reward",), reward_kind
    return Verdict(reward, bool(sources), _checked(kind), reason, sources, conflict)


def read_flag(value: Any, where: str) -> bool | None:
    """Read one flag; None means not stated.

    Args:
        value: A bool, numpy bool, 0 or 1, a 0-d array or tensor, or one of the strings
            "true"/"false"/"1"/"0" in any case; None when absent.
        where: The field's name, for the error.

    Raises:
        ContractError: Anything else. `bool("False")` is True, so nothing is guessed.
    """
    if value is True or value is False or value is None:
        return value
    if isinstance(value, str):
        word = _FLAG_WORDS.get(value.lower()) if len(value) <= len("false") else None
        if word is not None:
            return word
    elif isinstance(value, (int, float)):
        if value == 0 or value == 1:
            return bool(value)
    elif _is_zero_dim(value) and _is_plain(item := _item(value)):
        return read_flag(item, where)
    raise ContractError.of(where, _ACCEPTED_FLAGS, value, _SET_A_FLAG)


def _sources(top: bool | None, nested: bool | None, failure_class: str | None) -> tuple[str, ...]:
    if not (top or nested or failure_class is not None):
        return ()
    asked = (("mask_sample", top), (_NESTED, nested), (FAILURE_CLASS, failure_class is not None))
    return tuple(place for place, says_so in asked if says_so)


def _nested_flag(config: Any) -> bool | None:
    if config is None:
        return None
    if not isinstance(config, (dict, Mapping, BaseModel)):  # asking an abstract class is slow
        raise ContractError.of(
            "instance_config", "an object or null", config, "Send it as an object, or leave it out."
        )
    return read_flag(_fields(config).get("mask_sample"), _NESTED)


def _report_undeclared_flag(metrics: Any) -> None:
    if isinstance(metrics, Mapping) and metrics.get("mask_sample") is not None:
        warn_once(
            "metrics.mask_sample",
            "a response has metrics.mask_sample but no mask_sample: it is not part of the contract "
            "and masks nothing. Copy it to the top level of the verify response. Said once.",
        )


def _reward(value: Any) -> tuple[float | None, str | None]:
    """Return the reward, or None and the kind that says why there is none."""
    if type(value) is float:
        return (value, None) if math.isfinite(value) else (None, REWARD_NOT_FINITE)
    if value is None:
        return None, REWARD_MISSING
    try:
        written = isinstance(value, str) and "_" not in value  # float("1_0") is 10, in Python alone
        number = float(value) if written or isinstance(value, (int, float)) else None
        if number is None and _is_zero_dim(value) and _is_plain(item := _item(value)):
            return _reward(item)
    except OverflowError:
        return None, REWARD_NOT_FINITE
    except ValueError:
        number = None
    if number is None:
        return None, _UNREADABLE
    return (number, None) if math.isfinite(number) else (None, REWARD_NOT_FINITE)


_UNREADABLE: Final = "samplemask:reward_unreadable"


def _check_readable(value: Any, reward_kind: str) -> None:
    """Refuse a reward that is no number; a masked row never gets here, so its junk costs nothing."""
    if reward_kind == _UNREADABLE:
        raise ContractError.of(
            "reward", "a number or null", value, "Return one number, or mask_sample=True if there is none."
        )


def _text(value: Any, where: str, limit: int) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise ContractError.of(where, "a string or null", value, "Send text, or leave it out.")
    kept = value[:limit]
    # A lone surrogate (half an emoji) cannot be printed or logged; it must not fail there.
    return kept if kept.isascii() else kept.encode("utf-8", "replace").decode("utf-8")


def _checked(kind: str | None) -> str | None:
    return kind if kind is None or kind in FAILURE_KINDS else check_kind(kind)


def _is_zero_dim(value: Any) -> bool:
    return getattr(value, "ndim", None) == 0 and callable(getattr(value, "item", None))


def _is_plain(item: Any) -> bool:
    """Tell whether `item` ends the unwrapping: some 0-d values hold, or return, another one."""
    return item is None or isinstance(item, (bool, int, float, str))


def _item(value: Any) -> Any:
    """Return what a 0-d array or tensor holds; itself when it cannot say or when it is a time."""
    if getattr(getattr(value, "dtype", None), "kind", None) in ("m", "M"):
        return value
    try:
        item = value.item()
        numpy = sys.modules.get("numpy")  # loaded where there is such an item, and slow to load elsewhere
        return float(item) if numpy is not None and isinstance(item, numpy.floating) else item
    except Exception:  # noqa: BLE001 - a tensor without data (torch's meta device) raises its own error
        return value


def _fields(response: Any) -> Mapping[str, Any]:
    if type(response) is dict or isinstance(response, Mapping):  # asking an abstract class is slow
        return cast("Mapping[str, Any]", response)
    if isinstance(response, BaseModel):
        is_root = response.__pydantic_root_model__
        return _fields(response.root) if is_root else dict(_model_fields(response))  # type: ignore[attr-defined]
    if isinstance(response, (bytes, bytearray, str)):
        return _json_object(response)
    raise ContractError.of(
        "verify response",
        "a mapping, a pydantic model or one JSON object",
        response,
        "Pass the response body.",
    )


def _model_fields(model: BaseModel) -> Iterator[tuple[str, Any]]:
    """Yield what a model holds, without copying the response that it carries.

    A field's alias counts too (pydantic allows `_ng_failure_class` only as one). A default that
    nobody set does not speak: `mask_sample=False` left at its default is not a statement.
    """
    explicit = model.model_fields_set
    for name, key in _aliases(type(model)):
        value = getattr(model, name, None)  # absent after model_construct()
        if key != "mask_sample" or value is not False or name in explicit:
            yield key, value
    yield from (model.model_extra or {}).items()


@lru_cache(maxsize=256)
def _aliases(model_type: type[BaseModel]) -> tuple[tuple[str, str], ...]:
    wanted = (*_WANTED, FAILURE_CLASS)
    computed = model_type.__pydantic_decorators__.computed_fields  # before 2.11 only instances say it openly
    pairs = [(name, name) for name in computed if name in wanted]
    for name, info in model_type.model_fields.items():
        read_as = info.validation_alias
        choices = read_as.choices if isinstance(read_as, AliasChoices) else [read_as]
        keys = [name, info.alias, info.serialization_alias, *choices]
        pairs += [(name, key) for key in wanted if key in keys]
    return tuple(pairs)


def _json_object(text: bytes | bytearray | str) -> Mapping[str, Any]:
    try:
        parsed = _parse_json(text)
    except (ValueError, RecursionError) as error:
        raise ContractError.of(
            "verify response", "one JSON object", text, f"The JSON reader said: {error}."
        ) from error
    if not isinstance(parsed, dict):
        raise ContractError.of("verify response", "one JSON object", parsed, "Pass one response at a time.")
    return parsed


def _parse_json(text: bytes | bytearray | str) -> Any:
    """Parse fast; fall back to the standard library for half an emoji or a byte order mark."""
    try:
        return from_json(text)
    except (ValueError, TypeError):  # TypeError: a str that holds a lone surrogate itself
        return json.loads(text.removeprefix("\ufeff") if isinstance(text, str) else text)
