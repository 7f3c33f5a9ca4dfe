#include <cuda_runtime.h>

#include <cstdint>

static __global__ void multiply(float* data, float factor, int64_t count) {
  int64_t at = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (at < count) data[at] *= factor;
}

void launch_scale(float* data, float factor, int64_t count, cudaStream_t stream) {
  if (count > 0) multiply<<<(count + 255) / 256, 256, 0, stream>>>(data, factor, count);
}
