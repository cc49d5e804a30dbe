FROM python:3.13-slim

ENV PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_ROOT_USER_ACTION=ignore

# /keys is for the API keys of a gateway: a volume there is the user's.
RUN useradd --create-home --uid 1000 agent && install -d -o agent -g agent -m 0700 /keys

WORKDIR /build
COPY pyproject.toml README.md LICENSE pytest_redis_state.py ./
COPY requirements requirements
COPY lua lua
COPY redis_state redis_state
RUN pip install '.[worker,gateway,forms,cli,http,crypto,otel,prometheus,uvloop,postgres,parquet]' -c requirements/dev.txt && rm -rf /build

# The command puts the working directory on the import path: the pool needs only this folder beside
# the installed package.
WORKDIR /app
COPY workers workers

USER agent
ENV WORKER_METRICS=0.0.0.0:9100
EXPOSE 9100
HEALTHCHECK --interval=30s --timeout=10s --start-period=20s CMD ["redis-state", "workers", "--here"]
CMD ["redis-state", "worker", "workers.settings:worker"]
