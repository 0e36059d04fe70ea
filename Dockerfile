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

FROM python:3.12-slim

RUN useradd --create-home --uid 1000 user
USER user

ENV HOME=/home/user \
    PATH=/home/user/.local/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    GRADIO_SERVER_NAME=0.0.0.0 \
    GRADIO_SERVER_PORT=7860 \
    GRADIO_ANALYTICS_ENABLED=False \
    GRADIO_TEMP_DIR=/home/user/tmp/gradio \
    HF_HOME=/home/user/.cache/huggingface

WORKDIR $HOME/app
RUN mkdir -p "$GRADIO_TEMP_DIR" "$HF_HOME"

# The dependencies first: a change in the code alone does not install them again.
ARG TORCH_INDEX_URL=""
COPY --chown=user requirements.txt constraints.txt ./
RUN pip install --user ${TORCH_INDEX_URL:+--extra-index-url "$TORCH_INDEX_URL"} \
    --constraint constraints.txt --requirement requirements.txt hatchling

COPY --chown=user . .
RUN pip install --user --no-deps --no-build-isolation --editable .

EXPOSE 7860
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request; urllib.request.urlopen(f\"http://127.0.0.1:{os.environ['GRADIO_SERVER_PORT']}/\", timeout=4)"]

CMD ["python", "app.py"]
