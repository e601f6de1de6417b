"""The form of a run config, read from the config's JSON schema: groups, fields, and the config that they add up to.

No Streamlit here. A new field of the schema shows up by itself; a new section lands in the group "Other".
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import yaml

Kind = Literal["text", "integer", "number", "flag", "choice", "choices", "mapping"]
Schema = dict[str, Any]

# Group -> the config's top-level keys in it, in the order of the form.
GROUPS = {
    "Run": ("name", "seed"),
    "Data": ("data", "reward", "rewards"),
    "Model": ("model",),
    "Method": ("method", "selection", "sampling"),
    "Update": ("update",),
    "Budget": ("budget",),
    "Evaluation": ("evaluation", "checkpoint"),
    "Engine": ("engine",),
}
GROUP_WORDS = {
    "Data": "Which prompts to train and to evaluate on, and what makes a response right.",
    "Model": "The policy to start from.",
    "Method": "Which prompts get how many rollouts.",
    "Update": "How a batch of groups changes the policy.",
    "Budget": "Hard bounds: the step that would pass one is not started.",
    "Evaluation": "How often to measure on held-out prompts, and how often to save.",
    "Engine": "What the run computes on.",
}
LABELS = {
    "n": "Rollouts per prompt", "n_pilot": "Pilot rollouts", "n_commit": "Commit rollouts",
    "pilot_prompts": "Prompts per pass", "p_lower": "Too hard below", "p_upper": "Too easy above",
    "p_solve": "Solved from", "max_age": "Oldest pilot", "binding": "Bind pilots to commits",
    "max_rounds": "Most passes", "gen_prompts": "Prompts per pass", "keep_surplus": "Keep surplus groups",
    "retest_rate": "Re-tests", "max_new_tokens": "Longest response", "batch_prompts": "Batch",
    "lr": "Learning rate", "warmup_updates": "Warm-up", "grad_clip": "Gradient clip",
    "normalise_std": "Divide advantages by std", "off_policy_cap": "Off-policy cap", "path": "Model folder",
    "train": "Training prompts", "eval": "Held-out prompts", "prompt_key": "Column of the prompt",
    "answer_key": "Column of the answer", "tags_key": "Column of tags", "reward_key": "Column of the reward's name",
    "mapping": "Columns", "eval_mapping": "Columns of held-out prompts", "system": "System prompt",
    "template": "Prompt template", "rewards": "Named rewards",
    "samples": "Responses per prompt", "top_p": "Top-p", "keep": "Keep",
    "wall_clock_s": "Wall-clock time", "gpu_hours": "GPU-hours",
    "rule": "Rollouts to keep", "advantages": "Advantages over",
    "gpus_per_node": "GPUs per node", "gpu_memory_utilization": "GPU memory for sampling",
    "max_prompt_tokens": "Longest prompt", "ray_address": "Ray job server", "overrides": "Other settings of verl",
}  # fmt: skip


@dataclass(frozen=True)
class Field:
    """One value of the config. `variant` names the member of the union that it belongs to, if any."""

    path: str
    kind: Kind
    help: str = ""
    default: Any = None
    nullable: bool = False
    required: bool = False
    options: tuple[Any, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    variant: str = ""
    is_variant_choice: bool = False
    example: str = ""
    unit: str = ""
    paper: Any = None

    @property
    def id(self) -> str:
        return f"{self.path}@{self.variant}" if self.variant else self.path

    @property
    def label(self) -> str:
        section, _, name = self.path.rpartition(".")
        if name == "name" and section:
            return section.capitalize()
        words = LABELS.get(name, name.replace("_", " "))
        if name == "every":
            words = f"{section} every"
        words = words[0].upper() + words[1:]
        return words if not self.unit or self.unit.lower() in words.lower() else f"{words} ({self.unit})"

    @property
    def step(self) -> float:
        """What one press of + adds: 0.05 for fractions, else the decimal place of the default."""
        if self.maximum == 1 and self.minimum == 0:
            return 0.05
        size = abs(float(self.default)) if self.default else 1.0
        return float(f"1e{int(f'{size:e}'.split('e')[1])}") if size < 1 else 0.1


@dataclass
class Group:
    title: str
    words: str
    fields: list[Field] = field(default_factory=list)

    def owns(self, path: str) -> bool:
        """Whether a problem at this path is told in this group."""
        known = {part for f in self.fields for part in _prefixes(f.path)}
        return path in known or path.split(".")[0] in {f.path.split(".")[0] for f in self.fields}


def groups(schema: Schema, choice: Callable[[str, str], str]) -> list[Group]:
    """The form. choice(path, default) gives the selected member of the union at that path."""
    properties: Schema = schema.get("properties", {})
    placed = {key for keys in GROUPS.values() for key in keys}
    plan = {**GROUPS, "Other": tuple(key for key in properties if key not in placed)}
    required = set(schema.get("required", ()))
    form = []
    for title, keys in plan.items():
        fields = [
            f
            for key in keys
            if key in properties
            for f in _fields(schema, properties[key], key, key in required, choice)
        ]
        if fields:
            form.append(Group(title, GROUP_WORDS.get(title, ""), fields))
    return form


def config_of(form: list[Group], value: Callable[[Field], Any]) -> dict[str, Any]:
    """The nested config of the form's values. An empty required text is left out, so that the API names it."""
    config: dict[str, Any] = {}
    for group in form:
        for f in group.fields:
            given = value(f)
            if f.required and given in (None, ""):
                continue
            *sections, name = f.path.split(".")
            place = config
            for section in sections:
                place = place.setdefault(section, {})
            place[name] = given
    return config


def with_unknown(form: list[Group], config: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """`config` with what of `given` no field of the form shows, such as a mistyped key; for the API to name.

    Not what belongs to a member of a union that is no longer chosen.
    """
    known = {part for group in form for f in group.fields for part in _prefixes(f.path)}
    leaves = {f.path for group in form for f in group.fields}

    def add(place: dict[str, Any], extra: dict[str, Any], at: str) -> dict[str, Any]:
        if "name" in extra and "name" in place and extra["name"] != place["name"] and f"{at}name" in leaves and at:
            return place
        whole = dict(place)
        for key, value in extra.items():
            path = f"{at}{key}"
            if "." in key or path not in known:  # a key with a dot is no path
                whole[key] = value
            elif path not in leaves and isinstance(whole.get(key), dict | None):
                whole[key] = add(whole.get(key) or {}, value, f"{path}.") if isinstance(value, dict) else value
        return whole

    return add(config, given, "")


def in_order(schema: Schema, config: dict[str, Any]) -> dict[str, Any]:
    """The config with its keys in the schema's order, at every depth; the database keeps them in one of its own."""

    def ordered(node: Schema, value: Any) -> Any:
        node = _resolve(schema, node)
        if "anyOf" in node:
            node = _resolve(schema, next(option for option in node["anyOf"] if option.get("type") != "null"))
        if isinstance(value, list):
            return [ordered(node.get("items", {}), item) for item in value]
        if not isinstance(value, dict):
            return value
        if "discriminator" in node:
            member = node["discriminator"]["mapping"].get(value.get(node["discriminator"]["propertyName"]))
            node = _resolve(schema, {"$ref": member}) if member else {}
        properties, other = node.get("properties", {}), node.get("additionalProperties")
        keys = [*(key for key in properties if key in value), *(key for key in value if key not in properties)]
        return {key: ordered(properties.get(key, other if isinstance(other, dict) else {}), value[key]) for key in keys}

    found: dict[str, Any] = ordered(schema, config)
    return found


def place_of(text: str, path: str) -> str:
    """', line 3, "steps: 0"': where in YAML the field at a dotted path is. A text box has no numbers to count by."""
    line = line_of(text, path)
    return f", {_quoted(text, line)}" if line else ""


def _quoted(text: str, line: int) -> str:
    words = text.split("\n")[line - 1 : line]
    shown = " ".join("".join(words).split())
    shown = f"{shown[:79]}…" if len(shown) > 80 else shown
    return f'line {line}, "{shown}"' if shown else f"line {line}"


def line_of(text: str, path: str) -> int | None:
    """The line of YAML, from 1, on which the field at a dotted path is, or the section that lacks it."""
    try:
        node = yaml.compose(text, yaml.SafeLoader)
    except yaml.YAMLError:
        return None
    line = None
    for part in path.split("."):
        if isinstance(node, yaml.MappingNode):
            found = next((pair for pair in node.value if pair[0].value == part), None)
        elif isinstance(node, yaml.SequenceNode) and part.isdecimal() and int(part) < len(node.value):
            found = (node.value[int(part)], node.value[int(part)])
        else:
            break
        if found is None:
            break
        line, node = found[0].start_mark.line + 1, found[1]
    return line


def read_yaml(text: str) -> dict[str, Any]:
    """The mapping in the text. Raises ValueError that says in which line, and at which field, it is none."""
    try:
        config = yaml.safe_load(text)
    except RecursionError:
        raise ValueError("This is nested too deeply.") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        why = getattr(error, "problem", None) or "check the indentation"
        if mark is None:
            raise ValueError(f"This is not YAML: {why}.") from None
        lines = text.split("\n")[: mark.line + 1]
        keys = (re.match(r"\s*(?:- )?([\w.]+)\s*:", line) for line in reversed(lines))
        near = next((found[1] for found in keys if found), None)
        field = f", at {near!r}" if near else ""
        where = _quoted(text, mark.line + 1)  # where reading ended: a bracket left open is found late
        raise ValueError(f"This is not YAML in {where}{field}: {why}. The cause may be just before.") from None
    if not isinstance(config, dict):
        raise ValueError("A config is a mapping of fields, such as `seed: 0`.")
    plain: dict[str, Any] = _plain(config, "")
    return plain


def _plain(value: Any, path: str) -> Any:
    """The value with text for keys. Raises ValueError for what YAML has and the JSON that goes to the API has not."""
    where = f" at {path[1:]!r}" if path else ""
    if path.count(".") > 100:
        raise ValueError(f"The value at {path[1:40]!r} refers to itself, or is nested too deeply.")
    if isinstance(value, dict):
        return {str(key): _plain(part, f"{path}.{key}") for key, part in value.items()}
    if isinstance(value, list):
        return [_plain(part, f"{path}.{i}") for i, part in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"The value{where} is {value}, which is no number that can be computed with.")
    if isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value):
        raise ValueError(f"The text{where} has half of a surrogate pair; give plain Unicode text.")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    kind = "date" if isinstance(value, dt.date) else type(value).__name__
    raise ValueError(f"The value{where} is a {kind} in YAML; put it in quotes if it is a text.")


def lookup(config: dict[str, Any], path: str, default: Any = None) -> Any:
    """The value at a dotted path; the default when any part of it is not there."""
    place: Any = config
    for part in path.split("."):
        if not isinstance(place, dict) or part not in place:
            return default
        place = place[part]
    return place


def about(form: list[Group], path: str, message: str) -> list[str]:
    """The paths of the fields that a problem is about: the field itself, or those that its message names."""
    paths = [f.path for group in form for f in group.fields]
    if path in paths:
        return [path]
    words = set(re.findall(r"\w+(?==)|\w*_\w+", message))
    return [p for p in paths if p.startswith(f"{path}.") and p.rpartition(".")[2] in words] or [path]


def name_in_words(form: list[Group], path: str) -> str:
    """The form's words and the field's name: 'Too hard below (p_lower)'."""
    labels = [f.label for group in form for f in group.fields if f.path == path]
    return f"{labels[0]} ({path.rpartition('.')[2]})" if labels else path


def fits(f: Field, value: Any) -> bool:
    """Whether the field's widget can show the value."""
    if value is None:
        return f.nullable
    if f.kind == "choice":
        return value in f.options
    if f.kind == "flag":
        return isinstance(value, bool)
    if f.kind == "choices":
        return isinstance(value, list) and all(v in f.options for v in value)
    if f.kind == "mapping":
        return isinstance(value, dict | list | str)
    if f.kind == "text":
        return isinstance(value, str)
    whole = isinstance(value, int) and not isinstance(value, bool)
    known = whole or (f.kind == "number" and isinstance(value, float))
    return known and abs(value) < 2**53  # a browser counts no further; neither infinite nor not a number


def written(f: Field, value: Any) -> Any:
    """What the field's widget holds, as the config says it. Text that is no mapping stays, for the API to name."""
    if f.kind == "text" and f.nullable and value == "":
        return None
    if f.kind != "mapping" or not isinstance(value, str):
        return value
    try:
        parsed = _plain(yaml.safe_load(value), "")
    except (yaml.YAMLError, ValueError, RecursionError):
        return value
    return ([] if isinstance(f.default, list) else {}) if parsed is None else parsed


def _prefixes(path: str) -> Iterator[str]:
    parts = path.split(".")
    return (".".join(parts[: i + 1]) for i in range(len(parts)))


def _resolve(schema: Schema, node: Schema) -> Schema:
    """The node with its $ref filled in; what stands beside the $ref wins."""
    if "$ref" in node:
        target: Schema = schema["$defs"][node["$ref"].rsplit("/", 1)[-1]]
        return {**_resolve(schema, target), **{k: v for k, v in node.items() if k != "$ref"}}
    return node


def _fields(
    schema: Schema, node: Schema, path: str, required: bool, choice: Callable[[str, str], str], variant: str = ""
) -> Iterator[Field]:
    node = _resolve(schema, node)
    if "oneOf" in node:
        yield from _union(schema, node, path, choice)
    elif "properties" in node:
        needed = set(node.get("required", ()))
        for name, child in node.get("properties", {}).items():
            if "const" not in child:
                yield from _fields(schema, child, f"{path}.{name}", name in needed, choice, variant)
            elif not variant or name != "name":  # nothing to choose, but the config says it
                yield Field(f"{path}.{name}", "choice", default=child["const"], options=(child["const"],))
    else:
        yield _leaf(node, path, required, variant)


def _union(schema: Schema, node: Schema, path: str, choice: Callable[[str, str], str]) -> Iterator[Field]:
    key = node["discriminator"]["propertyName"]
    members = {name: _resolve(schema, {"$ref": ref}) for name, ref in node["discriminator"]["mapping"].items()}
    default = str((node.get("default") or {}).get(key) or next(iter(members)))
    chosen = choice(f"{path}.{key}", default)
    if chosen not in members:
        chosen = default
    words = str(members[chosen].get("description", ""))
    yield Field(f"{path}.{key}", "choice", words, default, options=tuple(members), is_variant_choice=True)
    yield from _fields(schema, members[chosen], path, True, choice, variant=chosen)


def _leaf(node: Schema, path: str, required: bool, variant: str) -> Field:
    nullable = False
    words, default, examples = node.get("description", ""), node.get("default"), node.get("examples") or [""]
    if "anyOf" in node:
        nullable = any(option.get("type") == "null" for option in node["anyOf"])
        node = {**node, **next(option for option in node["anyOf"] if option.get("type") != "null")}
    kinds: dict[str, Kind] = {
        "integer": "integer", "number": "number", "boolean": "flag", "array": "choices", "object": "mapping",
    }  # fmt: skip
    named = node.get("enum") or ([node["const"]] if "const" in node else [])
    options = tuple(named or node.get("items", {}).get("enum", ()))
    if named and nullable:
        options = (None, *options)
    kind = "choice" if named else kinds.get(node.get("type", ""), "text")
    if kind == "choices" and not options:
        kind = "mapping"  # a list of sections: written as YAML too
    return Field(
        path=path,
        kind=kind,
        help=words,
        default=default,
        nullable=nullable,
        required=required and default is None and not nullable,
        options=options,
        minimum=node.get("minimum", node.get("exclusiveMinimum")),
        maximum=node.get("maximum", node.get("exclusiveMaximum")),
        variant=variant,
        example=str(examples[0]),
        unit=node.get("unit", ""),
        paper=node.get("paper"),
    )
