"""Our Qwen2 is Hugging Face's Qwen2: same logits, same files, and clear words where a folder is not one."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from pipeline.engines.torch import model as ours


def hf_model(tied: bool, seed: int = 0, **overrides: Any) -> Qwen2ForCausalLM:
    """A small random transformers model whose biases and norms are not at their trivial values."""
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {
        "vocab_size": 61, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 6,
        "num_key_value_heads": 2, "tie_word_embeddings": tied, "rope_theta": 5000.0, "initializer_range": 0.2,
    }  # fmt: skip
    hf = Qwen2ForCausalLM(Qwen2Config(**(sizes | overrides))).eval()
    with torch.no_grad():
        for name, parameter in hf.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return hf


@pytest.mark.parametrize("tied", [True, False])
def test_logits_agree_with_transformers(tmp_path: Path, tied: bool) -> None:
    hf = hf_model(tied)
    hf.save_pretrained(tmp_path)
    model = ours.load(tmp_path)
    tokens_B_L = torch.randint(61, (4, 17))
    with torch.no_grad():
        got = model(tokens_B_L, torch.arange(17).expand(4, 17), ours.causal)
        want = hf(tokens_B_L).logits
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("tied", [True, False])
def test_saved_folder_is_read_by_transformers(tmp_path: Path, tied: bool) -> None:
    hf = hf_model(tied)
    hf.save_pretrained(tmp_path / "a")
    ours.save(ours.load(tmp_path / "a"), tmp_path / "b")
    back = AutoModelForCausalLM.from_pretrained(tmp_path / "b")
    for (name, a), (_, b) in zip(hf.named_parameters(), back.named_parameters(), strict=True):
        assert torch.equal(a, b), name


def test_sharded_weights_and_old_rope_spelling(tmp_path: Path) -> None:
    hf = hf_model(False)
    hf.save_pretrained(tmp_path, max_shard_size="20KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    raw = json.loads((tmp_path / "config.json").read_text())
    raw["rope_theta"] = raw.pop("rope_parameters")["rope_theta"]
    (tmp_path / "config.json").write_text(json.dumps(raw))
    model = ours.load(tmp_path)
    assert model.config.rope_theta == 5000.0
    assert all(torch.equal(p, model.state_dict()[n]) for n, p in hf.named_parameters())


def test_weights_train(tmp_path: Path) -> None:
    hf_model(True).save_pretrained(tmp_path)
    model = ours.load(tmp_path)
    model(torch.tensor([[1, 2]]), torch.tensor([[0, 1]]), ours.causal).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere.*config.json and model.safetensors"):
        ours.load(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="config.json"):
        ours.load(tmp_path)
    hf_model(True).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="model.safetensors"):
        ours.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "llama"}, "supports model_type 'qwen2', not 'llama'.*verl engine"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope_type 'yarn'"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
    ],
)
def test_other_architectures_are_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    hf_model(True).save_pretrained(tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(raw | change))
    with pytest.raises(ValueError, match=words):
        ours.load(tmp_path)


def test_weights_that_do_not_fit(tmp_path: Path) -> None:
    hf_model(True).save_pretrained(tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(raw | {"num_hidden_layers": 4}))
    with pytest.raises(ValueError, match="do not fit"):
        ours.load(tmp_path)
