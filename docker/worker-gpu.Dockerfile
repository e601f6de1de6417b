# syntax=docker/dockerfile:1
# The Celery worker, the run supervisors that it launches, and the trainer on GPUs: verl, vLLM, CUDA 13.0. The same image
# runs the nodes of a Ray cluster (docs/verl.md). The host needs an NVIDIA driver for CUDA 13 and its container toolkit.
ARG CUDA=13.0.2

# flash-attn has no wheel for this torch; it is compiled here, for the GPUs that FLASH_ATTN_CUDA_ARCHS names. That takes
# a while and about 6 GB of memory a job.
FROM nvidia/cuda:${CUDA}-devel-ubuntu24.04 AS flash-attn
ENV DEBIAN_FRONTEND=noninteractive
RUN apt-get update && apt-get install -y --no-install-recommends g++ git ninja-build python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /venv
COPY requirements/verl-gpu.txt requirements/verl-gpu.txt
RUN /venv/bin/pip install --no-cache-dir --no-input $(grep -E '^(torch|setuptools|numpy|einops|packaging|psutil)==' requirements/verl-gpu.txt) wheel
ARG FLASH_ATTN=2.8.3
ARG FLASH_ATTN_CUDA_ARCHS="80;90;100"
ARG MAX_JOBS=8
RUN FLASH_ATTENTION_FORCE_BUILD=TRUE \
    /venv/bin/pip wheel --no-cache-dir --no-input --no-deps --no-build-isolation -w /wheels "flash-attn==${FLASH_ATTN}"

FROM nvidia/cuda:${CUDA}-base-ubuntu24.04
ENV DEBIAN_FRONTEND=noninteractive PYTHONUNBUFFERED=1 PATH=/venv/bin:$PATH
WORKDIR /app
# Triton and flashinfer compile kernels while they run.
RUN apt-get update && apt-get install -y --no-install-recommends g++ libnuma1 ninja-build python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --create-home pilot && install -d -o pilot -g pilot /data && python3 -m venv /venv

# The lock file is complete: nothing is resolved here.
COPY requirements/verl-gpu.txt requirements/verl-gpu.txt
RUN pip install --no-cache-dir --no-input --no-deps -r requirements/verl-gpu.txt
RUN --mount=type=bind,from=flash-attn,source=/wheels,target=/wheels pip install --no-cache-dir --no-input --no-deps /wheels/*.whl

COPY pipeline pipeline
COPY db db
COPY worker worker
COPY api api
COPY cli cli

USER pilot
# PILOT_SLOTS: runs of the torch engine on the CPU are the CPU workers'.
ENV PILOT_HOME=/data PILOT_SLOTS=0
# Whether it can work: its database, its broker, its GPUs.
HEALTHCHECK --interval=30s --timeout=20s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import os, psycopg, redis, subprocess; psycopg.connect(os.environ['DATABASE_URL'], connect_timeout=5).close(); redis.Redis.from_url(os.environ['REDIS_URL'], socket_connect_timeout=5).ping(); subprocess.run(['nvidia-smi', '-L'], check=True, timeout=10, stdout=subprocess.DEVNULL)"]
CMD ["python", "-m", "worker"]
