"""Examples of answers for the OpenAPI document, by operation. Tests hold them to the schemas."""

from __future__ import annotations

from typing import Any

from api.schemas import RunCreate
from db.models import BUCKETS, FATES
from pipeline.audit import AuditSettings

_RUN = "0b9f4a52-6f0e-4b5d-9c1d-3a2f6f1e8d70"
_CONFIG: dict[str, Any] = RunCreate.model_json_schema()["properties"]["config"]["examples"][0]
_COUNTS = dict(zip(BUCKETS, (120, 14, 31, 52, 9, 30), strict=True))

_SUMMARY: dict[str, Any] = {
    "id": _RUN,
    "name": "first run",
    "state": "running",
    "reason": None,
    "todo": "stop it to end after the step under way, with a checkpoint",
    "priority": 0,
    "device": "cpu",
    "n_devices": 1,
    "method": "pilot_commit",
    "model": "pipeline/bundled/policy",
    "created_at": "2026-01-05T09:30:00Z",
    "started_at": "2026-01-05T09:30:02Z",
    "finished_at": None,
    "attempt": 1,
    "step": 12,
    "steps_budget": 40,
    "rollouts": 5120,
    "rollouts_budget": None,
    "tokens": 81920,
    "first_accuracy": 0.41,
    "accuracy": 0.47,
    "best_accuracy": 0.47,
    "buckets": _COUNTS,
    "created_by": "ada",
    "tags": ["baseline"],
    "archived_at": None,
    "curve": [{"rollouts": 0, "accuracy": 0.41}, {"rollouts": 4300, "accuracy": 0.47}],
    "reward_variance": 0.21,
    "seconds": 610.0,
    "seconds_left": 1423.0,
}
_ATTEMPT: dict[str, Any] = {
    "attempt": 1,
    "host": "node-7",
    "from_step": 0,
    "started_at": "2026-01-05T09:30:02Z",
    "finished_at": None,
    "outcome": None,
    "reason": None,
    "exit_code": None,
    "last_seq": 15,
    "saved_step": 10,
    "seconds": 610.0,
    "open_rollouts": 512,
}
_DETAIL = _SUMMARY | {
    "config": _CONFIG,
    "config_digest": "5a0c1f9be27d4e36",
    "cloned_from": None,
    "dataset_id": "c2a4f1e09b7d3356",
    "stop_requested_at": None,
    "eval_rollouts": 768,
    "eval_tokens": 12288,
    "eval_seconds": 96.5,
    "gpu_hours": 0.169,
    "attempts": [_ATTEMPT],
}
_QUEUED = _DETAIL | {"state": "queued", "started_at": None, "attempt": 0, "attempts": [], "dataset_id": None}
_QUEUED |= dict.fromkeys(("step", "rollouts", "tokens", "eval_rollouts", "eval_tokens", "eval_seconds"), 0)
_QUEUED |= {"first_accuracy": None, "accuracy": None, "best_accuracy": None, "buckets": dict.fromkeys(BUCKETS, 0)}
_QUEUED |= {"curve": [], "reward_variance": None, "seconds": 0.0, "seconds_left": None, "tags": []}
_MARK = {"mark": "pin", "wished_at": "2026-01-05T09:38:00Z", "wished_by": "ada", "applied_step": 11}
_PROMPT: dict[str, Any] = {
    "id": "5f2b8c0de1a94773",
    "text": "17+25=",
    "answer": "42",
    "tags": ["addition"],
    "bucket": "committed",
    "success_rate": 0.375,
    "visits": 2,
    "rollouts": 32,
    "tokens": 512,
    "step": 12,
    "marks": [_MARK],
}
_VISIT: dict[str, Any] = {
    "step": 12,
    "stage": "pilot",
    "attempt": 1,
    "n": 8,
    "n_failed": 0,
    "success_rate": 0.375,
    "reward_variance": 0.234375,
    "tokens": 128,
    "bucket": "ready",
}
_LEDGER: dict[str, Any] = {
    "sampled": {"fate": "sampled", "rollouts": 5120, "tokens": 81920},
    "fates": [
        {"fate": fate, "rollouts": rollouts, "tokens": 16 * rollouts}
        for fate, rollouts in zip(FATES, (128, 3200, 640, 900, 200, 0, 40, 0, 12, 0), strict=True)
    ],
    "evaluation": [{"benchmark": "held-out", "rollouts": 1920, "tokens": 11520}],
}
_BENCHMARK: dict[str, Any] = {
    "name": "held-out",
    "dataset": "9d0c4b7a1e2f3355",
    "n_prompts": 200,
    "samples": 4,
    "temperature": 1.0,
    "top_p": 1.0,
    "accuracy": 0.47,
    "stderr": 0.021,
    "pass_at": {"1": 0.47, "2": 0.58, "4": 0.66},
    "majority": 0.52,
    "greedy_accuracy": 0.5,
    "greedy_stderr": 0.035,
    "n_failed": 0,
    "rollouts": 1000,
    "tokens": 6000,
    "seconds": 4.1,
}
_EVALUATION: dict[str, Any] = {
    "id": "d41a7c2e-90b3-4f6e-8a52-1c7be9a5d033",
    "run_id": _RUN,
    "run_name": "first run",
    "step": 40,
    "benchmarks": [
        {
            "name": "held-out",
            "data": "pipeline/bundled/prompts.eval.jsonl",
            "samples": 4,
            "greedy": True,
            "temperature": 1.0,
            "top_p": 1.0,
        }
    ],
    "state": "succeeded",
    "reason": "the checkpoint of step 40 is evaluated",
    "priority": 0,
    "device": "cpu",
    "n_devices": 1,
    "created_by": "ada",
    "created_at": "2026-01-05T11:00:02Z",
    "started_at": "2026-01-05T11:00:03Z",
    "finished_at": "2026-01-05T11:00:16Z",
    "stop_requested_at": None,
    "attempt": 1,
    "seconds": 12.4,
    "gpu_hours": 0.0034,
    "rollouts": 1000,
    "tokens": 6000,
    "results": [_BENCHMARK],
}
_NOT_YET: dict[str, Any] = {
    "state": "queued",
    "reason": "it waits for a CPU slot (0 of 2 free; it is next)",
    "attempt": 0,
    "seconds": 0.0,
    "gpu_hours": 0.0,
    "rollouts": 0,
    "tokens": 0,
    "results": [],
}
_METRICS = {"success_rate": 0.44, "reward_variance": 0.21, "loss": 0.012, "grad_norm": 0.8, "age_mean": None}

_TOKEN: dict[str, Any] = {
    "id": "7f1c5a0e-2b7d-4f0c-9a86-5f6f0f3f9a11",
    "name": "ci of the maths team",
    "scope": "run",
    "created_at": "2026-01-05T09:00:00Z",
    "created_by": "ada",
    "expires_at": "2026-04-05T09:00:00Z",
    "revoked_at": None,
    "last_used_at": "2026-01-05T09:30:00Z",
}
_CHANGE: dict[str, Any] = {
    "id": 12,
    "at": "2026-01-05T09:41:00Z",
    "token_id": _TOKEN["id"],
    "token_name": _TOKEN["name"],
    "action": "run.stop",
    "target": _RUN,
    "before": {"state": "running"},
    "after": {"state": "stopping"},
    "request_id": "6f0c2f8be0a94d2d8f6b1f1f7d0f6c1e",
}

_WEBHOOK: dict[str, Any] = {
    "id": "1c0a6a52-0f49-4a39-b0a1-7d2a63a0a5c3",
    "url": "https://hooks.example.org/pilot",
    "events": ["run.state", "run.alert"],
    "created_at": "2026-01-05T09:00:00Z",
    "created_by": "ada",
}
_DELIVERY: dict[str, Any] = {
    "id": 7,
    "event": "run.state",
    "body": {"run": _RUN, "name": "first run", "before": "running", "state": "succeeded", "reason": None},
    "created_at": "2026-01-05T10:02:11Z",
    "attempts": 1,
    "due_at": "2026-01-05T10:03:11Z",
    "delivered_at": "2026-01-05T10:02:12Z",
    "given_up_at": None,
    "status": 204,
    "error": None,
}


def _range(expected: float) -> dict[str, float]:
    return {"low": 0.9 * expected, "expected": expected, "high": 1.1 * expected}


_SETTINGS = {"price_per_gpu_hour": 2.5, "currency": "USD", "changed_at": "2026-01-05T09:00:00Z", "changed_by": "ada"}

_INTERVAL = {"median": 22.2, "low": 21.9, "high": 22.6}
_METHOD: dict[str, Any] = {
    "name": "Pilot-Commit",
    "what": "4 pilots + 12 commits, deferred below 0.125, skipped above 0.75, evicted from 1",
    "rollouts": {"median": 138810, "low": 138270, "high": 138861},
    "per_mixed": _INTERVAL,
    "per_signal": {"median": 29.3, "low": 29.1, "high": 29.4},
    "saved": {"median": 0.24, "low": 0.23, "high": 0.25},
    "saved_signal": {"median": 0.43, "low": 0.42, "high": 0.43},
    "mixed_groups": {"median": 6240, "low": 6240, "high": 6240},
    "fates": {"trained": 0.72, "pilot_deferred": 0.2, "pilot_evicted": 0.08},
    "short_by": {"median": 0, "low": 0, "high": 0},
}
_AUDIT: dict[str, Any] = {
    "report": {
        "source": "run first run",
        "format": "pilot",
        "reward": "reward: reward; success as logged",
        "steps": 195,
        "first_step": 1,
        "last_step": 195,
        "prompts": 4550,
        "groups": 6240,
        "rollouts": 99840,
        "failed": 0,
        "tokens": 336849,
        "group_size": 16,
        "batch_prompts": 32,
        "zero_variance": 0.467,
        "all_right": 0.298,
        "all_wrong": 0.169,
        "success_rate": 0.595,
        "reward_variance": 0.076,
        "per_mixed": 30.0,
        "over_steps": [
            {
                "first_step": 1,
                "last_step": 4,
                "rollouts": 2048,
                "all_right": 0.12,
                "all_wrong": 0.14,
                "success_rate": 0.48,
                "reward_variance": 0.12,
            }
        ],
        "map": [{"p_from": 0.95, "p_to": 1.0, "visits_from": 1, "visits_to": 1, "prompts": 830}],
        "buckets": [{"bucket": "ready", "prompts": 1322, "rollouts": 28832}],
        "dead_prompts": 1846,
        "dead_rollouts": 39168,
        "dead": [{"text": "6*4000=", "success_rate": 1.0, "visits": 2, "rollouts": 32, "tokens": 192}],
        "methods": [_METHOD],
        "certainty": {
            "replays": 9,
            "visits_per_prompt": 1.37,
            "rollouts_per_prompt": [16, 16, 32],
            "steps_away": 44.0,
            "drawn_again": 0.58,
        },
        "settings": AuditSettings(n=16, n_pilot=4, n_commit=12, keep=4, batch_prompts=32, replays=9).model_dump(),
        "assumptions": ["The policy's learning curve is taken as logged."],
        "bad_rows": 0,
        "bad": [],
    },
    "page": "<!doctype html>...",
}

_PROMPT_SET: dict[str, Any] = {
    "name": "gsm8k",
    "version": "9a3eda8c4b317c79",
    "ref": "set:gsm8k@9a3eda8c4b317c79",
    "file": "gsm8k.train.jsonl",
    "mapping": "gsm8k",
    "n_prompts": 7473,
    "n_bytes": 2310544,
    "created_at": "2026-01-05T09:30:00Z",
    "created_by": "ada",
    "n_runs": 1,
}
_PREVIEW = {"id": "5f2b8c0de1a94773", "text": "17+25=", "answer": "42", "tags": ["addition"], "reward": None}
_WARNING = {
    "kind": "alike",
    "title": "prompts that differ from others in case and white space only",
    "refuses": False,
    "n": 1,
    "rows": [{"row": "812", "message": "reads like row 17"}],
}
_REPORT: dict[str, Any] = {
    "accepted": True,
    "fault": None,
    "n_rows": 7473,
    "n_prompts": 7473,
    "longest": 214,
    "findings": [_WARNING],
    "unchecked": [],
    "preview": [_PREVIEW],
}
_PROMPT_SET_DETAIL = _PROMPT_SET | {
    "report": _REPORT,
    "runs": [{"id": _RUN, "name": "first run", "state": "running"}],
}

ANSWERS: dict[str, Any] = {
    "audit_files": _AUDIT,
    "audit_run": _AUDIT,
    "create_run": _QUEUED,
    "list_runs": {"runs": [_SUMMARY], "total": 1, "next_cursor": None},
    "list_facets": {"methods": ["grpo", "pilot_commit"], "tags": ["baseline"], "owners": ["ada"]},
    "get_run": _DETAIL,
    "create_evaluation": _EVALUATION | dict.fromkeys(("started_at", "finished_at")) | _NOT_YET,
    "list_evaluations": {"evaluations": [_EVALUATION], "next_cursor": None},
    "get_evaluation": _EVALUATION,
    "stop_evaluation": _EVALUATION
    | _NOT_YET
    | {"state": "stopping", "attempt": 1, "stop_requested_at": "2026-01-05T11:00:21Z", "finished_at": None},
    "get_evaluation_log": {"attempt": 1, "offset": 0, "text": "loading\n", "next_offset": 8, "size": 8},
    "stop_run": _DETAIL | {"state": "stopping", "stop_requested_at": "2026-01-05T09:41:00Z"},
    "resume_run": _DETAIL | {"state": "queued"},
    "clone_run": _QUEUED | {"cloned_from": _RUN, "id": "c3b0f9e4-5d27-4e0a-8f6e-0d3f1b8c7a22"},
    "change_run": _DETAIL | {"tags": ["baseline", "6 seeds"], "priority": 10},
    "delete_run": _DETAIL | {"state": "succeeded", "finished_at": "2026-01-05T10:02:11Z"},
    "get_config": _CONFIG,
    "wait_for_run": _DETAIL | {"state": "succeeded", "finished_at": "2026-01-05T10:02:11Z"},
    "get_metrics": {
        "steps": [
            {
                "step": 12,
                "attempt": 1,
                "epoch": 0,
                "rollouts": 5120,
                "tokens": 81920,
                "metrics": _METRICS,
                "finished_at": "2026-01-05T09:40:10Z",
            }
        ],
        "evaluations": [
            {
                "step": 10,
                "greedy_accuracy": 0.52,
                "sampled_accuracy": 0.47,
                "stderr": 0.02,
                "samples": 4,
                "n_prompts": 192,
                "rollouts_spent": 4300,
                "seconds": 3.1,
                "benchmarks": [
                    {
                        "name": "held-out",
                        "dataset": "0f5f2a1c9d3e4b67",
                        "n_prompts": 192,
                        "samples": 4,
                        "temperature": 1.0,
                        "top_p": 1.0,
                        "accuracy": 0.47,
                        "stderr": 0.02,
                        "pass_at": {"1": 0.47, "2": 0.58, "4": 0.66},
                        "majority": 0.53,
                        "greedy_accuracy": 0.52,
                        "greedy_stderr": 0.04,
                        "n_failed": 0,
                        "rollouts": 960,
                        "tokens": 5760,
                        "seconds": 3.1,
                    }
                ],
                "mean_accuracy": None,
                "mean_stderr": None,
                "finished_at": "2026-01-05T09:39:02Z",
            }
        ],
    },
    "get_buckets": {"step": 12, "counts": _COUNTS, "history": [{"step": 12, "counts": _COUNTS}]},
    "get_flows": {
        "from_step": 0,
        "to_step": 12,
        "flows": [
            {"source": "unseen", "target": "committed", "prompts": 30},
            {"source": "unseen", "target": "unseen", "prompts": 120},
        ],
    },
    "get_difficulty": {
        "first": 1,
        "last": 12,
        "every": 1,
        "over_time": [{"part": 0, "rate": 3, "groups": 14}],
        "spend": [{"rate": 3, "visits": 1, "prompts": 5, "rollouts": 160, "tokens": 2560, "bucket": "committed"}],
    },
    "get_ledger": _LEDGER,
    "list_evaluation_files": {
        "files": [{"step": 10, "benchmark": "held-out", "n_bytes": 41_200}],
        "next_step": None,
    },
    "list_rewards": {
        "rewards": [
            {
                "name": "exact",
                "version": 1,
                "title": "1 when the response equals the reference answer after trimming white space, else 0.",
                "description": "1 when the response equals the reference answer after trimming white space, else 0.",
                "judges": True,
                "parameters": {"type": "object", "properties": {"name": {"const": "exact"}}},
                "elsewhere": None,
            }
        ]
    },
    "test_reward": {
        "results": [
            {
                "reward": 1.0,
                "accuracy": 1.0,
                "failed": False,
                "why": "the numbers are equal",
                "parts": [
                    {
                        "name": "math",
                        "weight": 1.0,
                        "judges": True,
                        "value": 1.0,
                        "accuracy": 1.0,
                        "why": "the numbers are equal",
                        "extracted": "\\frac{2}{4}",
                        "expected": "0.5",
                    }
                ],
                "seconds": 0.001,
            }
        ]
    },
    "compare_runs": {
        "runs": [
            {
                "run": _SUMMARY,
                "config": _CONFIG,
                "evaluations": {
                    "step": [0, 10],
                    "rollouts": [0, 4300],
                    "tokens": [0, 68800],
                    "hours": [0.001, 0.152],
                    "accuracy": [0.41, 0.47],
                    "stderr": [0.02, 0.02],
                    "greedy_accuracy": [0.45, 0.52],
                },
                "series": {
                    "step": [1, 12],
                    "rollouts": [430, 5120],
                    "tokens": [6880, 81920],
                    "hours": [0.014, 0.17],
                    "metrics": {"reward_variance": [0.19, 0.21]},
                },
                "ledger": _LEDGER,
            }
        ],
        "target": 0.45,
        "by": "rollouts",
        "baseline": 0,
        "groups": [
            {
                "name": "first run",
                "runs": [_RUN],
                "seeds": [0],
                "reached": 1,
                "to_target": {"rollouts": 2866.7, "tokens": 45866.7, "steps": 6.7, "hours": 0.102},
                "against": None,
                "accuracy": 0.47,
                "best_accuracy": 0.47,
                "reward_variance": 0.21,
            }
        ],
        "differences": [],
    },
    "list_prompts": {"prompts": [_PROMPT], "total": 1, "next_cursor": None},
    "get_prompt": {
        "prompt": _PROMPT,
        "visits": [_VISIT, _VISIT | {"stage": "commit", "n": 24, "tokens": 384, "bucket": "committed"}],
        "moves": [{"step": 9, "attempt": 1, "bucket": "unseen"}],
        "marks": [_MARK],
    },
    "mark_prompts": {"mark": "exclude", "marked": 2, "unchanged": 0},
    "list_prompt_tags": {"tags": [{"tag": "addition", "prompts": 120}]},
    "list_prompt_rollouts": {
        "rollouts": [
            {
                "step": 12,
                "stage": "pilot",
                "response": "42",
                "reward": 1.0,
                "success": 1.0,
                "n_tokens": 3,
                "logprob": -0.21,
                "verdicts": None,
            }
        ],
        "missing": [],
        "next_step": None,
    },
    "get_config_schema": {"title": "RunConfig", "type": "object", "required": ["model", "data"]},
    "validate_config": {
        "valid": False,
        "config": None,
        "problems": [{"field": "seed", "value": -1, "message": "Input should be greater than or equal to 0"}],
    },
    "forecast_config": {
        "steps": 40,
        "ends_by": "budget.steps",
        "stages": [
            {
                "stage": stage,
                "rollouts": _range(rollouts),
                "tokens": _range(16 * rollouts),
                "gpu_hours": _range(rollouts / 1e6),
            }
            for stage, rollouts in (("pilot", 112000), ("commit", 122880), ("evaluation", 8640))
        ],
        "rollouts": _range(234880),
        "tokens": _range(3758080),
        "gpu_hours": _range(0.31),
        "device": "cuda",
        "shares": {"ready": _range(0.37), "skipped": _range(0.08), "deferred": _range(0.4), "evicted": _range(0.15)},
        "saving": _range(0.47),
        "runs": 1,
        "prompts": 4550,
        "visits": 16491,
        "unknown": ["How much runs differ: 1 run cannot tell. 10% are assumed, and 30% of speed."],
        "advice": [],
    },
    "list_presets": [
        {
            "name": "demo",
            "group": "",
            "title": "Demo",
            "description": "A few minutes on a CPU.",
            "config": _CONFIG,
        }
    ],
    "list_alerts": {
        "alerts": [
            {
                "kind": "short_batches",
                "level": "warn",
                "title": "Trains on fewer prompts than asked",
                "evidence": "7 prompts short per step: too few lie between p_lower and p_upper.",
                "suggestion": "Widen the thresholds, add prompts, or lower update.batch_prompts.",
            }
        ]
    },
    "get_log": {"attempt": 1, "offset": 0, "text": "step 1: loss 0.02\n", "next_offset": 18, "size": 18},
    "list_checkpoints": {
        "checkpoints": [
            {
                "step": 10,
                "accuracy": 0.47,
                "saved_at": "2026-01-05T09:39:02Z",
                "n_bytes": 1204,
                "files": [{"path": "state.json", "n_bytes": 1204}],
            }
        ],
        "best_step": 10,
    },
    "list_rollouts": {"files": [{"step": 1, "n_bytes": 40213}], "next_step": None},
    "upload_prompt_set": _PROMPT_SET_DETAIL | {"n_runs": 0, "runs": []},
    "check_prompts": _REPORT | {"hub": None},
    "list_prompt_sets": {"prompt_sets": [_PROMPT_SET], "next_cursor": None},
    "get_prompt_set": _PROMPT_SET_DETAIL,
    "list_prompt_set_rows": {"rows": [_PREVIEW], "next_offset": None},
    "delete_prompt_set": _PROMPT_SET | {"n_runs": 0},
    "get_me": _TOKEN,
    "create_token": _TOKEN | {"last_used_at": None, "secret": "pilot_kV3n...shown once..."},
    "list_tokens": {"tokens": [_TOKEN], "next_cursor": None},
    "revoke_token": _TOKEN | {"revoked_at": "2026-01-06T08:00:00Z"},
    "create_webhook": _WEBHOOK | {"secret": "whsec_...shown once..."},
    "list_webhooks": {"webhooks": [_WEBHOOK]},
    "delete_webhook": _WEBHOOK,
    "test_webhook": _DELIVERY | {"event": "test", "attempts": 0, "delivered_at": None, "status": None},
    "list_deliveries": {"deliveries": [_DELIVERY], "next_cursor": None},
    "list_workers": {
        "workers": [
            {
                "host": "node-7",
                "silent_since": None,
                "cpu_use": 0.31,
                "slots": [
                    {
                        "kind": "cuda",
                        "device": "0",
                        "label": "NVIDIA H200, 139 GiB",
                        "offered": True,
                        "use": 0.94,
                        "run_id": _RUN,
                        "evaluation_id": None,
                        "run_name": "first run",
                        "taken_at": "2026-01-05T09:30:02Z",
                    }
                ],
            }
        ]
    },
    "get_settings": _SETTINGS,
    "change_settings": _SETTINGS,
    "list_audit": {"entries": [_CHANGE], "next_cursor": None},
    "get_health": {"status": "ok", "checks": {"api": "ok"}},
    "get_readiness": {"status": "ok", "checks": {"database": "ok", "migrations": "ok", "broker": "ok"}},
}
