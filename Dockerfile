# RAM Studio's app on port 7860, as user 1000.
#
#   docker build -t ram-studio .
#   docker run -p 7860:7860 ram-studio
#
# On Linux a plain install of torch brings CUDA along (several GB). For a small image pass the
# address of PyTorch's CPU index:
#
#   docker build --build-arg TORCH_INDEX_URL=... -t ram-studio .
#
# Own models: mount their folder and name it,
#
#   docker run -p 7860:7860 -v "$PWD/models:/models:ro" ram-studio \
#     ram-studio app --models-dir /models

# A tag may name another image tomorrow, a digest cannot: this one is of August 2026, for all
# platforms. A newer one is what `docker buildx imagetools inspect python:3.12-slim` prints; it can
# be tried first with --build-arg PYTHON_IMAGE=python:3.12-slim@sha256:...
ARG PYTHON_IMAGE=python:3.12-slim@sha256:78387bc3881b8273120a12ebe6c1ab22b018ccc2c9adf565ae1ac9b536e184ea

# Stage 1 installs into a folder of its own; what only building needs goes before the copy.
FROM ${PYTHON_IMAGE} AS build
ENV PATH=/opt/ram-studio/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /build
RUN python -m venv /opt/ram-studio

# The dependencies first: a change in the code alone does not install them again.
ARG TORCH_INDEX_URL=""
COPY requirements.txt constraints.txt ./
RUN pip install ${TORCH_INDEX_URL:+--extra-index-url "$TORCH_INDEX_URL"} \
    --constraint constraints.txt --requirement requirements.txt hatchling

COPY . .
RUN pip install --no-deps --no-build-isolation . \
    && pip uninstall --yes hatchling pip

FROM ${PYTHON_IMAGE}

RUN useradd --create-home --uid 1000 user
USER user

ENV HOME=/home/user \
    PATH=/opt/ram-studio/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    GRADIO_SERVER_NAME=0.0.0.0 \
    GRADIO_SERVER_PORT=7860 \
    GRADIO_ANALYTICS_ENABLED=False \
    HF_HOME=/home/user/.cache/huggingface

WORKDIR $HOME/app
RUN mkdir -p "$HF_HOME"
COPY --from=build /opt/ram-studio /opt/ram-studio
COPY --chown=user app.py ./
# The loops as machine code, in the user's cache, so that the first merge need not wait for a compiler.
RUN python -c "from ram_studio.algorithm.kernels.warming import warm; warm()"

EXPOSE 7860
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request; urllib.request.urlopen(f\"http://127.0.0.1:{os.environ['GRADIO_SERVER_PORT']}/\", timeout=4)"]

CMD ["python", "app.py"]
