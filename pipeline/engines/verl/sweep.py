"""`python -m pipeline.engines.verl.sweep JOB`, as a Ray job: kill what is left of another job, on every node.

Ray ends a job's actors with the job, but not all that an actor had started. Every process of a job carries its name in
the environment (job.MARK), so exactly those are found, whatever they are called and whoever became their parent.
"""

from __future__ import annotations

import sys
import time

import psutil
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from pipeline.engines.verl.job import MARK

PATIENCE_S = 10.0


def kill_marked(mark: str, job: str) -> int:
    """Kill this node's processes of the job until none is left. Returns how many were killed; raises when some stay.

    Ray carries it to the other nodes as it stands here, so it imports nothing of ours.
    """
    killed: set[int] = set()
    deadline = time.monotonic() + PATIENCE_S
    while True:
        left = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(mark) == job and process.status() != psutil.STATUS_ZOMBIE:
                    left.append(process)
                    process.kill()
                    killed.add(process.pid)
            except (psutil.Error, OSError):
                continue  # ended meanwhile, or somebody else's: not ours
        if not left:
            return len(killed)
        if time.monotonic() > deadline:
            raise RuntimeError(f"processes {', '.join(str(p.pid) for p in left)} of {job} cannot be killed")
        psutil.wait_procs(left, timeout=0.5)


def main(job: str) -> None:
    ray.init(address="auto", log_to_driver=False, logging_level="warning")
    task = ray.remote(num_cpus=0)(kill_marked)
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    counts = ray.get(
        [
            task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(MARK, job)
            for node in nodes
        ]
    )
    print(f"{job}: {sum(counts)} processes were left on {len(nodes)} nodes; all are gone")


if __name__ == "__main__":
    main(sys.argv[1])
