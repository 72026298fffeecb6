# Three images from one file:
#   control     web, controller, celery, migrate; no torch
#   engine-cpu  the engine worker on CPU
#   engine-gpu  the engine worker on CUDA
ARG PYTHON=3.11

# ---------------------------------------------------------------- pages
FROM node:22-slim AS pages
WORKDIR /src/frontend
COPY frontend/package.json frontend/package-lock.json frontend/.npmrc ./
RUN npm ci
COPY frontend/ ./
RUN npm run build

# ---------------------------------------------------------------- control plane
FROM python:${PYTHON}-slim AS control
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_NO_CACHE_DIR=1
WORKDIR /app
RUN useradd --system --uid 10001 --home-dir /app tollgate
COPY requirements/control.txt requirements/
RUN pip install -r requirements/control.txt
COPY manage.py pyproject.toml ./
COPY engine/__init__.py engine/
COPY engine/protocol engine/protocol
COPY gateway gateway
COPY tenants tenants
COPY templates templates
COPY --from=pages /src/frontend/dist frontend/dist
# collectstatic reads no secret and no database.
RUN python manage.py collectstatic --noinput
USER tollgate
EXPOSE 8000
CMD ["uvicorn", "gateway.asgi:application", "--http", "gateway.http_protocol:HttpProtocol", "--host", "0.0.0.0", \
     "--port", "8000", "--timeout-graceful-shutdown", "60"]

# ---------------------------------------------------------------- engine, CPU
FROM python:${PYTHON}-slim AS engine-cpu
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 TOLLGATE_CACHE=/cache ENGINE_STATE_DIR=/state ENGINE_DEVICE=cpu
WORKDIR /app
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10002 --home-dir /app tollgate \
    && mkdir /cache /state && chown tollgate /cache /state
COPY requirements/engine.txt requirements/
# PyTorch publishes a CPU-only index: give its address as TORCH_INDEX for an image some 3 GB smaller.
ARG TORCH_INDEX=""
RUN pip install ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch==2.13.0 && pip install -r requirements/engine.txt
COPY kernels kernels
COPY engine engine
RUN python -m kernels.cpu.build
USER tollgate
EXPOSE 7070
CMD ["python", "-m", "engine"]

# ---------------------------------------------------------------- engine, CUDA
# torch's own wheel brings the CUDA libraries; the host gives the driver.
FROM engine-cpu AS engine-gpu
ENV ENGINE_DEVICE=cuda
USER root
RUN pip uninstall --yes torch && pip install torch==2.13.0
USER tollgate
