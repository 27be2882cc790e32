# The zoo on NVIDIA GPUs, with CUDA 11.8 and cuDNN 8. Not built yet: the tests have no Docker.
#     docker build --file scripts/docker/cuda.Dockerfile --tag zoo:cuda .
# MindSpore's GPU libraries are built for CUDA 11.1 and 11.6; those of 11.8 have the same names.
FROM nvidia/cuda:11.8.0-cudnn8-devel-ubuntu22.04
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ python3.10-venv \
    && rm -rf /var/lib/apt/lists/*
ENV CUDA_HOME=/usr/local/cuda
ENV ZOO_VENV=/opt/zoo
ENV PATH=/opt/zoo/bin:$PATH
WORKDIR /zoo
COPY requirements.txt constraints.txt ./
COPY scripts/env.sh scripts/
RUN bash -c 'source scripts/env.sh && install requirements.txt'
COPY . .
CMD ["python", "scripts/check_env.py"]
