# foreword's server on the CPU. Build: docker build -t foreword .   Run: see docs/guides/serve.md
FROM python:3.11-slim-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY constraints.txt pyproject.toml README.md ./
COPY src src
COPY kernels kernels
COPY checkpoints checkpoints
RUN python -m venv /opt/foreword \
    && /opt/foreword/bin/pip install --no-cache-dir -c constraints.txt scikit-build-core nanobind cmake ninja \
    && /opt/foreword/bin/pip install --no-cache-dir -c constraints.txt '.[serve,grammar]' ./checkpoints \
    && /opt/foreword/bin/pip install --no-cache-dir -c constraints.txt --no-build-isolation ./kernels

FROM python:3.11-slim-bookworm
COPY --from=build /opt/foreword /opt/foreword
RUN useradd --create-home foreword && mkdir /cache && chown foreword /cache
USER foreword
ENV FOREWORD_CACHE=/cache
VOLUME /cache
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=120s CMD \
    ["/opt/foreword/bin/python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["/opt/foreword/bin/foreword", "serve", "--host", "0.0.0.0"]
