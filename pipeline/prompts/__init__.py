"""What a run trains and is evaluated on: prompts from files, uploaded sets and the hub. No torch here."""

from pipeline.prompts.load import check_model_folder, load_prompts, load_run_prompts, preflight, read_prompts
from pipeline.prompts.types import FileFault, Message, Prompt, PromptSet, RowFault, make_prompt, prompt_id

__all__ = [
    "FileFault",
    "Message",
    "Prompt",
    "PromptSet",
    "RowFault",
    "check_model_folder",
    "load_prompts",
    "load_run_prompts",
    "make_prompt",
    "preflight",
    "prompt_id",
    "read_prompts",
]
