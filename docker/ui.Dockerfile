# The dashboard. It knows the API's client and nothing else.
FROM python:3.11-slim-bookworm

ENV PYTHONUNBUFFERED=1
WORKDIR /app
RUN useradd --uid 10001 --create-home pilot

COPY requirements/platform.txt requirements/platform.txt
RUN pip install --no-cache-dir --no-input --no-deps -r requirements/platform.txt

COPY pipeline pipeline
COPY api api
COPY ui ui
COPY .streamlit .streamlit

USER pilot
ENV PYTHONPATH=/app
EXPOSE 8501
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8501/_stcore/health', timeout=4)"]
CMD ["streamlit", "run", "ui/app.py", "--server.address=0.0.0.0", "--server.port=8501", "--server.headless=true"]
