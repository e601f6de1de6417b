# The Celery worker, the run supervisors that it launches, and the trainer on CPU.
FROM python:3.11-slim-bookworm

ENV PYTHONUNBUFFERED=1
WORKDIR /app
RUN useradd --uid 10001 --create-home pilot && install -d -o pilot -g pilot /data

# torch first and alone, by pip, as in the Makefile. TORCH picks the build, e.g. a CPU-only one from your index.
ARG TORCH=torch==2.13.0
RUN pip install --no-cache-dir --no-input "$TORCH"
COPY requirements/torch.txt requirements/platform.txt requirements/
RUN pip install --no-cache-dir --no-input --no-deps -r requirements/torch.txt \
    && pip install --no-cache-dir --no-input --no-deps -r requirements/platform.txt

COPY pipeline pipeline
COPY db db
COPY worker worker
COPY api api
COPY cli cli

USER pilot
ENV PILOT_HOME=/data
# The worker takes no remote control that could be asked, and its end is the container's; so this asks whether it can work.
HEALTHCHECK --interval=30s --timeout=15s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import os, psycopg, redis; psycopg.connect(os.environ['DATABASE_URL'], connect_timeout=5).close(); redis.Redis.from_url(os.environ['REDIS_URL'], socket_connect_timeout=5).ping()"]
CMD ["python", "-m", "worker"]
