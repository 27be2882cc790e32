/* Bodies of the CUDA and cuDNN functions for which "return 0" is not enough (CUDA 11.6, cuDNN 8).
 * The device is an A100 with 40 GB, compute capability 8.0. No kernel computes. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define GIGABYTE ((size_t)1 << 30)

int cudaGetDeviceCount(int *count) {
  *count = 8;
  return 0;
}
/* Offsets of cudaDeviceProp in CUDA 11. */
int cudaGetDeviceProperties(void *properties, int device) {
  char *bytes = properties;
  memset(bytes, 0, 720);
  strcpy(bytes, "Simulated A100");
  *(size_t *)(bytes + 288) = 40 * GIGABYTE; /* totalGlobalMem */
  *(size_t *)(bytes + 296) = 49152;         /* sharedMemPerBlock */
  *(int *)(bytes + 304) = 65536;            /* regsPerBlock */
  *(int *)(bytes + 308) = 32;               /* warpSize */
  *(int *)(bytes + 320) = 1024;             /* maxThreadsPerBlock */
  int *block = (int *)(bytes + 324);        /* maxThreadsDim */
  block[0] = block[1] = 1024;
  block[2] = 64;
  int *grid = (int *)(bytes + 336); /* maxGridSize */
  grid[0] = 2147483647;
  grid[1] = grid[2] = 65535;
  *(int *)(bytes + 360) = 8;   /* major */
  *(int *)(bytes + 364) = 0;   /* minor */
  *(int *)(bytes + 388) = 108; /* multiProcessorCount */
  return 0;
}
int cudaMalloc(void **pointer, size_t size) { /* addresses only: the host never touches them */
  static uintptr_t next = 0x7f0000000000;
  *pointer = (void *)next;
  next += (size + 511) & ~(size_t)511;
  return 0;
}
int cudaMemGetInfo(size_t *available, size_t *total) {
  *available = 39 * GIGABYTE;
  *total = 40 * GIGABYTE;
  return 0;
}
int cudaHostAlloc(void **pointer, size_t size, unsigned flags) {
  *pointer = malloc(size);
  return 0;
}
int cudaFreeHost(void *pointer) {
  free(pointer);
  return 0;
}
static int copy(void *target, size_t size, int kind) {
  if (kind == 2) memset(target, 0, size); /* device to host */
  return 0;
}
int cudaMemcpy(void *target, const void *source, size_t size, int kind) {
  return copy(target, size, kind);
}
int cudaMemcpyAsync(void *target, const void *source, size_t size, int kind, void *stream) {
  return copy(target, size, kind);
}
const char *cudaGetErrorString(int error) { return "stub"; }
const char *cudaGetErrorName(int error) { return "stub"; }
const char *cudnnGetErrorString(int error) { return "stub"; }
int cuGetErrorName(int error, const char **name) {
  *name = "stub";
  return 0;
}
int cudaRuntimeGetVersion(int *version) {
  *version = 11060;
  return 0;
}
int cudaDriverGetVersion(int *version) { return cudaRuntimeGetVersion(version); }
size_t cudnnGetVersion(void) { return 8500; }
/* Functions that store a size through their last argument: 1024 bytes. */
#define STORE_SIZE(name, ...)                       \
  int name(__VA_ARGS__, size_t *size) {             \
    *size = 1024;                                   \
    return 0;                                       \
  }
typedef void *Any;
STORE_SIZE(cudnnGetTensorSizeInBytes, Any tensor)
STORE_SIZE(cudnnGetFilterSizeInBytes, Any filter)
STORE_SIZE(cudnnDropoutGetStatesSize, Any handle)
STORE_SIZE(cudnnGetReductionWorkspaceSize, Any handle, Any reduction, Any a, Any c)
STORE_SIZE(cudnnGetReductionIndicesSize, Any handle, Any reduction, Any a, Any c)
STORE_SIZE(cudnnGetConvolutionForwardWorkspaceSize, Any handle, Any x, Any w, Any convolution,
           Any y, int algorithm)
STORE_SIZE(cudnnGetConvolutionBackwardDataWorkspaceSize, Any handle, Any w, Any dy,
           Any convolution, Any dx, int algorithm)
STORE_SIZE(cudnnGetConvolutionBackwardFilterWorkspaceSize, Any handle, Any x, Any dy,
           Any convolution, Any dw, int algorithm)
STORE_SIZE(cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize, Any handle, int mode,
           int operations, Any x, Any z, Any y, Any scale, Any activation)
STORE_SIZE(cudnnGetBatchNormalizationBackwardExWorkspaceSize, Any handle, int mode, int operations,
           Any x, Any y, Any dy, Any dz, Any dx, Any scale, Any activation)
STORE_SIZE(cudnnGetBatchNormalizationTrainingExReserveSpaceSize, Any handle, int mode,
           int operations, Any activation, Any x)
static int one_algorithm(int *count, void *performance) {
  *count = 1;
  memset(performance, 0, 48);
  *(int *)performance = 1;
  return 0;
}
#define FIND_ALGORITHM(name)                                                       \
  int name(void *h, void *a, void *b, void *c, void *d, int requested, int *count, \
           void *performance) {                                                    \
    return one_algorithm(count, performance);                                      \
  }
FIND_ALGORITHM(cudnnGetConvolutionForwardAlgorithm_v7)
FIND_ALGORITHM(cudnnGetConvolutionBackwardDataAlgorithm_v7)
FIND_ALGORITHM(cudnnGetConvolutionBackwardFilterAlgorithm_v7)
FIND_ALGORITHM(cudnnFindConvolutionForwardAlgorithm)
FIND_ALGORITHM(cudnnFindConvolutionBackwardDataAlgorithm)
FIND_ALGORITHM(cudnnFindConvolutionBackwardFilterAlgorithm)
