"""verl's vLLM server and its trainer side, with a socket of the run's own and, in CPU mode, weights that can change."""

from __future__ import annotations

import os
from typing import Any

import ray
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica
from verl.workers.rollout.vllm_rollout.vllm_rollout import ServerAdapter


def socket_key() -> str:
    """Different for every Ray that runs on this machine: its control port, and the job's number in it."""
    context = ray.get_runtime_context()
    port = context.gcs_address.rpartition(":")[2]
    return f"{port}-{context.get_job_id()}"


class Adapter(ServerAdapter):  # type: ignore[misc]
    """The sending side, in the training worker."""

    zmq_handle: str

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        job = ray.get_runtime_context().get_job_id()
        self.zmq_handle = self.zmq_handle.replace(f"zmq-{job}-", f"zmq-{socket_key()}-")


class Server(vLLMHttpServer):  # type: ignore[misc]
    """The receiving side: vLLM's workers, started later by this process, take the name from their environment."""

    def _post_init(self, cuda_visible_devices: str) -> None:
        os.environ["VERL_RAY_JOB_ID"] = socket_key()
        super()._post_init(cuda_visible_devices)


class CpuServer(Server):
    def _get_worker_extension_cls(self) -> str:
        return f"{CpuWorkerExtension.__module__}.{CpuWorkerExtension.__qualname__}"


class CpuWorkerExtension(vLLMColocateWorkerExtension):  # type: ignore[misc]
    """Runs in vLLM's worker process."""

    def __new__(cls, **kwargs: Any) -> CpuWorkerExtension:
        # On a CPU vLLM packs linear weights into another layout when it loads a model, and drops the weights
        # themselves: there would be nothing to load new ones into. Without packing it computes with the weights.
        import vllm._custom_ops as ops
        import vllm.model_executor.layers.utils as layers

        ops._supports_onednn = False
        layers.check_cpu_sgl_kernel = lambda *_args, **_kwargs: False
        extension: CpuWorkerExtension = super().__new__(cls, **kwargs)
        return extension

    def _update_weights(self, weights: list[tuple[str, Any]], peft_config: Any, base_sync_done: bool) -> None:
        # On a GPU the move to the device is a copy. Here it is none, and the tensors are views of shared memory that
        # is gone after this call.
        super()._update_weights([(name, w.clone()) for name, w in weights], peft_config, base_sync_done)


class Replica(vLLMReplica):  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.server_class = ray.remote(CpuServer if os.environ.get("VERL_PLATFORM") == "cpu" else Server)
