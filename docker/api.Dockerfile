# The API and the migrations: python -m cli db upgrade, python -m api. No torch.
FROM python:3.11-slim-bookworm

ENV PYTHONUNBUFFERED=1
WORKDIR /app
RUN useradd --uid 10001 --create-home pilot && install -d -o pilot -g pilot /data

# The lock file is complete: the same install as the Makefile's, with byte-compiling, since its user cannot write there.
COPY requirements/platform.txt requirements/platform.txt
RUN pip install --no-cache-dir --no-input --no-deps -r requirements/platform.txt

COPY pipeline pipeline
COPY db db
COPY worker worker
COPY api api
COPY cli cli

USER pilot
ENV PILOT_HOME=/data
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
CMD ["python", "-m", "api", "--host", "0.0.0.0", "--port", "8000"]
