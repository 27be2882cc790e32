# The zoo on a CPU. Not built yet: the tests have no Docker.
#     docker build --file scripts/docker/cpu.Dockerfile --tag zoo:cpu .
FROM python:3.11.13-slim-bookworm
# g++ compiles the kernels for the CPU when a network first runs.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
ENV ZOO_VENV=/opt/zoo
ENV PATH=/opt/zoo/bin:$PATH
WORKDIR /zoo
COPY requirements.txt constraints.txt ./
COPY scripts/env.sh scripts/
RUN bash -c 'source scripts/env.sh && install requirements.txt'
COPY . .
CMD ["python", "scripts/check_env.py"]
