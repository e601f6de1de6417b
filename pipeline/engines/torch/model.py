"""Qwen2 in one file: RMSNorm, rotary positions, grouped-query attention with q/k/v biases, SwiGLU.

Parameter names equal Hugging Face's, so `load` reads the folder that transformers, vLLM and verl read, and
`save` writes one back. There is a single forward. What differs between prefill, decoding on a prefix tree and
training on packed groups is only who may look at whom, so the attention is a function that the caller hands in.

Shape suffixes: X any leading shape (one row per token), D hidden size, V vocabulary, I feed-forward size,
H query heads, K key/value heads, E head size.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

# (layer, q_X_H_E, k_X_K_E, v_X_K_E) -> out_X_H_E; queries and keys come with their rotary positions applied.
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Qwen2Config:
    """The numbers of a Qwen2 network. `raw` is the config.json that they came from, written back by `save`."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    tie_word_embeddings: bool
    raw: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def from_hf(cls, raw: Mapping[str, Any]) -> "Qwen2Config":
        """Reads the content of a Hugging Face config.json.

        Raises ValueError where the folder holds another architecture, or a Qwen2 variant whose numbers this
        forward would silently get wrong (scaled rotary positions, sliding windows, another activation).
        """
        if raw.get("model_type") != "qwen2":
            raise ValueError(
                f"the torch engine supports model_type 'qwen2', not {raw.get('model_type')!r}; "
                "train other architectures with the verl engine"
            )
        # transformers 5 writes rope_parameters; 4 wrote rope_theta and an optional rope_scaling.
        rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
        rope_type = rope.get("rope_type", rope.get("type", "default"))
        sliding = raw.get("use_sliding_window") or "sliding_attention" in (raw.get("layer_types") or [])
        unsupported = {
            f"rope_type {rope_type!r}": rope_type != "default",
            "use_sliding_window": bool(sliding),
            f"hidden_act {raw.get('hidden_act')!r}": raw.get("hidden_act", "silu") != "silu",
        }
        if any(unsupported.values()):
            what = ", ".join(name for name, present in unsupported.items() if present)
            raise ValueError(f"the torch engine supports plain qwen2, without {what}; use the verl engine")
        heads = int(raw["num_attention_heads"])
        return cls(
            vocab_size=int(raw["vocab_size"]),
            hidden_size=int(raw["hidden_size"]),
            intermediate_size=int(raw["intermediate_size"]),
            num_hidden_layers=int(raw["num_hidden_layers"]),
            num_attention_heads=heads,
            num_key_value_heads=int(raw.get("num_key_value_heads") or heads),
            head_dim=int(raw.get("head_dim") or int(raw["hidden_size"]) // heads),
            rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
            rope_theta=float(rope.get("rope_theta") or raw.get("rope_theta") or 10000.0),
            tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
            raw=dict(raw),
        )


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight, over the last dimension."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x_X_D: Tensor) -> Tensor:
        return F.rms_norm(x_X_D, (x_X_D.shape[-1],), self.weight, self.eps)


def rotate(x_X_N_E: Tensor, cos_X_1_E: Tensor, sin_X_1_E: Tensor) -> Tensor:
    """Rotary position embedding in Hugging Face's layout: dimension i pairs with dimension i + E/2."""
    left, right = x_X_N_E.chunk(2, dim=-1)
    return x_X_N_E * cos_X_1_E + torch.cat((-right, left), dim=-1) * sin_X_1_E


class Attention(nn.Module):
    """Grouped-query attention around the caller's `attend`."""

    def __init__(self, c: Qwen2Config) -> None:
        super().__init__()
        self.head_dim = c.head_dim
        self.q_proj = nn.Linear(c.hidden_size, c.num_attention_heads * c.head_dim, bias=True)
        self.k_proj = nn.Linear(c.hidden_size, c.num_key_value_heads * c.head_dim, bias=True)
        self.v_proj = nn.Linear(c.hidden_size, c.num_key_value_heads * c.head_dim, bias=True)
        self.o_proj = nn.Linear(c.num_attention_heads * c.head_dim, c.hidden_size, bias=False)

    def forward(self, layer: int, x_X_D: Tensor, cos_X_1_E: Tensor, sin_X_1_E: Tensor, attend: Attend) -> Tensor:
        q_X_H_E = self.q_proj(x_X_D).unflatten(-1, (-1, self.head_dim))
        k_X_K_E = self.k_proj(x_X_D).unflatten(-1, (-1, self.head_dim))
        v_X_K_E = self.v_proj(x_X_D).unflatten(-1, (-1, self.head_dim))
        q_X_H_E, k_X_K_E = rotate(q_X_H_E, cos_X_1_E, sin_X_1_E), rotate(k_X_K_E, cos_X_1_E, sin_X_1_E)
        out_X_D: Tensor = self.o_proj(attend(layer, q_X_H_E, k_X_K_E, v_X_K_E).flatten(-2))
        return out_X_D


class MLP(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x))."""

    def __init__(self, c: Qwen2Config) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.up_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.down_proj = nn.Linear(c.intermediate_size, c.hidden_size, bias=False)

    def forward(self, x_X_D: Tensor) -> Tensor:
        out_X_D: Tensor = self.down_proj(F.silu(self.gate_proj(x_X_D)) * self.up_proj(x_X_D))
        return out_X_D


class Block(nn.Module):
    """One pre-norm transformer layer."""

    def __init__(self, c: Qwen2Config) -> None:
        super().__init__()
        self.self_attn = Attention(c)
        self.mlp = MLP(c)
        self.input_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)

    def forward(self, layer: int, x_X_D: Tensor, cos_X_1_E: Tensor, sin_X_1_E: Tensor, attend: Attend) -> Tensor:
        x_X_D = x_X_D + self.self_attn(layer, self.input_layernorm(x_X_D), cos_X_1_E, sin_X_1_E, attend)
        out_X_D: Tensor = x_X_D + self.mlp(self.post_attention_layernorm(x_X_D))
        return out_X_D


class Decoder(nn.Module):
    """Embeddings, layers and the final norm: what Hugging Face calls `model`."""

    def __init__(self, c: Qwen2Config) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList(Block(c) for _ in range(c.num_hidden_layers))
        self.norm = RMSNorm(c.hidden_size, c.rms_norm_eps)


class Qwen2(nn.Module):
    """The policy. Freshly built it has random weights (drawn from torch's global generator), in float32."""

    def __init__(self, config: Qwen2Config) -> None:
        super().__init__()
        self.config = config
        self.model = Decoder(config)
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() == 2:
                nn.init.normal_(parameter, std=float(config.raw.get("initializer_range", 0.02)))

    @property
    def device(self) -> torch.device:
        """Where the weights live, hence where tokens must be sent."""
        return self.model.embed_tokens.weight.device

    def hidden(self, tokens_X: Tensor, positions_X: Tensor, attend: Attend) -> Tensor:
        """Hidden states after the final norm, [X, D]. Callers that need few logits unembed only those rows."""
        x_X_D = self.model.embed_tokens(tokens_X)
        e = self.config.head_dim
        # Angles in float32 whatever the weights' type; transformers does the same.
        frequency_E2 = self.config.rope_theta ** (-torch.arange(0, e, 2, device=tokens_X.device).float() / e)
        angle_X_1_E = (positions_X[..., None].float() * frequency_E2).tile(2)[..., None, :]
        cos_X_1_E, sin_X_1_E = angle_X_1_E.cos().to(x_X_D.dtype), angle_X_1_E.sin().to(x_X_D.dtype)
        for i, layer in enumerate(self.model.layers):
            x_X_D = layer(i, x_X_D, cos_X_1_E, sin_X_1_E, attend)
        out_X_D: Tensor = self.model.norm(x_X_D)
        return out_X_D

    def unembed(self, hidden_X_D: Tensor) -> Tensor:
        """Logits, [X, V]."""
        tied = self.config.tie_word_embeddings
        return F.linear(hidden_X_D, self.model.embed_tokens.weight if tied else self.lm_head.weight)

    def forward(self, tokens_X: Tensor, positions_X: Tensor, attend: Attend) -> Tensor:
        """Logits [X, V] of the token that follows each of `tokens_X` (ids) at `positions_X` (0 = first)."""
        return self.unembed(self.hidden(tokens_X, positions_X, attend))


def causal(layer: int, q_B_L_H_E: Tensor, k_B_L_K_E: Tensor, v_B_L_K_E: Tensor) -> Tensor:
    """The ordinary `attend`: every token of a row sees itself and the tokens before it.

    Rows padded on the right need no mask: padding comes after every real token, so none of those see it.
    """
    q_B_H_L_E, k_B_K_L_E, v_B_K_L_E = (t.transpose(1, 2) for t in (q_B_L_H_E, k_B_L_K_E, v_B_L_K_E))
    gqa = q_B_H_L_E.shape[1] != k_B_K_L_E.shape[1]
    out = F.scaled_dot_product_attention(q_B_H_L_E, k_B_K_L_E, v_B_K_L_E, is_causal=True, enable_gqa=gqa)
    return out.transpose(1, 2)


def load(path: str | Path, device: str | torch.device = "cpu") -> Qwen2:
    """Reads a Hugging Face Qwen2 folder (config.json and model.safetensors, sharded or not) as float32.

    Raises FileNotFoundError naming what is missing, and ValueError for another architecture or for weights
    that do not fit the config.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise FileNotFoundError(f"no model folder at {folder}: need config.json and model.safetensors there")
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"no config.json in {folder}: a Hugging Face Qwen2 folder is needed")
    config = Qwen2Config.from_hf(json.loads((folder / "config.json").read_text()))
    shards = [folder / "model.safetensors"]
    if (folder / "model.safetensors.index.json").is_file():
        index = json.loads((folder / "model.safetensors.index.json").read_text())
        shards = [folder / name for name in sorted(set(index["weight_map"].values()))]
    weights: dict[str, Tensor] = {}
    for shard in shards:
        if not shard.is_file():
            raise FileNotFoundError(f"no {shard.name} in {folder}: weights are read from safetensors only")
        weights |= load_file(shard)
    if config.tie_word_embeddings:
        weights.pop("lm_head.weight", None)  # some writers store the tied copy too
    # Built without memory and then handed the file's tensors: no time goes into random weights.
    with torch.device("meta"):
        model = Qwen2(config)
    try:
        model.load_state_dict({k: w.float() for k, w in weights.items()}, strict=True, assign=True)
    except RuntimeError as error:
        raise ValueError(f"the weights in {folder} do not fit its config.json: {error}") from error
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    return model.to(device)


def save(model: Qwen2, path: str | Path) -> None:
    """Writes config.json and model.safetensors (float32) into `path`, made if absent.

    The tokenizer files are not the model's to write: copy them from the folder that it was loaded from.
    Neither is atomicity: a checkpoint writes into a fresh folder and renames that.
    """
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    raw = dict(model.config.raw) | {"architectures": ["Qwen2ForCausalLM"], "dtype": "float32"}
    raw.pop("torch_dtype", None)  # the older spelling, which would contradict
    weights = {k: w.detach().cpu().contiguous() for k, w in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # save_file leaves it to its owner alone; config.json is not
    (folder / "config.json").write_text(json.dumps(raw, indent=2) + "\n")
