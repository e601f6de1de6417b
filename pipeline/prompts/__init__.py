"""What a run trains and is evaluated on: prompts from files, uploaded sets and the hub. No torch here."""

from pipeline.prompts.child import Job, Read, read
from pipeline.prompts.convert import convert as convert_prompts
from pipeline.prompts.hub import HUB_PATTERN, HUB_WORDS, Bounds, Fetched, HubAway, HubRef, hub_ref
from pipeline.prompts.hub import fetch as fetch_hub
from pipeline.prompts.load import (
    Counts,
    check_model_folder,
    columns_of,
    count_run_prompts,
    load_benchmarks,
    load_prompts,
    load_run_prompts,
    preflight,
    preflight_evaluation,
    read_prompts,
    reward_problems,
)
from pipeline.prompts.places import SetRef, set_ref, sets_of
from pipeline.prompts.report import PreviewRow, PromptReport, examine_source, rows_of_set
from pipeline.prompts.tokenizer import ChatTokenizer
from pipeline.prompts.types import FileFault, Message, Prompt, PromptSet, RowFault, make_prompt, prompt_id
from pipeline.sandbox.apart import NoSandbox

__all__ = [
    "HUB_PATTERN",
    "HUB_WORDS",
    "Bounds",
    "ChatTokenizer",
    "Counts",
    "Fetched",
    "FileFault",
    "HubAway",
    "HubRef",
    "Job",
    "Message",
    "NoSandbox",
    "PreviewRow",
    "Prompt",
    "PromptReport",
    "PromptSet",
    "Read",
    "RowFault",
    "SetRef",
    "check_model_folder",
    "columns_of",
    "convert_prompts",
    "count_run_prompts",
    "examine_source",
    "fetch_hub",
    "hub_ref",
    "load_benchmarks",
    "load_prompts",
    "load_run_prompts",
    "make_prompt",
    "preflight",
    "preflight_evaluation",
    "prompt_id",
    "read",
    "read_prompts",
    "reward_problems",
    "rows_of_set",
    "set_ref",
    "sets_of",
]
