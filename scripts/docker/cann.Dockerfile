# The zoo on Ascend 910B, with CANN 8.5: 9.0 needs a driver that is a release candidate
# (docs/accelerators.md). Not built yet: the tests have no Docker.
#     docker build --file scripts/docker/cann.Dockerfile --tag zoo:cann .
# The host has the driver, which `docker run` mounts (docs/clusters.md).
FROM quay.io/ascend/cann:8.5.0-910b-ubuntu22.04-py3.11
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
# CANN's own wheels, and the packages that they import.
RUN bash -c 'cd /usr/local/Ascend/cann/lib64 && pip install --no-cache-dir --constraint=/zoo/constraints.txt "/zoo[ascend]" ./te-*.whl ./hccl-*.whl'
ENTRYPOINT ["bash", "-c", "source /usr/local/Ascend/cann/set_env.sh && exec \"$@\"", "zoo"]
CMD ["python", "scripts/check_env.py"]
