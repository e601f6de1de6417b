"""`pilot ...`: the command line. Imports are inside the commands: each loads what it needs and no more."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.failure import Failure
from cli.place import API_PORT, UI_PORT, api_url, home, token

if TYPE_CHECKING:
    from api.client import Client

app = typer.Typer(
    name="pilot",
    help="Pilot-Commit: RL post-training that spends rollouts where they count.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
runs = typer.Typer(no_args_is_help=True, help="Start, list, look at, stop and resume runs.")
database = typer.Typer(no_args_is_help=True, help="The database that DATABASE_URL names.")
data = typer.Typer(no_args_is_help=True, help="Prompt sets.")
rewards = typer.Typer(no_args_is_help=True, help="What makes a response right.")
access = typer.Typer(no_args_is_help=True, help="Tokens: who may use the API.")
app.add_typer(runs, name="run")
app.add_typer(data, name="data")
app.add_typer(rewards, name="reward")
app.add_typer(access, name="token")
app.add_typer(database, name="db")

RunArgument = Annotated[
    str,
    typer.Argument(metavar="ID", help="The run's id, or its first 6 or more characters; `./pilot run list` shows it."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, as the API gives it.")]
# How the files of `pilot data` are read, as in the data section of a config.
MappingOption = Annotated[
    str, typer.Option("--mapping", help="Which columns it has: plain (those named here), verl, gsm8k, deepmath, ...")
]
EvalMapping = Annotated[
    str | None, typer.Option("--eval-mapping", help="Which columns the held-out prompts have; unset: as --mapping.")
]
PromptKey = Annotated[str | None, typer.Option("--prompt-key", metavar="COLUMN", help="Of the prompt, in plain files.")]
AnswerKey = Annotated[str | None, typer.Option("--answer-key", metavar="COLUMN", help="Of the reference answer.")]
TagsKey = Annotated[str | None, typer.Option("--tags-key", metavar="COLUMN", help="Of the tags.")]
RewardKey = Annotated[str | None, typer.Option("--reward-key", metavar="COLUMN", help="Of the name of a reward.")]


@app.command()
def up(
    demo: Annotated[bool, typer.Option("--demo", help="Start a run on the bundled data and sum it up.")] = False,
    leave: Annotated[
        bool, typer.Option("--exit", help="With --demo: stop everything when the run is over (also: EXIT=1).")
    ] = False,
    port_api: Annotated[int, typer.Option(min=1, max=65535, help="Port of the API.")] = API_PORT,
    port_ui: Annotated[int, typer.Option(min=1, max=65535, help="Port of the dashboard.")] = UI_PORT,
) -> None:
    """Start the platform on this machine and keep it up until Ctrl-C.

    Uses DATABASE_URL and REDIS_URL when set, else a private Postgres and broker with their data in PILOT_HOME.
    """
    from cli.up import up

    if leave and not demo:
        raise Failure("--exit goes with --demo; without a demo there is nothing to wait for.", 2)
    leave = demo and (leave or os.environ.get("EXIT", "0") not in ("", "0") or not sys.stdout.isatty())
    raise typer.Exit(up(home(), port_api, port_ui, demo=demo, leave=leave))


@app.command()
def watch(run_id: RunArgument) -> None:
    """Follow a run until it has finished. Ends with 0 only if it succeeded."""
    with _client() as client:
        raise typer.Exit(_watch(client, run_id))


@app.command("audit")
def audit_log(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH", help="verl's rollout_data_dir, TRL's output_dir, a CSV file, a run's folder or id."
        ),
    ],
    format: Annotated[str | None, typer.Option(help="verl, trl, csv or pilot; left out: told by the files.")] = None,
    reward: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="The reward; given more than once: their sum.")
    ] = None,
    success: Annotated[str | None, typer.Option(metavar="COLUMN", help="What tells right (1) from wrong (0).")] = None,
    success_at: Annotated[float | None, typer.Option(help="Right is a reward of at least this.")] = None,
    n: Annotated[int | None, typer.Option(help="Rollouts per prompt of GRPO, PODS, DAPO [default: as logged].")] = None,
    n_pilot: Annotated[
        int | None, typer.Option(help="Pilots per prompt [default: a quarter of n, at least 2].")
    ] = None,
    n_commit: Annotated[int | None, typer.Option(help="Commits per prompt [default: the rest of n].")] = None,
    p_lower: Annotated[float, typer.Option(help="Pilot-Commit defers below this success rate.")] = 0.125,
    p_upper: Annotated[float, typer.Option(help="It skips above this.")] = 0.75,
    p_solve: Annotated[float, typer.Option(help="It evicts from this on.")] = 1.0,
    keep: Annotated[int | None, typer.Option(help="Rollouts that PODS keeps [default: a quarter of n].")] = None,
    batch_prompts: Annotated[
        int | None, typer.Option(help="Prompts trained on per step [default: the log's median].")
    ] = None,
    replays: Annotated[
        int | None, typer.Option(help="Replays of each method [default: 20, fewer on large logs].")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the replays.")] = 0,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave bad rows out instead of refusing.")] = False,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the report as one HTML file.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Write audit.html and audit.json there.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Audit a log of rollouts: what taught nothing, and what other methods would have spent on the same stream."""
    from cli import audit as it

    given = {
        "format": format, "reward": reward or [], "success": success, "success_at": success_at, "n": n,
        "n_pilot": n_pilot, "n_commit": n_commit, "p_lower": p_lower, "p_upper": p_upper, "p_solve": p_solve,
        "keep": keep, "batch_prompts": batch_prompts, "replays": replays, "seed": seed, "skip_bad": skip_bad,
    }  # fmt: skip
    report = it.audited(path, given)
    files = it.written(report, html, out)
    if as_json:
        print(report.model_dump_json(indent=2))
    else:
        it.show(report)
    for file in files:
        print(f"Written: {file}", file=sys.stderr)


@app.command()
def compare(
    run_ids: Annotated[
        list[str],
        typer.Argument(metavar="ID...", help="Up to 20 runs, each by its id or its first 6 characters."),
    ],
    by: Annotated[str, typer.Option(help="What ratios count: rollouts, tokens, steps or hours.")] = "rollouts",
    target: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Accuracy to reach; without it the highest that all of them reach."),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(metavar="ID", help="What the others are compared with; without it the first run.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare runs: what each needed until it reached a target, and in what their configs differ.

    Runs whose configs differ by seed and name only are one row: their median, with intervals over seeds.
    """
    from cli.compare import compare, told_of

    with _client() as client:
        found = compare(client, run_ids, by, target, baseline)
    print(found.model_dump_json(indent=2) if as_json else told_of(found))


@app.command()
def forecast(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="The file of a run config, or a preset's name.")],
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY.PATH=VALUE", help="Change a field; may be repeated.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """What a run would sample and take, from its config and earlier runs on the same prompts. Starts nothing."""
    from cli.failure import told
    from cli.forecast import forecast_told
    from cli.run import config_given

    with _client() as client:
        data = config_given(client, config, changes or [])
        with told():
            found = client.forecast_config(data)
    print(found.model_dump_json(indent=2) if as_json else forecast_told(found))


@runs.command("start")
def run_start(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="The file of a run config, or a preset's name.")],
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY.PATH=VALUE", help="Change a field; may be repeated.")
    ] = None,
    follow: Annotated[bool, typer.Option("--watch", help="Follow the run until it has finished.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Like --watch, for CI: a signal that ends the wait stops the run, too.")
    ] = False,
    require: Annotated[
        list[str] | None,
        typer.Option(metavar="METRIC>=NUMBER", help="With --wait: fail unless this holds in the end; may be repeated."),
    ] = None,
    max_rollouts: Annotated[int | None, typer.Option(min=1, help="At most so many training rollouts.")] = None,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="With --wait: write a JUnit report.")] = None,
    markdown: Annotated[Path | None, typer.Option(metavar="FILE", help="With --wait: write a summary.")] = None,
    key: Annotated[
        str | None, typer.Option(help="Start only one run for this text, however often it is asked: a build's id.")
    ] = None,
) -> None:
    """Start a run. Relative paths in the config are taken from the application's folder.

    With --wait it ends with 0 only if the run succeeded and everything required of it holds.
    """
    from cli import ci, run

    if not wait and (require or junit or markdown):
        raise Failure("--require, --junit and --markdown go with --wait.", 2)
    requirements = [ci.requirement(text) for text in require or []]
    with _client() as client:
        created = run.start(client, config, changes or [], max_rollouts, key)
        print(f"Run {created.name!r} is {created.state}: {created.id}", flush=True)
        if wait:
            raise typer.Exit(ci.wait(client, created, requirements, junit, markdown))
        if follow:
            raise typer.Exit(_watch(client, str(created.id)))


@runs.command("presets")
def run_presets() -> None:
    """List the shipped configs to start from."""
    from cli.failure import told
    from cli.run import presets_listed

    with _client() as client, told():
        print(presets_listed(client.presets()))


@runs.command("list")
def run_list(
    state: Annotated[
        list[str] | None, typer.Option(help="Only runs in this state, such as running; may be repeated.")
    ] = None,
    method: Annotated[str | None, typer.Option(help="Only runs of this method, such as grpo.")] = None,
    tag: Annotated[str | None, typer.Option(help="Only runs with this tag.")] = None,
    owner: Annotated[str | None, typer.Option(help="Only runs that the token of this name created.")] = None,
    search: Annotated[
        str | None, typer.Option(help="Part of a name or of a model's path, a tag, or the beginning of an id.")
    ] = None,
    archived: Annotated[bool, typer.Option("--archived", help="Only archived runs; else they are left out.")] = False,
    sort: Annotated[
        str, typer.Option(help="created, name, accuracy or rollouts; with a leading - the largest come first.")
    ] = "-created",
    limit: Annotated[int, typer.Option(min=1, max=200, help="Most runs to list.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List runs, newest first."""
    from cli.failure import told
    from cli.run import listed

    with _client() as client, told():
        page = client.list_runs(
            state or None, limit, method=method, tag=tag, owner=owner, search=search,
            archived="only" if archived else "no", sort=sort,
        )  # fmt: skip
    filtered = any((state, method, tag, owner, search, archived))
    print(page.model_dump_json(indent=2) if as_json else listed(page, filtered))


@runs.command("show")
def run_show(run_id: RunArgument, as_json: AsJson = False) -> None:
    """Show one run, and what its newest evaluations say of each benchmark."""
    from cli.failure import told
    from cli.run import shown
    from cli.watch import run_of

    with _client() as client, told():
        found = client.get_run(run_of(client, run_id))
        evaluations = [] if as_json else client.metrics(found.id, points=2).evaluations  # all of them, few steps
    print(found.model_dump_json(indent=2) if as_json else shown(found, evaluations))


@runs.command("stop")
def run_stop(run_id: RunArgument) -> None:
    """Ask a run to finish its step, save a checkpoint and stop."""
    from cli import run

    with _client() as client:
        print(run.stop(client, run_id))


@runs.command("resume")
def run_resume(run_id: RunArgument) -> None:
    """Go on with a stopped or failed run from its newest checkpoint."""
    from cli import run

    with _client() as client:
        print(run.resume(client, run_id))


@access.command("create")
def token_create(
    name: Annotated[str, typer.Argument(help="Who or what uses it; lists and the audit log show it.")],
    scope: Annotated[
        str, typer.Option(help="read: see runs; run: start, stop and change them, too; admin: make tokens, too.")
    ] = "read",
    days: Annotated[int, typer.Option(min=0, help="Days until it expires; 0: never.")] = 90,
    direct: Annotated[
        bool,
        typer.Option("--direct", help="Make it in the database that DATABASE_URL names, without the API and a token."),
    ] = False,
    if_none: Annotated[
        bool, typer.Option("--if-none", help="With --direct: only if no admin token works, as at the first start.")
    ] = False,
) -> None:
    """Make a token and print its secret, which is shown this once and stored nowhere."""
    from cli import tokens

    if scope not in ("read", "run", "admin"):
        raise Failure(f"--scope {scope!r} is not one of read, run, admin.", 2)
    if if_none and not direct:
        raise Failure("--if-none goes with --direct.", 2)
    if direct:
        secret = tokens.create_directly(name, scope, days or None, if_none=if_none)
        if secret is None:
            print("There is an admin token already; nothing was made.")
            return
    else:
        with _client() as client:
            secret = tokens.create(client, name, scope, days or None)
    print(f"The {scope} token {name!r}, shown this once (use it as PILOT_TOKEN):", file=sys.stderr, flush=True)
    print(secret)


@access.command("list")
def token_list(
    everything: Annotated[bool, typer.Option("--all", help="Revoked and expired ones, too.")] = False,
) -> None:
    """List tokens, newest first. Their secrets are stored nowhere."""
    from cli import tokens

    with _client() as client:
        print(tokens.listed(tokens.every(client, everything=everything)))


@access.command("revoke")
def token_revoke(
    token_id: Annotated[str, typer.Argument(metavar="ID", help="The token's id, or its first 6 or more characters.")],
) -> None:
    """Revoke a token: from now on it opens nothing."""
    from cli import tokens

    with _client() as client:
        print(tokens.revoke(client, token_id))


@data.command("prepare")
def data_prepare(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A published data set, such as gsm8k or deepmath.")],
    out: Annotated[Path, typer.Option(help="Folder for train.jsonl and eval.jsonl, such as data/gsm8k.")],
    files: Annotated[
        list[str] | None,
        typer.Option("--from", metavar="[SOURCE=]FILE", help="A file in place of the hub's; may be repeated."),
    ] = None,
    held_out: Annotated[
        list[str] | None,
        typer.Option("--eval", metavar="SOURCE", help="Held-out prompts, in place of the set's own; may be repeated."),
    ] = None,
    instruction: Annotated[
        str | None, typer.Option(help="What follows each question, in place of the request for a boxed answer.")
    ] = None,
) -> None:
    """Make prompt sets of a published data set, fetched from the Hugging Face hub or given as files."""
    from cli.data import prepared
    from pipeline.datasets import INSTRUCTION

    print(prepared(name, out, files or [], held_out or [], INSTRUCTION if instruction is None else instruction))


@data.command("validate")
def data_validate(
    source: Annotated[
        str, typer.Argument(metavar="FILE", help="A file, set:NAME@VERSION or hub:OWNER/NAME@REV:SPLIT.")
    ],
    mapping: MappingOption = "plain",
    against: Annotated[str | None, typer.Option("--eval", help="Find prompts that are in this file, too.")] = None,
    eval_mapping: EvalMapping = None,
    prompt_key: PromptKey = None,
    answer_key: AnswerKey = None,
    tags_key: TagsKey = None,
    reward_key: RewardKey = None,
    model: Annotated[Path | None, typer.Option(help="Count tokens as this model folder does.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest prompt; the model's context if unset.")] = None,
    reward: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[ROW'S=]REWARD",
            help="Check that this reward can use the reference answers; letter=choice: those of rows that name letter.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Tell everything that is wrong with a file of prompts, by row. Ends with 1 when it would not be accepted."""
    from cli.data import described, validated

    keys = {"prompt_key": prompt_key, "answer_key": answer_key, "tags_key": tags_key, "reward_key": reward_key}
    given = described(source, mapping, keys, eval_mapping=eval_mapping)
    report = validated(given, against, model, max_tokens, reward or [])
    print(report.model_dump_json(indent=2) if as_json else report.text(source))
    raise typer.Exit(0 if report.accepted else 1)


@data.command("convert")
def data_convert(
    source: Annotated[str, typer.Argument(metavar="IN", help="A file, set:NAME@VERSION or hub:OWNER/NAME@REV:SPLIT.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A .jsonl (our columns) or .parquet (verl's layout).")],
    mapping: MappingOption = "plain",
    prompt_key: PromptKey = None,
    answer_key: AnswerKey = None,
    tags_key: TagsKey = None,
    reward_key: RewardKey = None,
    system: Annotated[str | None, typer.Option(help="System prompt for prompts without one.")] = None,
    template: Annotated[str | None, typer.Option(help="What a prompt becomes; {prompt} stands for it.")] = None,
) -> None:
    """Write a prompt set in our columns, or as verl's own trainers read it."""
    from cli.data import converted, described

    keys = {"prompt_key": prompt_key, "answer_key": answer_key, "tags_key": tags_key, "reward_key": reward_key}
    print(converted(described(source, mapping, keys, system=system, template=template), out))


@data.command("upload")
def data_upload(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="JSONL, JSON, CSV or Parquet, at most 256 MiB; or hub:OWNER/NAME[@REVISION][:SPLIT], by the API.",
        ),
    ],
    name: Annotated[str | None, typer.Option(help="Name of the set; unset: that of the file.")] = None,
    mapping: MappingOption = "plain",
    prompt_key: PromptKey = None,
    answer_key: AnswerKey = None,
    tags_key: TagsKey = None,
    reward_key: RewardKey = None,
    as_json: AsJson = False,
) -> None:
    """Add a file or a data set of the hub as a version of a set, set:NAME@VERSION: all of it, or nothing and why."""
    from cli.data import uploaded
    from cli.table import counted

    keys = {"prompt_key": prompt_key, "answer_key": answer_key, "tags_key": tags_key, "reward_key": reward_key}
    with _client() as client:
        stored = uploaded(client, file, name, mapping, keys)
    told = f"{stored.ref}: {counted(stored.n_prompts, 'prompt')}"
    print(stored.model_dump_json(indent=2) if as_json else told)


@data.command("fetch")
def data_fetch(
    source: Annotated[
        str, typer.Argument(metavar="hub:OWNER/NAME[@REVISION][:SPLIT]", help="A Hugging Face data set.")
    ],
) -> None:
    """Fetch a data set of the Hugging Face hub, and tell how a config names exactly this commit of it."""
    from cli.data import fetched

    print(fetched(source))


@data.command("decontaminate")
def data_decontaminate(
    train: Annotated[str, typer.Argument(metavar="TRAIN", help="Training prompts, as data.train of a config.")],
    evaluation: Annotated[list[str], typer.Argument(metavar="EVAL...", help="Held-out prompts, as data.eval.")],
    mapping: MappingOption = "plain",
    eval_mapping: EvalMapping = None,
    prompt_key: PromptKey = None,
    answer_key: AnswerKey = None,
    tags_key: TagsKey = None,
    reward_key: RewardKey = None,
    n: Annotated[int, typer.Option("-n", min=8, help="Words in a row that two prompts may not share.")] = 13,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Name held-out prompts that are among the training prompts, or share a long run of words with one of them.

    Ends with 1 when there are any.
    """
    import json

    from cli import data as it

    keys = {"prompt_key": prompt_key, "answer_key": answer_key, "tags_key": tags_key, "reward_key": reward_key}
    found = it.overlaps(it.described(train, mapping, keys, eval_mapping=eval_mapping), evaluation, n)
    print(json.dumps(found, indent=2, ensure_ascii=False) if as_json else it.overlaps_in_words(found))
    raise typer.Exit(1 if any(found.values()) else 0)


@app.command("eval")
def evaluate(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="A run's id: its workers evaluate. A run's folder: this machine does.")
    ],
    step: Annotated[
        str, typer.Option(metavar="N", help="The checkpoint's step, newest, or (of an id) best.")
    ] = "newest",
    benchmark: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME|SET", help="A benchmark of the run, or a prompt set; may be repeated; none: all."),
    ] = None,
    protocol: Annotated[str | None, typer.Option(metavar="NAME", help="Of an id: also these, such as math-7.")] = None,
    samples: Annotated[int | None, typer.Option(metavar="K", help="Per prompt, in place of each one's own.")] = None,
    temperature: Annotated[float | None, typer.Option(metavar="T", help="The same for the temperature.")] = None,
    top_p: Annotated[float | None, typer.Option(metavar="P", help="The same for top-p.")] = None,
    greedy: Annotated[bool, typer.Option("--greedy", help="Answer each prompt once more, greedily.")] = False,
    reward: Annotated[str | None, typer.Option(metavar="NAME|JSON", help="What judges.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Keep the responses there.")] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Of an id: follow it to its end; 0 only if it succeeds.")
    ] = False,
    key: Annotated[str | None, typer.Option(help="Of an id: the same call with it starts no second one.")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure a checkpoint of a run on benchmarks.

    Of an id: the platform does, as soon as a slot is free, and the results come to the run. Of a folder, such as
    .pilot/runs/ID: here and now, and the run is not touched.
    """
    asked = {
        "step": step, "benchmarks": benchmark, "protocol": protocol, "samples": samples, "temperature": temperature,
        "top_p": top_p, "greedy": greedy or None, "reward": reward,
    }  # fmt: skip
    if Path(run).is_dir() or len(Path(run).parts) > 1:
        raise typer.Exit(_evaluate_here(Path(run), asked, out, as_json))
    from cli import evaluate as it

    with _client() as client:
        found = it.ask(client, run, asked, key)
        if wait or out is not None:
            found = it.follow(client, found)
        if out is not None and found.state == "succeeded":
            it.keep(client, found, out)
    print(found.model_dump_json(indent=2) if as_json else it.shown(found))
    raise typer.Exit(0 if found.state == "succeeded" or not (wait or out) else 1)


def _evaluate_here(run_dir: Path, asked: dict[str, Any], out: Path | None, as_json: bool) -> int:
    """In a process of its own, which has the engine. Raises Failure."""
    import subprocess

    if not (run_dir / "config.json").is_file():
        raise Failure(f"{run_dir} has no config.json: give a run's folder, such as {home()}/runs/ID, or its id.", 2)
    if asked["protocol"] is not None:
        raise Failure("--protocol goes with a run's id; of a folder, name the files with --benchmark.", 2)
    options = [f"--benchmark={name}" for name in asked["benchmarks"] or ()]
    given = asked | {"step": None if asked["step"] == "newest" else asked["step"], "out": out}
    for name in ("step", "samples", "temperature", "top_p", "reward", "out"):
        options += [] if given[name] is None else [f"--{name.replace('_', '-')}={given[name]}"]
    options += ["--greedy"] if asked["greedy"] else []
    options += ["--json"] if as_json else []
    command = [sys.executable, "-m", "pipeline", "evaluate", str(run_dir.resolve()), *options]
    return subprocess.run(command, check=False).returncode


@runs.command("clone")
def run_clone(
    run_id: RunArgument,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY.PATH=VALUE", help="Change a field; may be repeated.")
    ] = None,
    priority: Annotated[int, typer.Option(min=-1000, max=1000, help="Higher ones start first.")] = 0,
) -> None:
    """Start a new run with the config of another and some changes."""
    from cli import run

    with _client() as client:
        created = run.clone(client, run_id, changes or [], priority)
    print(f"Run {created.name!r} is {created.state}: {created.id}")


@runs.command("priority")
def run_priority(run_id: RunArgument, priority: Annotated[int, typer.Argument(min=-1000, max=1000)]) -> None:
    """Move a run in the queue: higher ones start first."""
    from cli import run

    with _client() as client:
        print(run.prioritise(client, run_id, priority))


@runs.command("tag")
def run_tag(
    run_id: RunArgument,
    tags: Annotated[list[str] | None, typer.Argument(metavar="[TAG]...", help="Tags to add.")] = None,
    remove: Annotated[list[str] | None, typer.Option(metavar="TAG", help="A tag to remove; may be repeated.")] = None,
) -> None:
    """Add tags to a run and remove others; with neither, show those it has."""
    from cli import run

    with _client() as client:
        print(run.tag(client, run_id, tags or [], remove or []))


@runs.command("archive")
def run_archive(
    run_id: RunArgument,
    undo: Annotated[bool, typer.Option("--undo", help="Show it in lists again.")] = False,
) -> None:
    """Leave a run that has ended out of lists; nothing of it is lost."""
    from cli import run

    with _client() as client:
        print(run.archive(client, run_id, not undo))


@runs.command("delete")
def run_delete(run_id: RunArgument) -> None:
    """Delete a run that has ended: its numbers, checkpoints and rollouts. There is no way back."""
    from cli import run

    with _client() as client:
        print(run.delete(client, run_id))


@runs.command("log")
def run_log(
    run_id: RunArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run has ended.")] = False,
) -> None:
    """Print the end of what a run's trainer said."""
    from cli import run

    with _client() as client:
        run.print_log(client, run_id, follow=follow)


@rewards.command("test")
def reward_test(
    reward: Annotated[str, typer.Argument(metavar="NAME|CONFIG.yaml", help="A reward, or a config with one.")],
    response: Annotated[str, typer.Option(help="What the policy wrote; @FILE reads a file, - standard input.")],
    answer: Annotated[str, typer.Option(help="The reference answer; @FILE reads a file.")] = "",
    prompt: Annotated[str, typer.Option(help="The prompt; @FILE reads a file.")] = "",
    tokens: Annotated[int | None, typer.Option(min=0, help="Response tokens, for rewards that look at them.")] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="A field of the reward; may be repeated.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Score one response here and now, and tell what was extracted and compared. Ends with 1 when the reward failed."""
    from cli import reward as it
    from pipeline.rewards import Response

    asked = Response(it.text_of(response), it.text_of(answer), it.text_of(prompt), tokens)
    result = it.tested(reward, changes or [], asked)
    print(result.model_dump_json(indent=2) if as_json else it.words(result))
    raise typer.Exit(1 if result.failed else 0)


@rewards.command("list")
def reward_list() -> None:
    """List the rewards that a config can name."""
    from cli import reward as it

    print(it.listed())


@database.command("upgrade")
def db_upgrade() -> None:
    """Bring the database to the schema that this version needs."""
    import db

    try:
        db.upgrade()
    except (db.DatabaseUnavailable, db.SchemaMismatch) as error:
        raise Failure(str(error)) from None
    print("The database has the schema that this version needs.")


@database.command("check")
def db_check() -> None:
    """Tell whether the database has exactly the schema that this version needs."""
    import db

    try:
        db.check()
    except (db.DatabaseUnavailable, db.SchemaMismatch) as error:
        raise Failure(str(error)) from None
    print("The database has the schema that this version needs.")


def _client() -> Client:
    from api.client import ApiUnreachable, Client
    from cli.failure import unreachable

    try:
        return Client(api_url(), token())
    except ApiUnreachable as error:
        raise unreachable(error) from None


def _watch(client: Client, run_id: str) -> int:
    from cli.watch import watch

    try:
        return watch(client, run_id)
    except KeyboardInterrupt:
        print("\nThe run goes on; `./pilot watch` looks again, `./pilot run stop` stops it.")
        return 130


def main() -> int:
    """Exit status: 0 done, 1 it did not work, 2 not accepted as given, 128+n ended by signal n."""
    try:
        app(prog_name="./pilot")
    except Failure as failure:
        print(failure, file=sys.stderr)
        return failure.code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # `pilot run list | head -1`
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
