# One image for both daemons and the laboratory. Non-root, nothing to write but the volume it is given.
FROM python:3.11-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY protocol protocol
COPY runtime runtime
COPY decode_service decode_service
COPY prefill_service prefill_service
COPY lab lab
RUN python -m venv /opt/venv \
    && /opt/venv/bin/pip install --no-cache-dir --disable-pip-version-check -c constraints.txt . \
    && /opt/venv/bin/pip uninstall --yes pip setuptools \
    && find /opt/venv -name __pycache__ -prune -exec rm -r {} +

FROM python:3.11-slim
LABEL org.opencontainers.image.title="pd-staging" \
      org.opencontainers.image.description="KV staging for prefill/decode disaggregated serving" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
CMD ["decode-service", "serve"]
